"""The counts of a server in the text format of Prometheus."""

from __future__ import annotations

from nmt.serving.counters import Counters, Histogram


def test_buckets_are_cumulative_and_hold_their_bounds() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 7):
        histogram.observe(value)
    assert list(histogram.lines("x")) == [
        'x_bucket{le="1"} 2',
        'x_bucket{le="2"} 3',
        'x_bucket{le="+Inf"} 4',
        "x_sum 10.000000",
        "x_count 4",
    ]


def test_every_sample_follows_the_type_of_its_name() -> None:
    counters, declared = Counters(), ""
    counters.answered(200)
    counters.answered(503)
    for line in counters.text({"tokens": 7}).splitlines():
        if line.startswith("# TYPE "):
            declared = line.split()[2]
        else:
            assert line.startswith(declared)
    assert 'nmt_requests_total{code="503"} 1' in counters.text({})
    assert "nmt_queue_tokens 7" in counters.text({"tokens": 7})
