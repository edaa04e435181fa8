"""Files of a stranger, damaged in thousands of ways: every one is read, or refused with one message.

    python scripts/fuzz.py --cases 10000

A case takes a good file, mutates it, and reads it with the function that reads such a file, or with a whole
command. Good are a result and an error that the user is meant to see (`NmtError`, exit code 2 or 4). A
traceback, a crash, more than 20 seconds of CPU or 1,500 MB is a failure: the mutated files are kept, and
the exit code is 1. Where a hash protects a file, half of the cases have the hash of the mutated file, as a
stranger's file would. One JSON object per target.

A case runs in a fork of this process, with a limit to its memory and an alarm; seeds make it repeatable.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}  # before torch is imported

import argparse
import contextlib
import gzip
import hashlib
import json
import multiprocessing
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nmt import cli
from nmt.config.compose import compose
from nmt.config.stored import load_config
from nmt.data.parallel_text import Split
from nmt.data.reading.bundled_data import DemoData
from nmt.data.reading.files import FilesData
from nmt.data.reading.sources import load
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.errors import NmtError
from nmt.runs.opening import open_run
from nmt.training.checkpoint import CheckpointStore
from nmt.training.train_state import TrainState
from nmt.verbs import VERBS

SECONDS = 20
MEGABYTES = 1500
BATCH = 20
"""Cases of one fork: it begins with the same memory, and a crash costs at most the rest of them."""

STEP = 4
TRAINING = f"""
train data=toy tokenizer.vocab_size=60 model=transformer_tiny model.d_model=16 model.d_ff=32 model.num_heads=2
decoding=greedy trainer.max_steps={STEP} trainer.eval_every_steps={STEP} trainer.average=1 runtime.threads=1
runtime.device=cpu tracking.sinks=[jsonl]
""".split()

TOKENS = [
    *(b"NaN", b"Infinity", b"-1", b"1e999", b"99999999999999999999", b"9" * 5000, b"0x_", b"null"),
    *(b"{}", b"[]", b"[" * 5000, b"{" * 5000, b'{"a":' * 5000, b"'", b'"', b"\n", b": ", b"? ", b"---\n"),
    *(b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\x1b[2J", b"\r", b"\t"),
    *("\u2028".encode(), "\u202e".encode(), b"../../../etc/passwd", b"/etc/passwd"),
    *(b"!!int abc", b"!!python/object/apply:os.system [id]", b"!!timestamp 2001-99-99", b"&a [*a]", b"*a"),
    *(b"${oc.env:HOME}", b"${run}", b"_target_: os.system\n", b"hydra:\n  run: {dir: x}\n"),
]


VALUES = [
    *TOKENS,
    b"0",
    b"1",
    b"-0.5",
    b"0.5",
    b"1e-9",
    b"1e9",
    b"123456789",
    b"true",
    b"''",
    b"[1]",
    b"{a: 1}",
]


def with_other_value(text: bytes, rng: random.Random) -> bytes:
    """Return YAML or JSON in which one value is another; the rest stays well-formed."""
    begin, end = rng.choice([match.span() for match in re.finditer(rb"(?<=: )[^\n,{}\[\]]+|^", text)])
    return text[:begin] + rng.choice(VALUES) + text[end:]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with one to four random changes."""
    if b": " in data and rng.random() < 0.5:
        return with_other_value(data, rng)
    for _ in range(rng.choice([1, 1, 2, 4])):
        begin = rng.randrange(len(data) + 1)
        end = min(len(data), begin + rng.choice([1, 1, 2, 8, 64, 4096]))
        part = data[begin:end]
        replacements = {
            "flip": bytes(byte ^ (1 << rng.randrange(8)) for byte in part),
            "delete": b"",
            "repeat": part * rng.choice([2, 3, 100]),
            "clear": bytes(len(part)),
            "scramble": rng.randbytes(len(part)),
            "replace": rng.choice(TOKENS),
            "insert": rng.choice(TOKENS) + part,
        }
        replacement = replacements[rng.choice(list(replacements))]
        data = data[:begin] + replacement + data[end:]
        if rng.random() < 0.05:
            data = data[: rng.randrange(len(data) + 1)]
    return data


@dataclass(frozen=True)
class Target:
    """A file to mutate, and how it is read."""

    name: str
    file: Path
    read: Callable[[Path], object]
    """A function of the folder that the file lies in, a copy of `folder`."""
    folder: Path
    share: int = 1
    """How many cases this target gets, compared with the others."""


def make_run(folder: Path) -> Path:
    """Train a tiny model and return its run directory."""
    run = folder / "run"
    if cli.main([*TRAINING, f"run={run}"]) != 0:
        raise SystemExit("the training of the run to mutate failed")
    return run


def make_corpus(folder: Path) -> Path:
    """Write one corpus in every format and return its folder."""
    corpus = folder / "corpus"
    corpus.mkdir()
    text = load(DemoData(), Split.validation)
    src, tgt = text.src[:40], text.tgt[:40]
    plain = {"en": "".join(f"{x}\n" for x in src), "de": "".join(f"{x}\n" for x in tgt)}
    for language, lines in plain.items():
        (corpus / f"plain.{language}").write_text(lines)
        (corpus / f"packed.{language}.gz").write_bytes(gzip.compress(lines.encode()))
    rows = "".join(f"{a}\t{b}\n" for a, b in zip(src, tgt, strict=True))
    (corpus / "table.tsv").write_text("en\tde\n" + rows)
    objects = [json.dumps({"en": a, "de": b}) for a, b in zip(src, tgt, strict=True)]
    (corpus / "objects.jsonl").write_text("".join(f"{x}\n" for x in objects))
    return corpus


def make_choices(folder: Path) -> Path:
    """Write a folder for `--config-dir` and return it."""
    choices = folder / "choices"
    (choices / "experiment").mkdir(parents=True)
    (choices / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /model: rnn_luong\n  - override /schedule: cosine\n"
        "trainer:\n  max_steps: 100\nschedule:\n  warmup_steps: 10\n"
        "model:\n  d_model: 64\n  dropout: 0.1\nseed: 3\n"
    )
    return choices


def targets(folder: Path) -> list[Target]:
    """Return all targets; their good files are made in `folder`."""
    run, corpus, choices = make_run(folder), make_corpus(folder), make_choices(folder)
    step = Path("checkpoints") / f"step_{STEP:08d}"
    found = [
        Target("config.yaml", Path("config.yaml"), lambda path: load_config(path / "config.yaml"), run, 4),
        Target("tokenizer.model", Path("tokenizer.model"), _read_tokenizer, run, 3),
    ]
    tensors = ("model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json")
    found += [Target(f"step/{name}", step / name, _read_checkpoint, run, 3) for name in tensors]
    commands = {
        **{str(step / name): ("evaluate", "checkpoint=last") for name in tensors},
        "checkpoints/average/model.safetensors": ("translate", "checkpoint=average"),
        "checkpoints/average/state.json": ("evaluate", "checkpoint=average"),
        "config.yaml": ("evaluate",),
        "tokenizer.model": ("translate",),
        **{str(path.relative_to(run)): ("evaluate",) for path in sorted((run / "data").iterdir())},
        "MANIFEST.json": ("translate",),
        "environment.json": ("evaluate",),
        "status.json": ("train", *TRAINING[1:]),
        "results.json": ("train", *TRAINING[1:]),
        "data/train.json": ("train", *TRAINING[1:], f"trainer.max_steps={STEP + 1}"),
        "metrics.jsonl": ("train", *TRAINING[1:], f"trainer.max_steps={STEP + 1}"),
        str(step / "state.json") + " ": ("train", *TRAINING[1:], f"trainer.max_steps={STEP + 1}"),
    }
    found += [
        Target(f"nmt {command[0]}, {name.strip()}", Path(name.strip()), _command(*command), run)
        for name, command in commands.items()
    ]
    for name in ("plain.en", "packed.en.gz", "table.tsv", "objects.jsonl"):
        place = name.removesuffix(".en").replace("packed.en.gz", "packed.{lang}.gz")
        found.append(Target(f"corpus/{name}", Path(name), _read_corpus(place), corpus, 4))
    experiment = Path("experiment") / "mine.yaml"
    found.append(Target("--config-dir", experiment, _compose, choices, 3))
    return found


def _read_tokenizer(run: Path) -> object:
    tokenizer = Tokenizer.load(load_config(run / "config.yaml").tokenizer, run)
    ids = tokenizer.encode_src(["a little house", "über ⁇ \u2028 x"])
    return [tokenizer.decode(line) for line in ids if max(line) < tokenizer.tgt_vocab_size]


def _read_checkpoint(run: Path) -> object:
    TrainState.stored_in(CheckpointStore(run / "checkpoints").load(STEP).state)
    return open_run(run, checkpoint=str(STEP))


def _read_corpus(place: str) -> Callable[[Path], object]:
    return lambda corpus: load(FilesData(src="en", tgt="de", train=str(corpus / place)), Split.train)


def _compose(choices: Path) -> object:
    (trial,) = compose(VERBS["train"], ["--config-dir", str(choices), "experiment=mine"])
    return trial.to_training()


def _command(verb: str, *arguments: str) -> Callable[[Path], object]:
    def read(run: Path) -> None:
        (run / "input").write_text("a little house\n")
        with (run / "input").open(encoding="utf-8") as sys.stdin:
            code = cli.main([verb, *arguments, f"run={run}", "runtime.device=cpu"])
        if code not in (0, 2, 4):
            raise AssertionError(f"exit code {code}")
        if code:
            raise NmtError

    return read


def reseal(folder: Path, file: Path) -> None:
    """Make the manifests in `folder` agree with `file`, as the maker of a malicious file would."""
    data = (folder / file).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    sealed: dict[str, object] = {"size": len(data), "sha256": digest}
    for manifest in (path for path in folder.rglob("MANIFEST.json") if path != folder / file):
        content = json.loads(manifest.read_text())
        name = os.path.relpath(folder / file, manifest.parent)
        if name in content:  # that of a run
            content[name] = digest
        elif name in content.get("files", {}):  # that of a checkpoint
            content["files"][name] = sealed
        manifest.write_text(json.dumps(content))


def run_case(target: Target, seed: str, work: Path) -> str:
    """Read one mutated file and return the outcome; raises what the reader raises by mistake."""
    rng = random.Random(seed)
    folder = work / "case"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(target.folder, folder)
    (folder / target.file).write_bytes(mutated((folder / target.file).read_bytes(), rng))
    if rng.random() < 0.5:
        reseal(folder, target.file)
    with _quiet():
        try:
            target.read(folder)
        except NmtError:
            return "refused"
    return "accepted"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        streams = sys.stdin, sys.stdout, sys.stderr
        sys.stdout = sys.stderr = nowhere
        try:
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = streams


def run_batch(target: Target, seeds: Sequence[str], work: Path, pipe: Any) -> None:
    """Run cases in this process, a fork, and send (seed, outcome, text) before and after each."""
    limit = _virtual_bytes() + MEGABYTES * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for seed in seeds:
        pipe.send((seed, "started", ""))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # seconds of CPU, whatever else the machine does
        signal.alarm(15 * SECONDS)  # a case that waits
        try:
            pipe.send((seed, run_case(target, seed, work), ""))
        except (Exception, SystemExit):
            pipe.send((seed, "failed", traceback.format_exc(limit=-3)))
    pipe.close()


def _virtual_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def require_good(target: Target, work: Path) -> None:
    """Read the good file in a fork, so that a refusal of every mutated one means something."""

    def read() -> None:
        shutil.copytree(target.folder, work / "good")
        with _quiet():
            target.read(work / "good")

    process = multiprocessing.get_context("fork").Process(target=read)
    process.start()
    process.join()
    shutil.rmtree(work / "good")
    if process.exitcode:
        raise SystemExit(f"{target.name}: the file to mutate is refused itself")


def fuzz(target: Target, cases: int, seed: int, work: Path) -> dict[str, Any]:
    """Run all cases of a target and return the figures."""
    require_good(target, work)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    started = time.monotonic()
    pending = [f"{seed}/{target.name}/{number}" for number in range(cases)]
    while pending:
        receive, send = multiprocessing.Pipe(duplex=False)
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=run_batch, args=(target, pending[:BATCH], work, send))
        process.start()
        send.close()
        case = outcome = text = ""
        with contextlib.suppress(EOFError):
            while True:
                case, outcome, text = receive.recv()
                if outcome == "started":
                    continue
                pending.remove(case)
                counts[outcome] += 1
                if outcome == "failed":
                    failures.append(keep(case, text, work))
        process.join()
        if outcome == "started":  # the process ended in the middle of this case
            pending.remove(case)
            counts["failed"] += 1
            failures.append(keep(case, f"the process ended with {process.exitcode}", work))
    return {"cases": cases, **counts, "seconds": round(time.monotonic() - started), "failures": failures}


def keep(case: str, text: str, work: Path) -> str:
    """Keep the files of a case that failed, and return a line about it."""
    kept = work / case.replace("/", "_").replace(" ", "_")
    with contextlib.suppress(OSError):
        shutil.copytree(work / "case", kept)
    return f"{kept}: {text.strip().splitlines()[-1]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz the chosen targets and return 1 if any case failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000, help="number of cases over all targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="", help="only the targets whose name contains this text")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    with _quiet():
        chosen = [target for target in targets(folder) if options.target in target.name]
    shares = sum(target.share for target in chosen)
    failed = 0
    for target in chosen:
        figures = fuzz(target, -(-options.cases * target.share // shares), options.seed, folder)
        failed += figures.get("failed", 0)
        print(json.dumps({"target": target.name, **figures}), flush=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(json.dumps({"failed": failed, "peak_mb": round(peak)}))
    if not failed:
        shutil.rmtree(folder)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
