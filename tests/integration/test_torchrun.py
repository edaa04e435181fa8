"""`torchrun -m nmt` as a user runs it: on one machine, on two that a script makes, and as a job of Slurm."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist
import yaml

Command = Callable[..., "subprocess.CompletedProcess[str]"]
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"
)

STREAM = ["data.streaming=true", "data.buffer_pairs=90"]
"""Overrides with which each process encodes a half of each buffer."""


def torchrun(
    environment: dict[str, str], *arguments: str, processes: int = 2
) -> subprocess.CompletedProcess[str]:
    """Run `nmt ARGUMENTS` in several processes."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "-m", "nmt"]
    return subprocess.run(
        [*launch, *arguments], env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.slow
@pytest.mark.fault(39)
@pytest.mark.timeout(400)
def test_two_processes_train_score_and_hand_over_to_one(
    nmt: Command, tiny: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    """Each modifies and segments the pairs by itself; each epoch begins with a check that they agree."""
    run = tmp_path / "run"
    sampled = ["tokenizer.kind=unigram", "tokenizer.vocab_size=25", "tokenizer.sampling_alpha=0.1"]
    sampled.append("data.augment=[{name: typos, rate: 0.5}]")
    every = ["trainer.eval_every_steps=3", "trainer.log_every_steps=1"]
    options = [*tiny, *sampled, *every, "model.dropout=0.1"]
    done = torchrun(environment, "train", f"run={run}", *options, "trainer.max_steps=6")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run         ") == 1
    assert done.stderr.count("validation at step 6") == 1
    assert "on 2 x cpu in" in done.stderr
    assert done.stderr.count("; each of 2 processes computes about 250\n") == 1
    assert done.stderr.count("warning: trainer.accumulate=1 is less than the 2 processes, which share") == 1
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
@pytest.mark.slow
def test_an_error_is_said_once(nmt: Command, environment: dict[str, str], tmp_path: Path) -> None:
    done = torchrun(environment, "train", f"run={tmp_path}/run", "data=files", "data.train=nowhere")
    assert done.returncode != 0
    alone = nmt("train", f"run={tmp_path}/run", "data=files", "data.train=nowhere")
    assert done.stderr.count(alone.stderr) == 1
    assert re.search(r"exitcode *: 2", done.stderr)


def workers(launcher: int) -> list[int]:
    """Return the processes that a torchrun has started, in the order of their ranks."""
    found: dict[int, int] = {}
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        found |= {
            int(line.removeprefix(b"RANK=")): int(child) for line in variables if line.startswith(b"RANK=")
        }
    return [found[rank] for rank in sorted(found)]


@pytest.mark.slow
@pytest.mark.fault(40)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("processes", "data"), [(2, STREAM), (8, [])])
def test_a_killed_process_is_restarted_and_the_end_is_the_same(
    tiny: list[str], environment: dict[str, str], tmp_path: Path, processes: int, data: list[str]
) -> None:
    """Also between two validations, with Muon, whose work the processes share, and in a stream."""
    limits = ["trainer.max_steps=40", "trainer.save_every_steps=10", "trainer.eval_every_steps=15"]
    options = [*tiny, *data, *limits, "model.dropout=0.1", "optimizer=muon"]
    straight = torchrun(environment, "train", f"run={tmp_path}/straight", *options, processes=processes)
    assert straight.returncode == 0, straight.stderr
    assert ("buffer 2:" in straight.stderr) == bool(data)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    launch += ["--max-restarts", "1"]
    process = subprocess.Popen(
        [*launch, "-m", "nmt", "train", f"run={tmp_path}/run", *options],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not (tmp_path / "run" / "checkpoints" / "step_00000010").exists():
        time.sleep(0.05)
    os.kill(workers(process.pid)[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "going on after step" in errors
    for name in ("model.safetensors", "optimizer.safetensors"):
        file = Path("checkpoints", "step_00000040", name)
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "straight" / file).read_bytes()


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


@pytest.mark.slow
@pytest.mark.fault(41)
@pytest.mark.timeout(600)
def test_a_link_that_is_down_ends_the_training_which_then_goes_on(
    tiny: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    """In a network of its own, whose only link, which torchrun needs as well, is down for a while."""
    alone = ["unshare", "--net", "sh", "-c", "ip link set lo up"]
    if shutil.which("unshare") is None or subprocess.run(alone, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to make a network namespace, and ip")
    options = [*tiny, "trainer.max_steps=60", "trainer.save_every_steps=10", "model.dropout=0.1"]
    straight = torchrun(environment, "train", f"run={tmp_path}/straight", *options)
    assert straight.returncode == 0, straight.stderr
    body = (
        '(until [ -d "$1/checkpoints/step_00000020" ]; do sleep 0.02; done; '
        'ip link set lo down; sleep 15; ip link set lo up) & shift; ip link set lo up; exec "$@"'
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "nmt", "train"]
    command = [*launch, f"run={tmp_path}/run", *options, "runtime.timeout_minutes=0.1"]
    cut = subprocess.run(
        ["unshare", "--net", "sh", "-c", body, "sh", f"{tmp_path}/run", *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert cut.returncode != 0
    assert re.search(
        r"error: the launcher at \S+, on the machine of rank 0, has not answered rank", cut.stderr
    )
    assert re.search(r"exitcode *: 4", cut.stderr)
    again = torchrun(environment, "train", f"run={tmp_path}/run", *options)
    assert "going on after step" in again.stderr, again.stderr
    for name in ("model.safetensors", "optimizer.safetensors"):
        file = Path("checkpoints", "step_00000060", name)
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "straight" / file).read_bytes()


@pytest.mark.slow
@pytest.mark.fault(16)
@pytest.mark.timeout(600)
def test_the_pods_of_a_kubernetes_job_save_when_they_are_deleted_and_go_on(
    tiny: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    """Both containers run as the operator starts them, on one machine, with a process each."""
    job = yaml.safe_load((ROOT / "scripts" / "kubernetes.yaml").read_text(encoding="utf-8"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    names = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}
    counts = {"WORLD_SIZE": "2", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "1"}
    limits = ["trainer.max_steps=300", "trainer.eval_every_steps=300", "trainer.log_every_steps=1"]
    run = tmp_path / "run"

    def pod(rank: int, replica: str) -> subprocess.Popen[str]:
        [container] = job["spec"]["pytorchReplicaSpecs"][replica]["template"]["spec"]["containers"]
        given = [text for text in container["args"] if not text.startswith(("experiment=", "run="))]
        command = [*container["command"], *given, f"run={run}", *tiny, *limits]
        assert command[0] == "torchrun"
        variables = {one["name"]: one["value"] for one in container["env"] if one["name"] != "NMT_CACHE"}
        own = {"RANK": str(rank), "PET_NODE_RANK": str(rank)}
        return subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *command[1:]],
            env={**environment, **variables, **names, **counts, **own},
            stderr=subprocess.PIPE,
            text=True,
        )

    pods, metrics = [pod(0, "Master"), pod(1, "Worker")], run / "metrics.jsonl"
    while pods[0].poll() is None and not (metrics.is_file() and metrics.read_text()):
        time.sleep(0.1)
    for process in pods:
        process.terminate()
    errors = ended(pods[0]) + ended(pods[1])
    assert errors.count("stopped by SIGTERM after step") == 1, errors  # whichever is first says so
    pods = [pod(0, "Master"), pod(1, "Worker")]
    errors = ended(pods[0]) + ended(pods[1])
    assert [process.returncode for process in pods] == [0, 0], errors
    assert "going on after step" in errors
    assert json.loads((run / "results.json").read_text())["step"] == 300


SLURM = {
    "srun": 'while [[ $1 == --* ]]; do shift; done\nexec "$@"',
    "scontrol": 'case $1 in show) echo localhost ;; requeue) echo "$2" >> "$JOB/requeued" ;; esac',
    "torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"',
}
"""What the job script calls, as far as it does."""


def ended(job: subprocess.Popen[str]) -> str:
    """Wait for the job; return what it said."""
    _, errors = job.communicate(timeout=240)
    return errors


@pytest.mark.slow
@pytest.mark.fault(17)
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
    for process in (job.pid, *workers(job.pid)):  # Slurm signals every process of the job
        os.kill(process, signal.SIGUSR1)
    errors = ended(job)
    assert "stopped by SIGUSR1 after step" in errors, errors
    assert (tmp_path / "requeued").read_text() == "17\n"
    assert json.loads((run / "status.json").read_text())["state"] == "preempted"
    assert not (run / "results.json").exists()

    job = queued()
    errors = ended(job)
    assert job.returncode == 0, errors
    assert "going on after step" in errors
    assert json.loads((run / "results.json").read_text())["step"] == 200
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
    assert (tmp_path / "requeued").read_text() == "17\n"
