"""Beam search, which with one beam is greedy search: from a trained model to target token ids.

Search knows a model only through `start`, `advance`, `project` (or the weights of `output`, for a kernel)
and `max_length`, so nothing here asks which family of models it has. It does not know text either:
`nmt.translation.translate` tokenises and detokenises.

Shapes: B sentences still in search, K beams, V vocabulary. Beams of one sentence are adjacent: row b * K + k.
Before the first token each sentence has one beam, the empty hypothesis.
Scores: natural-log probability of the hypothesis, summed over its tokens (EOS counted, BOS not), divided by a
penalty that grows with its length. Only finished hypotheses need a penalty: open ones are all of one length.
Stopping: a sentence is done when it has `patience` x K finished hypotheses, when no open one can beat the
worst hypothesis to be returned, or at its own length limit, where EOS is forced and scored. It then leaves
the batch.

With K = 1 the result equals greedy search, with K as large as the space it is the optimum, and a batch gives
what its sentences give one by one; all three are tested.

Beam search: Sutskever et al. 2014, section 3.2. GNMT length penalty: Wu et al. 2016, equation 14. Patience:
Kasai et al. 2022.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.decoding.candidates import Candidates, allowed_log_probs, best_candidates, take
from nmt.decoding.configs import BeamConfig, LengthPenalty
from nmt.decoding.hypotheses import Hypothesis, length_limits
from nmt.models.base import State, TranslationModel

Choose = Callable[["Beams", Tensor, int], Candidates]
"""A rule that changes scores (n-gram blocking, a forced prefix, groups of diverse beams), such as the `Guide`
of `nmt.decoding.guided_search`. Its arguments are the beams, the log probabilities (B, K, V) of all
continuations of `beams.open`, and the number of candidates to return, in the order in which the beam takes
them, most often by `best_sums`. `Beams.done` relies on sums that never rise."""


def beam_search(
    model: TranslationModel,
    src: Tensor,
    src_mask: Tensor,
    cfg: BeamConfig,
    choose: Choose | None = None,
    *,
    limits: Tensor | None = None,
    given: Tensor | None = None,
    num_groups: int = 1,
) -> list[list[Hypothesis]]:
    """Return the `n_best` best hypotheses of every sentence, best first; fewer only where fewer exist.

    `src` (B, S) ids, `src_mask` (B, S) bool. To be called without gradients, with the model in eval mode.
    Without `choose`, the most probable continuations are chosen, by a kernel where there is one.
    `limits` (B,) are the most tokens of each sentence, those of the config by default, and `given` (B,) the
    tokens at its beginning that count in no length penalty (`Wish.num_given`). With several groups a sentence
    is searched for as many times, B then being the number of all groups; those of a sentence are adjacent.
    """
    limits = length_limits(src_mask, model.max_length, cfg) if limits is None else limits
    state = model.start(src, src_mask)
    if num_groups > 1:
        rows = torch.arange(len(src), device=src.device).repeat_interleave(num_groups)
        state, limits = state.select(rows, rows), limits[rows]
        given = None if given is None else given[rows]
    results: list[list[Hypothesis]] = [[] for _ in range(len(limits))]
    beams = Beams(limits, cfg, choose, given)
    while True:
        beams.grow(model, state)
        done, staying = beams.done(), None
        if done.any():  # the one place in a step where the host waits for the device
            beams.report(done, results)
            staying = (~done).nonzero().squeeze(1)
            if not len(staying):
                return results
            beams.select(staying)
        state = state.select(beams.rows(staying), staying)


def penalty(length: Tensor | int, cfg: BeamConfig) -> Tensor | float:
    """Return the divisor of the log probability of a hypothesis of `length` tokens, EOS included."""
    base: dict[LengthPenalty, Tensor | float] = {
        LengthPenalty.gnmt: (5.0 + length) / 6.0,
        LengthPenalty.average: length,
        LengthPenalty.none: 1.0,
    }
    return base[cfg.length_penalty] ** cfg.length_penalty_alpha


class OpenBeams(NamedTuple):
    """The hypotheses of each sentence that may still grow, in the order chosen; -inf where there is none."""

    log_probs: Tensor
    """(B, K)"""
    parents: Tensor
    """(B, K) number of the beam that a hypothesis continues"""
    ids: Tensor
    """(B, K, t), padded in front"""


class FinishedBeams(NamedTuple):
    """The best hypotheses of each sentence that have ended, best first; -inf where there is none."""

    scores: Tensor
    """(B, n_best)"""
    log_probs: Tensor
    """(B, n_best)"""
    ids: Tensor
    """(B, n_best, t) without EOS, padded on either side"""


class Beams:
    """The hypotheses of the sentences that are still in search."""

    def __init__(
        self, limits: Tensor, cfg: BeamConfig, choose: Choose | None = None, given: Tensor | None = None
    ):
        self.cfg = cfg
        self.choose = choose
        self.given = given  # (B,), None where nothing is given
        self.length: int | Tensor = 0  # tokens of an open hypothesis; a tensor () where a device counts them
        self.sentences = torch.arange(len(limits), device=limits.device)  # (B,) indices in the first batch
        self.limits = limits  # (B,)
        self.num_parents = 1
        empty = limits.new_zeros(len(limits), 1, 0)
        self.open = OpenBeams(torch.zeros(len(limits), 1, device=limits.device), empty.sum(2), empty)
        self.num_finished = torch.zeros_like(limits)  # (B,)
        missing = limits.new_full((len(limits), cfg.n_best), -torch.inf, dtype=torch.float32)
        self.finished = FinishedBeams(missing, missing, empty.expand(-1, cfg.n_best, -1))

    def last_tokens(self) -> Tensor:
        """Return the token (B * K,) that each open hypothesis ends with."""
        ids = self.open.ids
        return ids[:, :, -1].flatten() if ids.shape[2] else torch.full_like(self.limits, BOS_ID)

    def grow(self, model: TranslationModel, state: State) -> None:
        """Extend every open hypothesis by one token, chosen by the log probabilities of `model`."""
        hidden = model.advance(self.last_tokens(), state)  # (B * K, D)
        ending, num = self.ending(), 2 * self.cfg.beam_size
        if self.choose is None:
            self.extend(best_candidates(model, hidden, self.open.log_probs, ending, num))
        else:
            self.extend(self.choose(self, allowed_log_probs(model.project(hidden), ending), num))

    def ending(self) -> Tensor:
        """Return which sentences (B,) reach their limit with the next token, which must then be EOS."""
        return self.limits == self.length + 1

    def extend(self, found: Candidates) -> None:
        """Extend the hypotheses by one token, given the 2K best continuations of each sentence.

        At most K of these continuations end, one per beam, so that K open ones remain. An ended hypothesis
        counts only if it is among the K best.
        """
        self.length += 1
        self.num_parents = self.open.log_probs.shape[1]
        beam_size = self.cfg.beam_size
        best, parents, tokens = found  # (B, 2K)
        ends = tokens == EOS_ID
        self._collect(best.masked_fill(~ends, -torch.inf)[:, :beam_size], parents[:, :beam_size])

        growing = ends.byte().argsort(dim=1, stable=True)[:, :beam_size]  # (B, K) indices in `found`
        parents = parents.gather(1, growing)
        ids = self.make_room(take(self.open.ids, parents))  # (B, K, t)
        ids = torch.cat([ids, tokens.gather(1, growing)[:, :, None]], dim=2)  # (B, K, t + 1)
        self.open = OpenBeams(best.masked_fill(ends, -torch.inf).gather(1, growing), parents, ids)

    def make_room(self, ids: Tensor) -> Tensor:
        """Return the columns of `ids` (B, J, t) that stay when one is appended: here, all."""
        return ids

    def _collect(self, log_probs: Tensor, parents: Tensor) -> None:
        """Merge hypotheses that end now into the finished ones: `log_probs` (B, K), -inf where none ends."""
        self.num_finished = self.num_finished + (log_probs > -torch.inf).sum(1)
        scores = log_probs / self.penalty(self.length)
        scores = torch.cat([self.finished.scores, scores], dim=1)
        log_probs = torch.cat([self.finished.log_probs, log_probs], dim=1)
        ids = torch.cat([self.finished.ids, take(self.open.ids, parents)], dim=1)
        scores, best = scores.topk(self.cfg.n_best)  # (B, n_best)
        ids = F.pad(self.make_room(take(ids, best)), (0, 1), value=PAD_ID)
        self.finished = FinishedBeams(scores, log_probs.gather(1, best), ids)

    def penalty(self, length: Tensor | int) -> Tensor | float:
        """Return the divisor for hypotheses of `length` tokens, which has (B, 1) or no dimensions."""
        if self.given is not None:
            length = (length - self.given[:, None]).clamp(min=1)
        return penalty(length, self.cfg)

    def done(self) -> Tensor:
        """Return for which sentences (B,) search has ended."""
        # The log probability of an open hypothesis can only fall; no penalty exceeds the one at the limit.
        reachable = self.open.log_probs.amax(1, keepdim=True) / self.penalty(self.limits[:, None])
        enough = self.num_finished >= self.cfg.most_finished
        decided = enough | (self.finished.scores[:, -1] >= reachable[:, 0])
        return decided | (self.limits == self.length)

    def report(self, done: Tensor, results: list[list[Hypothesis]]) -> None:
        """Write the finished hypotheses of the sentences `done` (B,) to `results`."""
        finished = (x[done].tolist() for x in self.finished)
        for sentence, *best in zip(self.sentences[done].tolist(), *finished, strict=True):
            results[sentence] = [
                Hypothesis([token for token in ids if token != PAD_ID], score, log_prob)
                for score, log_prob, ids in zip(*best, strict=True)
                if score > -float("inf")
            ]

    def rows(self, staying: Tensor | None = None) -> Tensor | None:
        """Return the rows (B' * K,) of the last step that open hypotheses continue, None if none moved.

        `staying` (B',) are the sentences that have been selected since that step, None for all.
        """
        if staying is None:
            if self.cfg.beam_size == 1:
                return None
            staying = torch.arange(len(self.sentences), device=self.sentences.device)
        return (staying[:, None] * self.num_parents + self.open.parents).flatten()

    def select(self, staying: Tensor) -> None:
        """Keep only the sentences `staying` (B',)."""
        self.sentences, self.limits = self.sentences[staying], self.limits[staying]
        self.num_finished = self.num_finished[staying]
        self.given = None if self.given is None else self.given[staying]
        self.open = OpenBeams(*(x[staying] for x in self.open))
        self.finished = FinishedBeams(*(x[staying] for x in self.finished))
