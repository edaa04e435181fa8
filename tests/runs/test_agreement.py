"""Runs that are to predict together: what they must agree in, and what is said where they do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from nmt import ensemble_of
from nmt.config.roots import RunConfig, Task
from nmt.data.configs import DataConfig
from nmt.data.reading.sources import MixtureData
from nmt.errors import UserError
from nmt.models.configs import EnsembleConfig, Mean
from nmt.models.ensemble import Ensemble
from nmt.runs.opened import Run
from nmt.runs.opening import OpenRuns, open_run, open_runs
from nmt.runtime_config import RuntimeConfig
from tests.runs.untrained import RNN, WORDS, untrained

CPU = RuntimeConfig(device="cpu", threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the runs `a` and `b`, which agree."""
    folder = tmp_path_factory.mktemp("runs")
    untrained(folder / "a")
    untrained(folder / "b", "seed=2", model=RNN)
    return folder


def opened(path: Path) -> Run:
    return open_run(path, runtime_cfg=CPU)


def refusal(*runs: Run, cfg: EnsembleConfig | None = None) -> str:
    """Return the error, without the folder that the runs are in."""
    with pytest.raises(UserError) as caught:
        ensemble_of(runs, cfg)
    return (
        str(caught.value)
        .replace(f"{runs[-1].directory.path.parent}/", "")
        .replace(f"{runs[0].directory.path.parent}/", "")
    )


def test_a_run_that_is_named_again_is_not_opened_again(folder: Path) -> None:
    known, names = OpenRuns(CPU), [str(folder / "b" / ".." / "a"), str(folder / "b")]
    alone = open_runs(RunConfig(run=str(folder / "a")), known)
    both = open_runs(RunConfig(run=names), known)
    assert isinstance(both.model, Ensemble)
    assert both.model.members[0] is alone.model
    assert open_runs(RunConfig(run=names[1]), known).model is both.model.members[1]
    assert open_runs(RunConfig(run=names[1], checkpoint="7"), known).model is not both.model.members[1]


def test_several_runs_are_opened_as_one(folder: Path) -> None:
    cfg = RunConfig(
        run=[str(folder / "a"), str(folder / "b")],
        checkpoint=["last", "7"],
        runtime=CPU,
        ensemble=EnsembleConfig(Mean.log_probabilities, weights=[1.0, 3.0]),
    )
    run = open_runs(cfg)
    assert isinstance(run.model, Ensemble)
    assert (run.model.mean, run.model.weights) == (Mean.log_probabilities, [0.25, 0.75])
    assert [type(member).__name__ for member in run.model.members] == ["Transformer", "Rnn"]
    assert not run.model.training
    assert run.directory.path == folder / "a"
    assert run.cfg == opened(folder / "a").cfg
    lines = ["ab ba", "", "h"]
    found = [translation.text for translation in run.translate(lines)]
    assert len(found) == 3
    assert found != [translation.text for translation in opened(folder / "a").translate(lines)]


def test_one_run_is_opened_as_itself(folder: Path) -> None:
    for run in (str(folder / "a"), [str(folder / "a")]):
        assert type(open_runs(RunConfig(run=run, runtime=CPU)).model).__name__ == "Transformer"


def test_an_ensemble_of_one_run_twice_translates_as_the_run(folder: Path) -> None:
    run, twice = opened(folder / "a"), ensemble_of([opened(folder / "a"), opened(folder / "a")])
    for one, two in zip(run.translate(WORDS[:9]), twice.translate(WORDS[:9]), strict=True):
        assert (one.text, one.ids) == (two.text, two.ids)
        assert one.score == pytest.approx(two.score, abs=1e-4)


OF_WEIGHTS = EnsembleConfig(Mean.weights, weights=[1.0, 3.0])


def test_the_mean_of_weights_is_one_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = opened(folder / "a"), opened(folder / "a")
    before = first.model.state_dict()["encoder.0.feed_forward.block.inner.weight"].clone()
    with torch.no_grad():
        second.model.state_dict()["encoder.0.feed_forward.block.inner.weight"].add_(0.1)
    run = ensemble_of([first, second], OF_WEIGHTS)
    assert type(run.model) is type(first.model)
    assert_close(run.model.state_dict()["encoder.0.feed_forward.block.inner.weight"], before + 0.075)
    assert not run.model.training
    assert run.path == folder / "a"
    assert capsys.readouterr().err == ""


def test_models_whose_weights_have_no_mean(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = opened(folder / "a")
    assert refusal(first, opened(folder / "b"), cfg=OF_WEIGHTS).startswith(
        "run=[a,b] ensemble.mean=weights: the models are not of one family and size, so that their weights "
        "have no mean: "
    )
    ensemble_of([first, opened(untrained(tmp_path / "other", "seed=2"))], OF_WEIGHTS)
    assert (
        "the weights have a cosine of 0.0" in capsys.readouterr().err
    )  # of trainings that do not start from each other


def test_another_number_of_pieces(folder: Path, tmp_path: Path) -> None:
    run = opened(untrained(tmp_path / "x", lines=[*WORDS, "z"]))
    assert refusal(opened(folder / "a"), opened(folder / "b"), run) == (
        "run=[a,x] cannot predict together: their target vocabularies differ: 13 pieces in a, but 14 in x; "
        "train both on the same data with the same tokenizer=..."
    )


def test_other_pieces(folder: Path, tmp_path: Path) -> None:
    run = opened(untrained(tmp_path / "x", lines=[line.replace("h", "z") for line in WORDS]))
    assert "their target vocabularies differ: piece 12 is 'h' in a, but 'z' in x; train both" in refusal(
        opened(folder / "a"), run
    )


def test_another_source_vocabulary(folder: Path, tmp_path: Path) -> None:
    """Whatever reads the sources reads them once, for all members."""
    run = opened(folder / "a")
    other = opened(untrained(tmp_path / "x", lines=[*WORDS, "z"])).tokenizer
    tokenizer = type(other)(other.cfg, other.src_model, run.tokenizer.tgt_model)
    assert "their source vocabularies differ: 13 pieces in a, but 14 in a; train both on" in refusal(
        run, replace(run, tokenizer=tokenizer)
    )


def test_other_rules_for_the_same_pieces(folder: Path, tmp_path: Path) -> None:
    run = opened(untrained(tmp_path / "x", "tokenizer.lowercase=true"))
    assert refusal(opened(folder / "a"), run) == (
        "run=[a,x] cannot predict together: their tokenizers have the same pieces, but split text by other "
        "rules or statistics: tokenizer.lowercase; train both on the same data with the same tokenizer=..."
    )


def test_other_languages(folder: Path) -> None:
    run = opened(folder / "a")
    other = replace(run, cfg=replace(run.cfg, data=DataConfig(src="en", tgt="de")))
    assert refusal(run, other) == "run=[a,a] cannot predict together: a translates en to fr, but a en to de"


def test_other_tags(folder: Path) -> None:
    """One model that is asked for its language, and one that has a single language."""
    run = opened(folder / "a")
    mixtures = (
        MixtureData(src="en", tgt="fr", corpora={"mine": {"train": "x"}}, target_tags=tags)
        for tags in (False, True)
    )
    plain, tagged = (replace(run, cfg=replace(run.cfg, data=data)) for data in mixtures)
    assert refusal(plain, tagged) == (
        "run=[a,a] cannot predict together: a asks for a language by no tag, but a by <2fr>; "
        "see data.target_tags"
    )
    assert isinstance(ensemble_of([tagged, tagged]).model, Ensemble)


def test_other_tasks_and_other_windows(folder: Path) -> None:
    run = opened(folder / "a")
    text = replace(run, cfg=replace(run.cfg, task=Task.language_model))
    shorter = replace(text, cfg=replace(text.cfg, data=replace(text.cfg.data, max_tokens=5)))
    assert refusal(run, text) == (
        "run=[a,a] cannot predict together: the task of a is translation, but that of a is language_model"
    )
    assert refusal(text, shorter) == (
        f"run=[a,a] cannot predict together: they read windows of another length: data.max_tokens is "
        f"{run.cfg.data.max_tokens} in a, but 5 in a"
    )
