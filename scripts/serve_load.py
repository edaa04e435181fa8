"""Load on `nmt serve`: throughput beside `nmt translate` on the same lines, latency, and overload.

    python scripts/serve_load.py RUN LINES.txt [--lines 400] [--clients 1,8,32] [--threads 1]

Both sides are measured in one call: `nmt translate` on the lines, less its time on one line, which is its
start; then a server on the same machine, with clients that each send a line, wait for the answer, and send
the next; then clients that send 64 lines at a time; then more clients at once than the queue has room for.
Every answer is compared with the line that `nmt translate` wrote.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import NamedTuple


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    seconds: float
    texts: list[str]


async def ask(port: int, lines: Sequence[str]) -> Answer:
    """Send one request on a connection of its own."""
    begun = monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"text": list(lines)}).encode()
    head = f"POST /translate HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
    head += f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    header, _, content = answer.partition(b"\r\n\r\n")
    status = int(header.split()[1])
    texts = [one["text"] for one in json.loads(content)["translations"]] if status == 200 else []
    return Answer(status, monotonic() - begun, texts)


async def load(port: int, requests: Sequence[Sequence[str]], clients: int) -> tuple[float, list[Answer]]:
    """Let some clients send all requests; return the time and the answers in the order of the requests."""
    answers: dict[int, Answer] = {}
    waiting = iter(enumerate(requests))

    async def client() -> None:
        for number, lines in waiting:
            answers[number] = await ask(port, lines)

    begun = monotonic()
    await asyncio.gather(*(client() for _ in range(clients)))
    return monotonic() - begun, [answers[number] for number in range(len(requests))]


@asynccontextmanager
async def server(options: argparse.Namespace, *limits: str) -> AsyncIterator[int]:
    """Start `nmt serve`, yield its port, and end it."""
    command = [sys.executable, "-m", "nmt", "serve", *arguments(options), "serve.port=0", *limits]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        yield int(line.split("127.0.0.1:")[1].split("/")[0])
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def translated(options: argparse.Namespace, lines: Sequence[str]) -> tuple[float, list[str]]:
    """Return the time of `nmt translate`, start included, and its output."""
    begun = monotonic()
    command = [sys.executable, "-m", "nmt", "translate", *arguments(options)]
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return monotonic() - begun, done.stdout.splitlines()


def arguments(options: argparse.Namespace) -> list[str]:
    """Return what both commands are given."""
    return [f"run={options.run}", f"runtime.threads={options.threads}", *options.override]


def share(values: Sequence[float], percent: int) -> float:
    """Return a percentile."""
    return sorted(values)[min(len(values) * percent // 100, len(values) - 1)]


def report(
    name: str, seconds: float, answers: Sequence[Answer], expected: Sequence[str], base: float
) -> None:
    """Print a row, and refuse answers that differ from those of `nmt translate`."""
    refused = [answer.status for answer in answers if answer.status != 200]
    assert not refused, f"{len(refused)} of {len(answers)} requests were refused, the first with {refused[0]}"
    texts = [text for answer in answers for text in answer.texts]
    assert texts == list(expected), (
        f"{sum(a != b for a, b in zip(texts, expected, strict=True))} lines differ"
    )
    rate, times = len(expected) / seconds, [answer.seconds for answer in answers]
    tail = "  ".join(f"{share(times, percent):8.3f}" for percent in (50, 95, 99))
    print(f"{name:<28}{rate:8.1f}{rate / base:8.2f}  {tail}", flush=True)


async def measure(options: argparse.Namespace) -> None:
    """Print all measurements."""
    lines = Path(options.lines_file).read_text(encoding="utf-8").splitlines()[: options.lines]
    (start, _), (whole, expected) = translated(options, lines[:1]), translated(options, lines)
    base = (len(lines) - 1) / (whole - start)
    print(f"{len(lines)} lines            lines/s   ratio       p50       p95       p99 (seconds)")
    print(f"{'nmt translate':<28}{base:8.1f}{1:8.2f}", flush=True)
    async with server(options) as port:
        for clients in map(int, options.clients.split(",")):
            seconds, answers = await load(port, [[line] for line in lines], clients)
            report(f"{clients} clients, 1 line each", seconds, answers, expected, base)
        parts = [lines[i : i + 64] for i in range(0, len(lines), 64)]
        seconds, answers = await load(port, parts, 8)
        report("8 clients, 64 lines each", seconds, answers, expected, base)
    async with server(options, "serve.queue_requests=16") as port:
        _, answers = await load(port, [[line] for line in lines], 128)
        told = ", ".join(
            f"{count} answered {code}" for code, count in Counter(a.status for a in answers).items()
        )
        refused = [answer.seconds for answer in answers if answer.status == 503]
        print(f"128 clients, room for 16: {told}; slowest 503 after {max(refused, default=0):.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("lines_file")
    parser.add_argument("override", nargs="*", help="such as decoding.beam_size=1")
    parser.add_argument("--lines", type=int, default=400)
    parser.add_argument("--clients", default="1,8,32,128")
    parser.add_argument("--threads", type=int, default=1)
    asyncio.run(measure(parser.parse_args()))
