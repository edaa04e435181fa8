"""Searches: what Optuna is asked and told, kills in the middle, pruning, and what cannot be searched."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from nmt.cli import report
from nmt.config.composed import Composed
from nmt.config.stored import save_config
from nmt.config.sweeps import Dimension, Direction, Pruner, Sampler, SweepConfig
from nmt.config.trials import Sweep, plan
from nmt.errors import Interrupted, UserError
from nmt.files import write_json
from nmt.signals import StopRequest
from nmt.sweeps import drive
from nmt.sweeps.drive import sweep
from nmt.sweeps.ranking import Ranking
from nmt.sweeps.search import JOURNAL, Search
from nmt.verbs import VERBS

SPACE = {
    "schedule.factor": Dimension(low=0.1, high=10.0, log=True),
    "model.num_heads": Dimension(choices=("2", "4")),
    "trainer.accumulate": Dimension(low=1, high=8, step=1, whole=True),
}


def opened(
    folder: Path,
    number: int = 12,
    space: dict[str, Dimension] = SPACE,
    shared: dict[str, str] | None = None,
    **settings: Any,
) -> Search:
    cfg = SweepConfig(trials=number, **settings)
    steps = {"parallel": 1, "first_step": 10, "last_step": 30}
    return Search(cfg, space, folder, Direction.maximize, **steps, settings=shared or {})


def score(values: dict[str, str]) -> float:
    return -abs(float(values["schedule.factor"]) - 3) - int(values["trainer.accumulate"])


def finish(search: Search) -> list[str]:
    done = []
    while (name := search.next()) is not None:
        search.tell(name, score(search.values(name)))
        done.append(name)
    return done


def test_an_interrupted_search_makes_the_choices_of_one_in_one_go(tmp_path: Path) -> None:
    whole = opened(tmp_path / "whole")
    expected = finish(whole)
    assert len(expected) == 12
    assert all(name.startswith(f"{number:03d}+factor-") for number, name in enumerate(expected))
    first = opened(tmp_path / "parts")
    for _ in range(6):
        name = first.next()
        assert name is not None
        first.tell(name, score(first.values(name)))
    running = first.next()  # and the process is killed while it writes
    with (tmp_path / "parts" / JOURNAL).open("ab") as file:
        file.write(b'{"op_code": 6, "worker')
    (tmp_path / "parts" / f"{JOURNAL}.lock").symlink_to(JOURNAL)
    again = opened(tmp_path / "parts")
    assert again.next() == running == expected[6]
    assert running is not None
    again.tell(running, score(again.values(running)))
    assert expected[:7] + finish(again) == expected
    assert {again.state(name) for name in expected} == {"done"}
    values = [again.values(name) for name in expected]
    assert {one["model.num_heads"] for one in values} == {"2", "4"}
    assert all(1 <= int(one["trainer.accumulate"]) <= 8 for one in values)
    assert max(len(one["schedule.factor"]) for one in values) <= 7  # four digits, for people


def test_a_search_learns_from_the_values_that_its_trials_have_by_now(tmp_path: Path) -> None:
    """After a change it chooses like one that has never seen the earlier values."""

    def begun(folder: Path, error: float) -> list[str]:
        search, names = opened(folder, sampler=Sampler.random), list[str]()
        for number in range(8):
            names.append(name := search.next() or "")
            value = score(search.values(name)) + error * (number in (1, 4))
            assert not search.is_hopeless(name, {10: value - 1}, 30)
            search.tell(name, value)
        return [*names, search.next() or ""]  # and the process is killed

    names = begun(tmp_path / "right", 0.0)
    assert begun(tmp_path / "wrong", 99.0) == names
    right, wrong = opened(tmp_path / "right"), opened(tmp_path / "wrong")
    wrong.go_on(names[8])
    (tmp_path / "wrong" / f"{JOURNAL}.new.lock").symlink_to(f"{JOURNAL}.new")  # of a kill while it revised
    wrong.revise({names[1]: score(wrong.values(names[1])), names[4]: None})
    assert [wrong.state(names[number]) for number in (0, 1, 4, 8)] == ["done", "done", "running", "running"]
    assert wrong.next() == names[4]
    wrong.tell(names[4], score(wrong.values(names[4])))
    assert not wrong.is_hopeless(names[8], {10: 1.0}, 30)
    wrong.tell(names[8], score(wrong.values(names[8])))
    assert wrong.known()[names[4]].intermediate_values == {}  # of the run that is gone
    assert {file.name for file in (tmp_path / "wrong").iterdir()} == {JOURNAL}
    assert finish(right) == [names[8], *finish(opened(tmp_path / "wrong"))]


def test_a_trial_that_has_failed_is_tried_again_under_its_name(tmp_path: Path) -> None:
    search = opened(tmp_path, 2)
    failed = search.next()
    assert failed is not None
    values = search.values(failed)
    search.tell(failed, None)
    finish(search)
    assert search.state(failed) == "failed"
    again = opened(tmp_path, 2)
    assert again.next() == failed
    assert again.values(failed) == values
    again.tell(failed, 1.0)
    assert (again.next(), len(again.known()), again.state(failed)) == (None, 2, "done")


def test_a_hopeless_trial_is_found_by_its_curve(tmp_path: Path) -> None:
    search = opened(tmp_path, pruner=Pruner.median, startup_trials=2)
    for value in (20.0, 30.0):
        name = search.next()
        assert name is not None
        assert not search.is_hopeless(name, {10: value, 20: value + 5}, 30)
        search.tell(name, value + 5)
    name = search.next()
    assert name is not None
    assert not search.is_hopeless(name, {}, 30)
    assert not search.is_hopeless(name, {10: 26.0}, 30)
    assert search.is_hopeless(name, {10: 26.0, 20: 26.5}, 30)
    assert not search.is_hopeless(name, {10: 26.0, 20: 26.5, 30: 26.0}, 30)  # which is its last step
    search.tell(name, None, pruned=True)
    assert search.state(name) == "pruned"


def test_hyperband_ends_most_trials_early_and_not_the_best(tmp_path: Path) -> None:
    search, ended = opened(tmp_path, number=30, pruner=Pruner.hyperband), 0
    for number in range(30):
        name = search.next()
        assert name is not None
        value = float(30 - number)  # each is worse than those before
        is_hopeless = search.is_hopeless(name, {10: value, 20: value}, 30)
        ended += is_hopeless
        search.tell(name, None if is_hopeless else value, pruned=is_hopeless)
        assert number or not is_hopeless
    assert ended > 10


def test_a_trial_is_judged_by_what_it_would_count_if_it_ended(tmp_path: Path) -> None:
    lines = ((5, 1.0, 4.0), (10, 3.0, 4.5), (15, 2.0, 3.0), (20, 3.0, 4.4), (25, 3.0, 4.6))
    logged = [{"step": step, "valid/bleu": bleu, "valid/loss": loss} for step, bleu, loss in lines]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in logged))
    of_loss = Ranking("validation.loss", Direction.minimize, "bleu").so_far(tmp_path)
    assert of_loss == {5: 4.0, 10: 4.5, 15: 4.5, 20: 4.4, 25: 4.4}  # of equal scores the lower loss counts
    of_bleu = Ranking("validation.bleu", Direction.maximize, "bleu").so_far(tmp_path)
    assert of_bleu == {5: 1.0, 10: 3.0, 15: 3.0, 20: 3.0, 25: 3.0}
    assert Ranking("valid/loss", Direction.minimize).so_far(tmp_path)[15] == 3.0
    assert Ranking("validation.bleu", Direction.maximize, "loss").so_far(tmp_path)[20] == 2.0


def test_a_validation_without_a_score_to_choose_by_is_not_the_best(tmp_path: Path) -> None:
    """Where lower is better; JSON has a score that is not finite as text."""
    lines: list[tuple[int, float | str, float]] = [
        (5, "nan", 9.0),
        (10, 4.0, 8.0),
        (15, "inf", 7.0),
        (20, 3.0, 6.0),
    ]
    logged = [{"step": step, "valid/loss": loss, "valid/bleu": bleu} for step, loss, bleu in lines]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in logged))
    found = Ranking("validation.bleu", Direction.maximize, "loss").so_far(tmp_path)
    assert found == {10: 8.0, 20: 6.0}


def test_a_grid_is_every_combination(tmp_path: Path) -> None:
    space = {"a": Dimension(choices=("x", "y")), "b": Dimension(low=1, high=3, step=1, whole=True)}
    search = opened(tmp_path, 99, space, sampler=Sampler.grid)
    assert search.total() == 6
    names = [search.next() for _ in range(7)]
    assert names == [
        *(f"{n:03d}+a-{a}+b-{b}" for n, (a, b) in enumerate((a, b) for a in "xy" for b in "123")),
        None,
    ]
    with pytest.raises(UserError, match=r"sweep.sampler=grid needs a list of values: schedule.factor=A,B"):
        opened(tmp_path / "b", sampler=Sampler.grid).total()


def test_a_grid_that_goes_on_with_more_values_tries_what_is_missing(tmp_path: Path) -> None:
    def space(high: int) -> dict[str, Dimension]:
        return {key: Dimension(low=1, high=high, step=1, whole=True) for key in "ab"}

    def tried(number: int, high: int, sampler: Sampler) -> list[str]:
        search = opened(tmp_path, number, space(high), sampler=sampler)
        names = []
        while (name := search.next()) is not None:
            search.tell(name, 1.0)
            names.append("".join(search.values(name).values()))
        return names

    drawn = tried(1, 2, Sampler.random)
    assert sorted([*drawn, *tried(99, 2, Sampler.grid)]) == ["11", "12", "21", "22"]
    assert tried(99, 3, Sampler.grid) == ["13", "23", "31", "32", "33"]


def test_another_search_is_not_continued(tmp_path: Path) -> None:
    finish(opened(tmp_path, 2))
    other = SPACE | {"model.num_heads": Dimension(choices=("2", "4", "8"))}
    with pytest.raises(
        UserError, match=r"is of a search in which model.num_heads had other values, .*'2', '4'"
    ):
        opened(tmp_path, 4, other)
    wider = SPACE | {"schedule.factor": Dimension(low=0.01, high=20.0, log=True)}
    assert len(finish(opened(tmp_path, 4, wider))) == 2


def test_a_search_with_other_settings_is_not_continued(tmp_path: Path) -> None:
    settings = {"data.train": "news/train", "model.dropout": "0.1"}
    finish(opened(tmp_path, 2, shared=settings))
    with pytest.raises(UserError) as refused:
        opened(tmp_path, 4, shared={"data.train": "web/train", "model.dropout": "0.1", "model": "gpt"})
    assert "is of a search with other settings, data.train=news/train, model=not set; give" in str(
        refused.value
    )
    assert len(finish(opened(tmp_path, 4, shared=settings))) == 2


def test_without_optuna_there_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError) as refused:
        opened(tmp_path)
    assert str(refused.value) == "a search needs optuna: pip install 'nmt[search]'"


@functools.cache
def planned(*arguments: str) -> Sweep:
    return plan(VERBS["train"], ["-m", "sweep.dir=sweep", *arguments])


def ended(trial: Composed, **scores: float) -> dict[str, Any]:
    """Leave what a training ends with, and return its scores on validation."""
    cfg, folder = trial.to_training()
    save_config(cfg, folder / "config.yaml")
    write_json(folder / "results.json", {"validation": scores})
    return {"validation": scores}


def worse_by_heads(trial: Composed) -> dict[str, Any]:
    """Leave a validation curve, and run with 4 heads until the sweep ends that; count its signals.

    A training of 10 updates ends by itself.
    """
    heads, (cfg, folder) = int(trial.values["model.num_heads"]), trial.to_training()
    save_config(cfg, folder / "config.yaml")
    bleu = 10.0 / heads
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 10, "valid/bleu": bleu}) + "\n")
    if heads == 4 and cfg.trainer.max_steps != 10:
        signals: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
        wait_for(lambda: bool(signals))
        time.sleep(0.4)  # as a trial that saves, while the sweep looks again
        (folder / "signals").write_text(str(len(signals)))
        raise Interrupted(signal.SIGTERM, "stopped")
    wait_for((folder / "seen").exists)
    return ended(trial, bleu=bleu)


def wait_for(happened: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a sweep look at curves often, and leave a file beside each that it has seen."""
    is_hopeless = Search.is_hopeless

    def seen(search: Search, name: str, curve: Mapping[int, float], last_step: int | None) -> bool:
        found = is_hopeless(search, name, curve, last_step)
        if curve:
            Path("sweep", name, "seen").touch()
        return found

    monkeypatch.setattr(drive, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(Search, "is_hopeless", seen)


@pytest.mark.usefixtures("looks")
def test_a_search_trains_prunes_and_counts_equal_trials_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of the values that are tried, 4 heads are bad from the first validation on, and 3 make no model."""
    monkeypatch.chdir(tmp_path)

    choice = "model.num_heads=choice(1,2,4)"
    settings = ["sweep.sampler=grid", "sweep.pruner=median", "sweep.startup_trials=2"]
    assert sweep(planned(choice, *settings), worse_by_heads, report) == 0
    shown = capfd.readouterr()
    assert "pruned      002+num_heads-4: BLEU 2.50 after step 10 (sweep.pruner=median)" in shown.out
    found = json.loads(Path("sweep/sweep.json").read_text())
    assert [(one["name"], one["state"]) for one in found["trials"]] == [
        ("000+num_heads-1", "done"),
        ("001+num_heads-2", "done"),
        ("002+num_heads-4", "pruned"),
    ]
    assert Path("sweep/002+num_heads-4/signals").read_text() == "1"  # a second one ends what saves
    assert sweep(planned(choice, *settings), worse_by_heads, report) == 0
    assert "starts" not in capfd.readouterr().err


@pytest.mark.usefixtures("looks")
def test_values_that_were_pruned_are_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Trials with 4 heads are pruned, in the folder of the first of them, in later commands too."""
    monkeypatch.chdir(tmp_path)

    choice = "model.num_heads=choice(2,4)"
    settings = ["sweep.sampler=random", "sweep.seed=2", "sweep.trials=4"]  # 2, 4, 2 and 4 heads
    settings += ["sweep.pruner=median", "sweep.startup_trials=1"]
    for begun in (2, 0):
        assert sweep(planned(choice, *settings), worse_by_heads, report) == 0
        assert capfd.readouterr().err.count("starts") == begun
        trials = json.loads(Path("sweep/sweep.json").read_text())["trials"]
        ends = {(one["values"]["model.num_heads"], one["state"]) for one in trials}
        assert ends == {("2", "done"), ("4", "pruned")}
        assert [one["state"] for one in trials].count("pruned") > 1
        assert all(Path(one["path"]).is_dir() for one in trials)


@pytest.mark.usefixtures("looks")
def test_no_trial_is_pruned_at_its_own_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    choices = ["model.num_heads=choice(1,4)", "trainer.max_steps=choice(10,20)"]
    settings = ["sweep.sampler=grid", "sweep.pruner=median", "sweep.startup_trials=1"]
    assert sweep(planned(*choices, *settings), worse_by_heads, report) == 0
    found = json.loads(Path("sweep/sweep.json").read_text())["trials"]
    states = {one["name"][4:]: one["state"] for one in found}
    assert states.pop("num_heads-4+max_steps-20") == "pruned"
    assert {*states.values()} == {"done"}


@pytest.mark.parametrize(
    ("choice", "problem"),
    [
        (
            "trainer.max_steps=choice(10,20)",
            "max_steps for all trials, but it is 10 with trainer.max_steps=10",
        ),
        ("trainer.eval_every_steps=int(interval(5,9))", "eval_every_steps for all trials, but it is 5 with"),
        (
            "experiment=choice(none,multi30k_en_de)",
            "max_steps for all trials, but it is 20000 with experiment",
        ),
    ],
)
def test_hyperband_needs_trials_of_one_length(
    choice: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["model.dropout=interval(0.1,0.3)", "sweep.trials=4", "sweep.pruner=hyperband"]
    with pytest.raises(UserError, match=rf"^sweep.pruner=hyperband needs one trainer.{problem}"):
        sweep(planned(choice, *settings), lambda trial: {}, report)


@pytest.mark.parametrize("choice", ["model.num_heads=choice(2,4)", "trainer.batch_tokens=choice(512,2048)"])
def test_hyperband_takes_the_steps_that_the_corpus_chooses(
    choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A usual corpus has 5,000 updates, and other numbers with other batches; this one always has 200."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    for language in ("xx", "yy"):
        Path(f"train.{language}").write_text("".join(f"a b {number}\n" for number in range(50)))
    data = ["data=files", "data.src=xx", "data.tgt=yy", "data.train=train", "data.validation=train"]
    settings = ["experiment=small_data", "data.scored_split=validation", "sweep.trials=1"]
    asked = list[tuple[int, int]]()

    def search(*arguments: Any, first_step: int, last_step: int, **settings: Any) -> Search:
        asked.append((first_step, last_step))
        return Search(*arguments, first_step=first_step, last_step=last_step, **settings)

    monkeypatch.setattr("nmt.sweeps.study.Search", search)
    chosen = planned(choice, *data, *settings, "sweep.pruner=hyperband")
    assert sweep(chosen, lambda trial: ended(trial, bleu=1.0), report) == 0
    assert asked == [(40, 200)]
    assert "chosen for" not in capfd.readouterr().err.partition(" starts")[0]


def test_pruning_needs_validations_at_known_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["sweep.sampler=grid", "sweep.pruner=median", "trainer.eval_every_steps='2 epochs'"]
    with pytest.raises(
        UserError,
        match=r"^sweep\.pruner=median must know when the first validation comes, but "
        r"trainer\.eval_every_steps is '2 epochs'; set it to a number of updates$",
    ):
        sweep(planned("model.num_heads=choice(1,2,4)", *settings), lambda trial: {}, report)


def test_a_search_by_another_metric_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def train(trial: Composed) -> dict[str, Any]:
        heads = float(trial.values["model.num_heads"])
        return {"validation": {"bleu": heads, "chrf": 9 - heads}}

    command = ["model.num_heads=choice(2,4)", "sweep.trials=1"]
    assert sweep(planned(*command), train, report) == 0
    with pytest.raises(UserError, match=r"with other settings, sweep\.metric=validation\.bleu; give"):
        sweep(planned(*command, "sweep.metric=validation.chrf"), train, report)
    assert sweep(planned(*command, "sweep.metric=validation.bleu"), train, report) == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("model.d_ff=shuffle(range(8,80,8))", ("8", "72")),
        ("model.d_ff=shuffle(8,16,32)", ("16", "32", "8")),
        ("optimizer.beta2=interval(0.99,0.99999)", ("0.99", "0.99999")),
        ("trainer.ema_decay=range(0.99901,0.99909,0.00002)", ("0.99901", "0.99907")),
        ("schedule.factor=interval(0.5,2)", ("0.5", "2.0")),
    ],
)
def test_values_of_a_search_are_those_that_are_typed(given: str, expected: tuple[str, ...]) -> None:
    (dimension,) = planned(given, "sweep.trials=1").space.values()
    assert dimension.ends == expected


def test_numbers_of_a_narrow_interval_can_be_told_apart() -> None:
    narrow, wide = Dimension((), 0.99, 0.99999), Dimension((), 0.001, 0.1)
    assert (narrow.text(0.998765432), wide.text(0.0123456)) == ("0.99877", "0.01235")
    assert (narrow.text(0.99998999), wide.text(0.00100001)) == ("0.99999", "0.001")


def test_equal_values_are_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def train(trial: Composed) -> dict[str, Any]:
        return ended(trial, bleu=float(trial.values["model.num_heads"]))

    command = ["model.num_heads=choice(2,4)", "sweep.trials=4", "sweep.sampler=random"]
    assert sweep(planned(*command), train, report) == 0
    shown = capfd.readouterr().err
    assert shown.count("starts") == 2
    assert shown.count("has the values of 00") == 2
    first = Path("sweep/sweep.json").read_text()
    assert sweep(planned(*command), train, report) == 0
    assert Path("sweep/sweep.json").read_text() == first
    assert "starts" not in capfd.readouterr().err
    assert len({one["path"] for one in json.loads(first)["trials"]}) == 2
    shutil.rmtree(json.loads(first)["trials"][0]["path"])  # the best run
    for begun in (1, 0):
        assert sweep(planned(*command), train, report) == 0
        assert capfd.readouterr().err.count("starts") == begun
        again = json.loads(Path("sweep/sweep.json").read_text())
        assert Path(again["trials"][0]["path"]).is_dir()
        assert {one["name"]: one["value"] for one in again["trials"]} == {
            one["name"]: one["value"] for one in json.loads(first)["trials"]
        }


def test_trials_of_an_experiment_that_has_changed_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The settings on the command line are the same, but not what they stand for."""
    monkeypatch.chdir(tmp_path)
    file = Path("conf/experiment/mine.yaml")
    file.parent.mkdir(parents=True)

    def search(dropout: float, *more: str) -> int:
        file.write_text(f"# @package _global_\nmodel:\n  dropout: {dropout}\n")
        command = ["-m", "--config-dir", "conf", "experiment=mine", "sweep.dir=sweep", "sweep.sampler=grid"]
        chosen = plan(VERBS["train"], [*command, "model.num_heads=choice(2,4)", *more])
        return sweep(chosen, lambda trial: ended(trial, bleu=1.0), report)

    assert search(0.1, "sweep.trials=1") == search(0.1, "sweep.trials=1", "runtime.threads=3") == 0
    assert capfd.readouterr().err.count("starts") == 1
    with pytest.raises(UserError) as refused:
        search(0.3)
    assert str(refused.value) == (
        "sweep/study.journal is of a search with other settings; the run sweep/000+num_heads-2 and the "
        "config of its trial differ in model.dropout: 0.1 -> 0.3; give those, remove the run to train it "
        "again, or choose another sweep.dir=..."
    )
    shutil.rmtree("sweep/000+num_heads-2")
    assert search(0.3) == 0
    assert capfd.readouterr().err.count("starts") == 2


def test_a_search_evaluates_again_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_config(planned("model.num_heads=choice(2,4)").example.to_training()[0], Path("run/config.yaml"))
    command = ["-m", "sweep.dir=sweep", "run=run", "decoding.beam_size=choice(1,2)"]
    command += ["sweep.trials=3", "sweep.sampler=random", "data.scored_split=validation"]

    def evaluate(trial: Composed) -> dict[str, Any]:
        bleu = 0.0 if not Path("run/results.json").exists() else 9.0
        return {"validation": {"bleu": bleu + float(trial.values["decoding.beam_size"])}}

    for more, begun, best in (([], 2, 2.0), ([], 0, 2.0), (["runtime.threads=3"], 0, 2.0), ([], 2, 11.0)):
        if best > 2:
            write_json(Path("run/results.json"), {"step": 9})  # has been trained further
        assert sweep(plan(VERBS["evaluate"], [*command, *more]), evaluate, report) == 0
        assert capfd.readouterr().err.count("starts") == begun
        found = json.loads(Path("sweep/sweep.json").read_text())["trials"]
        assert found[0]["value"] == found[0]["scores"]["validation"]["bleu"] == best
        assert {one["value"] for one in found} == {best, best - 1}


def test_a_run_that_was_trained_again_counts_with_its_new_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def train(trial: Composed) -> dict[str, Any]:
        return ended(trial, bleu=float(trial.values["model.num_heads"]))

    def values() -> list[dict[str, float]]:
        table = json.loads(Path("sweep/sweep.json").read_text())["trials"]
        study = opened(Path("sweep"), space=plan_of_search.space, shared=shared, sampler=Sampler.grid)
        return [
            {one["name"]: one["value"] for one in table},
            {name: one.value or 0.0 for name, one in study.known().items()},
            {one["name"]: one["scores"]["validation"]["bleu"] for one in table},
        ]

    plan_of_search = planned("model.num_heads=choice(2,4)", "sweep.sampler=grid")
    shared = {**plan_of_search.shared, "sweep.metric": "validation.bleu"}
    assert sweep(plan_of_search, train, report) == 0
    first, second = "000+num_heads-2", "001+num_heads-4"
    facts = {"step": 7, "train_seconds": 60.0, "tgt_tokens_per_second": 9.0, "signatures": {}}
    results = Path("sweep", first, "results.json")
    write_json(results, {**facts, "validation": {"bleu": 9.0}})
    assert sweep(plan_of_search, train, report) == 0
    assert values() == [{first: 9.0, second: 4.0}] * 3
    write_json(results, {**facts, "validation": {"chrf": 9.0}})
    capfd.readouterr()
    assert sweep(plan_of_search, train, report) == 0
    assert capfd.readouterr().err.count("starts") == 1
    assert values() == [{first: 2.0, second: 4.0}] * 3


@pytest.mark.parametrize("is_removed", [True, False])
def test_what_a_lost_table_had_of_a_search_is_read_from_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], is_removed: bool
) -> None:
    """It has been removed, or a kill came between the end of a trial and the writing of the table."""
    monkeypatch.chdir(tmp_path)

    def train(trial: Composed) -> dict[str, Any]:
        assert trial.folder is not None
        found = ended(trial, bleu=float(trial.values["model.num_heads"]))
        facts = {"step": 7, "train_seconds": 60.0, "tgt_tokens_per_second": 9.0, "signatures": {}}
        write_json(trial.folder / "results.json", {**found, **facts, "test": {"bleu": 1.0}})
        (trial.folder / "metrics.jsonl").write_text(json.dumps({"step": 7, "train/tokens": 70}) + "\n")
        return {**found, "test": {"bleu": 1.0}}

    command = ["model.num_heads=choice(2,4)", "sweep.trials=4", "sweep.sampler=random"]
    assert sweep(planned(*command), train, report) == 0
    file, lost = Path("sweep/sweep.json"), ("scores", "seconds", "updates", "value", "path", "reason")
    before = {one["name"]: [one[key] for key in lost] for one in json.loads(file.read_text())["trials"]}
    assert capfd.readouterr().err.count("starts") == 2
    if is_removed:
        file.unlink()
    else:
        content = json.loads(file.read_text())
        unknown: dict[str, Any] = {
            "state": "running",
            "scores": {},
            "value": None,
            "updates": None,
            "seconds": 0.0,
        }
        content["trials"][0] |= unknown
        file.write_text(json.dumps(content))
    assert sweep(planned(*command), train, report) == 0
    assert "starts" not in capfd.readouterr().err
    again = {one["name"]: [one[key] for key in lost] for one in json.loads(file.read_text())["trials"]}
    assert again == before
    assert [{"validation": {"bleu": 2.0}, "test": {"bleu": 1.0}}, 60.0, 7] in [x[:3] for x in before.values()]


@pytest.mark.parametrize("fails", [False, True])
def test_equal_values_at_one_time_are_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], fails: bool
) -> None:
    """What is run already is waited for, and ends in the same way; a failure is tried again later, once."""
    monkeypatch.chdir(tmp_path)
    broken = tmp_path / "broken"
    broken.touch()

    def train(trial: Composed) -> dict[str, Any]:
        time.sleep(0.5)
        if fails and trial.values["model.num_heads"] == "4" and broken.exists():
            raise UserError("no room for four heads")
        return ended(trial, bleu=float(trial.values["model.num_heads"]))

    command = ["model.num_heads=choice(2,4)", "sweep.trials=4", "sweep.sampler=random", "sweep.parallel=4"]
    assert sweep(planned(*command), train, report) == 3 * fails
    shown = capfd.readouterr().err
    assert shown.count("starts") == 2
    assert shown.count(" waits for 00") == shown.count(" has the values of 00") == 2

    trials = json.loads(Path("sweep/sweep.json").read_text())["trials"]
    ends = {(one["values"]["model.num_heads"], one["state"], one["path"]) for one in trials}
    assert len(trials) == 4
    assert {(heads, state) for heads, state, _ in ends} == {
        ("2", "done"),
        ("4", "failed" if fails else "done"),
    }
    assert len(ends) == 2
    broken.unlink()
    assert sweep(planned(*command), train, report) == 0
    assert capfd.readouterr().err.count("starts") == int(fails)
    again = json.loads(Path("sweep/sweep.json").read_text())["trials"]
    assert {one["state"] for one in again} == {"done"}


def test_what_waits_for_equal_values_goes_on_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first = tmp_path / "first"
    first.touch()

    def train(trial: Composed) -> dict[str, Any]:
        heads = trial.values["model.num_heads"]
        if first.exists():
            with StopRequest():
                (tmp_path / f"begun-{heads}").touch()
                while heads == "2" and not (tmp_path / "begun-4").exists():
                    time.sleep(0.01)
                if heads == "2":
                    os.kill(os.getppid(), signal.SIGTERM)
                time.sleep(30)
        return {"validation": {"bleu": float(trial.values["model.num_heads"])}}

    command = ["model.num_heads=choice(2,4)", "sweep.trials=4", "sweep.sampler=random", "sweep.parallel=4"]
    with pytest.raises(Interrupted, match=r"^stopped by SIGTERM; 0 of 4 trials are done; the same command"):
        sweep(planned(*command), train, report)
    shown = capfd.readouterr().err
    assert shown.count("starts") == 2
    assert shown.count(" waits for 00") == 2
    trials = json.loads(Path("sweep/sweep.json").read_text())["trials"]
    assert [one["state"] for one in trials] == ["stopped"] * 4

    first.unlink()
    assert sweep(planned(*command), train, report) == 0
    assert capfd.readouterr().err.count("starts") == 2
    trials = json.loads(Path("sweep/sweep.json").read_text())["trials"]
    assert {one["state"] for one in trials} == {"done"}


def test_a_search_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["-m", "sweep.dir=sweep", "sweep.trials=4", "schedule.factor=interval(0.5,2)", "--cfg", "job"]
    assert sweep(plan(VERBS["train"], command), lambda trial: {}, report) == 0
    assert capsys.readouterr().out == (
        "a search of 4 trials in sweep by validation.bleu:\n  schedule.factor  0.5 to 2.0\n"
    )
