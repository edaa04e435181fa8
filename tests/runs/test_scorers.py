"""Filters of training pairs that ask a trained model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nmt.data.cleaning.pair_filters import Context, NumberedText, best_share
from nmt.data.filter_table import FILTERS, CrossEntropyConfig, parsed
from nmt.errors import UserError
from nmt.loading import loaded
from nmt.runs.opening import open_run
from nmt.runs.scorers import RunScorers
from nmt.runtime_config import RuntimeConfig
from tests.runs.untrained import WORDS, untrained

TEXT = NumberedText([*WORDS[:6], " "], [*WORDS[1:7], WORDS[0]], numbers=np.arange(7))


def test_cross_entropy_is_the_score_of_the_run_and_dual_that_of_two(tmp_path: Path) -> None:
    there = untrained(tmp_path / "there")
    back = untrained(tmp_path / "back", "data.src=fr", "data.tgt=en", "seed=2")
    scorers = RunScorers(RuntimeConfig())

    def values(**more: str) -> np.ndarray:
        (row,) = parsed("data.filters", [{"name": "cross_entropy", "run": str(there), "share": 0.5, **more}])
        assert isinstance(row, CrossEntropyConfig)
        one = loaded(FILTERS[row.name].code)(row, Context(("en", "fr"), {}, scorers))
        found: np.ndarray = one.values(TEXT)
        assert one.accept(found).tolist() == best_share(0.5, found).tolist()
        return found

    pairs = list(zip(TEXT.src, TEXT.tgt, strict=True))
    own = [one.per_token for one in open_run(there).score(pairs, warn=print)]
    other = [one.per_token for one in open_run(back).score([(b, a) for a, b in pairs], warn=print)]
    assert values().tolist() == own
    assert own[-1] == -np.inf
    dual = [(a + b) / 2 - abs(a - b) for a, b in zip(own[:-1], other[:-1], strict=True)]
    assert values(reverse=str(back)).tolist() == [*map(pytest.approx, dual), -np.inf]


def test_a_run_of_other_languages_is_refused(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run")
    (row,) = parsed("data.filters", [{"name": "cross_entropy", "run": str(run), "min": -5}])
    assert isinstance(row, CrossEntropyConfig)
    with pytest.raises(UserError) as caught:
        RunScorers(RuntimeConfig()).open(row, ("en", "de"))
    assert str(caught.value) == (
        f"data.filters[0]: {run} translates en-fr, but these pairs are to be scored as en-de"
    )


def test_the_best_share_is_rounded_up_and_takes_the_first_of_equals() -> None:
    assert best_share(0.5, np.array([1.0, 3.0, 1.0, 2.0, -np.inf])).tolist() == [
        True,
        True,
        False,
        True,
        False,
    ]
