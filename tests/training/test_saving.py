"""Copies of the state, which a thread writes; saves are tested with the trainer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nmt.training import auto_batch
from nmt.training.saving import SPARE, copied, has_room


def test_copies_share_memory_where_the_tensors_do() -> None:
    weight, step = torch.randn(3, 4), torch.tensor(7)
    copies = copied({"embedding": weight, "output": weight, "part": weight[1:], "step": step}, keep=True)
    assert copies["embedding"] is copies["output"]
    expected = weight.clone()
    weight.zero_()
    torch.testing.assert_close(copies["embedding"], expected, rtol=0, atol=0)
    torch.testing.assert_close(copies["part"], expected[1:], rtol=0, atol=0)
    assert copies["step"] == 7


def test_a_rank_that_writes_nothing_keeps_nothing() -> None:
    assert copied({"weight": torch.ones(2)}, keep=False) == {}


def test_a_copy_that_would_fill_the_memory_is_not_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable:     3000 kB\n")
    monkeypatch.setattr(auto_batch, "PROC", tmp_path)
    most = int((3000 << 10) / SPARE)
    assert [has_room(most), has_room(most + 1)] == [True, False]
    pinned = {"allocated_bytes.current": 5000, "active_bytes.current": 1000}  # of earlier copies
    monkeypatch.setattr(torch.cuda, "host_memory_stats", lambda: pinned)
    most = int(((3000 << 10) + 4000) / SPARE)
    assert [has_room(most), has_room(most + 1)] == [True, False]
    (tmp_path / "meminfo").unlink()
    assert has_room(most + 1)  # another system, which does not say
