"""Context of previous sentences: within documents, whatever the chunks; readers that know documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nmt.data.cleaning.filters import filter_pairs
from nmt.data.configs import DataConfig
from nmt.data.documents import composed, current, with_context
from nmt.data.parallel_text import PairStream, ParallelText, Split
from nmt.data.reading import files, sources
from nmt.data.reading.bundled_data import DemoData
from nmt.data.reading.files import FilesData
from nmt.data.reading.hub import HubData
from nmt.data.reading.sources import MixtureData
from nmt.errors import UserError

PAIRS = [("a", "A"), ("b", "B"), ("c", "C"), ("", ""), ("d", "D"), ("e", "E")]
IN_CONTEXT = ["a", "a <brk> b", "a <brk> b <brk> c", "d", "d <brk> e"]


def config(**values: Any) -> FilesData:
    return FilesData(**({"context": 2, "context_short": 0.0} | values))


def stream_of(pairs: Sequence[tuple[str, str]], chunk: int = 100) -> PairStream:
    parts = [pairs[i : i + chunk] for i in range(0, len(pairs), chunk)]
    texts = [ParallelText([s for s, _ in part], [t for _, t in part]) for part in parts]
    return PairStream(lambda: "stamp", lambda: iter(texts))


def read(cfg: DataConfig, pairs: Sequence[tuple[str, str]] = PAIRS, chunk: int = 100) -> ParallelText:
    return with_context(stream_of(pairs, chunk), cfg, Split.train).read()


def test_sources_have_the_sentences_before_them_and_never_those_of_another_document() -> None:
    text = read(config())
    assert text.src == IN_CONTEXT
    assert text.tgt == ["A", "B", "C", "D", "E"]
    assert [current(line) for line in text.src] == list("abcde")


def test_targets_have_the_same_sentences_before_them() -> None:
    text = read(config(context=1, context_target=True))
    assert text.src == ["a", "a <brk> b", "b <brk> c", "d", "d <brk> e"]
    assert text.tgt == ["A", "A <brk> B", "B <brk> C", "D", "D <brk> E"]


def test_sizes_of_chunks_change_nothing_nor_which_pairs_have_less_context() -> None:
    pairs = [(f"s{i}", f"t{i}") if i % 50 else ("", "") for i in range(1000)]
    cfg = config(context_short=0.3)
    whole = read(cfg, pairs)
    assert all(read(cfg, pairs, chunk) == whole for chunk in (1, 7, 50))
    shorter = sum(
        line.count("<brk>") < min(2, (i % 49)) for i, line in enumerate(whole.src)
    )  # documents of 49
    assert 0.2 < shorter / len(whole) < 0.4
    full = with_context(stream_of(pairs), cfg, Split.validation).read()
    assert sum(line.count("<brk>") for line in full.src) == 20 * (48 * 2 - 1)


def test_the_oldest_sentences_go_first_where_a_side_would_be_too_long() -> None:
    long = "x" * 20
    text = read(config(max_tokens=11), [(long, "A"), ("b", "B"), ("c", "C")])
    assert text.src == [long, f"{long} <brk> b", "b <brk> c"]
    assert read(config(max_tokens=8), [(long, "A"), ("b", "B")]).src == [long, "b"]


def test_a_pair_with_a_blank_side_is_no_context_and_stays_a_pair_that_is_filtered() -> None:
    text = read(config(), [("a", "A"), ("b", ""), ("c", "C")])
    assert text.src == ["a", "b", "a <brk> c"]
    kept, report = filter_pairs(text, config())
    assert (kept.src, report.dropped["empty"]) == (["a", "a <brk> c"], 1)


def test_filters_judge_the_sentence_itself() -> None:
    text = ParallelText([f"{'long ' * 40}<brk> a dog"], ["ein Hund"])
    assert len(filter_pairs(text, config())[0]) == 1


def test_a_separator_in_the_text_is_no_separator() -> None:
    assert read(config(), [("a <brk> b", "A"), ("c", "C")]).src == ["a < brk> b", "a < brk> b <brk> c"]


def test_a_source_to_translate_has_the_context_of_one_to_train_on() -> None:
    cfg = config()
    assert composed("c", ["z", " a ", "", "b"], cfg) == "a <brk> b <brk> c"
    assert composed("  ", ["a"], cfg) == "  "
    assert composed("b", ["x" * 800], cfg) == "b"


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def tables(folder: Path) -> dict[str, str]:
    rows = [("a", "A", "1"), ("b", "B", "1"), ("c", "C", "1"), ("d", "D", "2"), ("e", "E", "2")]
    tsv = "".join("\t".join(row) + "\n" for row in [("en", "de", "doc"), *rows])
    jsonl = "".join(json.dumps({"en": s, "de": t, "doc": int(d)}) + "\n" for s, t, d in rows)
    return {"tsv": write(folder, "x.tsv", tsv), "jsonl": write(folder, "x.jsonl", jsonl)}


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "hub"])
def test_a_column_tells_where_documents_end(tmp_path: Path, kind: str) -> None:
    places = tables(tmp_path)
    own: dict[str, Any] = {"context": 2, "context_short": 0.0, "document_column": "doc"}
    cfg: DataConfig = FilesData(train=places.get(kind), **own)
    if kind == "hub":
        pytest.importorskip("datasets")
        (tmp_path / "set").mkdir()
        Path(places["jsonl"]).rename(tmp_path / "set" / "train.jsonl")
        cfg = HubData(path=str(tmp_path / "set"), **own)
    assert sources.stream(cfg, Split.train).read().src == IN_CONTEXT


def test_the_document_column_of_plain_text_is_refused_unless_another_split_is_a_table(tmp_path: Path) -> None:
    place = write(tmp_path, "x.en", "a\n").removesuffix(".en")
    write(tmp_path, "x.de", "A\n")
    cfg = config(train=place, document_column="doc")
    with pytest.raises(UserError, match=r"data\.document_column=doc names .* data\.train=.*x is plain text"):
        sources.stream(cfg, Split.train)
    beside = config(train=place, document_column="doc", validation=tables(tmp_path)["tsv"])
    assert sources.stream(beside, Split.train).read().src == ["a"]


@pytest.mark.parametrize("kind", ["tsv", "jsonl"])
def test_a_document_column_that_is_missing_is_refused_by_its_key(tmp_path: Path, kind: str) -> None:
    cfg = config(train=tables(tmp_path)[kind], document_column="dok")
    with pytest.raises(UserError, match=r"data\.document_column=dok: .* has no column 'dok', only .*doc"):
        sources.stream(cfg, Split.train).read()


def test_blank_lines_end_documents_in_files_and_tables(tmp_path: Path) -> None:
    write(tmp_path, "x.en", "a\nb\nc\n\nd\ne\n")
    write(tmp_path, "x.de", "A\nB\nC\n\nD\nE\n")
    table = write(tmp_path, "x.tsv", "en\tde\na\tA\nb\tB\nc\tC\n\nd\tD\ne\tE\n")
    for place in (str(tmp_path / "x"), table):
        assert sources.stream(config(train=place), Split.train).read().src == IN_CONTEXT
    without = sources.stream(FilesData(train=str(tmp_path / "x")), Split.train).read()
    assert without == files.stream(FilesData(train=str(tmp_path / "x")), Split.train).read()
    assert without.src == ["a", "b", "c", "", "d", "e"]


def test_corpora_of_a_mixture_have_their_own_documents(tmp_path: Path) -> None:
    place = tables(tmp_path)["jsonl"]
    corpora: dict[str, dict[str, Any]] = {
        "talks": {"train": place, "document_column": "doc", "validation": place, "tag": "talk"},
        "web": {"train": place, "documents": False},
        "demo": {"name": "demo"},
    }
    cfg = MixtureData(corpora=corpora, context=2, context_short=0.0, scored=["talks"])
    found = {name: stream.read().src for name, stream in sources.training_streams(cfg).items()}
    assert found["talks"] == [f"<talk> {line}" for line in IN_CONTEXT]
    assert found["web"] == list("abcde")
    assert not any("<brk>" in line for line in found["demo"])
    assert sources.stream(cfg, Split.validation).read().src == IN_CONTEXT
    assert cfg.symbols == ["<talk>", "<brk>"]


def test_context_of_a_corpus_without_documents_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"data\.context=2 needs a corpus of documents, but data=demo has none"
    ):
        DemoData(context=2)
    with pytest.raises(UserError, match=r"data.context_target=true needs data.context"):
        config(context=0, context_target=True)
