"""A pair has the score that search gives it, in any batch, and whatever cannot be scored is told."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from nmt.data.batches.batching import Batch, collate
from nmt.data.batches.encode import encode_pairs
from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import BOS_ID, EOS_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig, TokenizerKind
from nmt.decoding import decode, forcing
from nmt.decoding.configs import BeamConfig, SamplingConfig
from nmt.errors import UserError
from nmt.layers.choices import Positions
from nmt.layers.loss import smoothed_nll
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.models.configs import DecoderOnlyConfig, EnsembleConfig, ModelConfig, TransformerConfig
from nmt.models.ensemble import Ensemble
from nmt.models.fusion import Fusion
from nmt.translation import score as scoring
from nmt.translation.evaluate import validation_values
from nmt.translation.score import PairScore, score, score_ids
from tests.models.test_contract import SEARCHED, build

CPU = torch.device("cpu")
LINES = ["two dogs run in the snow", "a man in a red shirt", "a dog", "red snow and a man", "run"] * 3
TEXT = ParallelText(LINES, LINES[::-1])
TOKENIZER = Tokenizer.train(TokenizerConfig(kind=TokenizerKind.char, vocab_size=23), TEXT)
CFG = BeamConfig(batch_tokens=60)
Sentences = Callable[[int, int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def transformer(**fields: Any) -> TranslationModel:
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    cfg = TransformerConfig(**(sizes | fields))
    size = TOKENIZER.tgt_vocab_size
    return build_model(cfg, src_vocab_size=size, tgt_vocab_size=size).eval()


def language_model(max_positions: int = 64) -> TranslationModel:
    cfg = DecoderOnlyConfig(d_model=16, d_ff=32, num_heads=2, num_layers=1, max_positions=max_positions)
    size = TOKENIZER.tgt_vocab_size
    return build_model(cfg, src_vocab_size=size, tgt_vocab_size=size).eval()


@pytest.mark.parametrize("make", SEARCHED)
def test_a_hypothesis_has_the_log_probability_of_its_search(
    make: Callable[[], ModelConfig], sentences: Sentences
) -> None:
    """Of every family; the length limit forces some hypotheses to end."""
    model = build(make()).eval()
    src, src_mask, _ = sentences(4, 6, 1)
    sources = [ids[mask].tolist() for ids, mask in zip(src, src_mask, strict=True)]
    searches = (
        BeamConfig(beam_size=3, n_best=3, max_length_ratio=1.0, max_length_offset=1),
        SamplingConfig(n_best=2, max_length_ratio=1.0),
    )
    for cfg in searches:
        with torch.inference_mode():
            found = decode(model, src, src_mask, cfg)
        pairs = [(source, h) for source, several in zip(sources, found, strict=True) for h in several]
        targets = [[*hypothesis.ids, EOS_ID] for _, hypothesis in pairs]
        scores = score_ids([source for source, _ in pairs], targets, model, 20, device=CPU)
        assert [len(log_probs) for log_probs in scores] == [len(ids) for ids in targets]
        totals = [sum(log_probs) for log_probs in scores]
        assert_close(totals, [hypothesis.log_prob for _, hypothesis in pairs], atol=2e-4, rtol=1e-5)


def test_what_does_not_fit_into_memory_is_scored_half_by_half(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = transformer(), []
    expected = score(TEXT.src, TEXT.tgt, model, TOKENIZER, CFG, device=CPU)

    def limited(model: TranslationModel, batch: Batch) -> torch.Tensor:
        sizes.append(len(batch.src))
        if len(batch.src) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return forcing.token_log_probs(model, batch)

    monkeypatch.setattr(scoring, "token_log_probs", limited)
    most = 1
    found = score(TEXT.src, TEXT.tgt, model, TOKENIZER, CFG, device=CPU)
    assert max(sizes) > most
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert_close([one.log_prob for one in found], [one.log_prob for one in expected])
    most = 0
    with pytest.raises(UserError, match=r"memory is exhausted by a single line; lower decoding\.max_source"):
        score(TEXT.src, TEXT.tgt, model, TOKENIZER, CFG, device=CPU)


def test_batches_change_nothing_and_few_logits_exist_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer()
    together = score(TEXT.src, TEXT.tgt, model, TOKENIZER, CFG, device=CPU)
    monkeypatch.setattr(forcing, "ROWS_AT_ONCE", 3)
    for i, (src, tgt) in enumerate(zip(TEXT.src, TEXT.tgt, strict=True)):
        (alone,) = score([src], [tgt], model, TOKENIZER, CFG, device=CPU)
        assert alone.ids == together[i].ids == TOKENIZER.encode_tgt([tgt])[0]
        assert_close(alone.log_probs, together[i].log_probs, atol=1e-5, rtol=1e-5)
        assert_close(alone.per_token, sum(alone.log_probs) / len(alone.ids))


def test_the_sum_over_a_split_is_its_loss() -> None:
    model = transformer()
    pairs, _ = encode_pairs(TEXT, TOKENIZER)
    batch = collate(pairs, range(len(pairs)))
    loss = validation_values(model, [batch], device=CPU)["loss"]
    scores = score(TEXT.src, TEXT.tgt, model, TOKENIZER, CFG, device=CPU)
    assert_close(-sum(found.log_prob for found in scores) / batch.num_tokens, loss, atol=1e-5, rtol=1e-5)


def test_a_language_model_scores_a_line_after_the_end_of_another() -> None:
    model = language_model()
    (found,) = score(None, ["a dog"], model, TOKENIZER, CFG, device=CPU)
    ids = TOKENIZER.encode_tgt(["a dog"])[0]
    nothing = torch.zeros(1, 0, dtype=torch.long)
    with torch.inference_mode():
        logits = model.project(model(nothing, nothing.bool(), torch.tensor([[BOS_ID, EOS_ID, *ids[:-1]]])))
    _, nll = smoothed_nll(logits[0, 1:], torch.tensor(ids), 0.0)
    assert found.ids == ids
    assert_close(found.log_prob, -nll.item(), atol=1e-5, rtol=1e-5)


def test_a_text_of_a_language_model_may_take_all_its_positions() -> None:
    """64 in all, of which the end of the line before takes one and its own end another."""
    lines, one = ["a" * length for length in (61, 62)], language_model()
    for model in (one, Ensemble([one, one], EnsembleConfig()).eval()):
        warnings = list[str]()
        fits, does_not = score(None, lines, model, TOKENIZER, CFG, device=CPU, warn=warnings.append)
        assert (len(fits.ids), does_not.ids) == (63, [])
        assert warnings == [
            "line 2: too long, scored -inf, because the text has more than 64 tokens, or 4096 characters"
        ]


def test_what_cannot_be_scored_is_told_and_stays_in_its_place() -> None:
    """A blank source, and sides that are too long; a blank target is the end alone."""
    model, warnings = transformer(), list[str]()
    cfg = BeamConfig(max_source_tokens=8)
    sources = ["", "  ", "a dog", "a dog runs", "run", "run", "run"]
    targets = ["run", "", "", "run", "two dogs", "red", "red" + " " * 600 + "run"]
    found = score(sources, targets, model, TOKENIZER, cfg, device=CPU, warn=warnings.append, first_line=11)
    assert [i for i, one in enumerate(found) if one == PairScore()] == [0, 1, 3, 4, 6]
    assert found[0].log_prob == found[0].per_token == -math.inf
    assert found[2].ids == [EOS_ID]
    assert found[2].log_prob < 0
    assert warnings == [
        "line 11, 12: without a source, scored -inf, because the source is blank",
        "line 14: too long, scored -inf, because the source has more than 8 tokens, or 512 characters",
        "line 15, 17: too long, scored -inf, because the target has more than 8 tokens, or 512 characters",
    ]


def test_the_positions_of_the_model_are_a_limit() -> None:
    model, warnings = transformer(max_positions=9, positions=Positions.learned), list[str]()
    sources, targets = ["a", "a"], ["a" * 7, "a" * 8]
    fits, does_not = score(sources, targets, model, TOKENIZER, CFG, device=CPU, warn=warnings.append)
    assert (len(fits.ids), does_not.ids) == (9, [])
    assert warnings == [
        "line 2: too long, scored -inf, because the target has more than 9 tokens, or 576 characters"
    ]


def test_the_positions_of_a_language_model_limit_the_target_alone() -> None:
    model = Fusion(transformer(), language_model(max_positions=12), 0.3).eval()
    sources, targets, warnings = ["a" * 32, "a"], ["a" * 9, "a" * 10], list[str]()
    fits, does_not = score(sources, targets, model, TOKENIZER, CFG, device=CPU, warn=warnings.append)
    assert (len(fits.ids), does_not.ids) == (11, [])
    assert fits.log_prob < 0
    assert warnings == [
        "line 2: too long, scored -inf, because the target has more than 11 tokens, or 704 characters"
    ]


def test_nothing_to_score() -> None:
    assert score([], [], transformer(), TOKENIZER, CFG, device=CPU) == []
