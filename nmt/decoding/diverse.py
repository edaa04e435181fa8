"""Groups of beams that keep away from each other: diverse beam search, with the Hamming diversity.

The groups of a sentence are searches of their own, which advance together. One after the other chooses its
tokens; a token that another group has chosen at this step counts `diversity_penalty` less for each beam that
has it. The penalty changes what is chosen, not what a hypothesis scores.

Vijayakumar et al. 2018. Shapes: R groups of all sentences in search, K beams of a group, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nmt.data.special_ids import EOS_ID
from nmt.decoding.candidates import Candidates, best_sums
from nmt.decoding.hypotheses import Hypothesis


def choose_apart(
    before: Tensor, log_probs: Tensor, numbers: Tensor, num: int, *, num_groups: int, penalty: float
) -> Candidates:
    """Return `num` continuations of each group, in the order of the penalised sums.

    `before` (R, K') and `log_probs` (R, K', V) are of the groups `numbers` (R,): group g of sentence b is
    b * num_groups + g. The `num` / 2 best that do not end are what the group goes on with.
    """
    sentences, of_sentence = torch.unique(numbers // num_groups, return_inverse=True)
    counts = log_probs.new_zeros(len(sentences), log_probs.shape[2])
    width = min(num, log_probs.shape[1] * log_probs.shape[2])
    chosen = Candidates(before.new_empty(len(numbers), width), *numbers.new_empty(2, len(numbers), width))
    for group in range(num_groups):
        rows = (numbers % num_groups == group).nonzero()[:, 0]
        known = counts[of_sentence[rows]]  # (R', V)
        found = best_sums(before[rows], log_probs[rows] - penalty * known[:, None], num)
        exact = log_probs[rows[:, None], found.parents, found.tokens] + before[rows].gather(1, found.parents)
        for whole, part in zip(chosen, (exact, found.parents, found.tokens), strict=True):
            whole[rows] = part
        growing = (found.tokens == EOS_ID).byte().argsort(dim=1, stable=True)[:, : num // 2]
        is_real = (exact > -torch.inf).gather(1, growing).to(counts.dtype)
        owners = of_sentence[rows, None].expand_as(growing)
        counts.index_put_((owners, found.tokens.gather(1, growing)), is_real, accumulate=True)
    return chosen


def merged(groups: list[list[Hypothesis]], num_groups: int, n_best: int) -> list[list[Hypothesis]]:
    """Return `n_best` hypotheses of each sentence, best first, each once.

    The best of every group is taken before any second one.

    `groups` has the hypotheses of each group, best first; the groups of a sentence are adjacent.
    """
    found = []
    for start in range(0, len(groups), num_groups):
        several = groups[start : start + num_groups]
        ranked = sorted(
            ((place, -one.score, tuple(one.ids), one) for own in several for place, one in enumerate(own)),
            key=lambda item: item[:3],
        )
        different: dict[tuple[int, ...], Hypothesis] = {}
        for _, _, ids, one in ranked:
            different.setdefault(ids, one)
        best = list(different.values())[:n_best]
        found.append(sorted(best, key=lambda one: -one.score))
    return found
