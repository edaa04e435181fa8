"""The loss is the model's own, and what is scored are the translations that its search finds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from nmt.data.batches.batching import Batch, pad
from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig
from nmt.decoding.configs import BeamConfig
from nmt.errors import UserError
from nmt.files import write_lines
from nmt.metrics.configs import ScoringConfig
from nmt.metrics.scoring import METRICS, Metric, ScoredText
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.models.configs import TransformerConfig
from nmt.translation.evaluate import evaluate_text, perplexity, score_text, validation_values
from nmt.translation.translate import translate

CPU = torch.device("cpu")


def transformer(vocab_size: int) -> TranslationModel:
    torch.manual_seed(0)
    cfg = TransformerConfig(d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1, dropout=0.5)
    return build_model(cfg, src_vocab_size=vocab_size, tgt_vocab_size=vocab_size)


def batch_of(pairs: list[tuple[list[int], list[int]]]) -> Batch:
    src, src_mask = pad([src for src, _ in pairs])
    tgt_out, _ = pad([tgt for _, tgt in pairs])
    tgt_in = torch.cat([torch.full_like(tgt_out[:, :1], BOS_ID), tgt_out[:, :-1]], dim=1)
    return Batch(src, src_mask, tgt_in, tgt_out, rows=(tgt_out != PAD_ID).flatten().nonzero()[:, 0])


def test_the_loss_is_the_mean_over_tokens_whatever_the_batches() -> None:
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
        loss = validation_values(model, iter(batches), device=CPU)["loss"]
        assert loss == pytest.approx(expected / num_tokens, rel=1e-6)
    assert model.training
    assert perplexity(loss) == pytest.approx(math.exp(expected / num_tokens), rel=1e-6)
    assert perplexity(1000.0) == math.inf


def test_evaluate_scores_the_translations_of_the_source() -> None:
    text = ParallelText([f"a dog {i} runs" for i in range(30)], [f"ein Hund {i} rennt" for i in range(30)])
    tokenizer = Tokenizer.train(TokenizerConfig(vocab_size=30), text)
    model = transformer(tokenizer.tgt_vocab_size)
    cfg = BeamConfig(beam_size=2)
    scores = evaluate_text(model, tokenizer, text, cfg, ["bleu", "chrf"], tgt_lang="de", device=CPU)
    translations = translate(text.src, model, tokenizer, cfg, device=CPU)
    assert scores.hypotheses == [translation.text for translation in translations]
    assert scores == score_text(text.src, scores.hypotheses, text.tgt, ["bleu", "chrf"], tgt_lang="de")


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(UserError, match="there is nothing to score: the split has no sentence pairs"):
        score_text([], [], [], ["bleu"], tgt_lang="de")


def test_a_metric_gets_sources_without_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(text: ScoredText) -> tuple[float, str]:
        return float(len(text.hypotheses)), "|".join([*text.sources, *text.references[0], text.tgt_lang])

    monkeypatch.setitem(METRICS, "kept", Metric("kept", True, kept))
    text = ParallelText(["<2de> a dog", "", "<2 of> us", "a <2de> b"], ["w", "x", "y", "z"])
    tokenizer = Tokenizer.train(TokenizerConfig(vocab_size=22), text)
    model = transformer(tokenizer.tgt_vocab_size)
    scores = evaluate_text(model, tokenizer, text, BeamConfig(), ["kept"], tgt_lang="de", device=CPU)
    assert scores.values == {"kept": 4.0}
    assert scores.signatures == {"kept": "a dog||<2 of> us|a <2de> b|w|x|y|z|de"}


def test_the_scores_of_each_language_keep_the_rules_of_all() -> None:
    text = ParallelText(["<2de> a dog", "<2fr> a cat"], ["ein Hund", "un chat"])
    tokenizer = Tokenizer.train(TokenizerConfig(vocab_size=22), text)
    model, rules, cfg = transformer(tokenizer.tgt_vocab_size), ScoringConfig(tokenize="char"), BeamConfig()
    hyps = [found.text for found in translate(text.src, model, tokenizer, cfg, device=CPU)]
    text.tgt = [
        hyp[:-3] for hyp in hyps
    ]  # a word that is cut is another one, though its characters are much the same
    asked: dict[str, Any] = {"scoring": rules, "languages": ["de", "fr"]}
    scores = evaluate_text(model, tokenizer, text, cfg, ["bleu"], tgt_lang="de", device=CPU, **asked)
    own, other = (
        {
            language: score_text([""], [hyp], [ref], ["bleu"], tgt_lang=language, scoring=scoring).values
            for language, hyp, ref in zip(("de", "fr"), hyps, text.tgt, strict=True)
        }
        for scoring in (rules, None)
    )
    assert scores.by_language == own != other


def test_written_lines_end_in_a_line_feed_and_nothing_else(tmp_path: Path) -> None:
    write_lines(tmp_path / "hypotheses" / "test.de", ["für", "", "a\u2028b", "c\rd"])
    assert (tmp_path / "hypotheses" / "test.de").read_bytes() == "für\n\na\u2028b\nc\rd\n".encode()
