"""A tokenizer for new text: old ids stay, new pieces are used, each begins from what it was split into."""

from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece

from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import UNK_ID
from nmt.data.tokens.adaptation import _integer, coverage, extended, origins
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import Case, TokenizerConfig, TokenizerKind

OLD = ["a man rides a bike", "two men ride on the road", "the dog runs on a road", "a dog and a man run"] * 3
NEW = ["the ministry of economics said", "économics and the ministry", "ministry said 2023, said 2023"] * 3
OLD_TEXT, NEW_TEXT = ParallelText(OLD, [x.upper() for x in OLD]), ParallelText(NEW, [x.upper() for x in NEW])
SIZES = {"unigram": 41, "bpe": 45, "char": 100, "word": 100}


def trained(kind: str, joint: bool = True, **fields: object) -> Tokenizer:
    size = SIZES[kind] if joint else min(SIZES[kind], 28)
    cfg = TokenizerConfig(TokenizerKind(kind), size, joint=joint, **fields)  # type: ignore[arg-type]
    return Tokenizer.train(cfg, OLD_TEXT, ["<2x>"])


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", SIZES)
def test_an_extended_vocabulary_keeps_old_ids_and_covers_more(kind: str, joint: bool) -> None:
    old = trained(kind, joint)
    new = extended(old, NEW_TEXT, 12, ["<2x>", "<2y>"])
    assert old.tgt_vocab_size < new.tgt_vocab_size <= old.tgt_vocab_size + 13
    ids = list(range(old.tgt_vocab_size))
    assert new.tgt_spellings(ids) == old.tgt_spellings(ids)
    for before, after in zip(coverage(old, NEW_TEXT), coverage(new, NEW_TEXT), strict=True):
        assert (after.unknown, after.pieces) < (before.unknown, before.pieces)
    if kind != "word":
        assert new.src_pieces(["<2y>"])[0][-2].text == "<2y>"
        assert new.decode(new.encode_tgt(["THE MINISTRY SAID"])[0][:-1]) == "THE MINISTRY SAID"


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_new_pieces_are_used_alike_by_encoding_and_by_sampling(kind: str) -> None:
    old = trained(kind)
    new = extended(old, NEW_TEXT, 20)
    used = {token for ids in new.encode_src(NEW) for token in ids}
    assert len(used & set(range(old.src_vocab_size, new.src_vocab_size))) > 5
    nearly_sure = 60.0 if kind == "unigram" else 1e-9
    sampled = new.sample_src(NEW, alpha=nearly_sure, seed=1)
    assert sampled.ids.tolist() == [token for ids in new.encode_src(NEW) for token in ids]


def test_joined_pieces_are_letters_or_digits_within_a_word() -> None:
    old = trained("bpe")
    new = extended(old, ParallelText(["ab12, ab12. x-y x-y"] * 9, []), 50)
    pieces = new.tgt_spellings(range(old.tgt_vocab_size, new.tgt_vocab_size))
    assert {"▁ab", "12"} <= set(pieces)
    assert not any("12," in x or "b1" in x or "-" in x[1:] for x in pieces)


def test_marks_of_case_and_symbols_are_no_new_pieces_once_they_are_there() -> None:
    text = ParallelText(["The dog # sees", "a Cat NASA"], ["Der Hund #", "eine Katze"])
    cfg = TokenizerConfig(kind=TokenizerKind.char, case=Case.markup, symbols=["#"], vocab_size=100)
    old = Tokenizer.train(cfg, text)
    new = extended(old, ParallelText(["Quiz # ⇧"], ["Jux"]), 10)
    added = new.tgt_spellings(range(old.tgt_vocab_size, new.tgt_vocab_size))
    assert added
    assert set(added) <= set("quizjx")
    assert new.decode(new.encode_tgt(["Quiz # NASA"])[0]) == "Quiz # NASA"


def test_labels_get_no_new_pieces() -> None:
    old = trained("bpe", labels=True).with_labels(TokenizerConfig(labels=True), ["good", "bad"])
    text = ParallelText(NEW, ["good", "bad", "good"] * 3)
    new = extended(old, text, 12)
    assert new.src_vocab_size > old.src_vocab_size
    assert new.labels == old.labels


def test_the_same_text_gives_the_same_pieces() -> None:
    old = trained("bpe")
    turned = ParallelText(NEW_TEXT.tgt[::-1], NEW_TEXT.src[::-1])
    assert extended(old, NEW_TEXT, 30).fingerprint == extended(old, turned, 30).fingerprint


def test_unknown_characters_are_spelt_as_bytes_where_the_model_does() -> None:
    cfg = TokenizerConfig(TokenizerKind.bpe, 330, byte_fallback=True)
    old = Tokenizer.train(cfg, OLD_TEXT)
    new = extended(old, NEW_TEXT, 40)
    assert "é" not in new.tgt_spellings(range(new.tgt_vocab_size))
    assert new.decode(new.encode_tgt(["économics"])[0][:-1]) == "économics"


@pytest.mark.parametrize(("kind", "size"), [("unigram", 295), ("bpe", 300)])
def test_what_was_spelt_as_bytes_is_joined_by_its_characters(kind: str, size: int) -> None:
    old = Tokenizer.train(TokenizerConfig(TokenizerKind(kind), size, byte_fallback=True), OLD_TEXT)
    text = ParallelText(["собака бежит домой", "собака и дом"] * 3, [])
    new = extended(old, text, 20)
    added = new.tgt_spellings(range(old.tgt_vocab_size, new.tgt_vocab_size))
    assert "до" in added
    assert set("".join(added)) <= set("▁" + "".join(text.src))
    begun = origins(old.src_model, new.src_model)[new.tgt_spellings(range(new.tgt_vocab_size)).index("до")]
    assert isinstance(begun, list)
    assert old.tgt_spellings(begun) == ["<0xD0>", "<0xB4>", "<0xD0>", "<0xBE>"]
    assert coverage(new, text)[0].pieces < coverage(old, text)[0].pieces / 2


def test_a_symbol_cuts_a_word_and_its_name_gives_no_pieces() -> None:
    cfg = TokenizerConfig(TokenizerKind.bpe, 50, symbols=["⟨quuxnum⟩"])
    old = Tokenizer.train(cfg, OLD_TEXT)
    new = extended(old, ParallelText(["a ⟨quuxnum⟩kg box", "5<2tag>kg"] * 9, []), 12, ["<2tag>"])
    tag, *added = new.tgt_spellings(range(old.tgt_vocab_size, new.tgt_vocab_size))
    assert tag == "<2tag>"
    assert {"kg", "▁box"} <= set(added)
    assert set("".join(added)) <= set("▁kgbox5")


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
def test_a_ready_model_without_a_space_in_front_learns_from_first_words(kind: str, tmp_path: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(OLD),
        model_prefix=str(tmp_path / "ready"),
        model_type=kind,
        vocab_size=28,
        hard_vocab_limit=False,
        add_dummy_prefix=False,
        minloglevel=2,
    )
    old = Tokenizer.train(TokenizerConfig(path=str(tmp_path / "ready.model")), ParallelText())
    new = extended(old, ParallelText(["economics", "ministry economics"] * 9, []), 80)
    added = new.tgt_spellings(range(old.tgt_vocab_size, new.tgt_vocab_size))
    assert {"c", "y"} <= set(added)
    if kind != "char":
        assert {"economics", "ministry", "▁economics"} <= set(added)
        assert [piece.text for piece in new.src_pieces(["economics"])[0]] == ["economics", "</s>"]


@pytest.mark.parametrize("kind", SIZES)
def test_a_piece_begins_from_itself_or_from_what_it_was_split_into(kind: str) -> None:
    old = trained(kind)
    new = extended(old, NEW_TEXT, 12, ["<2y>"])
    found = origins(old.src_model, new.src_model)
    assert found[: old.src_vocab_size] == list(range(old.src_vocab_size))
    known = set("".join(OLD + OLD_TEXT.tgt)) | {"▁"}
    for token in range(old.src_vocab_size, new.src_vocab_size):
        (text,) = new.tgt_spellings([token])
        if text == "<2y>":
            assert found[token] == old.encode_src(["<2x>"])[0][-2:-1]
        elif set(text) <= known and kind != "word":
            parts = found[token]
            assert isinstance(parts, list)
            assert "".join(old.tgt_spellings(parts)) == text


def test_another_tokenizer_is_mapped_by_spelling() -> None:
    old, new = trained("bpe"), Tokenizer.train(TokenizerConfig(vocab_size=45), NEW_TEXT)
    found = origins(old.src_model, new.src_model)
    assert len(found) == new.src_vocab_size
    assert found[:4] == [0, 1, 2, 3]
    spellings = old.tgt_spellings(range(old.tgt_vocab_size))
    for token, text in enumerate(new.tgt_spellings(range(new.tgt_vocab_size))):
        if text in spellings:
            assert found[token] == spellings.index(text)
        assert found[token] != UNK_ID or token == UNK_ID


def test_numbers_are_written_as_protobuf_does() -> None:
    assert [_integer(n) for n in (0, 1, 127, 128, 300)] == [b"\0", b"\1", b"\x7f", b"\x80\1", b"\xac\2"]
