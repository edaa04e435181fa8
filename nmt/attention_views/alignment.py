"""Alignments of words, from the weights with which a target attends to its source.

Weights come as arrays (H, T, S), one per layer: row t, which predicts target token t, aligns that token.
A word is a stretch of a line without white space; the pieces of a word act together. Knows no model, no
tokenizer and no file.

From pieces to words: Clark et al. 2019, section 4.1.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]
Link = tuple[int, int]
"""Index of a source word, index of the target word aligned with it."""


def mean_weights(layers: Sequence[Weights], layer: int | None = None) -> Weights:
    """Return the mean (T, S) over the heads of one layer, counted from 1, or of all layers."""
    chosen = layers if layer is None else layers[layer - 1 : layer]
    return np.concatenate(chosen).mean(axis=0)


def word_indices(surfaces: Sequence[str]) -> list[int | None]:
    """Return for each piece the index of its word in the line, None for a piece that belongs to no word.

    `surfaces` are the stretches of the line that the pieces stand for. A piece that stands for white space or
    for nothing belongs to the word that follows it.
    """
    ends = [word.end() for word in re.finditer(r"\S+", "".join(surfaces))]
    found: list[int | None] = []
    start = 0
    for surface in surfaces:
        last = start + len(surface.rstrip()) - 1 if surface.strip() else start + len(surface)
        word = bisect_right(ends, last)
        found.append(word if word < len(ends) else None)
        start += len(surface)
    return found


def word_weights(
    weights: Weights, src_words: Sequence[int | None], tgt_words: Sequence[int | None]
) -> tuple[list[int], list[int], Weights]:
    """Return the source words, the target words, and the weights between them, a row for each target word.

    The weights (T, S) of the pieces of a source word are added up, those of the pieces of a target word
    averaged. A piece that belongs to no word (None), as the end of a sentence, is left out on either side.
    """
    sources = sorted({word for word in src_words if word is not None})
    targets = sorted({word for word in tgt_words if word is not None})
    if not sources or not targets:
        return sources, targets, np.empty((len(targets), len(sources)), np.float32)
    columns = np.array([[word == source for source in sources] for word in src_words])  # (S, source words)
    rows = np.array([[word == target for word in tgt_words] for target in targets])  # (target words, T)
    return sources, targets, (rows / rows.sum(axis=1, keepdims=True)) @ weights @ columns


def word_links(
    weights: Weights, src_words: Sequence[int | None], tgt_words: Sequence[int | None]
) -> list[Link]:
    """Return each target word with the source word that it attends to most, in the order of the target.

    The weights are those of `word_weights`.
    """
    sources, targets, totals = word_weights(weights, src_words, tgt_words)
    if not sources:
        return []
    return [(sources[best], target) for target, best in zip(targets, totals.argmax(axis=1), strict=True)]


def pharaoh(links: Sequence[Link]) -> str:
    """Return the links as text such as `0-0 2-1`: source word, target word, counted from 0."""
    return " ".join(f"{source}-{target}" for source, target in links)
