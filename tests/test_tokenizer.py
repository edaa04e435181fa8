"""SentencePiece as the run uses it: round trips, determinism, sampling, and what its complaints become."""

from __future__ import annotations

import io
import random
import string
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from nmt import tokenizer as tokenizer_module
from nmt.errors import UserError
from nmt.pairs import ParallelText
from nmt.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    Normalization,
    Tokenizer,
    TokenizerConfig,
    TokenizerKind,
)

LETTERS = string.ascii_lowercase + "äöüß.,"
SYLLABLES = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "ei", "ö")]
WORDS = [*LETTERS, *("".join(random.Random(i).choices(SYLLABLES, k=1 + i % 4)) for i in range(300))]


def corpus(size: int = 400, seed: int = 1) -> ParallelText:
    """Sentences of invented words that use every letter."""
    rng = random.Random(seed)
    sides = [[" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(size)] for _ in range(2)]
    return ParallelText(sides[0], [line.upper() for line in sides[1]])


def train(**fields: object) -> Tokenizer:
    cfg = TokenizerConfig(**{"vocab_size": 200, **fields})  # type: ignore[arg-type]
    return Tokenizer.train(cfg, corpus(), seed=1)


def error_of(text: ParallelText, **fields: object) -> str:
    with pytest.raises(UserError) as caught:
        Tokenizer.train(TokenizerConfig(**fields), text, seed=1)  # type: ignore[arg-type]
    return str(caught.value)


KINDS = {
    kind: train(kind=kind, vocab_size=500 if kind is TokenizerKind.word else 200) for kind in TokenizerKind
}
BYTES = train(byte_fallback=True, vocab_size=400)
NORMALIZER = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc", remove_extra_whitespaces=True)


def normalized(line: str) -> str:
    return str(NORMALIZER.normalize(line)).replace("▁", " ").strip(" ")


@pytest.mark.parametrize("kind", [TokenizerKind.unigram, TokenizerKind.bpe, TokenizerKind.char])
@given(line=st.text(st.sampled_from(LETTERS + LETTERS.upper() + " \t\u2028\u00a0"), max_size=80))
def test_decoding_inverts_encoding_of_known_characters(kind: TokenizerKind, line: str) -> None:
    tokenizer = KINDS[kind]
    [ids] = tokenizer.encode_tgt([line])
    assert tokenizer.decode(ids) == normalized(line)


@given(line=st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="▁"), max_size=40))
def test_with_bytes_nothing_is_unknown(line: str) -> None:
    [ids] = BYTES.encode_tgt([line])
    assert UNK_ID not in ids
    assert BYTES.decode(ids) == normalized(line)


@given(st.lists(st.sampled_from(WORDS), max_size=10))
def test_words_round_trip(words: list[str]) -> None:
    tokenizer = KINDS[TokenizerKind.word]
    known = [word for word in words if tokenizer.encode_src([word])[0][0] != UNK_ID]
    [ids] = tokenizer.encode_src([" ".join(known)])
    assert len(ids) == len(known) + 1
    assert tokenizer.decode(ids) == " ".join(known)


@pytest.mark.parametrize("kind", TokenizerKind)
def test_only_the_end_is_marked(kind: TokenizerKind) -> None:
    """Neither begin nor padding, not even when the text spells them."""
    [ids, empty] = KINDS[kind].encode_src(["aß </s> <s> <pad>", ""])
    assert empty == [EOS_ID]
    assert ids[-1] == EOS_ID
    assert not {PAD_ID, BOS_ID, EOS_ID} & set(ids[:-1])


def test_decoding_drops_the_special_ids_but_shows_the_unknown() -> None:
    tokenizer = KINDS[TokenizerKind.bpe]
    [ids] = tokenizer.encode_tgt(["ab c"])
    assert tokenizer.decode([BOS_ID, *ids, PAD_ID, PAD_ID]) == "ab c"
    assert tokenizer.decode([*ids[:-1], UNK_ID, EOS_ID]) == "ab c ⁇ "
    assert tokenizer.decode([]) == ""


def test_a_decoded_line_is_one_line() -> None:
    model = sentencepiece.SentencePieceProcessor(model_proto=BYTES.tgt_model)
    spelt = [model.piece_to_id(piece) for piece in ("<0x0A>", "<0x0D>", "<0x00>", "<0xFF>")]
    a = model.piece_to_id("a")
    assert BYTES.decode([a, spelt[0], a, spelt[1], spelt[0], a, spelt[2], a, spelt[3]]) == "a a a a\ufffd"


def test_training_is_deterministic_and_the_config_matters() -> None:
    for kind in (TokenizerKind.unigram, TokenizerKind.bpe):
        assert train(kind=kind).fingerprint == KINDS[kind].fingerprint
    prints = {
        train(normalization=rule).fingerprint for rule in (Normalization.nfkc_cf, Normalization.identity)
    }
    assert len(prints | {KINDS[TokenizerKind.unigram].fingerprint}) == 3


def test_one_model_for_each_side() -> None:
    separate = train(joint=False, vocab_size=120)
    assert separate.src_model != separate.tgt_model
    assert separate.src_vocab_size == separate.tgt_vocab_size == 120
    [src], [tgt] = separate.encode_src(["ab cd"]), separate.encode_tgt(["AB CD"])
    assert UNK_ID not in src + tgt
    assert separate.decode(tgt) == "AB CD"
    assert UNK_ID in separate.encode_tgt(["ab cd"])[0]


def test_a_very_long_line_is_not_left_out() -> None:
    """SentencePiece skips lines of more than 4192 bytes unless it is told not to."""
    text = ParallelText(["q" + "ab " * 3000], ["c"])
    tokenizer = Tokenizer.train(TokenizerConfig(kind=TokenizerKind.char, vocab_size=20), text, seed=1)
    assert UNK_ID not in tokenizer.encode_src(["qabc"])[0]


def test_a_huge_corpus_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.tokenizer.MAX_TRAINING_PAIRS", 50)
    cfg = TokenizerConfig(vocab_size=150)
    prints = [Tokenizer.train(cfg, corpus(), seed=seed).fingerprint for seed in (1, 1, 2)]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("kind", [TokenizerKind.unigram, TokenizerKind.bpe])
def test_sampling_is_a_pure_function_of_the_seed(
    kind: TokenizerKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was drawn before, in this thread or another, and however many rounds of threads it takes."""
    monkeypatch.setattr("nmt.tokenizer.SAMPLING_LINES", 7)
    tokenizer, lines = KINDS[kind], corpus(150).src
    first = tokenizer.sample_src(lines, alpha=0.1, seed=1)
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.src_model)
    processor.encode(lines, enable_sampling=True, alpha=0.1, nbest_size=-1)
    tokenizer.sample_tgt(lines[:20], alpha=0.1, seed=5)
    assert tokenizer.sample_src(lines, alpha=0.1, seed=1) == first
    assert tokenizer.sample_src(lines, alpha=0.1, seed=2) != first
    assert first != tokenizer.encode_src(lines)
    assert [tokenizer.decode(ids) for ids in first] == lines
    assert all(ids[-1] == EOS_ID for ids in first)
    again: list[list[list[int]]] = []
    thread = threading.Thread(target=lambda: again.append(tokenizer.sample_src(lines, alpha=0.1, seed=1)))
    thread.start()
    thread.join()
    assert again == [first]


def test_sampling_does_not_repeat_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounds of threads draw differently: the same line, over and over, is cut in many ways."""
    monkeypatch.setattr("nmt.tokenizer.SAMPLING_LINES", 1)
    line = " ".join(WORDS[-20:])
    drawn = KINDS[TokenizerKind.unigram].sample_src([line] * 64, alpha=0.1, seed=1)
    assert len({tuple(ids) for ids in drawn}) >= 8


def test_nothing_is_printed(tmp_path: Path) -> None:
    """SentencePiece writes its log to the standard error of the process, past Python."""
    code = (
        "from nmt.tokenizer import *; from nmt.pairs import ParallelText; import pathlib\n"
        "text = ParallelText(['ab cd'] * 9, ['x' * 9000])\n"
        "tokenizer = Tokenizer.train(TokenizerConfig(kind=TokenizerKind.bpe, vocab_size=12), text, seed=1)\n"
        f"tokenizer.save(pathlib.Path({str(tmp_path)!r}))\n"
        f"Tokenizer.load(pathlib.Path({str(tmp_path)!r})).sample_src(['ab'], alpha=0.1, seed=1)\n"
    )
    root = Path(__file__).resolve().parents[1]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("joint", [True, False])
def test_saved_and_loaded_is_the_same(tmp_path: Path, joint: bool) -> None:
    tokenizer = train(joint=joint, vocab_size=120)
    assert not Tokenizer.exists(tmp_path)
    tokenizer.save(tmp_path)
    names = {"tokenizer.model"} if joint else {"tokenizer.src.model", "tokenizer.tgt.model"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert Tokenizer.exists(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == tokenizer.fingerprint


def test_a_missing_tokenizer_is_told(tmp_path: Path) -> None:
    train(joint=False, vocab_size=120).save(tmp_path)
    (tmp_path / "tokenizer.tgt.model").unlink()
    assert not Tokenizer.exists(tmp_path)
    with pytest.raises(UserError) as caught:
        Tokenizer.load(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} has no tokenizer: neither tokenizer.model "
        "nor both tokenizer.src.model and tokenizer.tgt.model"
    )


@pytest.mark.parametrize("content", [b"", b"garbage", BYTES.src_model[:1000]])
def test_a_damaged_tokenizer_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.model is not a readable SentencePiece model: "):
        Tokenizer.load(tmp_path)


def test_a_foreign_tokenizer_is_told(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus().src), model_writer=model, vocab_size=100, minloglevel=2
    )
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    with pytest.raises(UserError) as caught:
        Tokenizer.load(tmp_path)
    assert "has the ids (-1, 0, 1, 2) for padding, unknown, begin and end, but they must be (0, 1, 2, 3)" in (
        str(caught.value)
    )


SMALL = ParallelText(["a b c d", "e f g hello"] * 10, ["a"] * 20)


@pytest.mark.parametrize("kind", [TokenizerKind.unigram, TokenizerKind.bpe, TokenizerKind.word])
def test_a_vocabulary_too_large_names_the_limit(kind: TokenizerKind) -> None:
    message = error_of(SMALL, kind=kind, vocab_size=32000)
    prefix = "tokenizer.vocab_size=32000 is too large for this corpus, which gives "
    assert message.startswith(prefix)
    limit = int(message.removeprefix(prefix).split()[0])
    assert message.endswith(f"{limit} pieces at most; lower it")
    accepted = Tokenizer.train(TokenizerConfig(kind=kind, vocab_size=limit), SMALL, seed=1)
    assert accepted.src_vocab_size == limit


def test_a_vocabulary_too_small_names_the_limit() -> None:
    assert error_of(SMALL, vocab_size=10, joint=False) == (
        "tokenizer.vocab_size=10 is too small for the source side of this corpus: its characters and the "
        "special pieces alone are 15; raise it, or give rare characters no piece with "
        "tokenizer.character_coverage=0.9995"
    )
    assert "the target side of this corpus, which gives" in error_of(SMALL, vocab_size=15, joint=False)


def test_a_corpus_of_blanks_is_told() -> None:
    expected = "a tokenizer cannot be trained: the target side of this corpus has no text"
    assert error_of(ParallelText(["ab"], [" "]), vocab_size=7, joint=False) == expected


def test_any_other_complaint_is_quoted() -> None:
    error = tokenizer_module._training_error(
        TokenizerConfig(vocab_size=10), "INTERNAL: no idea", "this corpus"
    )
    assert str(error) == (
        "SentencePiece cannot be trained on this corpus with tokenizer.vocab_size=10: INTERNAL: no idea"
    )


def test_characters_need_no_exact_size() -> None:
    cfg = TokenizerConfig(kind=TokenizerKind.char, vocab_size=8000)
    assert Tokenizer.train(cfg, SMALL, seed=1).src_vocab_size < 20


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"vocab_size": 4}, "tokenizer.vocab_size must be at least 5, but is 4"),
        ({"character_coverage": 0.9}, "tokenizer.character_coverage must be in [0.98, 1], but is 0.9"),
        ({"sampling_alpha": -0.1}, "tokenizer.sampling_alpha must be in [0, 1], but is -0.1"),
        (
            {"sampling_alpha": 0.1, "kind": TokenizerKind.word},
            "tokenizer.sampling_alpha=0.1 needs tokenizer.kind=unigram or bpe: "
            "word has one segmentation only",
        ),
        (
            {"byte_fallback": True, "kind": TokenizerKind.word},
            "tokenizer.byte_fallback=true needs another tokenizer.kind than word",
        ),
    ],
)
def test_impossible_tokenizer_configs(fields: dict[str, object], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        TokenizerConfig(**fields)  # type: ignore[arg-type]
    assert str(caught.value) == expected
