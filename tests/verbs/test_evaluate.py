"""What is scored beside the data of a run, and what `nmt evaluate` stores."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from nmt.cli import main
from nmt.data.parallel_text import Split
from nmt.data.reading.sources import MixtureData
from nmt.errors import UserError
from nmt.files import digest_of_lines, write_lines, written_lines
from nmt.runs.directory import RunDirectory
from nmt.runs.evaluation_text import require_trusted

TOY = [
    *("experiment=none", "data=toy", "tokenizer=word", "model=transformer_tiny", "model.d_model=16"),
    *("model.d_ff=32", "model.num_heads=2", "model.encoder_layers=1", "model.decoder_layers=1"),
    *("schedule=constant", "data.max_tokens=16", "trainer.batch_tokens=32", "trainer.eval_every_steps=2"),
    *("trainer.max_steps=2", "runtime.device=cpu", "runtime.kernels=false", "decoding=greedy"),
    *("tracking.sinks=[jsonl,tensorboard]", "metrics=[bleu,chrf++]", "trainer.best_metric=chrf++"),
]
SOURCES = ["the cat sleeps", "the dog runs"]
REFERENCES = [["le chat dort", "le chien court"], ["un chat dort", "un chien court vite"]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with a second corpus to score on, of two references."""
    folder = tmp_path_factory.mktemp("runs")
    for name, lines in (("en", SOURCES), ("fr", REFERENCES[0]), ("fr2", REFERENCES[1])):
        write_lines(folder / f"news.{name}", lines)
    place = folder / "news"
    entry = f"sets={{news: {{validation: {place}, test: {place}, references: [fr2]}}}}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NMT_CACHE", str(folder / "cache"))
        assert main(["train", f"run={folder / 'run'}", *TOY, entry]) == 0
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """Return a copy of the run, whose corpora are gone."""
    copied = shutil.copytree(trained, tmp_path / "run")
    text = (copied / "config.yaml").read_text().replace(str(trained.parent), "/gone")
    (copied / "config.yaml").write_text(text)
    return copied


def stored(run: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "evaluations" / f"{name}.json").read_text())
    return found


def test_every_set_has_scores_of_its_own(trained: Path) -> None:
    results = json.loads((trained / "results.json").read_text())
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    validation = next(line for line in lines if "valid/bleu" in line)
    assert {name for name in validation if "news" in name} == {
        f"valid/news/{name}" for name in ("loss", "perplexity", "bleu", "chrf++")
    }
    for split in ("validation", "test"):
        found = results["sets"]["news"][split]
        hyps = written_lines(trained / "hypotheses" / "news" / f"{split}.fr")
        scorer = BLEU(trg_lang="fr")
        assert found["bleu"] == scorer.corpus_score(hyps, REFERENCES).score
        assert found["chrf++"] == CHRF(word_order=2).corpus_score(hyps, REFERENCES).score
        assert found["loss"] != results[split]["loss"]
    assert results["sets"]["news"]["signatures"]["bleu"].startswith("nrefs:2|")
    assert validation["valid/news/loss"] == pytest.approx(results["sets"]["news"]["validation"]["loss"])
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    assert "news/bleu" in EventAccumulator(str(trained / "tb" / "valid")).Reload().Tags()["scalars"]
    assert "bleu/test-news" in EventAccumulator(str(trained / "tb" / "final")).Reload().Tags()["scalars"]


def test_an_evaluation_is_stored_and_the_same_command_replaces_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = json.loads((run / "results.json").read_text())
    assert main(["evaluate", f"run={run}"]) == 0
    shown = capsys.readouterr().out
    assert "\ntest-news   BLEU " in shown
    assert f"stored      {run / 'evaluations' / 'test.json'}" in shown
    found = stored(run, "test")
    assert found["scores"] == results["test"]  # of copies of the corpora
    assert found["signatures"] == results["signatures"]
    assert stored(run, "test-news")["scores"] == results["sets"]["news"]["test"]
    assert (found["changed"], found["checkpoints"], found["num_references"]) == ({}, ["2"], 1)
    assert stored(run, "test-news")["num_references"] == 2
    assert written_lines(run / found["hypotheses"]) == written_lines(run / "hypotheses" / "test.fr")
    names = sorted(file.name for file in (run / "evaluations").iterdir())
    other = ["evaluate", f"run={run}", "decoding.beam_size=2", "metrics=[ter]", "checkpoint=best"]
    assert main(other) == 0
    new = sorted(file.name for file in (run / "evaluations").iterdir() if file.name not in names)
    assert len(new) == 2
    beam = stored(run, new[0].removesuffix(".json"))
    assert beam["changed"] == {"decoding.beam_size": 2, "checkpoint": "best", "metrics": ["ter"]}
    assert (beam["set"], list(beam["scores"])) == ("test", ["loss", "perplexity", "ter"])
    assert (run / beam["hypotheses"]).name != "test.fr"
    assert main(other) == 0
    assert len(list((run / "evaluations").iterdir())) == 4


def test_an_evaluation_of_an_ensemble_says_which_runs_and_by_which_rule(run: Path) -> None:
    both = ["evaluate", f"run=[{run},{run}]", "ensemble.weights=[1,3]", "data.scored_split=validation"]
    assert main(both) == 0
    (name,) = (file.stem for file in (run / "evaluations").glob("validation-*") if "news" not in file.name)
    assert stored(run, name)["changed"] == {"run": [str(run)] * 2, "ensemble.weights": [1.0, 3.0]}


def test_a_stranger_names_no_corpus_that_is_read(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "data" / "news")
    sealed = json.loads((run / "MANIFEST.json").read_text())
    kept = {name: digest for name, digest in sealed.items() if "news" not in name}
    (run / "MANIFEST.json").write_text(json.dumps(kept))
    assert main(["evaluate", f"run={run}"]) == 2
    assert "its config names /gone/news, which is not read or downloaded only because a run says so" in (
        capsys.readouterr().err
    )


def test_test_sets_of_sacrebleu_are_scored_by_name(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nmt.data.reading import testsets

    folder = run.parent
    for name, lines in (("src", SOURCES), ("ref", REFERENCES[0])):
        write_lines(folder / name, lines)
    monkeypatch.setattr(testsets, "_files", lambda cfg, split: [folder / "src", folder / "ref"])
    assert main(["evaluate", f"run={run}", "testset=[wmt14,wmt14/full]"]) == 0
    shown = capsys.readouterr().out
    assert "\nwmt14_full  BLEU" in shown
    found = stored(run, "wmt14")
    assert (found["set"], found["sentences"], found["data"]["test"]) == ("wmt14", 2, "wmt14")
    assert not (run / "evaluations" / "test.json").exists()


def test_further_sets_are_scored_beside_data_that_is_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, lines in (("en", SOURCES[::-1]), ("fr", REFERENCES[0][::-1])):
        write_lines(tmp_path / f"other.{name}", lines)
        write_lines(tmp_path / f"more.{name}", lines[:1])
    named = ["data=files", "data.src=en", "data.tgt=fr", f"data.test={tmp_path}/other"]
    sets = f"sets={{more: {{test: {tmp_path}/more}}, shouted: {{augment: [upper_case]}}}}"
    assert main(["evaluate", f"run={run}", *named, sets]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^(test\S*) +BLEU", shown, re.MULTILINE) == ["test", "test-more", "test-shouted"]
    records = [json.loads(file.read_text()) for file in sorted((run / "evaluations").glob("test-*.json"))]
    assert {one["set"]: one["sentences"] for one in records} == {"test": 2, "test-more": 1, "test-shouted": 2}
    (record,) = (one for one in records if one["set"] == "test-shouted")
    shouted = [line.upper() for line in SOURCES[::-1]]  # of the data that is named
    assert record["sha256"]["src"] == digest_of_lines(shouted)
    other = sets.replace("test:", "validation:")
    assert main(["evaluate", f"run={run}", *named, other]) == 2
    told = "error: sets.more has no test pairs, and data.scored_split=test is scored; give it a key test, or"
    assert told in capsys.readouterr().err
    assert main(["evaluate", f"run={run}", *named, "sets={more: {test: x, src: fr, tgt: en}}"]) == 2
    told = "the run translates en to fr, but sets.more is fr to en; add sets.more.src=en sets.more.tgt=fr"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            "{test: {test: x}}",
            "sets.test: the name of a set must be letters, digits, dots and dashes, and none",
        ),
        ("{news: 1}", "sets.news must be a group of keys, such as {test: PATH}, but is 1"),
        ("{news: {tset: x}}", "unknown key sets.news.tset; did you mean 'test'?"),
        ("{news: {train: x}}", "sets.news needs validation or test, pairs to score on"),
    ],
)
def test_a_set_that_fits_nothing_is_one_error(
    sets: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *TOY, f"sets={sets}"]) == 2
    assert message in capsys.readouterr().err


def test_references_must_have_as_many_lines_as_the_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    for name, lines in (("en", SOURCES), ("fr", REFERENCES[0]), ("fr2", ["un"])):
        write_lines(tmp_path / f"dev.{name}", lines)
    entry = f"sets={{dev: {{test: {tmp_path}/dev, references: [fr2]}}}}"
    assert main(["train", f"run={tmp_path / 'run'}", *TOY, entry]) == 2
    assert "sets.dev.test: " in (shown := capsys.readouterr().err)
    assert "dev.fr2 has 1" in shown


def test_the_corpus_that_is_not_read_is_that_of_the_split() -> None:
    corpora = {
        "one": {"train": "r/one", "validation": "r/one.dev", "test": "r/a.test"},
        "two": {"train": "r/two", "validation": "r/two.dev"},
    }
    own = MixtureData(corpora=corpora)
    asked = dataclasses.replace(own, scored=["two"], scored_split=Split.validation)
    cfg: Any = SimpleNamespace(data=own, sets={})
    with pytest.raises(
        UserError, match=r"no copy of these validation pairs; its config names r/two\.dev, which"
    ):
        require_trusted(RunDirectory(Path("r")), cfg, asked, Split.validation)
