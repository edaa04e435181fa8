"""Datasets in the layouts of the Hugging Face hub, from folders; and what is told when one cannot be read."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading import hub, sources
from nmt.data.reading.hub import HubData
from nmt.errors import UserError

SHARED = Path(__file__).resolve().parents[3] / "../shared/data"
PAIR = {"en": "A dog.", "de": "Ein Hund."}


def needs(folder: str) -> Path:
    path = SHARED / folder
    if not path.is_dir():
        pytest.skip(f"{path} is not there")
    return path


def write_jsonl(path: Path, *records: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def write_parquet(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(records).to_parquet(path)


def error_of(cfg: HubData, split: Split = Split.train) -> str:
    with pytest.raises(UserError) as caught:
        hub.stream(cfg, split).read()
    return str(caught.value)


def test_flat_columns(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", PAIR, {"en": "Two\r\nlines\u2028x", "de": "Zwei\nZeilen\u0000"})
    text = hub.stream(HubData(path=str(tmp_path)), Split.train).read()
    assert text == ParallelText(["A dog.", "Two lines\u2028x"], ["Ein Hund.", "Zwei Zeilen "])


def test_nested_columns_in_parquet(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data/test-00000-of-00001.parquet", [{"id": 1, "translation": PAIR}] * 3)
    text = hub.stream(HubData(path=str(tmp_path), src="de", tgt="en"), Split.test).read()
    assert text == ParallelText(["Ein Hund."] * 3, ["A dog."] * 3)


def test_columns_may_be_named(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", {"texts": {"deep": {"source": "a"}}, "target": "b"})
    cfg = HubData(path=str(tmp_path), src_column="texts.deep.source", tgt_column="target")
    assert hub.stream(cfg, Split.train).read() == ParallelText(["a"], ["b"])


def test_quotation_marks_in_tsv_join_no_lines(tmp_path: Path) -> None:
    """A quotation over two sentences would make one pair of them, as it does in CSV."""
    (tmp_path / "train.tsv").write_text('en\tde\n"One.\tEins.\nTwo."\tZwei.\n', encoding="utf-8")
    text = hub.stream(HubData(path=str(tmp_path)), Split.train).read()
    assert text == ParallelText(['"One.', 'Two."'], ["Eins.", "Zwei."])


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (
            "a\tb\tc\nd\te\tf\n",
            "2: the number of columns is 3, but that of the header is 2; mend the line or",
        ),
        ("a\tb\nonly one\n", "3: the number of columns is 1, but that of the header is 2"),
        ("a\tb\n\na dog\rruns\tb\n", "4: a carriage return inside of a line would end it"),
    ],
)
def test_rows_of_tsv_are_as_wide_as_the_header(tmp_path: Path, rows: str, told: str) -> None:
    """The library would take the first column for an index, or fill the last, without a word."""
    (tmp_path / "train.tsv").write_bytes(f"en\tde\n{rows}".encode())
    assert f"train.tsv:{told}" in error_of(HubData(path=str(tmp_path)))
    (tmp_path / "train.tsv").unlink()
    (tmp_path / "train.tsv.gz").write_bytes(gzip.compress(b"en\tde\r\na\tb\r\n\r\nc\td\r\n"))
    assert hub.stream(HubData(path=str(tmp_path)), Split.train).read() == ParallelText(["a", "c"], ["b", "d"])


@pytest.mark.parametrize(
    ("name", "text", "blank"),
    [
        ("train.tsv", "en\tde\tdoc\na\tA\t1\n\nb\tB\t2\n", 3),
        ("train.csv", 'en,de,doc\na,"A\n\nA",1\n\nb,B,2\n', 5),
        ("train.csv", "en,de,doc\na,A,1\n  \nb,B,2\n", 3),
        ("train.jsonl", '{"en": "a", "de": "A", "doc": 1}\n\n{"en": "b", "de": "B", "doc": 2}\n', 2),
        ("train.json", '{"en": "a", "de": "A", "doc": 1}\n\n{"en": "b", "de": "B", "doc": 2}\n', 2),
    ],
)
def test_a_blank_line_that_would_part_documents_is_refused(
    tmp_path: Path, name: str, text: str, blank: int
) -> None:
    """The library leaves it out, so that context would cross it; one inside of quotes is text."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert f"{name}:{blank}: a blank line ends no document here; set data.document_column" in error_of(
        HubData(path=str(tmp_path), context=1)
    )
    cfg = HubData(path=str(tmp_path), context=1, context_short=0.0, document_column="doc")
    assert sources.stream(cfg, Split.train).read().src == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("train.tsv", "en\tde\na\tA\n\t\nb\tB\n", ["a", "b"]),  # a row of empty cells ends a document
        ("train.csv", "en,de\na,A\n,\nb,B\n", ["a", "b"]),
        ("train.csv", f"en,de\na,A\n{'x ' * 100_000},c\n", ["a", "x x x x x "]),
        ("train.csv", "en,de\ra,A\rb,B\r", ["a", "a <brk> b"]),
        ("train.json", '[\n{"en": "a", "de": "A"},\n\n{"en": "b", "de": "B"}\n]\n', ["a", "a <brk> b"]),
    ],
)
def test_what_the_library_reads_whole_is_read(tmp_path: Path, name: str, text: str, read: list[str]) -> None:
    (tmp_path / name).write_bytes(text.encode())
    cfg = HubData(path=str(tmp_path), context=1, context_short=0.0)
    found = sources.stream(cfg, Split.train).read().src
    assert [one[:10] for one in found] == [one[:10] for one in read]


def test_words_that_mean_nothing_to_other_programs_are_text(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('en,de\nzero,null\nN/A,"nan, None"\n', encoding="utf-8")
    text = hub.stream(HubData(path=str(tmp_path)), Split.train).read()
    assert text == ParallelText(["zero", "N/A"], ["null", "nan, None"])


def test_a_folder_is_read_anew_although_its_times_did_not_change(tmp_path: Path) -> None:
    cfg = HubData(path=str(tmp_path))
    path = write_jsonl(tmp_path / "train.jsonl", PAIR)
    stamp = path.stat().st_mtime_ns
    assert hub.stream(cfg, Split.train).read().tgt == ["Ein Hund."]
    write_jsonl(path, {"en": "A dog.", "de": "Ein Huhn."})
    os.utime(path, ns=(stamp, stamp))
    assert hub.stream(cfg, Split.train).read().tgt == ["Ein Huhn."]


def rows(label: str, number: int) -> datasets.Dataset:
    return datasets.Dataset.from_list([{"en": f"{label} {i}", "de": f"{label} {i}"} for i in range(number)])


def test_what_save_to_disk_wrote_is_its_splits_without_the_caches_beside_them(
    tmp_path: Path,
) -> None:
    saved = {"train": rows("train", 3), "test_2016": rows("2016", 2), "test_2017": rows("2017", 2)}
    datasets.DatasetDict(saved).save_to_disk(tmp_path / "all")
    rows("alone", 2).save_to_disk(tmp_path / "alone")
    datasets.load_from_disk(tmp_path / "all")["train"].map(lambda row: {"en": row["en"].upper()})
    assert [*(tmp_path / "all" / "train").glob("cache-*.arrow")]
    cfg = HubData(path=str(tmp_path / "all"), train_split="train[1:]", test_split="test_2016")
    assert hub.stream(cfg, Split.train).read().src == ["train 1", "train 2"]
    assert hub.stream(cfg, Split.test).read().src == ["2016 0", "2016 1"]
    cfg.test_split = "test"
    assert "has no split 'test', only train, test_2016, test_2017" in error_of(cfg, Split.test)
    alone = HubData(path=str(tmp_path / "alone"))
    assert hub.stream(alone, Split.train).read().src == ["alone 0", "alone 1"]
    (tmp_path / "alone/state.json").write_text('{"_split": null}')
    assert "alone is no folder as save_to_disk writes it (KeyError('_data_files'))" in error_of(alone)


def test_splits_have_any_name_and_may_be_sliced(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", *({"en": f"a{i}", "de": f"b{i}"} for i in range(10)))
    write_jsonl(tmp_path / "test.jsonl", PAIR)
    cfg = HubData(path=str(tmp_path), train_split="train[2:4]+test", validation_split="train[90%:]")
    assert hub.stream(cfg, Split.train).read().src == ["a2", "a3", "A dog."]
    assert hub.stream(cfg, Split.validation).read().src == ["a9"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_stream_holds_what_a_download_does(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "CHUNK_PAIRS", 4)
    records = [{"translation": {"en": f"a{i}\nb", "de": f"b{i}"}} for i in range(10)]
    if kind == "jsonl":
        write_jsonl(tmp_path / "train.jsonl", *records)
    else:
        write_parquet(tmp_path / "data/train-00000-of-00001.parquet", records)
    whole = hub.stream(HubData(path=str(tmp_path)), Split.train)
    stream = hub.stream(HubData(path=str(tmp_path), streaming=True), Split.train)
    assert [len(chunk) for chunk in stream.chunks()] == [4, 4, 2]
    assert stream.read() == stream.read() == whole.read()
    assert stream.stamp() == whole.stamp()
    sliced = HubData(path=str(tmp_path), streaming=True, train_split="train[:3]")
    assert "data.train_split=train[:3]" in error_of(sliced)


def test_a_streamed_dataset_is_copied_for_no_split(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        write_jsonl(tmp_path / f"{split}.jsonl", *[PAIR] * 3)
    cfg = HubData(path=str(tmp_path), streaming=True)
    streams = [hub.stream(cfg, split) for split in (Split.validation, Split.train)]
    assert [stream.read().tgt for stream in streams] == [["Ein Hund."] * 3] * 2
    (opened,) = [one for one in hub._OPENED.values() if one._cfg.where == str(tmp_path)]
    assert not Path(opened._builder.cache_dir).exists()
    cfg.validation_split = "validation[:2]"  # which the library reads from a copy alone
    assert len(hub.stream(cfg, Split.validation).read()) == 2


@pytest.fixture
def two_configs(tmp_path: Path) -> Path:
    """Return a dataset that declares its configurations, as wmt/* does: languages in one order only."""
    for config in ("de-en", "fr-en"):
        write_parquet(tmp_path / config / "test-00000.parquet", [{"translation": {**PAIR, "fr": config}}])
    configs = "".join(
        f"- config_name: {config}\n  data_files:\n  - split: test\n    path: {config}/test-*\n"
        for config in ("de-en", "fr-en")
    )
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{configs}---\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("src", "tgt"), [("en", "de"), ("de", "en")])
def test_a_configuration_is_found_in_either_direction(two_configs: Path, src: str, tgt: str) -> None:
    cfg = HubData(path=str(two_configs), src=src, tgt=tgt, config="{src}-{tgt}")
    assert hub.stream(cfg, Split.test).read() == ParallelText([PAIR[src]], [PAIR[tgt]])
    assert hub.stream(HubData(path=str(two_configs), tgt="fr", config="fr-en"), Split.test).read().tgt == [
        "fr-en"
    ]


def test_two_pairs_of_a_dataset_are_two_texts_although_their_columns_are_called_alike(tmp_path: Path) -> None:
    for tgt, text in (("de", "Hund"), ("fr", "chien")):
        write_jsonl(tmp_path / f"{tgt}-en" / "train.jsonl", {"source": "dog", "target": text})
    names: dict[str, Any] = {"config": "{tgt}-{src}", "src_column": "source", "tgt_column": "target"}
    german, french = (
        hub.stream(HubData(path=str(tmp_path), tgt=tgt, **names), Split.train) for tgt in ("de", "fr")
    )
    assert (german.read().tgt, french.read().tgt) == (["Hund"], ["chien"])
    assert german.stamp() != french.stamp()


def test_a_configuration_must_exist(two_configs: Path) -> None:
    where = f"{two_configs} has de-en, fr-en"
    cfg = HubData(path=str(two_configs), config="de-eng")
    assert error_of(cfg) == f"data.config=de-eng is no configuration; {where}; did you mean 'de-en'?"
    assert error_of(HubData(path=str(two_configs))) == f"data.config must be set; {where}"
    card = two_configs / "README.md"
    card.write_text(card.read_text().replace("config_name: de-en\n", "config_name: de-en\n  default: true\n"))
    assert error_of(cfg) == f"data.config=de-eng is no configuration; {where}; did you mean 'de-en'?"
    assert len(hub.stream(HubData(path=str(two_configs)), Split.test).read()) == 1


@pytest.mark.parametrize("parent", ["", "data/"])
def test_a_configuration_may_be_a_folder(tmp_path: Path, parent: str) -> None:
    """The layout of refs/convert/parquet, where nothing declares the configurations."""
    for config in (f"{parent}x1-en-de", f"{parent}x1-de-en"):
        write_parquet(
            tmp_path / config / "train" / "0000.parquet", [{"translation": {"en": config[-8:], "de": "b"}}]
        )
    cfg = HubData(path=str(tmp_path), config=f"{parent}x1-{{src}}-{{tgt}}")
    assert hub.stream(cfg, Split.train).read() == ParallelText(["x1-en-de"], ["b"])
    cfg = HubData(path=str(tmp_path), tgt="fr", tgt_column="de", config="{src}-{tgt}")
    assert error_of(cfg).startswith(
        f"data.config={{src}}-{{tgt}} is no configuration; {tmp_path} has {parent}x1-de-en, {parent}x1-en-de"
    )


@pytest.mark.parametrize("name", ["train.jsonl", "data/train.jsonl", "train/0000.jsonl"])
def test_a_folder_without_configurations_ignores_the_key(tmp_path: Path, name: str) -> None:
    write_jsonl(tmp_path / name, {"translation": PAIR})
    assert len(hub.stream(HubData(path=str(tmp_path), config="{src}-{tgt}"), Split.train).read()) == 1


@pytest.mark.fault(31)
def test_a_missing_split_lists_those_there_are(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", PAIR)
    write_jsonl(tmp_path / "val.jsonl", PAIR)
    message = error_of(HubData(path=str(tmp_path), validation_split="vaildation"), Split.validation)
    assert message == (
        f"data.validation_split=vaildation: {tmp_path} has no split 'vaildation', only train, validation; "
        "did you mean 'validation'?; null means that there is none"
    )
    assert "data.train_split=train[1:: Unrecognized instruction" in error_of(
        HubData(path=str(tmp_path), train_split="train[1:")
    )


def test_a_missing_column_lists_those_there_are(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", {"id": "1", "translation": PAIR})
    assert error_of(HubData(path=str(tmp_path), tgt="fr")) == (
        f"data.tgt=fr: {tmp_path} has no column 'fr', only id, translation.en, translation.de; "
        "set data.tgt or data.tgt_column"
    )


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"en": None, "de": "b"}, "row 2 of the split has no text in column 'en'"),
        ({"translation": None}, "row 2 of the split has no text in column 'de'"),
    ],
)
def test_a_missing_text_names_its_row(tmp_path: Path, record: dict[str, Any], expected: str) -> None:
    first = PAIR if "en" in record else {"translation": {**PAIR, "en": "x"}}
    write_jsonl(tmp_path / "train.jsonl", first, record)
    src, tgt = ("en", "de") if "en" in record else ("de", "en")
    assert expected in error_of(HubData(path=str(tmp_path), src=src, tgt=tgt))


def test_a_column_must_hold_text(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", {"en": 3, "de": "b"})
    assert "column 'en' must hold text, but holds int64" in error_of(HubData(path=str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nothing", "must be a folder with a dataset, but is not there"),
        ("file.jsonl", "must be a folder with a dataset, but is a file; data=files reads files"),
        ("empty", "doesn't contain any data files"),
        ("broken", "cannot be read: JSON parse error"),
    ],
)
def test_a_folder_that_holds_no_dataset(tmp_path: Path, name: str, expected: str) -> None:
    write_jsonl(tmp_path / "file.jsonl", PAIR)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "train.jsonl").write_text('{"en": "a"\n', encoding="utf-8")
    message = error_of(HubData(path=str(tmp_path / name)))
    assert message.startswith(f"data.path={tmp_path / name}")
    assert expected in message


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "validation.jsonl", PAIR)
    (tmp_path / "train.jsonl").touch()
    message = error_of(HubData(path=str(tmp_path)))
    assert message.startswith(f"data.path={tmp_path}")
    assert "empty" in message


@pytest.mark.parametrize("streaming", [False, True])
def test_files_that_cannot_be_read_together_or_to_their_end(tmp_path: Path, streaming: bool) -> None:
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut/train.jsonl.gz").write_bytes(gzip.compress(b'{"en": "a", "de": "b"}\n' * 1000)[:-20])
    assert "cut cannot be read: Compressed file ended before" in error_of(
        HubData(path=str(tmp_path / "cut"), streaming=streaming)
    )
    write_jsonl(tmp_path / "both/validation.jsonl", PAIR)
    (tmp_path / "both/train.tsv").write_text("en\tde\na\tb\n")
    assert "both cannot be read: Couldn't infer the same data file format for all splits" in error_of(
        HubData(path=str(tmp_path / "both"), streaming=streaming)
    )


def test_text_must_be_utf8(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes('{"en": "a", "de": "lä"}\n'.encode("latin-1"))
    message = error_of(HubData(path=str(tmp_path)))
    assert message.startswith(
        f"data.path={tmp_path}: a text is not UTF-8 ('utf-8' codec can't decode byte 0xe4"
    )


def test_scripts_are_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "corpus.py").write_text("raise SystemExit('ran')\n", encoding="utf-8")
    message = error_of(HubData(path=str(folder)))
    assert "is made by a script, and scripts are not run; data.revision=refs/convert/parquet may" in message


def test_a_dataset_must_be_named() -> None:
    assert error_of(HubData()) == (
        "data.dataset is not set, but there is no text without it; set it to a dataset of the hub "
        "(owner/name), or data.path to a local folder"
    )


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Set a hub address at which nothing listens, and an empty cache."""
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub, "_ASKED", {})
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path))
    yield
    assert not datasets.config.HF_HUB_OFFLINE


@pytest.mark.usefixtures("no_hub")
def test_an_unreachable_hub_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "time", SimpleNamespace(monotonic=lambda: 60.0))
    start = time.monotonic()
    message = error_of(HubData(dataset="owner/corpus"))
    assert time.monotonic() - start < hub.PROBE_SECONDS + 5
    monkeypatch.setattr("urllib.request.urlopen", None)
    assert error_of(HubData(dataset="owner/corpus", config="other"))  # without asking again
    monkeypatch.setattr(hub, "time", SimpleNamespace(monotonic=lambda: 121.0))
    with pytest.raises(TypeError):
        error_of(HubData(dataset="owner/corpus", config="third"))
    assert message == (
        "data.dataset=owner/corpus: the hub cannot be reached, and no copy is cached; "
        "data.path=FOLDER reads a dataset from disk, data=files plain files"
    )


@pytest.mark.network
def test_the_hub_itself() -> None:
    text = hub.stream(HubData(dataset="bentrevett/multi30k"), Split.test).read()
    assert len(text) == 1000
    assert text.tgt[0].startswith("Ein Mann mit einem orangefarbenen Hut")


@pytest.mark.network
def test_an_unknown_dataset_of_the_hub() -> None:
    message = error_of(HubData(dataset="bentrevett/no-such-corpus"))
    assert "doesn't exist on the Hub or cannot be accessed; check the name" in message


def test_multi30k_as_the_hub_has_it() -> None:
    cfg = HubData(path=str(needs("multi30k")))
    sizes = [len(hub.stream(cfg, split).read()) for split in Split]
    assert sizes == [29000, 1014, 1000]
    assert "only en, de" in error_of(HubData(path=cfg.path, tgt="fr"))


def test_multi30k_in_french_by_config_alone() -> None:
    text = hub.stream(HubData(path=str(needs("multi30k_fr")), tgt="fr"), Split.validation).read()
    assert text.tgt[0] == "Un groupe d'hommes chargent du coton dans un camion"


def test_wmt_is_nested() -> None:
    cfg = HubData(path=str(needs("wmt22")), config="{src}-{tgt}")
    assert len(hub.stream(cfg, Split.test).read()) == 2037
    assert "has no split 'train', only validation, test" in error_of(cfg)
