"""Batches that do not fit into memory: how that is recognised, and what is tried instead.

The loss is a sum, so the gradients of the parts of a batch add up to those of the batch: an update that does
not fit is computed anew with every batch in 2, 4 or 8 parts. Linux may also kill a process that takes more
memory of the machine than there is, which no program can catch. Knows pair numbers; knows no model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import TracebackType

import numpy as np
import torch

from nmt.data.batching import Indices
from nmt.data.encoded_pairs import EncodedPairs

PARTS = (1, 2, 4, 8)
"""Numbers of parts of every batch that are tried, one after the other."""
WORDS = ("can't allocate memory", "out of memory", "ALLOC_FAILED", "std::bad_alloc")
"""Texts of the errors by which torch and its libraries report that memory is exhausted."""


class Attempt(contextlib.AbstractContextManager["Attempt"]):
    """A block that may run out of memory: it then ends early, and `failed` is True.

    The error is dropped, because its traceback keeps the tensors of the block alive.
    """

    failed = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool:
        self.failed = error is not None and is_out_of_memory(error)
        return self.failed


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that memory is exhausted, be it of the device or of the machine."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in WORDS)


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


def release() -> None:
    """Return what a failed attempt has left in the cache of torch to the GPU."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
