"""Jobs of Slurm, with small scripts on PATH that stand in for its commands and run the jobs here."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import submitit

from nmt.cli import report
from nmt.config.sweeps import SlurmConfig
from nmt.config.trials import plan
from nmt.errors import Interrupted, UserError
from nmt.sweeps.attempts import Outcome
from nmt.sweeps.drive import sweep
from nmt.sweeps.slurm import SlurmJobs, run_job
from nmt.verbs import VERBS

SBATCH = r"""#!/bin/bash
# Run the tasks of an array one by one, in the background; a task that asks to be queued again is run again.
cp "$1" "$FAKE/submitted.$(ls $FAKE | grep -c submitted)"
id=$((100 + $(ls $FAKE | grep -c submitted)))
last=$(sed -n 's/^#SBATCH --array=0-\([0-9]*\).*/\1/p' "$1")
(
  for task in $(seq 0 ${last:-0}); do
    name=$id; [ -n "$last" ] && name=${id}_$task && export SLURM_ARRAY_JOB_ID=$id SLURM_ARRAY_TASK_ID=$task
    export SLURM_JOB_ID=$id$task; [ -n "$last" ] || export SLURM_JOB_ID=$id
    while [ ! -e $FAKE/cancelled.$name ]; do
      rm -f $FAKE/requeue.$SLURM_JOB_ID
      echo RUNNING > $FAKE/state.$name
      bash "$1" & echo $! > $FAKE/pid.$name; wait $!; code=$?
      [ -e $FAKE/requeue.$SLURM_JOB_ID ] || break
      echo again >> $FAKE/requeued
    done
    [ -e $FAKE/cancelled.$name ] && echo "CANCELLED by 0" > $FAKE/state.$name && continue
    [ $code = 0 ] && echo COMPLETED > $FAKE/state.$name || echo FAILED > $FAKE/state.$name
  done
) > $FAKE/log 2>&1 < /dev/null &
echo "Submitted batch job $id"
"""
SRUN = r"""#!/bin/bash
while [[ "$1" == --* ]]; do [[ "$1" == --output || "$1" == --error ]] && shift; shift; done
exec "$@"
"""
SACCT = r"""#!/bin/bash
echo "JobID|State|NodeList"
for file in $FAKE/state.*; do [ -e "$file" ] && echo "${file#*state.}|$(cat $file)|here"; done
true
"""
SCONTROL = r"""#!/bin/bash
touch $FAKE/requeue.$2
"""
SCANCEL = r"""#!/bin/bash
touch $FAKE/cancelled.$1; [ -e $FAKE/pid.$1 ] && pkill -TERM -P $(cat $FAKE/pid.$1); true
"""
SQUEUE = "#!/bin/bash\n"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-ins on PATH, and return the folder with what they know."""
    commands = {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scontrol": SCONTROL, "scancel": SCANCEL}
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {**commands, "squeue": SQUEUE}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    fake = tmp_path / "slurm"
    fake.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("FAKE", str(fake))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nmt.sweeps.slurm.FILE_SECONDS", 0.0)
    submitit.SlurmJob.watcher.clear()  # of jobs of other tests, which have the same numbers
    return fake


def test_a_job_that_would_be_asked_to_save_before_it_begins_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"save_seconds=90 must be less than the 60 seconds of sweep\.slurm\.min"
    ):
        SlurmConfig(minutes=1)


def test_what_is_asked_of_slurm(slurm: Path, tmp_path: Path) -> None:
    settings = [
        "sweep.launcher=slurm",
        "sweep.parallel=2",
        "sweep.slurm.partition=long",
        "sweep.slurm.gpus=1",
        "sweep.slurm.cpus=4",
        "sweep.slurm.minutes=90",
        "sweep.slurm.memory_gb=8",
        "sweep.slurm.setup=[module load cuda]",
        "sweep.slurm.options={qos:night}",
    ]
    chosen = plan(VERBS["train"], ["-m", "sweep.dir=sweep", "seed=1,2,3", *settings])
    runner = SlurmJobs(chosen.cfg, "train", report, chosen.folder, slots=3, at_once=2)
    executor = runner._executor
    executor.parameters["map_count"] = 3
    asked = executor._make_submission_file_text("COMMAND", "x").splitlines()
    for option in (
        "array=0-2%2",
        "partition=long",
        "gpus-per-node=1",
        "cpus-per-task=4",
        "time=90",
        "mem=8192MB",
        "qos=night",
        "signal=USR1@90",
        "requeue",
    ):
        assert f"#SBATCH --{option}" in asked
    assert "module load cuda" in asked


def test_without_slurm_there_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    cfg = plan(VERBS["train"], ["-m", "seed=1"]).cfg
    with pytest.raises(UserError, match=r'sweep.launcher=slurm: Could not detect "srun"'):
        SlurmJobs(cfg, "train", report, tmp_path, 1, 1)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError) as refused:
        SlurmJobs(cfg, "train", report, tmp_path, 1, 1)
    assert str(refused.value) == "sweep.launcher=slurm needs submitit: pip install 'nmt[slurm]'"


@pytest.mark.parametrize(("scancel", "signals"), [("echo no controller >&2; exit 1", 1), ("true", 2)])
def test_a_job_that_cannot_be_cancelled_is_left_and_found_again(
    scancel: str,
    signals: int,
    slurm: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in {
        "sbatch": "echo Submitted batch job 7",
        "sacct": "echo 'JobID|State|NodeList'; echo '7_0|RUNNING|here'; echo '7_1|RUNNING|here'",
        "scancel": scancel,
    }.items():
        Path("bin", name).write_text(f"#!/bin/bash\n{text}\n")
    command = ["-m", "sweep.dir=sweep", "seed=1,2", "sweep.launcher=slurm", "sweep.slurm.poll_seconds=0.1"]
    poll = SlurmJobs.ended

    def interrupted(jobs: SlurmJobs, seconds: float) -> list[tuple[str, Outcome]]:
        for _ in range(signals):
            signal.raise_signal(signal.SIGINT)
        return poll(jobs, seconds)

    monkeypatch.setattr(SlurmJobs, "ended", interrupted)
    for begins in ("starts", "is job 7_0 of Slurm"):
        with pytest.raises(Interrupted):
            sweep(plan(VERBS["train"], command), lambda trial: {}, report)
        shown = capfd.readouterr()
        assert f"[1/2] seed-1 {begins}\n" in shown.err
        assert "seed-1: left to Slurm as job 7_0; the same command finds it again" in shown.out
        assert ("scancel 7_0 failed: no controller" in shown.err) == (signals == 1)


def test_slurm_is_asked_once_for_all_jobs(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the disk is slow."""
    file = SlurmJobs._file

    def slow(jobs: SlurmJobs, name: str) -> Path:
        time.sleep(0.002)
        return file(jobs, name)

    monkeypatch.setattr(SlurmJobs, "_file", slow)
    for name, text in {
        "sbatch": "echo Submitted batch job 7",
        "sacct": "echo >> $FAKE/asked; echo 'JobID|State'; for n in 0 1 2; do echo 7_$n\\|RUNNING; done",
    }.items():
        Path("bin", name).write_text(f"#!/bin/bash\n{text}\n")
    chosen = plan(VERBS["train"], ["-m", "sweep.dir=sweep", "seed=1,2,3", "sweep.slurm.poll_seconds=0.01"])
    runner = SlurmJobs(chosen.cfg, "train", report, chosen.folder, slots=3, at_once=3)
    runner.start(chosen.trials)
    assert [runner.ended(0.0), runner.ended(0.0)] == [[], []]
    assert (slurm / "asked").read_text() == "\n\n"
    again = SlurmJobs(chosen.cfg, "train", report, chosen.folder, slots=3, at_once=3)
    assert again.attach({f"seed-{n + 1}": f"7_{n}" for n in (0, 1, 2, 3)}) == ["seed-1", "seed-2", "seed-3"]
    assert again.running() == ["seed-1", "seed-2", "seed-3"]
    assert (slurm / "asked").read_text() == "\n\n\n"


def test_jobs_of_a_search_are_found_again(
    slurm: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "sbatch": "echo >> $FAKE/submitted; echo Submitted batch job 7",
        "sacct": "echo 'JobID|State|NodeList'; for job in 7_0 7_1; do echo \"$job|RUNNING|here\"; done",
        "scancel": "true",
    }.items():
        Path("bin", name).write_text(f"#!/bin/bash\n{text}\n")
    command = ["-m", "sweep.dir=sweep", "schedule.factor=interval(0.5,2)", "sweep.trials=3"]
    settings = ["sweep.launcher=slurm", "sweep.slurm.poll_seconds=0.1"]
    poll = SlurmJobs.ended

    def interrupted(jobs: SlurmJobs, seconds: float) -> list[tuple[str, Outcome]]:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        return poll(jobs, seconds)

    monkeypatch.setattr(SlurmJobs, "ended", interrupted)
    for parallel, begins in ((2, "starts"), (1, "is job 7_0 of Slurm")):
        chosen = plan(VERBS["train"], [*command, *settings, f"sweep.parallel={parallel}"])
        with pytest.raises(Interrupted):
            sweep(chosen, lambda trial: {}, report)
        shown = capfd.readouterr()
        assert re.search(rf"^\[1/3\] 000\S+ {begins}$", shown.err, re.MULTILINE)
        assert "[3/3]" not in shown.err
        assert shown.out.count("left to Slurm as job 7_") == 2
    assert (slurm / "submitted").read_text() == "\n"


def test_attempts_that_were_stopped_count_in_what_a_job_has_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queued again, or cancelled and submitted anew; what is told once is not told again."""
    file = tmp_path / "seed-0.1.json"
    monkeypatch.setattr("nmt.sweeps.slurm.os._exit", lambda code: None)
    for code, told in ((138, None), (143, None), (0, (6.0, 3.0)), (0, (2.0, 1.0))):
        ended = code, Outcome(results={}, seconds=2.0, cpu_seconds=1.0)
        monkeypatch.setattr("nmt.sweeps.slurm.attempt", lambda *_, ended=ended: ended)
        file.unlink(missing_ok=True)
        run_job("train", [], report, 1, file)
        found = json.loads(file.read_text()) if file.exists() else {}
        assert (found["seconds"], found["cpu_seconds"]) == told if told else not found


def test_what_slurm_refuses_is_one_error(slurm: Path) -> None:
    Path("bin/sbatch").write_text("#!/bin/bash\necho 'sbatch: error: invalid partition' >&2; exit 1\n")
    command = ["-m", "sweep.dir=sweep", "seed=1", "sweep.launcher=slurm"]
    with pytest.raises(UserError, match=r"the jobs cannot be submitted: .*invalid partition"):
        sweep(plan(VERBS["train"], command), lambda trial: {}, report)


TINY = [
    "data=toy",
    "experiment=none",
    "model=transformer_tiny",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "tokenizer=char",
    "trainer.batch_tokens=512",
    "trainer.max_steps=20",
    "trainer.save_every_steps=1",
    "trainer.eval_every_steps=20",
    "data.scored_split=validation",
    "decoding=greedy",
    "decoding.max_length_ratio=0.1",
    "runtime.threads=1",
]


def preempt(fake: Path, run: Path, job: str) -> None:
    """Ask a job to save, as Slurm does before its limit, once its training has begun."""
    limit = time.monotonic() + 120
    while not list(run.glob("checkpoints/step_*")) and time.monotonic() < limit:
        time.sleep(0.05)
    subprocess.run(["pkill", "-USR1", "-P", (fake / f"pid.{job}").read_text().strip()], check=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_jobs_go_on_after_a_preemption_and_are_found_again(
    slurm: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two trainings; the first is asked to save by Slurm, queued again and goes on."""
    command = ["-m", "sweep.dir=sweep", "seed=1,2", "sweep.launcher=slurm", "sweep.slurm.poll_seconds=0.2"]
    preempting = threading.Thread(target=preempt, args=(slurm, Path("sweep/seed-1").absolute(), "101_0"))
    preempting.start()
    assert sweep(plan(VERBS["train"], [*command, *TINY]), lambda trial: {}, report) == 0
    preempting.join()
    found = json.loads(Path("sweep/sweep.json").read_text())["trials"]
    assert {one["state"] for one in found} == {"done"}
    assert {one["job"] for one in found} == {"101_0", "101_1"}
    assert all(one["cpu_seconds"] > 0 and one["updates"] == 20 for one in found)
    assert (slurm / "requeued").read_text() == "again\n"
    assert "going on after step" in Path("sweep/seed-1/train.log").read_text()
    assert len(list(slurm.glob("submitted.*"))) == 1
    file = Path("sweep/sweep.json")  # as a command leaves it that was killed while its jobs were running
    file.write_text(file.read_text().replace('"state": "done"', '"state": "running"'))
    Path("sweep/seed-1/results.json").unlink()
    capfd.readouterr()
    assert sweep(plan(VERBS["train"], [*command, *TINY]), lambda trial: {}, report) == 0
    assert "seed-1 is job 101_0 of Slurm" in capfd.readouterr().err
    assert len(list(slurm.glob("submitted.*"))) == 1
    file.write_text(file.read_text().replace('"state": "done"', '"state": "failed"', 1))
    assert sweep(plan(VERBS["train"], [*command, *TINY]), lambda trial: {}, report) == 0
    assert capfd.readouterr().err.count(" starts\n") == 1  # what has failed, or lacks results, and no other
    assert len(list(slurm.glob("submitted.*"))) == 2
    assert sweep(plan(VERBS["train"], [*command, *TINY]), lambda trial: {}, report) == 0
    assert len(list(slurm.glob("submitted.*"))) == 2


@pytest.mark.slow
def test_a_job_that_fails_or_is_cancelled_has_its_reason(slurm: Path) -> None:
    command = ["-m", "sweep.dir=sweep", "data.train=nowhere", "data=files", "data.src=a", "data.tgt=b"]
    command += ["data.validation=nowhere", "data.test=nowhere", "seed=1,2"]
    command += ["sweep.launcher=slurm", "sweep.slurm.poll_seconds=0.2"]
    assert sweep(plan(VERBS["train"], command), lambda trial: {}, report) == 3
    reasons = {one["reason"] for one in json.loads(Path("sweep/sweep.json").read_text())["trials"]}
    assert all("nowhere" in reason for reason in reasons), reasons
