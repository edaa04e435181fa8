"""The page of a server, used in a browser."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from nmt.runs.opening import open_run
from nmt.runtime_config import RuntimeConfig
from tests.runs.untrained import WORDS, untrained, untrained_classifier
from tests.serving.browser import CHROMIUM, browser
from tests.serving.served import served

HOSTILE = f"{WORDS[0]} <img src=x onerror=document.title='taken'>"


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_one_types_and_sees_translations_confidence_and_attention(tmp_path: Path) -> None:
    run = open_run(untrained(tmp_path / "mine"), runtime_cfg=RuntimeConfig(device="cpu", threads=1))
    with served(run) as client, browser() as page:
        page.call("Page.navigate", url=f"http://127.0.0.1:{client.port}/#{quote(HOSTILE)}")
        page.wait_for("document.querySelectorAll('article').length == 1")
        assert page.evaluate("document.querySelector('.source').textContent") == HOSTILE
        assert page.evaluate("document.images.length") == 0
        assert page.evaluate("document.title") == "mine: en → fr"

        page.evaluate("document.getElementById('text').select()")
        page.call("Input.insertText", text=f"{WORDS[1]} {WORDS[2]}\n{WORDS[3]}")
        page.wait_for("document.querySelectorAll('article').length == 2")
        (first, _) = run.translate([f"{WORDS[1]} {WORDS[2]}", WORDS[3]], n_best=3)
        shown = "Array.from(document.querySelectorAll('article:first-child li span'), (x) => x.textContent)"
        assert page.evaluate(shown) == [first.text, *(other.text for other in first.alternatives)]

        page.evaluate("document.querySelector('.words button').click()")
        assert "attends most to" in page.evaluate("document.querySelector('.detail').textContent")
        assert page.evaluate("document.querySelector('.source span').style.background").startswith("rgb")
        page.evaluate("document.querySelector('.words button').focus()")
        for key in ("ArrowRight", "ArrowLeft", "Escape"):
            page.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)
        assert page.evaluate("document.querySelector('.words [aria-pressed=true]')") is None
        sentences = "[{score: 1, log_prob: 1, words: ['a']}, {score: 2, log_prob: 2, words: ['b']}]"
        assert page.evaluate(f"whole({{text: 'a b', sentences: {sentences}}}).words.join(' ')") == "a b"
        assert page.problems == []


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_one_chooses_among_models_of_both_tasks(tmp_path: Path) -> None:
    cpu = RuntimeConfig(device="cpu", threads=1)
    first = open_run(untrained(tmp_path / "first"), runtime_cfg=cpu)
    labels = open_run(untrained_classifier(tmp_path / "labels"), runtime_cfg=cpu)
    other = open_run(untrained(tmp_path / "other", "seed=2"), runtime_cfg=cpu)
    shown = "document.querySelector('article li span')?.textContent"
    choose = "model.selectedIndex = {}, model.dispatchEvent(new Event('change'))"
    with served({"one": first, "labels": labels, "two": other}) as client, browser() as page:
        page.call("Page.navigate", url=f"http://127.0.0.1:{client.port}/#{quote(WORDS[5])}")
        (answer,), (of_other,) = first.translate(WORDS[5], n_best=3), other.translate(WORDS[5], n_best=3)
        page.wait_for(f"{shown} == '{answer.text}'")
        assert page.evaluate("Array.from(model.options, (x) => x.value).join()") == "one,labels,two"
        page.evaluate(choose.format(1))
        page.wait_for("document.querySelectorAll('.labels .found').length")
        assert page.evaluate("document.title") == "labels: 3 labels"
        assert page.evaluate("best.hidden && beam.hidden && legend.hidden")
        page.evaluate(choose.format(2))
        page.wait_for(f"{shown} == '{of_other.text}'")
        assert page.evaluate("document.title") == "two: en → fr"
        assert not page.evaluate("best.hidden || beam.hidden || legend.hidden || which.hidden")
        assert page.problems == []
