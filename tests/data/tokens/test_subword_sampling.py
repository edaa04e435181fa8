"""Sampled segmentations: exactly SentencePiece's pieces and probabilities, and the same in every process."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import math
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.encoded_pairs import RaggedIds
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.data.tokens import subword_sampling
from nmt.data.tokens.segmenter import Segmenter
from nmt.data.tokens.subword_sampling import SubwordSampler
from nmt.data.tokens.tokenizer_training import TokenizerConfig, TokenizerKind, train_model

STEMS = ["ban", "ana", "nab", "bana", "an", "nan", "b", "aba", "käse", "e", ",", "."]
LINES = [
    " ".join("".join(random.Random(9 * i + j).choices(STEMS, k=1 + (i + j) % 3)) for j in range(6))
    for i in range(200)
]
TAGS = ["<2ab>", "<2abc>"]


def across_words() -> bytes:
    """Return a unigram model with pieces that go across the space between two words."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=60,
        split_by_whitespace=False,
        pad_id=PAD_ID,
        unk_id=UNK_ID,
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        minloglevel=2,
    )
    return model.getvalue()


@functools.cache
def model(name: str) -> bytes:
    kind = TokenizerKind.bpe if name.startswith("bpe") else TokenizerKind.unigram
    if name == "across":
        return across_words()
    if name == "turned-bytes":  # numbered otherwise, as that of an imported model may be
        segmenter = Segmenter.parse(model("unigram-bytes"))
        return segmenter.renumbered(segmenter.proto.pieces[:EOS_ID:-1])
    size = 60 + 256 * name.endswith("bytes")
    cfg = TokenizerConfig(kind=kind, vocab_size=size, byte_fallback=name.endswith("bytes"))
    return train_model(cfg, LINES, "these lines", TAGS if name.endswith("tags") else ())


NAMES = ["unigram", "unigram-bytes", "turned-bytes", "unigram-tags", "across", "bpe", "bpe-bytes", "bpe-tags"]


@functools.cache
def processor(name: str) -> Any:
    return sentencepiece.SentencePieceProcessor(model_proto=model(name))


def sampler(name: str, alpha: float) -> SubwordSampler:
    return SubwordSampler(model(name), alpha)


@functools.cache
def best(name: str) -> SubwordSampler:
    """Return the sampler of best segmentations alone."""
    return sampler(name, 0.0 if name.startswith("bpe") else 1e6)


def as_lists(ids: RaggedIds) -> list[list[int]]:
    return [sentence.tolist() for sentence in ids.take(range(len(ids.lengths)))]


@pytest.mark.parametrize("name", NAMES)
@given(line=st.lists(st.sampled_from([*"banäks e,.▁xyz日<2c>\t\u2028", *TAGS]), max_size=40).map("".join))
def test_without_chance_the_segmentation_is_that_of_sentencepiece(name: str, line: str) -> None:
    """Unknown characters, bytes, tags, odd spaces and the mark of a space included."""
    expected = [*processor(name).encode(line), EOS_ID]
    [found] = as_lists(best(name).sample([line], seed=1))
    if found != expected:  # two best ones
        score = processor(name).get_score
        assert sum(map(score, found)) == pytest.approx(sum(map(score, expected)), rel=1e-5)
        assert processor(name).decode(found) == processor(name).decode(expected)


@pytest.mark.parametrize("name", NAMES)
def test_samples_spell_the_line(name: str) -> None:
    lines = [*LINES[:50], "", "  ", "日本 x", "banana" * 30]
    plain = processor(name).encode(lines)
    drawn = as_lists(sampler(name, 0.2).sample(lines, seed=1))
    assert [ids[-1] for ids in drawn] == [EOS_ID] * len(lines)
    assert processor(name).decode([ids[:-1] for ids in drawn]) == processor(name).decode(plain)
    assert sum(ids[:-1] != other for ids, other in zip(drawn, plain, strict=True)) > 25


@pytest.mark.parametrize("name", ["unigram-tags", "bpe-tags"])
def test_tags_are_never_split(name: str) -> None:
    tags = [processor(name).piece_to_id(tag) for tag in TAGS]
    drawn = as_lists(sampler(name, 0.3).sample(["<2ab> banana <2abc>ban"] * 100, seed=1))
    assert all([token for token in ids if token in tags] == tags for ids in drawn)
    assert len({tuple(ids) for ids in drawn}) > 10


def unigram_probabilities(name: str, line: str, alpha: float) -> dict[tuple[int, ...], float]:
    """Return the probability of every segmentation, found by trying all cuts."""
    pieces, text = processor(name), processor(name).normalize(line)
    weights = {}
    for cuts in itertools.product([False, True], repeat=len(text) - 1):
        places = [0, *(i for i, cut in enumerate(cuts, start=1) if cut), len(text)]
        ids = [pieces.piece_to_id(text[start:end]) for start, end in itertools.pairwise(places)]
        if UNK_ID not in ids:
            weights[tuple(ids)] = math.exp(alpha * sum(map(pieces.get_score, ids)))
    return {ids: weight / sum(weights.values()) for ids, weight in weights.items()}


def dropout_probabilities(name: str, line: str, alpha: float) -> dict[tuple[int, ...], float]:
    """Return the probability of every segmentation, found by following every choice."""
    pieces = processor(name)
    found: Counter[tuple[int, ...]] = Counter()

    def follow(symbols: tuple[str, ...], left_out: frozenset[tuple[int, int, int]], chance: float) -> None:
        ends = [0, *itertools.accumulate(map(len, symbols))]
        due = []
        for i in range(len(symbols) - 1):
            token = pieces.piece_to_id(symbols[i] + symbols[i + 1])
            if token != UNK_ID and tuple(ends[i : i + 3]) not in left_out:
                due.append((-pieces.get_score(token), i))
        if not due:
            found[tuple(map(pieces.piece_to_id, symbols))] += chance  # type: ignore[assignment]
            return
        i = min(due)[1]
        follow((*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :]), left_out, chance * (1 - alpha))
        follow(symbols, left_out | {(ends[i], ends[i + 1], ends[i + 2])}, chance * alpha)

    follow(tuple(pieces.normalize(line)), frozenset(), 1.0)
    return dict(found)


def require_drawn_from(probabilities: Mapping[tuple[int, ...], float], drawn: list[tuple[int, ...]]) -> None:
    """Assert that so high a chi-square has a probability above 1e-9: SentencePiece draws anew every time."""
    counts = Counter(drawn)
    assert counts.keys() <= probabilities.keys()
    expected = {ids: p * len(drawn) for ids, p in probabilities.items()}
    often = [ids for ids in expected if expected[ids] >= 5]
    rest = len(drawn) - sum(expected[ids] for ids in often), len(drawn) - sum(counts[ids] for ids in often)
    cells = [(expected[ids], counts[ids]) for ids in often] + ([rest] if rest[0] >= 5 else [])
    assert len(cells) > 1
    chi_square = sum((observed - mean) ** 2 / mean for mean, observed in cells)
    freedom = len(cells) - 1
    half = torch.tensor([freedom, chi_square], dtype=torch.float64) / 2
    assert torch.special.gammaincc(*half) > 1e-9, (chi_square, freedom)


def drawn_by_sentencepiece(name: str, line: str, alpha: float, count: int) -> list[tuple[int, ...]]:
    options = {"enable_sampling": True, "nbest_size": -1, "alpha": alpha}
    return [tuple(ids) for ids in processor(name).encode([line] * count, num_threads=1, **options)]


EXACT = {"unigram": unigram_probabilities, "across": unigram_probabilities, "bpe": dropout_probabilities}


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("line", ["banana", "bananab", "an ban"])
@pytest.mark.parametrize("name", EXACT)
def test_segmentations_are_as_frequent_as_they_are_probable(name: str, line: str, alpha: float) -> None:
    """By the definition, for our draws and for those of SentencePiece; for BPE, 1.0 leaves all merges out."""
    if name == "bpe" and alpha == 1.0:
        [ids] = as_lists(sampler(name, alpha).sample([line], seed=1))
        assert ids[:-1] == [processor(name).piece_to_id(c) for c in processor(name).normalize(line)]
        return
    probabilities = EXACT[name](name, line, alpha)
    drawn = as_lists(sampler(name, alpha).sample([line] * 8_000, seed=1))
    require_drawn_from(probabilities, [tuple(ids[:-1]) for ids in drawn])
    require_drawn_from(probabilities, drawn_by_sentencepiece(name, line, alpha, 20_000))


def test_long_bpe_units_are_drawn_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a graph, too."""
    monkeypatch.setattr(subword_sampling, "LONG_UNIT", 2)
    drawn = as_lists(sampler("bpe", 0.3).sample(["bananab"] * 10_000, seed=1))
    require_drawn_from(dropout_probabilities("bpe", "bananab", 0.3), [tuple(ids[:-1]) for ids in drawn])


@pytest.mark.parametrize("name", ["unigram", "across", "bpe"])
def test_the_number_of_a_line_and_the_seed_decide(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And neither how lines are handed over, nor what was sampled before, nor the number of threads."""
    lines = [*LINES, "banana" * 20]
    whole = as_lists(sampler(name, 0.1).sample(lines, seed=1))
    used = sampler(name, 0.1)
    assert as_lists(used.sample(lines, seed=2)) != whole
    assert as_lists(used.sample(lines[70:], seed=1, first=70)) == whole[70:]
    assert as_lists(used.sample(lines[:70], seed=1)) == whole[:70]
    assert as_lists(used.sample(lines[70:], seed=1)) != whole[70:]
    for most_edges, part_lines, threads in [(1, 7, 1), (1 << 22, 1, 2), (5_000, 64, 4)]:
        monkeypatch.setattr(subword_sampling, "MOST_EDGES", most_edges)
        monkeypatch.setattr(subword_sampling, "PART_LINES", part_lines)
        torch.set_num_threads(threads)
        assert as_lists(used.sample(lines, seed=1)) == whole
    torch.set_num_threads(1)
    assert as_lists(used.sample([], seed=1)) == []


def test_the_same_line_is_cut_in_many_ways() -> None:
    drawn = as_lists(sampler("unigram", 0.1).sample(["banana käse"] * 64, seed=1))
    assert len({tuple(ids) for ids in drawn}) >= 20


DIGEST = """
import hashlib, pathlib, sys
from nmt.data.tokens.subword_sampling import SubwordSampler
path, lines = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).read_text().splitlines()
for name in ("unigram", "bpe"):
    sampler = SubwordSampler((path / name).read_bytes(), 0.1)
    for seed in (1, 2):
        print(hashlib.sha256(sampler.sample(lines, seed=seed).ids.tobytes()).hexdigest())
"""


@pytest.mark.fault(6, 25)
def test_every_process_draws_the_same(tmp_path: Path) -> None:
    """Whatever Python's own hashes of strings are."""
    (tmp_path / "lines").write_text("\n".join(LINES))
    expected = []
    for name in ("unigram", "bpe"):
        (tmp_path / name).write_bytes(model(name))
        for seed in (1, 2):
            ids = sampler(name, 0.1).sample(LINES, seed=seed).ids
            expected.append(hashlib.sha256(ids.tobytes()).hexdigest())
    assert len(set(expected)) == 4

    def printed() -> Iterator[list[str]]:
        for random_hash in ("1", "2"):
            environment = {**os.environ, "PYTHONHASHSEED": random_hash}
            command = [sys.executable, "-c", DIGEST, str(tmp_path), str(tmp_path / "lines")]
            yield subprocess.check_output(command, env=environment, text=True, timeout=60).split()

    assert list(printed()) == [expected, expected]
