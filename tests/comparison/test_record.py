"""What the files of a run tell: finished, running, killed, of earlier versions, damaged, or a stranger's."""

from __future__ import annotations

import json
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nmt.comparison.comparing import compared
from nmt.comparison.configs import CompareConfig, RunsConfig
from nmt.comparison.listing import listed
from nmt.comparison.page import page
from nmt.comparison.record import find_runs, read_config, read_run
from nmt.comparison.translations import entries_of
from nmt.config.stored import load_config, to_plain
from nmt.errors import UserError
from nmt.files import locked
from tests.comparison.made import made_run, write

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run_0_1"


def status(run: Path, state: str, **facts: Any) -> None:
    told = {"state": state, "step": 30, "reason": "", "host": socket.gethostname(), "pid": 1, **facts}
    write(run / "status.json", json.dumps(told))


def test_a_finished_run(tmp_path: Path) -> None:
    record = read_run(made_run(tmp_path / "run", config={"model.dropout": 0.3}))
    assert (record.state, record.step, record.steps, record.scored_step) == ("done", 40, 40, 40)
    assert record.config["model.dropout"] == 0.3
    assert record.validation == {"loss": 1.0, "perplexity": 2.7}  # of the final weights
    assert record.tests == {"test": {"loss": 1.1, "perplexity": 3.0, "bleu": 19.0}}
    assert (record.parameters, record.seconds, record.tokens) == (32, 62.5, 300)


def test_a_run_without_results_has_its_best_validation_so_far(tmp_path: Path) -> None:
    run = made_run(
        tmp_path / "run",
        finished=False,
        records=[
            {"step": 10, "valid/bleu": 7.0, "valid/loss": 3.0},
            {"step": 20, "valid/bleu": None, "valid/loss": 1.0},
            {"step": 30, "valid/bleu": 5.0, "valid/loss": 2.0},
            {"step": 35, "train/nll": 1.0},
        ],
    )
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 36, "train/n')  # a line that a kill cut short
    record = read_run(run)
    assert (record.scored_step, record.validation["bleu"], record.tests) == (10, 7.0, {})
    assert (record.state, record.seconds) == ("stopped", 61.0)


def test_the_loss_is_best_where_it_is_lowest(tmp_path: Path) -> None:
    records = [{"step": step, "valid/loss": loss} for step, loss in ((10, 3.0), (20, 1.0), (30, 2.0))]
    config = {"trainer.best_metric": "loss"}
    run = made_run(tmp_path / "run", finished=False, records=records, config=config)
    assert read_run(run).scored_step == 20


def test_of_equal_scores_the_one_with_the_lower_loss_is_best(tmp_path: Path) -> None:
    losses = ((10, 3.0), (20, 1.0), (30, 2.0))
    records = [{"step": step, "valid/bleu": 0.0, "valid/loss": loss} for step, loss in losses]
    run = made_run(tmp_path / "run", finished=False, records=records)
    assert read_run(run).scored_step == 20


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({"state": "running"}, "killed"),
        ({"state": "running", "host": "another"}, "unknown"),
        ({"state": "preempted", "reason": "SIGTERM"}, "stopped"),
        ({"state": "stopped", "reason": "the loss is nan"}, "stopped"),
        ({"state": "failed"}, "failed"),
    ],
)
def test_the_state_of_a_run_without_results(tmp_path: Path, told: dict[str, Any], state: str) -> None:
    run = made_run(tmp_path / "run", finished=False)
    status(run, **told)
    record = read_run(run)
    assert record.state == state
    assert record.reason == told.get("reason", record.reason)


@pytest.mark.parametrize("told", ["running", "preempted", "failed", "finished"])
def test_a_run_with_results_is_done(tmp_path: Path, told: str) -> None:
    run = made_run(tmp_path / "run")
    status(run, state=told)
    assert (read_run(run).state, read_run(run).reason) == ("done", "")


def test_a_model_of_another_program_is_imported_until_it_is_trained(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", finished=False)
    (run / "import.json").write_text("{}")
    assert read_run(run).state == "imported"
    status(run, state="preempted")
    assert read_run(run).state == "stopped"


def test_a_run_is_running_while_a_process_holds_its_lock(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", finished=False)
    status(run, "running", pid=os.getpid())
    with locked(run, ""):
        assert read_run(run).state == "running"
    assert read_run(run).state == "killed"


def test_a_config_is_read_as_the_training_reads_it() -> None:
    stored = load_config(FIXTURE / "config.yaml")  # of version 0.1, whose keys have other names now
    quick = read_config(FIXTURE / "config.yaml")
    plain = to_plain(stored)
    assert quick["schedule.warmup_steps"] == plain["schedule"]["warmup_steps"]
    assert quick["model.d_model"] == plain["model"]["d_model"]
    assert read_run(FIXTURE).validation


def test_values_that_are_edited_by_hand_are_read_as_the_training_reads_them(tmp_path: Path) -> None:
    text = (FIXTURE / "config.yaml").read_text().replace("run: outputs/tiny", "run: no")
    write(tmp_path / "config.yaml", text.replace("dropout: 0.1", "dropout: 1e-1"))
    stored, quick = load_config(tmp_path / "config.yaml"), read_config(tmp_path / "config.yaml")
    assert quick["run"] == stored.run == "no"
    assert quick["model.dropout"] == to_plain(stored)["model"]["dropout"] == 0.1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "is not YAML"),
        ("a: 1", "is not the config of a training of nmt"),
        ("a: &x [1]\nb: [*x, *x]", "line 2: a config in a file is plain values"),
        ("a: !!python/object/apply:os.system ['true']", "line 1: a config in a file is plain values"),
        ("[" * 50 + "]" * 50, "nested less than 8 deep"),
        ("\xff", "but this file is not"),
    ],
)
def test_a_config_that_is_none_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    write(tmp_path / "config.yaml", text)
    with pytest.raises(UserError, match=problem):
        read_config(tmp_path / "config.yaml")


@pytest.mark.parametrize("value", [None, "x", "inf", -1, 1e400, [], {}, {"a": {}}, [[{}]]], ids=repr)
def test_values_of_a_stranger_break_nothing(tmp_path: Path, value: Any) -> None:
    keys = ("step", "validation", "test", "signatures", "train_seconds", "sets", "averaged_steps")
    scores = {"step": 5, **dict.fromkeys(("train/nll", "train/tokens", "train/seconds", "valid/bleu"), value)}
    run = made_run(tmp_path / "run", results=dict.fromkeys(keys, value), records=[scores])
    progress = {"progress": dict.fromkeys(("step", "tokens", "seconds"), value)}
    write(run / "checkpoints" / "step_00000040" / "state.json", json.dumps(progress))
    header = json.dumps({"a": {"shape": value}, "b": value}).encode()
    file = run / "checkpoints" / "step_00000040" / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    config = {"trainer": {"max_steps": value, "best_metric": value}, "data": {"tgt": value}, "model": {}}
    write(run / "config.yaml", json.dumps({**config, "metrics": value, "seed": value, "task": value}))
    write(run / "status.json", json.dumps(dict.fromkeys(("state", "step", "reason", "host"), value)))
    assert listed(RunsConfig(str(tmp_path)), pytest.fail)
    cfg = CompareConfig(bootstrap_samples=100, randomisation_trials=0)
    with suppress(UserError):
        page("", compared(cfg, entries_of([str(run)], cfg.split, pytest.fail), None, lambda text: None))


def test_a_run_that_leads_out_of_itself_is_refused(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    (run / "results.json").unlink()
    (run / "results.json").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match="leads out"):
        read_run(run)


def test_runs_are_found_at_any_depth_and_not_inside_of_runs(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / name) for name in ("a", "sweep/x/b", "sweep/c")]
    made_run(tmp_path / "a" / "kept")
    made_run(tmp_path / ".hidden")
    foreign = made_run(tmp_path / "old")
    (foreign / "config.yaml").unlink()
    (tmp_path / "loop").symlink_to(tmp_path)
    assert find_runs(tmp_path) == (sorted(runs), [foreign])
    assert find_runs(runs[0]) == ([runs[0]], [])


def test_a_metrics_file_of_a_stranger(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    (run / "metrics.jsonl").write_text(
        '{"step": 5, "valid/loss": 1.0}\n{"step": 1e400, "valid/loss": 1.0}\n[]\n'
    )
    assert read_run(run).step == 40
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    with pytest.raises(UserError, match=r"metrics.jsonl cannot be read: Is a directory"):
        read_run(run)
