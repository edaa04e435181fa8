"""Training speed side by side with other toolkits: the same model, batches, precision and number of threads.

    python scripts/bench_peers.py PEERS                                  # install the peers, once
    python scripts/bench_train.py run PEERS --output FILE.jsonl          # measure; every option: run --help
    python scripts/bench_train.py table FILE.jsonl                       # the tables of docs/performance.md

The reference work is Multi30k English-German in 8,000 joint pieces, pre-norm, tied embeddings, dropout 0.1
on residuals, attention weights and inside the feed-forward, label smoothing 0.1, batches of 4,096 tokens.
Some batches of the first epoch are the whole epoch here: every system goes through them twice, and the second
time counts, when it has seen all their shapes. Speed is target tokens, EOS included and padding never, by
wall-clock time. This project is measured as `nmt train`; a peer trains on the very same batches, by the
adapter scripts/peers/NAME_train.py.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarking import (
    ALLOCATORS,
    Record,
    Results,
    System,
    compare,
    described,
    grouped,
    in_words,
    markdown,
    median,
    median_ratio,
    read,
    require_installed,
    run_once,
    session,
)

from nmt import cli
from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.data.batches.batching import Plan, plan_epoch
from nmt.data.batches.training_split import train_tokenizer, training_text
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.disk_cache import cache_dir
from nmt.errors import warn
from nmt.models.configs import TransformerConfig
from nmt.runs.directory import RunDirectory
from nmt.runs.opened import initial_model
from nmt.runs.tasks import TASKS
from nmt.training import trainer
from nmt.training.objectives.configs import CrossEntropyConfig
from nmt.verbs import VERBS

OURS = "nmt"
ATTENTION = ("sdpa", "eager")
SYSTEMS = {
    OURS: System(None, "bench_train.py", {}, {}),
    "hf": System("main", "peers/hf_train.py", {}, {"attention": ATTENTION, "allocator": ALLOCATORS}),
    "eole": System("main", "peers/eole_train.py", {}, {"allocator": ALLOCATORS}),
    "opennmt": System(
        "main",
        "peers/opennmt_train.py",
        {},
        {"attention": ("scaled-dot-flash", "scaled-dot"), "allocator": ALLOCATORS},
    ),
    "joeynmt": System("joeynmt", "peers/joeynmt_train.py", {}, {"allocator": ALLOCATORS}),
    "fairseq": System("fairseq", "peers/fairseq_train.py", {}, {"allocator": ALLOCATORS}),
}
"""Eole, JoeyNMT and fairseq have one kind of attention on CPU."""
SIZES = ("tiny", "small", "base")
LEARNING_RATE = 3e-4
ADAM_EPS = 1e-8
SPEED = "tgt_tokens_per_second"


def overrides(args: argparse.Namespace, size: str) -> list[str]:
    """Return the overrides of `nmt train` for the work, without the limits that a job sets."""
    return [
        "data=multi30k",
        *([f"data.path={args.data_path}"] if args.data_path else []),
        f"model=transformer_{size}",
        *(f"model.{kind}=0.1" for kind in ("dropout", "attention_dropout", "activation_dropout")),
        "tokenizer=bpe",
        "schedule=constant",
        f"schedule.peak_rate={LEARNING_RATE}",
        "schedule.warmup_steps=0",
        f"optimizer.eps={ADAM_EPS}",
        f"runtime.threads={args.threads}",
        *args.ours,
    ]


def first_batches(number: int, *arguments: Any, **settings: Any) -> Plan:
    """Return the first batches of the first epoch, in every epoch."""
    chosen = plan_epoch(*arguments, **{**settings, "epoch": 1})[:number]
    return Plan(np.concatenate(chosen).astype(np.int32), np.cumsum([len(batch) for batch in chosen]))


def dump(cfg: TrainConfig, path: Path, num_batches: int) -> tuple[Tokenizer, list[int]]:
    """Write the batches of the work; return the tokenizer and the target tokens of each batch."""
    examples = TASKS[cfg.task].examples(cfg)
    text = training_text(cfg.data, examples.filter, {}, warn, cfg.trainer.max_steps)
    tokenizer = train_tokenizer(cfg.tokenizer, text, seed=cfg.seed, cache=cache_dir(), log=warn)
    pairs = examples.epochs(text, tokenizer, warn)(1, 0).part(0)
    lengths = pairs.src_lengths, pairs.tgt_lengths
    plan = first_batches(num_batches, *lengths, seed=cfg.seed, max_tokens=cfg.trainer.tokens_per_batch)
    arrays = {"rows": np.concatenate(plan), "ends": np.cumsum([len(batch) for batch in plan])}
    for name, side in (("src", pairs.src), ("tgt", pairs.tgt)):
        arrays[f"{name}_ids"] = side.ids[:]
        arrays[f"{name}_offsets"] = np.concatenate([[0], np.cumsum(side.lengths, dtype=np.int64)])
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return tokenizer, [int(pairs.tgt_lengths[batch].sum()) for batch in plan]


def job_of(args: argparse.Namespace, size: str, work: Path, num_batches: int) -> Record:
    """Return the job of one size, which is the same for every system."""
    (composed,) = compose(VERBS["train"], [*overrides(args, size), f"run={work / 'run'}"])
    cfg, _ = composed.to_training()
    model, objective = cfg.model, cfg.objective
    assert isinstance(model, TransformerConfig)
    assert isinstance(objective, CrossEntropyConfig)
    batches = work / f"{size}-{num_batches}.npz"
    tokenizer, tokens = dump(cfg, batches, num_batches)
    if num_batches > len(tokens):
        sys.exit(f"--updates must not exceed the {len(tokens)} batches of an epoch")
    keys = ("d_model", "d_ff", "num_heads", "encoder_layers", "decoder_layers")
    return {
        "batches": str(batches),
        "tokens": tokens,
        "parameters": sum(p.numel() for p in initial_model(cfg, tokenizer).parameters()),
        "sizes": {key: getattr(model, key) for key in keys},
        "vocab_size": tokenizer.tgt_vocab_size,
        "pad_id": PAD_ID,
        "unk_id": UNK_ID,
        "bos_id": BOS_ID,
        "eos_id": EOS_ID,
        "dropout": model.dropout,
        "label_smoothing": objective.label_smoothing,
        "learning_rate": LEARNING_RATE,
        "adam_eps": ADAM_EPS,
        "parallel": f"1 x {args.threads}",
        "updates": num_batches,
        "overrides": overrides(args, size),
    }


def train_ours(job: Record) -> Record:
    """Run `nmt train` twice over the batches of a job, and return the wall-clock speed of the second time."""
    num_updates, never = job["updates"], 10**9
    limits = {
        "runtime.precision": job["precision"],
        "trainer.max_steps": 2 * num_updates,
        "trainer.log_every_steps": num_updates,
        "trainer.eval_every_steps": never,
        "trainer.save_every_steps": never,
        "trainer.num_samples": 0,
        # The scores at the end are not of interest: translations of one token.
        "decoding.beam_size": 1,
        "decoding.max_length_ratio": 0,
        "decoding.max_length_offset": 1,
    }
    vars(trainer)["plan_epoch"] = functools.partial(first_batches, num_updates)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, contextlib.redirect_stdout(sys.stderr):
        settings = [f"{key}={value}" for key, value in limits.items()]
        code = cli.main(["train", *job["overrides"], *settings, f"run={folder}/run"])
        if code:
            sys.exit(code)
        run = RunDirectory(Path(folder, "run"))
        lines = read([run.path / "metrics.jsonl"])
        checkpoint = run.checkpoints.latest(warn)
    assert checkpoint is not None
    trained_on, tokens = checkpoint.state["progress"]["tokens"], sum(job["tokens"])
    if trained_on != 2 * tokens:
        sys.exit(f"nmt train saw {trained_on} target tokens, the peers would see {2 * tokens}")
    first, second = (
        next(line for line in lines if line["step"] == step and "train/seconds" in line)
        for step in (num_updates, 2 * num_updates)
    )
    seconds = second["train/seconds"] - first["train/seconds"]
    return {
        "tgt_tokens": tokens,
        "seconds": seconds,
        SPEED: tokens / seconds,
        "own_clock": second[f"train/{SPEED}"],
        "loss": second["train/loss"],
        "parameters": job["parameters"],
    }


def run(args: argparse.Namespace) -> None:
    """Measure everything, size by size and precision by precision."""
    systems = {name: SYSTEMS[name] for name in args.systems}
    require_installed(systems, args.peers)
    results = Results(args.output)
    earlier = read([args.output]) if args.output.exists() else []
    results.write(session("train", args.peers, {"threads": args.threads, "rounds": args.rounds}))
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        for size in args.sizes:
            jobs = [job_of(args, size, folder, n) for n in (args.updates, args.trial_updates)]
            for precision in args.precisions:

                def measure(name: str, settings: Record, is_trial: bool) -> Record:
                    job = jobs[is_trial] | settings | {"precision": precision}  # noqa: B023
                    return {"settings": settings} | run_once(systems[name], args.peers, job, folder / "job")

                about = {"benchmark": "train", "size": size, "precision": precision}
                keep = functools.partial(write, results, about)
                known = [record for record in earlier if about.items() <= record.items()]
                compare(systems, SPEED, args.rounds, measure, keep, known)


def write(results: Results, about: Record, record: Record) -> None:
    """Write a result with the size and precision that it is about."""
    results.write(about | record)


def table(files: Iterable[Path]) -> str:
    """Return the results of some files as Markdown: machine and command of each, then one table."""
    records = read(files)
    parts = [described(record) for record in records if record["kind"] == "session"]
    header = ["size", "precision", "system", "settings", "target tokens/s", "range", "nmt is"]
    header += ["peak memory", "parameters", "loss"]
    rows = []
    for (size, precision), group in grouped(
        (record for record in records if record["kind"] == "result"), "size", "precision"
    ).items():
        by_system = {name: runs for (name,), runs in grouped(group, "system").items()}
        for name, runs in by_system.items():
            rows.append([size, precision, name, *cells(runs, by_system.get(OURS, []))])
    return "\n\n".join([*parts, markdown(header, rows)])


def cells(runs: Sequence[Record], ours: Sequence[Record]) -> list[str]:
    """Return the cells of one system in the table."""
    errors = [record["error"] for record in runs if "error" in record]
    if errors:
        return [f"failed: {errors[0]}", *[""] * 6]
    speeds = [record[SPEED] for record in runs]
    ratio = median_ratio([record for record in ours if "error" not in record], runs, SPEED)
    return [
        in_words(runs[0]["settings"]),
        f"{median(runs, SPEED):,.0f}",
        f"{min(speeds):,.0f} to {max(speeds):,.0f}",
        "" if ratio is None or runs is ours else f"{ratio:.2f} times as fast",
        f"{median(runs, 'peak_rss_mb') / 1024:.1f} GB",
        f"{runs[0]['parameters'] / 1e6:.2f} M",
        f"{median(runs, 'loss'):.3f}",
    ]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = top.add_subparsers(dest="verb", required=True)
    measure = verbs.add_parser("run", help="measure", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    measure.add_argument("peers", type=Path, help="the folder that scripts/bench_peers.py filled")
    measure.add_argument("--output", type=Path, required=True, help="JSON lines; results are appended")
    measure.add_argument("--data-path", help="Multi30k on disk (data.path); without it, from the hub")
    measure.add_argument("--sizes", nargs="+", default=["small"], choices=SIZES)
    measure.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    measure.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    measure.add_argument("--rounds", type=int, default=3)
    measure.add_argument("--updates", type=int, default=30, help="updates to warm up, and as many timed")
    measure.add_argument("--trial-updates", type=int, default=5, help="the same, when settings are tried")
    measure.add_argument("--threads", type=int, default=2)
    measure.add_argument("--ours", nargs="+", default=[], metavar="KEY=VALUE", help="for nmt train")
    show = verbs.add_parser("table", help="make tables of results")
    show.add_argument("files", nargs="+", type=Path)
    ours = verbs.add_parser("ours", help="one run of nmt train, as `run` starts it")
    ours.add_argument("job", type=Path)
    return top


def main() -> None:
    """Run the command that the first argument names."""
    args = parser().parse_args()
    if args.verb == "run":
        run(args)
    elif args.verb == "table":
        print(table(args.files))
    else:
        print(json.dumps(train_ours(json.loads(args.job.read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main()
