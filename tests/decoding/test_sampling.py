"""Sampling: the right distribution, the same samples in every batch, and texts without end."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.decoding.configs import SamplingConfig
from nmt.decoding.hypotheses import Wish, length_limits
from nmt.decoding.sampling import _numbers, continuation, draw, draw_lines, sample, truncate
from nmt.errors import UserError
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.models.configs import DecoderOnlyConfig, TransformerConfig

CPU = torch.device("cpu")
PROBS = [0.5, 0.3, 0.15, 0.05]


def evenly(num: int) -> Tensor:
    """Numbers that a perfect generator would give: the middles of `num` equal parts of [0, 1)."""
    return (torch.arange(num) + 0.5) / num


def shares(cfg: SamplingConfig, num: int = 10_000) -> list[float]:
    """How often each of four tokens is drawn."""
    logits = torch.tensor([PROBS[2], PROBS[0], PROBS[3], PROBS[1]]).log().expand(num, -1)
    counts = Counter(draw(logits, evenly(num), cfg).tolist())
    return [counts[token] / num for token in (1, 3, 0, 2)]


@pytest.mark.parametrize(
    ("cfg", "expected"),
    [
        (SamplingConfig(), PROBS),
        (SamplingConfig(temperature=0.5), [p * p / sum(q * q for q in PROBS) for p in PROBS]),
        (SamplingConfig(temperature=0), [1, 0, 0, 0]),
        (SamplingConfig(top_k=1), [1, 0, 0, 0]),
        (SamplingConfig(top_k=2), [0.5 / 0.8, 0.3 / 0.8, 0, 0]),
        (SamplingConfig(top_k=9), PROBS),
        (SamplingConfig(top_p=0.7), [0.5 / 0.8, 0.3 / 0.8, 0, 0]),
        (SamplingConfig(top_p=0.4), [1, 0, 0, 0]),
        (SamplingConfig(top_p=0.9, top_k=2), [0.5 / 0.8, 0.3 / 0.8, 0, 0]),
        (SamplingConfig(epsilon=0.2), [0.5 / 0.8, 0.3 / 0.8, 0, 0]),
        (SamplingConfig(epsilon=0.9), [1, 0, 0, 0]),
        (SamplingConfig(epsilon=0.01), PROBS),
        (SamplingConfig(min_p=0.5), [0.5 / 0.8, 0.3 / 0.8, 0, 0]),
        (SamplingConfig(min_p=0.9), [1, 0, 0, 0]),
        (SamplingConfig(epsilon=0.1, top_k=2), [0.5 / 0.8, 0.3 / 0.8, 0, 0]),
        (SamplingConfig(epsilon=0.2, top_p=0.9), [0.5 / 0.8, 0.3 / 0.8, 0, 0]),
    ],
)
def test_tokens_are_drawn_from_the_distribution(cfg: SamplingConfig, expected: list[float]) -> None:
    assert shares(cfg) == pytest.approx(expected, abs=2e-4)


def test_a_number_near_one_draws_a_possible_token() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0]])
    assert draw(logits, torch.tensor([1 - 2**-24]), SamplingConfig()).item() in (0, 2)


@pytest.mark.parametrize("vocab_size", [1, 63, 64, 65, 1000])
def test_a_number_draws_the_token_that_it_reaches(vocab_size: int) -> None:
    """The first token, in the order of the vocabulary, up to which the probabilities exceed the number."""
    torch.manual_seed(1)
    logits, numbers = torch.randn(3, vocab_size), torch.rand(40)
    rows = torch.arange(40) % 3
    sums = logits.double().softmax(dim=1).cumsum(dim=1)[rows]
    expected = (sums <= numbers[:, None]).sum(dim=1)
    assert draw(logits, numbers, SamplingConfig(), rows).tolist() == expected.tolist()


def test_a_nucleus_may_be_most_of_the_vocabulary() -> None:
    logits = torch.stack([torch.arange(1000) * -1e-4, torch.arange(1000) * -1.0])
    for top_p, sizes in ((0.9, [898, 3]), (0.05, [48, 1])):
        kept = truncate(logits.softmax(dim=1), SamplingConfig(top_p=top_p)) > 0
        assert kept.sum(dim=1).tolist() == pytest.approx(sizes, abs=2)
        assert [bool(row[: int(row.sum())].all()) for row in kept] == [True, True]


@pytest.fixture
def model() -> TranslationModel:
    cfg = TransformerConfig(d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1)
    return build_model(cfg, src_vocab_size=23, tgt_vocab_size=23).eval()


SRC = torch.tensor([[5, 6, 7, EOS_ID], [8, 9, EOS_ID, PAD_ID], [10, EOS_ID, PAD_ID, PAD_ID]])
CFG = SamplingConfig(n_best=3, max_length_ratio=1.0, max_length_offset=3)


@torch.inference_mode()
def test_a_batch_gives_what_its_sentences_give_one_by_one(model: TranslationModel) -> None:
    together = sample(model, SRC, SRC != PAD_ID, CFG)
    for row, found in zip(SRC, together, strict=True):
        alone = row[row != PAD_ID][None]
        (expected,) = sample(model, alone, alone != PAD_ID, CFG)
        assert [h.ids for h in found] == [h.ids for h in expected]
        assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize(
    "cfg", [CFG, SamplingConfig(n_best=25, top_k=3), SamplingConfig(n_best=25, epsilon=0.3)]
)
def test_samples_that_share_rows_are_those_of_rows_of_their_own(
    model: TranslationModel, cfg: SamplingConfig
) -> None:
    mask = SRC != PAD_ID
    limits = length_limits(mask, None, cfg)
    numbers = _numbers(SRC, mask, limits, cfg, cfg.n_best)
    for b, found in enumerate(sample(model, SRC, mask, cfg)):
        expected = []
        for own in numbers[b]:
            state, ids = model.start(SRC[b : b + 1], mask[b : b + 1]), [BOS_ID]
            while ids[-1] != EOS_ID and len(ids) < limits[b]:
                logits = model.step(torch.tensor(ids[-1:]), state)
                logits[:, [PAD_ID, UNK_ID, BOS_ID]] = -torch.inf
                ids.append(int(draw(logits, own[len(ids) - 1 : len(ids)], cfg)))
            expected.append(tuple(token for token in ids[1:] if token != EOS_ID))
        assert Counter(tuple(h.ids) for h in found) == Counter(expected)


@torch.inference_mode()
def test_a_model_whose_numbers_overflow_gives_no_sample(model: TranslationModel) -> None:
    model.output.weight.fill_(torch.nan)
    for cfg in (CFG, replace(CFG, top_p=0.9)):
        assert sample(model, SRC, SRC != PAD_ID, cfg) == [[], [], []]


@torch.inference_mode()
def test_a_prefix_with_an_unknown_character_gives_samples_all_the_same(model: TranslationModel) -> None:
    wishes = [Wish([5, UNK_ID]) for _ in SRC]
    for found in sample(model, SRC, SRC != PAD_ID, CFG, wishes):
        assert [h.ids[:2] for h in found] == [[5, UNK_ID]] * CFG.n_best


@torch.inference_mode()
def test_samples_are_a_function_of_the_seed(model: TranslationModel) -> None:
    ids = [
        [[h.ids for h in found] for found in sample(model, SRC, SRC != PAD_ID, replace(CFG, seed=seed))]
        for seed in (1, 1, 2)
    ]
    assert ids[0] == ids[1] != ids[2]
    assert any(len({tuple(tokens) for tokens in found}) > 1 for found in ids[0])


@torch.inference_mode()
def test_scores_are_those_of_the_model(model: TranslationModel) -> None:
    """A token that is given costs nothing, and counts in no length."""
    mask = SRC != PAD_ID
    for cfg, given in ((CFG, 0), (replace(CFG, temperature=0.3, top_k=5), 0), (CFG, 1)):
        wishes = [Wish([5] * given, num_given=given)] * len(SRC)
        for b, found in enumerate(sample(model, SRC, mask, cfg, wishes)):
            assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
            for h in found:
                tgt_in = torch.tensor([[BOS_ID, *h.ids]])
                logits = model.project(model(SRC[b : b + 1], mask[b : b + 1], tgt_in))[0]
                picked = logits.log_softmax(-1)[torch.arange(len(h.ids) + 1), [*h.ids, EOS_ID]]
                assert h.log_prob == pytest.approx(float(picked[given:].sum()), abs=1e-4)
                assert h.score == pytest.approx(h.log_prob / (len(h.ids) + 1 - given))


@torch.inference_mode()
def test_lengths_have_limits_and_no_special_id_is_drawn(model: TranslationModel) -> None:
    cfg = SamplingConfig(n_best=20, temperature=5.0, max_length_ratio=0.0, max_length_offset=4)
    samples = [h for found in sample(model, SRC, SRC != PAD_ID, cfg) for h in found]
    assert max(len(h.ids) for h in samples) == 3
    assert not {PAD_ID, BOS_ID, EOS_ID, UNK_ID} & {token for h in samples for token in h.ids}


@pytest.fixture
def language_model() -> TranslationModel:
    cfg = DecoderOnlyConfig(d_model=16, d_ff=32, num_heads=2, num_layers=1, max_positions=8)
    return build_model(cfg, src_vocab_size=23, tgt_vocab_size=23).eval()


@torch.inference_mode()
def test_a_continuation_has_no_end(language_model: TranslationModel) -> None:
    def tokens(prompt: list[int], num: int, **changes: Any) -> list[int]:
        cfg = SamplingConfig(**changes)
        return list(itertools.islice(continuation(language_model, prompt, cfg, window=8, device=CPU), num))

    found = tokens([5, 6], 50)
    assert len(found) == 50
    assert found == tokens([5, 6], 50) != tokens([5, 6], 50, seed=2)
    assert found[:20] == tokens([5, 6], 20)
    assert len(tokens(list(range(4, 23)), 5)) == 5  # a prompt longer than the window


@torch.inference_mode()
def test_a_continuation_sees_the_text_before_it(language_model: TranslationModel) -> None:
    """The likeliest token each time, as long as all of the text fits the window."""
    text = [5, 6, 7]
    nothing = torch.zeros(1, 0, dtype=torch.long)
    found = continuation(language_model, text, SamplingConfig(temperature=0), window=8, device=CPU)
    for token in itertools.islice(found, 4):
        tgt_in = torch.tensor([[BOS_ID, *text]])
        logits = language_model.project(language_model(nothing, nothing.bool(), tgt_in))[0, -1]
        logits[[PAD_ID, BOS_ID, UNK_ID]] = -torch.inf
        assert token == int(logits.argmax())
        text.append(token)


@torch.inference_mode()
def test_a_continuation_beyond_the_window_begins_anew_as_training_does(
    language_model: TranslationModel,
) -> None:
    """BOS, then the last half of the window: the likeliest token of that follows."""
    text = list(range(4, 23))
    nothing = torch.zeros(1, 0, dtype=torch.long)

    def likeliest(seen: list[int]) -> int:
        logits = language_model.project(language_model(nothing, nothing.bool(), torch.tensor([seen])))[0, -1]
        logits[[PAD_ID, BOS_ID, UNK_ID]] = -torch.inf
        return int(logits.argmax())

    found = continuation(language_model, text, SamplingConfig(temperature=0), window=8, device=CPU)
    text.append(next(found))
    assert text[-1] == likeliest([BOS_ID, *text[-8:-1]])  # the window is full of the prompt
    for size in (4, 5, 6, 7):
        text.append(next(found))
        assert text[-1] == likeliest([BOS_ID, *text[-1 - size : -1]])
    text.append(next(found))
    assert text[-1] == likeliest([BOS_ID, *text[-5:-1]])


def lines_of(
    model: TranslationModel, before: list[int], numbers: range, *, longest: int = 5, **changes: Any
) -> list[list[int]]:
    cfg = SamplingConfig(**changes)
    with torch.inference_mode():
        return draw_lines(model, before, numbers, cfg, longest=longest, device=CPU)


def test_a_line_is_a_function_of_the_seed_and_its_number(language_model: TranslationModel) -> None:
    together = lines_of(language_model, [EOS_ID, 7], range(40))
    assert [*lines_of(language_model, [EOS_ID, 7], range(3)), together[3]] == together[:4]
    assert lines_of(language_model, [EOS_ID, 7], range(20, 40)) == together[20:]
    assert lines_of(language_model, [EOS_ID, 7], range(40), seed=2) != together
    assert lines_of(language_model, [EOS_ID, 8], range(40)) != together
    shorter = lines_of(language_model, [EOS_ID, 7], range(40), longest=2)
    assert len({*map(tuple, together)}) > 30
    assert max(map(len, together)) == 5 > max(map(len, shorter)) == 2
    tokens = {token for line in together for token in line}
    assert not {PAD_ID, BOS_ID, EOS_ID, UNK_ID} & tokens


def test_rules_know_the_beginning_of_a_line(language_model: TranslationModel) -> None:
    before = [EOS_ID, 7, 8]
    free = lines_of(language_model, before, range(40), longest=4)
    ruled = lines_of(language_model, before, range(40), longest=4, no_repeat_ngram_size=1)
    assert any({7, 8} & {*line} for line in free)
    assert not any({7, 8} & {*line} for line in ruled)
    assert sum(len(line) < 4 for line in ruled) > 0  # EOS in front of the line is no repetition


@torch.inference_mode()
def test_a_line_goes_on_as_the_model_says(language_model: TranslationModel) -> None:
    """The likeliest token each time, until EOS or the limit."""
    nothing = torch.zeros(1, 0, dtype=torch.long)
    for before in ([EOS_ID], [EOS_ID, 5, 9]):
        line, *same = lines_of(language_model, before, range(3), longest=3, temperature=0)
        assert same == [line, line]
        for length, token in enumerate([*line, EOS_ID][:3]):
            tgt_in = torch.tensor([[BOS_ID, *before, *line[:length]]])
            logits = language_model.project(language_model(nothing, nothing.bool(), tgt_in))[0, -1]
            logits[[PAD_ID, BOS_ID, UNK_ID]] = -torch.inf
            assert token == int(logits.argmax())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": -1.0}, "decoding.temperature must be finite and not negative, but is -1.0"),
        ({"temperature": math.inf}, "decoding.temperature must be finite and not negative, but is inf"),
        ({"top_k": 0}, "decoding.top_k must be at least 1 or null, but is 0"),
        ({"top_p": 0.0}, "decoding.top_p must be in (0, 1], but is 0.0"),
        ({"epsilon": -0.1}, "decoding.epsilon must be in [0, 1), but is -0.1"),
        ({"min_p": 1.0}, "decoding.min_p must be in [0, 1), but is 1.0"),
        ({"top_p": 1.1}, "decoding.top_p must be in (0, 1], but is 1.1"),
    ],
)
def test_values_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        SamplingConfig(**changes)
