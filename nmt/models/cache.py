"""What attention in search looks back at: keys and values of earlier positions, and those of the source.

Where the kernels can be used, keys and values stay where they were written, one chunk of columns at a time,
and only the places of a hypothesis, a row in each chunk, follow the beams. Elsewhere the tensors themselves
are moved. Which it is, is decided when a search starts.

Shapes: B sentences, N hypotheses, T positions of the queries, S of the keys, D d_model, H heads, C channels
of a head.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from nmt import kernels
from nmt.attention import Attention
from nmt.models.base import State

PLACES = "places"
"""(N, chunks) int32, of the target: the row of a hypothesis in each chunk of a layer."""
SENTENCES = "sentences"
"""(N, 1) int32, of the target: the row of a hypothesis in the keys and values of the source."""


def keep_in_place(state: State, attentions: Iterable[Attention], like: Tensor) -> bool:
    """Decide whether the search that starts with `state` leaves keys and values in place, and return it.

    They will be on the device and of the dtype of `like` (B, ...).
    """
    if not kernels.usable(like) or not all(attention.can_look_up for attention in attentions):
        return False
    state.target[PLACES] = torch.empty(len(like), 0, dtype=torch.int32)
    return True


def begin_chunk(state: State, num_rows: int) -> None:
    """Give each hypothesis its own row of the chunk that every layer appends next."""
    if PLACES in state.target:
        places = state.target[PLACES]
        state.target[PLACES] = torch.cat([places, _rows(num_rows)], dim=1)


def attend_to_past(
    attention: Attention, x: Tensor, state: State, layer: str, mask: Tensor | None = None
) -> Tensor:
    """x (N, T, D), most often T = 1: append its keys and values to those of the S - T columns before.

    Returns (N, T, D). All columns are attended to, or those that `mask`, which broadcasts to (N, H, T, S),
    allows; in place, that of the prefix counts. With T > 1 there are no columns before.
    """
    new = attention.attended(x, num_columns(state, layer))
    names = (f"{layer}.keys", f"{layer}.values")
    if PLACES in state.target:
        for name, tensor in zip(names, new, strict=True):
            state.kept.setdefault(name, []).append(tensor)
        if x.shape[1] == 1:
            keys, values = (state.kept[name] for name in names)
            of_prefix = state.kept.get("prefix_mask", [None])[0]
            return attention.look_up(x, keys, values, state.target[PLACES], of_prefix)
        context: Tensor = attention(x, *new, mask)
        return context
    for name, tensor in zip(names, new, strict=True):
        before = state.target.get(name)
        state.target[name] = tensor if before is None else torch.cat([before, tensor], dim=2)
    context = attention(x, *(state.target[name] for name in names), mask)
    return context


def num_columns(state: State, layer: str) -> int:
    """Return how many columns `layer` has written so far."""
    if PLACES in state.target:
        return sum(chunk.shape[2] for chunk in state.kept.get(f"{layer}.keys", ()))
    keys = state.target.get(f"{layer}.keys")
    return 0 if keys is None else keys.shape[2]


def remember_source(state: State, src_mask: Tensor, memories: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Store the keys and values (B, H, S, C) of the source for each layer; `src_mask` (B, S)."""
    in_place = PLACES in state.target
    if in_place:
        state.kept["source_mask"] = [src_mask.contiguous()]
        state.target[SENTENCES] = _rows(len(src_mask))
    else:
        state.source["mask"] = src_mask
    for i, memory in enumerate(memories):
        for name, tensor in zip(("source_keys", "source_values"), memory, strict=True):
            if in_place:
                state.kept[f"{i}.{name}"] = [tensor]
            else:
                state.source[f"{i}.{name}"] = tensor


def attend_to_source(attention: Attention, x: Tensor, state: State, layer: str) -> Tensor:
    """(N, 1, D) of x (N, 1, D): the hypotheses of a sentence share its keys and values."""
    names = (f"{layer}.source_keys", f"{layer}.source_values")
    if SENTENCES in state.target:
        keys, values = (state.kept[name] for name in names)
        return attention.look_up(x, keys, values, state.target[SENTENCES], state.kept["source_mask"][0])
    mask = state.source["mask"]
    per_sentence = x.view(len(mask), -1, x.shape[-1])
    context: Tensor = attention(per_sentence, *(state.source[name] for name in names), mask[:, None, None, :])
    return context.view_as(x)


def _rows(num: int) -> Tensor:
    return torch.arange(num, dtype=torch.int32)[:, None]
