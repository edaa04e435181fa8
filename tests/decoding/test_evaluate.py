"""Scores are sacreBLEU's own, and the loss is the model's own."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu
import torch
from torch.nn import functional as F

from nmt.data.batching import Batch, pad
from nmt.data.pairs import ParallelText
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.data.tokenizer import Tokenizer, TokenizerConfig
from nmt.decoding import BeamConfig
from nmt.decoding.evaluate import Metric, evaluate_text, perplexity, score_text, validation_loss
from nmt.decoding.translate import translate
from nmt.errors import UserError
from nmt.files import write_lines
from nmt.models import TranslationModel, build_model
from nmt.models.transformer import TransformerConfig

CPU = torch.device("cpu")
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
    """What the command reports on the written files, one object per metric."""
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
    scores = score_text(hyps, refs, list(Metric), tgt_lang=tgt_lang)
    reported = sacrebleu_command(tmp_path, hyps, refs, f"en-{tgt_lang}")
    assert list(scores.values) == ["bleu", "chrf", "ter"]
    for name, theirs in zip(scores.values, reported, strict=True):
        assert scores.values[name] == pytest.approx(theirs["score"], abs=1e-9)
        assert scores.signatures[name] == theirs["signature"]
    assert f"|tok:{tokenizer_name}|" in scores.signatures["bleu"]
    assert scores.hypotheses == hyps
    assert 0.0 < scores.values["bleu"] < 100.0


def test_signatures_say_how_a_score_was_computed() -> None:
    scores = score_text(HYPS, REFS, [Metric.chrf, Metric.bleu], tgt_lang="de")
    version = f"version:{sacrebleu.__version__}"
    assert scores.signatures == {
        "chrf": f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|{version}",
        "bleu": f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}",
    }


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(UserError, match="there is nothing to score: the split has no sentence pairs"):
        score_text([], [], [Metric.bleu], tgt_lang="de")


@pytest.mark.skipif(
    importlib.util.find_spec("MeCab") is not None, reason="the Japanese word splitter is installed"
)
def test_a_missing_word_splitter_is_named_with_the_way_to_install_it() -> None:
    with pytest.raises(UserError) as caught:
        score_text(HYPS, REFS, [Metric.bleu], tgt_lang="ja")
    assert str(caught.value).startswith("BLEU for data.tgt=ja needs more than is installed. Japanese")
    assert str(caught.value).endswith("pip install sacrebleu[ja]")


def transformer(vocab_size: int) -> TranslationModel:
    torch.manual_seed(0)
    cfg = TransformerConfig(d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1, dropout=0.5)
    return build_model(cfg, src_vocab_size=vocab_size, tgt_vocab_size=vocab_size)


def batch_of(pairs: list[tuple[list[int], list[int]]]) -> Batch:
    src, src_mask = pad([src for src, _ in pairs])
    tgt_out, _ = pad([tgt for _, tgt in pairs])
    tgt_in = torch.cat([torch.full_like(tgt_out[:, :1], BOS_ID), tgt_out[:, :-1]], dim=1)
    return Batch(src, src_mask, tgt_in, tgt_out, rows=(tgt_out != PAD_ID).flatten().nonzero()[:, 0])


def test_validation_loss_is_the_mean_over_tokens_whatever_the_batches() -> None:
    model = transformer(vocab_size=12)
    generator = torch.Generator().manual_seed(1)

    def sentence(length: int) -> list[int]:
        return [*torch.randint(4, 12, (length,), generator=generator).tolist(), EOS_ID]

    pairs = [(sentence(s), sentence(t)) for s, t in ((3, 5), (7, 1), (2, 9), (6, 6), (1, 2))]
    expected, num_tokens = 0.0, 0
    with torch.no_grad():
        model.eval()
        for src, tgt in pairs:
            one = batch_of([(src, tgt)])
            log_probs = model.project(model(one.src, one.src_mask, one.tgt_in)).double().log_softmax(-1)
            expected += float(F.nll_loss(log_probs[0], one.tgt_out[0], reduction="sum"))
            num_tokens += len(tgt)
    model.train()
    for split in ([5], [2, 3], [1, 1, 1, 1, 1]):
        parts = iter(pairs)
        batches = [batch_of([next(parts) for _ in range(size)]) for size in split]
        loss = validation_loss(model, iter(batches), device=CPU)
        assert loss == pytest.approx(expected / num_tokens, rel=1e-6)
    assert model.training
    assert perplexity(loss) == pytest.approx(math.exp(expected / num_tokens), rel=1e-6)
    assert perplexity(1000.0) == math.inf


def test_evaluate_scores_the_translations_of_the_source() -> None:
    text = ParallelText([f"a dog {i} runs" for i in range(30)], [f"ein Hund {i} rennt" for i in range(30)])
    tokenizer = Tokenizer.train(TokenizerConfig(vocab_size=30), text)
    model = transformer(tokenizer.tgt_vocab_size)
    cfg = BeamConfig(beam_size=2)
    scores = evaluate_text(model, tokenizer, text, cfg, [Metric.bleu, Metric.chrf], tgt_lang="de", device=CPU)
    translations = translate(text.src, model, tokenizer, cfg, device=CPU)
    assert scores.hypotheses == [translation.text for translation in translations]
    assert scores == score_text(scores.hypotheses, text.tgt, [Metric.bleu, Metric.chrf], tgt_lang="de")


def test_written_lines_end_in_a_line_feed_and_nothing_else(tmp_path: Path) -> None:
    write_lines(tmp_path / "hypotheses" / "test.de", ["für", "", "a\u2028b", "c\rd"])
    assert (tmp_path / "hypotheses" / "test.de").read_bytes() == "für\n\na\u2028b\nc\rd\n".encode()
