"""Languages that a translation is asked for: by all lines of an input, or by a line itself."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nmt.cli import main
from nmt.data.augment.translation_memory import TranslationMemory
from nmt.errors import UserError
from nmt.runs.opened import Run
from nmt.runs.opening import open_run
from nmt.runtime_config import RuntimeConfig
from nmt.serving.configs import ServingConfig
from nmt.serving.tasks import served_task
from nmt.translation.offers import Offers
from nmt.translation.requests import Request
from tests.runs.untrained import untrained
from tests.serving.served import served

CPU = RuntimeConfig(device="cpu")
MIXTURE = (
    "data=mixture",
    "data.tgt=fr",
    "data.corpora={french: {name: toy, augment: [matches]}, english: {name: toy, src: fr, tgt: en}}",
)
SRC = "ab ba"
CHOICE = "the run translates into fr, en; say which one with"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return an untrained run of two languages, whose tags are in front of the targets."""
    path = tmp_path_factory.mktemp("runs") / "run"
    tags = ("data.target_tags=true", "tokenizer.tag_side=target", "seed=2")
    return open_run(untrained(path, *tags, data=MIXTURE), runtime_cfg=CPU)


@pytest.fixture(scope="module")
def found(run: Run) -> dict[str, str]:
    """Return the translation of `SRC` into each language."""
    texts = {tgt: next(run.translate(SRC, tgt=tgt)).text for tgt in ("fr", "en")}
    assert texts["fr"] != texts["en"]
    return texts


def test_lines_of_several_languages_share_a_batch(run: Run, found: dict[str, str]) -> None:
    lines = [Request(SRC, tgt="en"), Request(""), Request(SRC, tgt="fr")]
    assert [one.text for one in run.translate(lines)] == [found["en"], "", found["fr"]]
    given: list[str | Request] = [SRC, Request(SRC, tgt="en"), Request(SRC)]
    assert [one.text for one in run.translate(given, tgt="fr")] == [found[x] for x in ("fr", "en", "fr")]
    with pytest.raises(UserError, match=f'^line 2 of the input: {CHOICE} tgt=... for all lines, or "tgt" of'):
        list(run.translate([Request(SRC, tgt="en"), SRC]))
    with pytest.raises(UserError, match=r"^line 1 of the input: tgt=de: the run translates into fr, en$"):
        list(run.translate([Request(SRC, tgt="de")], tgt="fr"))
    with pytest.raises(UserError, match=r"^tgt=x: the run translates into fr, en$"):
        run.translate([Request(SRC, tgt="en")], tgt="x")


def test_terms_and_matches_have_one_language(run: Run) -> None:
    lines = [Request("ab", tgt="en"), Request("ab")]
    terms: dict[str, Any] = {"glossary": {"ab": "h"}, "decoding": run.cfg.decoding, "beam_size": 4}
    english, french = run.translate(lines, tgt="fr", **terms)
    assert ("h" in english.text.split(), "h" in french.text.split()) == (False, True)
    assert "h" in next(run.translate(Request("ab", tgt="en", terms={"ab": "h"}), beam_size=4)).text.split()
    offered = run.with_offers(
        lines, run.cfg.decoding, Offers(memory=TranslationMemory([("ab", "c d")]), tgt="fr")
    )
    assert [one.match for one in offered] == ["", "c d"]
    memory: dict[str, Any] = {"memory": [("ab", "c d")]}
    for given in (terms, memory):
        with pytest.raises(UserError, match=f"^{CHOICE} tgt=..., the language of the glossary or memory$"):
            run.translate(lines[:1], **given)


def test_a_run_of_one_language_knows_no_other(tmp_path: Path) -> None:
    plain = open_run(untrained(tmp_path / "plain"), runtime_cfg=CPU)
    assert next(plain.translate(Request(SRC, tgt="fr"))) == next(plain.translate(SRC))
    alone = "tgt=en: the run translates into fr alone, since it was trained without data.target_tags"
    with pytest.raises(UserError, match=f"^line 1 of the input: {alone}$"):
        next(plain.translate(Request(SRC, tgt="en")))
    both = open_run(untrained(tmp_path / "both", data=MIXTURE), runtime_cfg=CPU)
    with pytest.raises(UserError, match=r"^line 1 of the input: tgt=en: the run was trained without data"):
        next(both.translate(Request(SRC, tgt="en")))


def test_the_command_line_takes_the_language_of_each_line(
    run: Run, found: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def translated(text: str, *arguments: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        code = main(["translate", f"run={run.path}", "runtime.device=cpu", *arguments])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    english, plain = json.dumps({"src": SRC, "tgt": "en"}), json.dumps({"src": SRC})
    json_lines = "input_format=jsonl"
    assert translated(f"{english}\n{plain}\n", json_lines, "tgt=fr")[1] == [found["en"], found["fr"]]
    assert translated(f"{english}\n", json_lines)[1] == [found["en"]]
    code, out, told = translated(f"{english}\n{plain}\n", json_lines)
    assert (code, out) == (2, [])
    assert told.startswith(f"error: line 2 of the input: {CHOICE} tgt=... for all lines")
    assert translated("", "glossary=x.tsv")[2] == f"error: {CHOICE} tgt=...\n"
    wrong = json.dumps({"src": SRC, "tgt": 1})
    assert translated(wrong, json_lines)[2] == "error: line 1 of the input: tgt must be a text, but is 1\n"


def test_a_server_without_a_language_is_told_it_by_each_request(run: Run, found: dict[str, str]) -> None:
    with served(run) as client:
        facts = json.loads(client.get("/health")[2])
        assert (facts["tgt"], facts["languages"]) == (None, ["en", "fr"])
        for tgt, text in found.items():
            assert client.post({"text": SRC, "tgt": tgt})[2]["translations"][0]["text"] == text
        status, _, answer = client.post({"text": SRC})
        assert (status, answer["error"]) == (422, f"{CHOICE} tgt=...")
    task = served_task(run, run.cfg.decoding, None, ServingConfig())
    assert task.asked(task.body()(**task.example)).lines == ["<2fr> a"]
