"""What the command line says of a sweep."""

from __future__ import annotations

from nmt.config.sweeps import short_names


def test_names_are_as_short_as_they_can_be() -> None:
    keys = ["model.dropout", "model.name", "data.name", "data.corpora.a.train", "data.corpora.b.train"]
    assert list(short_names(keys).values()) == ["dropout", "model.name", "data.name", "a.train", "b.train"]
