"""Labelled text from files and datasets: what is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest

from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading import labels, sources
from nmt.data.reading.labels import HubLabelsData, LabelsData
from nmt.errors import UserError

ROWS = [
    {"a": "Fine, really.", "b": "Schön.", "label": "pos"},
    {"a": 'A "bad" day\tand night', "b": "Schlecht.", "label": "not sure"},
]
TEXTS = ["Fine, really.", 'A "bad" day and night']


def written(folder: Path, kind: str) -> str:
    path = folder / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    elif kind == "csv":
        path.write_text(
            'a,b,label\n"Fine, really.",Schön.,pos\n"A ""bad"" day\tand night",Schlecht., not sure \n'
        )
    else:
        path.write_text(
            'a\tb\tlabel\nFine, really.\tSchön.\tpos\nA "bad" day and night\tSchlecht.\tnot sure\n'
        )
    return str(path)


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl"])
def test_files_of_texts_and_of_pairs(tmp_path: Path, kind: str) -> None:
    cfg = LabelsData(train=written(tmp_path, kind), text_column="a")
    assert sources.stream(cfg, Split.train).read() == ParallelText(TEXTS, ["pos", "not sure"])
    assert cfg.symbols == []
    cfg = LabelsData(train=cfg.train, text_column="b", pair_column="a")
    expected = [f"Schön.\t{TEXTS[0]}", f"Schlecht.\t{TEXTS[1]}"]
    assert sources.stream(cfg, Split.train).read().src == expected
    assert cfg.symbols == ["<sep>"]


def test_columns_by_number_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("1\tgood film\n0\tbad film\n")
    cfg = LabelsData(train=str(tmp_path / "a.tsv"), text_column="2", label_column="1")
    assert sources.stream(cfg, Split.train).read() == ParallelText(["good film", "bad film"], ["1", "0"])


def test_numbers_are_labels_in_json(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x", "label": 3}\n{"text": "y", "label": true}\n')
    assert labels.stream(LabelsData(train=str(tmp_path / "a.jsonl")), Split.train).read().tgt == ["3", "true"]


def test_a_label_is_one_field_of_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x", "label": " a\\tb\\n"}\n')
    assert labels.stream(LabelsData(train=str(tmp_path / "a.jsonl")), Split.train).read().tgt == ["a b"]


def test_numbers_of_a_dataset_are_resolved(tmp_path: Path) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    rows = {"text": ["good", "bad", "odd"], "label": [1, 0, -1]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "train.parquet")
    cfg = HubLabelsData(path=str(tmp_path), train_split="train[:2]", validation_split="train")
    assert sources.stream(cfg, Split.train).read() == ParallelText(["good", "bad"], ["pos", "neg"])
    with pytest.raises(UserError, match=r"row 3 of the split has no label in column 'label', but -1;"):
        sources.load(cfg, Split.validation)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.tsv",
            "txt\tlabel\nx\ty\n",
            r"^data\.text_column=text: .*a\.tsv has no column 'text', only txt, label",
        ),
        ("a.tsv", "text\tlabel\nx\t \n", r"^data\.train=.*: text 1 has no label in column 'label'; leave"),
        ("a.csv", 'text,label\n"x\n', r"^data\.train: .*a\.csv:2: not CSV: unexpected end of data"),
        (
            "a.txt",
            "x\n",
            r"^data\.train=.*a\.txt must be a \.tsv, \.csv, \.jsonl or \.tmx file, .* text, label$",
        ),
    ],
)
def test_what_is_no_labelled_text_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        sources.stream(LabelsData(train=str(tmp_path / name)), Split.train).read()
