"""Objectives: the quantity that an update minimises, as a sum over target tokens.

An objective sees the batch, the number of the update and `LossModule`: as many forward passes as it asks for
(each with dropout masks of its own), logits where it wants them, and the fast label-smoothed loss that never
keeps logits. The module also has what the moving average of the weights predicts, for an objective whose
config asks for it. Models of other runs, and what there is to know of the text behind ids, an objective asks
of its `Context` when it is built. It runs inside the module that DDP, FSDP2 and the compiler wrap, so that
every pass counts for the gradients. It returns sums by name and never divides: the trainer alone divides, by
the target tokens of the whole update over all ranks.

Here are the contract and label-smoothed cross-entropy; the table is `OBJECTIVES` in
`nmt.training.objectives.configs`.
Shapes: M target tokens (no padding), D d_model, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as symbolic_shapes
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from nmt.data.batches.batching import Batch
from nmt.layers.attention import Recorder, recorded_with_gradients
from nmt.layers.loss import PassFactors, projected_agreement, projected_imitation, projected_nll
from nmt.models.base import TranslationModel

ROWS = 2048
"""Target tokens whose logits exist at a time where the log probability of each is asked."""
Taught = Callable[[slice], Tensor]
"""A function of a slice of the M target tokens that returns the probabilities (n, V) of a teacher."""


@dataclass
class Places:
    """Places of target tokens and of source tokens that translate them, of the pairs of a batch."""

    sentences: Tensor
    """(L,) int64: the pair of each link."""
    tgt: Tensor
    """(L,) int64: its place in the target."""
    src: Tensor
    """(L,) int64: its place in the source."""


Align = Callable[[Batch], Places]
"""A function that returns the alignment of the words of a batch, as links between their pieces."""
Sample = Callable[[TranslationModel, Batch, int, int], list[list[list[int]]]]
"""A function of a model in eval mode, a batch, an update and a number: so many samples of each source, with
EOS."""
Costs = Callable[[Sequence[Sequence[int]], Sequence[int]], list[float]]
"""A function of the ids of translations of a sentence, and of its reference: the cost of each, from 0."""


class Context(Protocol):
    """What an objective may ask of the training that it is built for; `nmt.runs` answers."""

    def open_model(self, run: str) -> TranslationModel:
        """Return the model of a run with the same tokenizer: on the device, in eval mode, frozen."""

    def aligner(self, alignments: str | None) -> Align:
        """Return the alignments of the training pairs in a file; for None, estimates."""

    def sampler(self, temperature: float) -> Sample:
        """Return what samples translations, no longer than search allows."""

    def costs(self, metric: str) -> Costs:
        """Return the distance of translations from a perfect score of sentences, as a share of 1."""


class Objective(ABC):
    """The quantity that an update minimises; no `nn.Module`, so that models it opens stay as they are."""

    def __init__(self, cfg: Any, context: Context):
        self.cfg = cfg
        self.tensors: dict[str, Tensor] = {}
        """Tensors that the objective remembers between updates, by name; a checkpoint holds them, too.

        They are replaced, never changed in place: an update that does not fit into memory is computed anew.
        """

    @abstractmethod
    def __call__(self, module: LossModule, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of `batch`, and named sums that `metrics.jsonl` shows per target token.

        All are float32 scalars, summed over the target tokens of the batch; the names are the same for every
        batch. `step` counts updates from 1; an update may consist of several batches. The host must not wait
        for the device here, but in an objective whose config says `needs_text`.
        """


class LossModule(nn.Module):
    """The model in training and its objective as one module; the methods are what an objective calls."""

    def __init__(
        self,
        model: TranslationModel,
        objective: Objective,
        *,
        compiled: bool,
        average: TranslationModel | None = None,
    ):
        super().__init__()
        self.model = model
        self.objective = objective
        self._average = [average]  # in a list: the weights in training are those of `model` alone
        self._real_hidden = self._hidden
        if compiled and model.gains_from_compiling:
            symbolic_shapes.use_duck_shape = False  # or a first batch with S = T gets a graph of its own
            self._real_hidden = torch.compile(self._hidden, dynamic=True)

    def forward(self, step: int, *tensors: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and the named sums of the batch that consists of `tensors`."""
        return self.objective(self, Batch(*tensors), step)

    def hidden(self, batch: Batch) -> Tensor:
        """Run the model forward and return its hidden states (M, D) of the real target tokens of `batch`."""
        return self._real_hidden(batch.src, batch.src_mask, batch.tgt_in, batch.rows)

    def attended(self, batch: Batch, attention: Recorder, number: int) -> tuple[Tensor, Tensor]:
        """Return what `hidden` returns, and the weights (B, H, T, S) of one attention, with gradients.

        `number` is that of its use, from 0: layers may share an attention.
        """
        with recorded_with_gradients(attention) as recorded:
            hidden = self._hidden(batch.src, batch.src_mask, batch.tgt_in, batch.rows)
        return hidden, recorded[number]

    def log_probs(self, batch: Batch) -> Tensor:
        """Return the log probability (B,) of each target of `batch`; few logits exist at a time."""
        parts = zip(self.hidden(batch).split(ROWS), batch.targets.split(ROWS), strict=True)
        found = [checkpoint(self._log_probs, *part, use_reentrant=False) for part in parts]
        whole = torch.zeros(len(batch.src), device=batch.rows.device)
        return whole.index_add(0, batch.sentences, torch.cat(found))

    def _log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return -functional.cross_entropy(self.logits(hidden).float(), targets, reduction="none")

    def logits(self, hidden: Tensor) -> Tensor:
        """Return all logits (M, V) of hidden states (M, D), in the type of matrix products."""
        return self.model.project(hidden)

    def nll(self, hidden: Tensor, batch: Batch, smoothing: float) -> tuple[Tensor, Tensor]:
        """Return the label-smoothed loss of hidden states (M, D) of the real target tokens of `batch`.

        The second result is the plain loss, without a gradient. Both are sums, in which each token counts its
        weight in the batch. No logit is kept.
        """
        return projected_nll(hidden, self.model.output, batch.targets, smoothing, batch.weights)

    def agreement(
        self, hidden: Tensor, batch: Batch, smoothing: float, factors: PassFactors
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of two passes (2, M, D), the first one's plain loss, and their divergence."""
        output, targets = self.model.output, batch.targets
        return projected_agreement(hidden, output, targets, smoothing, factors, batch.weights)

    def imitation(
        self, hidden: Tensor, batch: Batch, smoothing: float, weight: float, taught: Taught
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of a pass (M, D) beside a teacher, its plain loss, and the divergence from it."""
        output, targets = self.model.output, batch.targets
        return projected_imitation(hidden, output, targets, smoothing, weight, taught, batch.weights)

    def taught_by_average(self, batch: Batch) -> Taught:
        """Return what the moving average of the weights predicts, for `imitation`; without dropout."""
        (average,) = self._average
        assert average is not None, "an objective whose config needs no average asks for one"
        if average.training:
            average.eval()
        return taught_by([average], batch)

    def _hidden(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor, rows: Tensor) -> Tensor:
        return self.model(src, src_mask, tgt_in).flatten(0, 1).index_select(0, rows)


class CrossEntropy(Objective):
    """Label-smoothed cross-entropy, whose logits exist a few rows at a time."""

    def __call__(self, module: LossModule, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the smoothed loss, and the plain negative log-likelihood as `nll`."""
        hidden = module.hidden(cut(batch, self.cfg.word_dropout))
        loss, nll = module.nll(hidden, batch, self.cfg.label_smoothing)
        return loss, {"nll": nll}


@torch.no_grad()
def taught_by(teachers: Sequence[TranslationModel], batch: Batch) -> Taught:
    """Return the mean of the teachers' predictions, in float32, of hidden states that are computed here."""
    passes = [teacher(batch.src, batch.src_mask, batch.tgt_in) for teacher in teachers]
    hidden = [batch.real(states) for states in passes]  # (M, D) each
    device = batch.src.device.type
    dtype, enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)

    def taught(part: slice) -> Tensor:
        with torch.autocast(device, dtype, enabled):  # as here, wherever this is called
            logits = [t.project(h[part]) for t, h in zip(teachers, hidden, strict=True)]
        return torch.stack([x.softmax(-1, dtype=torch.float32) for x in logits]).mean(0)

    return taught


def cut(batch: Batch, rate: float) -> Batch:
    """Return the batch with a share `rate` of the tokens hidden: as id -1, which `TokenEmbedding` knows."""
    if not rate:
        return batch
    src, tgt_in = (
        ids.masked_fill(torch.rand(ids.shape, device=ids.device) < rate, -1)
        for ids in (batch.src, batch.tgt_in)
    )
    return replace(batch, src=src, tgt_in=tgt_in)
