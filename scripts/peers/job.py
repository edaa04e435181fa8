"""Tools of every adapter: the job it was given, the batches to train on, the clock, the result.

An adapter is run as `PYTHON scripts/peers/NAME.py JOB.json` by the interpreter of a peer's environment, and
prints one line of JSON last. Only numpy and torch may be assumed here. The ids are those of this project:
`pad_id`, `bos_id` and `eos_id` of the job; padding is on the right.
"""

import json
import sys
import time
import types
from itertools import takewhile
from pathlib import Path

import numpy as np


def read_job():
    """Return the dict that the benchmark wrote for this run."""
    return json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


def answer(**values):
    """Print the result, the last line of an adapter."""
    print(json.dumps(values), flush=True)


def batches(job):
    """Yield (src (B, S), tgt (B, T)) int64 for each update, both ending in EOS, then padding."""
    arrays = np.load(job["batches"])
    for rows in np.split(arrays["rows"], arrays["ends"][:-1]):
        yield tuple(padded(job, _sentences(arrays, side, rows)) for side in ("src", "tgt"))


def _sentences(arrays, side, rows):
    ids, offsets = arrays[f"{side}_ids"], arrays[f"{side}_offsets"]
    return [ids[offsets[i] : offsets[i + 1]] for i in rows]


def padded(job, sentences):
    """Return the ids of sentences as one int64 array (B, S), with padding on the right."""
    array = np.full((len(sentences), max(map(len, sentences))), job["pad_id"], dtype=np.int64)
    for row, sentence in zip(array, sentences, strict=True):
        row[: len(sentence)] = sentence
    return array


def leave_out(*modules):
    """Let a peer import libraries that are not installed, and that the peer does not use for a job."""
    for name in modules:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__getattr__ = lambda _: None  # for any name that is imported from the library


def corpus_files(job, folder, specials):
    """Write a vocabulary of our ids, `specials` first, and a text that is never read; return their paths."""
    vocabulary = specials + [str(i) for i in range(len(specials), job["vocab_size"])]
    paths = [str(Path(folder, name)) for name in ("vocab", "text")]
    for path, lines in zip(paths, (vocabulary, ["4 5 6"] * 10), strict=True):
        Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return paths


class Clock:
    """Time and tokens of the updates after the warm-up."""

    def __init__(self, job):
        self.warmup, self.last = job["warmup"], job["warmup"] + job["updates"]
        self.updates, self.tokens, self.losses = 0, 0, []
        self.started = time.perf_counter()

    def update(self, num_tokens, loss=None):
        """Count an update that has ended; return True when the update was the last one."""
        self.updates += 1
        if loss is not None:
            self.losses.append(float(loss))
        if self.updates == self.warmup:
            self.started = time.perf_counter()
        elif self.updates > self.warmup:
            self.tokens += int(num_tokens)
        if self.updates < self.last:
            return False
        self.seconds = time.perf_counter() - self.started
        return True

    def answer(self, **values):
        """Print the result of a training."""
        speed = self.tokens / self.seconds
        losses = {"last_loss": self.losses[-1]} if self.losses else {}
        answer(tgt_tokens=self.tokens, seconds=self.seconds, tgt_tokens_per_second=speed, **losses, **values)


def in_batches(job, search):
    """Return a `translate` for `translated`, which gives a peer batches of sentences of similar lengths.

    `search` takes sources (B, S) and returns B lists of ids, in which nothing counts from EOS or padding on.
    """
    ends = (job["eos_id"], job["pad_id"])

    def translate(sources):
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        found = [[] for _ in sources]
        for start in range(0, len(order), job["batch_sentences"]):
            chosen = order[start : start + job["batch_sentences"]]
            rows = search(padded(job, [sources[i] for i in chosen]))
            for i, row in zip(chosen, rows, strict=True):
                found[i] = list(takewhile(lambda piece: piece not in ends, row))
        return found

    return translate


def translated(job, translate):
    """Time `translate`, from lists of source ids to lists of target ids, on the lines of the job.

    The time includes SentencePiece, as in `nmt translate`. A few lines come before the clock starts.
    """
    import sentencepiece

    tokenizer = sentencepiece.SentencePieceProcessor(model_file=job["tokenizer"])
    lines = Path(job["source"]).read_text(encoding="utf-8").split("\n")[:-1]

    def run(batch):
        found = translate([[*ids, job["eos_id"]] for ids in tokenizer.encode(batch)])
        return tokenizer.decode(found), list(map(len, found))

    run(lines[:16])
    started = time.perf_counter()
    if job["one_by_one"]:
        texts, lengths = zip(
            *((text[0], length[0]) for text, length in (run([line]) for line in lines)), strict=True
        )
    else:
        texts, lengths = run(lines)
    seconds = time.perf_counter() - started
    Path(job["output"]).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    answer(seconds=seconds, sentences_per_second=len(lines) / seconds, mean_length=sum(lengths) / len(lines))
