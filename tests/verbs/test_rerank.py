"""`nmt rerank`: what runs can score, the weights that are stored, and the same choice in every way to ask."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from nmt.cli import main
from nmt.config.compose import compose
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading.sources import MixtureData
from nmt.decoding.configs import BeamConfig, LineSplitting
from nmt.errors import UserError
from nmt.files import write_json
from nmt.runs.checkpoint_names import with_fixed_checkpoints
from nmt.runs.opening import open_run
from nmt.runs.reranker import FLOOR, Reranker, features_of
from nmt.runtime_config import RuntimeConfig
from nmt.translation.translate import Translation
from nmt.verbs import VERBS, rerank
from nmt.verbs.configs import RerankConfig
from tests.runs.untrained import GPT, WORDS, untrained

CPU = RuntimeConfig(device="cpu", threads=1)
SEARCH = BeamConfig(beam_size=4, n_best=4, max_length_offset=3, max_length_ratio=1.0)
KINDS = ("right_to_left", "reverse", "language_model")
LINES = ["ab ba", "", "h", "ca ac"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        "run": untrained(folder / "run"),
        "right_to_left": untrained(folder / "r2l", "tokenizer.right_to_left=true", "seed=2"),
        "reverse": untrained(folder / "rev", "data.src=fr", "data.tgt=en", "seed=3"),
        "language_model": untrained(folder / "lm", "task=language_model", model=GPT),
    }


@pytest.fixture(scope="module")
def reranker(runs: dict[str, Path]) -> Reranker:
    opened = {name: open_run(path, runtime_cfg=CPU) for name, path in runs.items()}
    return Reranker(opened["run"], [opened[kind] for kind in KINDS], SEARCH, None)


def test_what_a_run_can_score_is_found_from_its_config(reranker: Reranker, runs: dict[str, Path]) -> None:
    assert reranker.names == ["score", *(f"{kind} {runs[kind]}" for kind in KINDS), "length"]
    with pytest.raises(UserError) as caught:
        features_of(reranker.run, ("de", "fr"))
    assert str(caught.value) == (
        f"scorers: {runs['run']} translates en to fr, and can score no translation from de to fr; "
        "name runs that translate de to fr or fr to de, or language models trained with data.tgt=fr"
    )
    with pytest.raises(UserError, match=r"lm models fr, the data\.tgt of its training, and can score no"):
        features_of(open_run(runs["language_model"], runtime_cfg=CPU), ("fr", "en"))


def test_features_are_the_scores_of_the_runs(reranker: Reranker, runs: dict[str, Path]) -> None:
    """Per token; a candidate without text has no reverse score, and counts as the floor."""
    warnings: list[str] = []
    candidates = reranker.candidates(LINES, warnings.append)
    assert all(len({one.text for one in several}) == len(several) for several in candidates)
    assert max(map(len, candidates)) > 1
    values = reranker.values(LINES, candidates, warnings.append)
    assert [rows.shape for rows in values] == [(len(several), 5) for several in candidates]
    scorers, blank = [open_run(runs[kind], runtime_cfg=CPU) for kind in KINDS], 0
    for line, several, rows in zip(LINES, candidates, values, strict=True):
        for candidate, row in zip(several, rows, strict=True):
            pair = (line, candidate.text)
            asked = (pair, pair[::-1], pair)
            found = [scorer.score([one])[0].per_token for scorer, one in zip(scorers, asked, strict=True)]
            blank += bool(line) and not candidate.text
            length = len(candidate.text) / max(len(line), 1)
            expected = [candidate.score, *(max(x, FLOOR) for x in found), length]
            np.testing.assert_allclose(row, expected, atol=1e-4)
    told = f"{blank} candidates cannot be read by reverse {runs['reverse']}; they count -50.0 per token"
    assert warnings == ([told] if blank else [])


IN_CONTEXT = ("data=files", "data.train=x", "data.validation=x", "data.test=x", "data.context=1")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Reranker:
    """Return the reranker of a run that translates context, with scorers of both directions."""
    folder, reverse = tmp_path_factory.mktemp("documents"), ("data.src=de", "data.tgt=en")
    runs = [
        untrained(folder / "run", "data.context_target=true", data=IN_CONTEXT),
        untrained(folder / "reads_context", "seed=2", data=IN_CONTEXT),
        untrained(folder / "rev", "data.context_target=true", "seed=3", *reverse, data=IN_CONTEXT),
    ]
    run, *scorers = [open_run(path, runtime_cfg=CPU) for path in runs]
    return Reranker(run, scorers, SEARCH, None)


BEHIND_CONTEXT = Translation("ab <brk> ba", -1.0, [Translation("ab <brk> cc", -2.0), Translation("ba", -3.0)])
"""What a search finds for a source with one sentence of context; the last one lacks the context."""


def test_what_is_scored_is_the_sentence_itself(documents: Reranker) -> None:
    with mock.patch("nmt.runs.opened.translate", return_value=[BEHIND_CONTEXT]):
        (found,) = documents.candidates(["hg <brk> abcd"], print)
    assert [(one.text, one.score) for one in found] == [("ba", -1.0), ("cc", -2.0)]
    (rows,) = documents.values(["hg <brk> abcd"], [found], print)
    forward, reverse = (feature.run for feature in documents.features)
    for (score, *scored, length), text in zip(rows, ("ba", "cc"), strict=True):
        expected = [*forward.score([("hg <brk> abcd", text)]), *reverse.score([(text, "abcd")])]
        np.testing.assert_allclose(scored, [one.per_token for one in expected], atol=1e-5)
        assert (score, length) == ({"ba": -1.0, "cc": -2.0}[text], 0.5)


def test_of_a_line_that_is_split_the_best_of_each_part_is_taken(
    reranker: Reranker, documents: Reranker
) -> None:
    """As `nmt translate` splits it: nothing is lost, and the parts are context of each other."""
    lines, weights = ["Ab ba. Ca ac.", "h"], np.array([1.0, 0.5, 0.5, 0.5, -2.0])
    split = dataclasses.replace(SEARCH, split_lines=LineSplitting.all)
    by_sentence = Reranker(reranker.run, [one.run for one in reranker.features], split, None)
    parts = by_sentence.best(["Ab ba.", "Ca ac.", "h"], weights, print)
    assert all(parts)
    assert by_sentence.best(lines, weights, print) == [f"{parts[0]} {parts[1]}", parts[2]]
    whole = Reranker(
        reranker.run,
        [one.run for one in reranker.features],
        dataclasses.replace(split, split_lines=LineSplitting.none),
        None,
    )
    assert whole.best(lines, weights, print) != by_sentence.best(lines, weights, print)

    in_context = Reranker(documents.run, [one.run for one in documents.features], split, None)
    with mock.patch.object(in_context, "values", wraps=in_context.values) as values:
        in_context.best(lines, np.array([1.0, 0.5, 0.5, -2.0]), lambda message: None)
    (scored, *_) = values.call_args.args
    assert scored == ["Ab ba.", "Ab ba. <brk> Ca ac.", "h"]


def test_references_are_those_of_the_sentences_themselves(
    documents: Reranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = documents.run.directory.path
    (trial,) = compose(VERBS["rerank"], [f"run={path}", f"scorers=[{path}]", "metrics=[chrf]"])
    text = ParallelText(["hg <brk> abcd"], ["gg <brk> hh"], [["gg <brk> ba"]])
    monkeypatch.setattr(rerank, "evaluation_text", lambda *args, **kwargs: text)
    cfg = trial.to_config(RerankConfig)
    with mock.patch("nmt.runs.opened.translate", return_value=[BEHIND_CONTEXT]):
        lists = rerank._Lists.of(documents, cfg, True, Split.test)
    assert (lists.text.tgt, lists.text.references) == (["hh"], [["ba"]])
    assert lists.scores(cfg, [0]).values == {"chrf": 100.0}


def test_weights_are_those_of_the_rules_of_scores_and_features(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was tuned under others is not found, and weights are tuned again."""
    run = tmp_path / "run"
    shutil.copytree(runs["run"], run)
    (trial,) = compose(VERBS["rerank"], command(runs | {"run": run})[1:])
    cfg = trial.to_config(RerankConfig)
    files = [rerank._weights_file(cfg, {})]
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(
        config.replace("scoring:\n  tokenize: null", "scoring:\n  tokenize: char")
    )
    files.append(rerank._weights_file(cfg, {}))
    monkeypatch.setattr(rerank, "VERSION", 1)
    files.append(rerank._weights_file(cfg, {}))
    assert len({*files}) == 3


def test_weights_are_the_same_however_lines_of_files_are_split(runs: dict[str, Path], tmp_path: Path) -> None:
    """No pair of a split is; but a file that is begun is not finished with another splitting."""
    run = tmp_path / "run"
    shutil.copytree(runs["run"], run)
    keys: list[list[str]] = [[], ["decoding.split_lines=all", "decoding.split_tokens=9"]]
    trials = [compose(VERBS["rerank"], command(runs | {"run": run}, *one)[1:])[0] for one in keys]
    configs = [trial.to_config(RerankConfig) for trial in trials]
    facts = with_fixed_checkpoints(configs[0])[1]
    (file,) = {rerank._weights_file(cfg, facts) for cfg in configs}
    write_json(file, {"weights": [1.0]})
    usual, split = map(rerank._facts_of_job, configs)
    changed = {key: (usual[key], split[key]) for key in usual if usual[key] != split[key]}
    assert changed == {"decoding.split_lines": ("long", "all"), "decoding.split_tokens": (None, 9)}


def command(runs: dict[str, Path], *keys: str) -> list[str]:
    scorers = ",".join(str(runs[kind]) for kind in KINDS)
    search = ["decoding.beam_size=4", "decoding.n_best=4", "runtime.device=cpu"]
    return ["rerank", f"run={runs['run']}", f"scorers=[{scorers}]", *search, *keys]


@pytest.mark.slow
def test_one_command_tunes_stores_reports_and_translates(
    runs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    assert main(command(runs, "tune_for=chrf")) == 0
    shown = capfdbinary.readouterr().out.decode().splitlines()
    (file,) = (runs["run"] / "rerank").iterdir()
    stored = json.loads(file.read_text())
    before, after = (
        f"validation  BLEU {stored[when]['bleu']:.2f}  chrF {stored[when]['chrf']:.2f}"
        for when in ("before", "after")
    )
    reranked = f"{after}  reranked; the weights are tuned on it"
    assert shown[:3] == [f"{before}  as found", reranked, f"written     {file}"]
    assert stored["after"]["chrf"] > stored["before"]["chrf"]
    assert shown[3].startswith("weights     score 1  right_to_left ")
    hypotheses = runs["run"] / "hypotheses" / f"test-rerank-{file.stem}.fr"
    assert shown[-1] == f"written     {hypotheses}"
    record = runs["run"] / "evaluations" / f"{hypotheses.stem}.json"
    assert shown[-2] == f"stored      {record}"
    files = (str(runs["run"] / "hypotheses" / "test.fr"), str(hypotheses))
    assert main(["evaluate", f"run={runs['run']}"]) == 0
    assert main(["compare", *files, "split=test"]) == 0  # which needs to know what they are translations of
    compared = capfdbinary.readouterr().out.decode()
    assert "run:scorers=[" in compared
    assert "left out" not in compared

    assert main(command(runs, "tune_for=chrf", "data.scored_split=validation")) == 0
    again = capfdbinary.readouterr().out.decode().splitlines()
    assert again[1:3] == [f"{before}  as found", f"{after}  reranked"]  # the stored weights, and no tuning

    named = command(runs, "tune_for=chrf", "checkpoint=last", "metrics=[bleu]")
    assert main(named) == 0
    (written,) = [
        line.split()[1] for line in capfdbinary.readouterr().out.decode().splitlines() if "stored" in line
    ]
    changed = json.loads(Path(written).read_text())["changed"]
    assert (changed["checkpoint"], changed["metrics"]) == ("last", ["bleu"])

    swept = command(runs, "tune_for=chrf", "data.scored_split=validation", f"sweep.dir={tmp_path}/sweep")
    assert main([*swept, "-m", "decoding.length_penalty_alpha=0.0,1.0"]) == 0
    shown_sweep = capfdbinary.readouterr().out.decode()
    assert re.search(r"^best +\S*alpha-\d", shown_sweep, re.MULTILINE), shown_sweep
    assert {one["state"] for one in json.loads((tmp_path / "sweep/sweep.json").read_text())["trials"]} == {
        "done"
    }

    text = "".join(f"{line}\n" for line in WORDS[:6])

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(command(runs, "tune_for=chrf", "stream=true")) == 0
    assert capfdbinary.readouterr().out.decode() == hypotheses.read_text()
    (tmp_path / "in").write_text(text)
    assert (
        main(command(runs, "tune_for=chrf", f"input={tmp_path}/in", f"output={tmp_path}/out", "workers=1"))
        == 0
    )
    assert (tmp_path / "out").read_text() == hypotheses.read_text()

    file.write_text(json.dumps(stored | {"weights": [1.0]}))
    capfdbinary.readouterr()
    assert main(command(runs, "tune_for=chrf")) == 2
    message = f"error: {file} is damaged: it has 1 weights for 5 features; remove it to tune them again\n"
    assert capfdbinary.readouterr().err.decode() == message
    for weight in (float("nan"), float("inf"), -1e308):
        file.write_text(json.dumps(stored | {"weights": [1.0, weight, 1.0, 1.0, 1.0]}))
        assert main(command(runs, "tune_for=chrf")) == 2
        assert "is damaged: a weight is no number below 1e+100; rem" in capfdbinary.readouterr().err.decode()
    file.unlink()


def test_a_run_that_can_keep_no_weights_is_refused_before_the_work(
    runs: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(runs["run"], tmp_path / "run"))
    (run / "rerank").touch()
    assert main(command(runs | {"run": run})) == 2
    assert capfd.readouterr().err == (
        f"error: cannot write to the directory {run}/rerank: it is a file; weights are kept in the run; "
        "copy it, and name the copy: run=...\n"
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            ("decoding.n_best=1",),
            "chooses among several translations, but decoding.n_best=1; "
            "try decoding.beam_size=20 decoding.n_best=20",
        ),
        (
            ("decoding=sampling", "decoding.n_best=1"),
            "chooses among several translations, but decoding.n_best=1; try decoding.n_best=20",
        ),
        (
            ("tune_for=blue",),
            "tune_for must be one of bleu, spbleu, chrf, chrf++, but is 'blue'; did you mean 'bleu'?",
        ),
        (("scorers=[]",), "error: scorers must name at least one run, such as scorers=[outputs/reverse]"),
        (("scorers=[nowhere]",), "error: scorers=nowhere is not a directory"),
        (
            ("stream=true", "input=a", "output=b"),
            "stream=true reads standard input; leave it out to read",
        ),
    ],
)
def test_keys_that_do_not_fit(
    runs: dict[str, Path], keys: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    names = {key.partition("=")[0] for key in keys}
    given = [word for word in command(runs) if not {word.partition(sign)[0] for sign in "=."} & names]
    assert main([*given, *keys]) == 2
    assert message in capfd.readouterr().err


def test_a_scorer_that_leads_out_of_itself_is_refused(
    runs: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scorer").mkdir()
    (tmp_path / "scorer/config.yaml").symlink_to(runs["reverse"] / "config.yaml")
    given = [word for word in command(runs) if not word.startswith("scorers=")]
    assert main([*given, f"scorers=[{tmp_path}/scorer]"]) == 2
    assert "config.yaml is a link that leads out of" in capfd.readouterr().err


def test_a_split_without_the_language_is_refused(
    reranker: Reranker, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a model for several languages, some without validation pairs."""
    (trial,) = compose(VERBS["rerank"], command(runs)[1:])
    cfg = trial.to_config(RerankConfig)
    cfg.data = MixtureData(src="en", tgt="fr", corpora={"a": {"train": "x"}}, target_tags=True)
    english = ParallelText(["<2de> a"], ["b"])
    monkeypatch.setattr(rerank, "evaluation_text", lambda *args, **kwargs: english)
    with pytest.raises(UserError, match="the validation split has no pair with the target fr; name a corpus"):
        rerank._Lists.of(reranker, cfg, True, Split.validation)
