"""What the command line says of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.config.sweeps import recorded_values, short_names, trial_names
from nmt.errors import UserError


def test_names_are_as_short_as_they_can_be() -> None:
    keys = ["model.dropout", "model.name", "data.name", "data.corpora.a.train", "data.corpora.b.train"]
    assert list(short_names(keys).values()) == ["dropout", "model.name", "data.name", "a.train", "b.train"]


def test_trials_keep_their_names_whatever_is_tried_beside_them() -> None:
    a, b, c = ({"init.run": path, "seed": "1"} for path in ("a/x", "b/x", "c/x"))
    first = trial_names([a], {})
    assert first == ["run-x+seed-1"]
    earlier = dict(zip(first, [a], strict=True))
    (new,) = trial_names([b], earlier)
    assert new.startswith("run-x+seed-1-")
    assert (
        trial_names([a, b], earlier) == trial_names([dict(reversed(a.items())), b], earlier) == [*first, new]
    )
    earlier[new] = b
    assert len({*trial_names([c, b, a], earlier), *earlier}) == 3
    assert trial_names([c, b, a], earlier)[1:] == [new, *first]


def test_the_values_of_a_sweep(tmp_path: Path) -> None:
    assert recorded_values(tmp_path) == {}
    rows = '[{"name": "a", "values": {"seed": "1"}}]'
    (tmp_path / "sweep.json").write_text(f'{{"version": 1, "trials": {rows}}}')
    assert recorded_values(tmp_path) == {"a": {"seed": "1"}}
    (tmp_path / "sweep.json").write_text(f'{{"version": 1, "trials": [], "others": {rows}}}')
    assert recorded_values(tmp_path) == {"a": {"seed": "1"}}
    (tmp_path / "sweep.json").write_text(f'{{"version": 2, "trials": {rows}}}')
    assert recorded_values(tmp_path) == {}
    for part in ('"trials": [{"name": "a"}]', '"trials": [], "others": [{"name": "a"}]'):
        (tmp_path / "sweep.json").write_text(f'{{"version": 1, {part}}}')
        with pytest.raises(UserError, match=r"sweep.json is damaged: values is missing; remove it"):
            recorded_values(tmp_path)
