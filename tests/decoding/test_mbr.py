"""Minimum Bayes risk decoding: its choice, its candidates, and translation with it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sacrebleu.metrics.chrf import CHRF

from nmt.data.special_ids import EOS_ID, PAD_ID
from nmt.decoding import decode
from nmt.decoding.configs import MBRConfig, ReferenceWeights, SamplingConfig
from nmt.decoding.hypotheses import Hypothesis, Wish
from nmt.decoding.mbr import draw_candidates, rank
from nmt.decoding.sampling import sample
from nmt.errors import UserError
from nmt.metrics.configs import Utility
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.models.configs import EnsembleConfig, TransformerConfig
from nmt.models.ensemble import Ensemble
from nmt.runs.opened import Run
from nmt.runs.opening import open_run
from nmt.runtime_config import RuntimeConfig

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "run_0_1"
LINES = ["the cat sleeps in the house", "the dog", "", "a red house sees the dog in the garden", "the dog"]
SRC = torch.tensor([[5, 6, 7, EOS_ID], [8, 9, EOS_ID, PAD_ID], [10, EOS_ID, PAD_ID, PAD_ID]])
CFG = MBRConfig(num_samples=12, epsilon=0.0, max_length_ratio=1.0, max_length_offset=3)


def tiny(seed: int = 1) -> TranslationModel:
    torch.manual_seed(seed)
    cfg = TransformerConfig(d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1)
    return build_model(cfg, src_vocab_size=23, tgt_vocab_size=23).eval()


@pytest.fixture(scope="module")
def run() -> Run:
    return open_run(FIXTURE, runtime_cfg=RuntimeConfig(device="cpu", threads=1))


def hypotheses(log_probs: Sequence[float]) -> list[Hypothesis]:
    return [Hypothesis([i], score=0.0, log_prob=x) for i, x in enumerate(log_probs)]


FOUND = ["the cat sat", "a dog", "the cat sits", "the cat sat", "the bat sat", "the bat sat", "the bat sat"]


@pytest.mark.parametrize("weights", ReferenceWeights)
def test_the_choice_by_hand(weights: ReferenceWeights) -> None:
    """What was found again weighs as its likeliest tokens."""
    log_probs = [-1.0, -0.5, -3.0, -2.0, -4.0, -6.0, -5.0]
    cfg = MBRConfig(n_best=9, num_samples=9, reference_weights=weights)
    found = rank(hypotheses(log_probs), FOUND, cfg)
    references = {
        text: max(x for one, x in zip(FOUND, log_probs, strict=True) if one == text) for text in FOUND
    }
    shares = {text: FOUND.count(text) for text in references}
    if weights is ReferenceWeights.probability:
        shares = {text: 2.718281828459045**log_prob for text, log_prob in references.items()}
    expected = {
        text: sum(CHRF().sentence_score(text, [ref]).score * share for ref, share in shares.items())
        / sum(shares.values())
        for text in references
    }
    order = sorted(expected, key=lambda text: -expected[text])
    assert [FOUND[place] for place, _ in found] == order
    assert [score for _, score in found] == pytest.approx([expected[text] for text in order])
    assert [place for place, _ in found] == [FOUND.index(text) for text in order]  # where it was found first
    assert rank(hypotheses(log_probs), FOUND, replace(cfg, n_best=2)) == found[:2]


@pytest.mark.parametrize(("utility", "aggregate"), list(itertools.product(Utility, (False, True))))
def test_one_candidate_is_the_choice(utility: Utility, aggregate: bool) -> None:
    for text, score in (("the cat sat on the mat", 100.0), ("", 0.0)):
        cfg = MBRConfig(num_samples=1, utility=utility, aggregate=aggregate)
        ((place, found),) = rank(hypotheses([-1.0]), [text], cfg)
        assert place == 0
        assert found == pytest.approx(score)


@torch.inference_mode()
def test_candidates_are_the_samples_and_the_beam() -> None:
    model, mask = tiny(), SRC != PAD_ID
    drawn = sample(model, SRC, mask, SamplingConfig(n_best=12, max_length_ratio=1.0, max_length_offset=3))
    beam = decode(model, SRC, mask, replace(CFG, beam_size=3).beam())
    assert [len(best) for best in beam] == [3, 3, 3]
    both = draw_candidates(model, SRC, mask, replace(CFG, beam_size=3))
    assert both == [samples + best for samples, best in zip(drawn, beam, strict=True)]
    assert draw_candidates(model, SRC, mask, replace(CFG, num_samples=0, beam_size=3)) == beam


@torch.inference_mode()
def test_candidates_of_an_ensemble_or_of_each_of_its_models() -> None:
    models, mask = [tiny(1), tiny(2)], SRC != PAD_ID
    ensemble = Ensemble(models, EnsembleConfig())
    cfg = replace(CFG, beam_size=2, pool_models=True)
    one, other = (
        draw_candidates(model, SRC, mask, replace(cfg, seed=seed))
        for seed, model in enumerate(models, start=1)
    )
    assert draw_candidates(ensemble, SRC, mask, cfg) == [a + b for a, b in zip(one, other, strict=True)]
    of_both = draw_candidates(ensemble, SRC, mask, replace(cfg, pool_models=False))
    assert [len(found) for found in of_both] == [14, 14, 14]
    assert draw_candidates(models[0], SRC, mask, cfg) == one


@torch.inference_mode()
@pytest.mark.parametrize("num_allowed", [23, 15])
def test_a_candidate_weighs_alike_from_a_beam_and_from_samples(num_allowed: int) -> None:
    """A penalty for repetition changes what is found, not what it weighs."""
    greedy = replace(CFG, num_samples=1, temperature=0.0, beam_size=1, max_length_offset=9)
    cfg = replace(greedy, repetition_penalty=1.1, reference_weights=ReferenceWeights.probability)
    allowed = [np.arange(EOS_ID, num_allowed)] * 3
    wishes = [Wish(), Wish(prefix=[5, 6]), Wish(prefix=[7], num_given=1)]
    for drawn, best in decode(tiny(), SRC, SRC != PAD_ID, cfg, wishes, allowed):
        assert drawn.ids == best.ids
        assert len(set(best.ids)) < len(best.ids)
        assert drawn.log_prob == pytest.approx(best.log_prob)
    found = decode(tiny(), SRC, SRC != PAD_ID, replace(cfg, num_samples=0, beam_size=4), wishes, allowed)
    assert [len(several) for several in found] == [4, 4, 4]


def test_translation_returns_the_best_by_utility(run: Run) -> None:
    cfg = MBRConfig(num_samples=16, temperature=2.0, n_best=4)
    found = list(run.translate(LINES, cfg))
    assert found[2].text == ""
    assert not found[2].alternatives
    for translation in (found[0], found[1], found[3]):
        ranked = [translation, *translation.alternatives]
        scores = [x.score for x in ranked]
        assert scores == sorted(scores, reverse=True)
        assert 0 < scores[-1] <= scores[0] <= 100
        assert len({x.text for x in ranked}) == len(ranked) > 1
        assert [run.tokenizer.decode(x.ids) for x in ranked] == [x.text for x in ranked]
    assert found[1] == found[4]


def test_one_sample_is_the_sampled_translation(run: Run) -> None:
    sampled = run.translate(LINES, SamplingConfig(temperature=2.0))
    chosen = run.translate(LINES, MBRConfig(num_samples=1, temperature=2.0, epsilon=0.0))
    assert [x.text for x in chosen] == [x.text for x in sampled]


def test_a_batch_gives_what_its_lines_give_one_by_one(run: Run) -> None:
    for cfg in (
        MBRConfig(num_samples=16, temperature=2.0, n_best=2),
        MBRConfig(beam_size=4, utility=Utility.bleu),
    ):
        together = list(run.translate(LINES, cfg))
        alone = [next(run.translate([line], cfg)) for line in LINES]
        assert [x.text for x in together] == [x.text for x in alone]
        assert [x.score for x in together] == pytest.approx([x.score for x in alone])


def test_translations_are_a_function_of_the_seed(run: Run) -> None:
    cfg = MBRConfig(num_samples=2, temperature=4.0, epsilon=0.0)
    first, again, other = (
        [x.text for x in run.translate(LINES, replace(cfg, seed=seed))] for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_samples": 0},
            "decoding=mbr needs candidates; set decoding.num_samples or decoding.beam_size",
        ),
        (
            {"num_samples": 2, "beam_size": 1, "n_best": 5},
            "decoding.n_best must not exceed decoding.num_samples + decoding.beam_size, but 5 > 3; "
            "try decoding.num_samples=4",
        ),
        ({"num_samples": -1}, "decoding.num_samples must be at least 0, but is -1"),
        ({"epsilon": 1.0}, "decoding.epsilon must be in [0, 1), but is 1.0"),
        (
            {"beam_size": 2, "length_penalty_alpha": -1.0},
            "decoding.length_penalty_alpha must be finite and not negative, but is -1.0",
        ),
    ],
)
def test_values_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        MBRConfig(**changes)
