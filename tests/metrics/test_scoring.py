"""Scores are sacreBLEU's own; a metric is one row, from the command line to the best checkpoint."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
import urllib.error
from collections.abc import Sequence
from pathlib import Path

import pytest
import sacrebleu
import sentencepiece

from nmt.cli import main
from nmt.data.parallel_text import Split
from nmt.data.reading.bundled_data import ToyData
from nmt.data.reading.sources import load
from nmt.errors import UserError
from nmt.files import write_lines
from nmt.metrics import comet
from nmt.metrics.configs import ScoringConfig
from nmt.metrics.scoring import (
    METRICS,
    Metric,
    ScoredText,
    default_best,
    higher_is_better,
    labelled_scores,
    means,
    require_computable,
    require_metrics,
    sentence_counts,
)
from nmt.translation.evaluate import score_text

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


KNOWN = "bleu, spbleu, chrf, chrf++, ter, comet, accuracy, macro_f1, micro_f1"
CHINESE = (
    ["我爱北京。", "今天天气好", "你好", "", "再见"],
    ["我很爱北京。", "今天天气很好", "你好", "谢谢", "再见了"],
)


def sacrebleu_command(folder: Path, lines: list[list[str]], *options: str) -> dict[str, tuple[float, str]]:
    """Return values and signatures of the command for the written files, hypotheses first, by metric."""
    for number, side in enumerate(lines):
        write_lines(folder / str(number), side)
    files = [str(number) for number in range(1, len(lines))]
    command = [sys.executable, "-m", "sacrebleu", *files, "-i", "0", "-w", "10", "--format", "json", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    scores = found if isinstance(found, list) else [found]
    return {score["name"].lower(): (score["score"], score["signature"]) for score in scores}


@pytest.mark.parametrize(
    ("lines", "tgt_lang", "scoring", "options"),
    [
        ([HYPS, REFS], "de", ScoringConfig(), ["-l", "en-de"]),
        ([*CHINESE], "zh", ScoringConfig(), ["-l", "en-zh"]),
        (
            [HYPS, REFS, HYPS[::-1]],
            "de",
            ScoringConfig("intl", lowercase=True),
            ["--tokenize", "intl", "-lc", "--chrf-lowercase", "--chrf-word-order", "2"],
        ),
    ],
    ids=["usual", "Chinese", "two references, in lower case"],
)
def test_scores_and_signatures_equal_those_of_the_command(
    tmp_path: Path, lines: list[list[str]], tgt_lang: str, scoring: ScoringConfig, options: list[str]
) -> None:
    hyps, refs, *more = lines
    names = ["bleu", "chrf++" if "2" in options else "chrf", "ter"]
    scores = score_text([], hyps, refs, names, tgt_lang=tgt_lang, more_refs=more, scoring=scoring)
    reported = sacrebleu_command(tmp_path, lines, "-m", "bleu", "chrf", "ter", *options)
    for name, (value, signature) in zip(names, reported.values(), strict=True):
        assert scores.values[name] == pytest.approx(value, abs=1e-9)
        assert scores.signatures[name] == signature
        counts, score_of = sentence_counts(name, hyps, refs, tgt_lang, more_references=more, scoring=scoring)
        assert score_of(counts.sum(axis=0)) == scores.values[name]
    assert scores.hypotheses == hyps
    assert 0.0 < scores.values["bleu"] < 100.0


def test_the_pieces_of_flores_are_read_where_sacrebleu_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is a small one under the name of that of FLORES-200; without it, there is one error."""
    from sacrebleu.tokenizers import tokenizer_spm

    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(tokenizer_spm, "download_file", _no_network)
    with pytest.raises(UserError) as caught:
        require_computable(["chrf", "spbleu"], "de", ScoringConfig())
    assert str(caught.value) == (
        "BLEU with the pieces of flores200 needs a file that sacreBLEU downloads once, and it cannot: Name "
        f"or service not known; with a network, `curl -L -o {tmp_path}/models/flores200sacrebleuspm "
        "https://tinyurl.com/flores200sacrebleuspm` gets it"
    )
    with pytest.raises(UserError, match="BLEU with the pieces of flores101 needs a file"):
        require_computable(["bleu"], "de", ScoringConfig("flores101"))
    (tmp_path / "models").mkdir()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(REFS * 5), model_writer=model, vocab_size=45, minloglevel=2
    )
    (tmp_path / "models" / "flores200sacrebleuspm").write_bytes(model.getvalue())
    scores = score_text([], HYPS, REFS, ["spbleu", "bleu"], tgt_lang="de")
    assert "|tok:flores200|" in scores.signatures["spbleu"]
    assert scores.values["spbleu"] != scores.values["bleu"]
    same = score_text([], HYPS, REFS, ["bleu"], tgt_lang="de", scoring=ScoringConfig("flores200"))
    assert same.values["bleu"] == scores.values["spbleu"]


def _no_network(*arguments: object) -> None:
    raise urllib.error.URLError("Name or service not known")


def test_the_rule_that_splits_words_is_known() -> None:
    with pytest.raises(UserError) as caught:
        ScoringConfig(tokenize="int")
    assert str(caught.value) == (
        "scoring.tokenize must be one of 13a, intl, char, zh, ja-mecab, ko-mecab, flores101, flores200, none "
        "or null, but is 'int'; did you mean 'intl'?"
    )


# COMET, of which a stand-in answers for the other Python


def stand_in(folder: Path, body: str) -> str:
    """Return an executable that is started in the place of the other Python."""
    script, file = folder / "stand_in.py", folder / "python"
    script.write_text(f"import json, os, sys\nquestion = json.load(sys.stdin)\n{body}\n")
    file.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(script))} "$@"\n')
    file.chmod(0o755)
    return str(file)


def test_comet_is_asked_for_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"json.dump([sys.argv[1:], question], open({str(tmp_path / 'asked')!r}, 'w'))\n"
    body += "print(json.dumps({'version': '9.9', 'scores': [0.75, 1.0]}))"
    monkeypatch.setenv("NMT_COMET_PYTHON", stand_in(tmp_path, body))
    monkeypatch.setenv("NMT_COMET_MODEL", "my/model")
    scores = score_text(["a dog", "b"], ["ein Hund", "x"], ["Hund", "y"], ["comet"], tgt_lang="de")
    assert scores.values == {"comet": 87.5}
    assert scores.signatures == {"comet": "nrefs:1|model:my/model|scale:100|version:9.9"}
    (flag, script), question = json.loads((tmp_path / "asked").read_text())
    assert (flag, Path(script).name) == ("-I", "comet_script.py")
    rows = [{"src": "a dog", "mt": "ein Hund", "ref": "Hund"}, {"src": "b", "mt": "x", "ref": "y"}]
    assert question == {"model": "my/model", "data": rows}


def test_comet_scores_what_occurs_several_times_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "print(json.dumps({'version': '9.9', 'scores': [n / 4 for n, _ in enumerate(question['data'])]}))"
    monkeypatch.setenv("NMT_COMET_PYTHON", stand_in(tmp_path, body))
    found = comet.sentence_scores(["a", "a", "a", "b"], ["x", "y", "x", "x"], ["r", "r", "r", "r"])
    assert (found.values, found.mean) == ([0.0, 25.0, 0.0, 50.0], 18.75)


@pytest.mark.parametrize("has_full_gpu", [False, True])
def test_the_script_of_comet_answers_whatever_comet_prints(tmp_path: Path, has_full_gpu: bool) -> None:
    """Small packages stand in for comet and torch."""
    (tmp_path / "torch.py").write_text(
        f"class cuda:\n    is_available = staticmethod(lambda: {has_full_gpu})\n"
    )
    (tmp_path / "comet.py").write_text(
        "print('noise')\n"
        "class Model:\n"
        "    cpu = lambda self: self\n"
        "    def predict(self, data, batch_size, gpus):\n"
        "        if gpus: raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')\n"
        "        return type('Found', (), {'scores': [len(row['mt']) / 4 + gpus for row in data]})\n"
        "download_model = lambda name: '/models/' + name\n"
        "load_from_checkpoint = lambda path: print(path) or Model()\n"
    )
    (tmp_path / "unbabel_comet-1.5.dist-info").mkdir()
    (tmp_path / "unbabel_comet-1.5.dist-info" / "METADATA").write_text("Name: unbabel-comet\nVersion: 1.5\n")
    question = json.dumps({"model": "m", "data": [{"src": "a", "mt": "b", "ref": "c"}]})
    program = (
        "import runpy, sys; sys.path.insert(0, sys.argv[1]); runpy.run_path(sys.argv[2], run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, str(tmp_path), str(comet.SCRIPT)],
        input=question,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == {"version": "1.5", "scores": [0.25]}
    assert done.stderr == "noise\n/models/m\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "print('Traceback', file=sys.stderr); sys.exit('ModuleNotFoundError: No module named comet')",
            "COMET in NMT_COMET_PYTHON=PYTHON ended with code 1: ModuleNotFoundError: No module named comet; "
            "NMT_COMET_MODEL=Unbabel/wmt22-comet-da is the model",
        ),
        ("print('hello')", "NMT_COMET_PYTHON=PYTHON gives no answer of COMET: Expecting value"),
        (
            "print('{}')",
            "NMT_COMET_PYTHON=PYTHON gives no answer of COMET: version is missing, scores is missing",
        ),
        (None, "NMT_COMET_PYTHON=PYTHON cannot be started: No such file or directory"),
        ("", "metrics has comet, which runs in an environment of its own: python -m venv comet && "),
    ],
)
def test_comet_that_is_not_there_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str | None, message: str
) -> None:
    python = stand_in(tmp_path, body) if body else str(tmp_path / "python")
    monkeypatch.setenv("NMT_COMET_PYTHON", "" if body == "" else python)
    monkeypatch.delenv("NMT_COMET_MODEL", raising=False)
    with pytest.raises(UserError) as caught:
        require_computable(["comet"], "de", ScoringConfig())
    assert str(caught.value).startswith(message.replace("PYTHON=PYTHON", f"PYTHON={python}"))


@pytest.mark.parametrize("scores", ["[float('nan')]", "[0.5, 0.5]", "[]"])
def test_scores_of_comet_that_are_none_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: str
) -> None:
    body = f"print(json.dumps({{'version': '9.9', 'scores': {scores}}}))"
    monkeypatch.setenv("NMT_COMET_PYTHON", stand_in(tmp_path, body))
    with pytest.raises(UserError, match=r"gives no answer of COMET: it has \d finite scores for 1 transl"):
        score_text(["a"], ["b"], ["c"], ["comet"], tgt_lang="de")


def test_signatures_say_how_a_score_was_computed() -> None:
    scores = score_text([], HYPS, REFS, ["chrf", "bleu"], tgt_lang="de")
    version = f"version:{sacrebleu.__version__}"
    assert scores.signatures == {
        "chrf": f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|{version}",
        "bleu": f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}",
    }


def test_a_missing_word_splitter_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.extras.find_spec", lambda module: None)
    with pytest.raises(UserError) as caught:
        require_computable(["chrf", "bleu"], "ja_JP", ScoringConfig())
    assert str(caught.value) == (
        "BLEU for data.tgt=ja_JP splits words by MeCab (metrics=[chrf] does not), which needs ipadic and "
        "mecab-python3: pip install 'nmt[ja]'"
    )
    for language, extra in (("jpn_Jpan", "ja"), ("kor_Hang", "ko")):
        with pytest.raises(UserError, match=rf"for data.tgt={language} splits .* 'nmt\[{extra}\]'$"):
            require_computable(["bleu"], language, ScoringConfig())
    with pytest.raises(UserError, match=r"scoring.tokenize=ko-mecab splits .* 'nmt\[ko\]'$"):
        require_computable(["bleu"], "de", ScoringConfig("ko-mecab"))
    require_computable(["bleu"], "ja", ScoringConfig("char"))


def test_words_of_japanese_are_split_by_mecab() -> None:
    pytest.importorskip("MeCab", reason="the extra `ja` is not installed")
    scores = score_text([], ["吾輩は猫である。"], ["吾輩は猫だ。"], ["bleu"], tgt_lang="ja")
    assert "|tok:ja-mecab-" in scores.signatures["bleu"]


@pytest.mark.parametrize("language", ["zh", "zh-CN", "zh_TW", "zho_Hans", "cmn", "yue_Hant", "lzh_Hant"])
def test_a_language_by_another_name_is_split_as_the_language(language: str) -> None:
    scores = score_text([], ["我今天去学校。"], ["我今天去了学校。"], ["bleu"], tgt_lang=language)
    assert "|tok:zh|" in scores.signatures["bleu"]


@pytest.mark.parametrize("language", ["th", "tha_Thai", "km", "lo", "my", "bo", "dz", "shn_Mymr"])
def test_bleu_counts_characters_where_no_spaces_part_words(language: str) -> None:
    scores = score_text([], ["ผู้ชายเดิน"], ["ผู้ชายคนหนึ่งเดิน"], ["bleu"], tgt_lang=language)
    assert "|tok:char|" in scores.signatures["bleu"]
    assert scores.values["bleu"] > 10
    intl = score_text([], ["a"], ["a"], ["bleu"], tgt_lang=language, scoring=ScoringConfig("intl"))
    assert "|tok:intl|" in intl.signatures["bleu"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["bleu", "chrff"],
            f"metrics[1] must be one of {KNOWN}, but is 'chrff'; did you mean 'chrf'?",
        ),
        (["x"], f"metrics[0] must be one of {KNOWN}, but is 'x'"),
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
    assert [higher_is_better(name) for name in ("news/bleu", "news/ter", "token_accuracy")] == [
        True,
        False,
        True,
    ]


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


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(True, id="higher is better"),
        pytest.param(False, id="lower is better", marks=pytest.mark.slow),
    ],
)
def test_a_metric_is_one_row(
    more: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It needs the sources; in three validations of one text its values are 1, 3, 2 or 3, 1, 2."""
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    values = [1.0, 3.0, 2.0] if more else [3.0, 1.0, 2.0]
    asked: list[tuple[Sequence[str], ...]] = []

    def echo(text: ScoredText) -> tuple[float, str]:
        asked.append((text.sources, text.hypotheses, *text.references))
        value = values[len(asked) - 1] if len(asked) <= len(values) else 7.5
        return value, f"sources:{len(text.sources)}|{text.tgt_lang}"

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


def test_a_mean_over_languages_counts_each_the_same() -> None:
    found = means({"de": {"bleu": 10.0, "ter": 80.0}, "en": {"bleu": 40.0, "ter": 30.0}})
    assert found == {"macro_bleu": 25.0, "macro_ter": 55.0}
    assert labelled_scores(found) == ["macro BLEU 25.00", "macro TER 55.00"]
    assert list(map(higher_is_better, found)) == [True, False]
