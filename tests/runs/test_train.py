"""The end of a training: which weights are those of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nmt.config.compose import compose
from nmt.config.roots import TrainConfig, search_with
from nmt.decoding.evaluate import Scores
from nmt.distributed import ALONE
from nmt.runs import train
from nmt.runs.validation import Search
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
    loaded = list[str]()
    monkeypatch.setattr(train, "load_weights", lambda *asked: loaded.append(asked[-1]))
    values = {"4": {"bleu": 0.0, "loss": 3.0}, "average": {"bleu": bleu, "loss": loss}}
    monkeypatch.setattr(train, "scored", lambda *asked: Scores(values[loaded[-1]], {}, []))
    state = TrainState(scores={"2": 99.0, "4": 99.0}, losses={"2": 4.0, "4": 3.0})  # by other rules
    run = cast(Any, SimpleNamespace(checkpoints=store))
    results, of_average = train._averaged(cast(Any, trained), run, [2, 4], 4, state, print)
    assert ("averaged_steps" in results, of_average is not None, not removed) == (wins, wins, wins)


def test_an_average_is_compared_with_the_best_step_by_the_search_of_validations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = SimpleNamespace(average=lambda steps: {}, save_average=lambda weights, steps: None)
    settings = ["validation_decoding.beam_size=1", "num_validation_pairs=3"]
    (composed,) = compose(VERBS["train"], ["data=toy", "decoding=beam", *settings])
    cfg, asked = composed.to_config(TrainConfig), list[Search]()
    trained = SimpleNamespace(cfg=cfg, model=None, world=ALONE)
    monkeypatch.setattr(train, "load_weights", lambda *asked: None)

    def scored(trained: Any, run: Any, split: Any, search: Search, log: Any) -> Scores:
        asked.append(search)
        return Scores({"bleu": 3.0 + 2 * len(asked), "loss": 3.0}, {}, [])

    monkeypatch.setattr(train, "scored", scored)
    state = TrainState(scores={"2": 0.0, "4": 5.0}, losses={"2": 4.0, "4": 3.0})
    run = cast(Any, SimpleNamespace(checkpoints=store))
    results, of_average = train._averaged(cast(Any, trained), run, [2, 4], 4, state, print)
    assert asked == [Search(search_with(cfg.decoding, {"beam_size": 1}), 3)] * 2
    assert results["compared"] == {"average": 7.0, "best": 5.0}
    assert of_average is None  # the scores at the end are of another search
    told = "; chosen by the translations of the first 3 pairs with beam_size=1"
    results |= {"train_seconds": 1.0, "tgt_tokens_per_second": 1.0, "signatures": {}}
    told_by_loss = replace(cfg, trainer=replace(cfg.trainer, best_metric="loss"))
    at = cast(Any, SimpleNamespace(path=Path("runs/a")))
    assert f"5.00 of the best{told}\n" in train.summary(cfg, results, at)
    assert told not in train.summary(told_by_loss, results, at)  # which is that of all pairs
