"""Sampling of translations and continuations from the distribution of a model.

A sample is a function of the seed, the sentence and the number of the sample among those of the sentence,
whatever its batch: each sample has its own random numbers, one for each token, made before the first token.
Samples of a sentence that have begun alike are one row of the batch until they differ, and samples that have
ended have none.

A model wants as many rows of each sentence; a sentence with many different samples is therefore in the batch
several times, as groups of rows.

Shapes: B sentences, K samples a sentence, G groups of rows, R rows, V vocabulary, T tokens of the longest
sample allowed.

Top-k: Fan et al. 2018. Top-p (nucleus): Holtzman et al. 2020. Epsilon: Hewitt et al. 2022.
Min-p: Nguyen et al. 2024.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.decoding.configs import DrawingConfig, SamplingConfig
from nmt.decoding.hypotheses import Hypothesis, Wish, length_limits
from nmt.decoding.restrictions import UNLIKELY, Restrictions
from nmt.errors import UserError
from nmt.models.base import State, TranslationModel
from nmt.runtime import derive_seed

GROUP_SIZE = 8
"""Rows of a group, for which the model reads the source once."""
BLOCK_SIZE = 64
"""Tokens in a block of the vocabulary; a block is drawn first, then one of its tokens."""
NUCLEUS_TOKENS = 128
"""Tokens among which a nucleus is looked for before the whole vocabulary is sorted."""


def sample(
    model: TranslationModel,
    src: Tensor,
    src_mask: Tensor,
    cfg: SamplingConfig,
    wishes: Sequence[Wish] | None = None,
) -> list[list[Hypothesis]]:
    """Return `n_best` samples of every sentence, the likeliest per token first.

    `src` (B, S) ids, `src_mask` (B, S) bool, `wishes` one for each sentence. To be called without gradients,
    with the model in eval mode. Scores are made of the probabilities of the model, whatever the temperature
    and the rules for tokens.
    """
    return draw_samples(model, src, src_mask, cfg, cfg.n_best, wishes)


def draw_samples(
    model: TranslationModel,
    src: Tensor,
    src_mask: Tensor,
    cfg: DrawingConfig,
    num: int,
    wishes: Sequence[Wish] | None,
) -> list[list[Hypothesis]]:
    """Return `num` samples of every sentence, as `sample` does."""
    if any(wish.must for wish in wishes or ()):
        raise UserError(cfg.without_phrases)
    limits = length_limits(src_mask, model.max_length, cfg, wishes)
    given = limits.new_tensor([wish.num_given for wish in wishes]) if wishes else torch.zeros_like(limits)
    samples = Samples(limits, _numbers(src, src_mask, limits, cfg, num), given)
    last = torch.full_like(limits, BOS_ID)
    return _drawn(model, model.start(src, src_mask), last, samples, cfg, Restrictions(cfg, src_mask, wishes))


def _drawn(
    model: TranslationModel,
    state: State,
    last: Tensor,
    samples: Samples,
    cfg: DrawingConfig,
    rules: Restrictions,
) -> list[list[Hypothesis]]:
    """Return `samples` when all have ended; `last` (B,) are the tokens that `state` has not read."""
    while True:
        samples.extend(model.step(last, state).float(), cfg, None if rules.change_nothing else rules)
        staying = samples.open.any(1).nonzero().squeeze(1)
        if not len(staying):
            return samples.hypotheses()
        rows, groups, last = samples.share_rows(staying)
        state = state.select(rows, groups)


class Samples:
    """The samples of all sentences, and the rows of the batch that those still open continue."""

    def __init__(self, limits: Tensor, numbers: Tensor, given: Tensor, before: Sequence[int] = ()):
        """Begin with one row, the empty text, for each sentence: `limits` (B,), `numbers` (B, K, T).

        `given` (B,) are the first tokens that cost nothing; see `Wish.num_given`. `before` are ids that the
        rules find in front of every sample.
        """
        num_sentences, num, longest = numbers.shape
        self.ids = limits.new_full((num_sentences, num, longest), PAD_ID)
        self.log_probs = numbers.new_zeros(num_sentences, num)
        self.given, self.before = given, limits.new_tensor(list(before))
        self.length = 0
        # What follows is about the sentences that have open samples.
        self.sentences = torch.arange(num_sentences, device=limits.device)  # (B',) indices in `ids`
        self.limits, self.numbers = limits, numbers
        self.open = torch.ones_like(self.log_probs, dtype=torch.bool)  # (B', K)
        self.tokens = limits.new_zeros(num_sentences, num)  # (B', K), the last ones
        self.groups = self.sentences  # (B',) the first group of rows of each
        self.rows = self.groups[:, None].expand(-1, num)  # (B', K)

    def extend(self, logits: Tensor, cfg: DrawingConfig, rules: Restrictions | None = None) -> None:
        """Extend every open sample by one token, drawn by the `logits` (R, V) of its row."""
        log_probs = _allowed(logits.log_softmax(dim=-1))  # (R, V)
        rows = self.rows[self.open]  # (N,)
        drawn = log_probs if rules is None else self._ruled(log_probs, rules)
        tokens = draw(drawn, self.numbers[:, :, self.length][self.open], cfg, rows)
        is_given = (self.given[self.sentences] > self.length)[:, None].expand_as(self.open)[self.open]
        self.length += 1
        ending = (self.limits == self.length)[:, None].expand_as(self.open)[self.open]
        tokens = tokens.masked_fill(ending, EOS_ID)
        self.tokens = torch.full_like(self.rows, PAD_ID).masked_scatter(self.open, tokens)
        found = log_probs[rows, tokens].to(self.log_probs.dtype).masked_fill(is_given, 0.0)
        if rules is not None:  # which may force a token that no text shows
            found = found.clamp(min=UNLIKELY)
        added = torch.zeros_like(self.open, dtype=found.dtype).masked_scatter(self.open, found)
        self.ids[self.sentences, :, self.length - 1] = self.tokens
        self.log_probs[self.sentences] += added
        self.open = self.open & (self.tokens != EOS_ID)

    def _ruled(self, log_probs: Tensor, rules: Restrictions) -> Tensor:
        """Return the `log_probs` (R, V) of the tokens that may follow each row; EOS if none may."""
        places, numbers = self.open.nonzero().unbind(1)
        rows, none = self.rows[self.open], self.rows.new_zeros(len(log_probs))
        sentences = none.scatter(0, rows, self.sentences[places])  # (R,)
        ids = self.ids[sentences, none.scatter(0, rows, numbers), : self.length]
        ids = torch.cat([self.before.expand(len(ids), -1), ids], dim=1)
        return _by_rules(log_probs.clone(), ids, sentences, rules)

    def share_rows(self, staying: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows (R,) that go on, the groups (G,) that they are of, and their last tokens (R,).

        Only the sentences `staying` (B',) are kept. Open samples of a sentence that are alike are one row. A
        sentence has as many groups of rows as it needs, and one row again and again to fill the last.
        """
        self.sentences, self.limits = self.sentences[staying], self.limits[staying]
        self.numbers, self.open = self.numbers[staying], self.open[staying]
        none = torch.iinfo(torch.long).max
        keys = self.rows[staying] << 32 | self.tokens[staying]  # (B', K)
        keys, order = keys.masked_fill(~self.open, none).sort(dim=1)
        index = F.pad((keys[:, 1:] != keys[:, :-1]).long(), (1, 0)).cumsum(dim=1)  # (B', K)
        last = index.masked_fill(keys == none, 0).amax(dim=1)  # (B',) the index of the last row
        width = min(GROUP_SIZE, int(last.max()) + 1)
        num_groups = last // width + 1  # (B',)
        places = torch.arange(len(staying), device=last.device).repeat_interleave(num_groups)  # (G,)
        parents, self.groups = self.groups[staying][places], num_groups.cumsum(0) - num_groups
        number = torch.arange(len(places), device=last.device) - self.groups[places]  # (G,)
        slots = number[:, None] * width + torch.arange(width, device=last.device)  # (G, width)
        distinct = keys.scatter(1, index, keys)  # (B', K), as far as `last`
        rows = distinct[places[:, None], slots.minimum(last[places, None])].flatten()  # (R,)
        self.rows = torch.empty_like(index).scatter(1, order, index) + self.groups[:, None] * width
        return rows >> 32, parents, rows & 0xFFFFFFFF

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the samples of every sentence, the likeliest per token first; none of NaN or infinity."""
        groups = zip(self.ids.tolist(), self.log_probs.tolist(), self.given.tolist(), strict=True)
        found = (
            [_hypothesis(ids, log_prob, given) for ids, log_prob in zip(several, log_probs, strict=True)]
            for several, log_probs, given in groups
        )
        finite = ([sample for sample in group if isfinite(sample.score)] for group in found)
        return [sorted(group, key=lambda sample: -sample.score) for group in finite]


def continuation(
    model: TranslationModel, prompt: Sequence[int], cfg: SamplingConfig, *, window: int, device: torch.device
) -> Iterator[int]:
    """Yield sampled tokens of a text that begins with `prompt`, one after the other, without end.

    The model sees at most `window` tokens, the first of which is BOS as in training; when it has read that
    many, the model starts again from the last half. To be called without gradients, with the model in eval
    mode.
    """
    generator = torch.Generator().manual_seed(derive_seed("continuation", cfg.seed))
    nothing = torch.zeros(1, 0, dtype=torch.long, device=device)
    text, rules = list(prompt), Restrictions(cfg, torch.ones(1, 1, device=device), None)
    unread, state = [BOS_ID, *text[1 - window :]], model.start(nothing, nothing.bool())
    while True:
        if state.position + len(unread) > window:
            unread, state = [BOS_ID, *text[-(window // 2) :]], model.start(nothing, nothing.bool())
        for token in unread:
            logits = model.step(torch.tensor([token], device=device), state)
        number = torch.rand(1, generator=generator).to(device)
        logits = _allowed(logits.float())
        if not rules.change_nothing:
            ids, sentences = torch.tensor([text[-window:]], device=device), torch.zeros_like(number).long()
            logits = _by_rules(logits.log_softmax(1), ids, sentences, rules)
        token = int(draw(logits, number, cfg))
        yield token
        text, unread = [*text[-window:], token], [token]


def draw_lines(
    model: TranslationModel,
    before: Sequence[int],
    numbers: Sequence[int],
    cfg: SamplingConfig,
    *,
    longest: int,
    device: torch.device,
) -> list[list[int]]:
    """Return the tokens of a line for each of `numbers`, which with the seed decides it.

    Each continues the ids `before`, by itself, to its end: EOS, which is left out, or `longest` tokens. To be
    called without gradients, with the model in eval mode.
    """
    nothing = torch.zeros(len(numbers), 0, dtype=torch.long, device=device)
    state, (*read, last) = model.start(nothing, nothing.bool()), [BOS_ID, *before]
    for token in read:
        model.step(nothing.new_full((len(numbers),), token), state)
    limits = nothing.new_full((len(numbers),), longest + 1)  # EOS counts
    drawn = [_uniform(longest + 1, "line", cfg.seed, number) for number in numbers]
    prompt = [token for token in before if token != EOS_ID]
    samples = Samples(limits, torch.stack(drawn)[:, None].to(device), torch.zeros_like(limits), prompt)
    rules = Restrictions(cfg, torch.ones(len(numbers), 1, device=device), None)
    found = _drawn(model, state, torch.full_like(limits, last), samples, cfg, rules)
    return [line[0].ids if line else [] for line in found]


def draw(logits: Tensor, numbers: Tensor, cfg: DrawingConfig, rows: Tensor | None = None) -> Tensor:
    """Return a token (N,) for each of `numbers` (N,) from [0, 1), which decides it.

    The n-th is drawn by row rows[n] of `logits` (R, V), float32; None: by row n.
    """
    if rows is None:
        rows = torch.arange(len(numbers), device=numbers.device)
    if cfg.temperature == 0:
        return logits.argmax(dim=-1)[rows]
    probs = (logits if cfg.temperature == 1 else logits / cfg.temperature).softmax(dim=-1)
    probs = truncate(probs, cfg)
    if missing := -probs.shape[1] % BLOCK_SIZE:
        probs = F.pad(probs, (0, missing))
    blocks = probs.view(len(probs), -1, BLOCK_SIZE)
    ends = blocks.sum(dim=2).cumsum(dim=1)[rows]  # (N, blocks)
    reached = numbers * ends[:, -1]
    block = _first_above(ends, reached)  # (N,)
    before = F.pad(ends, (1, 0)).gather(1, block[:, None])[:, 0]
    inside = blocks[rows, block].cumsum(dim=1)  # (N, BLOCK_SIZE)
    return block * BLOCK_SIZE + _first_above(inside, reached - before)


def _first_above(sums: Tensor, numbers: Tensor) -> Tensor:
    """Return the first place (N,) of each row of rising `sums` (N, M) above its number (N,).

    A number that no sum exceeds counts as the largest number that the last sum does exceed.
    """
    last = torch.nextafter(sums[:, -1], torch.zeros_like(numbers))
    return (sums <= torch.minimum(numbers, last)[:, None]).sum(dim=1)


def truncate(probs: Tensor, cfg: DrawingConfig) -> Tensor:
    """Return `probs` (R, V) with 0 for the tokens that the config rules out; the likeliest always stays."""
    vocab_size = probs.shape[1]
    bounds = []  # the least probability that each rule allows
    if cfg.epsilon:
        bounds.append(probs.amax(dim=1).clamp(max=cfg.epsilon))
    if cfg.min_p:
        bounds.append(probs.amax(dim=1) * cfg.min_p)
    if cfg.top_k is not None and cfg.top_k < vocab_size:
        bounds.append(probs.topk(cfg.top_k).values[:, -1])
    if cfg.top_p < 1:
        best = probs.topk(min(NUCLEUS_TOKENS, vocab_size)).values
        bounds.append(_nucleus_bound(best, cfg.top_p))
        if len(more := (best.sum(dim=1) < cfg.top_p).nonzero()[:, 0]):
            bounds[-1][more] = _nucleus_bound(probs[more].sort(dim=1, descending=True).values, cfg.top_p)
    if not bounds:
        return probs
    return torch.where(probs < torch.stack(bounds).amax(dim=0)[:, None], 0.0, probs)


def _nucleus_bound(best: Tensor, top_p: float) -> Tensor:
    """Return the least (R,) of the largest probabilities `best` (R, M), falling, that is in the nucleus."""
    size = (best.cumsum(dim=1) - best < top_p).sum(dim=1, keepdim=True)
    return best.gather(1, (size - 1).clamp(min=0))[:, 0]  # none is below where the numbers have overflowed


def _by_rules(log_probs: Tensor, ids: Tensor, sentences: Tensor, rules: Restrictions) -> Tensor:
    """Return log probabilities (R, V) of what may follow `ids` (R, t); EOS where nothing may."""
    found = rules(log_probs[:, None], ids[:, None], sentences)[:, 0]
    is_stuck = found.amax(1) == -torch.inf
    found[:, EOS_ID] = found[:, EOS_ID].masked_fill(is_stuck, 0.0)
    return found


def _allowed(scores: Tensor) -> Tensor:
    """Return `scores` (R, V), overwritten, without the tokens that no text shows."""
    for special in (PAD_ID, UNK_ID, BOS_ID):  # a list would be copied to a GPU for every token
        scores[:, special] = -torch.inf
    return scores


def _numbers(src: Tensor, src_mask: Tensor, limits: Tensor, cfg: DrawingConfig, num: int) -> Tensor:
    """Return random numbers (B, K, T): a function of seed, sentence and the number of the sample."""
    longest = int(limits.max())
    numbers = torch.zeros(len(src), num, longest)
    for row, ids, real, limit in zip(numbers, src.tolist(), src_mask.tolist(), limits.tolist(), strict=True):
        sentence = [token for token, is_real in zip(ids, real, strict=True) if is_real]
        row[:, :limit] = _uniform(num * limit, "samples", cfg.seed, *sentence).view(num, limit)
    return numbers.to(src.device)


def _uniform(num: int, *parts: str | int) -> Tensor:
    """Return `num` random numbers from [0, 1), a function of `parts`."""
    return torch.rand(num, generator=torch.Generator().manual_seed(derive_seed(*parts)))


def _hypothesis(ids: list[int], log_prob: float, given: int) -> Hypothesis:
    tokens = [token for token in ids if token not in (PAD_ID, EOS_ID)]
    return Hypothesis(tokens, log_prob / (len(tokens) - given + 1), log_prob)
