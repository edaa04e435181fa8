"""What a training needs is asked for before anything is prepared, all of it in one error."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.errors import UserError
from nmt.runs.requirements import require_all
from nmt.verbs import VERBS


def config(*overrides: str) -> TrainConfig:
    (composed,) = compose(VERBS["train"], ["data=toy", "model=transformer_tiny", *overrides])
    return composed.to_config(TrainConfig)


def test_a_usual_training_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.extras.find_spec", lambda module: None)
    require_all(config())


def test_all_that_is_missing_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.extras.find_spec", lambda module: None)
    monkeypatch.delenv("NMT_COMET_PYTHON", raising=False)
    for name in ("a.en.zst", "a.ja"):
        (tmp_path / name).touch()
    files = [f"data.{split}={tmp_path}/a" for split in ("train", "validation", "test")]
    cfg = config(
        "data=files",
        *files,
        "data.src=en",
        "data.tgt=ja",
        "data.filters=[language]",
        "metrics=[bleu,comet]",
        "tracking.sinks=[display,wandb]",
    )
    with pytest.raises(UserError) as caught:
        require_all(cfg)
    bleu, comet, wandb, language, zst = caught.value.problems
    assert bleu.startswith("BLEU for data.tgt=ja")
    assert bleu.endswith("pip install 'nmt[ja]'")
    assert comet.startswith("metrics has comet, which runs in an environment of its own")
    assert wandb == "tracking.sinks has wandb, which needs wandb: pip install 'nmt[wandb]'"
    assert language == "data.filters[0]: the filter language needs py3langid: pip install 'nmt[language]'"
    assert zst == (
        f"{tmp_path}/a.en.zst is compressed by Zstandard (or decompress it: zstd -d), which needs "
        "backports.zstd: pip install 'nmt[zst]'"
    )


def test_compressed_weights_are_asked_for_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.extras.find_spec", lambda module: None)
    weights = tmp_path / "weights.zst"
    weights.touch()
    files = [f"data.{split}={tmp_path}/a" for split in ("train", "validation", "test")]
    with pytest.raises(UserError, match=f"^{weights} is compressed by Zstandard"):
        require_all(config("data=files", *files, f"data.weights={weights}"))
