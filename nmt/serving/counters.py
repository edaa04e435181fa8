"""Counts and histograms, written by hand in the text format that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

Samples = Iterable[tuple[str, str]]
"""Name and kind of a metric, as a line # TYPE has them, and a sample of it."""


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

    def lines(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        """Yield the samples in the text format."""
        total = 0
        for bound, count in zip([*self.bounds, "+Inf"], self.counts, strict=True):
            total += count
            yield _sample(f"{name}_bucket", {**labels, "le": str(bound)}, str(total))
        yield _sample(f"{name}_sum", labels, f"{self.sum:.6f}")
        yield _sample(f"{name}_count", labels, str(total))


class Counters:
    """What a model has done since the start of its server."""

    def __init__(self, model: str = "") -> None:
        self.labels = {"model": model} if model else {}
        """Labels of all samples: the name of the model, where there are several."""
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

    def request_samples(self) -> Samples:
        """Yield the samples of requests."""
        for code, number in sorted(self.requests.items()):
            labels = {**self.labels, "code": str(code)}
            yield "nmt_requests_total counter", _sample("nmt_requests_total", labels, str(number))

    def samples(self, queue: Mapping[str, int]) -> Samples:
        """Yield all other samples; `queue` has what waits now, by name."""
        totals = {"sentences": self.sentences, "src_tokens": self.src_tokens}
        for name, value in totals.items():
            yield f"nmt_{name}_total counter", _sample(f"nmt_{name}_total", self.labels, str(value))
        for name, value in queue.items():
            yield f"nmt_queue_{name} gauge", _sample(f"nmt_queue_{name}", self.labels, str(value))
        for name in ("request_seconds", "batch_sentences", "batch_seconds"):
            for line in getattr(self, name).lines(f"nmt_{name}", self.labels):
                yield f"nmt_{name} histogram", line


def exposition(samples: Samples) -> str:
    """Return samples in the text format, where those of a name stand together."""
    found = dict[str, list[str]]()
    for name, line in samples:
        found.setdefault(name, []).append(line)
    return "".join(f"{line}\n" for name, lines in found.items() for line in (f"# TYPE {name}", *lines))


def _sample(name: str, labels: Mapping[str, str], value: str) -> str:
    """Return a line of the text format; no label has a character that needs an escape."""
    told = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"{name}{{{told}}} {value}" if told else f"{name} {value}"
