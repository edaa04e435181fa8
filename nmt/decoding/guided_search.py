"""Beam search as the config and the wishes of each sentence say: the strategy `beam`.

Where nothing is asked for but the most probable translation, that is `nmt.decoding.graph_search`, with all
its kernels. Else a `Guide` chooses before the beam does, without the kernel that chooses and without graphs.

Shapes: B sentences still in search, K beams, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nmt.data.special_ids import EOS_ID
from nmt.decoding import graph_search
from nmt.decoding.beam_search import Beams, beam_search
from nmt.decoding.candidates import Candidates, best_sums
from nmt.decoding.configs import BeamConfig
from nmt.decoding.coverage import covered
from nmt.decoding.diverse import choose_apart, merged
from nmt.decoding.hypotheses import Hypothesis, Wish, length_limits
from nmt.decoding.lexical import Phrases
from nmt.decoding.restrictions import Restrictions
from nmt.errors import UserError
from nmt.models.base import TranslationModel


class Guide:
    """A `Choose` of `nmt.decoding.beam_search`: rules for tokens, phrases that must appear, groups."""

    def __init__(self, cfg: BeamConfig, src_mask: Tensor, wishes: Sequence[Wish] | None):
        """Hold what guides the search for sources with the mask (B, S), one wish each, or none."""
        self.cfg = cfg
        self.restrictions = Restrictions(cfg, src_mask, wishes)
        has_phrases = wishes is not None and any(wish.must for wish in wishes)
        self.phrases = Phrases(wishes or (), src_mask.device) if has_phrases else None
        if self.phrases is not None and cfg.without_phrases:
            raise UserError(cfg.without_phrases)

    @property
    def changes_nothing(self) -> bool:
        """Whether the most probable continuations are the ones to choose."""
        return self.restrictions.change_nothing and self.phrases is None and self.cfg.num_groups == 1

    def __call__(self, beams: Beams, log_probs: Tensor, num: int) -> Candidates:
        before, ids, cfg = beams.open.log_probs, beams.open.ids, self.cfg
        sentences, ends = beams.sentences // cfg.num_groups, log_probs[:, :, EOS_ID].clone()
        log_probs = self.restrictions(log_probs, ids, sentences)
        if self.phrases is not None:
            log_probs = self.phrases.restrict(log_probs, ids, sentences)
        # A sentence that may neither go on nor end has to end, or it would have no translation at all.
        is_stuck = ((log_probs.amax(2) + before).amax(1) == -torch.inf) & (beams.num_finished == 0)
        log_probs[:, :, EOS_ID] = torch.where(is_stuck[:, None], ends, log_probs[:, :, EOS_ID])
        if self.phrases is not None:
            return self.phrases.choose(before, log_probs, ids, sentences, num)
        if cfg.num_groups == 1:
            return best_sums(before, log_probs, num)
        penalty, groups = cfg.diversity_penalty, beams.sentences
        return choose_apart(before, log_probs, groups, num, num_groups=cfg.num_groups, penalty=penalty)


def search(
    model: TranslationModel,
    src: Tensor,
    src_mask: Tensor,
    cfg: BeamConfig,
    wishes: Sequence[Wish] | None = None,
) -> list[list[Hypothesis]]:
    """Return the `n_best` best hypotheses of every sentence, best first; fewer only where fewer exist.

    `src` (B, S) ids, `src_mask` (B, S) bool, `wishes` one for each sentence. To be called without gradients,
    with the model in eval mode.
    """
    guide, num_groups = Guide(cfg, src_mask, wishes), cfg.num_groups
    size = cfg.beam_size // num_groups
    n_best = size if cfg.coverage_penalty else min(cfg.n_best, size)
    own = replace(cfg, beam_size=size, n_best=n_best, num_groups=1)
    if guide.changes_nothing:
        found = graph_search.search(model, src, src_mask, own)
    else:
        limits = length_limits(src_mask, model.max_length, cfg, wishes)
        counts = [wish.num_given for wish in wishes or ()]
        given = limits.new_tensor(counts) if any(counts) else None
        found = beam_search(
            model, src, src_mask, own, guide, limits=limits, given=given, num_groups=num_groups
        )
    if cfg.coverage_penalty:
        rows = torch.arange(len(src), device=src.device).repeat_interleave(num_groups)
        strength = cfg.coverage_penalty
        found = covered(model, src[rows], src_mask[rows], found, strength, min(cfg.n_best, size))
    return merged(found, num_groups, cfg.n_best) if num_groups > 1 else found
