"""The labels of a classifier: found in the training, kept as pieces, required of what is scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.data.cleaning.filters import filter_texts
from nmt.data.parallel_text import ParallelText
from nmt.data.reading.labels import LabelsData
from nmt.data.special_ids import EOS_ID
from nmt.data.tokens.label_set import label_set, require_known
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig, TokenizerKind
from nmt.errors import UserError

LABELS = ["</s>", "neg", "not at all", "▁"]
TEXT = ParallelText(["a b", "b\ta", "a", "b"], LABELS)
CFG = TokenizerConfig(TokenizerKind.char, vocab_size=40, labels=True)


def test_a_label_is_one_id_whatever_it_is_spelt_of(tmp_path: Path) -> None:
    Tokenizer.train(CFG, TEXT, ["<sep>"]).save(tmp_path)
    tokenizer = Tokenizer.load(CFG, tmp_path)
    assert tokenizer.tgt_vocab_size == EOS_ID + 1 + len(LABELS)
    assert tokenizer.encode_tgt(LABELS) == [[EOS_ID + 1 + i] for i in range(len(LABELS))]
    assert tokenizer.flat_tgt(LABELS).ids.tolist() == [4, 5, 6, 7]
    assert tokenizer.sample_tgt(["neg"], alpha=0.5, seed=1).ids.tolist() == [5]
    assert tokenizer.labels == LABELS
    with pytest.raises(
        UserError, match=r"^'pos' is no label of the training; these are </s>, neg, not at all,"
    ):
        tokenizer.encode_tgt(["pos"])


def test_a_tab_is_the_separator() -> None:
    tokenizer = Tokenizer.train(CFG, TEXT, ["<sep>"])
    (pieces,) = tokenizer.src_pieces(["b\ta"])
    assert [piece.text for piece in pieces if piece.text != "▁"] == ["b", "<sep>", "a", "</s>"]


def test_labels_are_found_and_required() -> None:
    assert label_set([ParallelText(["x", "y"], ["b", "a"]), ParallelText(["z"], ["b"])]) == ["a", "b"]
    with pytest.raises(UserError, match=r"^the training texts have one label, 'a', but there must be two;"):
        label_set([ParallelText(["x"], ["a"])])
    require_known(["a", "b"], ["a", "b"], "test")
    with pytest.raises(
        UserError,
        match=r"^test text 2 has the label 'negativ', which no training text has; these have negative, p",
    ):
        require_known(["positive", "negativ"], ["negative", "positive"], "test")


def test_texts_are_never_uneven() -> None:
    text = ParallelText(["word " * 100, "  ", "word " * 500, "w"], ["a", "a", "a", "b"])
    kept, report = filter_texts(text, LabelsData())
    assert kept == ParallelText([text.src[0], "w"], ["a", "b"])
    assert (report.read, report.dropped) == (4, {"empty": 1, "too long": 1})
