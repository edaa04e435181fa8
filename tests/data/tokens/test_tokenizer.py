"""SentencePiece as the run uses it: round trips, determinism, sampling, and what its complaints become."""

from __future__ import annotations

import dataclasses
import io
import random
import string
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.encoded_pairs import RaggedIds
from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.data.tokens import tokenizer_training
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import (
    Case,
    Normalization,
    TokenizerConfig,
    TokenizerKind,
    prepare_lines,
)
from nmt.errors import UserError

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
    return Tokenizer.train(cfg, corpus())


def error_of(text: ParallelText, **fields: object) -> str:
    with pytest.raises(UserError) as caught:
        Tokenizer.train(TokenizerConfig(**fields), text)  # type: ignore[arg-type]
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
    tokenizer = Tokenizer.train(TokenizerConfig(kind=TokenizerKind.char, vocab_size=20), text)
    assert UNK_ID not in tokenizer.encode_src(["qabc"])[0]


@pytest.mark.parametrize("num_lines", [0, 1, 14, 150])
@pytest.mark.parametrize("kind", TokenizerKind)
def test_arrays_are_what_lists_are(
    kind: TokenizerKind, num_lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the lines, whichever thread encodes which of them."""
    monkeypatch.setattr("nmt.data.tokens.tokenizer.PART_LINES", 7)
    tokenizer, text = KINDS[kind], corpus(150)
    for lines, encode, flat in (
        (text.src[:num_lines], tokenizer.encode_src, tokenizer.flat_src),
        (text.tgt[:num_lines], tokenizer.encode_tgt, tokenizer.flat_tgt),
    ):
        ids = flat(lines)
        assert [sentence.tolist() for sentence in ids.take(range(len(lines)))] == encode(lines)


def lists(ids: RaggedIds) -> list[list[int]]:
    return [sentence.tolist() for sentence in ids.take(range(len(ids.lengths)))]


@pytest.mark.parametrize("kind", [TokenizerKind.unigram, TokenizerKind.bpe])
@pytest.mark.parametrize("joint", [True, False])
def test_each_side_is_sampled_with_its_own_pieces(kind: TokenizerKind, joint: bool) -> None:
    tokenizer, text = train(kind=kind, joint=joint, vocab_size=120), corpus(150)
    src = lists(tokenizer.sample_src(text.src, alpha=0.1, seed=1))
    tgt = lists(tokenizer.sample_tgt(text.tgt, alpha=0.1, seed=1))
    assert src != tokenizer.encode_src(text.src)
    assert tgt != tokenizer.encode_tgt(text.tgt)
    assert [tokenizer.decode(ids) for ids in tgt] == text.tgt
    assert joint == ([tokenizer.decode(ids) for ids in src] == text.src)
    assert lists(tokenizer.sample_tgt(text.tgt[50:], alpha=0.1, seed=1, first=50)) == tgt[50:]
    again = Tokenizer(tokenizer.cfg, tokenizer.src_model, tokenizer.tgt_model)
    again.sample_src(text.src, alpha=0.5, seed=1)
    assert lists(again.sample_src(text.src, alpha=0.1, seed=1)) == src
    assert all(ids[-1] == EOS_ID for ids in src + tgt)


def test_nothing_is_printed(tmp_path: Path) -> None:
    """SentencePiece writes its log to the standard error of the process, past Python."""
    code = (
        "from nmt.data.tokens.tokenizer import *; from nmt.data.parallel_text import ParallelText\n"
        "import pathlib\n"
        "text = ParallelText(['ab cd'] * 9, ['x' * 9000])\n"
        "tokenizer = Tokenizer.train(TokenizerConfig(kind=TokenizerKind.bpe, vocab_size=12), text)\n"
        f"tokenizer.save(pathlib.Path({str(tmp_path)!r}))\n"
        f"loaded = Tokenizer.load(TokenizerConfig(), pathlib.Path({str(tmp_path)!r}))\n"
        "loaded.sample_src(['ab'], alpha=0.1, seed=1)\n"
    )
    root = Path(__file__).resolve().parents[3]
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
    assert Tokenizer.load(tokenizer.cfg, tmp_path).fingerprint == tokenizer.fingerprint


def test_a_missing_tokenizer_is_told(tmp_path: Path) -> None:
    train(joint=False, vocab_size=120).save(tmp_path)
    (tmp_path / "tokenizer.tgt.model").unlink()
    assert not Tokenizer.exists(tmp_path)
    with pytest.raises(UserError) as caught:
        Tokenizer.load(TokenizerConfig(), tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} has no tokenizer: neither tokenizer.model "
        "nor both tokenizer.src.model and tokenizer.tgt.model"
    )


@pytest.mark.parametrize("content", [b"", b"garbage", BYTES.src_model[:1000]])
def test_a_damaged_tokenizer_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.model is not a readable SentencePiece model: "):
        Tokenizer.load(TokenizerConfig(), tmp_path)


def test_a_foreign_tokenizer_is_told(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus().src), model_writer=model, vocab_size=100, minloglevel=2
    )
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    with pytest.raises(UserError) as caught:
        Tokenizer.load(TokenizerConfig(), tmp_path)
    assert "has the ids (-1, 0, 1, 2) for padding, unknown, begin and end, but they must be (0, 1, 2, 3)" in (
        str(caught.value)
    )


SMALL = ParallelText(["a b c d", "e f g hello"] * 10, ["a"] * 20)


@pytest.mark.fault(30)
@pytest.mark.parametrize("kind", [TokenizerKind.unigram, TokenizerKind.bpe])
def test_a_vocabulary_too_large_names_the_limit(kind: TokenizerKind) -> None:
    message = error_of(SMALL, kind=kind, vocab_size=32000)
    prefix = "tokenizer.vocab_size=32000 is too large for this corpus, which gives "
    assert message.startswith(prefix)
    limit = int(message.removeprefix(prefix).split()[0])
    assert message.endswith(f"{limit} pieces at most; lower it")
    accepted = Tokenizer.train(TokenizerConfig(kind=kind, vocab_size=limit), SMALL)
    assert accepted.src_vocab_size == limit


@pytest.mark.fault(30)
def test_a_vocabulary_too_small_names_the_limit() -> None:
    assert error_of(SMALL, vocab_size=10, joint=False) == (
        "tokenizer.vocab_size=10 is too small for the source side of this corpus: its characters and the "
        "special pieces alone are 15; raise it, or give rare characters no piece with "
        "tokenizer.character_coverage=0.9995"
    )


@pytest.mark.parametrize("kind", [TokenizerKind.unigram, TokenizerKind.bpe])
def test_with_separate_tokenizers_the_size_is_an_upper_bound_of_each_side(kind: TokenizerKind) -> None:
    poor = Tokenizer.train(TokenizerConfig(kind=kind, vocab_size=15, joint=False), SMALL)
    assert poor.src_vocab_size == 15
    assert poor.tgt_vocab_size < 15  # one letter gives no more


def test_a_corpus_of_blanks_is_told() -> None:
    expected = "a tokenizer cannot be trained: the target side of this corpus has no text"
    assert error_of(ParallelText(["ab"], [" "]), vocab_size=7, joint=False) == expected


def test_any_other_complaint_is_quoted() -> None:
    error = tokenizer_training._training_error(
        TokenizerConfig(vocab_size=10), "INTERNAL: no idea", "this corpus"
    )
    assert str(error) == (
        "SentencePiece cannot be trained on this corpus with tokenizer.vocab_size=10: INTERNAL: no idea"
    )


def pieces(model: bytes) -> list[str]:
    """Return the pieces of a model but the special ones, in the order of their ids."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(EOS_ID + 1, processor.get_piece_size())]


def test_words_and_characters_need_no_exact_size() -> None:
    cfg = TokenizerConfig(kind=TokenizerKind.char, vocab_size=8000)
    assert pieces(Tokenizer.train(cfg, SMALL).src_model) == [*"▁aelbcdfgho"]
    cfg = TokenizerConfig(kind=TokenizerKind.word, vocab_size=8000)
    words = ["▁a", "▁b", "▁c", "▁d", "▁e", "▁f", "▁g", "▁hello"]  # the most frequent first, ties by letter
    assert pieces(Tokenizer.train(cfg, SMALL).src_model) == words
    cfg.vocab_size = 7
    assert pieces(Tokenizer.train(cfg, SMALL).src_model) == words[:3]


def counted(kind: TokenizerKind, lines: list[str]) -> Counter[str]:
    """How often each word or character occurs, blanks counted once before every word."""
    words = ["▁" + word for line in lines for word in normalized(line).split()]
    return Counter(words if kind is TokenizerKind.word else "".join(words))


@pytest.mark.parametrize("kind", [TokenizerKind.word, TokenizerKind.char])
@given(
    lines=st.lists(st.text("abcdé½Ｆ▁▅'. \t\u2028", max_size=20), min_size=1, max_size=12),
    least=st.integers(1, 4),
    most=st.integers(1, 9),
)
def test_exactly_the_frequent_words_are_known(
    kind: TokenizerKind, lines: list[str], least: int, most: int
) -> None:
    """The most frequent first, ties in the order of code points, however the config limits them."""
    counts = counted(kind, [line.replace("▅", " ") for line in [*lines, "b a"]])
    frequent = sorted((unit for unit in counts if counts[unit] >= least), key=lambda u: (-counts[u], u))
    cfg = TokenizerConfig(kind=kind, min_frequency=least, vocab_size=EOS_ID + 1 + most)
    text = ParallelText([*lines, "b a"], [""] * (len(lines) + 1))
    if not frequent:
        assert str(error_of(text, kind=kind, min_frequency=least)).startswith(
            f"no {UNITS[kind]} of this corpus"
        )
        return
    assert pieces(Tokenizer.train(cfg, text).src_model) == frequent[:most]


UNITS = {TokenizerKind.word: "word", TokenizerKind.char: "character"}


@given(st.lists(st.sampled_from(["cat", "dog", "zebra", "ox", "▁cat", "⁇", "<unk>", ""]), max_size=8))
def test_every_unknown_word_is_one_unknown_id(words: list[str]) -> None:
    cfg = TokenizerConfig(kind=TokenizerKind.word, min_frequency=2)
    tokenizer = Tokenizer.train(cfg, ParallelText(["cat dog zebra", "dog cat"], ["dog"] * 2))
    assert pieces(tokenizer.src_model) == ["▁dog", "▁cat"]
    ids = {"dog": 4, "cat": 5, "▁cat": 5}
    expected = [ids.get(word, UNK_ID) for word in words if word]
    assert tokenizer.encode_src([" ".join(words)]) == [[*expected, EOS_ID]]


def test_frequencies_are_those_of_a_side_when_the_sides_are_separate() -> None:
    text = ParallelText(["Cat dog", "cat ox"], ["chat chien", "CHAT, cat"])
    cfg = TokenizerConfig(
        kind=TokenizerKind.word, joint=False, min_frequency=2, lowercase=True, strip_punctuation=True
    )
    tokenizer = Tokenizer.train(cfg, text)
    assert (pieces(tokenizer.src_model), pieces(tokenizer.tgt_model)) == (["▁cat"], ["▁chat"])
    joint = Tokenizer.train(dataclasses.replace(cfg, joint=True), text)
    assert pieces(joint.src_model) == ["▁cat", "▁chat"]


def test_bytes_do_not_count_among_the_frequent_characters() -> None:
    cfg = TokenizerConfig(kind=TokenizerKind.char, min_frequency=2, byte_fallback=True)
    tokenizer = Tokenizer.train(cfg, ParallelText(["aab"], ["cb"]))
    assert pieces(tokenizer.src_model)[256:] == ["a", "b", "▁"]


def test_nothing_frequent_enough_is_told() -> None:
    text = ParallelText(["a b"], ["c d"])
    assert error_of(text, kind=TokenizerKind.word, min_frequency=3, joint=False) == (
        "no word of the source side of this corpus occurs tokenizer.min_frequency=3 times; lower it"
    )
    assert error_of(text, kind=TokenizerKind.char, min_frequency=5) == (
        "no character of this corpus occurs tokenizer.min_frequency=5 times; lower it"
    )


@pytest.mark.parametrize("kind", TokenizerKind)
@pytest.mark.parametrize("joint", [True, False])
def test_what_is_prepared_in_training_is_prepared_at_every_use(
    tmp_path: Path, kind: TokenizerKind, joint: bool
) -> None:
    """On both sides, and from a run directory too: other spellings give the same ids."""
    lines = [line.translate({ord(mark): " " for mark in ".,ß"}) for line in corpus().src]
    shouted = [f"«{line.upper()}»!" for line in lines]
    size = 500 if kind is TokenizerKind.word else 120
    cfg = TokenizerConfig(kind=kind, joint=joint, vocab_size=size, lowercase=True, strip_punctuation=True)
    Tokenizer.train(cfg, corpus()).save(tmp_path)
    tokenizer = Tokenizer.load(cfg, tmp_path)
    for encode in (tokenizer.encode_src, tokenizer.encode_tgt):
        assert encode(shouted) == encode(lines)
        assert encode(["...", "«»", ""]) == [[EOS_ID]] * 3
    if kind in (TokenizerKind.unigram, TokenizerKind.bpe):
        drawn = lists(tokenizer.sample_src(lines, alpha=0.1, seed=1))
        assert lists(tokenizer.sample_src(shouted, alpha=0.1, seed=1)) == drawn
    assert not any(c.isupper() or c in ".,'" for piece in pieces(tokenizer.tgt_model) for c in piece)


def test_the_settings_are_part_of_the_fingerprint() -> None:
    model = KINDS[TokenizerKind.bpe].src_model
    changed = [
        {},
        {"lowercase": True},
        {"strip_punctuation": True},
        {"case": Case.markup},
        {"symbols": ["#"]},
    ]
    cfgs = [TokenizerConfig(**fields) for fields in changed]  # type: ignore[arg-type]
    assert len({Tokenizer(cfg, model, model).fingerprint for cfg in cfgs}) == len(cfgs)


SYMBOLS = ["⟨NUM⟩", "<url>", "⟨①⟩", "⟨NUM⟩⟨①⟩"]
SUBWORDS = [TokenizerKind.unigram, TokenizerKind.bpe, TokenizerKind.char]
MARKED = {
    kind: train(kind=kind, case=Case.markup, symbols=SYMBOLS, byte_fallback=True, vocab_size=420)
    for kind in SUBWORDS
}


@pytest.mark.parametrize("kind", SUBWORDS)
@given(
    line=st.text(
        st.one_of(st.sampled_from("aAbBßẞİıǅ⇧⇪␟␛ "), st.characters(exclude_categories=["C"])), max_size=12
    )
)
def test_marked_case_comes_back(kind: TokenizerKind, line: str) -> None:
    """The translation is the line, normalised, and the surfaces of its pieces are that, too."""
    tokenizer = MARKED[kind]
    ids = tokenizer.encode_tgt([line])[0]
    expected = train_free_decoding(kind, line)
    assert tokenizer.decode(ids) == expected
    assert "".join(piece.surface for piece in tokenizer.decoded_pieces(ids[:-1])) == expected
    assert "".join(piece.surface for piece in tokenizer.tgt_pieces([line])[0]).strip() == line.strip()


def train_free_decoding(kind: TokenizerKind, line: str) -> str:
    """Return what a tokenizer that spells all characters makes of a line, without marks of case."""
    return BYTES.decode(BYTES.encode_tgt([line])[0])


@pytest.mark.parametrize("kind", SUBWORDS)
def test_a_word_has_its_pieces_in_every_case(kind: TokenizerKind) -> None:
    tokenizer = MARKED[kind]
    marks = {"⇧", "⇪"}
    found = [[piece.text for piece in pieces] for pieces in tokenizer.tgt_pieces(["dei bakö", "Dei BAKÖ"])]
    assert found[0] == [text for text in found[1] if text not in marks]
    assert marks < {*found[1]}
    if kind is not TokenizerKind.char:
        sampled = lists(tokenizer.sample_tgt(["Dei BAKÖ"] * 20, alpha=0.2, seed=1))
        assert {tokenizer.decode(ids) for ids in sampled} == {"Dei BAKÖ"}
        assert len({*map(tuple, sampled)}) > 1


@pytest.mark.parametrize("kind", SUBWORDS)
@pytest.mark.parametrize(
    "fields", [{}, {"case": Case.markup}, {"lowercase": True, "strip_punctuation": True}, {"joint": False}]
)
def test_a_symbol_is_one_piece_whatever_happens_to_text(
    kind: TokenizerKind, fields: dict[str, object]
) -> None:
    tokenizer = train(kind=kind, symbols=SYMBOLS, **fields)
    line = "ba⟨NUM⟩, <url> ⟨NUM⟩⟨①⟩BA⟨①⟩"
    for pieces in (*tokenizer.src_pieces([line]), *tokenizer.tgt_pieces([line])):
        assert [p.text for p in pieces if p.text in SYMBOLS] == ["⟨NUM⟩", "<url>", "⟨NUM⟩⟨①⟩", "⟨①⟩"]
    text = tokenizer.decode(tokenizer.encode_tgt([line])[0])
    assert [text.count(symbol) for symbol in SYMBOLS] == [2, 1, 2, 1]


class Punctuation:
    """A stand-in for the one of sacremoses."""

    def __init__(self, lang: str):
        self.lang = lang

    def normalize(self, line: str) -> str:
        return line.replace("a", "b" if self.lang == "en" else "d")


def test_moses_normalises_the_side_that_the_config_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "sacremoses", SimpleNamespace(MosesPunctNormalizer=Punctuation, __spec__=1)
    )
    tokenizer_training._moses.cache_clear()
    tokenizer = train(moses_src="en")
    assert tokenizer.encode_src(["ba"]) == tokenizer.encode_src(["bb"])
    assert lists(tokenizer.flat_src(["ba"])) == tokenizer.encode_src(["bb"])
    assert tokenizer.encode_tgt(["ba"]) != tokenizer.encode_tgt(["bb"])
    both = train(moses_src="en", moses_tgt="de")
    assert both.tgt_pieces(["ba"]) == both.tgt_pieces(["bd"])
    assert len({tokenizer.fingerprint, both.fingerprint, train().fingerprint}) == 3
    tokenizer_training._moses.cache_clear()


def test_moses_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.extras.find_spec", lambda module: None)
    tokenizer_training._moses.cache_clear()
    with pytest.raises(UserError) as caught:
        train(moses_tgt="de")
    assert str(caught.value) == (
        "tokenizer.moses_src or moses_tgt=de needs sacremoses: pip install 'nmt[moses]'"
    )


def test_the_real_moses_unifies_quotes() -> None:
    pytest.importorskip("sacremoses", reason="the extra `moses` is not installed")
    assert tokenizer_training.punctuated(["„Ja“ – nein…"], "de") == ['"Ja" - nein...']
    assert tokenizer_training.punctuated(["„Ja“"], "") == ["„Ja“"]


def test_a_corpus_of_punctuation_is_told() -> None:
    assert error_of(ParallelText(["..."], ["?!"]), strip_punctuation=True) == (
        "a tokenizer cannot be trained: this corpus has no text "
        "but what tokenizer.strip_punctuation=true removes"
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"vocab_size": 4}, "tokenizer.vocab_size must be at least 5, but is 4"),
        ({"character_coverage": 0.9}, "tokenizer.character_coverage must be in [0.98, 1], but is 0.9"),
        ({"max_sentences": 1}, "tokenizer.max_sentences must be at least 2, but is 1"),
        ({"sampling_alpha": -0.1}, "tokenizer.sampling_alpha must be in [0, 1], but is -0.1"),
        (
            {"sampling_alpha": 0.1, "kind": TokenizerKind.word},
            "tokenizer.sampling_alpha=0.1 needs tokenizer.kind=unigram or bpe: "
            "word has one segmentation only",
        ),
        ({"min_frequency": 0}, "tokenizer.min_frequency must be at least 1, but is 0"),
        (
            {"min_frequency": 2, "kind": TokenizerKind.bpe},
            "tokenizer.min_frequency=2 needs tokenizer.kind=word or char: the pieces of bpe are not counted; "
            "lower tokenizer.vocab_size instead",
        ),
        (
            {"min_frequency": 3, "kind": TokenizerKind.word, "character_coverage": 0.99},
            "tokenizer.min_frequency=3 needs tokenizer.character_coverage=1 with tokenizer.kind=word, "
            "but it is 0.99: both would say which words are too rare",
        ),
        (
            {"byte_fallback": True, "kind": TokenizerKind.word},
            "tokenizer.byte_fallback=true needs another tokenizer.kind than word",
        ),
        (
            {"case": Case.markup, "kind": TokenizerKind.word},
            "tokenizer.case=markup needs another tokenizer.kind than word, whose pieces are whole words; "
            "tokenizer.lowercase=true makes one word of all its cases",
        ),
        (
            {"case": Case.markup, "normalization": Normalization.nfkc_cf},
            "tokenizer.case=markup needs tokenizer.lowercase=false and a tokenizer.normalization without "
            "_cf, but they are false and nfkc_cf: no capitals are left to mark",
        ),
        (
            {"symbols": ["⟨num⟩"], "kind": TokenizerKind.word},
            "tokenizer.symbols needs another tokenizer.kind than word, which splits no word anyway",
        ),
        (
            {"symbols": ["⟨num⟩", "a b"]},
            "tokenizer.symbols[1] must have characters, none of them white space or one of ▁ ▅ ⇧ ⇪ ␟ ␛, but "
            "is 'a b'",
        ),
        ({"symbols": ["<unk>"]}, "tokenizer.symbols[0] is '<unk>', which is a piece already; remove it"),
        ({"symbols": ["#", "#"]}, "tokenizer.symbols[1] is '#', which is a piece already; remove it"),
        (
            {"symbols": ["NUM"], "case": Case.markup},
            "tokenizer.symbols[0] must not begin or end with a letter, with tokenizer.case=markup, but is "
            "'NUM'; put it in brackets, as in ⟨num⟩",
        ),
    ],
)
def test_impossible_tokenizer_configs(fields: dict[str, object], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        TokenizerConfig(**fields)  # type: ignore[arg-type]
    assert str(caught.value) == expected


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("kind", TokenizerKind)
def test_pieces_are_what_is_encoded(kind: TokenizerKind, prepared: bool) -> None:
    tokenizer, cfg = KINDS[kind], TokenizerConfig()
    if prepared:
        cfg = TokenizerConfig(kind, vocab_size=120, lowercase=True, strip_punctuation=True)
        tokenizer = Tokenizer.train(cfg, corpus())
    lines = ["Gei, ma! be", "", " . ", "unheard of words", WORDS[40].upper(), *corpus(20).src]
    for encode, cut in (
        (tokenizer.encode_src, tokenizer.src_pieces),
        (tokenizer.encode_tgt, tokenizer.tgt_pieces),
    ):
        for line, ids, found in zip(lines, encode(lines), cut(lines), strict=True):
            assert [piece.id for piece in found] == ids
            read = prepare_lines(cfg, [line])[0]
            assert "".join(piece.surface for piece in found).split() == read.split()


@pytest.mark.parametrize("kind", TokenizerKind)
@pytest.mark.parametrize("line", ["ba dei, ködef", "ba", "", "gö   gö dei\N{SNOWMAN}"])
def test_from_right_to_left_the_ids_turn_and_the_text_does_not(kind: TokenizerKind, line: str) -> None:
    usual = KINDS[kind]
    turned = Tokenizer(dataclasses.replace(usual.cfg, right_to_left=True), usual.src_model, usual.tgt_model)
    lines = [line, "dei ba"]
    ids = [[*reversed(sentence[:-1]), EOS_ID] for sentence in usual.encode_tgt(lines)]
    assert turned.encode_tgt(lines) == ids
    assert [x.tolist() for x in turned.flat_tgt(lines).take([0, 1])] == ids
    assert [[piece.id for piece in pieces] for pieces in turned.tgt_pieces(lines)] == ids
    assert turned.encode_src(lines) == usual.encode_src(lines)
    for sentence in ids:
        assert turned.decode(sentence[:-1]) == turned.decode(sentence) == usual.decode(sentence[-2::-1])
    assert [piece.id for piece in turned.decoded_pieces(ids[1][:-1])] == ids[1]
    assert turned.fingerprint != usual.fingerprint


def test_sampled_segmentations_turn_too() -> None:
    usual = KINDS[TokenizerKind.unigram]
    turned = Tokenizer(dataclasses.replace(usual.cfg, right_to_left=True), usual.src_model, usual.tgt_model)
    lines = corpus(50).tgt
    expected = usual.sample_tgt(lines, alpha=0.1, seed=3)
    found = turned.sample_tgt(lines, alpha=0.1, seed=3)
    for i, line in enumerate(lines):
        assert found[i].tolist() == [*expected[i].tolist()[-2::-1], EOS_ID]
        assert turned.decode(found[i].tolist()) == normalized(line)


def test_sentences_of_end_alone_stay_as_they_are() -> None:
    assert RaggedIds.of([[EOS_ID], [5, 6, 7, EOS_ID], [EOS_ID], [8, EOS_ID]]).turned().ids.tolist() == [
        EOS_ID, 7, 6, 5, EOS_ID, EOS_ID, 8, EOS_ID,
    ]  # fmt: skip
    assert len(RaggedIds.of([]).turned().ids) == 0
