"""`nmt prepare`: the training that follows reads no text."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from nmt import disk_cache
from nmt.cli import main
from nmt.data.batches import examples, shards
from nmt.data.parallel_text import Split
from nmt.data.reading.bundled_data import DemoData
from nmt.data.reading.sources import load
from nmt.files import publish

WORDS = ["dog", "cat", "house", "tree", "sees", "the", "green", "old", "runs", "sleeps"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the arguments for a corpus that counts as large."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(examples, "LARGE_PAIRS", 100)
    monkeypatch.setattr(shards, "SHARD_PAIRS", 64)
    for split, size in (("train", 300), ("dev", 5)):
        for side in ("en", "de"):
            lines = [f"{WORDS[i % 10]} {WORDS[i // 10 % 10]} {WORDS[i // 100]} {split}" for i in range(size)]
            Path(f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines))
    return [
        *("data=files", "data.train=train", "data.validation=dev", "data.scored_split=validation"),
        *("tokenizer.vocab_size=24", "prepare.workers=1"),
    ]


def test_the_same_command_again_finds_everything(
    data: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["prepare", *data]) == 0
    first = capsys.readouterr()
    cache = Path(os.environ["NMT_CACHE"])
    assert first.out == f"prepared    {cache}\n"
    assert "\nencoded: 300 pairs read, 300 kept" in first.err
    kinds = sorted({path.name.split("-")[0] for path in cache.iterdir()})
    assert {"blocks", "split", "text", "tokenizer"} <= {*kinds}
    assert "shards" not in kinds
    monkeypatch.setattr(shards.Shards, "make", None)
    assert main(["prepare", *data]) == 0
    assert "\nfound in the cache, encoded: 300 pairs read, 300 kept" in capsys.readouterr().err


def test_what_cannot_be_prepared_is_said(
    data: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["prepare", *data, "data.streaming=true"]) == 2
    assert "error: data.streaming=true reads the pairs during the training" in capsys.readouterr().err
    assert main(["prepare", *data, "prepare.workers=-1"]) == 2
    assert "prepare.workers must" in capsys.readouterr().err
    with monkeypatch.context() as full:
        full.setattr(shards.Shards, "write", lambda *_: False)
        assert main(["prepare", *data]) == 2
    assert "set NMT_CACHE to a folder on a larger disk; what is encoded is kept" in capsys.readouterr().err
    assert main(["prepare", *data, "tokenizer.sampling_alpha=0.1"]) == 0
    assert "segments the pairs anew for each epoch, during the training" in capsys.readouterr().err
    assert main(["prepare", *data, "data.augment=[typos]"]) == 0
    assert "data.augment modifies the pairs anew for each epoch" in capsys.readouterr().err
    make, cache = tempfile.mkdtemp, Path(os.environ["NMT_CACHE"])

    def denied(prefix: str, dir: Path) -> str:
        if dir == cache:
            raise PermissionError(13, "Permission denied")
        return make(prefix=prefix, dir=dir)

    with monkeypatch.context() as foreign:
        foreign.setattr(tempfile, "mkdtemp", denied)
        assert main(["prepare", *data]) == 2
    told = f"error: the cache {cache} cannot be written; set NMT_CACHE to a folder that can be\n"
    assert capsys.readouterr().err.endswith(f"words)\n{told}")  # before the data is prepared
    Path("file").write_text("")
    monkeypatch.setenv("NMT_CACHE", str(Path("file").absolute()))
    assert main(["prepare", *data]) == 2
    assert "cannot be written; set NMT_CACHE to a folder that can be" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["split", "text", "filtered", "repairs", "tokenizer", "blocks"])
def test_whatever_the_cache_has_no_room_for_is_told(
    data: list[str], kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(draft: Path, entry: Path) -> None:
        if entry.name.startswith(f"{kind}-"):
            raise OSError(errno.ENOSPC, "No space left on device")
        publish(draft, entry)

    monkeypatch.setattr(disk_cache, "publish", full)
    rules = ["data.filters=[{name: length, max: 99}]", "data.fixers=[spaces]"]
    assert main(["prepare", *data, *rules]) == 2
    told = capsys.readouterr()
    assert "prepared" not in told.out
    assert "set NMT_CACHE to a folder on a larger disk; what was kept stays\n" in told.err


@pytest.mark.slow
@pytest.mark.fault(1)
@pytest.mark.parametrize("made", ["values-*/*", "shards-*/00003"])
def test_a_killed_preparation_goes_on(data: list[str], made: str) -> None:
    """Several processes, killed at once while they filter or encode; what filters have measured stays."""
    code = (
        "import sys; from nmt.data.batches import examples, shards; "
        "from nmt.data.cleaning import filtering, measuring; "
        "examples.LARGE_PAIRS = 100; shards.SHARD_PAIRS = filtering.BLOCK_PAIRS = 16; "
        "measuring.STORED_SECONDS = 0.0; from nmt.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    filters = "data.filters=[{name: length, max: 99}]"
    command = [sys.executable, "-c", code, "prepare", *data[:-1], filters, "prepare.workers=2"]
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    cache = Path(os.environ["NMT_CACHE"])
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(cache.glob(made)):
            time.sleep(0.001)
        process.kill()
    measured = {path: path.stat().st_mtime_ns for path in cache.glob("values-*/*/values.npz")}
    assert measured
    assert list(cache.glob(made))
    assert not list(cache.glob("blocks-*"))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert measured == {path: path.stat().st_mtime_ns for path in measured}
    assert list(cache.glob("blocks-*"))


def test_a_bad_filter_is_refused_with_its_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "data=toy", "data.filters=[{name: length, max: -1}]"]) == 2
    assert "data.filters[0].max must not be negative, but is -1" in capsys.readouterr().err


MIXED = [
    "data=mixture",
    "data.target_tags=true",
    "data.corpora={a: {name: files, train: train, validation: dev, test: test}}",
]
FILES = ["data=files", "data.train=train", "data.validation=dev", "data.test=test"]


@pytest.mark.parametrize(("data", "key"), [(FILES, "data"), (MIXED, "data.corpora.NAME")])
def test_pairs_to_score_on_without_text_are_told(
    data: list[str],
    key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    lines = load(DemoData(), Split.train)
    for split, size in (("train", 200), ("dev", 20), ("test", 20)):
        for language, side in (("en", lines.src), ("de", lines.tgt)):
            is_blank = (split, language) in (("dev", "en"), ("test", "de"))
            Path(f"{split}.{language}").write_text("".join(f"{'' if is_blank else x}\n" for x in side[:size]))
    assert main(["prepare", *data, "tokenizer.vocab_size=120"]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert told == [
        f"warning: {key}.validation: no source line has text, so its scores mean nothing",
        f"warning: {key}.test: no target line has text, so its scores mean nothing",
    ]


def test_a_mixture_of_nothing_has_no_labels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "data=mixture"]) == 2
    told = capsys.readouterr().err
    assert "data.corpora is not set" in told
    assert "labels" not in told
