"""Checkpoints: exact round trips, a valid store after a crash at any line, damage that is always noticed."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import random
import re
import resource
import shutil
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import nmt
from nmt.errors import TrainingStopped, UserError
from nmt.training.checkpoint import Checkpoint, CheckpointStore, require_match
from nmt.training.train_state import TrainState


def make(step: int, fill: float | None = None) -> Checkpoint:
    """Return a small checkpoint whose content depends on `fill`, or on its step."""
    value = float(step) if fill is None else fill
    model = {"weight": torch.full((2, 3), value), "count": torch.tensor(step)}
    state = {"fill": value, "epoch": [1, 2], **TrainState(step=step).to_store()}
    return Checkpoint(step, model, {"0.exp_avg": torch.full((2, 3), value / 2)}, state)


def silent(message: str) -> None:
    raise AssertionError(f"unexpected warning: {message}")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


@pytest.fixture
def three(store: CheckpointStore) -> CheckpointStore:
    for step in (10, 20, 30):
        store.save(make(step))
    return store


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.directory.iterdir())


def seal(folder: Path) -> None:
    """Write a manifest that fits the files as they are now."""
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    for name, entry in manifest["files"].items():
        data = (folder / name).read_bytes()
        entry.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))


# Round trip


def test_layout(three: CheckpointStore) -> None:
    assert names(three) == ["step_00000010", "step_00000020", "step_00000030"]
    files = sorted(path.name for path in three.folder(10).iterdir())
    assert files == ["MANIFEST.json", "model.safetensors", "optimizer.safetensors", "state.json"]
    assert three.steps() == [10, 20, 30]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
def test_round_trip_is_bit_identical(store: CheckpointStore, dtype: torch.dtype) -> None:
    bits = torch.randint(0, 256, (64,), dtype=torch.uint8)
    tensor = bits.bool() if dtype is torch.bool else bits.view(dtype)  # any bits: NaN, infinities, subnormals
    state = {"epoch": 3, "best": 0.1 + 0.2, "text": "ü \u2028 \x1b", "none": None, "list": [1, 2.5, True]}
    store.save(Checkpoint(7, {"t": tensor, "scalar": tensor[0], "empty": tensor[:0]}, {"m": tensor}, state))
    loaded = store.load(7)
    assert (loaded.step, loaded.state) == (7, state)
    assert loaded.model.keys() == {"t", "scalar", "empty"}
    for saved, read in [
        (tensor, loaded.model["t"]),
        (tensor[0], loaded.model["scalar"]),
        (tensor, loaded.optimizer["m"]),
    ]:
        assert read.dtype is dtype
        assert read.shape == saved.shape
        assert torch.equal(read.reshape(-1).view(torch.uint8), saved.reshape(-1).view(torch.uint8))


def test_tied_tensors_are_stored_once_and_restored_under_every_name(store: CheckpointStore) -> None:
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50, bias=False), nn.Linear(8, 50, bias=False))
    model[1].weight = model[2].weight = model[0].weight
    store.save(Checkpoint(1, model.state_dict(), {}, {}))
    assert (store.folder(1) / "model.safetensors").stat().st_size < 2 * 50 * 8 * 4
    loaded = store.load_model(1)
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())
    assert loaded["0.weight"].data_ptr() == loaded["2.weight"].data_ptr()
    model.load_state_dict(loaded)


def test_views_that_overlap_are_stored_as_they_look(store: CheckpointStore) -> None:
    base = torch.arange(12.0).view(3, 4)
    views = {"base": base, "rows": base[1:], "columns": base[:, :2], "rotate": base.t()}
    store.save(Checkpoint(1, views, {}, {}))
    loaded = store.load_model(1)
    assert all(torch.equal(loaded[name], view) for name, view in views.items())
    store.save(Checkpoint(2, loaded, {}, {}))  # what was read can be written again
    assert all(torch.equal(store.load_model(2)[name], view) for name, view in views.items())


def test_equal_content_gives_equal_files(three: CheckpointStore) -> None:
    before = {path.name: path.read_bytes() for path in three.folder(20).iterdir()}
    three.save(three.load(20))
    assert {path.name: path.read_bytes() for path in three.folder(20).iterdir()} == before
    assert names(three) == ["step_00000010", "step_00000020", "step_00000030"]


def test_same_step_is_replaced(three: CheckpointStore) -> None:
    three.save(make(20, fill=-1.0))
    assert three.load(20).state["fill"] == -1.0
    assert three.steps() == [10, 20, 30]


def test_files_follow_the_umask(store: CheckpointStore) -> None:
    before = os.umask(0o022)
    try:
        store.save(make(1))
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in store.folder(1).iterdir()} == {0o644}


# Crashes


CALLS = {"open", "write", "flush", "close", "__exit__", "fsync"} | {"mkdir", "rename", "unlink", "rmdir"}
"""Functions of io and os that change what is on a disk."""


def run_until_call(action: Callable[[], None], nth: int, calls: Collection[str] = CALLS) -> bool:
    """Run `action` in a child that dies, as from SIGKILL, before its `nth` call; False when it has fewer.

    Counted are functions of C named in `calls`. What Python has buffered is lost: files stay half written.
    """
    count = 0

    def count_calls(frame: FrameType, event: str, called: Any) -> None:
        nonlocal count
        if event == "c_call" and called.__name__ in calls:
            count += 1
            if count == nth:
                os._exit(9)

    child = os.fork()
    if child == 0:
        code = 1
        try:
            threading.setprofile(count_calls)
            sys.setprofile(count_calls)
            action()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9), "the action itself failed"
    return code == 9


def crash_everywhere(
    root: Path, action: Callable[[CheckpointStore], None], check: Callable[[CheckpointStore], None]
) -> int:
    """Kill `action` before each of its calls, on a fresh store of steps 10 and 20; `check` what is left."""
    original = CheckpointStore(root / "original")
    original.save(make(10))
    original.save(make(20))
    nth = 0
    killed = True
    while killed:
        nth += 1
        store = CheckpointStore(root / str(nth))
        shutil.copytree(original.directory, store.directory)
        killed = run_until_call(lambda store=store: action(store), nth)  # type: ignore[misc]
        store.clean()
        assert all(re.fullmatch(r"step_\d{8}", name) for name in names(store))
        check(store)
    return nth


@pytest.mark.fault(2)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_crash_at_any_call_of_a_save_leaves_the_old_or_the_new_checkpoint(tmp_path: Path) -> None:
    seen = set()

    def check(store: CheckpointStore) -> None:
        newest = store.latest(warn=silent)
        assert newest is not None
        assert newest.step in (20, 30)
        assert newest.state["fill"] == newest.step
        assert store.load(10).state == make(10).state
        seen.add(newest.step)

    assert crash_everywhere(tmp_path, lambda store: store.save(make(30)), check) > 30
    assert seen == {20, 30}


@pytest.mark.fault(2)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_crash_at_any_call_of_a_replacement_leaves_the_old_or_the_new_checkpoint(tmp_path: Path) -> None:
    seen = set()

    def check(store: CheckpointStore) -> None:
        newest = store.latest(warn=silent)
        assert newest is not None
        assert newest.step == 20
        assert newest.state["fill"] in (20.0, -1.0)
        assert newest.model["weight"][0, 0].item() == newest.state["fill"]
        seen.add(newest.state["fill"])

    assert crash_everywhere(tmp_path, lambda store: store.save(make(20, fill=-1.0)), check) > 40
    assert seen == {20.0, -1.0}


@pytest.mark.fault(3)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_crash_at_any_call_of_pruning_leaves_what_is_kept(tmp_path: Path) -> None:
    def check(store: CheckpointStore) -> None:
        newest = store.latest(warn=silent)
        assert newest is not None
        assert newest.step == 20
        assert store.steps() in ([10, 20], [20])
        assert [store.load(step).step for step in store.steps()] == store.steps()

    assert crash_everywhere(tmp_path, lambda store: store.prune({20}), check) > 8


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_everything_is_synced_before_the_rename(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def recorded_fsync(descriptor: int) -> None:
        events.append("sync " + os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def recorded_rename(source: Path, target: Path) -> None:
        events.append(f"rename {source.name} {target.name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "rename", recorded_rename)
    store.save(make(5))
    temporary = f".tmp-step_00000005-{os.getpid()}"
    assert events == [
        "sync model.safetensors",
        "sync optimizer.safetensors",
        "sync state.json",
        "sync MANIFEST.json",
        f"sync {temporary}",
        f"rename {temporary} step_00000005",
        "sync checkpoints",
    ]


def test_leftovers_are_not_in_the_way_of_a_save(three: CheckpointStore) -> None:
    for name in (f".tmp-step_00000030-{os.getpid()}", ".old-step_00000030"):
        (three.directory / name).mkdir()
        (three.directory / name / "state.json").write_text("{}")
    three.save(make(30, fill=-1.0))
    assert three.load(30).state["fill"] == -1.0
    assert names(three) == ["step_00000010", "step_00000020", "step_00000030"]


def test_clean_without_a_directory(store: CheckpointStore) -> None:
    store.clean()
    assert store.steps() == []
    assert store.latest(warn=silent) is None


def test_all_files_of_a_checkpoint_are_as_readable_as_others_here(store: CheckpointStore) -> None:
    store.save(make(1))
    other = store.directory / "other"
    other.touch()
    modes = {file.stat().st_mode for file in (*store.folder(1).iterdir(), other)}
    assert len(modes) == 1


def test_the_package_reads_what_is_written(store: CheckpointStore) -> None:
    weights = {
        "narrow": torch.tensor([True, False, True]),
        "wide": torch.randn(3, 2, dtype=torch.float64),
        "rotate": torch.randn(4, 5).T,
        "half": torch.randn(7).bfloat16(),
    }
    store.save(Checkpoint(1, weights, {}, {}))
    read = load_file(store.folder(1) / "model.safetensors")
    assert read.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(read[name], tensor)


# A disk that refuses


@pytest.mark.fault(12)
@pytest.mark.parametrize("call", ["fsync", "rename"])
@pytest.mark.parametrize("nth", range(1, 8))
def test_a_failure_to_save_keeps_what_was_saved(
    three: CheckpointStore, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    number = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT)[nth % 4]

    original, count = getattr(os, call), 0

    def failing(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count == nth:
            raise OSError(number, os.strerror(number))
        return original(*args)

    monkeypatch.setattr(os, call, failing)
    if nth > {"fsync": 6, "rename": 2}[call]:
        three.save(make(30, fill=-1.0))
    else:
        with pytest.raises(TrainingStopped) as raised:
            three.save(make(30, fill=-1.0))
        assert raised.value.exit_code == 4
        assert str(raised.value) == (
            f"cannot write checkpoint {three.folder(30)}: {os.strerror(number)}; "
            "steps saved before and intact: 10, 20, 30; "
            "make room or fix the permissions, then run the same command again"
        )
    monkeypatch.undo()
    assert names(three) == ["step_00000010", "step_00000020", "step_00000030"]
    newest = three.latest(warn=silent)
    assert newest is not None
    assert newest.state["fill"] in (30.0, -1.0)


@pytest.mark.fault(12)
def test_a_save_without_the_space_for_it_writes_nothing(
    three: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tied = torch.zeros(1000)
    checkpoint = Checkpoint(40, {"a": tied, "b": tied}, {"a/exp_avg": torch.zeros(1000)}, {})
    monkeypatch.setattr("nmt.files.shutil.disk_usage", lambda _: SimpleNamespace(free=7999))
    monkeypatch.setattr(three, "_write", pytest.fail)
    with pytest.raises(TrainingStopped) as raised:
        three.save(checkpoint)
    assert str(raised.value) == (
        f"cannot write checkpoint {three.folder(40)}: 8,000 bytes are needed, but 7,999 are free; "
        "steps saved before and intact: 10, 20, 30; "
        "make room or fix the permissions, then run the same command again"
    )


def test_write_refused_half_way(three: CheckpointStore) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = Checkpoint(40, {"weight": torch.zeros(1000)}, {}, {})
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        with pytest.raises(TrainingStopped, match=r"step_00000040: File too large; .* intact: 10, 20, 30;"):
            three.save(large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(three) == ["step_00000010", "step_00000020", "step_00000030"]


@pytest.mark.fault(13)
def test_directory_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(
        TrainingStopped, match=r"checkpoints/step_00000001: .*; steps saved before and intact: none;"
    ):
        CheckpointStore(tmp_path / "checkpoints").save(make(1))


# Damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def replace_and_seal(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    seal(path.parent)


def packed(entries: dict[str, Any], aliases: object = None, padding: bytes = b"") -> bytes:
    """Return a safetensors file of a header and the four bytes of `TENSOR`."""
    metadata = aliases if aliases is None or isinstance(aliases, (str, int)) else json.dumps(aliases)
    plain = {"__metadata__": {"aliases": metadata}} if metadata is not None else {}
    header = json.dumps({**plain, **entries}).encode() + padding
    return len(header).to_bytes(8, "little") + header + bytes(4)


TENSOR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
BAD_HEADER = (2**60).to_bytes(8, "little") + b"{}"
BAD_ALIAS = b'{"__metadata__":{"aliases":"{\\"tied\\": \\"gone\\"}"}}'
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped byte": (
        lambda f: flip(f / "model.safetensors"),
        "model.safetensors does not match its SHA-256 in MANIFEST",
    ),
    "flipped state": (
        lambda f: flip(f / "state.json"),
        "state.json does not match its SHA-256 in MANIFEST.json",
    ),
    "truncated": (
        lambda f: os.truncate(f / "optimizer.safetensors", 20),
        "optimizer.safetensors has 20 bytes, but MANIFEST",
    ),
    "empty": (
        lambda f: os.truncate(f / "model.safetensors", 0),
        "model.safetensors has 0 bytes, but MANIFEST.json says",
    ),
    "missing": (lambda f: (f / "optimizer.safetensors").unlink(), "optimizer.safetensors is missing"),
    "no manifest": (lambda f: (f / "MANIFEST.json").unlink(), "MANIFEST.json is missing"),
    "empty manifest": (
        lambda f: os.truncate(f / "MANIFEST.json", 0),
        "MANIFEST.json cannot be read: Expecting value",
    ),
    "not unicode": (
        lambda f: (f / "MANIFEST.json").write_bytes(b"\xff"),
        "MANIFEST.json cannot be read: 'utf-8' codec",
    ),
    "no object": (
        lambda f: (f / "MANIFEST.json").write_text("[]"),
        "MANIFEST.json cannot be read: it holds list where an object is expected",
    ),
    "other step": (
        lambda f: edit(f / "MANIFEST.json", folder="step_00000010"),
        "MANIFEST.json belongs to 'step_00000010'",
    ),
    "no format": (
        lambda f: edit(f / "MANIFEST.json", format="2"),
        "MANIFEST.json has format '2', but formats are numbers from 1",
    ),
    "nested": (
        lambda f: (f / "MANIFEST.json").write_text('{"files":' * 100_000 + "1" + "}" * 100_000),
        "MANIFEST.json cannot be read: it is nested more than 32 deep",
    ),
    "no files": (lambda f: edit(f / "MANIFEST.json", files=[]), "MANIFEST.json lists no files"),
    "file not listed": (
        lambda f: edit(f / "MANIFEST.json", files={}),
        "MANIFEST.json does not list model.safetensors",
    ),
    "header": (
        lambda f: replace_and_seal(f / "model.safetensors", BAD_HEADER),
        "model.safetensors cannot be read: ",
    ),
    "nothing in it": (
        lambda f: replace_and_seal(f / "model.safetensors", b""),
        "model.safetensors cannot be read: ",
    ),
    "alias": (
        lambda f: replace_and_seal(f / "model.safetensors", len(BAD_ALIAS).to_bytes(8, "little") + BAD_ALIAS),
        "model.safetensors has an alias of a tensor that it does not hold",
    ),
    "alias cycle": (
        lambda f: replace_and_seal(f / "model.safetensors", packed({"c": TENSOR}, {"a": "b", "b": "a"})),
        "model.safetensors has an alias of a tensor that it does not hold",
    ),
    "alias of itself": (
        lambda f: replace_and_seal(f / "model.safetensors", packed({"a": TENSOR}, {"a": "a"})),
        "model.safetensors has an alias of a tensor that it does not hold",
    ),
    "alias nested": (
        lambda f: replace_and_seal(f / "model.safetensors", packed({}, "[" * 100_000 + "]" * 100_000)),
        "model.safetensors cannot be read: it is nested more than 32 deep",
    ),
    "aliases no text": (
        lambda f: replace_and_seal(f / "model.safetensors", packed({}, 7)),
        "model.safetensors cannot be read: its metadata is no text",
    ),
    "header of 2^62 bytes": (
        lambda f: replace_and_seal(f / "model.safetensors", (1 << 62).to_bytes(8, "little") + b"{}"),
        "model.safetensors cannot be read: ",
    ),
    "header that is long": (
        lambda f: replace_and_seal(f / "optimizer.safetensors", packed({}, {}, b" " * (1 << 23))),
        "optimizer.safetensors cannot be read: it has more than 8,388,608 bytes",
    ),
    "many tensors": (
        lambda f: replace_and_seal(
            f / "model.safetensors", packed(dict.fromkeys(map(str, range(100_000)), 1))
        ),
        "model.safetensors cannot be read: it has 100,000 tensors, but at most 65,536 are read",
    ),
    "many aliases": (
        lambda f: replace_and_seal(
            f / "model.safetensors", packed({"a": TENSOR}, {f"b{n}": "a" for n in range(70_000)})
        ),
        "model.safetensors cannot be read: it has 70,001 tensors, but at most 65,536 are read",
    ),
    "shape that overflows": (
        lambda f: replace_and_seal(
            f / "model.safetensors",
            packed({"a": {**TENSOR, "shape": [0, 1 << 40, 1 << 40], "data_offsets": [0, 0]}}),
        ),
        "model.safetensors cannot be read: 'a' is no tensor of a type and size that is read",
    ),
    "type that torch has not": (
        lambda f: replace_and_seal(f / "model.safetensors", packed({"a": {**TENSOR, "dtype": "F4"}})),
        "model.safetensors cannot be read: 'a' is no tensor of a type and size that is read",
    ),
    "offsets past the end": (
        lambda f: replace_and_seal(
            f / "model.safetensors", packed({"a": {**TENSOR, "data_offsets": [0, 1 << 40]}})
        ),
        "model.safetensors cannot be read: ",
    ),
    "state nested": (
        lambda f: replace_and_seal(f / "state.json", b'{"a":' * 100_000),
        "state.json cannot be read: it is nested more than 32 deep",
    ),
}


@pytest.mark.fault(9, 11, 36)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_set_aside_and_survived(three: CheckpointStore, damage: str) -> None:
    harm, reason = DAMAGES[damage]
    folder = three.folder(30)
    harm(folder)
    with pytest.raises(UserError) as raised:
        three.load(30)
    assert str(raised.value).startswith(f"checkpoint {folder} is damaged: {reason}")
    assert str(raised.value).endswith("; other steps saved there: 10, 20")
    assert folder.is_dir()  # an explicit load moves nothing

    warnings: list[str] = []
    newest = three.latest(warnings.append)
    assert newest is not None
    assert newest.step == 20
    assert len(warnings) == 1
    assert warnings[0].startswith(f"checkpoint {folder} is damaged: {reason}")
    assert warnings[0].endswith("; set aside as .corrupt-step_00000030, using step 20")
    assert names(three) == [".corrupt-step_00000030", "step_00000010", "step_00000020"]


@pytest.mark.fault(15)
@pytest.mark.parametrize("damaged", [(), (30,)])
def test_a_checkpoint_of_a_later_nmt_is_refused_and_left_alone(
    three: CheckpointStore, damaged: tuple[int, ...]
) -> None:
    """Even when it is not the newest, and the newest is damaged."""
    three.save_average(three.average([10, 20]), [10, 20])
    for step in damaged:
        flip(three.folder(step) / "model.safetensors")
    later = {folder: folder / "MANIFEST.json" for folder in (three.folder(20), three.directory / "average")}
    for file in later.values():
        edit(file, format=2, nmt="9.9\x1b", further=[])
    before = names(three)
    needs = r"needs nmt of format 2, written by '9\.9\\x1b'; nmt \S+ reads formats up to 1; update nmt"
    actions: list[Callable[[], object]] = [
        lambda: three.load(20),
        lambda: three.load_model(20),
        lambda: three.load_average(),
        lambda: three.average([10, 20]),
        lambda: three.set_damaged_models_aside(silent),
    ]
    for action in actions if not damaged else [*actions, lambda: three.latest(silent)]:
        with pytest.raises(UserError, match=needs):
            action()
    assert names(three) == before


def test_a_manifest_says_who_wrote_it(three: CheckpointStore) -> None:
    manifest = json.loads((three.folder(10) / "MANIFEST.json").read_text())
    assert (manifest["format"], manifest["nmt"]) == (1, nmt.__version__)
    del manifest["nmt"]  # an earlier version did not say
    (three.folder(10) / "MANIFEST.json").write_text(json.dumps(manifest))
    assert three.load(10).step == 10


def test_any_flipped_bit_is_noticed(three: CheckpointStore) -> None:
    for path in three.folder(30).iterdir():
        original = path.read_bytes()
        remark = original.find(b'"nmt": "') if path.name == "MANIFEST.json" else len(original)
        for position in {*range(0, len(original), 3)} - {*range(remark, remark + 8 + len(nmt.__version__))}:
            path.write_bytes(original[:position] + bytes([original[position] ^ 1]) + original[position + 1 :])
            with pytest.raises(UserError, match="step_00000030 is damaged"):
                three.load(30)
        path.write_bytes(original)
    assert three.load(30).state == make(30).state


def test_load_model_reads_the_model_alone(three: CheckpointStore) -> None:
    (three.folder(30) / "optimizer.safetensors").unlink()
    assert torch.equal(three.load_model(30)["weight"], make(30).model["weight"])
    flip(three.folder(30) / "model.safetensors")
    with pytest.raises(UserError, match=r"model.safetensors does not match its SHA-256"):
        three.load_model(30)


def test_load_state_reads_the_state_alone(three: CheckpointStore) -> None:
    for name in ("optimizer.safetensors", "model.safetensors"):
        (three.folder(30) / name).unlink()
    assert three.load_state(30) == make(30).state
    flip(three.folder(30) / "state.json")
    with pytest.raises(UserError, match=r"state.json does not match its SHA-256"):
        three.load_state(30)


def test_room_is_asked_for_what_each_checkpoint_writes(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"frozen": torch.zeros(1000), "learning": torch.zeros(10)}
    store.save_base(model, ["frozen"])
    needed = int(2.5 * (4 * 10 + 80))
    monkeypatch.setattr("nmt.files.shutil.disk_usage", lambda _: SimpleNamespace(free=needed))
    store.require_space(2.5, model, 80)
    monkeypatch.setattr("nmt.files.shutil.disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    with pytest.raises(TrainingStopped, match=f"{needed} bytes are needed"):
        store.require_space(2.5, model, 80)


def test_several_damaged_and_set_aside_twice(three: CheckpointStore) -> None:
    warnings: list[str] = []
    for _ in range(2):
        for step in (20, 30):
            three.save(make(step))
            flip(three.folder(step) / "model.safetensors")
        newest = three.latest(warnings.append)
        assert newest is not None
        assert newest.step == 10
    assert len(warnings) == 4
    assert names(three) == [
        ".corrupt-step_00000020",
        ".corrupt-step_00000020-2",
        ".corrupt-step_00000030",
        ".corrupt-step_00000030-2",
        "step_00000010",
    ]


def test_a_damaged_checkpoint_that_cannot_be_moved_is_named(
    three: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: Path, target: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    flip(three.folder(30) / "model.safetensors")
    monkeypatch.setattr(os, "rename", refused)
    aside = three.directory / ".corrupt-step_00000030"
    message = f"cannot write {aside}, as step_00000030 is damaged: Permission denied; steps saved before"
    with pytest.raises(TrainingStopped, match=f"^{re.escape(message)}"):
        three.latest(silent)


@pytest.mark.fault(10)
def test_all_damaged_is_an_error_that_lists_each_and_moves_nothing(three: CheckpointStore) -> None:
    flip(three.folder(10) / "state.json")
    (three.folder(20) / "model.safetensors").unlink()
    (three.folder(30) / "MANIFEST.json").unlink()
    with pytest.raises(UserError) as raised:
        three.latest(warn=silent)
    assert str(raised.value) == (
        f"every checkpoint in {three.directory} is damaged:\n"
        "  step_00000030: MANIFEST.json is missing\n"
        "  step_00000020: model.safetensors is missing\n"
        "  step_00000010: state.json does not match its SHA-256 in MANIFEST.json\n"
        "bring one back from a copy, or start over in another run directory (run=...)"
    )
    assert three.steps() == [10, 20, 30]


def test_missing_step(store: CheckpointStore, three: CheckpointStore) -> None:
    with pytest.raises(UserError) as raised:
        three.load(15)
    assert str(raised.value) == f"there is no checkpoint {three.folder(15)}; steps saved there: 10, 20, 30"
    three.prune(set())
    with pytest.raises(UserError, match=r"steps saved there: none$"):
        store.load_model(15)


# Pruning and averaging


def test_prune_keeps_what_is_asked_and_removes_leftovers(three: CheckpointStore) -> None:
    (three.directory / ".trash-step_00000020").mkdir()
    (three.directory / ".trash-step_00000020" / "state.json").write_text("{}")
    three.prune({10, 30, 99})
    assert names(three) == ["step_00000010", "step_00000030"]


def test_clean_removes_leftovers_and_restores_what_was_being_replaced(three: CheckpointStore) -> None:
    for name in (".tmp-step_00000040-1", ".trash-step_00000001", ".old-step_00000010"):
        (three.directory / name).mkdir()
        (three.directory / name / "state.json").write_text("{}")
    three.folder(30).rename(three.directory / ".old-step_00000030")
    (three.directory / ".corrupt-step_00000005").mkdir()
    (three.directory / ".tmp-base.safetensors.1").write_bytes(b"half")
    assert three.steps() == [10, 20]
    three.clean()
    assert names(three) == [".corrupt-step_00000005", "step_00000010", "step_00000020", "step_00000030"]
    assert three.load(10).state == make(10).state
    assert three.load(30).state == make(30).state


def test_average_is_the_mean(store: CheckpointStore) -> None:
    torch.manual_seed(1)
    models: list[dict[str, Tensor]] = []
    for step in (1, 2, 3):
        tied = torch.randn(7, 5)
        models.append({"a": tied, "b": tied, "half": torch.randn(4).bfloat16(), "count": torch.tensor(step)})
        store.save(Checkpoint(step, models[-1], {}, {}))
    average = store.average([1, 2, 3])
    assert torch.equal(average["a"], torch.stack([m["a"].double() for m in models]).mean(0).float())
    assert torch.equal(average["half"], torch.stack([m["half"].double() for m in models]).mean(0).bfloat16())
    assert average["a"].data_ptr() == average["b"].data_ptr()
    assert average["count"].item() == 3
    assert average["a"].dtype is torch.float32
    assert torch.equal(store.average([2])["a"], models[1]["a"])


def test_average_round_trip(three: CheckpointStore) -> None:
    assert not three.has_average()
    with pytest.raises(UserError, match=r"there is no checkpoint .*/average; steps saved there: 10, 20, 30"):
        three.load_average()
    for steps in ([10, 20], [20, 30]):  # the second replaces the first
        three.save_average(three.average(steps), steps)
    assert three.has_average()
    loaded = three.load_average()
    assert (loaded.step, loaded.state) == (30, {"steps": [20, 30]})
    assert torch.equal(loaded.model["weight"], torch.full((2, 3), 25.0))
    assert loaded.optimizer == {}
    assert names(three) == ["average", "step_00000010", "step_00000020", "step_00000030"]
    three.prune({30})
    assert names(three) == ["average", "step_00000030"]
    flip(three.directory / "average" / "model.safetensors")
    with pytest.raises(UserError, match=r"average is damaged: model.safetensors does not match its SHA-256"):
        three.load_average()
    for state in (b"{}", b'{"steps": []}', b'{"steps": [20, "30"]}'):
        replace_and_seal(three.directory / "average" / "state.json", state)
        with pytest.raises(UserError, match=r"average is damaged: state.json names no steps"):
            three.load_average()


@pytest.mark.fault(9, 10)
def test_models_that_are_damaged_are_set_aside_before_the_end(three: CheckpointStore) -> None:
    flip(three.folder(20) / "model.safetensors")
    flip(three.folder(30) / "optimizer.safetensors")  # which no average needs
    warnings: list[str] = []
    three.set_damaged_models_aside(warnings.append)
    assert warnings == [
        f"checkpoint {three.folder(20)} is damaged: model.safetensors does not match its SHA-256 in "
        "MANIFEST.json; set aside as .corrupt-step_00000020, "
        "so its weights are neither the best nor in an average"
    ]
    assert three.steps() == [10, 30]
    three.set_damaged_models_aside(silent)
    for step in (10, 30):
        flip(three.folder(step) / "model.safetensors")
    with pytest.raises(UserError, match=r"every checkpoint in .* is damaged:\n  step_00000010: model"):
        three.set_damaged_models_aside(silent)
    assert three.steps() == [10, 30]


@pytest.mark.fault(36)
def test_tensors_that_do_not_fit_are_one_message() -> None:
    wanted = {"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(3), "d": torch.zeros(1)}
    require_match(wanted, dict(wanted), "the weights")
    found = {"a": torch.zeros(3), "c": torch.zeros(3).int(), "d": torch.zeros(1), "x\x1b": torch.zeros(1)}
    with pytest.raises(UserError) as raised:
        require_match(found, wanted, "the weights")
    assert str(raised.value) == (
        "the weights do not fit the config: 4 of 5 tensors differ: "
        r"'x\x1b' is unknown; a is F32 [3], not F32 [2]; b is missing; c is I32 [3], not F32 [3]"
    )
    many = {f"{n:06}": torch.zeros(1) for n in range(60_000)}
    with pytest.raises(UserError) as raised:
        require_match(many, wanted, "the weights")
    assert "60,004 of 60,004 tensors differ: '000000' is unknown; " in str(raised.value)
    assert len(str(raised.value)) < 300


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with bytes flipped, cut, doubled, or replaced by what breaks parsers."""
    place, other = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    piece = rng.choice(
        [b"", b"\xff" * 8, b"0", b"-1", b"1e999", b"[", b'{"a":', b"null", b"9" * 30, b'"\\u0000"']
    )
    return rng.choice(
        [
            data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :],
            data[:place] + piece + data[other:],
            data[:place] + piece + data[place:],
            data[:place],
            data[:other] + data[place:],
        ]
    )


@pytest.mark.fault(36)
@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"]
)
@pytest.mark.parametrize("sealed", [True, False])
def test_a_mutated_file_is_read_or_refused(tmp_path: Path, name: str, sealed: bool) -> None:
    """With a manifest that fits it, as a stranger would write, and without, as a disk would."""
    rng = random.Random(f"{name} {sealed}")
    store = CheckpointStore(tmp_path)
    model = nn.Linear(2, 2)
    optimizer = {"weight/exp_avg": torch.zeros(2, 2), "bias/exp_avg": torch.zeros(2)}
    state = {"progress": dataclasses.asdict(TrainState(step=1, scores={"1": 0.5})), "scaler": {}}
    store.save(Checkpoint(1, model.state_dict(), optimizer, state))
    file = store.folder(1) / name
    data = file.read_bytes()
    refused: list[str] = []
    for _ in range(60):
        file.write_bytes(mutated(data, rng))
        if sealed and name != "MANIFEST.json":
            seal(store.folder(1))
        try:
            found = store.load(1)
            require_match(found.model, model.state_dict(), "the weights")
            require_match(found.optimizer, optimizer, "the optimizer's tensors")
            TrainState.stored_in(found.state)
        except UserError as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert all(len(text) < 1000 and text.isprintable() for text in refused)


def test_average_refuses_a_damaged_checkpoint(three: CheckpointStore) -> None:
    flip(three.folder(20) / "model.safetensors")
    with pytest.raises(UserError, match=r"step_00000020 is damaged: model.safetensors"):
        three.average([10, 20, 30])
