"""Scores are sacreBLEU's own; a metric is one row, from the command line to the best checkpoint."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import sacrebleu

from nmt.cli import main
from nmt.data.pairs import Split
from nmt.data.sources import ToyData, load
from nmt.decoding.evaluate import score_text
from nmt.decoding.metrics import (
    METRICS,
    Metric,
    default_best,
    higher_is_better,
    labelled_scores,
    require_metrics,
)
from nmt.errors import UserError
from nmt.files import write_lines

REFS = [
    "Ein Mann in einem roten Hemd steht im Schnee.",
    "Zwei Hunde rennen über die Wiese!",
    "Was »genau« ist das, fragt sie? ",
    "Es kostet 3,50 Euro\u2028und 10 %.",
    "Ja.",
]
HYPS = [
    "Ein Mann in rotem Hemd steht im Schnee.",
    "Zwei Hunde laufen über eine Wiese!",
    "Was ist das genau, fragt sie?",
    "Es kostet 3,50 Euro und 10 %.",
    "",
]


def sacrebleu_command(
    tmp_path: Path, hyps: list[str], refs: list[str], langs: str
) -> list[dict[str, object]]:
    """Return what the command reports on the written files, one object per metric."""
    write_lines(tmp_path / "hyp", hyps)
    write_lines(tmp_path / "ref", refs)
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "hyp", "-l", langs]
    command += ["-m", "bleu", "chrf", "ter", "-w", "10", "--format", "json"]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    return json.loads(output)


@pytest.mark.parametrize(("tgt_lang", "tokenizer_name"), [("de", "13a"), ("zh", "zh")])
def test_scores_and_signatures_equal_those_of_the_command(
    tmp_path: Path, tgt_lang: str, tokenizer_name: str
) -> None:
    hyps = HYPS if tgt_lang == "de" else ["我爱北京。", "今天天气好", "你好", "", "再见"]
    refs = REFS if tgt_lang == "de" else ["我很爱北京。", "今天天气很好", "你好", "谢谢", "再见了"]
    scores = score_text([], hyps, refs, list(METRICS), tgt_lang=tgt_lang)
    reported = sacrebleu_command(tmp_path, hyps, refs, f"en-{tgt_lang}")
    assert list(scores.values) == ["bleu", "chrf", "ter"]
    for name, theirs in zip(scores.values, reported, strict=True):
        assert scores.values[name] == pytest.approx(theirs["score"], abs=1e-9)
        assert scores.signatures[name] == theirs["signature"]
    assert f"|tok:{tokenizer_name}|" in scores.signatures["bleu"]
    assert scores.hypotheses == hyps
    assert 0.0 < scores.values["bleu"] < 100.0


def test_signatures_say_how_a_score_was_computed() -> None:
    scores = score_text([], HYPS, REFS, ["chrf", "bleu"], tgt_lang="de")
    version = f"version:{sacrebleu.__version__}"
    assert scores.signatures == {
        "chrf": f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|{version}",
        "bleu": f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}",
    }


@pytest.mark.skipif(
    importlib.util.find_spec("MeCab") is not None, reason="the Japanese word splitter is installed"
)
def test_a_missing_word_splitter_is_named_with_the_way_to_install_it() -> None:
    with pytest.raises(UserError) as caught:
        score_text([], HYPS, REFS, ["bleu"], tgt_lang="ja")
    assert str(caught.value).startswith("BLEU for data.tgt=ja needs more than is installed. Japanese")
    assert str(caught.value).endswith("pip install sacrebleu[ja]")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["bleu", "chrff"],
            "metrics[1] must be one of bleu, chrf, ter, but is 'chrff'; did you mean 'chrf'?",
        ),
        (["x"], "metrics[0] must be one of bleu, chrf, ter, but is 'x'"),
        ([], "metrics must name at least one score, and each once, but is []"),
        (["ter", "ter"], "metrics must name at least one score, and each once, but is [ter, ter]"),
    ],
)
def test_metrics_are_known_and_named_once(names: list[str], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        require_metrics(names)


@pytest.mark.parametrize(
    ("names", "best"),
    [(["bleu", "chrf"], "bleu"), (["ter", "chrf"], "chrf"), (["ter"], "loss"), ([], "loss")],
)
def test_the_best_checkpoint_is_that_of_the_first_metric_of_which_more_is_better(
    names: list[str], best: str
) -> None:
    assert default_best(names) == best
    assert higher_is_better(best) is (best != "loss")
    assert not higher_is_better("ter")


def test_scores_with_a_label_are_shown_in_the_order_of_the_table() -> None:
    values = {"loss": 1.5, "perplexity": 4.4817, "ter": 70.0, "bleu": 12.346}
    assert labelled_scores(values) == ["BLEU 12.35", "TER 70.00", "perplexity 4.48"]
    assert labelled_scores({"perplexity": "inf"}) == ["perplexity inf"]  # as results.json has it


TOY = [
    *("experiment=none", "data=toy", "tokenizer=word", "model=transformer_tiny", "model.d_model=16"),
    *("model.d_ff=32", "model.num_heads=2", "model.encoder_layers=1", "model.decoder_layers=1"),
    *(
        "schedule=constant",
        "data.max_tokens=16",
        "trainer.batch_tokens=32",
        "trainer.eval_every_steps=2",
        "trainer.max_steps=6",
    ),
    *("trainer.save_every_steps=2", "trainer.log_every_steps=2", "runtime.device=cpu"),
    *("runtime.kernels=false", "decoding=greedy", "tracking.sinks=[jsonl]"),
]


@pytest.mark.parametrize("more", [True, False], ids=["higher is better", "lower is better"])
def test_a_metric_is_one_row(
    more: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It needs the sources; in three validations of one text its values are 1, 3, 2 or 3, 1, 2."""
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    values = [1.0, 3.0, 2.0] if more else [3.0, 1.0, 2.0]
    asked: list[tuple[Sequence[str], ...]] = []

    def echo(
        sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], tgt_lang: str
    ) -> tuple[float, str]:
        asked.append((sources, hypotheses, references))
        value = values[len(asked) - 1] if len(asked) <= len(values) else 7.5
        return value, f"sources:{len(sources)}|{tgt_lang}"

    monkeypatch.setitem(METRICS, "echo", Metric("Echo", more, echo))
    run = tmp_path / "run"
    assert main(["train", f"run={run}", *TOY, "metrics=[bleu,echo]", "trainer.best_metric=echo"]) == 0
    shown = capsys.readouterr().out
    assert "weights     step 4, the best" in shown
    assert re.search(r"^test +BLEU \d+\.\d\d  Echo 7\.50  perplexity", shown, flags=re.MULTILINE)
    assert "signature   echo|sources:10|fr" in shown
    results = json.loads((run / "results.json").read_text())
    assert (results["step"], results["test"]["echo"], results["validation"]["echo"]) == (4, 7.5, 7.5)
    assert results["signatures"]["echo"] == "sources:10|fr"
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["valid/echo"] for line in logged if "valid/echo" in line] == values
    toy = load(ToyData(), Split.train)
    for sources, hypotheses, references in asked:
        assert (sources, references) == (toy.src, toy.tgt)
        assert len(hypotheses) == len(toy)
    assert main(["evaluate", f"run={run}"]) == 0
    shown = capsys.readouterr().out
    assert "  Echo 7.50  perplexity" in shown
    assert "signature   echo|sources:10|fr" in shown
