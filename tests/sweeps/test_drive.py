"""Sweeps: each trial is a process of its own; the table, exit codes, signals and deaths of any kind."""

from __future__ import annotations

import faulthandler
import functools
import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.cli import main, print_error, report
from nmt.config.composed import Composed
from nmt.config.roots import TrainConfig
from nmt.config.stored import save_config
from nmt.config.trials import Sweep, plan
from nmt.errors import Interrupted, TrainingStopped, UserError
from nmt.files import write_json
from nmt.runs.directory import RunDirectory
from nmt.runtime_config import Precision
from nmt.sweeps.drive import _Drive, sweep
from nmt.sweeps.processes import Action
from nmt.sweeps.ranking import Ranking
from nmt.sweeps.records import Records, scores_of
from nmt.training.checkpoint import Checkpoint
from nmt.training.train_state import TrainState
from nmt.verbs import VERBS
from tests.comparison.made import made_run

Planned = Callable[..., Sweep]
OF_TEXT = ("model=gpt", "data.tgt=en", "data.train=a", "data.validation=b")


@functools.cache
def plan_of(*arguments: str) -> Sweep:
    return plan(VERBS["train"], ["-m", "sweep.dir=sweep", *arguments])


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planned:
    """Return a function that returns a sweep: of a number, over seed-1, seed-2, and so on."""
    monkeypatch.chdir(tmp_path)

    def made(*arguments: str | int) -> Sweep:
        texts = [f"seed=range(1,{one + 1})" if isinstance(one, int) else one for one in arguments]
        return plan_of(*texts)

    return made


def seed_of(trial: Composed) -> int:
    return trial.to_config(TrainConfig).seed


RESULTS = {"step": 5, "train_seconds": 60.0, "tgt_tokens_per_second": 9.0, "signatures": {}}


def bleu(value: float) -> dict[str, Any]:
    return {"validation": {"bleu": value}}


def stored(field: str) -> dict[str, Any]:
    """Return a field of each trial of sweep.json."""
    return {one["name"]: one[field] for one in json.loads(Path("sweep/sweep.json").read_text())["trials"]}


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_sweep_ends_with_a_table_of_means_over_seeds(
    planned: Planned, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(trial: Composed) -> dict[str, Any]:
        heads = int(trial.values["model.num_heads"])
        return {
            "validation": {"bleu": 10.0 * heads + seed_of(trial), "chrf": 50.0},
            "test": {"bleu": 1},
        }

    assert sweep(planned("model.num_heads=2,4", 2), train, report) == 0
    shown = capfd.readouterr()
    assert [line for line in lines(shown.out) if "──" not in line][:4] == [
        "# num_heads BLEU chrF seeds minutes state",
        "1 4 41.50 ± 0.71 50.00 ± 0.00 2/2 0.0 done",
        "2 2 21.50 ± 0.71 50.00 ± 0.00 2/2 0.0 done",
        "best sweep/num_heads-4+seed-2 (BLEU 42.00)",
    ]
    assert max(map(len, shown.out.splitlines())) <= 80
    assert lines(shown.err)[0] == "[1/4] num_heads-2+seed-1 starts"
    assert "[1/4] num_heads-2+seed-1 done in 0.0 minutes, BLEU 21.00" in lines(shown.err)
    found = json.loads(Path("sweep/sweep.json").read_text())
    assert (found["metric"], found["direction"], found["best"]) == (
        "validation.bleu",
        "maximize",
        "num_heads-4+seed-2",
    )
    assert found["groups"][0] == {
        "values": {"model.num_heads": "4"},
        "trials": ["num_heads-4+seed-1", "num_heads-4+seed-2"],
        "ranked": 2,
        "mean": 41.5,
        "standard_deviation": pytest.approx(math.sqrt(0.5)),
    }
    rows = Path("sweep/sweep.csv").read_text().splitlines()
    assert rows[0].startswith(
        "rank,name,state,model.num_heads,seed,value,validation.bleu,validation.chrf,test.bleu,"
    )
    assert rows[1].startswith("1,num_heads-4+seed-2,done,4,2,42.0,42.0,50.0,1.0,")


def test_scores_of_named_sets_are_shown_and_rank(planned: Planned, capfd: pytest.CaptureFixture[str]) -> None:
    def train(trial: Composed) -> dict[str, Any]:
        news = {"validation": {"bleu": 9.0 - seed_of(trial)}, "test": {"bleu": 3.0}, "signatures": {}}
        return bleu(seed_of(trial)) | {"sets": {"news": news}, "compared": {"best": 1.0}}

    news = "sets={news: {name: demo}, wmt22: {name: sacrebleu, test: wmt22}}"
    assert sweep(planned(2, news), train, report) == 0
    assert lines(capfd.readouterr().out)[2] == "1 1.50 ± 0.71 7.50 ± 0.71 2/2 0.0 done"
    assert stored("scores")["seed-1"] == {
        "validation": {"bleu": 1.0},
        "validation-news": {"bleu": 8.0},
        "test-news": {"bleu": 3.0},
    }
    assert sweep(planned(2, news, "sweep.metric=validation-news.bleu"), train, report) == 0
    assert "best sweep/seed-1 (news BLEU 8.00)" in lines(capfd.readouterr().out)
    with pytest.raises(UserError, match=r"validation-wmt22.bleu is not computed; .* validation-news.bleu, "):
        sweep(planned(2, news, "sweep.metric=validation-wmt22.bleu"), train, report)


def test_trainings_that_are_only_tried_leave_the_sweep_alone(
    planned: Planned, capfd: pytest.CaptureFixture[str]
) -> None:
    assert sweep(planned(2), lambda trial: bleu(1.0), report) == 0
    made_run(Path("sweep/seed-1"))
    assert sweep(planned(2, "debug=smoke"), lambda trial: {}, report) == 0
    shown = capfd.readouterr().out
    assert "not ranked" not in shown
    assert "updates" not in shown
    assert stored("value") == {"seed-1": 1.0, "seed-2": 1.0}
    assert Path("sweep/rehearsal/sweep.json").exists()
    with pytest.raises(UserError, match="no scores to search by"):
        planned("dry_run=true", "sweep.trials=2", "model.dropout=0.1,0.2")


def test_the_table_fits_a_terminal(
    planned: Planned, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    scores = {"bleu": 11.11, "chrf": 22.22, "loss": 33.33}
    chosen = planned(2, "model.encoder_layers=1,2", "schedule.warmup_steps=100,200")
    assert sweep(chosen, lambda trial: {"validation": scores}, report) == 0
    shown = capfd.readouterr().out
    assert "encoder" in shown
    assert shown.count("11.11 ± 0.00") == 4
    assert "33.33" not in shown


def test_the_table_shows_texts_as_they_are_typed(planned: Planned, capfd: pytest.CaptureFixture[str]) -> None:
    chosen = planned("data=files", "data.validation=v", "data.test=t", "data.train=2024_01_02,[1e3,b]")
    assert sweep(chosen, lambda trial: bleu(1.0), report) == 0
    shown = capfd.readouterr().out
    assert "'" not in shown
    assert {"2024_01_02", "[1e3,b]"} <= {*shown.split()}
    assert stored("values")["train-2024_01_02"] == {"data.train": "'2024_01_02'"}


def test_cost_is_that_of_the_newest_checkpoint(planned: Planned) -> None:
    def train(trial: Composed) -> dict[str, Any]:
        made_run(Path(str(trial.folder)))
        return bleu(1.0)

    assert sweep(planned(1), train, report) == 0
    assert stored("updates") == {"seed-1": 40}
    assert stored("tgt_tokens") == {"seed-1": 300}


def test_lower_is_better_where_it_is(planned: Planned, capfd: pytest.CaptureFixture[str]) -> None:
    chosen = planned(2, "sweep.metric=validation.loss", "model.dropout=0.1,0.2")
    assert sweep(chosen, lambda trial: {"validation": {"loss": seed_of(trial) / 3}}, report) == 0
    assert json.loads(Path("sweep/sweep.json").read_text())["best"] == "seed-1+dropout-0.1"


def test_a_mean_over_languages_ranks_where_there_are_some(planned: Planned) -> None:
    metric, tags = "sweep.metric=validation.macro_ter", ["data=mixture", "data.target_tags=true"]
    corpora = "data.corpora={there: {name: toy, tgt: fr}, back: {name: toy, src: fr, tgt: en}}"
    several = planned(2, *tags, corpora, "metrics=[ter]", metric)
    assert sweep(several, lambda one: {"validation": {"macro_ter": seed_of(one)}}, report) == 0
    assert json.loads(Path("sweep/sweep.json").read_text())["best"] == "seed-1"
    with pytest.raises(UserError, match=r"sweep.metric=validation.macro_ter is not computed"):
        sweep(planned(2, "metrics=[ter]", metric), lambda _: {}, report)


def test_what_is_finished_is_read_and_not_run(planned: Planned, capfd: pytest.CaptureFixture[str]) -> None:
    chosen = planned(3)
    for trial, changed in ((chosen.trials[0], {}), (chosen.trials[1], {"seed": 7})):
        cfg, folder = trial.to_training()
        for key, value in changed.items():
            setattr(cfg, key, value)
        save_config(cfg, folder / "config.yaml")
        write_json(folder / "results.json", RESULTS | bleu(31.0))
    assert main(["train", "-m", "sweep.dir=sweep", "seed=1,2,3", "--cfg", "job"]) == 0
    assert lines(capfd.readouterr().out) == [
        "3 trials in sweep, 2 to be run:",
        "seed-1 finished seed=1",
        "seed-2 to run seed=2",
        "seed-3 to run seed=3",
    ]
    assert not Path("sweep/sweep.json").exists()
    assert sweep(chosen, lambda trial: bleu(seed_of(trial)), report) == 0
    assert stored("value") == {"seed-1": 31.0, "seed-3": 3.0, "seed-2": 2.0}
    assert stored("seconds")["seed-1"] == 60.0
    assert "seed-1 starts" not in capfd.readouterr().err


def test_where_a_finished_run_was_computed_does_not_count(planned: Planned) -> None:
    """A job of Slurm has runtime.requeue=true in its config, which the command has not."""
    chosen = planned(2)
    for trial, key, value in zip(
        chosen.trials, ("requeue", "precision"), (True, Precision.bf16), strict=True
    ):
        cfg, folder = trial.to_training()
        setattr(cfg.runtime, key, value)
        save_config(cfg, folder / "config.yaml")
        write_json(folder / "results.json", RESULTS | bleu(31.0))
    assert sweep(chosen, lambda trial: bleu(seed_of(trial)), report) == 0
    assert stored("value") == {"seed-1": 31.0, "seed-2": 2.0}


@pytest.mark.parametrize("recipe", [(), ("experiment=small_data",)])
def test_a_finished_run_is_known_where_the_corpus_has_chosen_its_settings(
    recipe: tuple[str, ...], planned: Planned, capfd: pytest.CaptureFixture[str]
) -> None:
    """The trials read no data for that; the config of each run has what was chosen."""
    command = ["data=files", "data.src=xx", "data.tgt=yy", "data.train=gone", "data.validation=gone"]
    command += ["data.scored_split=validation", *recipe]

    def train(trial: Composed) -> dict[str, Any]:
        assert trial.folder is not None
        cfg = trial.to_config(TrainConfig)
        cfg.tokenizer.vocab_size = 777
        save_config(cfg, trial.folder / "config.yaml")
        write_json(trial.folder / "results.json", RESULTS | bleu(1.0))
        return RESULTS | bleu(1.0)

    for arguments, expected in (
        (["tokenizer.vocab_size=777"], 2),
        ([], 2),  # who says nothing of the vocabulary wants that of the corpus
        ([], 0),
        (["runtime.threads=1"], 0),
        (["trainer.keep_last=3"], 2),
    ):
        assert sweep(planned(2, *command, *arguments), train, report) == 0
        begun = [line for line in capfd.readouterr().err.splitlines() if line.endswith(" starts")]
        assert len(begun) == expected, arguments


def test_trials_on_other_data_are_averaged_apart_and_named(
    planned: Planned, capfd: pytest.CaptureFixture[str]
) -> None:
    """The training file is changed before the third seed."""

    def train(trial: Composed) -> dict[str, Any]:
        cfg, folder = trial.to_training()
        save_config(cfg, folder / "config.yaml")
        sha256 = trial.values.get("data") or Path("data").read_text()
        write_json(folder / "data" / "train.json", {"training_pairs": 1, "sha256": sha256})
        results = {"step": 5, "train_seconds": 0.0, "tgt_tokens_per_second": 9.0, "signatures": {}}
        write_json(folder / "results.json", results | bleu(seed_of(trial)))
        return bleu(seed_of(trial))

    for number, text in ((2, "old"), (3, "new")):
        Path("data").write_text(text)
        assert sweep(planned(number), train, report) == 0
    shown = lines(capfd.readouterr().out)
    assert "1 3.00 1/1 0.0 done" in shown
    assert "2 1.50 ± 0.71 2/2 0.0 done" in shown
    told = [line for line in shown if line.startswith("other data")]
    assert told == [
        "other data seed-1, seed-2 | seed-3: were trained on different pairs, and do not compare; remove the "
        "runs on the old data, and the same command trains them again"
    ]
    assert stored("data") == {"seed-1": "old", "seed-2": "old", "seed-3": "new"}
    assert sweep(planned("data=demo,multi30k", 1), train, report) == 0
    assert "other data" not in capfd.readouterr().out


@pytest.mark.fault(34)
@pytest.mark.parametrize("parallel", [1, 3])
def test_whatever_ends_a_trial_ends_no_other(
    parallel: int, planned: Planned, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Six trials of which four fail, each in its own way; again: the four alone have work to do."""

    def train(trial: Composed) -> dict[str, Any]:
        seed = seed_of(trial)
        finished = tmp_path / f"{seed}"
        if finished.exists():
            return bleu(float(finished.read_text()))
        (tmp_path / f"begun-{seed}").touch()
        if seed == 1:
            raise TrainingStopped("2 reasons:\n  - the loss is nan\x1b[2J\n  - at step 3")
        if seed == 2:
            os._exit(9)
        if seed == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if seed == 4:
            return bleu(float("nan"))
        finished.write_text(f"{seed}")
        return bleu(float(seed))

    reasons = [
        r"failed seed-1: 2 reasons: the loss is nan\x1b[2J; at step 3",
        "failed seed-2: exit code 9",
        "failed seed-3: killed by SIGKILL, perhaps for lack of memory",
        "failed seed-4: the score bleu of validation is nan",
    ]
    for begun in ("123456", "1234"):
        assert sweep(planned(6, f"sweep.parallel={parallel}"), train, report) == 3
        shown = capfd.readouterr()
        assert [line for line in lines(shown.out) if line.startswith("failed")] == reasons
        assert "2/6" in shown.out
        text = shown.err if parallel == 1 else Path("sweep/logs/seed-1.log").read_text()
        assert "error: 2 reasons:\n  - the loss is nan\\x1b[2J\n  - at step 3\n" in text
        assert ("error: 2 reasons" in shown.err) == (parallel == 1)
        assert "".join(sorted(path.name[-1] for path in tmp_path.glob("begun-*"))) == begun
        for path in tmp_path.glob("begun-*"):
            path.unlink()
        assert list(stored("state").values()) == ["done"] * 2 + ["failed"] * 4


@pytest.mark.fault(34)
def test_a_bug_and_a_segmentation_fault_have_their_reasons(
    planned: Planned, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(trial: Composed) -> dict[str, Any]:
        if seed_of(trial) == 1:
            raise MemoryError("no room")
        faulthandler.disable()  # pytest's, which shows all threads
        os.kill(os.getpid(), signal.SIGSEGV)
        return {}

    assert sweep(planned(2), train, report) == 3
    shown = capfd.readouterr()
    assert lines(shown.out)[-3:-1] == [
        "failed seed-1: MemoryError: no room",
        "failed seed-2: killed by SIGSEGV",
    ]
    assert "Traceback" in shown.err


def begun(chosen: Sweep, action: Action) -> ForkProcess:
    """Start a sweep as the leader of a process group, as a shell does."""

    def drive() -> None:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os._exit(report(lambda: sweep(chosen, action, report), print_error))

    process = multiprocessing.get_context("fork").Process(target=drive)
    process.start()
    return process


def wait_for(happened: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < limit, "did not happen"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.fault(18)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_trials_save_starts_no_other_and_shows_the_table(
    number: signal.Signals, planned: Planned, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def train(trial: Composed) -> dict[str, Any]:
        if seed_of(trial) == 1:
            return bleu(31.0)
        received = list[int]()
        signal.signal(number, lambda number, _: received.append(number))
        (tmp_path / f"begun-{seed_of(trial)}").touch()
        wait_for(lambda: bool(received))
        time.sleep(0.2)  # in which the same signal might arrive a second time
        assert received == [number]
        raise Interrupted(number, saved)

    saved = f"stopped by {number.name} after step 7, which is saved"
    process = begun(planned(4, "sweep.parallel=2"), train)
    wait_for(lambda: (tmp_path / "begun-2").exists() and (tmp_path / "begun-3").exists())
    assert process.pid is not None
    os.killpg(process.pid, number)  # as a terminal does
    process.join()
    assert process.exitcode == 128 + number
    shown = capfd.readouterr()
    assert [line for line in lines(shown.out) if "stopped seed" in line] == [
        f"stopped seed-2: {saved}",
        f"stopped seed-3: {saved}",
    ]
    end = f"stopped by {number.name}; 1 of 4 trials are done; the same command goes on from there"
    assert shown.err.splitlines()[-1] == end
    assert stored("state") == {
        "seed-1": "done",
        "seed-2": "stopped",
        "seed-3": "stopped",
        "seed-4": "waiting",
    }


@pytest.mark.parametrize("first_of_two", [False, True])
def test_a_signal_before_a_trial_begins_starts_none(
    planned: Planned, monkeypatch: pytest.MonkeyPatch, first_of_two: bool
) -> None:
    def write(records: Records) -> None:
        if [one.state for one in records.trials.values()].count("running") == 2:
            signal.raise_signal(signal.SIGTERM)  # between the choice and the start
        true_write(records)

    def missing(drive: Any) -> Any:
        yield from true_missing(drive)
        signal.raise_signal(signal.SIGTERM)

    true_write, true_missing = Records.write, _Drive._missing
    monkeypatch.setattr(Records, "write", write if first_of_two else true_write)
    monkeypatch.setattr(_Drive, "_missing", true_missing if first_of_two else missing)
    with pytest.raises(Interrupted, match=r"^stopped by SIGTERM; 0 of 2 trials are done"):
        sweep(planned(2, "sweep.parallel=3"), lambda trial: bleu(1.0), report)
    assert {*stored("state").values()} == {"waiting"}


def test_a_sweep_of_other_settings_is_refused_before_a_trial(planned: Planned) -> None:
    def train(trial: Composed) -> dict[str, Any]:
        cfg, folder = trial.to_training()
        save_config(cfg, folder / "config.yaml")
        (folder / "checkpoints" / "step_00000005").mkdir(parents=True)
        return bleu(seed_of(trial))

    assert sweep(planned(2), train, report) == 0
    before = Path("sweep/sweep.json").read_text()
    with pytest.raises(
        UserError, match=r"^sweep is of a sweep with other settings; .* differ in model.dropout"
    ):
        sweep(planned(2, "model.dropout=0.3"), train, report)
    with pytest.raises(UserError, match=r"^sweep is of a sweep with other settings"):
        sweep(planned(2, "model.dropout=0.3", "--cfg=job"), train, report)
    assert Path("sweep/sweep.json").read_text() == before


@pytest.mark.fault(34)
def test_a_killed_sweep_leaves_no_trial_behind_loses_none_and_goes_on_when_they_have_saved(
    planned: Planned, tmp_path: Path
) -> None:
    def save(*_: object) -> None:
        time.sleep(0.5)
        os._exit(143)

    def train(trial: Composed) -> dict[str, Any]:
        seed = seed_of(trial)
        if seed == 2 and not (tmp_path / "pid").exists():
            signal.signal(signal.SIGTERM, save)
            (tmp_path / "pid.tmp").write_text(str(os.getpid()))
            (tmp_path / "pid.tmp").rename(tmp_path / "pid")
            time.sleep(60)
        (tmp_path / f"{seed}").touch()
        return bleu(seed)

    process = begun(planned(3), train)
    wait_for((tmp_path / "pid").exists)
    trial = int((tmp_path / "pid").read_text())
    assert runs(trial)
    process.kill()
    process.join()
    assert stored("state") == {"seed-1": "done", "seed-2": "running", "seed-3": "waiting"}
    assert not (tmp_path / "3").exists()
    assert sweep(planned(3), train, report) == 0
    assert not runs(trial)
    assert stored("value") == {"seed-3": 3.0, "seed-2": 2.0, "seed-1": 1.0}


def test_the_cost_of_a_trial_is_that_of_all_attempts(planned: Planned) -> None:
    assert sweep(planned(1), lambda trial: dict[str, Any]()["a bug"], report) == 3
    table = json.loads(Path("sweep/sweep.json").read_text())
    costs = {"seconds": 100.0, "cpu_seconds": 200.0, "gpu_seconds": 300.0}
    table["trials"][0] |= costs
    write_json(Path("sweep/sweep.json"), table)
    assert sweep(planned(1), lambda trial: bleu(1.0), report) == 0
    for cost, before in costs.items():
        assert before <= stored(cost)["seed-1"] < before + 60


def test_an_evaluation_that_is_done_is_not_run_again(
    planned: Planned, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("a", "b"):
        cfg, _ = planned(1).trials[0].to_training()
        save_config(cfg, Path("runs", name, "config.yaml"))
    command = ["-m", "sweep.dir=sweep", "run=runs/a,runs/b", "decoding.beam_size=1,2"]

    def evaluate(trial: Composed) -> dict[str, Any]:
        with (tmp_path / "ran").open("a") as file:
            file.write(f"{trial.name} ")
        assert str(trial.cfg.run) == f"runs/{trial.name[4]}"
        return {"test": {"bleu": float(trial.cfg.decoding.beam_size)}}

    for ran in ("run-a+beam_size-1 run-a+beam_size-2 run-b+beam_size-1 run-b+beam_size-2 ", ""):
        assert sweep(plan(VERBS["evaluate"], command), evaluate, report) == 0
        shown = capfd.readouterr().out
        assert (tmp_path / "ran").read_text() == ran
        (tmp_path / "ran").write_text("")
        assert lines(shown)[0] == "# run beam_size test BLEU minutes state"
        assert "not ranked: validation.bleu is not known" in shown
    write_json(Path("runs/b/results.json"), {"step": 9})  # has been trained further
    assert sweep(plan(VERBS["evaluate"], command), evaluate, report) == 0
    assert (tmp_path / "ran").read_text() == "run-b+beam_size-1 run-b+beam_size-2 "


@pytest.mark.parametrize(
    ("verb", "other", "changed"),
    [("translate", "ensemble.lm=other", ["run", "other"]), ("rerank", "scorers=[other]", ["other"])],
)
def test_a_trial_is_run_again_with_other_weights_or_another_input(
    planned: Planned, verb: str, other: str, changed: list[str]
) -> None:
    """An exported run has no results, and a language model or a scorer is another run."""
    cfg, _ = planned(1).trials[0].to_training()
    for name in ("run", "other"):
        save_config(cfg, Path(name, "config.yaml"))
    Path("in.txt").write_text("a\n")
    command = ["-m", "sweep.dir=sweep", "run=run", other, "input=in.txt"]
    command += ["output=${decoding.beam_size}.txt", "decoding.beam_size=1,2"]

    def work(trial: Composed) -> dict[str, Any]:
        with Path(trial.cfg.output).open("a") as file:
            file.write("b\n")
        return {}

    def again() -> int:
        before = [len(file.read_text()) for file in Path().glob("?.txt")]
        assert sweep(plan(VERBS[verb], command), work, report) == 0
        return (sum(len(file.read_text()) for file in Path().glob("?.txt")) - sum(before)) // 2

    def save(name: str, value: float) -> None:
        weights = {"weight": torch.full((2,), value)}
        RunDirectory(Path(name)).checkpoints.save(
            Checkpoint(7, weights, {}, {"progress": asdict(TrainState())})
        )

    assert (again(), again()) == (2, 0)
    for name in changed:
        for value in (1.0, 2.0):
            save(name, value)
            assert again() == 2
    Path("in.txt").write_text("a\nb\n")
    assert (again(), again()) == (2, 0)


def test_evaluations_that_are_done_are_ranked_by_the_metric_of_this_command(planned: Planned) -> None:
    cfg, _ = planned(1).trials[0].to_training()
    save_config(cfg, Path("run", "config.yaml"))
    command = ["-m", "sweep.dir=sweep", "run=run", "decoding.beam_size=1,2", "data.scored_split=validation"]

    def evaluate(trial: Composed) -> dict[str, Any]:
        size = float(trial.cfg.decoding.beam_size)
        return {"validation": {"bleu": size, "chrf": 9 - size}}

    for metric, best in (("bleu", "beam_size-2"), ("chrf", "beam_size-1")):
        chosen = plan(VERBS["evaluate"], [*command, f"sweep.metric=validation.{metric}"])
        assert sweep(chosen, evaluate, report) == 0
        assert json.loads(Path("sweep/sweep.json").read_text())["best"] == best
        assert stored("value") == {name: one["validation"][metric] for name, one in stored("scores").items()}


@pytest.mark.parametrize(
    ("verb", "arguments", "told"),
    [
        (
            "train",
            ["seed=1,2", "sweep.metric=valid/ter"],
            "sweep.metric=valid/ter is not computed; it can be valid/bleu, valid/chrf, valid/loss, "
            "valid/perplexity, or a name of metrics.jsonl such as train/loss; add ter to metrics",
        ),
        (
            "train",
            ["seed=1,2", "sweep.metric=train/loss", "tracking.sinks=[display]"],
            "sweep.metric=train/loss reads metrics.jsonl, which tracking.sinks leaves out; add jsonl",
        ),
        (
            "train",
            ["data=text", "task=language_model", "seed=1,2", "sweep.metric=validation.bleu", *OF_TEXT],
            "sweep.metric=validation.bleu is not computed; it can be validation.loss, "
            "validation.perplexity, validation.token_accuracy, or a name of metrics.jsonl such as "
            "train/loss; did you mean 'validation.loss'?",
        ),
        (
            "evaluate",
            ["decoding.beam_size=choice(1,2)", "sweep.trials=2"],
            "a search needs scores on validation, but data.scored_split=test is scored; "
            "set data.scored_split=validation, or list values to try without a search",
        ),
        (
            "evaluate",
            ["decoding.beam_size=1,2", "sweep.metric=validation.bleu", "testset=wmt22"],
            "sweep.metric=validation.bleu needs scores on validation, but testset=... is scored; "
            "set data.scored_split=validation in its place, or leave out sweep.metric",
        ),
        (
            "evaluate",
            ["decoding.beam_size=1,2", "sweep.metric=valid/loss", "data.scored_split=validation"],
            "sweep.metric=valid/loss is not computed; it can be validation.bleu, validation.chrf, "
            "validation.loss, validation.perplexity; did you mean 'validation.loss'?",
        ),
        (
            "translate",
            ["input=a", "output=${decoding.beam_size}", "decoding.beam_size=1,2", "sweep.metric=train/loss"],
            "sweep.metric=train/loss needs scores on validation, but nmt translate computes none; "
            "leave out sweep.metric",
        ),
        (
            "rerank",
            ["scorers=[run]", "input=a", "output=b", "decoding.beam_size=choice(2,3)", "sweep.trials=2"],
            "a search needs scores on validation, but nmt rerank with input=... computes none; "
            "list values to try without a search",
        ),
        (
            "distil",
            ["distil.train=false", "seed=1,2", "sweep.metric=validation.bleu"],
            "sweep.metric=validation.bleu needs scores on validation, but distil.train=false trains no "
            "student; leave that out, or leave out sweep.metric",
        ),
    ],
)
def test_a_metric_that_no_trial_would_have_is_refused(
    planned: Planned, verb: str, arguments: list[str], told: str
) -> None:
    save_config(planned(1).trials[0].to_training()[0], Path("run", "config.yaml"))
    opened = [f"{VERBS[verb].run_key}=run"] * bool(VERBS[verb].run_key)
    with pytest.raises(UserError) as refused:
        sweep(plan(VERBS[verb], ["-m", "sweep.dir=sweep", *opened, *arguments]), lambda trial: {}, report)
    assert str(refused.value) == told
    assert not Path("sweep").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["metrics=[bleu],[bleu,chrf]", "sweep.metric=valid/chrf"],
        ["tracking.sinks=[display],[jsonl]", "sweep.metric=valid/bleu"],
    ],
)
def test_a_metric_that_only_later_trials_have_is_none_to_refuse(
    planned: Planned, arguments: list[str]
) -> None:
    assert sweep(planned(*arguments), lambda trial: bleu(1.0), report) == 0


def test_curves_of_validations_rank_by_their_names(planned: Planned) -> None:
    tags = ["data=mixture", "data.target_tags=true"]
    corpora = "data.corpora={there: {name: toy, tgt: fr}, back: {name: toy, src: fr, tgt: en}}"
    for metric in ("valid/macro_bleu", "valid/into_fr/chrf", "valid/loss", "train/layer_grad_norm/all"):
        direction = ["sweep.direction=minimize"] * ("all" in metric)
        chosen = planned(1, *tags, corpora, f"sweep.metric={metric}", *direction)
        assert Ranking.of(chosen).metric == metric


@pytest.mark.parametrize(("device", "visible"), [("cuda", ["GPU-a", "GPU-b"]), ("cuda:1", ["GPU-a,GPU-b"])])
def test_trials_at_a_time_have_a_gpu_each_unless_they_name_one(
    device: str, visible: list[str], planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")

    def train(trial: Composed) -> dict[str, Any]:
        (tmp_path / trial.name).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        return bleu(1.0)

    assert sweep(planned(2, f"runtime.device={device}", "sweep.parallel=2"), train, report) == 0
    assert sorted({(tmp_path / name).read_text() for name in ("seed-1", "seed-2")}) == visible


def test_parts_of_scores_are_no_splits() -> None:
    """Scores of each language, or of each label, are nested deeper."""
    of_languages = {"validation": {"de": {"bleu": 2.0}}}
    results = {"validation": {"bleu": 1.0}, "languages": of_languages, "details": of_languages}
    assert scores_of(results) == {"validation": {"bleu": 1.0}}


def test_a_trial_keeps_its_name_and_its_scores_when_others_are_tried(
    planned: Planned, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in "abc":
        cfg, _ = planned(1).trials[0].to_training()
        save_config(cfg, Path(name, "x", "config.yaml"))
    known = dict[str, str]()
    for runs in ("choice(a/x)", "a/x,b/x", "choice(b/x)", "c/x,b/x,a/x"):
        ran = sweep_of_runs(runs)
        assert not {*ran.values()} & {*known.values()}
        assert not ran.keys() & known.keys()
        known |= ran
    assert known.keys() == {"a/x", "b/x", "c/x"}
    assert known["a/x"] == "run-x"
    assert "others" in json.loads(Path("sweep/sweep.json").read_text())
    rows = json.loads(Path("sweep/sweep.json").read_text())
    rows["trials"][0]["name"] = "../../escape"
    write_json(Path("sweep/sweep.json"), rows)
    assert "../../escape" not in sweep_of_runs("a/x,b/x,c/x").values()


def test_a_finished_trial_is_known_whichever_of_its_keys_are_swept(
    planned: Planned, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(trial: Composed) -> dict[str, Any]:
        cfg, folder = trial.to_training()
        if folder.exists():
            raise UserError("belongs to a run with another config")
        save_config(cfg, folder / "config.yaml")
        write_json(folder / "results.json", RESULTS | bleu(1.0))
        return RESULTS | bleu(1.0)

    for arguments, begun in (
        (["model.num_heads=2", "seed=1,2"], {"seed-1", "seed-2"}),
        (["model.num_heads=4", "seed=1,2"], {"seed-1", "seed-2"}),  # have other names already
        (["model.num_heads=2,4", "seed=1,2"], {"num_heads-4+seed-1", "num_heads-4+seed-2"}),
        (["model.num_heads=4", "seed=1,2,3"], {"seed-3"}),
        (["model.num_heads=2,4", "seed=1"], set()),
    ):
        sweep(planned(*arguments), train, report)
        told = capfd.readouterr().err
        assert {line.split()[1] for line in told.splitlines() if line.endswith(" starts")} == begun


def test_a_trial_that_was_prolonged_is_not_taken_for_the_shorter_one(planned: Planned) -> None:
    def train(trial: Composed) -> dict[str, Any]:
        return bleu(float(trial.cfg.trainer.max_steps))

    for steps in ("4", "8", "4,8"):
        assert sweep(planned(f"trainer.max_steps={steps}", "seed=1"), train, report) == 0
    assert stored("value") == {"trial": 8.0, "max_steps-4": 4.0}


def sweep_of_runs(runs: str) -> dict[str, str]:
    """Evaluate runs in one folder, and return the name of each trial that ran, by its run."""
    log = Path("log")
    log.write_text("")

    def evaluate(trial: Composed) -> dict[str, Any]:
        with log.open("a") as file:
            file.write(f"{trial.cfg.run} {trial.name}\n")
        return {"test": {"bleu": 1.0}}

    assert sweep(plan(VERBS["evaluate"], ["-m", "sweep.dir=sweep", f"run={runs}"]), evaluate, report) == 0
    return dict(line.split() for line in log.read_text().splitlines())


def test_a_folder_that_cannot_be_made_is_one_error(planned: Planned) -> None:
    Path("sweep").write_text("a file\n")
    with pytest.raises(UserError, match=r"^cannot write to the directory sweep: File exists; choose another"):
        sweep(planned(1), lambda trial: bleu(1.0), report)


def test_a_damaged_table_is_named(planned: Planned) -> None:
    Path("sweep").mkdir()
    for content, wrong in (("{", ""), ('{"version": 1, "trials": [{"name": 3}]}', "name is 3")):
        Path("sweep/sweep.json").write_text(content)
        with pytest.raises(UserError, match=f"sweep/sweep.json is damaged.*{wrong}.*; remove it"):
            sweep(planned(1), lambda trial: bleu(1.0), report)
    Path("sweep/sweep.json").unlink()
    search = planned("sweep.trials=2", "model.dropout=0.1,0.2")
    for content in ("[\n", "[]\n", '{"a": 1}\n'):
        Path("sweep/study.journal").write_text(content)
        with pytest.raises(UserError, match=r"sweep/study.journal is damaged .*; remove it"):
            sweep(search, lambda trial: bleu(1.0), report)


def test_trials_that_would_write_one_file_are_refused(
    planned: Planned, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg, _ = planned(1).trials[0].to_training()
    save_config(cfg, Path("runs/a/config.yaml"))
    command = ["translate", "-m", "run=runs/a", "decoding.beam_size=1,2", "input=x", "sweep.dir=sweep"]
    assert main([*command, "output=y"]) == 2
    assert capsys.readouterr().err == (
        "error: output=y is the same for several trials; name each by what is swept, "
        "such as 'output=${decoding.beam_size}-y'\n"
    )
    assert main([*command, "output=${decoding.beam_size}.txt", "--cfg", "job"]) == 0
    assert "2 trials in sweep, 2 to be run:" in capsys.readouterr().out
    command[3] = "decoding=beam,sampling"
    assert main([*command, "checkpoint=final,best", "output=y"]) == 2
    assert "such as 'output=${decoding.strategy}-${checkpoint}-y'\n" in capsys.readouterr().err
    command[3] = "decoding=beam,greedy,sampling"
    assert main([*command, "output=y"]) == 2
    assert "trials; leave out -m, and call nmt translate once for each\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "file", "way_out"),
    [
        (
            "shortlist run=runs/a translations=50,100",
            "output=runs/a/shortlist.npz",
            "output=runs/a/${translations}-shortlist.npz",
        ),
        (
            "doctor data=toy doctor.seed=1,2 doctor.json=x/y.json",
            "doctor.json=x/y.json",
            "doctor.json=x/${doctor.seed}-y.json",
        ),
        ("doctor data=toy seed=1,2 doctor.page=y", "doctor.page=y", "doctor.page=${seed}-y"),
        ("prepare data=toy seed=1,2 prepare.filtered=y", "prepare.filtered=y", "prepare.filtered=${seed}-y"),
    ],
)
def test_every_key_of_an_output_is_one_of_each_trial(
    command: str, file: str, way_out: str, planned: Planned, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg, _ = planned(1).trials[0].to_training()
    save_config(cfg, Path("runs/a/config.yaml"))
    verb, *keys = command.split()
    assert main([verb, "-m", *keys, "sweep.dir=sweep"]) == 2
    assert capsys.readouterr().err == (
        f"error: {file} is the same for several trials; name each by what is swept, such as '{way_out}'\n"
    )
    keys = [one for one in keys if one != file]
    assert main([verb, "-m", *keys, way_out, "sweep.dir=sweep", "--cfg", "job"]) == 0
    assert "2 trials in sweep, 2 to be run:" in capsys.readouterr().out


def test_a_trial_whose_output_is_gone_is_run_again(planned: Planned) -> None:
    cfg, _ = planned(1).trials[0].to_training()
    for name in ("a", "b"):
        save_config(cfg, Path(name, "config.yaml"))
    command = ["-m", "run=a,b", "sweep.dir=sweep"]

    def shortlist(trial: Composed) -> dict[str, Any]:
        with Path(trial.cfg.run, "shortlist.npz").open("a") as file:
            file.write("x")
        return {}

    assert sweep(plan(VERBS["shortlist"], command), shortlist, report) == 0
    Path("b/shortlist.npz").unlink()
    Path("a/shortlist.npz").write_text("kept")
    assert sweep(plan(VERBS["shortlist"], command), shortlist, report) == 0
    assert [Path(name, "shortlist.npz").read_text() for name in ("a", "b")] == ["kept", "x"]
