"""A classifier behind HTTP: its endpoint, what is refused, and its page."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from nmt.cli import main
from nmt.runs.opened import Run
from nmt.runs.opening import ensemble_of, open_run
from nmt.runtime_config import RuntimeConfig
from nmt.serving.configs import ServingConfig
from nmt.serving.tasks import served_task
from tests.runs.untrained import LABELS, WORDS, untrained, untrained_classifier
from tests.serving.browser import CHROMIUM, browser
from tests.serving.served import Client, served

CPU = RuntimeConfig(device="cpu", threads=1)
CLASSIFY = "/classify"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(untrained_classifier(tmp_path_factory.mktemp("runs") / "mine"), runtime_cfg=CPU)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("runs") / "pairs"
    return open_run(untrained_classifier(path, is_of_pairs=True), runtime_cfg=CPU)


@pytest.fixture(scope="module")
def client(run: Run) -> Any:
    with served(run, max_lines=50, max_chars=400) as client:
        yield client


def test_answers_are_those_of_classify_however_the_lines_are_sent(client: Client, run: Run) -> None:
    rng = random.Random(1)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(0, 9))) for _ in range(90)]
    cuts = sorted(rng.sample(range(1, len(lines)), 20))
    parts = list(zip([0, *cuts], [*cuts, len(lines)], strict=True))

    def ask(part: tuple[int, int]) -> list[dict[str, Any]]:
        status, _, answer = client.post({"text": lines[slice(*part)]}, path=CLASSIFY)
        assert (status, answer["model"], answer["seconds"] > 0) == (200, "mine", True)
        return list(answer["predictions"])

    with ThreadPoolExecutor(8) as threads:
        found = [one for several in threads.map(ask, parts) for one in several]
    assert len(found) == len(lines)
    for one, (label, probabilities) in zip(found, run.classify(lines), strict=True):
        assert one["label"] == label
        assert one["probabilities"] == pytest.approx(probabilities, abs=1e-5)
        assert sum(one["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)
    _, _, answer = client.post({"text": []}, path=CLASSIFY)
    assert answer["predictions"] == []


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"{", 400, "the body is not JSON"),
        ({"text": "a", "beam_size": 2}, 422, "beam_size: Extra inputs are not permitted"),
        ({"text": ["a", "a\tb"]}, 422, "text[1] has a TAB, but the run classifies one text, without a TAB"),
        ({"text": "a\nb"}, 422, "text[0] has a line feed"),
        ({"text": ["a"] * 51}, 413, "text has 51 lines, but at most 50 are allowed"),
        ({"text": "a" * 401}, 413, "text[0] has 401 characters, but at most 400 are allowed"),
    ],
)
def test_a_wrong_request_is_told_why(client: Client, content: Any, status: int, words: str) -> None:
    found, _, answer = client.post(content, path=CLASSIFY)
    assert (found, [*answer]) == (status, ["error"])
    assert words in answer["error"]


def test_a_text_that_is_too_long_is_refused_and_not_cut(run: Run) -> None:
    cfg = replace(run.cfg, decoding=replace(run.cfg.decoding, max_source_tokens=8))
    with served(replace(run, cfg=cfg)) as client:
        assert client.post({"text": "ab"}, path=CLASSIFY)[0] == 200
        status, _, answer = client.post({"text": ["ab", "abcdefgh"]}, path=CLASSIFY)
        assert (status, answer["error"]) == (
            422,
            "text[1] has more than the 8 tokens that are read; split it",
        )


def test_the_endpoint_of_another_task_points_to_that_of_the_run(client: Client, tmp_path: Path) -> None:
    status, _, answer = client.post({"text": "a"})
    assert (status, answer["error"]) == (404, "mine classifies texts: POST /classify")
    assert client.get(CLASSIFY)[0] == 405
    translator = open_run(untrained(tmp_path / "other"), runtime_cfg=CPU)
    with served(translator) as other:
        status, _, answer = other.post({"text": "a"}, path=CLASSIFY)
        assert (status, answer["error"]) == (404, "other translates: POST /translate")


def test_health_counts_and_description(client: Client) -> None:
    client.post({"text": WORDS[:5]}, path=CLASSIFY)
    told = json.loads(client.get("/health")[2])
    assert (told["status"], told["task"], told["labels"]) == ("ready", "classification", sorted(LABELS))
    assert not told["pairs"]
    assert 'nmt_requests_total{code="200"}' in client.get("/metrics")[2]
    described = json.loads(client.get("/openapi.json")[2])["paths"]
    assert "/translate" not in described
    schema = described[CLASSIFY]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert (schema["title"], [*schema["properties"]]) == ("ClassificationRequest", ["text", "model"])


def test_two_texts_are_one_line(pairs: Run) -> None:
    lines = ["ab\tba", "cd\t", "\t"]
    with served(pairs) as client:
        _, _, answer = client.post({"text": lines}, path=CLASSIFY)
        assert [one["label"] for one in answer["predictions"]] == [one for one, _ in pairs.classify(lines)]
        assert '"pairs":true' in client.get("/health")[2]
        status, _, answer = client.post({"text": "a"}, path=CLASSIFY)
        assert (status, answer["error"]) == (
            422, "text[0] has no TAB, but the run classifies two texts with one TAB between"
        )  # fmt: skip


def test_an_ensemble_is_served(run: Run, tmp_path: Path) -> None:
    other = open_run(untrained_classifier(tmp_path / "other", "seed=2"), runtime_cfg=CPU)
    both = ensemble_of([run, other])
    with served(both) as client:
        _, _, answer = client.post({"text": WORDS[0]}, path=CLASSIFY)
        ((_, probabilities),) = both.classify(WORDS[0])
        assert answer["predictions"][0]["probabilities"] == pytest.approx(probabilities, abs=1e-5)


def test_a_language_is_no_setting_of_a_classifier(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", f"run={run.path}", "tgt=de", "runtime.device=cpu"]) == 2
    told = capsys.readouterr().err
    assert f"tgt=de: {run.path} classifies texts, into no language; leave tgt out" in told


@pytest.mark.parametrize("name", ["run", "pairs"])
def test_the_first_line_of_a_server_can_be_answered(name: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(name)
    task = served_task(run, run.cfg.decoding, None, ServingConfig())
    asked = task.asked(task.body()(**task.example))
    assert [one["label"] in LABELS for one in task.answers(asked.lines, [asked.question])] == [True]


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_one_types_and_sees_a_bar_for_each_label(run: Run, pairs: Run) -> None:
    cells = "Array.from(document.querySelectorAll('{}'), (x) => x.textContent)"
    with served(run) as client, browser() as page:
        page.call("Page.navigate", url=f"http://127.0.0.1:{client.port}/#{quote(WORDS[0])}")
        page.wait_for("document.querySelectorAll('article').length == 1")
        ((label, probabilities),) = run.classify(WORDS[0])
        assert page.evaluate(cells.format(".labels .found")) == [label]
        shown = page.evaluate(cells.format(".labels dt"))
        assert shown == sorted(probabilities, key=lambda name: -probabilities[name])
        values = page.evaluate(cells.format(".labels dd:not(.bar)"))
        assert values == [f"{probabilities[name]:.3f}" for name in shown]
        width = float(page.evaluate("document.querySelector('.bar').style.width").removesuffix("%"))
        assert width == pytest.approx(100 * probabilities[label], abs=0.01)
        assert page.evaluate("document.title") == "mine: 3 labels"
        assert page.evaluate(
            "document.getElementById('pair').hidden && document.getElementById('best').hidden"
        )
        assert page.evaluate("document.querySelectorAll('article b').length") == 0
        assert page.problems == []
    with served(pairs) as client, browser() as page:
        page.call("Page.navigate", url=f"http://127.0.0.1:{client.port}/#{quote('ab	ba')}")
        page.wait_for("document.querySelectorAll('article').length == 1")
        assert page.evaluate("document.querySelector('.source').textContent") == "ab | ba"
        page.evaluate("document.getElementById('second').select()")
        page.call("Input.insertText", text="cd\nef")
        page.wait_for("document.querySelectorAll('article').length == 2")
        assert page.evaluate(cells.format(".source")) == ["ab | cd", " | ef"]
        found = [label for label, _ in pairs.classify(["ab\tcd", "\tef"])]
        assert page.evaluate(cells.format(".labels .found")) == found
        assert page.problems == []
