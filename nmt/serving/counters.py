"""Counts and histograms, written by hand in the text format that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Histogram:
    """Numbers of observations up to each of some bounds."""

    def __init__(self, bounds: Sequence[float]):
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterator[str]:
        """Yield the samples in the text format."""
        total = 0
        for bound, count in zip([*self.bounds, "+Inf"], self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self.sum:.6f}"
        yield f"{name}_count {total}"


class Counters:
    """What a server has done since its start."""

    def __init__(self) -> None:
        self.requests = dict[int, int]()
        """Requests to the path of the task by the status of their answer."""
        self.sentences = 0
        self.src_tokens = 0
        self.request_seconds = Histogram(SECONDS)
        """Time from the end of a request to its answer, of those that got one."""
        self.batch_sentences = Histogram(SIZES)
        self.batch_seconds = Histogram(SECONDS)

    def answered(self, status: int) -> None:
        """Count a request by the status of its answer."""
        self.requests[status] = self.requests.get(status, 0) + 1

    def text(self, queue: dict[str, int]) -> str:
        """Return everything in the text format; `queue` has what waits now, by name."""
        lines = ["# TYPE nmt_requests_total counter"]
        lines += [f'nmt_requests_total{{code="{code}"}} {n}' for code, n in sorted(self.requests.items())]
        totals = {"sentences": self.sentences, "src_tokens": self.src_tokens}
        for name, value in totals.items():
            lines += [f"# TYPE nmt_{name}_total counter", f"nmt_{name}_total {value}"]
        for name, value in queue.items():
            lines += [f"# TYPE nmt_queue_{name} gauge", f"nmt_queue_{name} {value}"]
        for name in ("request_seconds", "batch_sentences", "batch_seconds"):
            lines += [f"# TYPE nmt_{name} histogram", *getattr(self, name).lines(f"nmt_{name}")]
        return "\n".join(lines) + "\n"
