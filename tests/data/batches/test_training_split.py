"""What a start learns about the training split: once by reading it, then from the cache."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nmt import extras
from nmt.data.batches.training_split import (
    CorpusText,
    TrainingText,
    digest_of,
    evaluation_split,
    scan,
    train_tokenizer,
)
from nmt.data.cleaning.filtering import Chain, chains
from nmt.data.cleaning.filters import FilterReport, all_lines, filter_pairs
from nmt.data.cleaning.pair_filters import Context
from nmt.data.parallel_text import PairStream, ParallelText, Split, concatenated
from nmt.data.reading.bundled_data import DemoData
from nmt.data.reading.files import FilesData, TextData
from nmt.data.reading.hub import HubData
from nmt.data.reading.labels import HubLabelsData, LabelsData
from nmt.data.reading.sources import MixtureData, stream, training_streams
from nmt.data.tokens import tokenizer_training
from nmt.data.tokens.tokenizer_training import TokenizerConfig
from nmt.errors import UserError

WORDS = ["dog", "cat", "house", "tree", "sees", "the", "green", "old", "runs", "sleeps"]
VALIDATION = ParallelText(["a new dog", "old"], ["ein neuer Hund", "alt"])


def corpus(size: int = 300) -> ParallelText:
    rng = random.Random(1)
    sides = [[" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(size)] for _ in range(2)]
    return ParallelText(["old", "", *sides[0]], ["alt", "leer", *sides[1]])


class Source:
    """A stream of some pairs that counts how often it is read."""

    def __init__(self, text: ParallelText, size: int = 70):
        self.text, self.size, self.reads, self.version = text, size, 0, "1"

    @property
    def stream(self) -> PairStream:
        return PairStream(lambda: self.version, self.chunks)

    def chunks(self) -> Iterator[ParallelText]:
        self.reads += 1
        for first in range(0, len(self.text), self.size):
            part = slice(first, first + self.size)
            yield ParallelText(self.text.src[part], self.text.tgt[part])


def chain(**scored_on: ParallelText) -> Chain:
    """Return a chain without filters."""
    return Chain((), Context(("en", "de"), scored_on))


def scanned(source: Source, cache: Path) -> CorpusText:
    return scan(source.stream, DemoData(), filter_pairs, chain(validation=VALIDATION), cache)


def test_what_is_known_is_read_once(tmp_path: Path) -> None:
    source = Source(corpus())
    first, second = scanned(source, tmp_path), scanned(source, tmp_path)
    assert source.reads == 1
    kept, report = filter_pairs(source.text, DemoData())
    for text in (first, second):
        assert (text.report, len(text)) == (report, len(kept))
        assert text.shared == {"validation": 1}
        assert text.sha256 == digest_of(kept)
    assert PairStream(lambda: "", first.chunks).read() == kept
    source.version = "2"
    scanned(source, tmp_path)
    assert source.reads == 3


def test_the_hash_tells_pairs_apart_and_not_chunks(tmp_path: Path) -> None:
    text = corpus()
    hashes = [scanned(Source(text, size), tmp_path / str(size)).sha256 for size in (1, 70, 1000)]
    assert len(set(hashes)) == 1
    moved = [ParallelText(["a b", "c"], ["x", "y"]), ParallelText(["a", "b c"], ["x", "y"])]
    moved.append(ParallelText(moved[0].tgt, moved[0].src))
    assert len({digest_of(text) for text in moved}) == 3


def test_facts_depend_on_the_options_and_on_what_is_scored(tmp_path: Path) -> None:
    source = Source(corpus())
    scanned(source, tmp_path)
    other = scan(source.stream, DemoData(max_chars=9), filter_pairs, chain(validation=VALIDATION), tmp_path)
    assert other.report.dropped["too long"] > 0
    lines = scan(source.stream, DemoData(), all_lines, chain(validation=VALIDATION), tmp_path)
    assert lines.report == FilterReport(302)
    kept, _ = filter_pairs(source.text, DemoData())
    assert scan(source.stream, DemoData(), filter_pairs, chain(test=kept), tmp_path).shared == {
        "test": len(kept)
    }


@pytest.mark.parametrize("filters", [[], [{"name": "length", "max": 50}]])
def test_pairs_are_compared_without_tags_and_context(tmp_path: Path, filters: list[Any]) -> None:
    (tmp_path / "train.tsv").write_text("en\tde\na dog\tein Hund\nold\talt\nBerlin\tBerlin\n")
    entry = {"train": str(tmp_path / "train.tsv"), "tag": "bt"}
    cfg = MixtureData(corpora={"a": entry}, target_tags=True, context=2, context_short=0.0, filters=filters)
    scored_on = {"test": ParallelText(["<2de> new <brk> old", "<2de> old"], ["alt", "neu"])}
    (source,), (one,) = training_streams(cfg).values(), chains(cfg, scored_on, None).values()
    text = scan(source, cfg, filter_pairs, one, tmp_path / "cache")
    assert next(text.chunks()).src[1] == "<2de> <bt> a dog <brk> old"
    assert (text.shared, text.copies) == ({"test": 1}, 1)


def test_other_pairs_than_those_that_are_known_are_an_error(tmp_path: Path) -> None:
    source = Source(corpus())
    text = scanned(source, tmp_path)
    source.text = corpus(299)
    with pytest.raises(UserError) as caught:
        list(text.chunks())
    message = "the training data has changed while it was read; run the same command again"
    assert str(caught.value) == message


def test_data_that_changes_during_the_pass_is_not_remembered(tmp_path: Path) -> None:
    source = Source(corpus())
    stamps = iter("ab")
    changing = source.stream._replace(stamp=lambda: next(stamps))
    with pytest.raises(UserError, match="has changed while it was read"):
        scan(changing, DemoData(), filter_pairs, chain(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault(31)
def test_a_filter_that_leaves_nothing_is_an_error(tmp_path: Path) -> None:
    source = Source(ParallelText(["a" * 50], ["b" * 50]))
    with pytest.raises(UserError) as caught:
        scan(source.stream, DemoData(max_chars=9), filter_pairs, chain(), tmp_path)
    assert str(caught.value) == (
        "no training pair is left: 1 pairs read, 0 kept (too long 1); see data.max_chars and data.max_ratio"
    )


def test_an_evaluation_split_comes_from_the_cache(tmp_path: Path) -> None:
    source = Source(ParallelText(["", "a"], ["x", ""]))
    assert (
        evaluation_split(source.stream, tmp_path) == evaluation_split(source.stream, tmp_path) == source.text
    )
    assert source.reads == 1


def test_kinds_of_sources_share_nothing_in_the_cache(tmp_path: Path) -> None:
    for side in ("en", "de"):
        (tmp_path / f"a.{side}").write_text(f"{side}\n")
    table = tmp_path / "a.jsonl"
    table.write_text('{"text": "a\\tb", "label": " x "}\n')
    texts = [f"{tmp_path}/a.en", f"{tmp_path}/a.de"]
    named: dict[str, Any] = {"src": "text", "tgt": "label"}
    for cfg in (
        TextData(validation=texts),
        FilesData(validation=f"{tmp_path}/a"),
        LabelsData(validation=str(table)),
        FilesData(validation=str(table), **named),
    ):
        source = stream(cfg, Split.validation)
        assert evaluation_split(source, tmp_path / "cache") == source.read()
    folder = str(tmp_path)
    of_folder = [HubLabelsData(path=folder), HubData(path=folder, **named)]
    assert len({stream(cfg, Split.train).stamp() for cfg in of_folder}) == 2


def test_files_that_are_written_anew_are_read_anew(tmp_path: Path) -> None:
    cfg = FilesData(train=str(tmp_path / "train.tsv"))
    counts = []
    for rows in (2, 3):
        (tmp_path / "train.tsv").write_text("en\tde\n" + "a dog\tein Hund\n" * rows, encoding="utf-8")
        counts.append(len(scan(stream(cfg, Split.train), cfg, filter_pairs, chain(), tmp_path / "cache")))
    assert counts == [2, 3]


def test_a_large_corpus_is_sampled(tmp_path: Path) -> None:
    source = Source(corpus())
    text = TrainingText({"only": scanned(source, tmp_path)}, [1.0])
    kept = filter_pairs(source.text, DemoData())[0]
    assert concatenated(text.samples(301, seed=1)) == concatenated(text.samples(10_000, seed=1)) == kept
    pairs = list(zip(kept.src, kept.tgt, strict=True))
    samples = [concatenated(text.samples(100, seed)) for seed in (1, 1, 2)]
    assert samples[0] == samples[1] != samples[2]
    remaining = iter(pairs)
    assert all(pair in remaining for pair in zip(samples[0].src, samples[0].tgt, strict=True))  # in order
    assert len(samples[0]) == 100


def test_a_tokenizer_is_trained_once_for_the_same_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(corpus())
    text = TrainingText({"only": scanned(source, tmp_path)}, [1.0])
    cfg = TokenizerConfig(vocab_size=28)
    first = train_tokenizer(cfg, text, seed=1, cache=tmp_path, log=print)
    reads = source.reads
    again = train_tokenizer(
        TokenizerConfig(vocab_size=28, sampling_alpha=0.1), text, seed=2, cache=tmp_path, log=print
    )
    assert again.fingerprint == first.fingerprint
    assert source.reads == reads
    train_tokenizer(TokenizerConfig(vocab_size=27), text, seed=1, cache=tmp_path, log=print)
    assert source.reads == reads + 1
    few = TokenizerConfig(vocab_size=28, max_sentences=60)
    prints = [
        train_tokenizer(few, text, seed=seed, cache=tmp_path, log=print).fingerprint for seed in (1, 1, 2)
    ]
    assert prints[0] == prints[1] != prints[2]
    assert source.reads == reads + 3
    monkeypatch.setattr(extras, "find_spec", lambda module: True)
    monkeypatch.setattr(tokenizer_training, "_moses", lambda language: SimpleNamespace(normalize=str))
    for version, num_read in (("1", 4), ("1", 4), ("2", 5)):  # of a library on which it depends
        monkeypatch.setattr(tokenizer_training, "version", {"sacremoses": version}.__getitem__)
        moses = TokenizerConfig(vocab_size=28, moses_src="en")
        made = train_tokenizer(moses, text, seed=1, cache=tmp_path, log=print)
        assert made.versions == f"{first.versions} sacremoses {version}"
        assert source.reads == reads + num_read


@pytest.mark.fault(26, 31)
def test_copies_and_foreign_line_breaks_are_reported(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(40)]
    src = [f"{lines[0]}\rx", f"{lines[1]}\u2028x\u2028", *lines[2:]]
    tgt = [
        f"{lines[0]}\r\x85y",
        f"Zeile {lines[1]}",
        *(lines[2:12]),
        *(f"Zeile {line}" for line in lines[12:]),
    ]
    for number in range(2):  # the second is found in the cache
        (remark_on_copies, remark_on_breaks) = scanned(Source(ParallelText(src, tgt)), tmp_path).remarks()
        assert remark_on_copies == (
            "warning: 10 of 40 pairs have the same text on both sides; is one side a copy of the other?"
        ), number
        assert remark_on_breaks == (
            "inside of lines, where other programs may break them: CR 2, U+0085 1, U+2028 2"
        )
    blank = scan(Source(ParallelText([""] * 9, [""] * 9)).stream, DemoData(), all_lines, chain(), tmp_path)
    assert list(blank.remarks()) == []


@pytest.mark.fault(28)
def test_a_huge_line_is_dropped_and_counted_in_bounded_memory(tmp_path: Path) -> None:
    """Among empty and overlong pairs, in plain text, TSV and JSONL; the counts are what was put in."""
    good = [(f"a dog {number}", f"ein Hund {number}") for number in range(50)]
    huge = "ha" * 16_000_000
    pairs = [*good[:20], ("", "leer"), (huge, "x"), ("a" * 2001, "b" * 2001), *good[20:], ("y", huge)]
    with (tmp_path / "a.en").open("w") as src, (tmp_path / "a.de").open("w") as tgt:
        for one, other in pairs:
            src.write(f"{one}\n")
            tgt.write(f"{other}\n")
    with (tmp_path / "a.tsv").open("w") as tsv, (tmp_path / "a.jsonl").open("w") as jsonl:
        tsv.write("en\tde\n")
        for one, other in pairs:
            tsv.write(f"{one}\t{other}\n")
            jsonl.write(f'{{"en": "{one}", "de": "{other}"}}\n')
    del huge, pairs
    tracemalloc.start()
    try:
        for name in ("a", "a.tsv", "a.jsonl"):
            cfg = FilesData(train=str(tmp_path / name))
            text = scan(stream(cfg, Split.train), cfg, filter_pairs, chain(), tmp_path / "cache")
            assert text.report == FilterReport(54, {"empty": 1, "too long": 3, "uneven": 0})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60_000_000
