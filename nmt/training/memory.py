"""Batches of a training that do not fit into memory: what is tried instead, and what the user can do.

The loss is a sum, so the gradients of the parts of a batch add up to those of the batch: an update that does
not fit is computed anew with every batch in 2, 4 or 8 parts. Knows pair numbers; knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nmt.data.batches.batching import Indices
from nmt.data.encoded_pairs import EncodedPairs

PARTS = (1, 2, 4, 8)
"""Numbers of parts of every batch that are tried, one after the other."""


def in_parts(batches: Sequence[Indices], number: int) -> list[Indices]:
    """Return the batches, each cut into `number` parts, or into single pairs if it has fewer."""
    return [part for indices in batches for part in np.array_split(indices, min(number, len(indices)))]


def size_of(pairs: EncodedPairs, indices: Indices) -> str:
    """Return the size of a batch in words: its pairs, times its longest source and target."""
    S, T = pairs.src_lengths[indices].max(), pairs.tgt_lengths[indices].max()
    return f"{len(indices)} pairs of up to {S} source and {T} target tokens"


def advice(batch_tokens: int, processes: int) -> str:
    """Return how a training of `processes` processes takes less memory."""
    more = ", use more processes or runtime.parallel=fsdp" if processes > 1 else ""
    return (
        f"lower trainer.batch_tokens, which is {batch_tokens}, and raise trainer.accumulate by the same "
        "factor, so that an update stays as large; or lower data.max_tokens, the longest pairs of the data, "
        f"or take a smaller model{more}"
    )


def slower(size: str, number: int, batch_tokens: int) -> str:
    """Return what it means that a batch of `size` is computed in `number` parts."""
    return (
        f"a batch of {size} does not fit into memory; it is computed in {number} parts, to the same result "
        "but for the random numbers of dropout; such updates take twice the time: "
        f"{advice(batch_tokens, 1)}"
    )
