"""What a training needs is asked for before anything is prepared, all of it in one error."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.data.tokens import tokenizer_training
from nmt.errors import UserError
from nmt.runs.requirements import require_all
from nmt.verbs import VERBS


def config(*overrides: str) -> TrainConfig:
    (composed,) = compose(VERBS["train"], ["data=toy", "model=transformer_tiny", *overrides])
    return composed.to_config(TrainConfig)


def test_a_usual_training_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.extras.find_spec", lambda module: None)
    require_all(config())


def test_words_of_each_language_that_is_scored_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.extras.find_spec", lambda module: None)
    one = f"train: {tmp_path}/x, validation: {tmp_path}/x"
    corpora = f"data.corpora={{a: {{tgt: de, {one}}}, b: {{tgt: ja, {one}}}}}"
    mixture = ["data=mixture", "data.target_tags=true", "data.scored_split=validation", corpora]
    with pytest.raises(UserError, match="ja splits words by MeCab"):
        require_all(config(*mixture))
    require_all(config(*mixture, "data.scored=[a]"))


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


def test_every_compressed_file_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.extras.find_spec", lambda module: None)
    weights, scores, links = (tmp_path / f"{name}.zst" for name in ("weights", "scores", "links"))
    for file in (weights, scores, links):
        file.touch()
    files = [f"data.{split}={tmp_path}/a" for split in ("train", "validation", "test")]
    filters = f"data.filters=[{{name: scores, file: {scores}, min: 0}}]"
    with pytest.raises(UserError) as weighed:
        require_all(config("data=files", *files, f"data.weights={weights}"))
    guided = ["objective=guided_alignment", f"objective.alignments={links}"]
    with pytest.raises(UserError) as caught:
        require_all(config("data=files", *files, filters, *guided))
    told = [*weighed.value.problems, *caught.value.problems]
    for problem, file in zip(told, (weights, scores, links), strict=True):
        assert problem.startswith(f"{file} is compressed by Zstandard")
        assert problem.endswith("needs backports.zstd: pip install 'nmt[zst]'")


def test_alignments_that_are_not_there_are_missed_at_once(tmp_path: Path) -> None:
    (tmp_path / "links.txt").touch()
    with pytest.raises(UserError) as caught:
        require_all(config("objective=guided_alignment", f"objective.alignments={tmp_path}/link.txt"))
    assert str(caught.value) == (
        f"objective.alignments: there is no file {tmp_path}/link.txt; did you mean 'links.txt'?"
    )


class Quotes:
    """A stand-in for MosesPunctNormalizer."""

    def __init__(self, lang: str):
        self.signs = "«»" if lang == "en" else "()"

    def normalize(self, line: str) -> str:
        return "".join('"' if sign in self.signs else sign for sign in line)


def test_symbols_that_moses_rewrites_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(MosesPunctNormalizer=Quotes, __spec__=1)
    monkeypatch.setitem(sys.modules, "sacremoses", library)
    tokenizer_training._moses.cache_clear()
    symbols = "tokenizer.symbols=['⟨num⟩','«num»','(url)']"
    require_all(config(symbols))
    with pytest.raises(UserError) as caught:
        require_all(config(symbols, "tokenizer.moses_src=en", "tokenizer.moses_tgt=de"))
    tokenizer_training._moses.cache_clear()
    target, source = caught.value.problems
    assert source == (
        "tokenizer.symbols[1]=«num» would never be found: the rules of tokenizer.moses_src=en make it "
        "'\"num\"'; choose one that they leave alone, such as ⟨num⟩"
    )
    assert target.startswith(
        "tokenizer.symbols[2]=(url) would never be found: the rules of tokenizer.moses_tgt"
    )
