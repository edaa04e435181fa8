"""Shortlists: what source pieces become, what every sentence has, and files that are refused."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import EOS_ID
from nmt.data.tokens import shortlist
from nmt.data.tokens.shortlist import Shortlist, build_shortlist
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig, TokenizerKind
from nmt.errors import UserError

RNG = np.random.default_rng(1)
ROWS = [RNG.choice(20, size=5, replace=False).tolist() for _ in range(200)]
TEXT = ParallelText(
    [" ".join([*(f"s{word}" for word in row), "Oslo"]) for row in ROWS],
    [" ".join([*(f"t{word}" for word in row), "Oslo"]) for row in ROWS],
)


def tokenizer(*, joint: bool) -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(kind=TokenizerKind.word, vocab_size=100, joint=joint), TEXT)


def words(tok: Tokenizer, found: Shortlist, line: str) -> set[str]:
    """Return the target words that the translation of a line may have, the special ones left out."""
    ids = found.allowed(tok.encode_src([line])[0]).tolist()
    assert ids[: EOS_ID + 1] == list(range(EOS_ID + 1))
    return {piece.strip("▁") for piece in tok.tgt_spellings([i for i in ids if i > EOS_ID])}


@pytest.mark.parametrize("joint", [False, True])
def test_translations_frequent_pieces_and_the_same_word_are_allowed(
    joint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tok = tokenizer(joint=joint)
    own = {"s3", "s7"} if joint else set()
    found = build_shortlist([TEXT], tok, translations=1, frequent=0)
    assert words(tok, found, "s3 s7") == {"t3", "t7"} | own
    assert words(tok, found, "Oslo") == {"Oslo"}
    assert "Oslo" in words(tok, build_shortlist([TEXT], tok, translations=1, frequent=2), "s3")
    monkeypatch.setattr(shortlist, "MOST_CELLS", 2000)
    halves = [ParallelText(TEXT.src[part], TEXT.tgt[part]) for part in (slice(100), slice(100, None))]
    in_parts = build_shortlist(halves, tok, translations=1, frequent=0)
    assert words(tok, in_parts, "s3 s7") == {"t3", "t7"} | own


def test_the_factors_of_source_pieces_change_nothing_of_what_they_become() -> None:
    cfg = TokenizerConfig(kind=TokenizerKind.word, vocab_size=100, source_factors=["position", "case"])
    tok = Tokenizer.train(cfg, TEXT)
    found = build_shortlist([TEXT], tok, translations=1, frequent=0)
    assert max(tok.encode_src(["s3 S7"])[0]) >= tok.src_vocab_size
    assert {"t3", "t7"} <= words(tok, found, "s3 s7") == words(tok, found, "s3 S7")


def test_a_file_is_read_again_and_another_one_is_refused(tmp_path: Path) -> None:
    tok, file = tokenizer(joint=True), tmp_path / "folder" / "shortlist.npz"
    with pytest.raises(
        UserError, match=r"decoding.shortlist=.*: there is no such file; make one with nmt shortl"
    ):
        Shortlist.load(file, tok)
    made = build_shortlist([TEXT], tok, translations=3, frequent=5)
    made.save(file)
    with pytest.raises(UserError, match=r"cannot write .*shortlist.npz/inside: File exists"):
        made.save(file / "inside")
    assert Shortlist.load(file, tok).allowed([5, 9]).tolist() == made.allowed([5, 9]).tolist()
    with pytest.raises(UserError, match="made for another tokenizer than that of the run"):
        Shortlist.load(file, tokenizer(joint=False))
    made.first = made.first[:, None]
    made.save(file)
    with pytest.raises(UserError, match="is no shortlist, or a damaged one"):
        Shortlist.load(file, tok)
    made.first = made.first[:, 0]
    made.pieces[-1] = 1_000_000
    made.save(file)
    with pytest.raises(UserError, match="is no shortlist, or a damaged one"):
        Shortlist.load(file, tok)
    file.write_bytes(b"PK\3\4 nothing")
    with pytest.raises(UserError, match="is no shortlist, or a damaged one"):
        Shortlist.load(file, tok)


def test_a_file_that_claims_an_absurd_size_is_refused(tmp_path: Path) -> None:
    tok, file = tokenizer(joint=True), tmp_path / "shortlist.npz"
    header = "{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999,), }".ljust(117) + "\n"
    with ZipFile(file, "w") as archive:
        for name in ("always", "first", "pieces", "fingerprint"):
            array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(12)
            archive.writestr(f"{name}.npy", array)
    with pytest.raises(UserError, match="is no shortlist, or a damaged one"):
        Shortlist.load(file, tok)


def test_a_file_that_expands_without_bound_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tok, file = tokenizer(joint=True), tmp_path / "shortlist.npz"
    build_shortlist([TEXT], tok, translations=3, frequent=5).save(file)
    monkeypatch.setattr(shortlist, "MAX_BYTES", 100)
    monkeypatch.setattr("numpy.load", lambda *args, **keys: pytest.fail("the file was read"))
    with pytest.raises(UserError, match="is no shortlist, or a damaged one"):
        Shortlist.load(file, tok)
