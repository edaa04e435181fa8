"""data.filters: run once, in order, with an account; what they keep is found again."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import multiprocessing
import shutil
import unicodedata
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from nmt.data.batches.training_split import CorpusText, scan, streamed
from nmt.data.cleaning import filtering, measuring, pair_filters
from nmt.data.cleaning.filtering import Chain, chains
from nmt.data.cleaning.filters import FilterReport, filter_pairs, filter_texts
from nmt.data.cleaning.measuring import Measurement
from nmt.data.cleaning.pair_filters import Context, NumberedText, PairFilter, Values
from nmt.data.configs import DataConfig
from nmt.data.filter_table import FilterConfig, parsed
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading.files import FilesData
from nmt.data.reading.hub import HubData
from nmt.data.reading.labels import LabelsData
from nmt.data.reading.sources import MixtureData, stream, training_streams
from nmt.data.workers import several_processes
from nmt.errors import UserError

LINES = [
    "1 dog\tHund",
    "\tleer",
    "2 cats\tKatzen",
    "1 dog\tHund",
    "a house\tHaus",
    "b\tein langes Wort",
    "b\tein langes Wort",
]
FILTERS: list[Any] = [{"name": "duplicates"}, {"name": "length", "max": 8}, {"name": "scores", "min": 0.5}]


def data(folder: Path, filters: list[Any], **more: Any) -> FilesData:
    (folder / "train.tsv").write_text("en\tde\n" + "\n".join(LINES) + "\n")
    (folder / "scores").write_text("1\n1\n0\n1\n1\n1\n1\n")
    given = [one | {"file": str(folder / "scores")} if one["name"] == "scores" else one for one in filters]
    return FilesData(train=str(folder / "train.tsv"), filters=given, **more)


def scanned(cfg: DataConfig, cache: Path) -> CorpusText:
    (chain,) = chains(cfg, {}, None).values()
    return scan(stream(cfg, Split.train), cfg, filter_pairs, chain, cache)


def pairs(text: CorpusText) -> list[str]:
    return [f"{src}\t{tgt}" for chunk in text.chunks() for src, tgt in zip(chunk.src, chunk.tgt, strict=True)]


def ends(low: int, high: int) -> str:
    """Return what is told of values of which there are few."""
    parts = [f"{value} for 0.1%, {value} for 1%, {value} for 5% of the pairs" for value in (low, high)]
    return f"at most {parts[0]}; at least {parts[1]}"


def test_an_account_by_filter_and_what_is_kept(tmp_path: Path) -> None:
    text = scanned(data(tmp_path, FILTERS), tmp_path / "cache")
    assert pairs(text) == ["1 dog\tHund", "a house\tHaus"]
    dropped = {"empty": 1, "too long": 0, "uneven": 0, "duplicates": 2, "length": 1, "scores": 1}
    assert text.report == FilterReport(7, dropped)
    assert list(text.remarks())[:5] == [
        "filter duplicates dropped 2 of 6 pairs (33.33%)",
        "filter length dropped 1 of 4 pairs (25.00%)",
        "filter scores dropped 1 of 3 pairs (33.33%)",
        f"filter length measured {ends(1, 15)}",
        f"filter scores measured {ends(0, 1)}",
    ]
    examples = Path(text.account[5].removeprefix("some dropped pairs of each filter: "))
    assert examples.read_text().splitlines() == [
        "duplicates\t4\t\t1 dog\tHund",
        "duplicates\t7\t\tb\tein langes Wort",
        "length\t6\t1/15\tb\tein langes Wort",
        "scores\t3\t0\t2 cats\tKatzen",
    ]


def test_filters_run_once_unless_something_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = data(tmp_path, FILTERS)
    first = scanned(cfg, tmp_path / "cache")
    monkeypatch.setattr(filtering.Chain, "opened", lambda chain: [row() for row in chain.rows])  # a TypeError
    again = scanned(cfg, tmp_path / "cache")
    assert (again.report, again.sha256, pairs(again)) == (first.report, first.sha256, pairs(first))
    (tmp_path / "scores").write_text("1\n1\n1\n1\n1\n1\n1\n")
    with pytest.raises(TypeError):
        scanned(cfg, tmp_path / "cache")


def test_results_are_those_of_the_versions_of_the_libraries_they_depend_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("py3langid")
    entries = ["script", "length", "identical", "regex", "language", "duplicates"]
    given: dict[str, Any] = {"length": {"max": 9}, "regex": {"pattern": "a"}}
    rows = parsed("data.filters", [{"name": name, **given.get(name, {})} for name in entries])
    rows += parsed("data.filters", [{"name": "identical", "normalise": True}])
    rows += parsed("data.filters", [{"name": "length", "max": 9, "unit": "words"}])

    def stamps() -> list[str]:
        return [Chain((row,), Context(("en", "de"), {})).stamp() for row in rows]

    def changed() -> list[int]:
        return [i for i, stamp in enumerate(stamps()) if stamp != before[i]]

    before = stamps()
    for library, expected in {"regex": [3, 6], "py3langid": [4]}.items():
        with monkeypatch.context() as other:
            other.setattr(measuring, "version", lambda name, of=library: "0" if name == of else version(name))
            assert changed() == expected
    monkeypatch.setattr(unicodedata, "unidata_version", "0")
    assert changed() == [0, 6, 7]


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_the_size_of_chunks_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(filtering, "MOST_VALUES", 2)
    expected = scanned(data(tmp_path, FILTERS), tmp_path / "cache")
    monkeypatch.setattr("nmt.data.parallel_text.CHUNK_PAIRS", size)
    monkeypatch.setattr(filtering, "BLOCK_PAIRS", size)
    text = scanned(data(tmp_path, FILTERS), tmp_path / "other")
    assert (text.report, text.sha256, pairs(text)) == (expected.report, expected.sha256, pairs(expected))
    assert text.account[:-1] == expected.account[:-1]
    assert text.account[3] == f"filter length measured {ends(4, 7)}"


LONG = [{"name": "length", "max": 8}, {"name": "duplicates"}, FILTERS[2], {"name": "numbers", "max": 0}]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of pairs that filters measure from now on, in blocks of two; all are kept."""
    numbers = list[int]()

    def opened(rows: Sequence[FilterConfig], context: Context) -> list[PairFilter]:
        def noted(one: PairFilter, text: NumberedText) -> Values:
            numbers.append(len(text))
            return one.values(text)

        found = measuring.opened(rows, context)
        return [dataclasses.replace(one, values=functools.partial(noted, one)) for one in found]

    monkeypatch.setattr(filtering, "opened", opened)
    monkeypatch.setattr(filtering, "BLOCK_PAIRS", 2)
    monkeypatch.setattr(measuring, "STORED_SECONDS", 0.0)
    return numbers


def test_several_processes_find_what_one_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: list[int]
) -> None:
    cfg = data(tmp_path, LONG)
    expected = scanned(cfg, tmp_path / "cache")
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: fork)  # takes no seconds to import
    measured.clear()
    with several_processes(2):
        text = scanned(cfg, tmp_path / "other")
    assert measured == [1, 1, 1, 0]  # by the file of scores alone
    assert (text.report, text.sha256, pairs(text)) == (expected.report, expected.sha256, pairs(expected))
    files = [Path(one.account[-1].rpartition(": ")[2]).read_text() for one in (text, expected)]
    assert files[0] == files[1] != ""


def test_an_error_in_another_process_is_that_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: list[int]
) -> None:
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: fork)
    monkeypatch.setattr(pair_filters, "MATCH_SECONDS", 0.01)
    cfg = data(tmp_path, [{"name": "regex", "pattern": "(a|aa)+$"}])
    Path(str(cfg.train)).write_text("en\tde\n" + "c\tb\n" * 5 + f"{'a' * 50}b\t{'b' * 50}\n")
    with several_processes(2), pytest.raises(UserError, match=r"^data.filters\[0\].pattern=.* takes more"):
        scanned(cfg, tmp_path / "cache")
    assert multiprocessing.active_children() == []


@pytest.mark.fault(1)
def test_what_is_measured_outlives_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: list[int]
) -> None:
    cfg = data(tmp_path, LONG)
    expected = scanned(cfg, tmp_path / "other")
    whole, plain = measured.copy(), Measurement.values_of
    measured.clear()

    def interrupted(*arguments: Any) -> Values:
        if len(measured) == 5:
            raise KeyboardInterrupt
        return plain(*arguments)

    with monkeypatch.context() as once:
        once.setattr(Measurement, "values_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            scanned(cfg, tmp_path / "cache")
    before = measured.copy()
    measured.clear()
    text = scanned(cfg, tmp_path / "cache")
    assert before + measured == whole
    assert (text.report, pairs(text)) == (expected.report, pairs(expected))


def test_a_filter_measures_what_it_has_not_measured_before(tmp_path: Path, measured: list[int]) -> None:
    """With another threshold, in another chain, or in a corpus that has grown."""
    length, numbers = {"name": "length", "max": 8}, {"name": "numbers", "max": 0}
    scanned(data(tmp_path, [length, numbers]), tmp_path / "cache")
    assert sum(measured) == 6 + 4
    for filters, missing, dropped in (
        ([length | {"max": 99}, numbers], 2, [0, 3]),
        ([numbers, length], 0, [3, 2]),
        ([numbers, length | {"max": 7}, {"name": "identical"}], 1, [3, 2, 0]),
    ):
        measured.clear()
        cfg = data(tmp_path, filters)
        text = scanned(cfg, tmp_path / "cache")
        assert sum(measured) == missing
        assert list(text.report.dropped.values())[3:] == dropped
        assert pairs(text) == pairs(scanned(cfg, tmp_path / str(missing)))
    Path(str(cfg.train)).write_text("en\tde\n" + "\n".join([*LINES, "2 cats\tHund"]) + "\n")
    measured.clear()
    scanned(cfg, tmp_path / "cache")
    assert sum(measured) == 2 + 1


def test_a_cache_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    assert pairs(scanned(data(tmp_path, FILTERS), tmp_path / "cache")) == ["1 dog\tHund", "a house\tHaus"]


def test_a_stream_is_judged_pair_by_pair(tmp_path: Path) -> None:
    cfg = data(tmp_path, [{"name": "length", "max": 8}], streaming=True)
    streams = list(training_streams(cfg).values())
    text = streamed(streams, [[1.0]], cfg, filter_pairs, list(chains(cfg, {}, None).values()))
    read, report = next(text.buffers(4, 0))
    assert (read.src, report.dropped["length"]) == (["1 dog", "2 cats", "1 dog", "a house"], 2)
    with pytest.raises(UserError) as caught:
        data(tmp_path, [{"name": "duplicates"}], streaming=True)
    assert str(caught.value).startswith(
        "data.filters[0]: duplicates needs all pairs at once, which data.streaming=true does not have; "
        "remove it, set data.streaming=false, or choose among length, ratio"
    )


def test_filters_of_a_mixture_and_of_one_corpus_see_no_tags(tmp_path: Path) -> None:
    train = data(tmp_path, []).train
    own = {
        "train": train,
        "tag": "bt",
        "filters": [{"name": "numbers", "max": 1}, {"name": "length", "max": 5}],
    }
    cfg = MixtureData(corpora={"a": own, "b": {"train": train}}, filters=[{"name": "duplicates"}])
    texts = {
        name: scan(part, cfg, filter_pairs, chains(cfg, {}, None)[name], tmp_path / "cache")
        for name, part in training_streams(cfg).items()
    }
    assert pairs(texts["a"]) == ["<bt> 1 dog\tHund"]
    assert len(texts["b"]) == 4


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "lenght"}, r"data.filters\[0\].name must be one of length, .* but is 'lenght'"),
        ({"name": ["length"]}, r"data.filters\[0\].name must be one of length, .* but is \['length'\]"),
        ({"name": "length"}, r"data.filters\[0\]: set min or max, else the filter drops nothing"),
        (
            {"name": "length", "unit": "char"},
            r"data.filters\[0\].unit must be one of characters, words, but is 'char'",
        ),
        ({"name": "ratio", "max": 0.5}, r"data.filters\[0\].max must be at least 1, but is 0.5"),
        ({"name": "ratio", "most": 5}, r"unknown key data.filters\[0\].most"),
        ({"name": "regex", "pattern": "("}, r"data.filters\[0\].pattern=\( is no regular expression"),
        ({"name": "length", "min": math.nan}, r"data.filters\[0\].min cannot be nan"),
        (
            {"name": "scores", "file": "x", "max": math.nan},
            r"data.filters\[0\].max must be a number, but is nan",
        ),
        ({"name": "cross_entropy", "run": "x"}, r"data.filters\[0\]: set either min, a score, or share"),
        (
            {"name": "duplicates", "keep": "best"},
            r"data.filters\[0\]: keep=best and scores=FILE, or the column=NAME of a dataset, need each other",
        ),
        (
            {"name": "duplicates", "column": "x"},
            r"data.filters\[0\]: keep=best and scores=FILE, or the column",
        ),
        ({"name": "scores", "min": 1}, r"data.filters\[0\].file must be the path of a file of scores, or be"),
    ],
)
def test_a_bad_row_is_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        FilesData(filters=[entry])


def test_filters_that_leave_nothing_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^no training pair is left: 7 pairs read, 0 kept \(.*length 6\); see data.filters"
    ):
        scanned(data(tmp_path, [{"name": "length", "min": 99}]), tmp_path / "cache")


def test_a_corpus_of_a_mixture_of_which_nothing_is_left_is_named(tmp_path: Path) -> None:
    file = data(tmp_path, []).train
    corpora = {"a": {"train": file}, "b": {"train": file, "filters": [{"name": "length", "min": 99}]}}
    mixed = MixtureData(corpora=corpora)
    streams = training_streams(mixed)
    with pytest.raises(
        UserError,
        match=r"^no training pair of data.corpora.b is left: 7 pairs read, 0 kept \(.*length 6\); "
        "see data.corpora.b.filters and data.filters$",
    ):
        scan(streams["b"], mixed, filter_pairs, chains(mixed, {}, None)["b"], tmp_path / "cache")
    short = MixtureData(corpora=corpora | {"b": {"train": file}}, max_chars=1)
    with pytest.raises(
        UserError, match=r"^no training pair of data.corpora.a is left: .*see data.max_chars and"
    ):
        scan(streams["a"], short, filter_pairs, chains(short, {}, None)["a"], tmp_path / "cache")


LABELLED = [
    ("A film to remember, 90 minutes.", "5"),
    ("A film to remember, 80 minutes.", "1"),
    ("12345!", "3"),
]


@pytest.mark.parametrize("name", ["characters", "word_length", "length", "script", "regex"])
def test_of_labelled_texts_the_text_is_filtered_and_not_the_label(tmp_path: Path, name: str) -> None:
    keys: dict[str, Any] = {
        "length": {"min": 9},
        "script": {"src": "LATIN"},
        "regex": {"pattern": r"^\d"},
    }
    (tmp_path / "train.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in LABELLED))
    rows: list[Any] = [{"name": name, **keys.get(name, {})}]
    cfg = LabelsData(train=str(tmp_path / "train.tsv"), filters=rows, text_column="1", label_column="2")
    (chain,) = chains(cfg, {}, None).values()
    kept = scan(stream(cfg, Split.train), cfg, filter_texts, chain, tmp_path / "cache").report.kept
    assert kept == (3 if name in ("word_length", "script") else 2)


@pytest.mark.parametrize("name", ["ratio", "identical", "numbers"])
def test_filters_that_compare_the_sides_are_refused_for_labels(name: str) -> None:
    with pytest.raises(
        UserError,
        match=rf"^data.filters\[0\]: {name} compares translations, but the data has labels; leave it out$",
    ):
        chains(LabelsData(train="train.tsv", filters=[{"name": name}]), {}, None)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (None, "there is no file .*scores"),
        ("1\n1\n0\n", ".*scores has no score for row 4 of data.train=.*train.tsv; it needs one for each"),
        ("1\n" * 9, ".*scores has 9 lines of scores, but data.train=.*train.tsv 7 rows; it needs"),
    ],
)
def test_scores_of_another_corpus_are_refused(tmp_path: Path, scores: str | None, message: str) -> None:
    cfg = data(tmp_path, [{"name": "length", "max": 8}, FILTERS[2]])
    (tmp_path / "scores").unlink() if scores is None else (tmp_path / "scores").write_text(scores)
    with pytest.raises(UserError, match=rf"^data.filters\[1\].file: {message}"):
        scanned(cfg, tmp_path / "cache")


def dataset(folder: Path, scores: list[Any], **more: Any) -> HubData:
    rows = [
        {"translation": {"en": f"dog {i % 3}", "de": f"Hund {i % 3}"}, "quality": {"laser": score}}
        for i, score in enumerate(scores)
    ]
    folder.mkdir()
    datasets.Dataset.from_list(rows).to_parquet(folder / "train-00000-of-00001.parquet")
    return HubData(path=str(folder), **more)


def test_scores_may_be_a_column_of_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.data.reading.hub.CHUNK_PAIRS", 2)
    row = {"name": "scores", "column": "quality.laser", "min": -1}
    cfg = dataset(tmp_path / "corpus", [0.5, -1.5, -1.0, 2.5, 7.0, -3.0, 0.0], filters=[row])
    assert pairs(scanned(cfg, tmp_path / "cache")) == [f"dog {i}\tHund {i}" for i in (0, 2, 0, 1, 0)]
    best = {"name": "duplicates", "keep": "best", "column": "quality.laser"}
    cfg = dataclasses.replace(cfg, train_split="train[1:]", filters=[best, row])
    left = scanned(cfg, tmp_path / "cache")
    assert pairs(left) == ["dog 2\tHund 2", "dog 0\tHund 0", "dog 1\tHund 1"]
    assert left.report.dropped["duplicates"] == 3
    mixed = MixtureData(corpora={"a": {"path": str(tmp_path / "corpus"), "filters": [row]}})
    chain = chains(mixed, {}, None)["a"]
    assert len(scan(training_streams(mixed)["a"], mixed, filter_pairs, chain, tmp_path / "cache")) == 5


@pytest.mark.parametrize("end", ["0.9", "", "none"])
@pytest.mark.parametrize("place", ["train", "train.tsv", "train.jsonl"])
def test_scores_and_weights_are_those_of_lines_with_the_ends_of_documents(
    tmp_path: Path, place: str, end: str
) -> None:
    numbers = ["1", "0", end, end, "0", "2", end]
    lines = [("a", "x"), ("b", "y"), ("", ""), ("", ""), ("c", "z"), ("d", "w"), ("", "")]
    (tmp_path / "numbers").write_text("".join(f"{number}\n" for number in numbers))
    for side, name in enumerate(("en", "de")):
        (tmp_path / f"train.{name}").write_text("".join(f"{line[side]}\n" for line in lines))
    rows = [
        f"{src}\t{tgt}\t{number}" if src else "" for (src, tgt), number in zip(lines, numbers, strict=True)
    ]
    (tmp_path / "train.tsv").write_text("\n".join(["en\tde\tscore", *rows, ""]))
    records = [dict(zip(("en", "de", "score"), row.split("\t"), strict=False)) for row in rows]
    (tmp_path / "train.jsonl").write_text(
        "".join(f"{json.dumps(one) if one['en'] else ''}\n" for one in records)
    )
    train, file = str(tmp_path / place), str(tmp_path / "numbers")
    row = {"name": "scores", "file": file, "min": 0.5}
    own = {"name": "scores", "file": train, "column": "score", "min": 0.5}
    for one in [row] if place == "train" else [row, own]:
        cfg = FilesData(train=train, context=1, context_short=0.0, filters=[one])
        assert pairs(scanned(cfg, tmp_path / "cache")) == ["a\tx", "c <brk> d\tw"]
    cfg = FilesData(train=train, context=1, weights=file if place == "train" else "score")
    assert stream(cfg, Split.train).read().weights == [1.0, 0.0, 0.0, 2.0]


def test_scores_beside_blank_rows_of_a_dataset_are_no_scores(tmp_path: Path) -> None:
    texts = [("a", "x", 1.0), ("", "", None), ("b", "y", 0.0), ("c", "z", 1.0)]
    rows = [{"en": src, "de": tgt, "laser": score} for src, tgt, score in texts]
    (tmp_path / "corpus").mkdir()
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "corpus" / "train-00000-of-00001.parquet")
    row = {"name": "scores", "column": "laser", "min": 0.5}
    cfg = HubData(path=str(tmp_path / "corpus"), context=1, context_short=0.0, filters=[row])
    assert pairs(scanned(cfg, tmp_path / "cache")) == ["a\tx", "b <brk> c\tz"]


def test_scores_of_a_dataset_whose_documents_a_column_tells_apart(tmp_path: Path) -> None:
    """A blank line is no row there, neither of the pairs nor of the scores."""
    rows = [
        {"en": en, "de": en, "doc": doc, "laser": score}
        for en, doc, score in zip("abc", "112", (1, 0, 1), strict=True)
    ]
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "train.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    row = {"name": "scores", "column": "laser", "min": 0.5}
    cfg = HubData(path=str(tmp_path / "corpus"), context=1, document_column="doc", filters=[row])
    assert pairs(scanned(cfg, tmp_path / "cache")) == ["a\ta", "c\tc"]


def test_a_column_that_has_no_scores_is_refused(tmp_path: Path) -> None:
    row = {"name": "scores", "column": "laser", "min": 0}
    cfg = dataset(tmp_path / "corpus", [1.0, None], filters=[row])
    with pytest.raises(UserError) as caught:
        scanned(cfg, tmp_path / "cache")
    assert str(caught.value) == (
        f"data.filters[0].column=laser: {tmp_path}/corpus has no such column, only translation.en, "
        "translation.de, quality.laser"
    )
    cfg = dataclasses.replace(cfg, filters=[row | {"column": "quality.laser"}])
    with pytest.raises(UserError) as caught:
        scanned(cfg, tmp_path / "cache")
    assert str(caught.value) == (
        "data.filters[0].column=quality.laser: row 2: a score must be a number, but is 'None'"
    )
    with pytest.raises(UserError, match=r"^data.filters\[0\].column=laser: only datasets \(data=hub\) have"):
        scanned(FilesData(train=data(tmp_path, []).train, filters=[row]), tmp_path / "cache")


def test_pairs_of_earlier_corpora_are_duplicates(tmp_path: Path) -> None:
    """Those of the same languages, as fixers leave them, without tags and context; one may have changed."""
    pairs_of = {"a": ["x\tX", "y\tY"], "b": ["x\tX", "z \tZ", "z\tZ", "v\tV"], "c": ["z\tZ", "x\tX", "w\tW"]}
    entries = dict[str, dict[str, Any]]()
    for name, lines in pairs_of.items():
        (tmp_path / f"{name}.tsv").write_text("\n".join(["en\tde", *lines, ""]))
        entries[name] = {"train": str(tmp_path / f"{name}.tsv"), "tag": f"from{name}"}
    entries["d"] = entries["a"] | {"tgt": "fr", "tgt_column": "de"}
    rows = [{"name": "duplicates"}, {"name": "duplicates", "earlier": True}]
    cfg = MixtureData(corpora=entries, filters=rows, target_tags=True, fixers=["spaces"], context=1)

    def left() -> dict[str, tuple[list[str], list[int]]]:
        found = dict[str, tuple[list[str], list[int]]]()
        all_chains = chains(cfg, {}, None)
        for name, source in training_streams(cfg).items():
            text = scan(source, cfg, filter_pairs, all_chains[name], tmp_path / "cache")
            found[name] = [line[-1] for line in pairs(text)], list(text.report.dropped.values())[-2:]
        return found

    assert left() == {
        "a": (["X", "Y"], [0, 0]),
        "b": (["Z", "V"], [1, 1]),
        "c": (["W"], [0, 2]),
        "d": (["X", "Y"], [0, 0]),
    }
    (tmp_path / "a.tsv").write_text("en\tde\nv\tV\n")
    assert left()["b"] == (["X", "Z"], [1, 1])


def test_pairs_that_are_scored_on_are_found_behind_the_tags_of_languages(tmp_path: Path) -> None:
    train = data(tmp_path, []).train
    entry = {"train": train, "validation": train, "tag": "bt"}
    cfg = MixtureData(corpora={"a": entry}, filters=[{"name": "overlap"}], target_tags=True)
    (chain,) = chains(cfg, {"validation": ParallelText(["<2de> 1 dog"], ["Hund"])}, None).values()
    (source,) = training_streams(cfg).values()
    text = scan(source, cfg, filter_pairs, chain, tmp_path / "cache")
    assert text.report.dropped["overlap"] == 2
    assert pairs(text)[0] == "<2de> <bt> 2 cats\tKatzen"


def test_filters_see_sentences_without_their_context(tmp_path: Path) -> None:
    filters = [{"name": "length", "max": 8}, {"name": "overlap"}]
    cfg = data(tmp_path, filters, context=2, context_short=0.0)
    scored = ParallelText(["else <brk> 1 dog"], ["Hund"])
    (chain,) = chains(cfg, {"validation": scored}, None).values()
    (source,) = training_streams(cfg).values()
    text = scan(source, cfg, filter_pairs, chain, tmp_path / "cache")
    assert {name: text.report.dropped[name] for name in ("length", "overlap")} == {"length": 2, "overlap": 2}
    assert pairs(text) == ["1 dog <brk> 2 cats\tKatzen", "2 cats <brk> 1 dog <brk> a house\tHaus"]


def test_a_file_of_opuscleaner_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    steps: list[Any] = [
        {"filter": "remove_empty_lines", "parameters": {}, "language": None},
        {"filter": "max_length", "parameters": {"MAXLENGTH": 2, "MINLENGTH": 1}, "language": None},
        {"filter": "src_trg_ratio", "parameters": {"RATIO": 0.5, "LOG": False}, "language": None},
    ]
    file = tmp_path / "corpus.filters.json"

    def chain_of(**more: Any) -> list[str]:
        file.write_text(json.dumps({"version": 1, "files": ["a.en.gz", "a.de.gz"], "filters": steps}))
        cfg = data(tmp_path, [{"name": "opuscleaner", "file": f"~/{file.name}", **more}])
        (chain,) = chains(cfg, {}, None).values()
        return chain.reasons

    assert chain_of() == ["length", "ratio"]
    steps[2]["parameters"]["RATIO"] = "half"
    with pytest.raises(UserError, match="stands for: src_trg_ratio"):
        chain_of()
    steps[2]["parameters"]["RATIO"] = 0.5
    steps.append({"filter": "fix_quotes", "parameters": {}, "language": "en"})
    with pytest.raises(
        UserError, match=r"^data.filters\[0\].file: .* stands for: fix_quotes; known are max_length"
    ):
        chain_of()
    assert chain_of(skip_unknown=True) == ["length", "ratio"]


def test_an_entry_that_vanishes_while_it_is_read_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = tmp_path / "entry"
    measuring._store(entry, np.ones(3, bool), np.arange(3.0))
    assert measuring._stored(entry, 3)[1] is not None

    def vanished(entry: Path) -> dict[str, Any]:
        shutil.rmtree(entry)
        return {}

    monkeypatch.setattr(measuring, "open_entry", vanished)
    known, values = measuring._stored(entry, 3)
    assert not known.any()
    assert values is None
