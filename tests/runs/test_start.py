"""What a training takes over from another run; `tests/integration/test_start.py` goes through the command."""

from __future__ import annotations

import torch

from nmt.runs.start import _Rows


def test_what_an_optimizer_keeps_of_columns_has_no_rows_of_a_vocabulary() -> None:
    """Adafactor keeps (V, 1) and (1, D) of a table (V, D)."""
    rows = object.__new__(_Rows)
    rows._names, rows._src, rows._tgt = {"tgt_embedding.weight"}, None, [0, 1, 2, [0, 2], []]
    shapes = {(3, 4): (5, 4), (3, 1): (5, 1), (1, 4): (1, 4), (): (), (3,): (5,)}
    for old, new in shapes.items():
        assert rows.moved("tgt_embedding.weight", torch.ones(old)).shape == new
        assert rows.moved("encoder.0.weight", torch.ones(old)).shape == old
