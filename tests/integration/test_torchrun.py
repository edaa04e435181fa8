"""`torchrun -m nmt` as a user runs it: on one machine, on two that a script makes, and as a job of Slurm."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
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


@pytest.mark.fault(39)
@pytest.mark.timeout(400)
def test_two_processes_train_score_and_hand_over_to_one(
    nmt: Command, tiny: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    """Each samples the segmentations by itself; each epoch begins with a check that they are the same."""
    run = tmp_path / "run"
    sampled = ["tokenizer.kind=unigram", "tokenizer.vocab_size=25", "tokenizer.sampling_alpha=0.1"]
    every = ["trainer.eval_every_steps=3", "trainer.log_every_steps=1"]
    options = [*tiny, *sampled, *every, "model.dropout=0.1"]
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
    [together, alone] = re.findall(r"segmented for epoch 1: .*", done.stderr + again.stderr)
    assert together == alone


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


SLURM = {
    "srun": 'while [[ $1 == --* ]]; do shift; done\necho $$ > "$JOB/step"\nexec "$@"',
    "scontrol": 'case $1 in show) echo localhost ;; requeue) echo "$2" >> "$JOB/requeued" ;; esac',
    "scancel": 'kill -s "${1#--signal=}" "$(< "$JOB/step")"',
    "torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"',
}
"""What the job script calls, as far as it does."""


def ended(job: subprocess.Popen[str]) -> str:
    """Wait for the job; return what it said."""
    _, errors = job.communicate(timeout=240)
    return errors


@pytest.mark.timeout(600)
def test_a_slurm_job_saves_queues_itself_again_and_goes_on(
    tiny: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    for name, body in SLURM.items():
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f"#!/usr/bin/env bash\n{body}\n")
        command.chmod(0o755)
    variables = {
        **environment,
        "PATH": f"{tmp_path}/bin:{environment['PATH']}",
        "JOB": str(tmp_path),
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "node[1]",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_GPUS_ON_NODE": "2",
    }
    run = tmp_path / "run"
    limits = ["trainer.max_steps=200", "trainer.eval_every_steps=200", "trainer.log_every_steps=1"]
    script = [str(ROOT / "scripts" / "slurm.sbatch"), f"run={run}", *tiny, *limits]

    def queued() -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", *script], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    job, metrics = queued(), run / "metrics.jsonl"
    while job.poll() is None and not (metrics.is_file() and metrics.read_text()):
        time.sleep(0.1)
    job.send_signal(signal.SIGUSR1)
    errors = ended(job)
    assert "stopped by SIGTERM after step" in errors, errors
    assert (tmp_path / "requeued").read_text() == "17\n"
    assert not (run / "results.json").exists()

    job = queued()
    errors = ended(job)
    assert job.returncode == 0, errors
    assert "going on after step" in errors
    assert json.loads((run / "results.json").read_text())["step"] == 200
    assert (tmp_path / "requeued").read_text() == "17\n"
