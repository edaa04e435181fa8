"""The endpoints of a server, asked over HTTP."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import random
import re
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nmt.decoding.configs import MBRConfig
from nmt.errors import UserError
from nmt.runs.opened import Run
from nmt.runs.opening import ensemble_of, open_run
from nmt.runtime_config import RuntimeConfig
from nmt.serving import answers as answers_module
from nmt.serving import app, translation
from nmt.serving.answers import Question, answers, num_tokens
from nmt.serving.configs import ServingConfig
from nmt.serving.tasks import served_task
from nmt.translation.requests import Request
from nmt.verbs.translate import with_previous_lines
from tests.runs.untrained import RNN, WORDS, untrained, untrained_classifier
from tests.serving.served import Client, served

CPU = RuntimeConfig(device="cpu", threads=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(untrained(tmp_path_factory.mktemp("runs") / "mine"), runtime_cfg=CPU)


@pytest.fixture(scope="module")
def client(run: Run) -> Any:
    with served(run, max_lines=50, max_chars=400, max_body_bytes=20_000, max_beam_size=6) as client:
        yield client


def test_answers_are_those_of_translate_however_the_lines_are_sent(client: Client, run: Run) -> None:
    rng = random.Random(1)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(0, 6))) for _ in range(120)]
    expected = [one.text for one in run.translate(lines)]
    cuts = sorted(rng.sample(range(1, len(lines)), 30))
    parts = list(zip([0, *cuts], [*cuts, len(lines)], strict=True))

    def ask(part: tuple[int, int]) -> list[str]:
        status, _, answer = client.post({"text": lines[slice(*part)], "scores": part[0] % 2 == 0})
        assert status == 200
        return [one["text"] for one in answer["translations"]]

    with ThreadPoolExecutor(8) as threads:
        found = [text for texts in threads.map(ask, parts) for text in texts]
    assert found == expected


def test_options_are_those_of_the_search(client: Client, run: Run) -> None:
    _, _, answer = client.post({"text": WORDS[0], "beam_size": 4, "n_best": 3, "attention": True})
    (wanted,) = run.translate(WORDS[0], beam_size=4, n_best=3)
    (found,) = answer["translations"]
    assert [x["text"] for x in found["alternatives"]] == [x.text for x in wanted.alternatives]
    assert found["attention"]["src_words"] == WORDS[0].split()
    assert (answer["model"], answer["seconds"] > 0) == ("mine", True)


def test_wishes_reach_the_search(client: Client, run: Run) -> None:
    terms = {WORDS[0].split()[0]: "ef"}
    wishes = {"prefix": "ab", "must": ["cd"], "avoid": ["a"], "terms": terms}
    _, _, answer = client.post({"text": [WORDS[0], WORDS[1]], **wishes})
    wanted = run.translate([Request(line, "ab", ["cd"], ["a"], terms=terms) for line in WORDS[:2]])
    found = [(one["text"], one["unmet"]) for one in answer["translations"]]
    assert found == [(one.text, one.unmet) for one in wanted]
    assert all(text.startswith("ab") for text, _ in found)
    status, _, answer = client.post({"text": WORDS[0], "must": ["cd"], "beam_size": 1})
    assert (status, "beam_size" in answer["error"]) == (422, True)


def test_what_is_unmet_is_told_to_the_client_alone(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    _, _, answer = client.post({"text": ["ab", "ba"], "must": ["Q"]})
    assert [one["unmet"] for one in answer["translations"]] == [["Q"], ["Q"]]
    assert capfd.readouterr().err == ""


def test_a_line_that_asks_for_too_much_has_the_number_of_the_request(
    client: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.cfg.decoding, "max_source_tokens", 20)
    wishes = {"terms": {"gh": "ab" * 30}, "split": True}
    status, _, answer = client.post({"text": ["Ab ba. Cd dc.", "gh"], **wishes})
    assert status == 422
    assert re.fullmatch(r"text\[1\]: prefix and must have \d+ tokens, .* at most 20 .*", answer["error"])


def test_wishes_of_more_characters_than_the_server_allows_are_refused(run: Run) -> None:
    with served(run, max_wish_chars=7) as client:
        kept = client.post({"text": "ab", "prefix": "abc", "must": ["cd"], "avoid": ["dc"]})
        refused = client.post({"text": "ab", "prefix": "abc", "must": ["cd"], "avoid": ["dcc"]})
    assert kept[0] == 200
    assert (refused[0], refused[2]["error"].partition(";")[0]) == (
        413, "prefix, must, avoid and terms have 8 characters, but at most 7 are allowed"
    )  # fmt: skip


def test_phrases_of_many_lines_are_refused_before_they_fill_the_memory(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers_module, "MOST_WISHED", 150)
    for lines, status in ((1, 200), (2, 413)):
        assert client.post({"text": ["ab"] * lines, "must": ["cd"]})[0] == status
    status, _, answer = client.post({"text": "ab", "avoid": ["abcd" * 25]})
    assert (status, "have too many phrases for so many lines" in answer["error"]) == (413, True)


def test_a_server_that_allows_fewer_beams_than_its_own_does_not_start(run: Run) -> None:
    told = "decoding.beam_size=5 is more than serve.max_beam_size=4; set either"
    with pytest.raises(UserError, match=told):
        served_task(run, run.cfg.decoding, None, ServingConfig(max_beam_size=4))


def test_a_search_without_a_beam_tells_of_none(run: Run) -> None:
    task = served_task(run, MBRConfig(num_samples=2), None, ServingConfig())
    assert task.facts()["beam_size"] is None


def test_sentences_of_a_line_are_joined_and_lines_of_a_document_need_context(
    client: Client, run: Run
) -> None:
    line = "Ab ba. Cd dc."
    _, _, answer = client.post({"text": [line, "ab"], "split": True, "scores": True})
    found, other = answer["translations"]
    assert [found["text"], other["text"]] == [one.text for one in run.translate([line, "ab"])]
    assert len(found["sentences"]) == 2
    status, _, answer = client.post({"text": ["ab", "ba"], "document": True})
    assert (status, answer["error"]) == (
        422, "document: the model was trained without context; leave it out"
    )  # fmt: skip


def test_lines_of_a_document_have_the_context_that_translate_gives_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.cfg.data, "context", 2)
    lines = ["ab", "ba", "", "cd", "  ", "dc", "ab", "ba", "cd"]
    task = served_task(run, run.cfg.decoding, None, ServingConfig())
    asked = task.asked(task.body()(text=lines, document=True))
    given = map(Request.from_json, with_previous_lines(lines, 2, False), map(str, lines))
    wanted = [Request.of(one).src for one in run.asking_for(None, list(given))]
    assert asked.lines == wanted
    assert wanted[-1] == "ab <brk> ba <brk> cd"
    search = replace(run.cfg.decoding, max_source_tokens=4)  # what the sentence has without context
    assert num_tokens(run, wanted[-1:], Question(search), [0]) == [4]


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"\xff", 400, "the body is not JSON"),
        (b"[" * 15_000, 400, "the body is not JSON"),
        ([1], 422, "the body: Input should be"),
        ({}, 422, "text: Field required"),
        ({"text": [3]}, 422, "text[0]: Input should be a valid string"),
        ({"text": "a", "colour": 1}, 422, "colour: Extra inputs are not permitted"),
        ({"text": "a", "scores": "yes"}, 422, "scores: Input should be a valid boolean"),
        ({"text": "a\nb"}, 422, "text[0] has a line feed; send a list of lines"),
        (b'{"text": ["a", "\\ud800"]}', 422, "text[1] has half of a surrogate pair"),
        ({"text": "a", "beam_size": 7}, 422, "beam_size must be from 1 to 6, but is 7"),
        ({"text": "a", "n_best": 0}, 422, "n_best must be from 1 to 6, but is 0"),
        ({"text": "a", "n_best": 6}, 422, "n_best must not exceed beam_size, but 6 > 5; try beam_size=6"),
        ({"text": "a", "tgt": "xx"}, 422, "tgt=xx: the run translates into"),
        (b'{"text": "a", "tgt": "\\ud800"}', 422, "tgt=\\ud800: the run translates into"),
        ({"text": ["a"] * 51}, 413, "text has 51 lines, but at most 50 are allowed"),
        ({"text": "a" * 401}, 413, "text[0] has 401 characters, but at most 400 are allowed"),
        ({"text": "a", "must": ["b", " "]}, 422, "must: one of the words or phrases is blank"),
        (b'{"text": "a", "prefix": "\\ud800"}', 422, "has half of a surrogate pair, which is no character"),
        ({"text": "a", "avoid": ["b" * 1001]}, 413, "have 1,001 characters, but at most 1,000 are allowed"),
        ({"text": "a" * 20_001}, 413, "the body has more than 20,000 bytes; send it in parts"),
    ],
)
def test_a_wrong_request_is_told_why(client: Client, content: Any, status: int, words: str) -> None:
    found, _, answer = client.post(content)
    assert (found, [*answer]) == (status, ["error"])
    assert words in answer["error"]


def test_as_much_as_is_allowed_is_no_error() -> None:
    app.require_lines(["abc"] * 2, ServingConfig(max_lines=2, max_chars=3))


def test_what_goes_wrong_inside_is_an_error_like_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client learns that the server has failed, the log why, and /metrics counts it."""
    said = io.StringIO()
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(said)])

    def broken(run: Run, lines: Sequence[str], questions: Sequence[Question]) -> list[dict[str, Any]]:
        raise RuntimeError("a fault of the model")

    monkeypatch.setattr(translation, "answers", broken)
    with served(run) as client:
        status, headers, answer = client.post({"text": "ab"})
        assert (status, headers["content-type"]) == (500, "application/json")
        assert answer == {"error": "the server has failed at this request; its log says why"}
        assert headers["cache-control"] == "no-store"
        client.post({"text": "ab"}, Host="rebound.example")
        codes = re.findall(r'nmt_requests_total{code="(\d+)"} (\d+)', client.get("/metrics")[2])
        assert codes == [("403", "1"), ("500", "1")]
    assert "a fault of the model" in said.getvalue()


def test_other_sites_and_wrong_paths_are_refused(client: Client) -> None:
    status, _, answer = client.post({"text": "a"}, **{"Content-Type": "text/plain"})
    assert (status, answer["error"]) == (415, "Content-Type must be application/json, but is text/plain")
    assert client.post({}, path="/nowhere")[0] == 404
    assert client.get("/translate")[0] == 405
    assert client.get("/docs")[0] == client.get("/redoc")[0] == 404


def test_health_metrics_and_description(client: Client) -> None:
    client.post({"text": WORDS[:5]})
    assert '"status":"ready"' in client.get("/health")[2]
    assert '"attention":true' in client.get("/health")[2]
    status, _, body = client.head("/health")
    assert (status, body) == (200, "")
    metrics = client.get("/metrics")[2]
    assert 'nmt_requests_total{code="200"}' in metrics
    assert "nmt_queue_requests 0" in metrics
    assert '"TranslationRequest"' in client.get("/openapi.json")[2]


def test_no_answer_is_kept_or_taken_for_another_kind(client: Client) -> None:
    answers = [client.get(path) for path in ("/", "/health", "/models", "/metrics", "/openapi.json", "/none")]
    for _, headers, _ in (*answers, client.post({"text": ""}), client.post({"text": 3})):
        kept = [headers[key] for key in ("x-content-type-options", "referrer-policy", "cache-control")]
        assert kept == ["nosniff", "no-referrer", "no-store"]


def test_the_page_runs_no_script_but_its_own(client: Client) -> None:
    status, headers, page = client.get("/")
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in page.replace("http-equiv", "")
    assert "innerHTML" not in page


def test_a_token_is_asked_for(run: Run) -> None:
    with served(run, token="secret", host="0.0.0.0") as client:
        status, headers, answer = client.post({"text": "a"})
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert answer == {"error": "the header Authorization must be: Bearer TOKEN"}
        assert client.post({"text": "a"}, Authorization="Bearer secreT")[0] == 401
        assert client.post({"text": "a"}, Authorization="Bearer secret")[0] == 200
        assert client.get("/metrics")[0] == client.get("/openapi.json")[0] == 401
        assert client.get("/openapi.json", Authorization="Bearer secret")[0] == 200
        assert client.get("/health")[0] == client.get("/")[0] == 200
        assert client.get("/health", Host="nmt.example")[0] == 200  # it is there for others


def test_a_server_for_this_machine_has_no_other_name(run: Run) -> None:
    with served(run) as client:
        status, _, answer = client.post({"text": "a"}, Host="rebound.example:8000")
        assert (status, answer["error"][:37]) == (403, "this server is for 127.0.0.1 alone, n")
        assert "serve.host" in answer["error"]
        for path in ("/", "/health", "/metrics", "/openapi.json"):
            assert client.get(path, Host="rebound.example")[0] == 403
        assert client.get("/health", Host="a{b.rebound.example")[0] == 403  # what Starlette takes for none
        assert client.post({"text": "a"}, Host="LOCALHOST:1")[0] == 200
        assert client.get("/health", Host="[::1]:1")[0] == 200


def test_nobody_waits_while_a_long_text_is_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    others_are_answered = threading.Event()

    def slow(*asked: Any) -> list[int]:
        assert others_are_answered.wait(10)
        return num_tokens(*asked)

    monkeypatch.setattr(app, "num_tokens", slow)
    with served(run) as client, ThreadPoolExecutor(1) as thread:
        late = thread.submit(client.post, {"text": "ab"})
        time.sleep(0.2)
        assert client.get("/health")[0] == 200
        others_are_answered.set()
        assert late.result()[0] == 200


def test_a_full_server_reads_nothing_and_the_time_for_reading_counts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, begun = threading.Event(), threading.Semaphore(0)

    def slow(*asked: Any) -> list[int]:
        begun.release()
        assert may_go_on.wait(10)
        return num_tokens(*asked)

    monkeypatch.setattr(app, "num_tokens", slow)
    with served(run, queue_requests=1, timeout_seconds=0.5) as client, ThreadPoolExecutor(1) as thread:
        late = thread.submit(client.post, {"text": "ab"})
        assert begun.acquire(timeout=10)
        status, _, answer = client.post({"text": "ab"})
        assert (status, answer["error"][:54]) == (
            503,
            "the server is busy: 1 requests with 0 tokens wait; try",
        )
        assert late.result()[0] == 504
        assert not begun.acquire(blocking=False)
        may_go_on.set()
        assert client.post({"text": "ab"})[0] == 200


def test_overload_timeouts_and_clients_that_leave(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, begun = threading.Event(), threading.Semaphore(0)

    def slow(run: Run, lines: Sequence[str], questions: Sequence[Question]) -> list[dict[str, Any]]:
        begun.release()
        assert may_go_on.wait(10)
        return answers(run, lines, questions)

    monkeypatch.setattr(translation, "answers", slow)
    with served(run, timeout_seconds=0.2) as client:
        status, _, answer = client.post({"text": "ab"})
        assert (status, answer["error"][:42]) == (504, "there was no answer within 0.2 seconds; se")
        may_go_on.set()
    may_go_on.clear()
    while begun.acquire(blocking=False):
        pass
    with served(run, queue_requests=1, queue_tokens=20) as client:
        status, _, answer = client.post({"text": ["abcdefghabcdefgh"] * 3})
        assert (status, "at most 20 may wait" in answer["error"]) == (413, True)
        with socket.create_connection(("127.0.0.1", client.port)) as leaving:
            head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            leaving.sendall(head + b'Content-Length: 13\r\n\r\n{"text": "a"}')
            assert begun.acquire(timeout=10)
            status, headers, answer = client.post({"text": "ab"})
            assert (status, int(headers["retry-after"]) >= 1) == (503, True)
            assert "the server is busy: 1 requests" in answer["error"]
        limit = time.monotonic() + 10
        while 'code="499"} 1' not in client.get("/metrics")[2]:
            assert time.monotonic() < limit
        may_go_on.set()
        assert client.post({"text": "ab"})[0] == 200  # the queue has its place again


def test_a_body_that_does_not_come_is_not_waited_for(run: Run) -> None:
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with (
        served(run, timeout_seconds=0.2) as client,
        socket.create_connection(("127.0.0.1", client.port)) as slow,
    ):
        slow.sendall(head + b"Content-Length: 99\r\n\r\n{")
        assert b"408" in slow.recv(100)


@pytest.mark.parametrize("is_ensemble", [False, True])
def test_a_model_without_attention_says_so(tmp_path: Path, run: Run, is_ensemble: bool) -> None:
    plain = open_run(untrained(tmp_path / "plain", model=("model=rnn_plain", *RNN[1:])), runtime_cfg=CPU)
    with served(ensemble_of([run, run]) if is_ensemble else plain) as client:
        assert client.post({"text": "ab", "scores": True})[0] == 200
        assert '"attention":false' in client.get("/health")[2]
        status, _, answer = client.post({"text": "ab", "attention": True})
        assert (status, answer["error"][:40]) == (422, "attention: the model attends to no sourc")


def test_answers_wait_for_no_event_loop(client: Client) -> None:
    async def several() -> list[int]:
        asked = [asyncio.to_thread(client.post, {"text": [WORDS[i]] * 10}) for i in range(6)]
        healthy = asyncio.to_thread(client.get, "/health")
        return [answer[0] for answer in await asyncio.gather(*asked, healthy)]

    assert asyncio.run(several()) == [200] * 7


def test_requests_choose_among_models_of_both_tasks(run: Run, tmp_path: Path) -> None:
    labels = open_run(untrained_classifier(tmp_path / "labels"), runtime_cfg=CPU)
    other = open_run(untrained(tmp_path / "other", "seed=2"), runtime_cfg=CPU)
    lines = WORDS[:9]
    with served({"labels": labels, "small": run, "large": ensemble_of([run, other])}) as client:
        for name, asked in (("small", {}), ("small", {"model": "small"}), ("large", {"model": "large"})):
            _, _, answer = client.post({"text": lines, **asked})
            expected = run if name == "small" else ensemble_of([run, other])
            found = [one["text"] for one in answer["translations"]]
            assert (answer["model"], found) == (name, [one.text for one in expected.translate(lines)])
        _, _, answer = client.post({"text": "ab"}, path="/classify")
        assert (answer["model"], len(answer["predictions"])) == ("labels", 1)
        refused = [client.post({"text": "ab", "model": name}) for name in ("labels", "lagre")]
        assert [(status, answer["error"]) for status, _, answer in refused] == [
            (404, "labels classifies texts: POST /classify"),
            (422, "model: there is no 'lagre'; the models are labels, small, large; did you mean 'large'?"),
        ]
        assert client.post({"text": "ab", "model": "large", "n_best": 0})[0] == 422
        told = json.loads(client.get("/models")[2])["models"]
        assert [(one["model"], one["task"], one["path"]) for one in told] == [
            ("labels", "classification", "/classify"),
            ("small", "translation", "/translate"),
            ("large", "translation", "/translate"),
        ]
        assert [one.get("attention") for one in told] == [None, True, False]
        assert json.loads(client.get("/health")[2])["model"] == "labels"
        assert {*json.loads(client.get("/openapi.json")[2])["paths"]} > {"/translate", "/classify", "/models"}
        metrics = client.get("/metrics")[2]
        counts = re.findall(r"nmt_requests_total{(\S+)} (\d+)", metrics)
        assert counts == [
            ('code="404"', "1"),
            ('code="422"', "1"),
            ('model="labels",code="200"', "1"),
            ('model="small",code="200"', "2"),
            ('model="large",code="200"', "1"),
            ('model="large",code="422"', "1"),
        ]
        assert 'nmt_sentences_total{model="small"} 18' in metrics


def test_a_model_alone_can_be_asked_for_by_its_name(client: Client) -> None:
    assert client.post({"text": "a", "model": "mine"})[0] == 200
    status, _, answer = client.post({"text": "a", "model": ""})
    assert (status, answer["error"]) == (422, "model: there is no ''; the models are mine")
