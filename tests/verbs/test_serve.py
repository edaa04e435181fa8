"""The wiring of `nmt serve`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from nmt.cli import main
from nmt.serving import server
from nmt.serving.configs import ServingConfig
from tests.runs.untrained import GPT, WORDS, untrained
from tests.serving.served import Client


def test_without_its_extra_the_command_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nmt.extras.find_spec", lambda module: None)
    assert main(["serve", f"run={untrained(tmp_path / 'run')}"]) == 2
    assert "nmt serve needs fastapi and uvicorn: pip install 'nmt[serve]'" in capsys.readouterr().err


def test_a_language_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = untrained(tmp_path / "run", "task=language_model", model=GPT)
    assert main(["serve", f"run={run}"]) == 2
    assert "is a language model and translates nothing" in capsys.readouterr().err


def test_one_command_serves_models_with_keys_of_their_own_until_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told, listening = dict[str, Any](), server.listening
    one, two = untrained(tmp_path / "one"), untrained(tmp_path / "two", "seed=2")

    def ask(client: Client) -> None:
        try:
            told["models"] = json.loads(client.get("/models")[2])["models"]
            told["answers"] = [client.post({"text": WORDS[0], "model": m})[2] for m in ("plain", "both")]
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    @contextmanager
    def asked(cfg: ServingConfig) -> Iterator[socket.socket]:
        with listening(cfg) as listener:
            thread = threading.Thread(target=ask, args=[Client(listener.getsockname()[1])])
            thread.start()
            try:
                yield listener
            finally:
                thread.join()

    monkeypatch.setattr(server, "listening", asked)
    fast = f"{{run: {one}, decoding.beam_size: 1, decoding.n_best: 1}}"
    models = f"models={{fast: {fast}, plain: {one}, both: [{one},{two}]}}"
    code = main(["serve", models, "serve.port=0", "decoding.n_best=2", "runtime.device=cpu"])
    out, err = capfd.readouterr()
    assert (code, err.splitlines()[-1]) == (143, "stopped by SIGTERM; requests answered: 2")
    assert out.startswith("serving     fast, plain, both at http://127.0.0.1")
    found = [(one["model"], one["beam_size"], one["n_best"], one["attention"]) for one in told["models"]]
    assert found == [("fast", 1, 1, True), ("plain", 5, 2, True), ("both", 5, 2, False)]
    assert [len(answer["translations"][0]["alternatives"]) for answer in told["answers"]] == [1, 1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    untrained(folder / "a")
    untrained(folder / "lm", "task=language_model", model=GPT)
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "models={x: a}|run=a",
            "run and models exclude each other; name the run in models={A: RUN, B: RUN}, too",
        ),
        ("models=a", "'models=a': write all models at once: models={A: RUN, B: RUN}"),
        ("models={x: a}|models.y=a", "'models.y=a': write all models at once: models={A: RUN, B: RUN}"),
        (
            "models={1.0: a, 1.0: lm}",
            "'models={1.0: a, 1.0: lm}': two entries have one name: 1.0; give each its own",
        ),
        (
            "models={x: choice(a,lm)}",
            "'models={x: choice(a,lm)}': no part of a value can be several; sweep whole values: models=A,B",
        ),
        ("models={x@y: a}", "models.x@y: the name of a model has letters, digits and . _ + - alone"),
        ("models={x: {tgt: fr}}", "models.x has no run; write models={x: {run: RUN, ...}}"),
        (
            "models={x: {run: a, serve: {port: 1}}}",
            "models.x: all models share serve.port; set serve.port=... beside models={...}",
        ),
        (
            "models={x: {run: a, runtime.device: cpu}}",
            "models.x: all models share runtime.device; set runtime.device=... beside models={...}",
        ),
        (
            "models={x: a, y: {run: a, decoding.beam_sise: 2}}",
            "models.y: unknown key decoding.beam_sise; did you mean decoding.beam_size?",
        ),
        ("models={x: a, y: a}|decoding.beam_size=0", "decoding.beam_size must be at least 1, but is 0"),
        (
            "models={x: a, y: lm}",
            "models.y: lm is a language model and translates nothing; nmt generate run=lm continues a text",
        ),
        ("-m|models={x: a}", "nmt serve models=... is one command, and not swept; leave out -m"),
    ],
)
def test_models_that_cannot_be_served_are_named(
    arguments: str,
    message: str,
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(runs)
    assert main(["serve", *arguments.split("|")]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_models_are_shown_under_their_names_with_choices_before_keys_of_all(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    models = "models={1.10: {run: a, decoding: greedy}, true: a}"
    of_all = ["decoding.beam_size=8", "decoding.max_length_offset=3"]
    assert main(["serve", models, *of_all, "--cfg", "job"]) == 0
    shown = capsys.readouterr().out
    assert re.findall("^---.*", shown, re.MULTILINE) == ["--- # models.1.10", "--- # models.true"]
    searches = [one["decoding"] for one in yaml.safe_load_all(shown)]
    assert [(one["beam_size"], one["max_length_offset"]) for one in searches] == [(1, 3), (8, 3)]
