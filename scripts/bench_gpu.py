"""One command for a machine with one GPU: its tests, training in every mode, search with and without graphs.

    python scripts/bench_gpu.py                              # at most ten minutes
    python scripts/bench_gpu.py --minutes 30 --output FILE.jsonl
    python scripts/bench_gpu.py --device cpu --tiny    # to try the script; compiling takes minutes

No data is needed: pairs are drawn here, shaped as those of WMT (words by Zipf's law, some 27 pieces on either
side, 32,000 kinds of pieces). Every row is a process of its own, so that none takes the others along, and is
a line of JSON as soon as it ends; the table comes last. A row that the time does not suffice for is named.
Speed counts target tokens, EOS included and padding never, as `nmt train` does. Verdicts: `ok`, `slower than`
the first mode of the same model, another loss than there, or `failed` and the last line of the error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from benchmarking import ROOT, Record, machine, markdown

if TYPE_CHECKING:
    from nmt.config.roots import TrainConfig
    from nmt.data.encoded_pairs import EncodedPairs

MODES = {
    "eager": [],
    "compiled": ["runtime.compile=true"],
    "muon": ["optimizer=muon"],
    "fp16": ["runtime.precision=fp16"],
}
"""Mode of training -> its overrides."""
SEARCHES = {
    "beam 5": ["decoding=beam"],
    "beam 5, graphs": ["decoding=beam", "decoding.cuda_graphs=true"],
    "beam 5, fp32": ["decoding=beam", "decoding.precision=fp32"],
    "greedy": ["decoding=greedy"],
    "greedy, graphs": ["decoding=greedy", "decoding.cuda_graphs=true"],
}
SHORTEST_ROW = 15
"""Seconds below which a row is not begun."""
LONGEST_ROW = 180
LONGEST_TESTS = 300
SLOWER = ("muon", "beam 5, fp32")
"""Modes that do more than the first one, and need not be as fast."""
NOISE = 0.97
"""Share of the speed of the first mode down to which a mode counts as no slower."""
LOSS_TOLERANCE = 0.1
"""Nats by which the losses of two modes may differ at the same update: dropout and rounding differ."""
COLUMNS = {
    "what": "{}",
    "mode": "{}",
    "tokens_per_second": "{:,.0f}",
    "sentences_per_second": "{:,.0f}",
    "mfu": "{:.1%}",
    "memory_gb": "{:.1f}",
    "padding": "{:.1%}",
    "loss": "{:.3f}",
    "as_first": "{:.1%}",
    "start_seconds": "{:.0f}",
    "verdict": "{}",
}


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--minutes", type=float, default=10.0, help="time for everything")
    made.add_argument("--device", default="cuda")
    made.add_argument("--tiny", action="store_true", help="small models, few sentences and updates")
    made.add_argument("--batch-tokens", type=int, default=25_000, help="of a batch in training")
    made.add_argument("--only", default="", help="only rows whose name has this, such as transformer_big")
    made.add_argument("--output", type=Path, help="file that gets the lines of JSON, too")
    return made


def rows(args: argparse.Namespace) -> list[Record]:
    """Return what is to be measured, in order."""
    small, large = ("transformer_tiny",) * 2 if args.tiny else ("transformer_base", "transformer_big")
    train: list[Record] = [{"kind": "train", "model": model} for model in dict.fromkeys((large, small))]
    found = [row | {"mode": "eager"} for row in train]
    found += [{"kind": "search", "model": small, "mode": mode} for mode in SEARCHES]
    found += [train[-1] | {"mode": mode} for mode in ("muon", "fp16")]
    found += [row | {"mode": "compiled"} for row in train]  # last: how long that takes is unknown
    found = [{"kind": "tests", "model": "", "mode": "pytest -m gpu"}, *found]
    for row in found:
        row["what"] = f"{row['kind']} {row['model']}".strip()
        row["overrides"] = {**MODES, **SEARCHES}.get(row["mode"], [])
        row |= {"device": args.device, "tiny": args.tiny, "batch_tokens": args.batch_tokens}
    return [row for row in found if args.only in f"{row['what']} {row['mode']}"]


def main(args: argparse.Namespace) -> None:
    """Measure all rows and print their table."""
    end = time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        variables = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
            "NMT_BENCH_FOLDER": folder,
            "TOKENIZERS_PARALLELISM": "false",
        }
        facts = child({"kind": "facts", "device": args.device, "tiny": args.tiny}, variables, 120.0)
        write(args, {"kind": "session", "command": " ".join(sys.argv), "machine": machine(), **facts})
        if "error" in facts:
            sys.exit(
                f"{facts['error']}\n{args.device} cannot be used by {sys.executable}; run scripts/setup, "
                "then .venv/bin/python scripts/bench_gpu.py, or choose --device cpu --tiny"
            )
        results: list[Record] = []
        for row in rows(args):
            left, result = end - time.monotonic(), dict(row)
            if left < SHORTEST_ROW:
                result["verdict"] = "left out: no time left"
            else:
                longest = LONGEST_TESTS if row["kind"] == "tests" else LONGEST_ROW
                result |= child(row, variables, min(left, longest))
                result |= verdict(result, results)
            results.append(result)
            write(args, {name: value for name, value in result.items() if name != "translations"})
    print(described(facts))
    print(table(results))


def child(row: Record, variables: Mapping[str, str], timeout: float) -> Record:
    """Return what a process of its own finds out about a row, or its `error`; what it started ends, too."""
    command = [sys.executable, str(Path(__file__).resolve()), "row", json.dumps(row)]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as out:
        streams: Any = {"stdout": out, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=ROOT, env=dict(variables), start_new_session=True, **streams)
        is_over = True
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            is_over = False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        lines = [line for line in out.read().splitlines() if line.strip()] or ["nothing was printed"]
    if not is_over:
        return {"error": f"no result after {timeout:.0f} s; the last lines: {' | '.join(lines[-5:])}"}
    found = [line for line in lines if line.startswith("{")]  # libraries may have the last word
    if process.returncode or not found:
        return {"error": f"exit code {process.returncode}: {lines[-1].strip()}"}
    result: Record = json.loads(found[-1])
    return result


def write(args: argparse.Namespace, record: Record) -> None:
    """Print a line of JSON, and append it to the file if there is one."""
    line = json.dumps(record, ensure_ascii=False)
    print(line, flush=True)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with args.output.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def verdict(result: Record, earlier: list[Record]) -> Record:
    """Return the verdict on a result, which is compared with the first of the same work that has a speed."""
    if "error" in result:
        return {"verdict": f"failed: {result['error']}"}
    if "verdict" in result:
        return {}
    same = [one for one in earlier if one["what"] == result["what"] and "tokens_per_second" in one]
    same = [one for one in same if one["mode"].split(",")[0] == result["mode"].split(",")[0]] or (
        same if result["kind"] == "train" else []
    )
    if not same:
        return {"verdict": "ok"}
    first, problems, found = same[0], [], Record()
    ratio = result["tokens_per_second"] / first["tokens_per_second"]
    if ratio < NOISE and result["mode"] not in SLOWER:
        problems.append(f"slower than {first['mode']}, {ratio:.2f} times")
    if result["kind"] == "search":
        pairs = list(zip(result["translations"], first["translations"], strict=True))
        found["as_first"] = sum(mine == theirs for mine, theirs in pairs) / len(pairs)
    elif result["mode"] != "muon" and abs(result["loss"] - first["loss"]) > LOSS_TOLERANCE:
        problems.append(f"loss {result['loss']:.3f} instead of {first['loss']:.3f}")
    return found | {"verdict": "; ".join(problems) or f"ok, {ratio:.2f} times {first['mode']}"}


def described(facts: Record) -> str:
    """Return the machine in a line."""
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def table(results: list[Record]) -> str:
    """Return the results as Markdown."""
    shown = [name for name in COLUMNS if any(name in result for result in results)]
    lines = [[COLUMNS[name].format(one[name]) if name in one else "" for name in shown] for one in results]
    return markdown([name.replace("_", " ") for name in shown], lines)


def measure(row: Record) -> Record:
    """Return what is found out about a row, in its own process."""
    return {"facts": facts_of, "tests": run_tests, "train": run_training, "search": run_search}[row["kind"]](
        row
    )


def facts_of(row: Record) -> Record:
    """Return the facts of the device, and draw the pairs that all rows share."""
    import torch

    found: Record = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": row["device"]}
    if row["device"].startswith("cuda"):
        about = torch.cuda.get_device_properties(torch.device(row["device"]))
        found |= {"gpu": about.name, "gpu_memory_gb": round(about.total_memory / 1e9, 1)}
        found["capability"] = f"{about.major}.{about.minor}"
    draw_pairs(Path(os.environ["NMT_BENCH_FOLDER"], "pairs.npz"), 2_000 if row["tiny"] else 200_000, row)
    return found


def vocabulary_size(row: Record) -> int:
    """Return the number of kinds of pieces."""
    return 500 if row["tiny"] else 32_000


def draw_pairs(file: Path, num_pairs: int, row: Record) -> None:
    """Write the lengths and ids of pairs: log-normal lengths that go together, words by Zipf's law."""
    import numpy as np

    from nmt.data.special_ids import EOS_ID

    rng = np.random.default_rng(1)
    lengths = np.exp(rng.normal(3.13, 0.58, num_pairs))  # mean 27
    sides = {
        "src": lengths.clip(2, 128).astype(np.int64),
        "tgt": (lengths * np.exp(rng.normal(0.0, 0.15, num_pairs))).clip(2, 128).astype(np.int64),
    }
    first = 10  # of the pieces that are words
    weights = 1.0 / np.arange(2, vocabulary_size(row) - first + 2)
    bounds, arrays = np.cumsum(weights / weights.sum()), Record()
    for side, sizes in sides.items():
        ids = np.searchsorted(bounds, rng.random(sizes.sum())).clip(max=len(bounds) - 1) + first
        ids[np.cumsum(sizes) - 1] = EOS_ID
        arrays |= {f"{side}_lengths": sizes, side: ids.astype(np.int32)}
    np.savez(file, **arrays)


def drawn_pairs() -> EncodedPairs:
    """Return the pairs that `draw_pairs` has written."""
    import numpy as np

    from nmt.data.encoded_pairs import EncodedPairs, RaggedIds

    with np.load(Path(os.environ["NMT_BENCH_FOLDER"], "pairs.npz")) as found:
        sides = [RaggedIds(found[side], found[f"{side}_lengths"]) for side in ("src", "tgt")]
    return EncodedPairs(*sides, digest="drawn")


def config(row: Record) -> TrainConfig:
    """Return the config of a row."""
    from nmt.config.compose import compose
    from nmt.verbs import VERBS

    common = [
        "data=wmt14",
        f"tokenizer.vocab_size={vocabulary_size(row)}",
        f"run={os.environ['NMT_BENCH_FOLDER']}/run",
        f"model={row['model']}",
        f"runtime.device={row['device']}",
        f"trainer.batch_tokens={1_000 if row['tiny'] else row['batch_tokens']}",
        f"trainer.log_every_steps={2 if row['tiny'] else 10}",
        *(f"trainer.{key}=1000000" for key in ("max_steps", "eval_every_steps", "save_every_steps")),
        "decoding.max_length_ratio=1.0",
        "decoding.max_length_offset=0",
    ]
    (composed,) = compose(VERBS["train"], [*row["overrides"], *common])
    return composed.to_training()[0]


def run_tests(row: Record) -> Record:
    """Run the tests that need a GPU; without one, collect them."""
    files = [str(f) for f in sorted(ROOT.glob("tests/**/test_*.py")) if "mark.gpu" in f.read_text("utf-8")]
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "gpu", *files]
    command += [] if row["device"].startswith("cuda") else ["--collect-only"]
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=ROOT, text=True, **streams) as done:
        lines = []
        for line in done.stdout or ():
            print(line, end="", file=sys.stderr, flush=True)  # told, should the time not suffice
            lines += [line.strip()] if line.strip() else []
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    last = "; ".join([*failed[:5], *lines[-1:]])
    return {"verdict": f"{'ok' if done.returncode == 0 else 'failed'}: {last}"}


class EnoughError(Exception):
    """The end of a training that has been timed for long enough."""


class Windows:
    """A tracker that keeps the values of each window of updates, until the time is up."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.windows: list[Record] = []
        self.started, self.since = time.perf_counter(), 0.0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the values of a window; the first two are a warm-up."""
        now = time.perf_counter()
        self.windows.append(dict(values))
        if len(self.windows) == 2:
            self.since = now
        if len(self.windows) >= 5 and now - self.since > self.seconds:
            raise EnoughError

    def advance(self, step: int, values: Mapping[str, float], share_done: float | None = None) -> None:
        """Show nothing."""

    def message(self, text: str) -> None:
        """Show a message of the training."""
        print(text, file=sys.stderr)


def run_training(row: Record) -> Record:
    """Train by the very loop of `nmt train`, and return speed, utilisation, memory, padding and loss."""
    from nmt import runtime
    from nmt.runs import train
    from nmt.runs.opened import initial_model
    from nmt.runs.task import TrainedModel
    from nmt.signals import StopRequest

    cfg = config(row)
    device = runtime.prepare(cfg.runtime)
    size = vocabulary_size(row)
    tokenizer: Any = SimpleNamespace(src_vocab_size=size, tgt_vocab_size=size)
    model, pairs = initial_model(cfg, tokenizer).to(device), drawn_pairs()
    data: Any = SimpleNamespace(tokenizer=tokenizer, pairs_of_epoch=lambda epoch, stage: pairs)
    store = SimpleNamespace(steps=lambda: [1], directory=Path(os.environ["NMT_BENCH_FOLDER"], "run"))
    run: Any = SimpleNamespace(checkpoints=store)
    trained = TrainedModel(cfg, tokenizer, model, device)
    trainer = train.build_trainer(trained, data, run, lambda step: {})
    tracker: Any = Windows(1.0 if row["tiny"] else 15.0)
    with contextlib.suppress(EnoughError):
        trainer.fit(tracker, StopRequest())
    return found_in(tracker)


def found_in(tracker: Windows) -> Record:
    """Return the medians over the windows after the warm-up, and the loss of the fifth window."""

    def median(name: str) -> float:
        return statistics.median(one[f"train/{name}"] for one in tracker.windows[2:])

    names = {"tokens_per_second": "tgt_tokens_per_second", "mfu": "mfu", "padding": "padding_tgt"}
    found = {key: median(name) for key, name in names.items() if f"train/{name}" in tracker.windows[0]}
    if "train/gpu_memory_gb" in tracker.windows[-1]:
        found["memory_gb"] = tracker.windows[-1]["train/gpu_memory_gb"]
    found["loss"] = tracker.windows[4]["train/loss"]
    found["start_seconds"] = tracker.since - tracker.started
    return found


def run_search(row: Record) -> Record:
    """Search with a model as it is before training, for as many tokens as the sources have."""
    import torch

    from nmt import runtime
    from nmt.data.batches.batching import pad, plan_in_order
    from nmt.decoding import decode
    from nmt.runs.opened import initial_model
    from nmt.translation.translate import evaluating, in_precision

    cfg = config(row)
    device, size = runtime.prepare(cfg.runtime), vocabulary_size(row)
    tokenizer: Any = SimpleNamespace(src_vocab_size=size, tgt_vocab_size=size)
    model, pairs = initial_model(cfg, tokenizer).to(device).eval(), drawn_pairs()
    numbers = range(40 if row["tiny"] else 3_000)
    lengths = pairs.src_lengths[: len(numbers)]
    searched = in_precision(model, cfg.decoding, device)
    found: list[tuple[float, list[list[int]]]] = []
    with evaluating(model):
        for _ in range(3):  # the first two record graphs
            started, ids = time.perf_counter(), [[0]] * len(numbers)
            plan = plan_in_order(
                lengths,
                lengths,
                max_tokens=cfg.decoding.tokens_at_once(device.type) // cfg.decoding.rows_per_sentence,
            )
            for batch in plan:
                src, src_mask = (x.to(device) for x in pad([pairs.src[int(i)] for i in batch]))
                for i, hypotheses in zip(batch, decode(searched, src, src_mask, cfg.decoding), strict=True):
                    ids[i] = hypotheses[0].ids
            found.append((time.perf_counter() - started, ids))
    seconds, ids = found[-1]
    result: Record = {
        "tokens_per_second": sum(len(one) + 1 for one in ids) / seconds,
        "sentences_per_second": len(ids) / seconds,
        "start_seconds": found[0][0] + found[1][0],
        "translations": [zlib.crc32(repr(one).encode()) for one in ids],
    }
    if device.type == "cuda":
        result["memory_gb"] = torch.cuda.max_memory_allocated(device) / 1e9
    return result


if __name__ == "__main__":
    if sys.argv[1:2] == ["row"]:
        print(json.dumps(measure(json.loads(sys.argv[2]))))
    else:
        main(parser().parse_args())
