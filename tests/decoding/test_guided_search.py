"""Rules, wishes, groups and coverage against enumeration, and for every family of models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.data.special_ids import BOS_ID, EOS_ID
from nmt.decoding import graph_search
from nmt.decoding.beam_search import beam_search
from nmt.decoding.configs import BeamConfig, LengthPenalty, SamplingConfig
from nmt.decoding.coverage import covered
from nmt.decoding.diverse import merged
from nmt.decoding.guided_search import search
from nmt.decoding.hypotheses import EDGE, Hypothesis, Wish
from nmt.decoding.sampling import sample
from nmt.errors import UserError
from nmt.models import build_model
from nmt.models.base import AttentionMaps, TranslationModel
from nmt.models.configs import (
    MODELS,
    AttentionScore,
    ConvolutionalConfig,
    DecoderOnlyConfig,
    EnsembleConfig,
    ModelConfig,
    RnnConfig,
    TransformerConfig,
    Tying,
)
from nmt.models.ensemble import Ensemble
from tests.decoding.test_beam_search import TableModel, sentences

A, B, C = 4, 5, 6
"""Three words of the vocabulary of seven tokens."""
WIDE = BeamConfig(beam_size=400, max_length_ratio=0.0, max_length_offset=5, length_penalty=LengthPenalty.none)
"""Search in a space of 1 + 4 + 16 + 64 + 256 texts, as wide as all of it."""


def texts_of(model: TableModel, src: Tensor, factor: float = 1.0) -> dict[tuple[int, ...], float]:
    """Return all texts of at most four tokens with their scores; repeated tokens count `factor` times."""
    found = {}
    open_texts: list[tuple[int, ...]] = [()]
    for length in range(5):
        for ids in open_texts:
            tgt_in = torch.tensor([[BOS_ID, *ids]])
            log_probs = model(src, torch.ones_like(src, dtype=torch.bool), tgt_in)[0].double().log_softmax(-1)
            tokens = [*ids, EOS_ID]
            weights = [factor if token in ids[:i] else 1.0 for i, token in enumerate(tokens)]
            found[ids] = sum(
                w * float(log_probs[i, t]) for i, (w, t) in enumerate(zip(weights, tokens, strict=True))
            )
        open_texts = [(*ids, token) for ids in open_texts for token in (1, A, B, C)] if length < 4 else []
    return found


def has(ids: tuple[int, ...], phrase: list[int]) -> bool:
    return any(list(ids[i : i + len(phrase)]) == phrase for i in range(len(ids)))


def is_whole_before_b(ids: tuple[int, ...], phrase: list[int]) -> bool:
    return any(has(ids, [*phrase, other]) for other in (1, A, C)) or list(ids[-len(phrase) :]) == phrase


def repeats(ids: tuple[int, ...], n: int) -> bool:
    ngrams = [ids[i : i + n] for i in range(len(ids) - n + 1)]
    return len(set(ngrams)) < len(ngrams)


Fits = Callable[[tuple[int, ...]], bool]
CASES: list[tuple[dict[str, Any], Wish, Fits]] = [
    ({"no_repeat_ngram_size": 1}, Wish(), lambda ids: not repeats(ids, 1)),
    ({"no_repeat_ngram_size": 2}, Wish(), lambda ids: not repeats(ids, 2)),
    ({"min_length": 3}, Wish(), lambda ids: len(ids) >= 3),
    ({}, Wish(avoid=[[A], [B, C]]), lambda ids: A not in ids and not has(ids, [B, C])),
    (
        {},
        Wish(avoid=[[EDGE, A], [EDGE, B, C]], word_ends=range(7)),
        lambda ids: ids[:1] != (A,) and ids[:2] != (B, C),
    ),
    (
        {},
        Wish(avoid=[[EDGE, A], [EDGE, B, C]], word_ends=[B]),
        lambda ids: (
            not any(has((1, *ids), [before, A]) or has((1, *ids), [before, B, C]) for before in (1, A, C))
        ),
    ),
    ({}, Wish(prefix=[C, A]), lambda ids: ids[:2] == (C, A)),
    ({}, Wish(must=[[[A, B]]]), lambda ids: has(ids, [A, B])),
    ({}, Wish(must=[[[A, B]], [[B, C]]]), lambda ids: has(ids, [A, B]) and has(ids, [B, C])),
    ({}, Wish(must=[[[A, B], [C, C]]]), lambda ids: has(ids, [A, B]) or has(ids, [C, C])),
    (
        {},
        Wish(must=[[[A]], [[A, B]]], word_parts=[B], word_ends=[A, B]),
        lambda ids: (
            has(ids, [A, B]) and any(token == A and ids[i + 1 : i + 2] != (B,) for i, token in enumerate(ids))
        ),
    ),
    (
        {},
        Wish(must=[[[A, B]], [[A, A]]]),
        lambda ids: has(ids, [A, A]) and has(ids, [A, B]),
    ),
    (
        {"min_length": 4, "no_repeat_ngram_size": 2},
        Wish(prefix=[B], must=[[[C]]], avoid=[[A, A], [1]]),
        lambda ids: (
            len(ids) == 4
            and ids[0] == B
            and C in ids
            and 1 not in ids
            and not has(ids, [A, A])
            and not repeats(ids, 2)
        ),
    ),
]


@pytest.mark.parametrize(("keys", "wish", "fits"), CASES)
def test_the_best_text_that_fits_is_found(keys: dict[str, Any], wish: Wish, fits: Fits) -> None:
    model = TableModel(vocab_size=7, eos_bias=1.0)
    src, src_mask = sentences(3, longest=4, vocab_size=7)
    # A limit is raised for what must fit in; here all texts are of one space.
    model.max_length = 5
    found = search(model, src, src_mask, replace(WIDE, n_best=5, **keys), [wish, Wish(), wish])
    for b, hypotheses in enumerate(found):
        everything = texts_of(model, src[b : b + 1, src_mask[b]])
        if b == 1:  # the wish is not for this sentence
            continue
        fitting = {ids: score for ids, score in everything.items() if fits(ids)}
        best = sorted(fitting, key=lambda ids: -fitting[ids])[:5]
        assert [tuple(h.ids) for h in hypotheses] == best
        assert [h.score for h in hypotheses] == pytest.approx([fitting[ids] for ids in best], abs=1e-4)


def test_a_text_starts_behind_the_tokens_that_are_given() -> None:
    model = TableModel(vocab_size=7, eos_bias=1.0)
    src, src_mask = sentences(1, longest=4, vocab_size=7)
    model.max_length = 5
    wish = Wish(prefix=[C], avoid=[[EDGE, A]], word_ends=range(7), num_given=1)
    (hypotheses,) = search(model, src, src_mask, replace(WIDE, n_best=30), [wish])
    everything = texts_of(model, src[:, src_mask[0]])
    fitting = [ids for ids in everything if ids[:1] == (C,) and ids[1:2] != (A,)]
    best = sorted(fitting, key=lambda ids: -everything[ids])[:30]
    assert [tuple(h.ids) for h in hypotheses] == best
    assert any(A in h.ids for h in hypotheses)


def test_a_token_that_is_given_is_none_of_the_fewest() -> None:
    model = TableModel(vocab_size=7, eos_bias=5.0)
    src, src_mask = sentences(1, longest=4, vocab_size=7)
    cfg = replace(WIDE, min_length=3, max_length_ratio=0.0, max_length_offset=0)
    for wish, length in ((Wish(), 3), (Wish(prefix=[C], num_given=1), 4)):
        ((best, *_),) = search(model, src, src_mask, cfg, [wish])
        assert len(best.ids) == length


def test_a_repeated_token_counts_the_penalty_times() -> None:
    model = TableModel(vocab_size=7)
    src, src_mask = sentences(2, longest=4, vocab_size=7)
    found = search(model, src, src_mask, replace(WIDE, repetition_penalty=1.7))
    for b, [best] in enumerate(found):
        everything = texts_of(model, src[b : b + 1, src_mask[b]], 1.7)
        assert tuple(best.ids) == max(everything, key=lambda ids: everything[ids])
        assert best.score == pytest.approx(max(everything.values()), abs=1e-4)


def test_the_rest_of_a_prefix_may_be_spelt_by_any_of_its_tokens() -> None:
    """The rest "xy" is spelt by A = "x" and B = "y", or by C = "xyz"; the text after it is free."""
    model = TableModel(vocab_size=7, eos_bias=1.0, max_length=5)
    src, src_mask = sentences(4, longest=4, vocab_size=7)
    wish = Wish(prefix=[B], rest=[{A: 1, C: 2}, {B: 2}])
    found = search(model, src, src_mask, replace(WIDE, n_best=3), [wish] * 4)
    for b, hypotheses in enumerate(found):
        everything = texts_of(model, src[b : b + 1, src_mask[b]])
        fitting = {k: v for k, v in everything.items() if k[:3] == (B, A, B) or k[:2] == (B, C)}
        assert [tuple(h.ids) for h in hypotheses] == sorted(fitting, key=lambda k: -fitting[k])[:3]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_where_the_rules_allow_nothing_there_is_still_a_translation(beam_size: int) -> None:
    model = TableModel(vocab_size=7, eos_bias=-20.0, max_length=6)
    src, src_mask = sentences(5, longest=4, vocab_size=7)
    cfg = BeamConfig(beam_size=beam_size, no_repeat_ngram_size=1, min_length=9)
    for [best] in search(model, src, src_mask, cfg):
        assert sorted(best.ids) == [1, A, B, C]  # no token twice, and none is left
    forbidden = [Wish(avoid=[[token] for token in (1, A, B, C)])] * 5
    assert [best.ids for [best] in search(model, src, src_mask, cfg, forbidden)] == [[]] * 5
    samples = SamplingConfig(no_repeat_ngram_size=1, min_length=9)
    for [best] in sample(model, src, src_mask, samples):
        assert sorted(best.ids) == [A, B, C]  # samples have no unknown token
    long = Wish(prefix=[A], avoid=[[A]])  # what begins a translation goes before what it must avoid
    assert all(best.ids[0] == A for [best] in search(model, src, src_mask, cfg, [long] * 5))


def test_a_limit_gives_way_to_what_must_fit_in() -> None:
    model = TableModel(vocab_size=7, eos_bias=-20.0)
    src, src_mask = sentences(2, longest=4, vocab_size=7)
    cfg = BeamConfig(max_length_ratio=0.0, max_length_offset=2)
    assert [len(best.ids) for [best] in search(model, src, src_mask, replace(cfg, min_length=7))] == [7, 7]
    [[long], [short]] = search(model, src, src_mask, cfg, [Wish(prefix=[A] * 6), Wish()])
    assert long.ids[:6] == [A] * 6
    assert len(short.ids) == 1


def test_what_cannot_be_met_is_a_translation_without_it() -> None:
    model = TableModel(vocab_size=7, max_length=3)
    src, src_mask = sentences(2, longest=4, vocab_size=7)
    for [best] in search(model, src, src_mask, BeamConfig(), [Wish(must=[[[A, B, C, A, B]]])] * 2):
        assert len(best.ids) == 2


def test_a_phrase_does_not_begin_a_longer_word() -> None:
    model = TableModel(vocab_size=7, eos_bias=-2.0)
    src, src_mask = sentences(8, longest=4, vocab_size=7)
    wishes = [Wish(must=[[[A]]], word_parts=[B, C], word_ends=[A])] * 8
    for [best] in search(model, src, src_mask, BeamConfig(beam_size=8), wishes):
        assert A in best.ids
        assert not has(tuple(best.ids), [A, B])
        assert not has(tuple(best.ids), [A, C])


@pytest.mark.parametrize("beam_size", [2, 5, 20])
def test_many_phrases_of_one_beginning_are_all_there(beam_size: int) -> None:
    phrases = [[A, A, B, last] for last in range(7, 13)]
    model = TableModel(vocab_size=13, eos_bias=1.0)
    src, src_mask = sentences(8, longest=6, vocab_size=13)
    wishes = [Wish(must=[[phrase] for phrase in phrases])] * 8
    for [best] in search(model, src, src_mask, BeamConfig(beam_size=beam_size), wishes):
        assert all(has(tuple(best.ids), phrase) for phrase in phrases)


def tiny(cfg: ModelConfig, seed: int = 0) -> TranslationModel:
    torch.manual_seed(seed)
    model = build_model(cfg, src_vocab_size=23, tgt_vocab_size=23).eval()
    with torch.no_grad():  # far from uniform, as a trained model is
        for weight in model.parameters():
            weight.mul_(2.0)
    return model


SIZE: dict[str, Any] = {"d_model": 16, "dropout": 0.0}
LAYERS: dict[str, Any] = {**SIZE, "encoder_layers": 2, "decoder_layers": 2}
FAMILIES: dict[str, Callable[[], TranslationModel]] = {
    "transformer": lambda: tiny(TransformerConfig(**LAYERS, d_ff=32, num_heads=2)),
    "decoder_only": lambda: tiny(DecoderOnlyConfig(**SIZE, d_ff=32, num_heads=2, num_layers=2)),
    "convolutional": lambda: tiny(ConvolutionalConfig(**LAYERS, tying=Tying.none)),
    "rnn": lambda: tiny(RnnConfig(**SIZE)),
    "ensemble": lambda: Ensemble(
        [tiny(TransformerConfig(**LAYERS, d_ff=32, num_heads=2)), tiny(RnnConfig(**SIZE), 1)],
        EnsembleConfig(),
    ).eval(),
}


def test_every_family_is_below() -> None:
    searched = {name for name, (config, _) in MODELS.items() if not config().finds_labels_alone}
    assert set(FAMILIES) == {*searched, "ensemble"}


def one_by_one_and_together(
    found: Callable[[Tensor, Tensor, list[Wish]], list[list[Hypothesis]]], wishes: list[Wish]
) -> list[list[Hypothesis]]:
    """Search for sentences together, after making sure that each alone has the same translations."""
    src, src_mask = sentences(len(wishes), longest=9, vocab_size=23)
    with torch.inference_mode():
        together = found(src, src_mask, wishes)
        for b, ours in enumerate(together):
            (alone,) = found(src[b : b + 1, src_mask[b]], src_mask[b : b + 1, src_mask[b]], [wishes[b]])
            assert [h.ids for h in ours] == [h.ids for h in alone]
            assert [h.score for h in ours] == pytest.approx([h.score for h in alone], rel=1e-3, abs=1e-3)
    return together


WORDS: dict[str, Any] = {"word_parts": [20], "word_ends": [6, 8, 9, 19]}
WISHES = [
    Wish(must=[[[7, 8]], [[9]]], **WORDS),
    Wish(),
    Wish(prefix=[10, 11], rest=[{12: 1, 13: 2}, {14: 2}], num_given=1),
    Wish(avoid=[[5], [6, 7]]),
    Wish(prefix=[9], must=[[[4, 5, 6], [19]]], avoid=[[8]], **WORDS),
    Wish(),
]
RULES: dict[str, Any] = {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2, "min_length_ratio": 0.5}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_gives_what_its_sentences_give_one_by_one(family: str) -> None:
    model = FAMILIES[family]()
    cfg = BeamConfig(beam_size=6, n_best=3, coverage_penalty=0.3, **RULES)
    found = one_by_one_and_together(
        lambda src, src_mask, wishes: search(model, src, src_mask, cfg, wishes), WISHES
    )
    for wish, hypotheses in zip(WISHES, found, strict=True):
        assert hypotheses
        for one in hypotheses:
            ids = tuple(one.ids)
            assert all(any(has(ids, one) for one in spellings) for spellings in wish.must)
            assert not any(has(ids, phrase) for phrase in wish.avoid)
            assert not repeats(ids, 2)
            assert list(ids[: len(wish.prefix)]) == wish.prefix
            assert not wish.rest or ids[2] == 13 or ids[2:4] == (12, 14)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["groups", "greedy", "samples"])
def test_groups_greedy_search_and_samples_do_not_depend_on_the_batch(family: str, kind: str) -> None:
    model, wishes = FAMILIES[family](), [replace(wish, must=[]) for wish in WISHES]
    if kind == "samples":
        drawing = SamplingConfig(n_best=3, **RULES)
        found = one_by_one_and_together(
            lambda src, src_mask, given: sample(model, src, src_mask, drawing, given), wishes
        )
    else:
        sizes = {"beam_size": 6, "num_groups": 3, "n_best": 4} if kind == "groups" else {"beam_size": 1}
        cfg = BeamConfig(**sizes, **RULES)  # type: ignore[arg-type]
        found = one_by_one_and_together(
            lambda src, src_mask, given: search(model, src, src_mask, cfg, given), wishes
        )
    for wish, hypotheses in zip(wishes, found, strict=True):
        for one in hypotheses:
            assert one.ids[: len(wish.prefix)] == wish.prefix
            assert not any(has(tuple(one.ids), phrase) for phrase in wish.avoid)
            assert not repeats(tuple(one.ids), 2)


def test_groups_without_a_penalty_are_the_same_beam_and_with_one_they_differ() -> None:
    model = TableModel(vocab_size=60)
    src, src_mask = sentences(6)
    narrow = beam_search(model, src, src_mask, BeamConfig(beam_size=2, n_best=2))
    cfg = BeamConfig(beam_size=6, n_best=3, num_groups=3, diversity_penalty=0.0)
    same = search(model, src, src_mask, cfg)
    assert [[h.ids for h in several] for several in same] == [[h.ids for h in several] for several in narrow]
    apart = search(model, src, src_mask, replace(cfg, diversity_penalty=1e3))
    for alone, several in zip(narrow, apart, strict=True):
        assert len({h.ids[0] if h.ids else EOS_ID for h in several}) == 3
        assert alone[0].ids in [h.ids for h in several]  # of the first group
        for one in several:  # the penalty is in no score
            b = apart.index(several)
            expected = model.log_prob(src[b : b + 1, src_mask[b]], one.ids)
            assert one.log_prob == pytest.approx(expected, abs=1e-3)


def test_the_best_of_every_group_is_taken_before_any_second_one_and_all_are_sorted() -> None:
    first = [Hypothesis([4], -1.0, -1.0), Hypothesis([5], -2.0, -2.0)]
    second = [Hypothesis([4], -1.0, -1.0), Hypothesis([6], -3.0, -3.0)]
    third = [Hypothesis([7], -9.0, -9.0)]
    assert [[h.ids for h in x] for x in merged([first, second, third], 3, 2)] == [[[4], [7]]]
    assert [[h.ids for h in x] for x in merged([first, second, third], 3, 3)] == [[[4], [5], [7]]]


def test_coverage_is_added_to_scores_and_ranks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FAMILIES["transformer"]()

    def attention(src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> AttentionMaps:
        """Let the first target attend to the first source token, and so on; in two layers, of one head."""
        weights = torch.eye(tgt_in.shape[1], src.shape[1]).expand(len(src), 1, -1, -1)
        return AttentionMaps(cross=[weights, weights])

    monkeypatch.setattr(model, "attention", attention)
    short, whole = Hypothesis([4], -1.0, -1.0), Hypothesis([4, 5, 6], -2.0, -2.0)
    src, src_mask = torch.tensor([[4, 5, EOS_ID, 0]]), torch.tensor([[True, True, True, False]])
    missing = math.log(1e-6)  # the third token of the source, for two targets
    (ranked,) = covered(model, src, src_mask, [[short, whole]], 0.1, 2)
    assert [h.ids for h in ranked] == [[4, 5, 6], [4]]
    assert [h.score for h in ranked] == pytest.approx([-2.0, -1.0 + 0.1 * missing])


def test_coverage_needs_attention() -> None:
    model = tiny(RnnConfig(**SIZE, attention=AttentionScore.none))
    src, src_mask = sentences(2)
    with pytest.raises(
        UserError, match=r"decoding.coverage_penalty needs a model that attends to the source"
    ):
        search(model, src, src_mask, BeamConfig(coverage_penalty=0.2))


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (BeamConfig(beam_size=1), "need several beams, but decoding.beam_size=1; try decoding.beam_size=10"),
        (BeamConfig(beam_size=4, num_groups=2), "decoding.num_groups=2 is for sentences without phrases"),
    ],
)
def test_phrases_that_must_appear_need_room(cfg: BeamConfig, message: str) -> None:
    src, src_mask = sentences(1)
    with pytest.raises(UserError, match=message):
        search(TableModel(vocab_size=11), src, src_mask, cfg, [Wish(must=[[[4]]])])


def test_samples_cannot_have_phrases() -> None:
    src, src_mask = sentences(1)
    with pytest.raises(
        UserError, match=r"need a beam, but decoding.strategy=sampling draws tokens at random"
    ):
        sample(TableModel(vocab_size=11), src, src_mask, SamplingConfig(), [Wish(must=[[[4]]])])


def test_graphs_and_kernels_are_for_searches_that_nothing_guides(monkeypatch: pytest.MonkeyPatch) -> None:
    plain: list[BeamConfig] = []

    def recorded(model: TranslationModel, src: Tensor, src_mask: Tensor, cfg: BeamConfig) -> list[Any]:
        plain.append(cfg)
        return []

    monkeypatch.setattr(graph_search, "search", recorded)
    src, src_mask = sentences(2)
    model, cfg = TableModel(vocab_size=11), BeamConfig(cuda_graphs=True, n_best=2)
    search(model, src, src_mask, cfg, [Wish(), Wish()])
    assert plain == [cfg]
    search(model, src, src_mask, cfg, [Wish(), Wish(avoid=[[4]])])
    search(model, src, src_mask, replace(cfg, min_length=1))
    assert plain == [cfg]
