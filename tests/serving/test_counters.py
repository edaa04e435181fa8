"""The counts of a server in the text format of Prometheus."""

from __future__ import annotations

from itertools import chain

from nmt.serving.counters import Counters, Histogram, exposition


def test_buckets_are_cumulative_and_hold_their_bounds() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 7):
        histogram.observe(value)
    assert list(histogram.lines("x", {})) == [
        'x_bucket{le="1"} 2',
        'x_bucket{le="2"} 3',
        'x_bucket{le="+Inf"} 4',
        "x_sum 10.000000",
        "x_count 4",
    ]


def test_every_sample_follows_the_type_of_its_name_also_of_several_models() -> None:
    one, two, declared = Counters("en-de"), Counters("de-en"), list[str]()
    one.answered(200)
    two.answered(503)
    samples = [one.request_samples(), two.request_samples(), one.samples({"tokens": 7}), two.samples({})]
    text = exposition(chain.from_iterable(samples))
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            declared.append(line.split()[2])
        else:
            assert line.startswith(declared[-1])
    assert len(declared) == len({*declared})  # what has one name stands together
    assert 'nmt_requests_total{model="de-en",code="503"} 1' in text
    assert 'nmt_queue_tokens{model="en-de"} 7' in text
    assert 'nmt_batch_seconds_bucket{model="en-de",le="+Inf"} 0' in text


def test_a_model_alone_has_no_label() -> None:
    counters = Counters()
    counters.answered(503)
    text = exposition(chain(counters.request_samples(), counters.samples({"tokens": 7})))
    assert 'nmt_requests_total{code="503"} 1' in text
    assert "nmt_queue_tokens 7" in text
