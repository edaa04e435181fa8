"""Trainings that are killed at random instants must end with the very bits of one that was left alone.

    python scripts/soak.py --kills 200

Each scenario is trained once without interruption. Then the same command is started again and again in a new
run directory, and each time killed by SIGKILL in a phase drawn at random, until it ends by itself; then the
next run directory begins. Weights, optimizer, average, progress, metrics and hypotheses of every run must
equal those of the uninterrupted one, except for clock times. One JSON object per scenario: the number of
kills by phase, and the number of runs that ended identical; the exit code is 1 if any did not.

Every start is a fork of this process, which has imported everything: 200 kills take minutes, not hours.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}  # before torch is imported

import argparse
import hashlib
import json
import random
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils.tensorboard

from nmt import cli, kernels
from nmt.data.parallel_text import Split
from nmt.data.reading.bundled_data import DemoData
from nmt.data.reading.sources import load
from nmt.runs import train

STEPS = 60
EVAL_EVERY = 20
TIMEOUT_SECONDS = 300
"""Longest time of one start: a run that takes longer hangs."""
POLL_SECONDS = 0.001
TERM_SECONDS, KILL_SECONDS = 10, 30
"""Times that the other ranks have to end by themselves, and after SIGTERM."""

COMMON = f"""
train data=files data.src=en data.tgt=de tokenizer.vocab_size=600 model=transformer_tiny model.d_model=32
model.d_ff=64 model.num_heads=2 model.dropout=0.3 schedule.warmup_steps=20 decoding=greedy
trainer.batch_tokens=512 trainer.max_steps={STEPS} trainer.save_every_steps=10 trainer.log_every_steps=5
trainer.eval_every_steps={EVAL_EVERY} trainer.keep_last=4 trainer.average=3 runtime.threads=1
runtime.device=cpu
""".split()


@dataclass(frozen=True)
class Scenario:
    """Overrides of a training, and the number of its processes."""

    overrides: Sequence[str]
    ranks: int = 1


SCENARIOS = {
    "accumulation": Scenario(["trainer.accumulate=2"]),
    "sampling": Scenario(
        ["trainer.accumulate=4", "tokenizer.sampling_alpha=0.1", "objective.label_smoothing=0.1"]
    ),
    "stream": Scenario(["data.streaming=true", "data.buffer_pairs=400", "tokenizer.sampling_alpha=0.1"]),
    "two ranks": Scenario(["trainer.accumulate=2", "tokenizer.sampling_alpha=0.1"], ranks=2),
}


def write_corpus(folder: Path) -> list[str]:
    """Write pairs of the demo to text files and return the overrides that name the files."""
    overrides = []
    for split, size in ((Split.train, 3000), (Split.validation, 100), (Split.test, 100)):
        text = load(DemoData(), split)
        for language, lines in (("en", text.src), ("de", text.tgt)):
            (folder / f"{split.value}.{language}").write_text("".join(f"{x}\n" for x in lines[:size]))
        overrides.append(f"data.{split.value}={folder / split.value}")
    return overrides


def start(command: Sequence[str], scenario: Scenario, log: Path) -> list[int]:
    """Start the processes of a training and return their process ids."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(scenario.ranks):
        child = os.fork()
        if child:
            children.append(child)
            continue
        if scenario.ranks > 1:
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": scenario.ranks, "MASTER_PORT": port}
            os.environ |= {key: str(value) for key, value in ranks.items()} | {"MASTER_ADDR": "127.0.0.1"}
        _run(command, log)
    return children


def _run(command: Sequence[str], log: Path) -> None:
    """Run the command line in this process, a fork, and end the process."""
    code = 1
    try:
        nowhere = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        code = cli.main(list(command))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def phase(run: Path) -> str:
    """Return what the training in `run` is doing, as its files show."""
    if not (run / "config.yaml").exists():
        return "start"
    if not list(run.glob("tokenizer*.model")):
        return "tokenizer"
    if list(run.glob("checkpoints/.*")):
        return "save"
    if list(run.glob("checkpoints/average")):
        return "scoring"
    records = _records(run)
    if not records:
        return "encoding"
    step = records[-1]["step"]
    validated = any("valid/loss" in record for record in records if record["step"] == step)
    return "validation" if step % EVAL_EVERY == 0 and not validated else "update"


PHASES = ("start", "tokenizer", "encoding", "update", "validation", "save", "scoring")


def _records(run: Path) -> list[dict[str, Any]]:
    file = run / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    records = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except ValueError:  # being written
            break
    return records


def kill_in(wanted: str, children: Sequence[int], victim: int, run: Path, delay: float) -> str | None:
    """Wait until the run is in the phase `wanted`, then `delay` seconds; kill `victim` and return the phase.

    Return None when the training ended before. `victim` is one of the ranks; the others have to notice.
    """
    due = None
    started = time.monotonic()
    while not _ended(children):
        now = time.monotonic()
        if now - started > TIMEOUT_SECONDS:
            raise SystemExit(f"{run} hangs in the phase {phase(run)}")
        if due is None and phase(run) == wanted:
            due = now + delay
        if due is not None and now >= due:
            met = phase(run)
            os.kill(victim, signal.SIGKILL)
            return met
        time.sleep(POLL_SECONDS)
    return None


def _ended(children: Sequence[int]) -> bool:
    """Return whether a child has ended; it stays a zombie, so that its process id is not given away."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return any(os.waitid(os.P_PID, child, flags) is not None for child in children)


def end_others(children: Sequence[int]) -> None:
    """Do what torchrun does when one of several ranks has ended: send SIGTERM to the others, then SIGKILL."""
    for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        deadline = time.monotonic() + seconds
        while (left := [child for child in children if not _ended([child])]) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        for child in left:
            os.kill(child, number)


def wait(children: Sequence[int]) -> list[int]:
    """Wait for all children and return their exit codes; raise `SystemExit` when one does not end."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    codes = []
    for child in children:
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                codes.append(os.waitstatus_to_exitcode(status))
                break
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                raise SystemExit(f"process {child} did not end within {TIMEOUT_SECONDS} seconds of a kill")
            time.sleep(POLL_SECONDS)
    return codes


def digest(run: Path) -> dict[str, str]:
    """Return a hash for every part of the end of a training that no interruption may change."""
    last = run / "checkpoints" / f"step_{STEPS:08d}"
    state = json.loads((last / "state.json").read_text())
    state["progress"] = _without_times(state["progress"])
    state["progress"].pop("window")  # sums of times among others
    records = [_without_times(record) for record in _records(run)]
    content = {
        "model": (last / "model.safetensors").read_bytes(),
        "optimizer": (last / "optimizer.safetensors").read_bytes(),
        "average": b"".join(  # if it won
            file.read_bytes() for file in run.glob("checkpoints/average/*.safetensors")
        ),
        "progress": json.dumps(state, sort_keys=True).encode(),
        "metrics": json.dumps(records, sort_keys=True).encode(),
        "hypotheses": b"".join(path.read_bytes() for path in sorted(run.glob("hypotheses/**/*.de"))),
        "results": json.dumps(_without_times(json.loads((run / "results.json").read_text()))).encode(),
        "text left behind": " ".join(sorted(_leftovers(run))).encode(),
    }
    return {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}


def _without_times(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if not re.search("second|mfu", key)}


def _leftovers(run: Path) -> list[str]:
    """Return the names of temporary files; the lock and the display belong to a run."""
    return [path.name for path in run.rglob(".*") if path.name != ".lock"]


class Soak:
    """The kills of one scenario; every run directory begins with an empty cache."""

    def __init__(self, name: str, folder: Path, corpus: Sequence[str], rng: random.Random):
        self.scenario = SCENARIOS[name]
        self.folder = folder / name.replace(" ", "_")
        self.command = [*COMMON, *corpus, *self.scenario.overrides]
        self.rng = rng
        self.kills: Counter[str] = Counter()
        self.identical = 0
        self.different: list[str] = []
        started = time.monotonic()
        self.expected = self._straight()
        self.longest = time.monotonic() - started

    def run(self, num_kills: int) -> dict[str, Any]:
        """Kill `num_kills` times, end the last run, and return the figures."""
        while self.kills.total() < num_kills:
            self._one_run(num_kills)
        return {
            "kills": self.kills.total(),
            "by phase": dict(self.kills),
            "runs": self.identical + len(self.different),
            "identical": self.identical,
            "different": self.different,
        }

    def _straight(self) -> dict[str, str]:
        run = self._fresh("straight")
        codes = wait(start([*self.command, f"run={run}"], self.scenario, run.with_suffix(".log")))
        if any(codes):
            raise SystemExit(f"the uninterrupted training failed, see {run.with_suffix('.log')}")
        return digest(run)

    def _fresh(self, name: str) -> Path:
        """Return a run directory that does not exist, and set up an empty cache."""
        cache = self.folder / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        os.environ["NMT_CACHE"] = str(cache)
        return self.folder / name

    def _one_run(self, num_kills: int) -> None:
        run = self._fresh(f"run_{self.identical + len(self.different):03d}")
        log = run.with_suffix(".log")
        while True:
            children = start([*self.command, f"run={run}"], self.scenario, log)
            enough = self.kills.total() >= num_kills
            victim = self.rng.choice(children)
            met = None if enough else kill_in(self._rarest(run), children, victim, run, self._delay())
            if met is not None:
                end_others(children)
            codes = wait(children)
            if met is not None:
                self.kills[met] += 1
            elif any(codes):
                self.different.append(f"{run}: exit codes {codes}, see {log}")
                return
            else:
                break
        found = digest(run)
        wrong = [name for name, value in self.expected.items() if found[name] != value]
        if wrong:
            self.different.append(f"{run}: {', '.join(wrong)}")
        else:
            self.identical += 1
            shutil.rmtree(run)
            log.unlink()

    def _rarest(self, run: Path) -> str:
        """Return the phase to kill in: one of those still ahead, the ones met least often more likely."""
        ahead = PHASES if not (run / "checkpoints").exists() else PHASES[3:]
        weights = [1 / (1 + self.kills[name]) for name in ahead]
        return self.rng.choices(ahead, weights)[0]

    def _delay(self) -> float:
        """Return a delay in seconds: mostly short, as phases are, at times as long as a whole run."""
        return self.rng.choice([0.02, 0.1, 0.5, self.longest]) * self.rng.random()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen scenarios and return 1 if any run ended otherwise than the uninterrupted one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="number of kills over all scenarios")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="default: all")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    names = options.scenario or list(SCENARIOS)
    failed = False
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    corpus = write_corpus(folder)
    for number, name in enumerate(names):
        share = options.kills * (number + 1) // len(names) - options.kills * number // len(names)
        figures = Soak(name, folder, corpus, rng).run(share)
        print(json.dumps({"scenario": name, **figures}), flush=True)
        failed |= bool(figures["different"])
    if not failed:
        shutil.rmtree(folder)
    return int(failed)


IMPORTED = torch.utils.tensorboard, train
"""What a training imports late: it is here before the first fork."""
kernels.load()  # before the first fork, and before $NMT_CACHE names another folder

if __name__ == "__main__":
    raise SystemExit(main())
