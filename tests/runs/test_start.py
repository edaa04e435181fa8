"""What a training takes over from another run; `tests/integration/test_start.py` goes through the command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.runs.start import _Rows, opened_start
from nmt.verbs import VERBS
from tests.runs.untrained import untrained


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["data.src=fr", "data.tgt=en"],
            "warning: init=RUN translates en to fr, but this training fr to en; swap data.src and data.tgt "
            "unless that is meant\n",
        ),
        (["data.src=fr", "data.tgt=en", "init.weights=[]"], ""),
        (["data.src=en", "data.tgt=fr"], ""),
    ],
)
def test_a_start_in_the_other_direction_is_warned_of(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = untrained(tmp_path / "run")
    (composed,) = compose(VERBS["train"], ["data=toy", f"init={run}", *arguments])
    assert opened_start(composed.to_config(TrainConfig)) is not None
    assert capsys.readouterr().err == told.replace("RUN", str(run))


def test_what_an_optimizer_keeps_of_columns_has_no_rows_of_a_vocabulary() -> None:
    """Adafactor keeps (V, 1) and (1, D) of a table (V, D)."""
    rows = object.__new__(_Rows)
    rows._names, rows._src, rows._tgt = {"tgt_embedding.weight"}, None, [0, 1, 2, [0, 2], []]
    shapes = {(3, 4): (5, 4), (3, 1): (5, 1), (1, 4): (1, 4), (): (), (3,): (5,)}
    for old, new in shapes.items():
        assert rows.moved("tgt_embedding.weight", torch.ones(old)).shape == new
        assert rows.moved("encoder.0.weight", torch.ones(old)).shape == old
