"""What attention in search looks back at: keys and values of earlier positions, and those of the source.

Where the kernels can be used, keys and values stay where they were written, one chunk of columns at a time,
and only the places of a hypothesis, a row in each chunk, follow the beams. Elsewhere the tensors themselves
are moved. Which it is, is decided when a search starts.

Tensors that are moved grow by a column with every step, unless they are put in a window: then their shapes
stay, the columns move to the left, and those in front that are not written yet are masked. The last column is
the newest in both cases, which is all that attention relies on.

Shapes: B sentences, N hypotheses, T positions of the queries, S of the keys, D d_model, H heads, C channels
of a head.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt import kernels
from nmt.layers.attention import MultiHeadAttention
from nmt.layers.positions import PositionTable
from nmt.models.base import State

GROWING = (".keys", ".values")
"""What the names of a layer's keys and values (N, H, S, C) end with, where the tensors are moved."""
PLACES = "places"
"""(N, chunks) int32, of the target: the row of a hypothesis in each chunk of a layer."""
SENTENCES = "sentences"
"""(N, 1) int32, of the target: the row of a hypothesis in the keys and values of the source."""


def keep_in_place(state: State, attentions: Iterable[MultiHeadAttention], like: Tensor) -> bool:
    """Decide whether the search that starts with `state` leaves keys and values in place, and return it.

    They will be on the device and of the dtype of `like` (B, ...).
    """
    if not kernels.usable(like) or not all(attention.can_attend_cached for attention in attentions):
        return False
    state.target[PLACES] = torch.empty(len(like), 0, dtype=torch.int32)
    return True


def begin_chunk(state: State, num_rows: int) -> None:
    """Give each hypothesis its own row of the chunk that every layer appends next."""
    if PLACES in state.target:
        places = state.target[PLACES]
        state.target[PLACES] = torch.cat([places, _rows(num_rows)], dim=1)


def in_window(state: State, num_columns: int, tables: Iterable[PositionTable], device: torch.device) -> State:
    """Return `state` such that a step changes no shape and asks the host nothing.

    `num_columns` are those that are written and those to come; `tables` are made to reach as far.
    """
    for table in tables:
        table.reserve(num_columns)
    target = {
        name: F.pad(tensor, (0, 0, num_columns - tensor.shape[2], 0)) if name.endswith(GROWING) else tensor
        for name, tensor in state.target.items()
    }
    position = torch.as_tensor(state.position, device=device).clone()
    return replace(state, target=target, position=position, window=num_columns)


def next_columns(state: State) -> tuple[int, int | Tensor]:
    """How many columns keys will have with the next one, and how many of them, in front, are not written."""
    columns = state.columns
    if isinstance(columns, int):
        return columns + 1, 0
    return state.window, state.window - 1 - columns


def written_columns(state: State, device: torch.device) -> Tensor | None:
    """(1, 1, 1, S): which columns of keys are written when the next one is; None where all are."""
    if not state.window:
        return None
    columns, unwritten = next_columns(state)
    return (torch.arange(columns, device=device) >= unwritten)[None, None, None, :]


def attend_to_past(
    attention: MultiHeadAttention, x: Tensor, state: State, layer: str, mask: Tensor | None = None
) -> Tensor:
    """x (N, T, D), most often T = 1: append its keys and values to those of the columns before.

    Returns (N, T, D). All columns S are attended to, or those that `mask`, which broadcasts to (N, H, T, S),
    allows; in place, that of the prefix counts. With T > 1 there are no columns before.
    """
    new = attention.keys_values(x, state.columns)
    names = [f"{layer}{name}" for name in GROWING]
    if PLACES in state.target:
        for name, tensor in zip(names, new, strict=True):
            state.kept.setdefault(name, []).append(tensor)
        if x.shape[1] == 1:
            keys, values = (state.kept[name] for name in names)
            of_prefix = state.kept.get("prefix_mask", [None])[0]
            return attention.attend_cached(x, keys, values, state.target[PLACES], of_prefix)
        return attention(x, *new, mask)
    for name, tensor in zip(names, new, strict=True):
        if name in state.target:
            before = state.target[name][:, :, 1 if state.window else 0 :]
            tensor = torch.cat([before, tensor], dim=2)
        state.target[name] = tensor
    context = attention(x, *(state.target[name] for name in names), mask, state.columns)
    return context


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


def attend_to_source(attention: MultiHeadAttention, x: Tensor, state: State, layer: str) -> Tensor:
    """(N, 1, D) of x (N, 1, D): the hypotheses of a sentence share its keys and values."""
    names = (f"{layer}.source_keys", f"{layer}.source_values")
    if SENTENCES in state.target:
        keys, values = (state.kept[name] for name in names)
        return attention.attend_cached(x, keys, values, state.target[SENTENCES], state.kept["source_mask"][0])
    mask = state.source["mask"]
    per_sentence = x.view(len(mask), -1, x.shape[-1])
    context: Tensor = attention(per_sentence, *(state.source[name] for name in names), mask[:, None, None, :])
    return context.view_as(x)


def _rows(num: int) -> Tensor:
    return torch.arange(num, dtype=torch.int32)[:, None]
