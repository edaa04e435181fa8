"""Guided alignment: cross-attention learns which source words a target word translates.

The loss of a target token is the mean of -log of its attention to the source tokens that an alignment links
to it (Chen et al. 2016, section 3.2; Garg et al. 2019, section 4.2); tokens without a link have none. The
weights of the chosen layer alone are computed outside of the fused attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nmt.data.batches.batching import Batch
from nmt.errors import UserError
from nmt.layers.attention import AttentionRole, Recorder
from nmt.models.base import TranslationModel
from nmt.models.transformer import Transformer
from nmt.training.objectives.objective import Context, LossModule, Objective, Places, cut

LEAST = 1e-9
"""Smallest attention in a logarithm."""


class GuidedAlignment(Objective):
    """Smoothed cross-entropy, plus `weight` times the loss of the alignment."""

    def __init__(self, cfg: Any, context: Context):
        super().__init__(cfg, context)
        self.align = context.aligner(cfg.alignments)

    def __call__(self, module: LossModule, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, the plain `nll`, the loss `alignment` and the number `aligned` of its tokens."""
        places = self.align(batch)
        attention, number = chosen(module.model, self.cfg.layer)
        hidden, weights = module.attended(cut(batch, self.cfg.word_dropout), attention, number)
        alignment, aligned = alignment_loss(self._heads(weights), places)
        loss, nll = module.nll(hidden, batch, self.cfg.label_smoothing)
        named = {"nll": nll, "alignment": alignment.detach(), "aligned": aligned}
        return loss + self.cfg.weight * alignment, named

    def _heads(self, weights: Tensor) -> Tensor:
        """Return the weights (B, T, S) of the chosen head of `weights` (B, H, T, S), or their mean."""
        head = self.cfg.head
        if head is None:
            return weights.mean(1)
        if head > weights.shape[1]:
            raise UserError(
                f"objective.head must be at most {weights.shape[1]}, the heads of the layer, but is {head}"
            )
        return weights[:, head - 1]


def chosen(model: TranslationModel, layer: int | None) -> tuple[Recorder, int]:
    """Return the cross-attention of a layer, counted from 1, or of the last for None.

    The second result is the number, from 0, of that layer among those that share its weights.

    Raises:
        UserError: the model has no such layer.
    """
    found = [x for x in model.modules() if isinstance(x, Recorder) and x.role is AttentionRole.cross]
    if not found:
        raise UserError(
            "objective=guided_alignment teaches cross-attention, but the model has none; "
            "set objective=cross_entropy, or model=transformer_base"
        )
    order = model.decoder_order if isinstance(model, Transformer) else list(range(len(found)))
    if layer is not None and layer > len(order):
        raise UserError(
            f"objective.layer must be at most {len(order)}, the layers with cross-attention, but is {layer}"
        )
    *before, place = order[:layer]
    return found[place], before.count(place)


def alignment_loss(weights: Tensor, places: Places) -> tuple[Tensor, Tensor]:
    """Return the loss of attention `weights` (B, T, S), and the number of target tokens with a link."""
    cells = places.sentences * weights.shape[1] + places.tgt  # (L,) of the target tokens
    links = torch.zeros(weights.shape[:2].numel(), device=weights.device)
    links = links.index_add(0, cells, torch.ones_like(cells, dtype=links.dtype))
    attended = weights[places.sentences, places.tgt, places.src].clamp_min(LEAST)
    return -(attended.log() / links[cells]).sum(), (links > 0).sum().float()
