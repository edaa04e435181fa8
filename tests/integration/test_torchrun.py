"""`torchrun -m nmt` as a user runs it, on one machine and on two that a script makes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

Command = Callable[..., "subprocess.CompletedProcess[str]"]
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"
)


def torchrun(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `nmt ARGUMENTS` in two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "nmt"]
    return subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.timeout(400)
def test_two_processes_train_score_and_hand_over_to_one(
    nmt: Command, tiny: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    options = [*tiny, "trainer.eval_every_steps=3", "trainer.log_every_steps=1", "model.dropout=0.1"]
    done = torchrun(environment, "train", f"run={run}", *options, "trainer.max_steps=6")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run         ") == 1
    assert done.stderr.count("validation at step 6") == 1
    assert "on 2 x cpu in" in done.stderr
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 3, 4, 5, 6, 6]
    results = json.loads((run / "results.json").read_text())
    alone = nmt("evaluate", f"run={run}")
    assert f"BLEU {results['test']['bleu']:.2f}" in alone.stdout
    together = torchrun(environment, "evaluate", f"run={run}")
    assert together.stdout == alone.stdout
    again = nmt("train", f"run={run}", *options, "trainer.max_steps=8")
    assert again.returncode == 0, again.stderr
    assert "going on after step 6" in again.stderr


@pytest.mark.timeout(400)
def test_an_error_is_said_once(nmt: Command, environment: dict[str, str], tmp_path: Path) -> None:
    done = torchrun(environment, "train", f"run={tmp_path}/run", "data=files", "data.train=nowhere")
    assert done.returncode != 0
    alone = nmt("train", f"run={tmp_path}/run", "data=files", "data.train=nowhere")
    assert done.stderr.count(alone.stderr) == 1
    assert re.search(r"exitcode *: 2", done.stderr)


def can_make_networks() -> bool:
    """Whether this user may make network namespaces with `ip`."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    made = subprocess.run(["ip", "netns", "add", "nmt-test"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "delete", "nmt-test"], capture_output=True, check=False)
    return made.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_machines_train(tiny: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    if not can_make_networks():
        pytest.skip("needs root and ip netns")
    run = tmp_path / "run"
    script = [str(ROOT / "scripts" / "two_nodes.sh"), "train", f"run={run}", *tiny, "trainer.max_steps=4"]
    variables = {**environment, "PYTHON": sys.executable}
    done = subprocess.run(script, env=variables, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert "on 2 x cpu in" in done.stderr
    assert json.loads((run / "results.json").read_text())["step"] == 4
