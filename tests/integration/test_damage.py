"""Runs that are damaged, forged or of a later version, and full disks: one message, and nothing is lost."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nmt.files import locked
from nmt.training.train_state import TrainState
from nmt.training.trainer import Trainer
from tests.comparison.made import made_run
from tests.integration.conftest import Command

OPTIONS = [
    "trainer.max_steps=8",
    "trainer.eval_every_steps=4",
    "trainer.save_every_steps=2",
    "trainer.log_every_steps=1",
    "trainer.keep_last=4",
    "trainer.average=2",
    "decoding=greedy",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "trainer.num_samples=0",
]


@pytest.fixture(scope="module")
def finished(nmt: Command, tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    done = nmt("train", f"run={run}", *tiny, *OPTIONS)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of the run whose training has ended and whose score is missing."""
    copy = shutil.copytree(finished, tmp_path / "run")
    (copy / "results.json").unlink()
    return copy


@pytest.fixture
def train(nmt: Command, tiny: list[str], run: Path) -> Callable[..., str]:
    """Return a function that repeats the command, wants an exit code, and returns what is on stderr."""

    def repeat(code: int, *options: str) -> str:
        done = nmt("train", f"run={run}", *tiny, *OPTIONS, *options)
        assert done.returncode == code, done.stderr
        return done.stderr

    return repeat


def checkpoint(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step_{step:08d}"


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def seal(folder: Path, name: str) -> None:
    """Write a manifest that fits the file `name` as it is now, as a stranger would."""
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    data = (folder / name).read_bytes()
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))


def last_line(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in text
    return line


@pytest.mark.fault(15)
def test_a_checkpoint_of_a_later_version_is_not_touched(
    run: Path, nmt: Command, train: Callable[..., str]
) -> None:
    file = checkpoint(run, 8) / "MANIFEST.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2, "nmt": "9.9.9"}))
    before = sorted(run.rglob("*"))
    message = "needs nmt of format 2, written by '9.9.9'; nmt 0.1.0 reads formats up to 1; update nmt"
    assert message in last_line(train(2))
    translated = nmt("translate", f"run={run}", "checkpoint=last", stdin="1 2 3\n")
    assert translated.returncode == 2
    assert message in last_line(translated.stderr)
    assert sorted(run.rglob("*")) == before


@pytest.mark.fault(9)
def test_a_damaged_member_of_an_average_is_replaced(run: Path, train: Callable[..., str]) -> None:
    for step in (4, 6):
        flip(checkpoint(run, step) / "model.safetensors")
    shutil.copy(checkpoint(run, 8) / "model.safetensors", checkpoint(run, 2))
    seal(checkpoint(run, 2), "model.safetensors")  # an average of the same weights is as good as the best
    log = train(0)
    assert f"warning: checkpoint {checkpoint(run, 6)} is damaged: model.safetensors does not match" in log
    results = json.loads((run / "results.json").read_text())
    assert "compared" in results
    assert results["averaged_steps"] == [2, 8]
    shutil.rmtree(checkpoint(run, 2))
    (run / "results.json").unlink()
    assert "warning: trainer.average=2, but only 1 checkpoint is there" in train(0)
    assert json.loads((run / "results.json").read_text())["averaged_steps"] == [8]


@pytest.mark.fault(9)
def test_a_damaged_best_checkpoint_is_replaced(run: Path, train: Callable[..., str]) -> None:
    state = json.loads((checkpoint(run, 8) / "state.json").read_text())
    state["progress"]["scores"]["4"] = 99.0
    (checkpoint(run, 8) / "state.json").write_text(json.dumps(state))
    seal(checkpoint(run, 8), "state.json")
    flip(checkpoint(run, 4) / "model.safetensors")
    assert "step_00000004 is damaged" in train(0, "trainer.average=0")
    assert json.loads((run / "results.json").read_text())["step"] == 8


@pytest.mark.fault(9)
def test_the_only_checkpoint_with_a_score_is_damaged_at_the_end(
    run: Path, train: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest of the others takes its place."""
    fit = Trainer.fit

    def damage(self: Trainer, *arguments: Any) -> TrainState:
        done = fit(self, *arguments)
        for step in (4, 8):
            flip(checkpoint(run, step) / "model.safetensors")
        return done

    monkeypatch.setattr(Trainer, "fit", damage)
    assert "step_00000008 is damaged" in train(0, "trainer.average=0")
    assert json.loads((run / "results.json").read_text())["step"] == 6


def forged(
    change: Callable[[dict[str, Any]], object], name: str = "model.safetensors"
) -> Callable[[Path], None]:
    """Return a function that changes the tensors of the newest checkpoint and seals it."""

    def forge(run: Path) -> None:
        file = checkpoint(run, 8) / name
        with safe_open(file, framework="pt") as read:
            tensors = {key: read.get_tensor(key).clone() for key in read.keys()}  # noqa: SIM118
            metadata = read.metadata()
        change(tensors)
        save_file(tensors, file, metadata)
        seal(checkpoint(run, 8), name)

    return forge


def rewritten(path: str, content: object) -> Callable[[Path], None]:
    """Return a function that writes another JSON into a file of the run, and seals a checkpoint."""

    def write(run: Path) -> None:
        file = run / path
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        if "step_" in path and file.name != "MANIFEST.json":
            seal(file.parent, file.name)

    return write


def moved_to_batch(number: int) -> Callable[[Path], None]:
    """Return a function that changes where the newest checkpoint is in its epoch, and seals it."""

    def move(run: Path) -> None:
        state = json.loads((run / STATE).read_text())
        state["progress"] |= {"step": 7, "batch": number}  # the last step is still ahead
        rewritten(STATE, state)(run)

    return move


BIAS = "decoder.0.cross_attention.attention.key_value.bias"
STATE = "checkpoints/step_00000008/state.json"
DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
FORGERIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "shape": (
        forged(lambda x: x.update({BIAS: torch.zeros(3, 3)})),
        "the weights of the checkpoint do not fit the config: 1 of 43 tensors differ: ",
    ),
    "names": (
        forged(lambda x: x.update({f"extra{n}": torch.zeros(1) for n in range(1000)})),
        "the weights of the checkpoint do not fit the config: 1,000 of 1,0",
    ),
    "type": (
        forged(lambda x: x.update({BIAS: x[BIAS].half()})),
        f"tensors differ: {BIAS} is F16 [64], not F32 [64]",
    ),
    "missing": (forged(lambda x: x.pop(BIAS)), f"{BIAS} is missing"),
    "optimizer": (
        forged(lambda x: x.pop(f"{BIAS}/exp_avg"), "optimizer.safetensors"),
        "the optimizer's tensors of the checkpoint do not fit the config: 1 of 1",
    ),
    "progress": (
        rewritten(STATE, {"progress": 3}),
        "state.json of the checkpoint has no progress of a training",
    ),
    "fields": (
        rewritten(STATE, {"progress": {"step": "8", "batches": 1, "window": []}}),
        "state.json of the checkpoint does not fit this nmt: 'batches' is unknown; step is '8'; window is []",
    ),
    "far": (
        moved_to_batch(10**6),
        "state.json of the checkpoint is after batch 1000000 of ",
    ),
    "cuts": (rewritten(STATE, {"progress": {"step": 7, "num_cuts": -(2**62)}}), "a count is negative"),
    "negative": (rewritten(STATE, {"progress": {"step": -1}}), "a count is negative or a score has no step"),
    "results": (
        rewritten("results.json", {}),
        "results.json is damaged: step is missing; train_seconds is missing",
    ),
    "scores": (
        rewritten(
            "results.json", {"step": 1, "train_seconds": 1, "tgt_tokens_per_second": 1, "signatures": {}}
        ),
        "results.json is damaged: validation is missing",
    ),
    "deep results": (
        rewritten("results.json", DEEP),
        "results.json is damaged: it is nested more than 32 deep",
    ),
    "data": (rewritten("data/train.json", {}), "data/train.json has changed since the run began: "),
}


@pytest.mark.fault(36)
@pytest.mark.parametrize(
    "forgery",
    [
        *("cuts", "scores"),
        *(pytest.param(one, marks=pytest.mark.slow) for one in FORGERIES if one not in ("cuts", "scores")),
    ],
)
def test_a_forged_run_is_one_message(run: Path, train: Callable[..., str], forgery: str) -> None:
    forge, message = FORGERIES[forgery]
    forge(run)
    line = last_line(train(2))
    assert message in line
    assert len(line) < 600
    assert checkpoint(run, 8).is_dir()


@pytest.mark.fault(36)
def test_weights_that_do_not_fit_are_not_used_to_translate(run: Path, nmt: Command) -> None:
    forged(lambda x: x.update({BIAS: torch.zeros(3, 3)}))(run)
    done = nmt("translate", f"run={run}", "checkpoint=8", stdin="1 2 3\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"the weights of checkpoint 8 of {run} do not fit the config: 1 of " in last_line(done.stderr)


def test_weights_that_are_not_finite_or_overflow_are_not_used_to_translate(run: Path, nmt: Command) -> None:
    for value, message in (
        (float("nan"), f"the weights of checkpoint 8 of {run} are not finite: "),
        (
            3e38,
            "the model gives no token a probability, as its numbers overflow; set decoding.precision=fp32",
        ),
    ):

        def fill(tensors: dict[str, Any], value: float = value) -> None:
            for x in tensors.values():
                x.fill_(value)

        forged(fill)(run)
        done = nmt("translate", f"run={run}", "checkpoint=8", stdin="1 2 3\n")
        assert (done.returncode, done.stdout) == (2, "")
        assert message in last_line(done.stderr)


@pytest.mark.fault(13)
def test_a_place_that_cannot_be_written_is_refused_before_anything(
    nmt: Command, tiny: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        done = nmt("train", f"run={place}", *tiny, *OPTIONS)
        assert done.returncode == 2
        assert last_line(done.stderr).startswith(f"error: cannot write to the directory {place}: ")


@pytest.mark.fault(14)
def test_a_second_process_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    program = (
        "import sys, time; start = time.process_time(); from nmt.cli import main; code = main(sys.argv[1:]); "
        "print('torch' in sys.modules, time.process_time() - start < 1); sys.exit(code)"
    )
    with locked(tmp_path / "run", ""):
        done = subprocess.run(
            [sys.executable, "-c", program, "train", "model.num_heads=8", f"run={tmp_path / 'run'}"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (2, "False True\n")
    assert last_line(done.stderr).startswith(
        f"error: {tmp_path / 'run'} is in use by process {os.getpid()} on "
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with a file system of its own of four megabytes, which only root can make."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("cannot mount a file system here")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.slow
@pytest.mark.fault(12)
def test_a_disk_that_fills_up_and_is_made_larger(
    small_disk: Path, nmt: Command, tiny: list[str], tmp_path: Path
) -> None:
    """There is room for three checkpoints: the next do not end the training, the last one does."""
    options = [*tiny, *OPTIONS, "trainer.max_steps=12", "trainer.eval_every_steps=6"]
    straight = nmt("train", f"run={tmp_path / 'run'}", *options)
    assert straight.returncode == 0, straight.stderr
    sizes = {path: path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file()}
    others = sum(size for path, size in sizes.items() if "checkpoints" not in path.parts)
    one = sum(size for path, size in sizes.items() if "step_00000012" in path.parts)
    subprocess.run(["mount", "-o", f"remount,size={others + int(3.5 * one)}", small_disk], check=True)
    run = small_disk / "run"
    stopped = nmt("train", f"run={run}", *options)
    assert stopped.returncode == 4
    for step, left in ((8, 2), (10, 1)):
        assert f"error: cannot write checkpoint {checkpoint(run, step)}: " in stopped.stderr
        assert f"Training goes on; it stops after {left} more failures in a row" in stopped.stderr
    assert last_line(stopped.stderr.splitlines()[-1]).startswith(
        f"error: cannot write checkpoint {checkpoint(run, 12)}"
    )
    assert "Traceback" not in stopped.stderr
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == [
        f"step_{step:08d}" for step in (2, 4, 6)
    ]
    subprocess.run(["mount", "-o", "remount,size=40m", small_disk], check=True)
    again = nmt("train", f"run={run}", *options)
    assert again.returncode == 0, again.stderr
    assert "going on after step 6" in again.stderr
    for folder in (checkpoint(run, 12), run / "checkpoints" / "average"):
        file = folder.relative_to(run) / "model.safetensors"
        assert (run / file).read_bytes() == (tmp_path / "run" / file).read_bytes()
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6, 6, 7, 8, 9, 10, 11, 12, 12]


@pytest.mark.fault(13)
@pytest.mark.slow
def test_a_read_only_file_system_is_refused(small_disk: Path, nmt: Command, tiny: list[str]) -> None:
    made_run(small_disk / "made")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    done = nmt("train", f"run={small_disk / 'run'}", *tiny, *OPTIONS)
    assert done.returncode == 2
    assert "Read-only file system" in last_line(done.stderr)
    done = nmt("compare", str(small_disk / "made"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("/disk/made: it is read-only; name a page elsewhere: output=FILE\n")
