"""Lines in, labels out, order kept: the most probable label of each line, and the probabilities of all.

By the contract of the models alone: the first target token is the label. Probabilities are those of the
labels, which add up to 1; the special ids have no part. Nothing here reads or writes files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nmt.data.batches.batching import pad, plan_in_order
from nmt.data.special_ids import BOS_ID, EOS_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.decoding.configs import DecodingConfig
from nmt.distributed import ALONE, World
from nmt.errors import Log, UserError, warn
from nmt.memory import in_halves
from nmt.models.base import TranslationModel
from nmt.translation.translate import LESS, evaluating, in_precision, read_sources


@dataclass
class Prediction:
    """The label of a line."""

    label: str
    """The most probable label."""
    probabilities: dict[str, float]
    """The probability of each label, in the order of the label set."""
    truncated: bool = False
    """Whether only the beginning of the line was read."""

    @property
    def probability(self) -> float:
        """The probability of `label`."""
        return self.probabilities[self.label]


def classify(
    lines: Sequence[str],
    model: TranslationModel,
    tokenizer: Tokenizer,
    cfg: DecodingConfig,
    *,
    device: torch.device,
    warn: Log = warn,
    first_line: int = 1,
    world: World = ALONE,
) -> list[Prediction]:
    """Return the prediction for each line, in the order of `lines`, on every rank of `world`.

    A line is cut, and named by `warn`, as in `nmt.translation.translate`; a blank line is classified, too.
    """
    numbered = range(first_line, first_line + len(lines))
    sources, cut = read_sources(lines, model, tokenizer, cfg, warn, numbered, done="read")
    ids = [sources.get(i, [EOS_ID]) for i in range(len(lines))]
    lengths = np.fromiter(map(len, ids), dtype=np.int64)
    plan = plan_in_order(lengths, np.ones_like(lengths), max_tokens=cfg.tokens_at_once(device.type))
    batches = [batch.tolist() for batch in plan]
    with evaluating(model):
        searched = in_precision(model, cfg, device)

        def classified(numbers: Sequence[int]) -> list[list[float]]:
            src, src_mask = (tensor.to(device) for tensor in pad([ids[i] for i in numbers]))
            begun = torch.full((len(src), 1), BOS_ID, device=device)
            logits = searched.project(searched(src, src_mask, begun))[:, 0, EOS_ID + 1 :]
            return logits.float().softmax(-1).tolist()

        found = [in_halves(classified, numbers, LESS) for numbers in world.shard(batches)]
    rows: list[list[float]] = [[] for _ in lines]
    for numbers, probabilities in zip(batches, world.unshard(found), strict=True):
        for i, row in zip(numbers, probabilities, strict=True):
            rows[i] = row
    return [_prediction(tokenizer.labels, row, i in cut) for i, row in enumerate(rows)]


def _prediction(labels: Sequence[str], row: Sequence[float], truncated: bool) -> Prediction:
    if not all(0.0 <= value <= 1.0 for value in row):
        raise UserError(
            "the model gives no label a probability, as its numbers overflow; "
            "set decoding.precision=fp32, or choose another checkpoint=..."
        )
    return Prediction(labels[int(np.argmax(row))], dict(zip(labels, row, strict=True)), truncated)
