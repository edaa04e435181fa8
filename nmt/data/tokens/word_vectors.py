"""Vectors of words from the text files of word2vec, GloVe and fastText: a word and its numbers, line by line.

A first line of two numbers, of words and of dimensions, is a header. Only the vectors of the words that are
asked for are kept in memory. Knows no model.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt.data.reading.lines import read_lines
from nmt.errors import UserError

Vectors = dict[str, NDArray[np.float32]]


def read_vectors(path: Path, key: str, wanted: Container[str], width: int) -> Vectors:
    """Return the vectors (D,) of the `wanted` words that a file has; of a word that is there twice the first.

    Raises:
        UserError: the file cannot be read, its vectors have not `width` numbers, or a wanted one is damaged;
            names `key`, the config key of the path, and the line.
    """
    found: Vectors = {}
    for number, line in enumerate(read_lines(path, key), start=1):
        line = line.strip(" ")
        if number == 1:
            size, is_header = _size(line)
            if size != width:
                raise UserError(
                    f"{key}: the vectors of {path} have {size} numbers, but the embeddings of the model "
                    f"{width}; set model.d_model to theirs, or take others"
                )
            if is_header:
                continue
        if line.partition(" ")[0] in wanted:
            word, *numbers = line.rsplit(" ", width)  # of several words perhaps
            if word in wanted and word not in found:
                found[word] = _vector(numbers, width, f"{key}: line {number:,} of {path}")
    return found


def _size(first_line: str) -> tuple[int, bool]:
    """Return the size of the vectors of a file, and whether its first line is a header."""
    _, *numbers = first_line.split(" ")
    if len(numbers) == 1 and all(map(str.isdecimal, first_line.split(" "))):
        return int(numbers[0]), True
    return len(numbers), False


def _vector(numbers: Sequence[str], width: int, where: str) -> NDArray[np.float32]:
    try:
        vector = np.array([float(one) for one in numbers], np.float32)
    except ValueError as error:
        raise UserError(f"{where} is no word with numbers behind it: {error}") from error
    if len(vector) != width or not np.isfinite(vector).all():
        raise UserError(
            f"{where} has {len(vector)} numbers behind its word, where {width} finite ones are due"
        )
    return vector
