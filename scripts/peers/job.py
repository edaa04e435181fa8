"""Tools of every adapter: the job it was given, the batches to train on, the clock, the result.

An adapter is run as `PYTHON scripts/peers/NAME.py JOB.json` by the interpreter of a peer's environment, and
prints one line of JSON last. Only numpy may be assumed here. The ids are those of this project:
`pad_id`, `bos_id` and `eos_id` of the job; padding is on the right.

Settings that a benchmark searches for are words in the job: `parallel`, "2 x 1" for two workers of one thread
each, and `batch`, "64 sentences" or "2048 tokens".
"""

import json
import multiprocessing
import sys
import time
import types
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import numpy as np

WARM_UP_LINES = 16


def read_job():
    """Return the dict that the benchmark wrote for this run."""
    return json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


def answer(**values):
    """Print the result, the last line of an adapter."""
    print(json.dumps(values), flush=True)


def parallel(job):
    """Return the number of workers, and of the threads of each."""
    workers, _, threads = job["parallel"].partition(" x ")
    return int(workers), int(threads)


def batch_size(job):
    """Return the size of a batch, and whether that is a number of tokens, padding included."""
    size, unit = job["batch"].split()
    return int(size), unit == "tokens"


def batches(job):
    """Yield (src (B, S), tgt (B, T)) int64 for each update, both ending in EOS, then padding.

    These are all batches of the job, which warm every system up, and then the same ones again, timed.
    """
    arrays = dict(np.load(job["batches"]))
    for _ in range(2):
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
    """Wall-clock time, target tokens and losses of the second half of the updates."""

    def __init__(self, job):
        self.warmup = job["updates"]
        self.updates, self.tokens, self.loss = 0, 0, 0.0
        self.started = time.perf_counter()

    def update(self, num_tokens, loss):
        """Count an update that has ended, by its mean loss; return True when it was the last one."""
        self.updates += 1
        if self.updates == self.warmup:
            self.started = time.perf_counter()
        elif self.updates > self.warmup:
            self.tokens += int(num_tokens)
            self.loss += float(loss) * int(num_tokens)
        if self.updates < 2 * self.warmup:
            return False
        self.seconds = time.perf_counter() - self.started
        return True

    def answer(self, **values):
        """Print the result of a training."""
        speed, loss = self.tokens / self.seconds, self.loss / self.tokens
        answer(tgt_tokens=self.tokens, seconds=self.seconds, tgt_tokens_per_second=speed, loss=loss, **values)


def by_length(job, search):
    """Return a `translate` of lists of ids, which gives `search` batches of sentences of similar lengths.

    `search` takes sources (B, S) and returns B lists of ids, in which nothing counts from EOS or padding on.
    """
    ends, (size, is_tokens) = (job["eos_id"], job["pad_id"]), batch_size(job)

    def translate(sources):
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]), reverse=True)
        found = [[] for _ in sources]
        while order:
            number = max(size // len(sources[order[0]]), 1) if is_tokens else size
            chosen, order = order[:number], order[number:]
            rows = search(padded(job, [sources[i] for i in chosen]))
            for i, row in zip(chosen, rows, strict=True):
                found[i] = list(takewhile(lambda piece: piece not in ends, row))
        return found

    return translate


def of_text(job, translate):
    """Return a function of lines, by a `translate` of lists of ids.

    `translate` gets sources that end in EOS and returns targets that do not.
    """
    import sentencepiece

    tokenizer = sentencepiece.SentencePieceProcessor(model_file=job["tokenizer"])

    def run(lines):
        return tokenizer.decode(translate([[*ids, job["eos_id"]] for ids in tokenizer.encode(lines)]))

    return run


def translated(job, load, own_workers=False):
    """Time a translation of the lines of the job, SentencePiece included, loading excluded.

    `load`, a function of a module, takes a job and returns a function of lines that translates them.
    With several workers each is a process of its own, and gets every so many lines, unless the peer has
    workers itself (`own_workers`). Lines that come one by one are translated one by one. Each process has
    some lines before the clock starts.
    """
    lines = Path(job["source"]).read_text(encoding="utf-8").split("\n")[:-1]
    number = 1 if own_workers else parallel(job)[0]
    with _workers(number, job, load, lines[:WARM_UP_LINES]) as translate:
        started = time.perf_counter()
        groups = [[line] for line in lines] if job["one_by_one"] else [lines]
        texts = [text for group in groups for text in translate(group)]
        seconds = time.perf_counter() - started
    Path(job["output"]).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    answer(seconds=seconds, sentences_per_second=len(lines) / seconds)


@contextmanager
def _workers(number, job, load, first):
    """Yield a function of lines that deals them to `number` processes."""
    if number == 1:
        _load(job, load, first, None)
        yield _answer
        return
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(number + 1, timeout=600)  # a worker that fails never arrives
    with context.Pool(number, _load, (job, load, first, ready)) as pool:
        ready.wait()

        def translate(lines):
            shares = pool.map(_answer, [lines[i::number] for i in range(number)], chunksize=1)
            texts = [""] * len(lines)
            for i, share in enumerate(shares):
                texts[i::number] = share
            return texts

        yield translate


def _load(job, load, first, ready):
    global translate_here
    translate_here = load(job)
    translate_here(first)
    if ready is not None:
        ready.wait()


def _answer(lines):
    return translate_here(lines)
