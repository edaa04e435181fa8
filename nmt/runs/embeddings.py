"""Embeddings that begin from vectors of words (Qi et al. 2018): `init.src_embeddings`, `init.tgt_embeddings`.

A piece of the vocabulary begins from the vector of its spelling, else from that of the word that it spells,
else from that of the word in small letters. What has none begins at random. All vectors of a file are scaled
by one number, to the mean square of the vectors that begin at random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.config.starting import OF_WORDS, InitConfig
from nmt.data.reading.lines import open_bytes, require_file
from nmt.data.special_ids import EOS_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import SPACE
from nmt.data.tokens.word_vectors import Vectors, read_vectors
from nmt.errors import Log, Problems, UserError
from nmt.files import path_of
from nmt.models.base import TranslationModel
from nmt.models.vocabulary import TokenEmbedding


def require_vectors(init: InitConfig) -> None:
    """Raise `UserError` where a file of vectors, or the library that reads it, is not there."""
    problems = Problems()
    for key in OF_WORDS:
        if (file := getattr(init, key)) is not None:
            with problems.gathered():
                require_file(path_of(file), f"init.{key}")
                with open_bytes(path_of(file), f"init.{key}"):
                    pass  # which looks for the library of a compressed file
    problems.refuse()


def begin_embeddings(model: TranslationModel, tokenizer: Tokenizer, init: InitConfig, log: Log) -> None:
    """Put vectors of words into the tables of a model that begins, and say how many pieces have one.

    Of a piece whose row serves both sides, that of the source file counts.

    Raises:
        UserError: a file has no vector for any piece, or does not fit the model.
    """
    sides: tuple[tuple[str, str | None, int, Callable[[Sequence[int]], list[str]]], ...] = (
        ("src", init.src_embeddings, tokenizer.src_vocab_size, tokenizer.src_spellings),
        ("tgt", init.tgt_embeddings, tokenizer.tgt_vocab_size, tokenizer.tgt_spellings),
    )
    begun = dict[Tensor, set[int]]()
    for side, file, size, spellings in sides:
        if file is None:
            continue
        key = f"init.{side}_embeddings"
        table = _table(model, side, key)
        words = {i: _words(text) for i, text in enumerate(spellings(range(size))) if i > EOS_ID}
        vectors = read_vectors(
            path_of(file), key, {one for ways in words.values() for one in ways}, table.shape[1]
        )
        taken = begun.setdefault(table, set())
        rows = {i: word for i, ways in words.items() if i not in taken and (word := _first(ways, vectors))}
        if not (rows or taken):
            raise UserError(
                f"{key}: {file} has a vector for none of the {len(words):,} pieces of the vocabulary; take "
                "one of the same language"
            )
        scale = _put(table, list(rows), [vectors[word] for word in rows.values()]) if rows else 1.0
        taken.update(rows)
        log(f"{key}: {len(rows):,} of {len(words):,} pieces begin from {file}, its numbers times {scale:.3g}")


@torch.no_grad()
def _put(table: Tensor, ids: list[int], vectors: Sequence[NDArray[np.float32]]) -> float:
    """Put vectors into rows of a table, times the number that is returned."""
    values = torch.from_numpy(np.stack(vectors)).to(table)
    scale = float((table.square().mean() / values.square().mean().clamp_min(1e-30)).sqrt())
    table[ids] = scale * values
    return scale


def _table(model: TranslationModel, side: str, key: str) -> Tensor:
    """Return the matrix (V, D) of the embeddings of a side, which a model may have for both together."""
    tables = {name: x for name, x in model.named_modules() if isinstance(x, TokenEmbedding)}
    for beginning in (f"{side}_embedding", "embedding"):
        for name, table in tables.items():
            if name.startswith(beginning):
                return table.weight
    raise UserError(f"{key}: the model has embeddings of {', '.join(tables)} alone; leave this key out")


def _words(spelling: str) -> list[str]:
    """Return the words whose vectors suit a piece, the best first."""
    word = spelling.removeprefix(SPACE)
    return [one for one in dict.fromkeys((spelling, word, word.lower())) if one]


def _first(words: Sequence[str], vectors: Vectors) -> str:
    """Return the first word that has a vector, or nothing."""
    return next((word for word in words if word in vectors), "")
