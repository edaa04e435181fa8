"""The end of a training: which weights are those of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from nmt.config.compose import compose
from nmt.config.roots import TrainConfig, search_with
from nmt.distributed import ALONE, World
from nmt.runs import train
from nmt.runs.checkpoint_names import load_weights
from nmt.runs.directory import RunDirectory
from nmt.runs.opening import open_run
from nmt.runs.status import Status
from nmt.runs.validation import Search
from nmt.training.checkpoint import Checkpoint
from nmt.training.recovery import RolledBack, go_back
from nmt.training.train_state import TrainState
from nmt.translation.evaluate import Scores
from nmt.verbs import VERBS
from tests.runs.test_tuning import CPU, TRIED, scores_of
from tests.runs.untrained import untrained
from tests.training.objectives.test_objective import train as fit


@pytest.mark.parametrize(
    ("metric", "score", "loss", "wins"),
    [
        ("bleu", 5.0, 3.1, False),
        ("bleu", 5.0, 3.0, True),
        ("bleu", 5.1, 9.0, True),
        ("bleu", 5.0, 2.9, True),
        ("ter", 5.1, 2.9, False),
        ("ter", 4.9, 9.0, True),
    ],
)
def test_an_average_with_the_score_of_the_best_step_needs_a_loss_that_is_no_higher(
    metric: str, score: float, loss: float, wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = list[str]()
    store = SimpleNamespace(
        average=lambda steps: {},
        save_average=lambda weights, steps: None,
        remove_average=lambda: removed.append("average"),
    )
    chosen = [f"metrics=[{metric}]", f"trainer.best_metric={metric}"]
    (composed,) = compose(VERBS["train"], ["data=toy", *chosen])
    trained = SimpleNamespace(cfg=composed.to_config(TrainConfig), model=None, world=ALONE)
    loaded = list[str]()
    monkeypatch.setattr(train, "load_weights", lambda *asked: loaded.append(asked[-1]))
    values = {"4": {metric: 5.0, "loss": 3.0}, "average": {metric: score, "loss": loss}}
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
    named = train.summary(cfg, results, cast(Any, SimpleNamespace(path=Path("my runs/a"))))
    assert """  nmt translate 'run="my runs/a"' < source.txt > translation.txt\n""" in named
    assert named.endswith("tensorboard --logdir 'my runs'")


@pytest.mark.parametrize(("which", "steps"), [("best", [2, 7]), ("last", [5, 7])])
def test_the_weights_that_are_averaged_are_scored_with_the_tuned_search(
    which: str, steps: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All checkpoints have the same weights, so that the average is as good as the best."""
    loaded = list[str]()

    def load(*asked: Any) -> None:
        loaded.append(asked[-1])
        load_weights(*asked)

    monkeypatch.setattr(train, "load_weights", load)
    keys = ("trainer.average=2", f"trainer.average_of={which}", "trainer.keep_best=2")
    more = ("trainer.save_every_steps=1", "trainer.best_metric=chrf", TRIED)
    run, told = open_run(untrained(tmp_path / "run", *keys, *more), runtime_cfg=CPU), list[str]()
    state = TrainState(step=7, scores={"2": 9.0, "5": 1.0, "7": 5.0})
    for step in (2, 5):
        saved = Checkpoint(step, run.model.state_dict(), {}, state.to_store())
        run.directory.checkpoints.save(saved)
    results = train.conclude(run, run.directory, state, told.append)
    assert results["averaged_steps"] == steps
    assert loaded == ["2", "average", "average"]  # by its name: `final` is no average before the end
    best = max(scores_of(told, "chrf").values())
    assert round(results["validation"]["chrf"], 2) == best != round(results["compared"]["average"], 2)


@pytest.mark.fault(25)
def test_all_ranks_must_see_the_checkpoint_that_a_rollback_has_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Telling(World):
        def broadcast(self, value: Any) -> Any:
            seen.append(value)
            return value

    def trained(*_: object) -> dict[str, Any]:
        assert len(seen) == len(attempts)
        attempts.append(run.checkpoints.steps())
        if len(attempts) == 2:
            return {"step": 9}
        before.append(train._seen(run))
        go_back(run.checkpoints, 7, TrainState(step=8))
        raise RolledBack("the loss is nan")

    run, status = RunDirectory(untrained(tmp_path / "run")), cast(Status, None)
    seen, attempts, before = list[object](), list[object](), list[object]()
    monkeypatch.setattr(train, "_train", trained)
    assert train._train_until_done(cast(TrainConfig, None), run, Telling(), status) == {"step": 9}
    assert attempts == [[7], [7]]
    assert seen == [train._seen(run)] != before


def test_the_same_seed_gives_the_same_weights_and_another_one_others(tmp_path: Path) -> None:
    """After an update that draws dropout and the order of the pairs."""

    def weights(name: str, seed: int) -> bytes:
        fit(tmp_path / name, f"seed={seed}", "model.dropout=0.3", "trainer.max_steps=1", "decoding=greedy")
        return (tmp_path / name / "checkpoints/step_00000001/model.safetensors").read_bytes()

    first = weights("first", 1)
    assert weights("again", 1) == first
    assert weights("other", 2) != first


@pytest.mark.parametrize(("clip_norm", "clip_value"), [(0.5, 0.0), (0.0, 0.01)])
def test_gradients_are_clipped_as_the_config_says(
    clip_norm: float, clip_value: float, tmp_path: Path
) -> None:
    limits = (f"optimizer.clip_norm={clip_norm}", f"optimizer.clip_value={clip_value}")
    run = open_run(untrained(tmp_path / "run", *limits), runtime_cfg=CPU)
    data = cast(Any, SimpleNamespace(tokenizer=run.tokenizer, pairs_of_epoch=lambda *asked: None))
    trainer = train.build_trainer(run, data, run.directory, lambda step: {})
    for parameter in trainer.parameters.values():
        parameter.grad = torch.ones_like(parameter)
    trainer.amp_step.clip()
    gradients = torch.cat([x.grad.flatten() for x in trainer.parameters.values() if x.grad is not None])
    found = float(gradients.norm() if clip_norm else gradients.max())
    assert found == pytest.approx(clip_norm or clip_value, rel=1e-3)
