"""Cost of a large corpus: time of the first start and of later starts, memory, and speed of batches.

    python scripts/bench_data.py 29000 10000000
    python scripts/bench_data.py --generated 29000 100000000

For each number of pairs a corpus of recombined words is written to a temporary folder, prepared (`pass`) and
opened again by a process of its own (`start`). With `--generated`, ids drawn at random are written in place
of what preparing a corpus makes, so that only the start is measured. One JSON object per line; times are in
seconds, `cpu_seconds` the sum over all threads, memory in MB. Memory is that of the process minus its memory
before the corpus was opened: `peak_mb` at most, pages of mapped files included, and `private_mb` at the end,
shared with no process and no file, after batches were read, an epoch was changed and a small model was
updated on both sides of the end of an epoch. `encoding_to_sentencepiece` is the speed of encoding as a share
of the speed of SentencePiece alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentencepiece import SentencePieceProcessor

from nmt import runtime
from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.data.batches.batching import Plan, collate, plan_epoch
from nmt.data.batches.blocks import epochs_of
from nmt.data.batches.encode import FILES, opened
from nmt.data.batches.examples import SentencePairs
from nmt.data.batches.shards import write_starts
from nmt.data.batches.training_split import (
    PairsOfEpoch,
    TrainingData,
    TrainingText,
    scan,
    train_tokenizer,
)
from nmt.data.cleaning.filtering import chains
from nmt.data.cleaning.filters import filter_pairs
from nmt.data.configs import DataConfig
from nmt.data.encoded_pairs import EncodedPairs, RaggedIds
from nmt.data.parallel_text import Split
from nmt.data.reading.bundled_data import DemoData
from nmt.data.reading.files import FilesData
from nmt.data.reading.sources import load, stream
from nmt.data.tokens.tokenizer_training import TokenizerConfig
from nmt.disk_cache import cache_dir
from nmt.distributed import ALONE
from nmt.runs.directory import RunDirectory
from nmt.runs.opened import initial_model
from nmt.runs.task import TrainedModel
from nmt.runs.train import build_trainer
from nmt.signals import StopRequest
from nmt.training.tracking.configs import TrackingConfig
from nmt.training.tracking.sinks import TrackedRun, Tracker
from nmt.verbs import VERBS

BATCH_TOKENS = 4096
NUM_BATCHES = 500
NUM_PARTS = 10
TOKENIZER = TokenizerConfig(vocab_size=1000, max_sentences=50_000)


def write_corpus(folder: Path, size: int) -> None:
    """Write `size` pairs of 5 to 25 random words of the demo corpus."""
    demo = load(DemoData(), Split.train)
    rng = random.Random(1)
    for language, lines in (("en", demo.src), ("de", demo.tgt)):
        words = sorted({word for line in lines for word in line.split()})
        with (folder / f"train.{language}").open("w", encoding="utf-8") as file:
            for _ in range(size):
                file.write(" ".join(rng.choices(words, k=rng.randint(5, 25))) + "\n")


@contextmanager
def measured(facts: dict[str, Any], name: str) -> Iterator[None]:
    """Record the time that the block takes, as `name` in `facts`."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    facts[f"{name}_seconds"] = round(time.perf_counter() - wall, 3)
    facts[f"{name}_cpu_seconds"] = round(time.process_time() - cpu, 3)


def write_ids(folder: Path, size: int) -> None:
    """Write the ids of `size` pairs of 4 to 50 tokens a side, in blocks, as preparing a corpus does."""
    rng, types = np.random.default_rng(1), ["<u2"] * 4
    with ExitStack() as stack:
        files = [stack.enter_context((folder / name).open("wb")) for name in FILES]
        for first in range(0, size, 500_000):
            for ids, lengths in (files[:2], files[2:]):
                sizes = rng.integers(4, 51, min(500_000, size - first)).astype("<u2")
                lengths.write(sizes.data)
                ids.write(rng.integers(4, 1000, int(sizes.sum(dtype=np.int64)), "<u2").data)
    for side in ("src", "tgt"):
        write_starts(folder / f"{side}_starts", np.memmap(folder / f"{side}_lengths", "<u2", "r"))
    report = {"read": size, "dropped": {}}
    (folder / "facts.json").write_text(json.dumps({"report": report, "types": types, "digest": "generated"}))


def opened_ids(folder: Path, facts: dict[str, Any]) -> PairsOfEpoch:
    """Open what `write_ids` wrote."""
    with measured(facts, "opening"):
        pairs, _ = opened(folder, json.loads((folder / "facts.json").read_text()))
        of_epoch = epochs_of([pairs], [1.0], 1)
    facts["pairs"] = len(pairs)
    return lambda epoch, stage: of_epoch(epoch)


def scanned(cfg: DataConfig) -> TrainingText:
    """Return the training text of a corpus."""
    chain = chains(cfg, {}, None)[cfg.name]
    return TrainingText({"": scan(stream(cfg, Split.train), cfg, filter_pairs, chain, cache_dir())}, [1.0])


def prepared(kind: str, folder: Path, facts: dict[str, Any]) -> PairsOfEpoch:
    """Prepare a corpus as `nmt train` does, and return the pairs of each epoch."""
    cfg, cache = FilesData(train=str(folder / "train")), cache_dir()
    with measured(facts, "scan"):
        text = scanned(cfg)
    with measured(facts, "tokenizer"):
        tokenizer = train_tokenizer(TOKENIZER, text, seed=1, cache=cache, log=lambda line: None)
    with measured(facts, "encoding"):
        pairs_of_epoch = SentencePairs(cfg, 1).epochs(text, tokenizer, lambda line: None)
    facts["pairs"] = len(text)
    if kind == "pass":
        tokenizer.save(folder)
        encode_alone(text, folder / "tokenizer.model", facts)
    return pairs_of_epoch


def encode_alone(text: TrainingText, model: Path, facts: dict[str, Any]) -> None:
    """Record the time that SentencePiece takes for the same lines in its own threads."""
    processor = SentencePieceProcessor(model_file=str(model))
    with measured(facts, "sentencepiece"):
        for chunk in text.chunks():
            for lines in chunk.src, chunk.tgt:
                processor.encode(lines, num_threads=os.cpu_count(), add_eos=True)
    facts["encoding_to_sentencepiece"] = round(facts["sentencepiece_seconds"] / facts["encoding_seconds"], 2)


def memory() -> tuple[float, float]:
    """Return the private memory of this process in MB now, and the resident memory at most so far."""
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    private = sum(int(line.split()[1]) for line in rollup if line.startswith("Private_Dirty"))
    return private / 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def plan_of(pairs: EncodedPairs, epoch: int) -> Plan:
    """Plan the batches of a part."""
    return plan_epoch(pairs.src_lengths, pairs.tgt_lengths, seed=1, epoch=epoch, max_tokens=BATCH_TOKENS)


def read_batches(pairs_of_epoch: PairsOfEpoch, facts: dict[str, Any]) -> None:
    """Plan a part of an epoch, make the first batches of the plan, and begin the next epoch."""
    with measured(facts, "first_part"):
        pairs = pairs_of_epoch(1, 0).part(0)
    with measured(facts, "plan"):
        plan = plan_of(pairs, 1)
    tokens, batches = 0, plan[:NUM_BATCHES]
    with measured(facts, "batches"):
        for indices in batches:
            tokens += collate(pairs, indices).num_tokens
    facts["tokens_per_cpu_second"] = round(tokens / facts["batches_cpu_seconds"])
    epoch = pairs_of_epoch(1, 0)
    facts["parts"] = epoch.num_parts
    tokens = 0
    with measured(facts, "parts"):
        for number in range(min(NUM_PARTS, epoch.num_parts)):
            tokens += len(epoch.part(number).tgt.ids)
    facts["read_tokens_per_second"] = round(tokens / max(facts["parts_seconds"], 1e-3))
    epoch.part(epoch.num_parts - 1)
    with measured(facts, "epoch_change"):
        plan_of(pairs_of_epoch(2, 0).part(0), 2)


def train(pairs_of_epoch: PairsOfEpoch, facts: dict[str, Any]) -> None:
    """Update a small model on the last two batches of an epoch and on the first two of the next."""
    (composed,) = compose(
        VERBS["train"],
        [f"trainer.batch_tokens={BATCH_TOKENS}", "runtime.device=cpu", "runtime.kernels=false"],
    )
    cfg = composed.to_config(TrainConfig)
    runtime.prepare(cfg.runtime)
    cfg.trainer.max_steps, cfg.trainer.keep_best = 4, 0
    text = scanned(DemoData())
    tokenizer = train_tokenizer(TOKENIZER, text, seed=1, cache=cache_dir(), log=lambda line: None)
    model = initial_model(cfg, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder) / "run")
        run.path.mkdir()
        trained = TrainedModel(cfg, tokenizer, model, torch.device("cpu"), world=ALONE)
        data = TrainingData(text, tokenizer, pairs_of_epoch)
        trainer = build_trainer(trained, data, run, lambda step: {"valid/bleu": 0.0, "valid/loss": 1.0})
        epoch = pairs_of_epoch(1, 0)
        state = trainer.train_state
        state.part = epoch.num_parts - 1
        pairs = epoch.part(state.part)
        state.batch, state.digest = len(trainer.plan(pairs)) - 2, pairs.digest
        del pairs
        with measured(facts, "updates"), Tracker(TrackedRun(run.path), TrackingConfig(sinks=[])) as tracker:
            done = trainer.fit(tracker, StopRequest())
    assert (done.step, done.epoch, done.part, done.batch) == (4, 2, 0, 2), done


def run(kind: str, folder: Path) -> None:
    """Do the work of one process, and print its time and memory."""
    one = RaggedIds(np.ones(3, np.int32), np.array([3]))
    collate(EncodedPairs(one, one), np.arange(1))  # so that the set-up of torch comes before the measurement
    before = memory()[0]
    facts: dict[str, Any] = {"kind": kind}
    pairs_of_epoch = opened_ids(folder, facts) if kind == "generated" else prepared(kind, folder, facts)
    if kind != "pass":
        read_batches(pairs_of_epoch, facts)
        train(pairs_of_epoch, facts)
    private, peak = memory()
    facts |= {"private_mb": round(private - before, 1), "peak_mb": round(peak - before, 1)}
    print(json.dumps(facts), flush=True)


def main() -> None:
    """Measure each size in processes of their own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("sizes", type=int, nargs="*", default=[29_000, 10_000_000], help="pairs")
    parser.add_argument("--generated", action="store_true", help="write random ids instead of text")
    parser.add_argument("--run", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run(arguments.run[0], Path(arguments.run[1]))
        return
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory(prefix="nmt-bench-") as folder:
            (write_ids if arguments.generated else write_corpus)(Path(folder), size)
            environment = {**os.environ, "NMT_CACHE": str(Path(folder) / "cache")}
            for kind in ("generated",) if arguments.generated else ("pass", "start"):
                command = [sys.executable, __file__, "--run", kind, folder]
                subprocess.run(command, check=True, env=environment)


if __name__ == "__main__":
    main()
