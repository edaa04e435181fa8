"""Limits of all numbers: NaN, infinity and absurd sizes are refused by key and value, whoever wrote them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from nmt.cli import main
from nmt.config.limits import excesses
from nmt.config.stored import load_config, to_plain
from nmt.errors import UserError
from tests.config.test_roots import config, stored


@pytest.mark.parametrize(
    ("plain", "problem"),
    [
        ({"model": {"d_model": 100_000_000}}, "model.d_model must be at most 65,536, but is 100000000"),
        (
            {"model": {"encoder_layers": 10**8}},
            "model.encoder_layers must be at most 1,000, but is 100000000",
        ),
        (
            {"distil": {"decoding": {"num_samples": 10**6}}},
            "distil.decoding.num_samples must be at most 4,096, but is 1000000",
        ),
        ({"runtime": {"threads": 10**8}}, "runtime.threads must be at most 1,024, but is 100000000"),
        ({"seed": -(10**20)}, f"seed must be at least -9,007,199,254,740,992, but is -{10**20}"),
        ({"optimizer": {"clip_norm": math.nan}}, "optimizer.clip_norm must be a finite number, but is nan"),
        ({"optimizer": {"clip_norm": math.inf}}, "optimizer.clip_norm must be a finite number, but is inf"),
        ({"data": {"corpora": {"a": {"weight": math.nan}}}}, "data.corpora.a.weight must be a finite number"),
        ({"data": {"max_ratio": -math.inf}}, "data.max_ratio must be a finite number, but is -inf"),
        ({"schedule": {"peak_rate": 1e300}}, "schedule.peak_rate must be at most 9,007,199,254,740,992"),
        ({"data": {"max_ratio": math.inf, "corpora": {"a": {"max_ratio": math.inf}}}}, None),
        ({"trainer": {"max_minutes": math.inf, "max_steps": None}, "run": "1e999", "metrics": ["nan"]}, None),
        ({"model": {"norm": True, "d_model": 65_536}}, None),
    ],
    ids=str,
)
def test_a_number_is_finite_and_not_absurd(plain: dict[str, Any], problem: str | None) -> None:
    found = list(excesses(plain))
    assert len(found) == (problem is not None)
    assert all(text.startswith(str(problem)) for text in found)


def test_values_of_the_command_line_and_of_a_stored_config_are_checked_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = []
    for key, value in (("model.d_model", 10**8), ("optimizer.weight_decay", math.inf)):
        assert main(["train", f"{key}={value}"]) == 2
        messages.append(capsys.readouterr().err.removeprefix("error: ").strip())
        with pytest.raises(UserError) as error:
            load_config(stored(tmp_path, **{key.replace(".", "__"): value}))
        assert str(error.value) == f"{tmp_path}/config.yaml: {messages[-1]}"
    assert messages == [
        "model.d_model must be at most 65,536, but is 100000000",
        "optimizer.weight_decay must be a finite number, but is inf",
    ]


def test_no_float_of_a_config_may_be_nan() -> None:
    plain = to_plain(config())
    floats = [
        (part, name)
        for part, values in plain.items()
        if isinstance(values, dict)
        for name, value in values.items()
        if isinstance(value, float)
    ]
    assert len(floats) > 10
    for part, name in floats:
        (problem,) = excesses({part: {name: math.nan}})
        assert problem.startswith(f"{part}.{name} must ")
        assert problem.endswith(", but is nan")
    with pytest.raises(UserError, match=r"^optimizer.weight_decay must .*, but is nan"):
        config("optimizer.weight_decay=nan")
