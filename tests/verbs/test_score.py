"""`nmt score`: what a line of output is, which lines are refused, and that files give what a stream gives."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nmt.cli import main
from nmt.decoding.configs import BeamConfig
from nmt.errors import UserError
from nmt.metrics.confidence import correlations
from nmt.metrics.scoring import sentence_chrf
from nmt.runs.opening import open_run
from nmt.runtime_config import RuntimeConfig
from nmt.translation.translate import LINES_AT_ONCE
from nmt.verbs import file_parts
from nmt.verbs.configs import ScoreConfig
from nmt.verbs.file_job import answer, answer_file
from nmt.verbs.score import SCORES
from tests.runs.untrained import GPT, WORDS, untrained

CPU = RuntimeConfig(device="cpu", threads=1)
PAIRS = [("ab ba", "cd dc"), ("ab ba", ""), ("h", "h g"), ("", "a"), ("a b c", "c b a a b c h")]
SEARCH = BeamConfig(beam_size=2, max_length_offset=3, max_length_ratio=1.0)
NUM_BLOCKS = 8


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("runs") / "untrained", "decoding.beam_size=2")


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "lm"
    return untrained(path, "task=language_model", model=GPT)


Capture = pytest.CaptureFixture[bytes]


def scored(
    run: Path,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: Capture,
    *keys: str,
) -> list[str]:
    """Return the lines that `nmt score` writes for `text` on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    capfdbinary.readouterr()
    assert main(["score", f"run={run}", "runtime.device=cpu", *keys]) == 0
    out = capfdbinary.readouterr().out.decode()
    assert out.endswith("\n")
    return out[:-1].split("\n")


def test_lines_in_are_lines_out(run: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Capture) -> None:
    """Sums, means and pieces of the same pairs; a pair without a source scores -inf."""
    text = "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS)
    expected = open_run(run, runtime_cfg=CPU).score(PAIRS)
    sums = scored(run, text, monkeypatch, capfdbinary)
    assert sums == [f"{one.log_prob:.4f}" for one in expected]
    assert sums[3] == "-inf"
    means = scored(run, text, monkeypatch, capfdbinary, "normalise=true")
    assert means == [f"{one.per_token:.4f}" for one in expected]
    assert means[1] == sums[1] != means[0]
    rows = [line.split("\t") for line in scored(run, text, monkeypatch, capfdbinary, "per_token=true")]
    assert [row[0] for row in rows] == sums
    pieces, log_probs = [row[1].split(" ") for row in rows], [row[2].split(" ") for row in rows]
    assert "".join(pieces[0]) == "▁cd▁dc</s>"
    assert (pieces[1], pieces[3], log_probs[3]) == (["</s>"], [""], [""])
    assert [len(row) for row in pieces] == [len(row) for row in log_probs]
    assert sum(map(float, log_probs[0])) == pytest.approx(float(sums[0]), abs=1e-3)


def test_a_language_model_scores_lines(
    language_model: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Capture
) -> None:
    expected = open_run(language_model, runtime_cfg=CPU).score([("", "ab ba"), ("", "")])
    found = scored(language_model, "ab ba\n\n", monkeypatch, capfdbinary)
    assert found == [f"{one.log_prob:.4f}" for one in expected]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ab", "line 3 of the input has no TAB; a line is SOURCE TAB TARGET"),
        ("", "line 3 of the input has no TAB; a line is SOURCE TAB TARGET"),
        ("a\tb\tc", "line 3 of the input has 2 TABs; a line is SOURCE TAB TARGET"),
        ("a\t" + "b" * (1 << 20), "line 3 of the input has more than 1,048,576 characters; remove it"),
    ],
)
def test_lines_that_are_no_pair(run: Path, line: str, message: str, tmp_path: Path) -> None:
    answers = SCORES.open_answers(config(run, tmp_path))
    with pytest.raises(UserError) as caught:
        list(answers(["a\tb", line], 1, print))
    assert str(caught.value) == message


def test_a_line_with_a_tab_is_no_text(language_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        list(SCORES.open_answers(config(language_model, tmp_path))(["a", "a\tb"], 0, print))
    assert str(caught.value) == "line 2 of the input has a TAB, but a line is a text for a language model"


def test_a_line_of_a_file_that_is_no_pair_is_told_before_any_is_scored(run: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a\tb\n" * LINES_AT_ONCE + "a\n")
    with pytest.raises(UserError, match=f"^line {LINES_AT_ONCE + 1} of the input has no TAB; a line is"):
        answer_file(config(run, tmp_path), SCORES)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def config(run: Path, folder: Path, **fields: object) -> ScoreConfig:
    files = {"input": str(folder / "in"), "output": str(folder / "out"), "workers": 1}
    return ScoreConfig(run=str(run), **({"runtime": CPU, "decoding": SEARCH} | files | fields))  # type: ignore[arg-type]


@pytest.mark.slow
def test_two_workers_give_what_a_stream_gives(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: Capture,
) -> None:
    text = "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS) * 3
    (tmp_path / "in").write_text(text)
    monkeypatch.setattr(file_parts, "LINES_AT_ONCE", 4)
    expected = scored(run, text, monkeypatch, capfdbinary, "per_token=true")
    answer(config(run, tmp_path, workers=2, per_token=True), SCORES)
    shown = capfdbinary.readouterr()
    assert (tmp_path / "out").read_text().split("\n") == [*expected, ""]
    assert shown.out == f"written     {tmp_path}/out\n".encode()
    assert b"warning: line 4: without a source, scored -inf, because the source is blank\n" in shown.err


@pytest.mark.slow  # the same code as that of translations: test_file_job.py
@pytest.mark.fault(5, 18, 23)
def test_a_killed_job_goes_on_and_ends_with_the_same_bytes(run: Path, tmp_path: Path) -> None:
    """A kill -9, then the same command with other settings, which is refused, then the same command."""
    text = "".join(f"{'abcdefgh'[i % 8]}b\tba {'h' * (i % 5)}\n" for i in range(LINES_AT_ONCE))
    (tmp_path / "in").write_text(text * NUM_BLOCKS)
    files = [f"input={tmp_path}/in", f"output={tmp_path}/out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nmt", "score", f"run={run}", *files, "workers=1", "runtime.device=cpu"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while not (kept := sorted(tmp_path.glob("out.parts/block_*"))):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.communicate(timeout=60)  # the worker has its stderr, so this waits until that has ended, too
    assert not (tmp_path / "out").exists()
    stamps = {part: part.stat().st_mtime_ns for part in kept}

    with pytest.raises(UserError, match=r"belongs to another job:\n  normalise: False -> True\n"):
        answer_file(config(run, tmp_path, normalise=True), SCORES)
    assert {part: part.stat().st_mtime_ns for part in kept} == stamps
    answer_file(config(run, tmp_path), SCORES)
    lines = (tmp_path / "out").read_text().split("\n")
    answers = SCORES.open_answers(config(run, tmp_path))
    assert lines == [*list(answers(text.split("\n")[:-1], 0, print)) * NUM_BLOCKS, ""]


def test_evaluate_reports_how_confidence_agrees_with_quality(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The confidence is the normalised score of each translation; both columns are written."""
    path = untrained(tmp_path / "run")
    assert main(["evaluate", f"run={path}", "runtime.device=cpu", "confidence=true"]) == 0
    shown = capfd.readouterr().out.splitlines()
    values = path / "hypotheses" / "test.fr.confidence.tsv"
    assert shown[-1] == f"written     {values}"
    columns = [tuple(map(float, line.split("\t"))) for line in values.read_text().splitlines()]
    hyps = (path / "hypotheses" / "test.fr").read_text().splitlines()
    found = open_run(path, runtime_cfg=CPU).score(list(zip(WORDS[:6], hyps, strict=True)))
    chrf = sentence_chrf(hyps, WORDS[:6])
    rounded = [(round(one.per_token, 4), round(y, 2)) for one, y in zip(found, chrf, strict=True)]
    assert columns == rounded
    assert shown[-2] == f"confidence  {correlations([one.per_token for one in found], chrf)}"


def test_a_run_that_writes_context_has_no_confidence_to_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "validation", "test"):
        for language in ("en", "fr"):
            (tmp_path / f"{split}.{language}").write_text("ab\n\nba\n")
    files = [f"data.{split}={tmp_path / split}" for split in ("train", "validation", "test")]
    documents = ["data=files", "data.src=en", "data.tgt=fr", *files]
    path = untrained(tmp_path / "run", *documents, "data.context=1", "data.context_target=true")
    assert main(["evaluate", f"run={path}", "runtime.device=cpu", "confidence=true"]) == 2
    assert "writes context in front of it; leave confidence out" in capfd.readouterr().err


def test_a_language_model_has_no_confidence_to_report(
    language_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", f"run={language_model}", "confidence=true"]) == 2
    assert "is a language model and translates nothing" in capfd.readouterr().err
