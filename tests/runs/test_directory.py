"""Which directories a training may take over, and what it leaves alone."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.config.compose import compose
from nmt.config.roots import TrainConfig, with_batch_tokens
from nmt.config.stored import load_config
from nmt.data.parallel_text import ParallelText, Split
from nmt.errors import UserError
from nmt.files import read_json, write_json
from nmt.metrics.scoring import labelled_scores
from nmt.runs.checkpoint_names import identify_checkpoint
from nmt.runs.directory import RunDirectory
from nmt.runs.opening import open_run
from nmt.training.checkpoint import Checkpoint
from nmt.training.train_state import TrainState
from nmt.verbs import VERBS


def config(*overrides: str) -> TrainConfig:
    (composed,) = compose(VERBS["train"], list(overrides))
    return composed.to_training()[0]


def save_step(run: RunDirectory) -> None:
    run.checkpoints.save(Checkpoint(5, {"w": torch.ones(2)}, {}, TrainState(step=5).to_store()))


def test_a_new_directory_is_claimed_and_known_again_once_trained(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    assert not run.claim(config())
    assert load_config(run.config_file) == config()
    save_step(run)
    assert run.claim(config())
    assert run.claim(config("run=elsewhere"))  # the name of the directory is no part of the run
    assert not run.claim(config("decoding=greedy"))
    with pytest.raises(UserError, match="belongs to a run with another config:\n  seed: 1 -> 2"):
        run.claim(config("seed=2"))


def test_a_new_run_whose_name_is_nearly_that_of_another_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunDirectory(tmp_path / "full").claim(config(), ["run"])
    for name, typed in (("full", ["run"]), ("other", ["run"]), ("full2", ["run", "data"]), ("fu-l", [])):
        RunDirectory(tmp_path / name).claim(config(), typed)
    assert capsys.readouterr().err == ""
    RunDirectory(tmp_path / "fulll").claim(config(), ["run", "runtime.device"])
    assert capsys.readouterr().err == (
        f"warning: {tmp_path / 'fulll'} is a new run, of data=demo, as the command says no more; "
        "did you mean 'full'?\n"
    )


def test_the_best_checkpoint_is_known_where_the_optimizer_of_the_newest_is_lost(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.claim(config())
    save_step(run)
    (run.checkpoints.folder(5) / "optimizer.safetensors").unlink()
    assert [identify_checkpoint(run.path, name)[0] for name in ("final", "best", "last")] == ["5"] * 3


def test_a_training_that_goes_on_leaves_no_average_of_its_earlier_end(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.claim(config("trainer.average=1"))
    save_step(run)
    run.checkpoints.save_average(run.checkpoints.average([5]), [5])
    assert identify_checkpoint(run.path)[0] == "5"  # not compared yet with the best step
    write_json(run.results_file, {})
    assert identify_checkpoint(run.path)[0] == "average"
    final = ["test.de", "validation.de", "news/test.de"]
    kept = ["validation/step_00000005.de", "validation-0a1b2c3d.de", "news/validation/step_00000005.de"]
    for name in (*final, *kept):
        (run.hypotheses / name).parent.mkdir(parents=True, exist_ok=True)
        (run.hypotheses / name).touch()
    run.adopt(config("trainer.average=1", "trainer.max_steps=100"))
    assert identify_checkpoint(run.path)[0] == "5"
    write_json(run.evaluations / "test.json", {})
    (run.hypotheses / "test.de").touch()  # of nmt evaluate
    (run.hypotheses / "validation.de").touch()
    run.adopt(config("metrics=[chrf]"), learns=False)
    assert [file.name for file in run.hypotheses.glob("*.de")].count("test.de") == 1
    assert not (run.hypotheses / "validation.de").exists()
    run.adopt(config("trainer.average=1", "trainer.max_steps=200"))
    there = [file for file in run.hypotheses.rglob("*") if file.is_file()]
    assert sorted(str(file.relative_to(run.hypotheses)) for file in there) == sorted(kept)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({}, ""),
        ({"state": "failed", "reason": "too large"}, ", and its training has failed: too large"),
        ({"state": "preempted", "reason": "SIGTERM"}, ", and its training was interrupted: SIGTERM"),
        ({"state": "running", "reason": ""}, ", and its training goes on"),
    ],
)
def test_a_run_without_a_model_says_how_its_training_ended(
    tmp_path: Path, state: dict[str, str], told: str
) -> None:
    run = RunDirectory(tmp_path / "run")
    run.claim(config())
    if state:
        write_json(run.status_file, state)
    with pytest.raises(UserError) as caught:
        open_run(run.path)
    assert str(caught.value) == (
        f"{run.path} has no checkpoint yet{told}; train it with `nmt train run={run.path} ...`"
    )


def test_a_start_that_failed_leaves_nothing_behind(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.claim(config())
    (run.path / "tokenizer.model").write_bytes(b"of the failed start")
    assert not run.claim(config("seed=2"))
    assert not (run.path / "tokenizer.model").exists()
    assert load_config(run.config_file).seed == 2


def test_a_directory_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"of the user")
    with pytest.raises(
        UserError, match=r"holds a tokenizer but no config\.yaml, so it is not a run directory"
    ):
        run.claim(config())
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.model"]
    save_step(run)
    with pytest.raises(UserError, match=r"holds checkpoints but no config\.yaml"):
        run.claim(config())
    assert run.checkpoints.steps() == [5]
    assert (tmp_path / "tokenizer.model").read_bytes() == b"of the user"


@pytest.mark.fault(3, 16)
def test_half_written_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.claim(config())
    (run.hypotheses / "news" / "validation").mkdir(parents=True)
    dead = [run.path / ".tmp-tokenizer.model.4194305", run.hypotheses / ".tmp-test.de.4194305"]
    dead.append(run.hypotheses / "news" / "validation" / ".tmp-step_1.de.4194305")
    dead.append(run.path / f".tmp-config.yaml.{os.getpid()}")  # a number that is in use again
    alive = run.hypotheses / f".tmp-test.de.{os.getppid()}"
    for draft in (*dead, alive):
        draft.touch()
    run.claim(config())
    assert [draft.exists() for draft in (*dead, alive)] == [False, False, False, False, True]


def test_pairs_are_compared_with_a_copy_where_no_checkpoint_is_left(tmp_path: Path) -> None:
    run, data = RunDirectory(tmp_path / "run"), config().data
    run.claim(config())
    pairs, others = ParallelText(["a"], ["b"]), ParallelText(["a"], ["c"])
    run.require_same_text(Split.test, pairs, data)  # there is no copy
    run.keep_text(Split.test, pairs, data)
    run.require_same_text(Split.test, pairs, data)
    told = r"the test data of .* has changed since the run began; restore it"
    with pytest.raises(UserError, match=rf"{told}, or start anew with another run=\.\.\.$"):
        run.require_same_text(Split.test, others, data)
    with pytest.raises(UserError, match=f"{told}$"):
        RunDirectory(run.path, key="").require_same_text(Split.test, others, data)
    assert run.kept_text(Split.test, data) == pairs
    run.keep_text(Split.test, others, data)  # of a start that has not trained anything
    assert run.kept_text(Split.test, data) == others


def test_a_copy_with_fewer_references_takes_the_place_of_one_with_more(tmp_path: Path) -> None:
    """Of the data and of `sets`, each split for itself."""
    run, data = RunDirectory(tmp_path / "run"), config().data
    run.claim(config())
    several = ParallelText(["a"], ["b"], [["c"], ["d"]])
    for name in ("", "news"):
        run.keep_set(name, Split.validation, several, data)
    for text in (several, ParallelText(["a"], ["b"], [["e"]]), ParallelText(["a"], ["b"])):
        run.keep_text(Split.test, text, data)
        run.keep_set("news", Split.test, text, data)
        assert run.kept_text(Split.test, data) == run.kept_text(Split.test, data, "news") == text
    for name in ("", "news"):
        assert run.kept_text(Split.validation, data, name) == several


def test_the_number_format_of_a_training_on_cpu_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path)
    on_gpu = {"precision": "bf16", "kernels": ""}
    for stored in ({}, {"precision": "fp32"}, {"precision": "fp32", "kernels": "with"}, on_gpu):
        write_json(run.path / "environment.json", {**stored})
        assert run.precision() == ("" if stored is on_gpu else stored.get("precision", ""))
    (run.path / "environment.json").unlink()
    assert run.precision() == ""
    run.write_environment(torch.device("cpu"), "fp32")
    for _ in range(2):  # a GPU in between, whose name is that of none here
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
        run.write_environment(torch.device("cuda"), "bf16")
        assert (read_json(run.path / "environment.json")["precision"], run.precision()) == ("bf16", "fp32")


def stored_number(run: RunDirectory) -> int | None:
    return load_config(run.config_file).trainer.auto_batch_tokens


@pytest.mark.slow
@pytest.mark.fault(1)
def test_a_run_keeps_the_number_of_tokens_that_it_has_found(tmp_path: Path) -> None:
    """Before the first checkpoint only for the same config, afterwards for good."""
    run, auto = RunDirectory(tmp_path / "run"), "trainer.batch_tokens=auto"
    run.claim(config(auto))
    assert stored_number(run) is None
    run.adopt(with_batch_tokens(config(auto), 768))
    run.claim(config(auto))
    assert stored_number(run) == 768
    assert run.with_found(config(auto)).trainer.tokens_per_batch == 768
    run.claim(config(auto, "runtime.device=cpu"))  # which may suit another number
    assert stored_number(run) is None
    run.adopt(with_batch_tokens(config(auto), 768))
    save_step(run)
    assert run.claim(config(auto))
    assert not run.claim(config(auto, "runtime.device=cpu"))
    assert run.with_found(config(auto, "trainer.max_steps=9")).trainer.tokens_per_batch == 768
    assert run.with_found(config()).trainer.tokens_per_batch == config().trainer.tokens_per_batch
    with pytest.raises(UserError, match=r"another config:\n  trainer\.auto_batch_tokens: 768 -> 1024\n"):
        run.claim(config(auto, "trainer.auto_batch_tokens=1024"))
    with pytest.raises(UserError, match=r"batch_tokens: auto -> 768\n  trainer\.auto_batch_tokens: 768 -> "):
        run.claim(config("trainer.batch_tokens=768"))
    assert stored_number(run) == 768


def test_a_damaged_config_of_a_run_that_is_not_trained_holds_no_number(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.claim(config())
    run.config_file.write_text("a: b: c")
    assert not run.claim(config("trainer.batch_tokens=auto"))
    assert stored_number(run) is None


@pytest.mark.fault(3, 22)
def test_a_checkpoint_that_was_being_replaced_counts(tmp_path: Path) -> None:
    """The kill came between the two renames: the run is trained, and its tokenizer and config stay."""
    run = RunDirectory(tmp_path / "run")
    run.claim(config())
    (run.path / "tokenizer.model").write_bytes(b"of the run")
    save_step(run)
    run.checkpoints.folder(5).rename(run.checkpoints.directory / ".old-step_00000005")
    with pytest.raises(UserError, match="belongs to a run with another config"):
        run.claim(config("seed=2"))
    assert run.claim(config())
    assert run.checkpoints.steps() == [5]
    assert (run.path / "tokenizer.model").exists()


def test_results_that_are_not_finite_are_read_again(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    plain: dict[str, Any] = {"step": 1, "train_seconds": 1.0, "tgt_tokens_per_second": 1.0, "signatures": {}}
    write_json(run.results_file, plain | {"validation": {"perplexity": math.inf, "bleu": math.nan}})
    results = run.results()
    assert results is not None
    assert labelled_scores(results["validation"]) == ["BLEU nan", "perplexity inf"]
    write_json(run.results_file, plain | {"validation": {"perplexity": "much"}})
    with pytest.raises(UserError, match="is damaged: validation is"):
        run.results()


def evaluation(run: RunDirectory, name: str, digest: object, file: str, **changed: object) -> Path:
    """Store an evaluation as `nmt evaluate` does, with its translations."""
    run.hypotheses.mkdir(parents=True, exist_ok=True)
    (run.path / file).write_text("a\n")
    content = {"hypotheses": file, "weights": {"checkpoint": digest}, "changed": changed}
    write_json(run.evaluations / f"{name}.json", content)
    return run.evaluations / f"{name}.json"


def test_evaluations_of_earlier_weights_are_forgotten(tmp_path: Path) -> None:
    run, now, before = RunDirectory(tmp_path), "a" * 64, "b" * 16
    of_now = evaluation(run, "test-1", now[:16], "hypotheses/test-1.de")
    of_several = evaluation(run, "test-2", [before, now[:16]], "hypotheses/test-2.de")
    of_step = evaluation(run, "test-3", before, "hypotheses/test-3.de", checkpoint="20")
    elsewhere = tmp_path / "data.de"
    old = evaluation(run, "test", before, "hypotheses/test.de"), evaluation(run, "valid", before, "data.de")
    shared = evaluation(run, "test-4", before, "hypotheses/test-1.de")
    damaged = run.evaluations / "damaged.json"
    damaged.write_text("{")
    assert run.forget_evaluations(now) == ["test", "test-4", "valid"]
    assert {*run.evaluations.iterdir()} == {of_now, of_several, of_step, damaged}
    assert not any(file.exists() for file in (*old, shared, run.hypotheses / "test.de"))
    assert elsewhere.exists()
    assert (run.hypotheses / "test-1.de").exists()
