"""Ensembles: copies of a model are the model, different models are the mean of their predictions.

What every model must do, search included, is tested for ensembles in `test_contract`, too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from nmt import kernels
from nmt.config.roots import RunConfig
from nmt.data.batches.batching import Batch
from nmt.decoding import decode
from nmt.decoding.configs import BeamConfig, DecodingConfig, SamplingConfig
from nmt.decoding.hypotheses import Hypothesis
from nmt.decoding.sampling import continuation
from nmt.errors import UserError
from nmt.layers.choices import Positions
from nmt.layers.low_precision import LowPrecisionLinear, in_low_precision
from nmt.models import ensemble as module
from nmt.models.base import TranslationModel
from nmt.models.configs import EnsembleConfig, Mean, ModelConfig
from nmt.models.ensemble import Ensemble, mean_of_weights
from nmt.runtime_config import Precision
from nmt.translation.evaluate import validation_values
from tests.models.test_contract import (
    VOCAB_SIZE,
    Sentences,
    build,
    decoder_only,
    every_family,
    logits_of,
    rnn,
    transformer,
)

SEARCHES = [
    BeamConfig(beam_size=3, n_best=2, max_length_ratio=1.0, max_length_offset=4),
    BeamConfig(beam_size=1, max_length_ratio=1.0, max_length_offset=4),
    SamplingConfig(n_best=2, max_length_ratio=1.0, max_length_offset=4),
]
CPU = torch.device("cpu")
OF_PREDICTIONS = [Mean.probabilities, Mean.log_probabilities]


def together(
    *models: TranslationModel, mean: Mean = Mean.probabilities, weights: list[float] | None = None
) -> Ensemble:
    """Return an ensemble in eval mode."""
    return Ensemble([model.eval() for model in models], EnsembleConfig(mean, weights)).eval()


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[h.ids for h in hypotheses] for hypotheses in found] == [
        [h.ids for h in hypotheses] for hypotheses in expected
    ]
    for mine, theirs in zip(found, expected, strict=True):
        for field in ("score", "log_prob"):
            assert_close(
                [getattr(h, field) for h in mine], [getattr(h, field) for h in theirs], atol=1e-4, rtol=0
            )


@pytest.mark.parametrize("mean", OF_PREDICTIONS)
@pytest.mark.parametrize("cfg", every_family(), ids=lambda cfg: f"{cfg.name}-{cfg.d_model}")
@torch.inference_mode()
def test_copies_of_a_model_translate_as_the_model(cfg: ModelConfig, mean: Mean, sentences: Sentences) -> None:
    model = build(cfg).eval()
    copies = together(model, copy.deepcopy(model), copy.deepcopy(model), mean=mean, weights=[1.0, 2.0, 5.0])
    src, src_mask, _ = sentences(4, 6, 1)
    for search in SEARCHES:
        assert_same(decode(copies, src, src_mask, search), decode(model, src, src_mask, search))


@pytest.mark.parametrize("search", SEARCHES, ids=["beam", "greedy", "sampling"])
@torch.inference_mode()
def test_the_kernels_choose_what_torch_chooses(search: DecodingConfig, sentences: Sentences) -> None:
    model = together(*map(build, every_family()))
    src, src_mask, _ = sentences(5, 7, 1)
    found = decode(model, src, src_mask, search)
    with kernels.disabled():
        assert_same(decode(model, src, src_mask, search), found)
    alone = [decode(model, src[b : b + 1, :n], src_mask[b : b + 1, :n], search) for b, n in lengths(src_mask)]
    assert_same([hypotheses for (hypotheses,) in alone], found)


def lengths(src_mask: Tensor) -> list[tuple[int, int]]:
    return list(enumerate(src_mask.sum(1).tolist()))


def by_hand(
    models: list[TranslationModel], weights: list[float], mean: Mean, batch: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Return the mean of the predictions in float64."""
    probs = [logits_of(model, *batch).double().softmax(-1) for model in models]
    if mean is Mean.probabilities:
        return sum(weight * p for weight, p in zip(weights, probs, strict=True)).log()  # type: ignore[union-attr]
    product = math.prod((p**weight for weight, p in zip(weights, probs, strict=True)), start=torch.ones(()))
    return (product / product.sum(-1, keepdim=True)).log()


@pytest.mark.parametrize("mean", OF_PREDICTIONS)
def test_the_mean_is_that_of_the_definition(mean: Mean, sentences: Sentences) -> None:
    models = [build(cfg).eval() for cfg in every_family()]
    batch = sentences(3, 5, 4)
    raw = [3.0, 1.0, 0.5, 2.0, 3.5]
    logits = logits_of(together(*models, mean=mean, weights=raw), *batch)
    assert logits.dtype is torch.float32
    assert_close(logits.exp().sum(-1), torch.ones(3, 4))  # log probabilities already
    assert_close(logits.log_softmax(-1), logits)
    assert_close(logits.double(), by_hand(models, [w / 10.0 for w in raw], mean, batch), atol=1e-5, rtol=0)
    equal = logits_of(together(*models, mean=mean), *batch)
    assert_close(equal.double(), by_hand(models, [0.2] * 5, mean, batch), atol=1e-5, rtol=0)


@pytest.mark.parametrize("cfg", every_family(), ids=lambda cfg: f"{cfg.name}-{cfg.d_model}")
def test_the_mean_of_weights_counts_a_matrix_with_several_names_once(cfg: ModelConfig) -> None:
    """In a family with tied embeddings these have two or three names."""
    models = [build(cfg).eval(), build(cfg).eval()]
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.add_(1.0)
    before, mean = copy.deepcopy(models[0].state_dict()), mean_of_weights(models, [0.75, 0.25])
    for name, x in mean.state_dict().items():
        expected = 0.75 * before[name] + 0.25 * models[1].state_dict()[name]
        assert_close(x, expected, atol=1e-6, rtol=0)
        assert torch.equal(models[0].state_dict()[name], before[name])
    alone = mean_of_weights([models[0], models[0]], [0.3, 0.7])
    assert all(torch.equal(x, before[name]) for name, x in alone.state_dict().items())


def constant(*logits: float) -> TranslationModel:
    """Return a model that always predicts the same."""
    model = build(transformer())
    model.output = nn.Linear(16, len(logits))
    nn.init.zeros_(model.output.weight)
    model.output.bias = nn.Parameter(torch.tensor(logits))
    return model


@torch.inference_mode()
def test_the_means_differ_where_one_model_is_against_a_token() -> None:
    """Of two certain models: both tokens for the arithmetic mean, what neither rules out for the other."""
    models, hidden = (constant(0.0, -90.0, -2.0), constant(-90.0, 0.0, -2.0)), torch.zeros(1, 32)
    likely, other = torch.tensor([0.0, -2.0]).softmax(0).tolist()
    arithmetic = together(*models).project(hidden)
    assert_close(arithmetic.exp(), torch.tensor([[likely / 2, likely / 2, other]]))
    geometric = together(*models, mean=Mean.log_probabilities).project(hidden)
    assert_close(geometric.exp(), torch.tensor([[0.0, 0.0, 1.0]]))


@torch.inference_mode()
def test_no_log_probability_underflows() -> None:
    """A token whose probability is below what float32 can hold has a finite log probability."""
    for mean in Mean:
        model = together(constant(0.0, -200.0), constant(0.0, -200.0), mean=mean)
        assert_close(model.project(torch.zeros(1, 32)), torch.tensor([[0.0, -200.0]]))


@pytest.mark.parametrize("at_once", [1, 40, 1 << 23])
@torch.inference_mode()
def test_the_loss_of_an_ensemble_is_that_of_its_predictions(
    at_once: int, sentences: Sentences, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many logits are made at a time; that of copies is the loss of the model."""
    monkeypatch.setattr(module, "LOGITS_AT_ONCE_ON_CPU", at_once)
    first, second = build(transformer()), build(rnn())
    src, src_mask, tgt_in = sentences(3, 5, 4)
    tgt_out, mask = torch.randint(4, VOCAB_SIZE, (3, 4)), torch.ones(3, 4, dtype=torch.bool)
    mask[1, 2:] = False
    batch = Batch(src, src_mask, tgt_in, tgt_out, mask.flatten().nonzero().squeeze(1))
    model = together(first, second)
    log_probs = logits_of(model, src, src_mask, tgt_in).log_softmax(-1).gather(2, tgt_out[:, :, None])
    expected = -float(log_probs[mask].sum()) / int(mask.sum())
    assert validation_values(model, [batch], device=CPU)["loss"] == pytest.approx(expected, rel=1e-5)
    copies = validation_values(together(first, first), [batch], device=CPU)["loss"]
    assert copies == pytest.approx(validation_values(first, [batch], device=CPU)["loss"], rel=1e-5)


def test_the_shortest_positions_of_all_members_count() -> None:
    plain, learned = build(rnn()), build(transformer(positions=Positions.learned))
    assert together(plain, learned).max_length == 32
    assert together(plain, plain).max_length is None
    assert together(build(decoder_only()), learned).max_length == 15


def test_a_model_alone_is_its_only_member() -> None:
    models = [build(rnn()), build(transformer())]
    assert models[0].members == [models[0]]
    assert together(*models).members == models


def test_an_ensemble_may_have_an_ensemble_as_a_member(sentences: Sentences) -> None:
    a, b, c = build(transformer()), build(rnn(d_model=12)), build(decoder_only())
    nested, flat = together(together(a, b), c, weights=[2.0, 1.0]), together(a, b, c)
    src, src_mask, tgt_in = sentences(3, 5, 4)
    assert_close(logits_of(nested, src, src_mask, tgt_in), logits_of(flat, src, src_mask, tgt_in))
    search = SEARCHES[0]
    assert_same(decode(nested, src, src_mask, search), decode(flat, src, src_mask, search))


@pytest.mark.parametrize("precision", [Precision.bf16, Precision.fp16])
@torch.inference_mode()
def test_low_precision_is_that_of_every_member(precision: Precision, sentences: Sentences) -> None:
    models = [build(cfg).eval() for cfg in every_family()]
    batch = sentences(3, 5, 4)
    rough = in_low_precision(together(*models), precision)
    assert sum(isinstance(layer, LowPrecisionLinear) for layer in rough.modules()) > 20
    alone = [in_low_precision(model, precision) for model in models]
    expected = by_hand(alone, [0.2] * 5, Mean.probabilities, batch)
    assert_close(logits_of(rough, *batch).double(), expected, atol=1e-5, rtol=0)
    assert_close(logits_of(rough, *batch), logits_of(together(*models), *batch), atol=0.1, rtol=0.1)
    src, src_mask, _ = batch
    assert len(decode(rough, src, src_mask, SEARCHES[0])) == 3


def test_language_models_continue_a_text_together() -> None:
    models = [build(decoder_only(d_model=width)).eval() for width in (16, 8)]
    cfg = SamplingConfig(temperature=0.7)

    def first_tokens(model: TranslationModel) -> list[int]:
        with torch.inference_mode():
            tokens = continuation(model, [5, 6], cfg, window=8, device=CPU)
            return [next(tokens) for _ in range(20)]

    assert first_tokens(together(models[0], copy.deepcopy(models[0]))) == first_tokens(models[0])
    assert first_tokens(together(*models)) != first_tokens(models[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: EnsembleConfig(weights=[1.0, 0.0]),
            "ensemble.weights must be positive, but one is 0.0; leave out runs without weight",
        ),
        (
            lambda: EnsembleConfig(weights=[math.nan]),
            "ensemble.weights must be positive, but one is nan; leave out runs without weight",
        ),
        (
            lambda: EnsembleConfig(weights=[5e-324, 1e308]).normalised(2),
            "ensemble.weights: 5e-324 is nothing beside 1e+308; leave out runs without weight",
        ),
        (
            lambda: RunConfig(run=["a", "b"], ensemble=EnsembleConfig(weights=[1.0])),
            "ensemble.weights must have one number for each of 2 runs, but has 1",
        ),
        (
            lambda: RunConfig(run="a", ensemble=EnsembleConfig(weights=[1.0, 2.0])),
            "ensemble.weights must have one number for each of 1 runs, but has 2",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert str(caught.value) == message


def test_weights_are_shares_however_large_they_are() -> None:
    assert EnsembleConfig(weights=[1e308, 1e308]).normalised(2) == [0.5, 0.5]
