"""The end of a training: which weights are those of the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.decoding.evaluate import Scores
from nmt.distributed import ALONE
from nmt.runs import train
from nmt.training.train_state import TrainState
from nmt.verbs import VERBS


@pytest.mark.parametrize(
    ("bleu", "loss", "wins"), [(0.0, 3.1, False), (0.0, 3.0, True), (0.1, 9.0, True), (0.0, 2.9, True)]
)
def test_an_average_with_the_score_of_the_best_step_needs_a_loss_that_is_no_higher(
    bleu: float, loss: float, wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = list[str]()
    store = SimpleNamespace(
        average=lambda steps: {},
        save_average=lambda weights, steps: None,
        remove_average=lambda: removed.append("average"),
    )
    (composed,) = compose(VERBS["train"], ["data=toy"])
    trained = SimpleNamespace(cfg=composed.to_config(TrainConfig), model=None, world=ALONE)
    monkeypatch.setattr(train, "load_weights", lambda *asked: None)
    monkeypatch.setattr(train, "_scored", lambda *asked: Scores({"bleu": bleu, "loss": loss}, {}, []))
    state = TrainState(scores={"2": 0.0, "4": 0.0}, losses={"2": 4.0, "4": 3.0})
    run = cast(Any, SimpleNamespace(checkpoints=store))
    results, of_average = train._averaged(cast(Any, trained), run, [2, 4], 4, state, print)
    assert ("averaged_steps" in results, of_average is not None, not removed) == (wins, wins, wins)
