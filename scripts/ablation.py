"""Train one recipe with one method at a time and with several seeds, and compare the means on validation.

    python scripts/ablation.py run FOLDER data.path=CORPUS             # every method with seeds 1, 2 and 3
    python scripts/ablation.py run FOLDER --methods simcut --seeds 4 data.path=CORPUS
    python scripts/ablation.py table FOLDER                            # of the runs that are finished

A run is FOLDER/METHOD/seed_N, an ordinary run directory: the same command again skips what is finished and
goes on with what was interrupted. Each training has one thread and a core to itself, as many at a time as
there are cores (`--jobs`). Seeds come first, so that an unfinished study compares all methods on the first
seeds. A method with {baseline} in its overrides learns from the baseline of its seed, which has to be
finished by then: name it well after the baseline. No test split is scored. What has the form KEY=VALUE is an
override of `nmt train` that all runs share.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

RECIPE = "experiment=multi30k_en_de"
METHODS: dict[str, Sequence[str]] = {
    "baseline": (),
    "no_smoothing": ("objective.label_smoothing=0.0",),
    "smoothing_0.2": ("objective.label_smoothing=0.2",),
    "word_dropout": ("objective.word_dropout=0.1",),
    "subword_sampling": ("tokenizer.sampling_alpha=0.1",),
    "average": ("trainer.average=5", "trainer.keep_last=5", "trainer.save_every_steps=250"),
    "r_drop": ("objective=r_drop",),
    "simcut": ("objective=simcut",),
    "ema": ("trainer.ema_decay=0.999",),
    "simcut_ema": ("objective=simcut", "trainer.ema_decay=0.999"),
    "simcut_ema_teacher": ("objective=simcut", "objective.teacher=ema", "trainer.ema_decay=0.999"),
    "self_distillation": ("objective=distillation", "objective.teachers=[{baseline}]"),
    "all": (
        "objective=simcut",
        "objective.word_dropout=0.1",
        "tokenizer.sampling_alpha=0.1",
        "trainer.ema_decay=0.999",
    ),
    "multi_query": ("model.num_kv_heads=1",),
    "grouped_query": ("model.num_kv_heads=2",),
    "qk_norm": ("model.qk_norm=true",),
    "ssru": ("model.decoder_self_attention=ssru",),
    "sinusoidal": ("model.positions=sinusoidal",),
    "average_attention": ("model.decoder_self_attention=average", "model.positions=sinusoidal"),
    "narrow_decoder": (
        "model.decoder_d_model=128",
        "model.decoder_num_heads=4",
        "model.decoder_d_ff=512",
        "model.tying=tgt_output",
    ),
    "shared_layers": (
        *("model.encoder_layers=6", "model.encoder_sharing=[1,1,2,2,3,3]"),
        *("model.decoder_layers=6", "model.decoder_sharing=[1,1,2,2,3,3]"),
    ),
    "layer_drop": ("model.layer_drop=0.1",),
    "guided_alignment": ("objective=guided_alignment",),
    "case_markup": ("tokenizer.case=markup",),
    "source_factors": ("tokenizer.source_factors=[case,position]",),
}
"""Name of a method -> its overrides of the recipe; {baseline} is the baseline's run with the same seed."""
BASELINE = "baseline"


class Trained(NamedTuple):
    """The validation scores of one run, and its time."""

    bleu: float
    chrf: float
    minutes: float


def folder_of(study: Path, method: str, seed: int) -> Path:
    """Return the run directory of one method and one seed."""
    return study / method / f"seed_{seed}"


def command(study: Path, method: str, seed: int, shared: Sequence[str]) -> list[str]:
    """Return the command line of one run."""
    own = (f"seed={seed}", f"run={folder_of(study, method, seed)}")
    program = (sys.executable, "-m", "nmt", "train", RECIPE, "data.scored_split=validation")
    baseline = str(folder_of(study, BASELINE, seed))
    overrides = [override.replace("{baseline}", baseline) for override in METHODS[method]]
    return [*program, "runtime.threads=1", *overrides, *shared, *own]


def run(study: Path, methods: Sequence[str], seeds: Sequence[int], jobs: int, shared: Sequence[str]) -> int:
    """Train what is not finished, `jobs` runs at a time; return the number of runs that failed."""
    cores: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[:jobs]:
        cores.put(core)

    def train(method: str, seed: int) -> bool:
        folder, core = folder_of(study, method, seed), cores.get()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".log").open("a") as log:
            done = subprocess.run(
                command(study, method, seed, shared),
                stdout=log,
                stderr=log,
                check=False,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            )
        cores.put(core)
        print(f"{folder}: exit code {done.returncode}", flush=True)
        return done.returncode == 0

    with ThreadPoolExecutor(jobs) as pool:
        planned = [(method, seed) for seed in seeds for method in methods]
        missing = [one for one in planned if not (folder_of(study, *one) / "results.json").exists()]
        outcomes = list(pool.map(lambda one: train(*one), missing))
    return outcomes.count(False)


def finished(study: Path, method: str) -> dict[int, Trained]:
    """Return the finished runs of a method by seed."""
    found = {}
    for file in sorted(study.joinpath(method).glob("seed_*/results.json")):
        results = json.loads(file.read_text())
        scores = results["validation"]
        seed = int(file.parent.name.removeprefix("seed_"))
        found[seed] = Trained(scores["bleu"], scores["chrf"], results["train_seconds"] / 60)
    return found


def table(study: Path) -> str:
    """Return a Markdown table of the methods, compared with the baseline on the seeds that both have."""
    base = finished(study, BASELINE)
    lines = [
        "| method | seeds | BLEU | against the baseline | chrF | time | overrides |",
        "|---|---|---|---|---|---|---|",
    ]
    for method, overrides in METHODS.items():
        runs = finished(study, method)
        if not runs:
            continue
        both = sorted(runs.keys() & base.keys())
        gain, times = "", ""
        if both and method != BASELINE:
            gain = spread([runs[seed].bleu - base[seed].bleu for seed in both], "+.2f")
            times = f"{statistics.mean(runs[seed].minutes / base[seed].minutes for seed in both):.2f}"
        bleu, chrf = spread([one.bleu for one in runs.values()]), spread([one.chrf for one in runs.values()])
        keys = f"`{' '.join(overrides)}`" if overrides else f"`{RECIPE}`"
        lines.append(f"| {method} | {len(runs)} | {bleu} | {gain} | {chrf} | {times or '1'} | {keys} |")
    return "\n".join(lines)


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Return the mean of values, with the standard deviation of one of them where there are several."""
    mean = format(statistics.mean(values), form)
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study or print its table; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    running.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    running.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    for each in (running, commands.add_parser("table")):
        each.add_argument("folder", type=Path)
    arguments = sys.argv[1:] if arguments is None else arguments
    shared = [argument for argument in arguments if "=" in argument and not argument.startswith("-")]
    args = parser.parse_args([argument for argument in arguments if argument not in shared])
    if args.command == "table":
        print(table(args.folder))
        return 0
    return 1 if run(args.folder, args.methods, args.seeds, args.jobs, shared) else 0


if __name__ == "__main__":
    sys.exit(main())
