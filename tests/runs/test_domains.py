"""Domains that a translation is asked for: the same in every verb, in requests, and in the sets of a run."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from nmt.cli import main
from nmt.errors import UserError
from nmt.runs.opened import Run
from nmt.runs.opening import open_run
from nmt.runs.reranker import Reranker
from nmt.runtime_config import RuntimeConfig
from nmt.serving.configs import ServingConfig
from nmt.serving.tasks import served_task
from nmt.translation.requests import Request
from tests.runs.untrained import untrained
from tests.serving.served import served

CPU = RuntimeConfig(device="cpu")
LINES = ["ab ba", "", "cd dc ef"]
CORPORA = "data.corpora={drugs: {name: toy, domain: med}, courts: {name: toy, domain: law}, web: {name: toy}}"
MIXTURE = ("data=mixture", "data.tgt=fr", CORPORA)
KNOWN = "the run knows med, law"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return an untrained run of two domains, and of text without one."""
    path = tmp_path_factory.mktemp("runs") / "run"
    return open_run(untrained(path, "data.target_tags=true", "seed=7", data=MIXTURE), runtime_cfg=CPU)


def texts(run: Run, lines: list[str] | list[Request], domain: str | None = None) -> list[str]:
    return [one.text for one in run.translate(lines, domain=domain)]


def test_a_domain_is_a_tag_behind_that_of_the_language(run: Run) -> None:
    assert list(run.asking_for(None, LINES, "med")) == [
        "<2fr> <domain:med> ab ba",
        "",
        "<2fr> <domain:med> cd dc ef",
    ]
    written = [f"<domain:med> {line}" if line else "" for line in LINES]
    assert texts(run, LINES, "med") == texts(run, written) == texts(run, written, "law")
    assert len({*map(tuple, (texts(run, LINES, one) for one in ("med", "law", None)))}) == 3
    own = [Request(LINES[0], domain="law"), Request(LINES[2])]
    assert texts(run, own, "med") == [texts(run, LINES, "law")[0], texts(run, LINES, "med")[2]]


def test_scores_and_attention_are_those_of_a_domain(run: Run) -> None:
    pairs = [("ab ba", "ba"), ("cd", "dc")]
    written = [(f"<domain:law> {src}", tgt) for src, tgt in pairs]
    assert run.score(pairs, domain="law") == run.score(written) != run.score(pairs)
    sources, targets = map(list, zip(*pairs, strict=True))
    hyps = run.evaluate(sources, targets, domain="law", metrics=["chrf"]).hypotheses
    assert hyps == texts(run, sources, "law")
    (maps,) = run.attend("ab ba\tba", domain="law")
    assert [piece.text for piece in maps.src][1:4:2] == ["<2fr>", "<domain:law>"]


def test_candidates_are_scored_in_their_domain_by_who_knows_it(run: Run, tmp_path: Path) -> None:
    other = open_run(untrained(tmp_path / "other", "data=toy"), runtime_cfg=CPU)
    reranker = Reranker(run, [run, other], run.cfg.decoding, None, "med")
    lines = ["ab ba", "<domain:law> cd dc"]
    candidates = reranker.candidates(lines, print)
    assert candidates[0][0].text == texts(run, lines[:1], "med")[0]
    for line, several, rows in zip(lines, candidates, reranker.values(lines, candidates, print), strict=True):
        text, plain = several[0].text, line.removeprefix("<domain:law> ")
        domain = "med" if line == plain else "law"
        assert rows[0][1] == pytest.approx(run.score([(plain, text)], domain=domain)[0].per_token)
        assert rows[0][2] == pytest.approx(other.score([(plain, text)])[0].per_token)
        assert rows[0][3] == len(text) / len(plain)
    assert len(reranker.best(["ab ba"], rows[0] * 0 + 1, print)) == 1


def test_a_server_translates_in_a_domain(run: Run) -> None:
    with served(run) as client:
        _, _, facts = client.get("/health")
        assert json.loads(facts)["domains"] == ["law", "med"]
        _, _, answer = client.post({"text": "ab ba", "domain": "law"})
        assert [one["text"] for one in answer["translations"]] == texts(run, ["ab ba"], "law")
        status, _, answer = client.post({"text": "ab", "domain": "lew"})
        assert (status, answer["error"]) == (422, f"domain=lew: {KNOWN}; did you mean 'law'?")
    task = served_task(run, run.cfg.decoding, None, ServingConfig(), domain="med")
    assert task.asked(task.body()(text="ab")).lines == ["<2fr> <domain:med> ab"]
    with pytest.raises(UserError, match=f"^domain=x: {KNOWN}$"):
        served_task(run, run.cfg.decoding, None, ServingConfig(), domain="x")


def test_the_command_line_asks_for_domains(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = (f"run={run.path}", "runtime.device=cpu")

    def translated(text: str, *arguments: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        code = main(["translate", *where, "input_format=jsonl", *arguments])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    asked = '{"src": "ab ba", "domain": "law"}\n{"src": "ab ba"}\n'
    assert translated(asked, "domain=med")[1] == [texts(run, ["ab ba"], one)[0] for one in ("law", "med")]
    code, _, told = translated('{"src": "ab"}\n{"src": "ab ba", "domain": "lew"}\n')
    assert (code, told) == (2, f"error: line 2 of the input: domain=lew: {KNOWN}; did you mean 'law'?\n")
    assert translated("", "domain=x")[2] == f"error: domain=x: {KNOWN}\n"
    for side, lines in (("en", ["ab ba", "cd"]), ("fr", ["ba", "dc"])):
        (tmp_path / f"set.{side}").write_text("".join(f"{line}\n" for line in lines))
    place = tmp_path / "set"
    sets = f"sets={{own: {{test: {place}, domain: law}}, told: {{test: {place}}}}}"
    assert main(["evaluate", *where, sets, "metrics=[chrf]", "domain=med"]) == 0
    for name, domain in (("own", "law"), ("told", "med")):
        (hyps,) = (run.path / "hypotheses").glob(f"test-{name}-*.fr")
        assert hyps.read_text().splitlines() == texts(run, ["ab ba", "cd"], domain)
    assert main(["evaluate", *where, f"sets={{a: {{test: {place}, domain: x}}}}"]) == 2
    assert f"sets.a.domain=x: {KNOWN}" in capsys.readouterr().err
    corpora = f"data.corpora={{a: {{train: {place}, test: {place}, domain: x}}}}"
    languages = ["data=mixture", "data.src=en", "data.tgt=fr", "data.target_tags=true"]
    assert main(["evaluate", *where[:1], *languages, corpora]) == 2
    assert f"data.corpora.a.domain=x: {KNOWN}" in capsys.readouterr().err


def test_what_the_run_does_not_know_is_refused(tmp_path: Path) -> None:
    plain = open_run(untrained(tmp_path / "plain"), runtime_cfg=CPU)
    without = "was trained without domains, which data.corpora.NAME.domain names; leave it out"
    with pytest.raises(UserError, match=f"^domain=med: the run {without}$"):
        plain.translate("ab", domain="med")
    with pytest.raises(UserError, match=f"^line 1 of the input: domain=med: the run {without}$"):
        next(plain.translate(Request("ab", domain="med")))
    sets = "sets={a: {name: toy, augment: [mask_words]}, b: {name: toy, domain: med}}"
    for key, more, told in (
        ("a", (), r"sets.a.augment puts <mask> into sources, which the training does not; leave that out"),
        ("b", ("data.augment=[mask_words]",), "sets.b.domain=med: the run was trained without domains"),
    ):
        with pytest.raises(UserError, match=told):
            untrained(tmp_path / key, sets, *more)
