"""SentencePiece models of others as a run uses them: pieces of the file, our ids, readable errors."""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from nmt.data.batches.training_split import ready_remarks, trained_remarks
from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.data.text import casing
from nmt.data.tokens.adaptation import extended
from nmt.data.tokens.ready_tokenizers import ready_models, require_library
from nmt.data.tokens.segmenter import Model, PieceType
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import (
    SPECIAL_SPELLINGS,
    Case,
    Normalization,
    TagSide,
    TokenizerConfig,
    TokenizerKind,
)
from nmt.errors import UserError

LINES = [
    "Two young men are outside near many bushes.",
    "A man in an orange hat looks at something.",
    "Zwei junge Männer sind im Freien in der Nähe vieler Büsche.",
    "Ein Mann mit einem orangefarbenen Hut sieht etwas an.",
]
TEXT = ParallelText(LINES, LINES)
MARIAN = {"bos_id": -1, "eos_id": 0, "unk_id": 1}
NAMED = {"pad_id": 3, "pad_piece": "[PAD]", "unk_piece": "[UNK]", "unk_surface": "?", "bos_piece": "[B]"}
MADE: dict[str, dict[str, Any]] = {
    "unigram": {"vocab_size": 55},
    "bpe": {"model_type": "bpe", "vocab_size": 360, "byte_fallback": True, **MARIAN},
    "named": {"vocab_size": 55, "control_symbols": ["<mask>"], **NAMED},
    "word": {"model_type": "word", "hard_vocab_limit": False},
    "char": {"model_type": "char", "hard_vocab_limit": False, "add_dummy_prefix": False},
}


@functools.cache
def made(name: str) -> bytes:
    """Return a model as `spm_train` makes it."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, minloglevel=2, **MADE[name]
    )
    return model.getvalue()


def changed(name: str, change: Callable[[Any], object]) -> bytes:
    """Return a model whose message was changed."""
    proto = Model.FromString(made(name))
    change(proto)
    content: bytes = proto.SerializeToString()
    return content


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes], str]:
    """Return a function that writes a file, whose name tells nothing, and returns its path."""

    def write(content: bytes) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_bytes(content)
        return str(path)

    return write


File = Callable[[bytes], str]


def ready(path: str, tags: tuple[str, ...] = (), **fields: Any) -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(path=path, **fields), ParallelText(), tags)


@pytest.mark.parametrize("name", MADE)
def test_pieces_are_those_of_the_file_with_our_ids(name: str, file: File) -> None:
    given = sentencepiece.SentencePieceProcessor(model_proto=made(name))
    tokenizer = ready(file(made(name)))
    pieces = tokenizer.src_pieces(LINES)
    assert tokenizer.encode_src(LINES) == [[piece.id for piece in line] for line in pieces]
    assert [[p.text for p in line[:-1]] for line in pieces] == given.encode(LINES, out_type=str)
    assert [tokenizer.decode(ids[:-1]) for ids in tokenizer.encode_tgt(LINES)] == LINES
    spellings = tokenizer.tgt_spellings(range(tokenizer.tgt_vocab_size))
    special = {*SPECIAL_SPELLINGS, *NAMED.values()}
    own = [given.id_to_piece(i) for i in range(given.get_piece_size())]
    assert spellings == [*SPECIAL_SPELLINGS, *(piece for piece in own if piece not in special)]
    assert {piece.value for piece in TokenizerKind if piece in tokenizer.kinds} == {
        MADE[name].get("model_type", "unigram")
    }
    (ids,) = tokenizer.encode_tgt(["Mann <s> </s>[PAD] ☃"])
    assert {PAD_ID, BOS_ID}.isdisjoint(ids)
    assert ids.index(EOS_ID) == len(ids) - 1
    assert ("☃" if name == "bpe" else " ⁇ ") in tokenizer.decode(ids[:-1])


def test_a_trained_tokenizer_that_cannot_write_its_targets_is_warned_of() -> None:
    lines = [*["一，二"] * 5, "三。"]
    cfg = TokenizerConfig(TokenizerKind.char)
    usual = Tokenizer.train(cfg, ParallelText(lines, lines))
    warning, remedy = trained_remarks(usual, lines)
    assert warning.startswith("warning: 5 of 6 targets are not the same when their pieces are put together")
    assert warning.endswith("'一，二' becomes '一,二'")
    assert remedy == "tokenizer.normalization=identity keeps characters as they are"
    assert list(trained_remarks(usual, lines[1:])) == []  # four may be
    exact = Tokenizer.train(
        dataclasses.replace(cfg, normalization=Normalization.identity), ParallelText(lines, lines)
    )
    assert list(trained_remarks(exact, lines)) == []
    _, remedy = trained_remarks(exact, ["四"] * 5)
    assert remedy == "5 of these have a character without a piece; tokenizer.byte_fallback=true spells it"
    folded = dataclasses.replace(cfg, normalization=Normalization.nmt_nfkc_cf)
    for asked in (folded, TokenizerConfig(TokenizerKind.word)):
        assert not list(trained_remarks(Tokenizer.train(asked, ParallelText(["A b"], ["A b"])), ["A x"] * 9))


def test_the_tokenizer_of_another_run_is_the_same(file: File) -> None:
    tags = ("<2de>", "<sep>")
    cfg = TokenizerConfig(TokenizerKind.bpe, vocab_size=110, case=Case.markup, symbols=["⟨num⟩"])
    trained = Tokenizer.train(cfg, ParallelText(list(LINES), list(LINES)), tags)
    longer = extended(trained, ParallelText(["Hutmann Hutmann"] * 4, ["Hutmann"] * 4), 3, tags)
    for tokenizer in (trained, longer):
        again = ready(file(tokenizer.src_model), tags, case=Case.markup, symbols=["⟨num⟩"])
        assert again.src_model == tokenizer.src_model
        assert again.fingerprint == tokenizer.fingerprint
    _, warning, _ = ready_remarks(ready(file(trained.src_model), tags, symbols=["⟨num⟩"]), LINES)
    assert warning.startswith("warning: it has the marks of tokenizer.case=markup, and so no pieces with cap")
    assert len(list(ready_remarks(again, LINES))) == 1


def test_tags_symbols_and_marks_are_pieces_behind(file: File) -> None:
    tags = ("<2de>", "<sep>")
    path = file(made("bpe"))
    tokenizer = ready(path, tags, symbols=["⟨num⟩"], case=Case.markup, tag_side=TagSide.both)
    size = ready(path).src_vocab_size
    added = tokenizer.src_spellings(range(size, tokenizer.src_vocab_size))
    assert added == [*tags, "⟨num⟩", *casing.MARKS]
    source, target = "<2de> EIN ⟨num⟩ Mann <sep> Hut", "EIN ⟨num⟩ Mann"
    whole = {*tags, "⟨num⟩", "⇧", "⇪"}
    for ids in (tokenizer.encode_src([source])[0], tokenizer.sample_src([source], alpha=1.0, seed=1).ids):
        assert whole.issubset(tokenizer.src_spellings([int(i) for i in ids]))
    (ids,) = tokenizer.encode_tgt([target], [source])
    assert tokenizer.tgt_spellings(ids[:1]) == ["<2de>"]
    assert tokenizer.decode(ids[:-1]) == target
    words = ready(file(made("word")), tags)
    assert [piece.text for piece in words.src_pieces(["<2de> Ein Mann"])[0][:2]] == ["▁<2de>", "▁Ein"]


def test_a_piece_that_is_there_keeps_its_place(file: File) -> None:
    """The other pieces, too: of no text, as in imported models, or controls."""

    def change(proto: Any) -> None:
        proto.pieces.insert(10, PieceType(piece="of the other side", type=PieceType.UNUSED))
        proto.pieces.insert(11, PieceType(piece="<2fr>", type=PieceType.CONTROL))
        proto.pieces.insert(12, PieceType(piece="⟨num⟩", type=PieceType.NORMAL, score=-3.0))
        proto.pieces.insert(13, PieceType(piece="[SEP]", type=PieceType.CONTROL))

    tokenizer = ready(file(changed("unigram", change)), ("<2fr>",), symbols=["⟨num⟩"])
    assert tokenizer.src_spellings([11, 12, 13]) == ["of the other side", "<2fr>", "⟨num⟩"]
    assert tokenizer.src_vocab_size == ready(file(made("unigram"))).src_vocab_size + 3
    assert {12, 13} < {*tokenizer.encode_src(["<2fr> a ⟨num⟩⟨num⟩"])[0]}


def test_segmentations_are_sampled_as_the_kind_of_the_file_says(file: File) -> None:
    def with_line_feed(proto: Any) -> None:
        proto.pieces.append(PieceType(piece="n\n", type=PieceType.USER_DEFINED))

    lines = ["men man", "Mann"]
    bpe = ready(file(changed("bpe", with_line_feed)), sampling_alpha=1.0)
    sampled = bpe.sample_tgt(lines, alpha=1.0, seed=1)
    assert bpe.tgt_spellings(sampled.ids.tolist()) == [*"▁men▁man", "</s>", *"▁Mann", "</s>"]
    unigram = ready(file(made("unigram")), sampling_alpha=0.1)
    seen = set()
    for seed in range(20):
        found = unigram.sample_src(["young men"], alpha=0.1, seed=seed).ids.tolist()
        seen.add(tuple(found))
        assert unigram.decode(found[:-1]) == "young men"
    assert len(seen) > 3


def test_each_side_may_have_its_own_kind(file: File, tmp_path: Path) -> None:
    cfg = TokenizerConfig(path=file(made("bpe")), tgt_path=file(made("word")), joint=False)
    tokenizer = Tokenizer.train(cfg, ParallelText())
    assert tokenizer.kinds == (TokenizerKind.bpe, TokenizerKind.word)
    assert tokenizer.encode_tgt(["blah blah"]) == [[UNK_ID, UNK_ID, EOS_ID]]
    tokenizer.save(tmp_path)
    again = Tokenizer.load(cfg, tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.encode_src(LINES) == tokenizer.encode_src(LINES)
    longer = extended(again, ParallelText(["Hutmann"] * 4, ["blah"] * 4), 3)
    assert longer.encode_tgt(["blah"])[0][0] == tokenizer.tgt_vocab_size
    assert len(longer.encode_src(["Hutmann"])[0]) < len(tokenizer.encode_src(["Hutmann"])[0])


def test_labels_are_the_targets_of_a_classifier(file: File) -> None:
    cfg = TokenizerConfig(path=file(made("unigram")), labels=True, sampling_alpha=0.1)
    assert Tokenizer.train(cfg, ParallelText(["a", "b"], ["good", "bad"])).labels == ["bad", "good"]


NEITHER = "is neither a SentencePiece model nor a tokenizer.json of the library tokenizers, or is damaged"


@pytest.mark.parametrize(
    ("content", "fields", "error"),
    [
        (lambda: made("bpe")[:1000], {}, NEITHER),
        (lambda: b"", {}, NEITHER),
        (lambda: b"<unk>\t0\n", {}, NEITHER),
        (
            lambda: changed("bpe", lambda proto: proto.pieces.pop(1)),
            {},
            "is a SentencePiece model without a piece for unknown text; train it with an unk_id",
        ),
        (
            lambda: changed("bpe", lambda proto: proto.pieces.append(proto.pieces[9])),
            {},
            "is not a readable SentencePiece model: ",
        ),
        (
            lambda: made("bpe") + b"\n\4\n\2\xff\xff",
            {},
            "is a SentencePiece model with a piece that is no text: b'\\xff\\xff'",
        ),
        (
            lambda: changed("bpe", lambda p: setattr(p.trainer_spec, "treat_whitespace_as_suffix", True)),
            {},
            "has pieces that tell where words end (treat_whitespace_as_suffix), but they must tell where",
        ),
        (
            lambda: changed("bpe", lambda p: setattr(p.normalizer_spec, "escape_whitespaces", False)),
            {},
            "has pieces with spaces (escape_whitespaces=false), but they must tell where words begin, by ▁",
        ),
        (
            lambda: changed("word", lambda p: setattr(p.normalizer_spec, "add_dummy_prefix", False)),
            {},
            "is a model of words without add_dummy_prefix, but they must tell where words begin, also",
        ),
        (
            lambda: made("word"),
            {"sampling_alpha": 0.1},
            "is of tokenizer.kind=word: tokenizer.sampling_alpha=0.1 needs tokenizer.kind=unigram or bpe",
        ),
        (
            lambda: made("word"),
            {"symbols": ["⟨num⟩"]},
            "is of tokenizer.kind=word: tokenizer.symbols needs another tokenizer.kind than word",
        ),
    ],
)
def test_what_cannot_be_used_is_told(
    content: Callable[[], bytes], fields: dict[str, Any], error: str, file: File
) -> None:
    path = file(content())
    with pytest.raises(UserError) as caught:
        ready(path, **fields)
    assert str(caught.value).startswith(f"tokenizer.path={path} {error}")


def test_a_file_that_is_gone_needs_no_library(tmp_path: Path) -> None:
    require_library(TokenizerConfig(path=str(tmp_path / "none")))
    with pytest.raises(UserError, match=r"/none cannot be read: No such file or directory$"):
        ready_models(TokenizerConfig(path=str(tmp_path / "none")))
