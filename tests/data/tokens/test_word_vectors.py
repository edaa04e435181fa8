"""Files of word vectors: the formats that are read, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from nmt.data.tokens.word_vectors import read_vectors
from nmt.errors import UserError

KEY = "init.src_embeddings"
GLOVE = "the 0.5 -1e-2 3\nHouse 1 2 3\nof course 4 5 6\nof 7 8 9\nthe 9 9 9\n"
WANTED = {"the", "House", "of course", "of", "absent"}


@pytest.mark.parametrize("header", ["", "5 3\n"])
@pytest.mark.parametrize("ending", ["\n", " \n"])
@pytest.mark.parametrize("packed", [False, True])
def test_glove_word2vec_and_fasttext_are_read(header: str, ending: str, packed: bool, tmp_path: Path) -> None:
    text = (header + GLOVE).replace("\n", ending).encode()
    file = tmp_path / "vectors.txt"
    file.write_bytes(gzip.compress(text) if packed else text)
    found = read_vectors(file, KEY, WANTED, 3)
    assert {word: vector.tolist() for word, vector in found.items()} == {
        "the": pytest.approx([0.5, -0.01, 3]),
        "House": [1, 2, 3],
        "of course": [4, 5, 6],
        "of": [7, 8, 9],
    }
    assert {vector.dtype for vector in found.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "7 300\nthe 1 2 3\n",
            "the vectors of FILE have 300 numbers, but the embeddings of the model 3; set mod",
        ),
        (
            "a 1 2\n",
            "the vectors of FILE have 2 numbers, but the embeddings of the model 3; set model.d_model to",
        ),
        ("a 1 2 3\nthe 1 2\n", "line 2 of FILE has 2 numbers behind its word, where 3 finite ones are due"),
        (
            "a 1 2 3\nthe 1 2 nan\n",
            "line 2 of FILE has 3 numbers behind its word, where 3 finite ones are due",
        ),
        (
            "a 1 2 3\nthe 1 2 x\n",
            "line 2 of FILE is no word with numbers behind it: could not convert string to",
        ),
        ("", "FILE is empty"),
    ],
)
def test_what_is_no_file_of_vectors_is_one_error(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        read_vectors(file, KEY, WANTED, 3)
    assert str(error.value).startswith(f"{KEY}: {message.replace('FILE', str(file))}")
