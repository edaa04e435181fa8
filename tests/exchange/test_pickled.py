"""Weights in pickled files of torch, which are read as data."""

from __future__ import annotations

import os
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.exchange.pickled import Refused, read_weights

FORMATS: dict[str, dict[str, Any]] = {
    "archive": {},
    "before torch 1.6": {"_use_new_zipfile_serialization": False},
    "protocol 4": {"pickle_protocol": 4},
}
formats = pytest.mark.parametrize("how", FORMATS.values(), ids=FORMATS)


class Command:
    """What would run a command if it was unpickled."""

    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


def weights() -> dict[str, Tensor]:
    state = torch.nn.Linear(3, 5).state_dict()  # which has version numbers beside the tensors
    state["tied"] = state["weight"]
    state["transposed"] = torch.randn(4, 6).T[1:]
    state["half"] = torch.randn(3).half()
    state["ids"] = torch.arange(4)
    state["learns"] = torch.nn.Parameter(torch.randn(2))
    state["empty"], state["scalar"] = torch.zeros(0, 4), torch.tensor(3.0)
    return state


@formats
def test_tensors_are_those_that_were_saved(tmp_path: Path, how: dict[str, Any]) -> None:
    saved = weights()
    torch.save(saved, tmp_path / "a.bin", **how)
    found = read_weights(tmp_path / "a.bin")
    assert list(found) == list(saved)
    assert all(torch.equal(found[name], saved[name]) for name in saved)
    assert [x.dtype for x in found.values()] == [x.dtype for x in saved.values()]
    assert found["tied"].data_ptr() == found["weight"].data_ptr()


@formats
def test_a_command_is_refused_and_not_run(tmp_path: Path, how: dict[str, Any]) -> None:
    torch.save(weights() | {"x": Command(tmp_path / "canary")}, tmp_path / "a.bin", **how)
    with pytest.raises(Refused, match=r"asks for 'posix\.mkdir', which is not part of reading weights"):
        read_weights(tmp_path / "a.bin")
    assert not (tmp_path / "canary").exists()
    torch.save(torch.nn.Linear(2, 2), tmp_path / "b.bin", **how)
    with pytest.raises(Refused, match=r"asks for 'torch\.nn\.modules\.linear\.Linear'"):
        read_weights(tmp_path / "b.bin")


@pytest.mark.parametrize("content", [[1], {}, {"a": 1}, {"a": {"b": torch.zeros(2)}}], ids=str)
def test_anything_but_named_tensors_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "a.bin")
    with pytest.raises(Refused, match="holds "):
        read_weights(tmp_path / "a.bin")


ORDERED = b"\x80\x02ccollections\nOrderedDict\n"
SHARED = b"".join(b"q%ch%c\x86" % (i, i) for i in range(40))  # x = (x, x), 40 times
BOMBS = {
    "deep key": ORDERED + b")" + b"\x85" * 1_000_000 + b"N\x86\x85\x85R.",
    "shared key": b"\x80\x02})" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(40)) + b"Ns.",
    "shared storage": b"\x80\x02X\x07\x00\x00\x00storage)"
    + b"".join(b"q%ch%c\x86" % (i, i) for i in range(40))
    + b"NNN(tQ.",
    "many marks": b"\x80\x02" + b"N" * 300_000 + b"(t" * 300_000 + b".",
    "copies": ORDERED + b"q\x01)Rq\x02" + b"h\x01h\x02\x85R" * 10_000 + b".",
    "number": b"\x80\x02\x8b\xff\xff\xff\x7f.",
}


@pytest.mark.parametrize("content", BOMBS.values(), ids=BOMBS)
def test_a_file_that_asks_for_endless_work_is_refused(tmp_path: Path, content: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "a.bin", "w") as archive:
        archive.writestr("a/data.pkl", content)
    with pytest.raises(Refused):
        read_weights(tmp_path / "a.bin")


def test_what_would_be_read_wrongly_is_refused(tmp_path: Path) -> None:
    for x, told in (
        (torch.zeros(1).expand(7), "more numbers than are stored"),
        (torch._neg_view(torch.ones(3)), "further marks"),
    ):
        torch.save({"x": x}, tmp_path / "a.bin")
        with pytest.raises(Refused, match=told):
            read_weights(tmp_path / "a.bin")


@formats
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, how: dict[str, Any]) -> None:
    torch.save(weights(), tmp_path / "a.bin", **how)
    whole, chance, refused = (tmp_path / "a.bin").read_bytes(), random.Random(1), 0
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 3))):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        cut = chance.randrange(len(damaged)) if chance.random() < 0.2 else None
        (tmp_path / "b.bin").write_bytes(damaged[:cut])
        try:
            read_weights(tmp_path / "b.bin")
        except Refused:
            refused += 1
    assert refused > 20
