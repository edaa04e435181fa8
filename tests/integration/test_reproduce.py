"""`nmt reproduce`: the same bits again, data that is not what it was, and runs that cannot be repeated."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt.files import locked, write_lines

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def corpus(copy_corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(copy_corpus, tmp_path / "corpus"))


def test_a_run_is_trained_again_with_the_same_bits(
    nmt: Command, tiny: list[str], copy_corpus: Path, corpus: Path, tmp_path: Path
) -> None:
    own = [key.replace(str(copy_corpus), str(corpus)) for key in tiny]
    short = [
        "trainer.max_steps=3",
        "decoding=greedy",
        "decoding.max_length_offset=0",
        "trainer.average=0",
        "data.scored_split=validation",
    ]
    run, again = tmp_path / "run", tmp_path / "run-reproduced"
    assert nmt("train", f"run={run}", *own, *short, "trainer.log_every_steps=1").returncode == 0
    files = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}

    done = nmt("reproduce", str(run), "tolerance=0")
    assert done.returncode == 0, done.stderr
    assert "metrics       identical in 3 records" in done.stdout
    assert "weights       identical" in done.stdout
    assert "60 of 60 translations are identical" in done.stdout
    assert "reproduced: no score differs by more than tolerance=0" in done.stdout
    assert files == {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}

    results = json.loads((again / "results.json").read_text())
    results["validation"]["bleu"] += 1.0
    (again / "results.json").write_text(json.dumps(results))
    done = nmt("reproduce", f"run={run}")  # the repetition is finished, and only reported
    assert done.returncode == 5
    assert "error: not reproduced within tolerance=0.05: validation BLEU" in done.stderr

    write_lines(again / "tokenizer.model", ["of what is no run"])
    (again / "config.yaml").unlink()
    shutil.rmtree(again / "checkpoints")
    done = nmt("reproduce", f"run={run}", f"output={again}")
    assert done.returncode == 2
    assert "nothing there was touched; choose another output=...\n" in done.stderr
    with locked(again, ""):
        done = nmt("reproduce", f"run={run}", f"output={again}")
    assert done.returncode == 2
    assert "; wait for it, or choose another output=...\n" in done.stderr

    with (corpus / "train.a").open("a") as src, (corpus / "train.b").open("a") as tgt:
        src.write("1 2\n")
        tgt.write("1 2\n")
    done = nmt("reproduce", f"run={run}", f"output={tmp_path / 'other'}")
    assert done.returncode == 2
    assert f"the training data of {run} has changed since the run began" in done.stderr
    assert done.stderr.endswith("with other content; restore the data\n")  # another run is no way out
    assert not (tmp_path / "other").exists()

    link = tmp_path / "link"
    link.symlink_to(run)
    for itself in (run, link):
        done = nmt("reproduce", f"run={run}", f"output={itself}")
        assert (done.returncode, done.stderr) == (
            2,
            f"error: output={itself} is the run itself; choose another folder for the repetition\n",
        )
    (run / "results.json").unlink()
    done = nmt("reproduce", f"run={run}")
    assert done.returncode == 2
    assert f"run={run} has no scores to compare with" in done.stderr
