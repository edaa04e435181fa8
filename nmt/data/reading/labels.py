"""Labelled text, to train and to score a classifier: from files, or from a dataset.

A pair is the text and its label. Two texts that have one label together are one source, with a TAB between;
a tokenizer of labelled text reads `SEPARATOR` there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nmt.data.configs import SEPARATOR, TableConfig
from nmt.data.parallel_text import PairStream, ParallelText, Split
from nmt.data.reading import files, hub
from nmt.data.reading.hub import DatasetConfig
from nmt.errors import UserError


@dataclass
class LabelColumnsConfig(TableConfig):
    """The names of the columns of labelled text."""

    src: str = "text"
    """A word that names the texts; it ends the names of their files in the run."""
    tgt: str = "label"
    """A word that names the labels."""
    text_column: str = "text"
    """Name of the column of the text: that of the header (without a header the number of the column, from 1)
    or the JSON key (`a.b` for a nested key)."""
    pair_column: str | None = None
    """Name of the column of a second text, for labels of pairs of texts; null: there is none."""
    label_column: str = "label"
    """Name of the column of the label."""

    @property
    def has_labels(self) -> bool:
        """Always True."""
        return True

    @property
    def marks(self) -> list[str]:
        """With pairs, the piece between their texts, too."""
        return [*super().marks, *([SEPARATOR] if self.pair_column is not None else [])]

    @property
    def column_fields(self) -> tuple[str, ...]:
        """The fields for names, or numbers, of columns."""
        pair = () if self.pair_column is None else ("pair_column",)
        return ("text_column", *pair, "label_column")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the texts, and that of the label."""
        return tuple(getattr(self, field) for field in self.column_fields)

    @property
    def numbered(self) -> tuple[str, ...]:
        """The column of the label."""
        return (self.label_column,)

    def key_of(self, column: str) -> tuple[str, str]:
        """Return the field that names a column, twice."""
        field = self.column_fields[self.columns.index(column)]
        return field, f"{self.key_prefix}.{field}"

    def pairs_of(self, columns: Sequence[list[str]]) -> ParallelText:
        """Return each text, or two with a TAB between, with its label, without white space around."""
        *texts, labels = columns
        plain = [[text.replace("\t", " ") for text in side] for side in texts]
        sources = ["\t".join(both) for both in zip(*plain, strict=True)]
        return ParallelText(sources, [label.replace("\t", " ").strip() for label in labels])


@dataclass
class LabelsData(LabelColumnsConfig):
    """Labelled text from .tsv, .csv, .jsonl or .tmx files, each also as .gz, .bz2, .xz or .zst."""

    name: str = "labels"
    train: str | None = None
    """Path of the texts to train on."""
    validation: str | None = None
    """Path of the texts scored during training."""
    test: str | None = None
    """Path of the texts scored at the end."""


@dataclass
class HubLabelsData(DatasetConfig, LabelColumnsConfig):
    """Labelled text from a dataset on the Hugging Face hub, or a local folder of the same layout."""

    name: str = "hub_labels"


def stream(cfg: LabelsData, split: Split) -> PairStream:
    """Return one split of labelled text, unfiltered; `cfg.place(split)` must be set."""
    table = files.stream_table(cfg, split)
    if table is None:
        raise UserError(
            f"{cfg.key(split)}={cfg.place(split)} must be a .tsv, .csv, .jsonl or .tmx file, also "
            f"compressed, with the columns {', '.join(cfg.columns)}"
        )
    return _labelled(table, cfg, split)


def stream_dataset(cfg: HubLabelsData, split: Split) -> PairStream:
    """Return one split of a labelled dataset, unfiltered; `cfg.place(split)` must be set."""
    return _labelled(hub.stream(cfg, split), cfg, split)


def _labelled(table: PairStream, cfg: LabelColumnsConfig, split: Split) -> PairStream:
    """Return a stream that refuses rows without a label."""

    def chunks() -> Iterator[ParallelText]:
        before = 0
        for chunk in table.chunks():
            if "" in chunk.tgt:
                row = before + chunk.tgt.index("") + 1
                raise UserError(
                    f"{cfg.key(split)}={cfg.place(split)}: text {row:,} has no label in column "
                    f"{cfg.label_column!r}; leave such rows out"
                )
            before += len(chunk)
            yield chunk

    return table._replace(chunks=chunks)
