"""The page of a comparison: self-contained, whatever is in the data, and drawn by a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nmt.comparison.comparing import compared
from nmt.comparison.configs import CompareConfig
from nmt.comparison.page import TEMPLATE, page, page_data
from nmt.comparison.translations import entries_of
from tests.comparison.made import GOOD, SOURCES, lined, made_run, write

HOSTILE = "</script><script>document.title = 'pwned'</script><img src=x onerror=\"document.title='pwned'\">"
KEYS = 'byId("chart").dispatchEvent(new KeyboardEvent("keydown", { key: "End" }));'
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Return two runs with markup in texts, names and configs, and one with another test set."""
    hostile = [HOSTILE, *GOOD[1:]]
    texts: dict[str, Any] = {"sources": [HOSTILE, *SOURCES[1:]], "references": hostile}
    config = {"model.dropout": HOSTILE, "seed": 2}
    made = [
        made_run(tmp_path / "a", hypotheses=GOOD, **texts),
        made_run(tmp_path / "b<i>b<", hypotheses=[HOSTILE * 2, *GOOD[1:]], config=config, **texts),
        made_run(tmp_path / "c"),
    ]
    return list(map(str, made))


def written(runs: list[str]) -> str:
    cfg = CompareConfig(bootstrap_samples=100, randomisation_trials=100)
    entries = entries_of(runs, cfg.split, warn=pytest.fail)
    return page("A <b>title", compared(cfg, entries, None, log=lambda text: None))


def test_texts_are_data_and_never_markup(runs: list[str]) -> None:
    text = written(runs)
    assert text.count("<script") == TEMPLATE.read_text().count("<script") == 2
    assert "<img" not in text
    assert "<b>" not in text
    (found,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', text)
    data = json.loads(found)
    assert data["differences"]["1"][0]["source"] == HOSTILE
    assert data["runs"][2]["problem"].startswith("its references differ")


def test_a_file_of_another_system_is_beside_the_runs(runs: list[str], tmp_path: Path) -> None:
    write(tmp_path / "other.de", lined([HOSTILE, *GOOD[1:]]))
    (found,) = re.findall(r'id="data">(.*)</script>', written([*runs[:2], str(tmp_path / "other.de")]))
    data = json.loads(found)
    assert data["headline"] == "3 of 3 runs and files compared on 5 sentences of validation"
    assert [run["state"] for run in data["runs"]] == ["done", "done", ""]
    assert [cost is None for cost in data["costs"]] == [False, False, True]
    assert data["differences"]["2"]
    assert all(len(row) == 4 for row in data["config"])


def test_the_page_needs_nothing_else() -> None:
    text = TEMPLATE.read_text()
    assert "default-src 'none'" in text
    assert not re.findall(r"(?:src|href)=[\"']?(?!#)", text)
    assert "innerHTML" not in text
    assert set(re.findall(r"https?://\S+?\"", text)) == {'http://www.w3.org/2000/svg"'}


def test_numbers_that_json_lacks_are_null(runs: list[str]) -> None:
    cfg = CompareConfig(bootstrap_samples=100, randomisation_trials=0)
    found = compared(cfg, entries_of(runs, cfg.split, warn=pytest.fail), None, log=lambda text: None)
    found.losses[0] = float("nan")
    assert '"losses":[null,' in page("", found).replace(" ", "")
    assert page_data("", found)["samples"] == [100, 0]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_shows_every_section(runs: list[str], tmp_path: Path) -> None:
    file = tmp_path / "comparison.html"
    file.write_text(written(runs).replace("</body>", f"<script>{KEYS}</script></body>"), encoding="utf-8")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=120)
    dom = done.stdout
    assert "<title>A &lt;b&gt;title</title>" in dom  # hostile text has changed nothing
    sections = dict(re.findall(r'<section id="(\w+)"( hidden="")?>', dom))
    assert [name for name, hidden in sections.items() if hidden] == ["systems", "environment"]
    assert dom.count("<polyline") == 3
    assert "<mark>" in dom
    assert "not comparable" in dom
    assert dom.count('data-run="0">20 at 40</output>') == 1  # the last point, by the keyboard
