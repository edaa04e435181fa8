"""What fixers change of a corpus, counted and told."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from nmt.data.batches.streaming import StreamedText
from nmt.data.batches.training_split import training_text
from nmt.data.cleaning import repairs
from nmt.data.cleaning.filters import filter_pairs
from nmt.data.cleaning.pair_filters import Context, earlier_streams
from nmt.data.fixer_table import parsed
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading.files import FilesData
from nmt.data.reading.sources import ends_of_documents, stream

FIXERS: list[Any] = ["html_entities", "nfc", "spaces"]
LINES = ["a &amp; b\tc\td", "\t", "&nbsp;\t&nbsp;", "u\u0308\tu\u0308 &lt;  x", "e\tf"]


def data(folder: Path, **more: Any) -> FilesData:
    for side in (0, 1):
        lines = [line.partition("\t")[2 * side] for line in LINES]
        (folder / f"train.{('en', 'de')[side]}").write_text("".join(f"{line}\n" for line in lines))
    return FilesData(train=str(folder / "train"), fixers=FIXERS, **more)


@pytest.mark.parametrize("size", [1, 2, 50])
def test_the_account_counts_pairs_and_names_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Ends of documents are no pairs, as in the numbers of filters; both sides of a pair count once."""
    monkeypatch.setattr(repairs, "BLOCK_PAIRS", size)
    cfg = data(tmp_path, context=1)
    *lines, table = repairs.account(cfg, tmp_path / "cache")
    assert lines == [
        "fixer html_entities changed 3 of 4 pairs (75.00%), such as 'u\u0308 &lt;  x' to 'u\u0308 <  x'",
        "fixer nfc changed 1 of 4 pairs (25.00%), such as 'u\\u0308 <  x' to '\\xfc <  x'",
        "fixer spaces changed 3 of 4 pairs (75.00%), such as 'ü <  x' to 'ü < x'",
    ]
    assert repairs.tried(cfg, None) == lines
    assert repairs.tried(cfg, 1) == [
        "fixer html_entities changed 1 of 1 pairs (100.00%), such as 'a &amp; b' to 'a & b'",
        "fixer nfc changed 0 of 1 pairs",
        r"fixer spaces changed 1 of 1 pairs (100.00%), such as 'c\\td' to 'c d'",
    ]
    found = Path(table.removeprefix("some changes of each fixer: ")).read_text().splitlines()
    assert [line for line in found if line.startswith("nfc")] == [
        "nfc\t3\tsource\tu\u0308\t\xfc",
        "nfc\t3\ttarget\tu\u0308 <  x\t\xfc <  x",
    ]


def test_a_line_without_text_when_repaired_is_the_end_of_a_document(tmp_path: Path) -> None:
    cfg = data(tmp_path, context=1)
    assert stream(cfg, Split.train).read().src == ["a & b", "\xfc", "\xfc <brk> e"]
    assert ends_of_documents(cfg) == [1, 1]


def test_a_blank_row_of_a_table_is_the_end_of_a_document(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("en\tde\na &amp; b\tc\n\nd\te\n")
    cfg = FilesData(train=str(tmp_path / "train.tsv"), fixers=FIXERS, context=1)
    assert repairs.account(cfg, tmp_path / "cache")[0].startswith("fixer html_entities changed 1 of 2 pairs")
    (earlier,) = earlier_streams(Context(("en", "de"), earlier=(cfg,)))
    assert earlier.read().src == ["a & b", "", "d"]


def test_the_work_of_other_processes_can_be_sent_to_them() -> None:
    """As what they return can be sent back, and added."""
    counter = repairs._Counter(parsed("data.fixers", FIXERS))
    start = pickle.loads(pickle.dumps(counter.start))
    found = pickle.loads(pickle.dumps(start()((0, ParallelText(["a  b", "c"], ["d", "e  f"])))))
    total = repairs.Repairs()
    total.add(found)
    total.add(found)
    assert (total.read, total.changed, len(total.drawn)) == (4, [0, 0, 4], 3)


def test_stamps_depend_on_the_fixers(tmp_path: Path) -> None:
    first, other = data(tmp_path), data(tmp_path)
    other.fixers = other.fixers[:2]
    assert stream(first, Split.train).stamp() != stream(other, Split.train).stamp()


def test_a_stream_is_repaired_when_it_is_read(tmp_path: Path) -> None:
    cfg, log = data(tmp_path, streaming=True, buffer_pairs=3), list[str]()
    text = training_text(cfg, filter_pairs, {}, log.append, None)
    assert isinstance(text, StreamedText)
    (sample,) = text.samples(10, seed=0)
    assert (sample.src, sample.tgt) == (["a & b", "\xfc", "e"], ["c d", "\xfc < x", "f"])
    assert (
        "training data: fixer nfc changed 1 of 5 pairs (20.00%), such as 'u\\u0308 <  x' to '\\xfc <  x'"
        in log
    )
