"""Runs that translate with a language model or a shortlist, as a user names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.cli import main
from nmt.config.compose import compose
from nmt.config.roots import TranslateConfig
from nmt.errors import UserError
from nmt.runs.checkpoint_names import with_fixed_checkpoints
from nmt.runs.opening import open_run, open_runs
from nmt.verbs import VERBS
from tests.runs.untrained import GPT, untrained

LINES = ["a dog", "the men", "hello"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run, a language model with its tokenizer, and one with another."""
    folder = tmp_path_factory.mktemp("fusion")
    untrained(folder / "run")
    untrained(folder / "lm", "task=language_model", model=GPT)
    untrained(folder / "other", "task=language_model", model=GPT, lines=["another text", "of words"])
    return folder


def opened(folder: Path, *overrides: str) -> list[str]:
    """Return the translations of some lines by a run with overrides."""
    run = open_runs(config(folder, *overrides))
    return [one.text for one in run.translate(LINES)]


def config(folder: Path, *overrides: str) -> TranslateConfig:
    (composed,) = compose(VERBS["translate"], [f"run={folder / 'run'}", "runtime.device=cpu", *overrides])
    cfg: TranslateConfig = composed.to_config(TranslateConfig)
    return cfg


def test_a_language_model_changes_translations_by_its_weight(folder: Path) -> None:
    lm = f"ensemble.lm={folder / 'lm'}"
    alone = opened(folder)
    assert opened(folder, lm, "ensemble.lm_weight=0") == alone
    assert opened(folder, lm, "ensemble.lm_weight=5") != alone
    facts = [with_fixed_checkpoints(config(folder, *more))[1] for more in ([], [lm])]
    assert "ensemble.lm" not in facts[0]
    assert facts[1] == {**facts[0], "ensemble.lm": facts[1]["ensemble.lm"], "ensemble.lm_weight": 0.1}


def test_a_language_model_needs_no_factors_of_sources(folder: Path, tmp_path: Path) -> None:
    factors = "tokenizer.source_factors=[case]"
    untrained(tmp_path / "run", factors)
    untrained(tmp_path / "lm", "task=language_model", model=GPT)
    assert len(opened(tmp_path, f"ensemble.lm={tmp_path / 'lm'}")) == len(LINES)
    with pytest.raises(UserError, match=r"another tokenizer .* data=\.\.\. tokenizer\.source_factors=\[\]$"):
        opened(tmp_path, f"ensemble.lm={folder / 'other'}")


def test_what_cannot_translate_together_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"has another tokenizer than .*model=gpt init=.* init.weights=\[\]"):
        opened(folder, f"ensemble.lm={folder / 'other'}")
    with pytest.raises(UserError, match="is no language model"):
        opened(folder, f"ensemble.lm={folder / 'run'}")
    with pytest.raises(UserError, match="without CUDA graphs"):
        opened(folder, f"ensemble.lm={folder / 'lm'}", "decoding.cuda_graphs=true")
    with pytest.raises(UserError, match=r"pool_models=true .* without ensemble.lm; set"):
        opened(folder, f"ensemble.lm={folder / 'lm'}", "decoding=mbr", "decoding.pool_models=true")
    with pytest.raises(
        UserError, match=r"ensemble.lm_weight=0.5 is the weight .* none; set ensemble.lm, too$"
    ):
        config(folder, "ensemble.lm_weight=0.5")
    with pytest.raises(UserError, match=r"ensemble.lm_weight must be in \(-1, 10\), but is -2"):
        config(folder, "ensemble.lm_weight=-2")
    with pytest.raises(UserError, match=r"decoding.cuda_graphs=true records searches over the whole"):
        config(folder, "decoding.cuda_graphs=true", "decoding.shortlist=x.npz")


def test_a_shortlist_is_made_by_one_command_and_used(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["translations=3", "frequent=2", "max_pairs=100"]
    assert main(["shortlist", f"run={folder / 'run'}", "data=toy", *sizes]) == 0
    file = folder / "run" / "shortlist.npz"
    assert f"decoding.shortlist={file}" in capsys.readouterr().out
    assert len(opened(folder, f"decoding.shortlist={file}")) == len(LINES)
    with pytest.raises(UserError, match="made for another tokenizer"):
        next(iter(open_run(folder / "run").translate(LINES, shortlist=str(other_shortlist(folder)))))


def other_shortlist(folder: Path) -> Path:
    untrained(folder / "words", lines=["another text", "of words"])
    file = folder / "words.npz"
    assert main(["shortlist", f"run={folder / 'words'}", "data=toy", "max_pairs=20", f"output={file}"]) == 0
    return file


def test_a_language_model_is_not_given_a_shortlist(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shortlist", f"run={folder / 'lm'}", "data=toy"]) == 2
    assert "nmt shortlist is for runs that translate" in capsys.readouterr().err


def test_a_shortlist_is_made_for_one_run_and_takes_no_key_of_a_search(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / "run"
    for arguments, message in [
        ([f"run=[{run},{run}]"], "run must be one directory, but is ["),
        ([f"run={run}", "decoding.beam_size=3"], "decoding"),
        ([f"run={run}", "checkpoint=best"], "checkpoint"),
    ]:
        assert main(["shortlist", *arguments, "data=toy"]) == 2
        assert message in capsys.readouterr().err
    assert main(["shortlist", "--help"]) == 0
    assert not {"decoding.beam_size", "ensemble.mean", "runtime.device"} & {
        line.strip().partition("=")[0] for line in capsys.readouterr().out.splitlines()
    }
