"""Search over a part of the vocabulary: what it may find, the same in every batch, by every strategy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nmt.data.special_ids import EOS_ID
from nmt.data.tokens.shortlist import PieceIds
from nmt.decoding import decode
from nmt.decoding.configs import BeamConfig, DecodingConfig, MBRConfig, SamplingConfig
from nmt.decoding.hypotheses import EDGE, Hypothesis, Wish
from nmt.layers.low_precision import in_low_precision
from nmt.models.base import TranslationModel
from nmt.models.configs import EnsembleConfig, Mean
from nmt.models.ensemble import Ensemble
from nmt.models.fusion import Fusion
from nmt.runtime_config import Precision
from tests.models.test_contract import VOCAB_SIZE, build, decoder_only, transformer

SHORT: dict[str, Any] = {"max_length_ratio": 1.0, "max_length_offset": 4}
SEARCHES: list[DecodingConfig] = [
    BeamConfig(beam_size=1, **SHORT),
    BeamConfig(beam_size=4, n_best=3, min_length=3, coverage_penalty=0.2, **SHORT),
    BeamConfig(beam_size=4, n_best=4, num_groups=2, **SHORT),
    SamplingConfig(n_best=3, min_length=2, **SHORT),
    MBRConfig(num_samples=4, beam_size=2, epsilon=0.0, **SHORT),
]
SRC = torch.tensor([[5, 6, 7, 8, EOS_ID], [9, 5, EOS_ID, 0, 0], [10, 11, 4, EOS_ID, 0]])
MASK = SRC != 0


def model() -> TranslationModel:
    torch.manual_seed(1)
    return build(transformer()).eval()


def sets(*own: list[int]) -> list[PieceIds]:
    """Return what sentences may have: the special ids and their own."""
    return [np.array([*range(EOS_ID + 1), *sorted(ids)], np.int64) for ids in own]


OWN = sets([4, 5, 6, 9], [7, 8, 12], [4, 10, 11, 12, 13])
ALL = [np.arange(VOCAB_SIZE)] * 3


def found(
    net: TranslationModel,
    cfg: DecodingConfig,
    allowed: list[PieceIds] | None,
    wishes: list[Wish] | None = None,
    rows: slice = slice(None),
) -> list[list[Hypothesis]]:
    with torch.inference_mode():
        some, wished = allowed and allowed[rows], wishes and wishes[rows]
        return decode(net, SRC[rows], MASK[rows], cfg, wished, some)


def ids_of(several: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[one.ids for one in best] for best in several]


@pytest.mark.parametrize("cfg", SEARCHES, ids=lambda cfg: f"{cfg.strategy}{cfg.rows_per_sentence}")
def test_a_sentence_has_its_own_tokens_in_every_batch(cfg: DecodingConfig) -> None:
    net = model()
    together = found(net, cfg, OWN)
    for own, found_ids in zip(OWN, ids_of(together), strict=True):
        assert found_ids
        assert {token for ids in found_ids for token in ids} <= set(own.tolist())
    for row, best in enumerate(together):
        (alone,) = found(net, cfg, OWN, rows=slice(row, row + 1))
        assert [one.ids for one in alone] == [one.ids for one in best]
        assert [one.score for one in alone] == pytest.approx([one.score for one in best], abs=1e-4)


@pytest.mark.parametrize("cfg", SEARCHES[:3], ids=lambda cfg: f"{cfg.strategy}{cfg.rows_per_sentence}")
def test_all_tokens_are_the_search_without_a_shortlist(cfg: DecodingConfig) -> None:
    assert ids_of(found(model(), cfg, ALL)) == ids_of(found(model(), cfg, None))


@pytest.mark.parametrize("precision", [Precision.int8, Precision.bf16])
def test_low_precision_rounds_the_rows_that_are_left_as_those_of_all(precision: Precision) -> None:
    net = in_low_precision(model(), precision)
    assert ids_of(found(net, SEARCHES[0], ALL)) == ids_of(found(net, SEARCHES[0], None))
    for own, (ids,) in zip(OWN, ids_of(found(net, SEARCHES[0], OWN)), strict=True):
        assert {*ids} <= {*own.tolist()}


@pytest.mark.parametrize("mean", [Mean.probabilities, Mean.log_probabilities])
def test_an_ensemble_with_a_language_model_is_narrowed_in_all_its_models(mean: Mean) -> None:
    pair = Ensemble([model(), build(transformer()).eval()], EnsembleConfig(mean))
    net = Fusion(pair, build(decoder_only()).eval(), 0.3).eval()
    cfg = SEARCHES[1]
    together = found(net, cfg, OWN)
    for row in range(3):
        (alone,) = found(net, cfg, OWN, rows=slice(row, row + 1))
        assert [one.ids for one in alone] == [one.ids for one in together[row]]
        assert [one.score for one in alone] == pytest.approx([one.score for one in together[row]], abs=1e-4)


def test_what_is_wished_for_joins_the_tokens() -> None:
    wishes = [
        Wish(prefix=[13, 14], avoid=[[5], [15, 6], [EDGE, 16]]),
        Wish(must=[[[14, 15], [17]]], word_parts=[7, 16], word_ends=[15]),
        Wish(prefix=[12], rest=[{15: 1, 16: 1}], capitals=[*OWN[2].tolist(), 18], letters=[7, 16]),
    ]
    first, second, third = (best[0].ids for best in ids_of_best(wishes))
    assert first[:2] == [13, 14]
    assert 5 not in first
    assert 17 in second or [14, 15] in [second[i : i + 2] for i in range(len(second))]
    assert third[0] == 12
    assert third[1] in (15, 16)
    assert not {*third[2:3]} & {*OWN[2].tolist()}


def test_an_ended_word_brings_no_tokens_where_one_that_goes_on_is_allowed() -> None:
    """A space is to come, which begins half of all tokens."""
    allowed = set(OWN[0].tolist())
    inside, outside = min(allowed - {0, 1, 2, 3}), max(set(range(17)) - allowed)
    wish = Wish(prefix=[inside], rest=[{inside: 1, outside: 1}])
    (best, *_) = ids_of_best([wish, Wish(), Wish()])
    assert all(one.ids[1] == inside and outside not in one.ids for one in best)
    wish = Wish(prefix=[inside], rest=[{outside: 1}])
    (best, *_) = ids_of_best([wish, Wish(), Wish()])
    assert all(one.ids[1] == outside for one in best)


def ids_of_best(wishes: list[Wish]) -> list[list[Hypothesis]]:
    return found(model(), BeamConfig(beam_size=6, **SHORT), OWN, wishes)
