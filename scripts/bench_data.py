"""Cost of a large corpus: time of the first start and of later starts, memory, and speed of batches.

    python scripts/bench_data.py 29000 10000000

For each number of pairs a corpus of recombined words is written to a temporary folder, read for the first
time (`pass`) and opened again by a process of its own (`start`). One JSON object per line; times are in
seconds, `cpu_seconds` the sum over all threads, memory in MB. Memory is that of the process minus its memory
before the corpus was opened: `peak_mb` at most, `resident_mb` at the end, after some batches were read.
`encoding_to_sentencepiece` is the speed of encoding as a share of the speed of SentencePiece alone.
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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sentencepiece import SentencePieceProcessor

from nmt.data.batching import collate, plan_epoch
from nmt.data.encode import EncodingOptions, encode_stream
from nmt.data.encoded_pairs import EncodedPairs, RaggedIds
from nmt.data.files import FilesData
from nmt.data.filters import filter_pairs
from nmt.data.pairs import Split
from nmt.data.sources import DemoData, load, stream
from nmt.data.tokenizer_training import TokenizerConfig
from nmt.data.training_split import TrainingText, scan, train_tokenizer

BATCH_TOKENS = 4096
NUM_BATCHES = 500
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


def opened(kind: str, folder: Path, facts: dict[str, Any]) -> EncodedPairs:
    """Prepare a corpus as `nmt train` does, and return its ids."""
    cfg, cache = FilesData(train=str(folder / "train")), folder / "cache"
    with measured(facts, "scan"):
        text = TrainingText({"": scan(stream(cfg, Split.train), cfg, filter_pairs, {}, cache)}, [1.0])
    with measured(facts, "tokenizer"):
        tokenizer = train_tokenizer(TOKENIZER, text, seed=1, cache=cache)
    with measured(facts, "encoding"):
        pairs, _ = encode_stream(text.chunks, text.sha256, tokenizer, EncodingOptions(256, True), cache)
    facts["pairs"] = len(pairs)
    if kind == "pass":
        tokenizer.save(folder)
        encode_alone(text, folder / "tokenizer.model", facts)
    return pairs


def encode_alone(text: TrainingText, model: Path, facts: dict[str, Any]) -> None:
    """Record the time that SentencePiece takes for the same lines in its own threads."""
    processor = SentencePieceProcessor(model_file=str(model))
    with measured(facts, "sentencepiece"):
        for chunk in text.chunks():
            for lines in chunk.src, chunk.tgt:
                processor.encode(lines, num_threads=os.cpu_count(), add_eos=True)
    facts["encoding_to_sentencepiece"] = round(facts["sentencepiece_seconds"] / facts["encoding_seconds"], 2)


def memory() -> tuple[float, float]:
    """Return the resident memory of this process in MB, now and at most so far."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, peak


def read_batches(pairs: EncodedPairs, facts: dict[str, Any]) -> None:
    """Plan an epoch, and make the first batches of the plan."""
    with measured(facts, "plan"):
        plan = plan_epoch(pairs.src_lengths, pairs.tgt_lengths, seed=1, epoch=1, max_tokens=BATCH_TOKENS)
    tokens = 0
    with measured(facts, "batches"):
        for indices in plan[:NUM_BATCHES]:
            tokens += collate(pairs, indices).num_tokens
    facts["tokens_per_cpu_second"] = round(tokens / facts["batches_cpu_seconds"])


def run(kind: str, folder: Path) -> None:
    """Do the work of one process, and print its time and memory."""
    one = RaggedIds(np.ones(3, np.int32), np.array([3]))
    collate(EncodedPairs(one, one), np.arange(1))  # so that the set-up of torch comes before the measurement
    before = memory()[0]
    facts: dict[str, Any] = {"kind": kind}
    pairs = opened(kind, folder, facts)
    if kind == "start":
        read_batches(pairs, facts)
    resident, peak = memory()
    facts |= {"resident_mb": round(resident - before, 1), "peak_mb": round(peak - before, 1)}
    print(json.dumps(facts), flush=True)


def main() -> None:
    """Measure each size in processes of their own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("sizes", type=int, nargs="*", default=[29_000, 10_000_000], help="pairs")
    parser.add_argument("--run", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run(arguments.run[0], Path(arguments.run[1]))
        return
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory(prefix="nmt-bench-") as folder:
            write_corpus(Path(folder), size)
            for kind in ("pass", "start"):
                subprocess.run([sys.executable, __file__, "--run", kind, folder], check=True)


if __name__ == "__main__":
    main()
