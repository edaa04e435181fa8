"""Phrases that must appear: beams shared out by how much of the phrases a hypothesis has.

Of each sentence, hypotheses are in banks by the number of their tokens that belong to phrases, whole ones
and the one that is begun. Candidates are the best continuations, and those that begin or continue a phrase;
the best of every bank come first, from the fullest bank to the emptiest, then the second best, and so on. No
hypothesis ends before it has all phrases.

Post and Vilar 2018; the order without fixed sizes of banks is that of Hu et al. 2019.

Shapes: B sentences, K hypotheses, t their tokens, C phrases of L tokens, J candidates, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.special_ids import EOS_ID
from nmt.decoding.candidates import Candidates, best_sums, take
from nmt.decoding.hypotheses import Wish
from nmt.decoding.restrictions import NOTHING


class Phrases:
    """The phrases that the translation of each sentence must have."""

    def __init__(self, wishes: Sequence[Wish], device: torch.device):
        """Hold the phrases of each sentence; at least one sentence has some."""
        phrases = [wish.must for wish in wishes]
        most = max(map(len, phrases))
        longest = max(len(one) for several in phrases for one in several)
        filled = [[*several, *[[]] * (most - len(several))] for several in phrases]
        table = [[[*one, *[NOTHING] * (longest - len(one))] for one in several] for several in filled]
        self.ids = torch.tensor(table, device=device)  # (B, C, L)
        self.lengths = (self.ids != NOTHING).sum(2)  # (B, C)
        word_parts = next(wish.word_parts for wish in wishes if wish.must)
        self.word_parts = torch.tensor(list(word_parts), dtype=torch.long, device=device)

    def progress(self, hypotheses: Tensor, sentences: Tensor) -> Tensor:
        """Return the tokens (B, J, C) of each phrase that `hypotheses` (B, J, t) have: all, or some first."""
        phrases, lengths = self.ids[sentences], self.lengths[sentences]
        longest = phrases.shape[2]
        windows = F.pad(hypotheses, (0, longest), value=EOS_ID).unfold(2, longest, 1)[:, :, None]
        wanted = phrases[:, None, :, None]  # (B, 1, C, 1, L), to be compared with (B, J, 1, t + 1, L)
        is_whole = ((windows == wanted) | (wanted == NOTHING)).all(4).any(3)  # (B, J, C)
        return torch.where(is_whole, lengths[:, None], self._ending(hypotheses, sentences))

    def _ending(self, hypotheses: Tensor, sentences: Tensor) -> Tensor:
        """Return how many first tokens (B, J, C) of each phrase `hypotheses` (B, J, t) end with."""
        phrases, lengths, num = self.ids[sentences], self.lengths[sentences], hypotheses.shape[2]
        found = lengths.new_zeros(*hypotheses.shape[:2], phrases.shape[1])
        for size in range(1, min(phrases.shape[2], num) + 1):
            ending = hypotheses[:, :, None, num - size :]
            matches = (ending == phrases[:, None, :, :size]).all(3) & (size <= lengths[:, None])
            found = found.masked_fill(matches, size)
        return found

    def restrict(self, log_probs: Tensor, hypotheses: Tensor, sentences: Tensor) -> Tensor:
        """Return `log_probs` (B, K, V), overwritten, for what may follow `hypotheses` (B, K, t).

        No hypothesis that lacks tokens ends, and a phrase is no beginning of a longer word.
        """
        lengths = self.lengths[sentences][:, None]
        lacks = (self.progress(hypotheses, sentences) < lengths).any(2)
        log_probs[:, :, EOS_ID].masked_fill_(lacks, -torch.inf)
        is_phrase = ((self._ending(hypotheses, sentences) == lengths) & (lengths > 0)).any(2)
        parts = log_probs[:, :, self.word_parts].masked_fill(is_phrase[:, :, None], -torch.inf)
        log_probs[:, :, self.word_parts] = parts
        return log_probs

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
        pool = self._pool(some, before, log_probs, self.progress(hypotheses, sentences), sentences)
        extended = torch.cat([take(hypotheses, pool.parents), pool.tokens[:, :, None]], dim=2)
        banks = self.progress(extended, sentences).sum(2)
        order = _round_robin(pool.log_probs, banks)[:, : best.tokens.shape[1]]
        for found, others in zip(best, pool, strict=True):
            found[ours] = others.gather(1, order)
        return best

    def _pool(
        self, some: Candidates, before: Tensor, log_probs: Tensor, progress: Tensor, sentences: Tensor
    ) -> Candidates:
        """Return `some` candidates, the next token of each phrase, and the best of each hypothesis: (B, J).

        A continuation that is there twice is -inf the second time. `progress` (B, K, C) is of hypotheses.
        """
        phrases, num_beams = self.ids[sentences], before.shape[1]
        places = progress.clamp(max=phrases.shape[2] - 1)
        expanded = phrases[:, None].expand(-1, num_beams, -1, -1)
        following = expanded.gather(3, places[..., None])[..., 0]  # (B, K, C)
        is_met = progress == self.lengths[sentences][:, None]
        following = following.masked_fill(is_met, EOS_ID)
        tokens = torch.cat([following, log_probs.argmax(2, keepdim=True)], dim=2)  # (B, K, C + 1)
        sums = log_probs.gather(2, tokens) + before[:, :, None]
        parents = torch.arange(num_beams, device=before.device)[None, :, None].expand_as(tokens)
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
