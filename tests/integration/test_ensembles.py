"""Several runs through the command line: every verb that searches, and what is refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import yaml

from tests.integration.conftest import Command
from tests.runs.untrained import RNN, WORDS, untrained

TEXT = "".join(f"{line}\n" for line in [*WORDS[:20], "", "h"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the runs a, b and c, and with sources in `in`."""
    folder = tmp_path_factory.mktemp("ensembles")
    untrained(folder / "a")
    untrained(folder / "b", "seed=2", model=RNN)
    untrained(folder / "c", "seed=3")
    (folder / "in").write_text(TEXT)
    return folder


def translated(nmt: Command, folder: Path, *arguments: str) -> str:
    done = nmt("translate", *arguments, stdin=TEXT, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_stream_and_a_file_have_the_translations_of_all_runs(nmt: Command, folder: Path) -> None:
    sampling = "decoding=sampling"
    runs = ["run=[a,b,c]", "ensemble.mean=log_probabilities", "ensemble.weights=[1,2,1]", sampling]
    found = translated(nmt, folder, *runs)
    assert len(found.splitlines()) == 22
    alone = {translated(nmt, folder, f"run={run}", sampling) for run in "abc"}
    assert len({found, *alone, translated(nmt, folder, "run=[a,b,c]", sampling)}) == 5
    done = nmt("translate", *runs, "input=in", "output=out", "workers=1", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "out").read_text() == found


@pytest.mark.slow
def test_a_run_twice_translates_as_the_run(nmt: Command, folder: Path) -> None:
    for search in ("decoding=beam", "decoding=greedy", "decoding=sampling"):
        once = translated(nmt, folder, "run=a", search)
        assert translated(nmt, folder, "run=[a,a]", search, "ensemble.weights=[3,1]") == once


def left_over(nmt: Command, folder: Path, *changed: str) -> str:
    """Return the end of the error when a job of the runs a and b goes on with `changed` arguments."""
    done = nmt("translate", "run=[a,b]", *changed, "input=in", "output=left", cwd=folder)
    assert done.returncode == 2, done.stderr
    return done.stderr


@pytest.mark.slow
def test_a_file_goes_on_with_the_same_members_only(nmt: Command, folder: Path) -> None:
    """The parts of a job are refused when the mean, the weights or the checkpoint of any run has changed."""
    parts = folder / "left.parts"
    done = nmt("translate", "run=[a,b]", "input=in", "output=left", "workers=1", cwd=folder)
    assert done.returncode == 0, done.stderr
    text = (folder / "left").read_text()
    (folder / "left").unlink()
    parts.mkdir()
    job = {"checkpoint": ["0" * 16, "1" * 16]}
    (parts / "job.json").write_text(json.dumps(job))
    error = left_over(nmt, folder)
    (first, second) = re.findall(r"checkpoint: \['0+', '1+'\] -> \['(\w{16})', '(\w{16})'\]", error)[0]
    assert first != second
    facts = dict(re.findall(r"^  (.+): unset -> (.+)$", error, flags=re.MULTILINE))
    sha256 = facts.pop("input.sha256")
    facts = {key: yaml.safe_load(value.replace("None", "null")) for key, value in facts.items()}
    assert facts["ensemble.weights"] == [0.5, 0.5]
    assert facts["ensemble.mean"] == "probabilities"
    stored = {**facts, "checkpoint": [first, second], "input.sha256": sha256}
    (parts / "job.json").write_text(json.dumps(stored))
    assert "\n  ensemble.weights: [0.5, 0.5] -> [0.25, 0.75]\n" in left_over(
        nmt, folder, "ensemble.weights=[1,3]"
    )
    assert "\n  ensemble.mean: probabilities -> log_probabilities\n" in left_over(
        nmt, folder, "ensemble.mean=log_probabilities"
    )
    assert f"\n  checkpoint: ['{first}', '{second}'] -> " in left_over(nmt, folder, "run=[a,c]")
    done = nmt("translate", "run=[a,b]", "input=in", "output=left", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "left").read_text() == text


def scored(nmt: Command, folder: Path, *arguments: str) -> tuple[str, dict[str, float]]:
    """Return the file of hypotheses, and the scores."""
    done = nmt("evaluate", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    (file,) = re.findall(r"^written     (.+)$", done.stdout, flags=re.MULTILINE)
    line = done.stdout.splitlines()[0]
    return file, {name: float(value) for name, value in re.findall(r"(\w+) ([\d.]+)", line)}


@pytest.mark.slow
def test_hypotheses_are_named_by_all_that_they_depend_on(nmt: Command, folder: Path) -> None:
    settings = [
        ["run=a"],
        ["run=[a,b]"],
        ["run=[a,c]"],
        ["run=[a,b,c]"],
        ["run=[a,b]", "ensemble.mean=log_probabilities"],
        ["run=[a,b]", "ensemble.weights=[1,2]"],
        ["run=[a,b]", "checkpoint=[final,7]"],
    ]
    files = [scored(nmt, folder, *some)[0] for some in settings]
    assert files[0] == "a/hypotheses/test.fr"
    assert len({*files}) == len(files)
    assert all(re.fullmatch(r"a/hypotheses/test-\w{8}\.fr", file) for file in files[1:])
    assert scored(nmt, folder, "run=[a,b]")[0] == files[1]


def test_the_loss_is_that_of_the_ensemble(nmt: Command, folder: Path) -> None:
    """An arithmetic mean of probabilities has at most the mean of the losses, as the logarithm is concave."""
    single = [scored(nmt, folder, f"run={run}")[1] for run in "ab"]
    _, both = scored(nmt, folder, "run=[a,b]")
    _, same = scored(nmt, folder, "run=[a,a]")
    assert same["perplexity"] == single[0]["perplexity"]
    assert math.log(both["perplexity"]) < sum(math.log(scores["perplexity"]) for scores in single) / 2


def test_a_sweep_over_settings_of_an_ensemble(nmt: Command, folder: Path) -> None:
    done = nmt("evaluate", "-m", "run=[a,b]", "ensemble.mean=probabilities,log_probabilities", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"mean-\w+ done in", done.stderr)) == 2


def test_language_models_go_on_together(nmt: Command, tmp_path: Path) -> None:
    text = ["task=language_model", "data=text", "data.max_tokens=16", "data.train=x"]
    sizes = ["model.d_ff=16", "model.num_heads=2", "model.num_layers=1", "model.max_positions=64"]
    for name, width in (("lm1", 8), ("lm2", 12)):
        model = ["model=gpt", f"model.d_model={width}", *sizes]
        untrained(tmp_path / name, *text, f"seed={width}", model=model)
    arguments = ["prompt=ab", "max_tokens=30", "decoding=sampling"]
    found = [
        nmt("generate", f"run={run}", *arguments, cwd=tmp_path) for run in ("lm1", "[lm1,lm1]", "[lm1,lm2]")
    ]
    assert [done.returncode for done in found] == [0, 0, 0], [done.stderr for done in found]
    assert found[0].stdout == found[1].stdout != found[2].stdout


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("translate run=[a,x]", "run=x is not a directory"),
        ("translate run=[x,y]", "run=y is not a directory"),
        ("translate run=[]", "run is missing; say nmt translate run=DIR"),
        (
            "translate run=[a,b] checkpoint=[last]",
            "checkpoint must be one name for all runs, or a list with one",
        ),
        ("translate run=[a,b] checkpoint=[last,bets]", "but is 'bets'; did you mean 'best'?"),
        ("translate run=[a,b] checkpoint=[7,8]", "checkpoint=8 is not in b; there are the steps 7"),
        (
            "translate run=[a,b] ensemble.weights=[1]",
            "ensemble.weights must have one number for each of 2 runs",
        ),
        ("translate run=[a,b] ensemble.weights=[1,0]", "ensemble.weights must be positive, but one is 0.0"),
        ("translate run=[a,b] ensemble.mean=median", "ensemble.mean"),
        ("translate run=[a,b] ensemble.mean=weights", "the models are not of one family and size"),
        ("attention run=[a,b]", "attention weights belong to one model, but this is an ensemble of 2"),
    ],
)
def test_what_is_refused(nmt: Command, folder: Path, command: str, message: str) -> None:
    done = nmt(*command.split(), stdin="ab\n", cwd=folder)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
