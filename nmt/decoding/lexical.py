"""Phrases that must appear: beams shared out by how much of the phrases a hypothesis has.

Of each sentence, hypotheses are in banks by the number of their tokens that belong to phrases, whole ones
and the one that is begun. Candidates are the best continuations, and those that begin or continue a phrase;
the best of every bank come first, from the fullest bank to the emptiest, then the second best, and so on. No
hypothesis ends before it has all phrases. A phrase that ends in a word is not there while that word goes on.

Post and Vilar 2018; the order without fixed sizes of banks is that of Hu et al. 2019.

Shapes: B sentences, K hypotheses, t their tokens, C spellings of phrases of L tokens, J candidates, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.special_ids import EOS_ID
from nmt.decoding.candidates import Candidates, best_sums, take
from nmt.decoding.hypotheses import Wish
from nmt.decoding.restrictions import NOTHING, are_in, table_of


class Phrases:
    """The phrases that the translation of each sentence must have, each in one of its spellings."""

    def __init__(self, wishes: Sequence[Wish], device: torch.device):
        """Hold the phrases of each sentence; at least one sentence has some."""
        rows = [
            [(number, one) for number, spellings in enumerate(wish.must) for one in spellings]
            for wish in wishes
        ]
        most = max(map(len, rows))
        longest = max(len(ids) for several in rows for _, ids in several)
        filled = [[*several, *[(NOTHING, list[int]())] * (most - len(several))] for several in rows]
        table = [[[*ids, *[NOTHING] * (longest - len(ids))] for _, ids in several] for several in filled]
        self.ids = torch.tensor(table, device=device)  # (B, C, L)
        self.lengths = (self.ids != NOTHING).sum(2)  # (B, C)
        numbers = torch.tensor([[number for number, _ in several] for several in filled], device=device)
        self.is_same = numbers[:, :, None] == numbers[:, None]  # (B, C, C)
        self.is_first = ~self.is_same.tril(-1).any(2)  # (B, C)
        asking = next(wish for wish in wishes if wish.must)
        ends = {*asking.word_ends}
        are_words = [[bool(ids) and ids[-1] in ends for _, ids in several] for several in filled]
        self.is_word = torch.tensor(are_words, device=device)  # (B, C), whether a spelling ends in a word
        self.is_part = table_of(asking.word_parts, device)
        self.word_parts = self.is_part.nonzero()[:, 0]

    def _are_met(self, hypotheses: Tensor, sentences: Tensor) -> Tensor:
        """Return whether `hypotheses` (B, J, t) have the phrase of each spelling: (B, J, C)."""
        spellings, lengths = self.ids[sentences], self.lengths[sentences]
        longest = spellings.shape[2] + 1  # with the token behind
        windows = F.pad(hypotheses, (0, longest), value=EOS_ID).unfold(2, longest, 1)[:, :, None]
        wanted = F.pad(spellings, (0, 1), value=NOTHING)
        is_behind = torch.arange(longest, device=wanted.device) == lengths[:, :, None]
        is_end = is_behind & self.is_word[sentences][:, :, None]
        goes_on = are_in(self.is_part, windows) & is_end[:, None, :, None]
        wanted = wanted[:, None, :, None]  # (B, 1, C, 1, L + 1), to be compared with (B, J, 1, t + 1, L + 1)
        matches = (windows == wanted) | ((wanted == NOTHING) & ~goes_on)
        is_spelt = matches.all(4).any(3)  # (B, J, C)
        return (is_spelt[:, :, None] & self.is_same[sentences][:, None]).any(3)

    def _begun(self, hypotheses: Tensor, sentences: Tensor) -> Tensor:
        """Return how many first tokens (B, J, C) of each spelling `hypotheses` (B, J, t) end with."""
        spellings, lengths, num = self.ids[sentences], self.lengths[sentences], hypotheses.shape[2]
        found = lengths.new_zeros(*hypotheses.shape[:2], spellings.shape[1])
        for size in range(1, min(spellings.shape[2], num) + 1):
            ending = hypotheses[:, :, None, num - size :]
            matches = (ending == spellings[:, None, :, :size]).all(3) & (size <= lengths[:, None])
            found = found.masked_fill(matches, size)
        return found

    def _following(self, begun: Tensor, are_asked: Tensor, sentences: Tensor) -> Tensor:
        """Return the next token (B, J, C) of each spelling that is asked for, else EOS."""
        places = begun.clamp(max=self.ids.shape[2] - 1)[..., None]
        spellings = self.ids[sentences][:, None].expand(-1, begun.shape[1], -1, -1)
        return spellings.gather(3, places)[..., 0].masked_fill(~are_asked, EOS_ID)

    def restrict(self, log_probs: Tensor, hypotheses: Tensor, sentences: Tensor) -> Tensor:
        """Return `log_probs` (B, K, V), overwritten, for what may follow `hypotheses` (B, K, t).

        No hypothesis that lacks a phrase ends, and a phrase is no beginning of a longer word, unless that is
        of another phrase.
        """
        lengths = self.lengths[sentences][:, None]
        are_met, begun = self._are_met(hypotheses, sentences), self._begun(hypotheses, sentences)
        log_probs[:, :, EOS_ID].masked_fill_(~are_met.all(2), -torch.inf)
        is_end = ((begun == lengths) & self.is_word[sentences][:, None]).any(2)
        going_on = self._following(begun, ~are_met & (begun > 0), sentences)
        kept = log_probs.gather(2, going_on)
        parts = log_probs[:, :, self.word_parts].masked_fill(is_end[:, :, None], -torch.inf)
        log_probs[:, :, self.word_parts] = parts
        return log_probs.scatter_(2, going_on, kept)

    def choose(
        self, before: Tensor, log_probs: Tensor, hypotheses: Tensor, sentences: Tensor, num: int
    ) -> Candidates:
        """Return `num` continuations of each sentence, in the order of the banks.

        `before` (B, K) are log probabilities of the `hypotheses` (B, K, t), `log_probs` (B, K, V) those of
        the next token. Sentences without phrases get the best sums, best first.
        """
        best = best_sums(before, log_probs, num)
        ours = (self.lengths[sentences] > 0).any(1).nonzero()[:, 0]
        if not len(ours):
            return best
        before, log_probs, hypotheses, sentences = (
            x[ours] for x in (before, log_probs, hypotheses, sentences)
        )
        some = Candidates(*(x[ours] for x in best))
        are_asked = ~self._are_met(hypotheses, sentences)
        following = self._following(self._begun(hypotheses, sentences), are_asked, sentences)
        pool = _pool(some, before, log_probs, following)
        extended = torch.cat([take(hypotheses, pool.parents), pool.tokens[:, :, None]], dim=2)
        banks = self._banks(extended, sentences)
        order = _round_robin(pool.log_probs, banks)[:, : best.tokens.shape[1]]
        for found, others in zip(best, pool, strict=True):
            found[ours] = others.gather(1, order)
        return best

    def _banks(self, hypotheses: Tensor, sentences: Tensor) -> Tensor:
        """Return how many tokens (B, J) of `hypotheses` (B, J, t) are of whole phrases or a begun one."""
        are_met = self._are_met(hypotheses, sentences)
        whole = are_met * (self.lengths * self.is_first)[sentences][:, None]
        begun = self._begun(hypotheses, sentences).masked_fill(are_met, 0)
        return whole.sum(2) + begun.amax(2)


def _pool(some: Candidates, before: Tensor, log_probs: Tensor, following: Tensor) -> Candidates:
    """Return `some` candidates, those with the tokens `following` (B, K, C), and the best of each hypothesis.

    A continuation that is there twice is -inf the second time.
    """
    tokens = torch.cat([following, log_probs.argmax(2, keepdim=True)], dim=2)  # (B, K, C + 1)
    sums = log_probs.gather(2, tokens) + before[:, :, None]
    parents = torch.arange(before.shape[1], device=before.device)[None, :, None].expand_as(tokens)
    more = (sums.flatten(1), parents.flatten(1), tokens.flatten(1))
    pool = Candidates(*(torch.cat(pair, dim=1) for pair in zip(some, more, strict=True)))
    keys = pool.parents * log_probs.shape[2] + pool.tokens
    is_again = (keys[:, :, None] == keys[:, None]).tril(-1).any(2)
    return pool._replace(log_probs=pool.log_probs.masked_fill(is_again, -torch.inf))


def _round_robin(log_probs: Tensor, banks: Tensor) -> Tensor:
    """Return the order (B, J): the best of each bank, fullest bank first, then the second best of each."""
    is_dead = log_probs == -torch.inf
    by_score = log_probs.argsort(dim=1, descending=True, stable=True)
    ranked = banks.gather(1, by_score)
    places = (ranked[:, :, None] == ranked[:, None]).tril(-1).sum(2)  # better ones of the same bank
    rank = torch.empty_like(places).scatter(1, by_score, places)
    width = int(banks.max()) + 1
    key = (rank * width + (width - 1 - banks)).masked_fill(is_dead, torch.iinfo(torch.long).max)
    return key.argsort(dim=1, stable=True)
