"""Weights of training pairs: 1 is plain, 2 is the pair twice, 0 is no pair; files that give them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nmt
from nmt.config.compose import compose
from nmt.data.batches.batching import collate
from nmt.data.batches.blocks import LargeCorpora
from nmt.data.batches.encode import EncodingOptions, LineEncoder, encode_pairs, opened
from nmt.data.batches.shards import Shards
from nmt.data.batches.training_split import digest_of, streamed
from nmt.data.cleaning.filters import filter_pairs
from nmt.data.encoded_pairs import EncodedPairs, RaggedIds, joined
from nmt.data.parallel_text import ParallelText, Split, concatenated
from nmt.data.reading import sources
from nmt.data.reading.bundled_data import ToyData
from nmt.data.reading.files import FilesData
from nmt.data.reading.hub import HubData
from nmt.data.reading.sources import AlignmentData, MixtureData
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig, TokenizerKind
from nmt.errors import UserError
from nmt.layers.loss import (
    PassFactors,
    projected_agreement,
    projected_imitation,
    projected_nll,
)
from nmt.runs.opened import Run
from nmt.training.gradients import count_of
from nmt.verbs import VERBS
from tests.data.batches.test_streaming import PLAIN

TEXT = ParallelText(
    ["a dog", "a cat", "the cow"], ["ein Hund", "eine Katze", "die Kuh"], weights=[1.0, 0.5, 2.0]
)
TINY = (
    "tokenizer=char",
    "model=transformer_tiny",
    "model.d_model=16",
    "model.d_ff=16",
    "model.num_heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.dropout=0",
    "trainer.batch_tokens=512",
    "data.max_tokens=128",
    "trainer.max_steps=2",
    "trainer.eval_every_steps=1",
    "trainer.log_every_steps=1",
    "trainer.num_samples=0",
    "decoding=greedy",
    "decoding.max_length_ratio=0",
    "tracking.sinks=[jsonl]",
    "runtime.device=cpu",
)


@pytest.mark.parametrize("kind", ["nll", "agreement", "imitation"])
def test_weight_two_is_the_token_twice_and_weight_zero_is_none(kind: str) -> None:
    torch.manual_seed(1)
    output, targets = nn.Linear(6, 11, bias=kind == "nll"), torch.randint(11, (5,))
    hidden, teacher = torch.randn(2, 5, 6, requires_grad=True), torch.randn(5, 11).softmax(-1)
    rows, weights = torch.tensor([0, 0, 1, 3, 3, 4]), torch.tensor([2.0, 1.0, 0.0, 2.0, 1.0])

    def loss(rows: Tensor | slice, weights: Tensor | None) -> list[Tensor]:
        chosen, own = hidden[:, rows], targets[rows]
        found: tuple[Tensor, ...]
        if kind == "nll":
            found = projected_nll(chosen[0], output, own, 0.1, weights)
        elif kind == "agreement":
            found = projected_agreement(chosen, output, own, 0.1, PassFactors(0.5, 0.5, 0.3, 0.7), weights)
        else:
            found = projected_imitation(chosen[0], output, own, 0.1, 0.4, lambda i: teacher[rows][i], weights)
        gradients = torch.autograd.grad(found[0], [hidden, output.weight])
        return [*found, *gradients]

    for one, other in zip(loss(slice(None), weights), loss(rows, None), strict=True):
        torch.testing.assert_close(one, other)


def pairs(*weights: float, size: int = 3) -> EncodedPairs:
    side = RaggedIds.of([[7] * (i + 1) + [3] for i in range(size)])
    return EncodedPairs(side, side, weights=np.array(weights, np.float32) if weights else None)


def test_a_batch_has_the_weight_of_its_pair_for_each_token_and_none_where_all_are_one() -> None:
    batch = collate(pairs(2.0, 1.0, 0.5), [0, 2])
    assert batch.weights is not None
    assert batch.weights.tolist() == [2.0] * 2 + [0.5] * 4
    assert batch.count == 6.0
    assert collate(pairs(1.0, 1.0, 0.5), [0, 1]).weights is None
    assert count_of(pairs(2.0, 1.0, 0.5), [np.array([0, 2]), np.array([1])]) == 4.0 + 2.0 + 3.0
    assert count_of(pairs(), [np.array([0, 1])]) == 5
    assert count_of(pairs(0.0, 0.0, 0.0), [np.array([0, 1])]) == 1.0  # of a loss of 0


def test_weights_stay_with_their_pairs_through_filters_encoding_shards_and_parts(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(kind=TokenizerKind.char), TEXT)
    text = ParallelText([*TEXT.src, ""], [*TEXT.tgt, "x"], weights=[*TEXT.weights, 9.0])
    kept, _ = filter_pairs(text, FilesData(train="x"))
    assert kept == TEXT
    options = EncodingOptions(10, 10, weighted=True)  # one target is too long
    encoded, _ = encode_pairs(TEXT, tokenizer, options)
    assert encoded.weights is not None
    assert encoded.weights.tolist() == [1.0, 2.0]
    assert encode_pairs(TEXT, tokenizer)[0].weights is None
    both = joined([encoded, encode_pairs(ParallelText(["a"], ["a"]), tokenizer, options)[0]], [0.5, 0.5])
    assert both.weights is not None
    assert both.weights.tolist() == [1.0, 2.0, 1.0]
    part = LargeCorpora([encoded], [1.0], seed=1).read(1, 0)
    assert part.weights is not None
    order = [row.tolist() for row in encoded.src.take([0, 1])]
    places = [order.index(part.src[i].tolist()) for i in range(2)]
    assert part.weights.tolist() == [encoded.weights[place] for place in places]
    encoder = LineEncoder(tokenizer, EncodingOptions(weighted=True))
    shards = Shards(tmp_path, "content", 3, encoder, 2, 3)
    assert shards.make(iter([TEXT]))
    (tmp_path / "merged").mkdir()
    merged, _ = opened(tmp_path / "merged", shards.merge(tmp_path / "merged"))
    assert merged.weights is not None
    first = [row.tolist() for row in encode_pairs(TEXT, tokenizer)[0].src.take(range(3))]
    assert [TEXT.weights[first.index(merged.src[i].tolist())] for i in range(3)] == merged.weights.tolist()


def test_a_text_with_other_weights_is_another_text() -> None:
    plain = ParallelText(TEXT.src, TEXT.tgt)
    halves = [TEXT.part(slice(2)), TEXT.part(slice(2, None))]
    assert digest_of(TEXT) != digest_of(plain)
    assert concatenated(halves) == TEXT
    assert concatenated([plain, TEXT]).weights == [1.0] * 3 + TEXT.weights


def written(folder: Path, weights: str) -> FilesData:
    for side, lines in (("en", TEXT.src), ("de", TEXT.tgt)):
        (folder / f"train.{side}").write_text("".join(f"{line}\n" for line in lines))
    (folder / "weights").write_text(weights)
    return FilesData(train=f"{folder}/train", validation=f"{folder}/train", weights=f"{folder}/weights")


def test_weights_come_from_a_file_or_a_column_of_the_training_pairs(tmp_path: Path) -> None:
    cfg = written(tmp_path, "1\n0.5\n2.0\n")
    assert sources.stream(cfg, Split.train).read() == TEXT
    assert not sources.stream(cfg, Split.validation).read().weights
    rows = list(zip(TEXT.src, TEXT.tgt, TEXT.weights, strict=True))
    (tmp_path / "a.tsv").write_text("en\tde\tw\n" + "".join(f"{s}\t{t}\t{w}\n" for s, t, w in rows))
    (tmp_path / "a.jsonl").write_text(
        "".join(f"{json.dumps({'en': s, 'de': t, 'w': w})}\n" for s, t, w in rows)
    )
    (tmp_path / "plain.tsv").write_text("en\tde\n" + "".join(f"{s}\t{t}\n" for s, t, _ in rows))
    for name in ("a.tsv", "a.jsonl"):
        table = FilesData(train=f"{tmp_path}/{name}", validation=f"{tmp_path}/plain.tsv", weights="w")
        assert sources.stream(table, Split.train).read() == TEXT
        assert not sources.stream(table, Split.validation).read().weights
    (tmp_path / "set").mkdir()
    (tmp_path / "a.jsonl").rename(tmp_path / "set" / "train.jsonl")
    hub = HubData(path=str(tmp_path / "set"), weights="w", validation_split=None, test_split=None)
    assert sources.stream(hub, Split.train).read() == TEXT


@pytest.mark.parametrize(
    ("weights", "error"),
    [
        ("1\n-1\n1\n", r"data.weights: .*/weights:2: a weight must be a number from 0, but is '-1'"),
        ("1\n1\n1e-50\n", r"/weights:3: a weight must be 0, or from 1e-20 to 1e\+20, but is '1e-50'"),
        ("1\n1\nnan\n", r"/weights:3: a weight must be a number from 0, but is 'nan'"),
        ("1\n\n1\n", r"/weights:2: a weight must be a number from 0, but is ''"),
        ("1\n1\n", r"data.weights: .*/weights has 2 lines, but .*/train.en 3; it needs one for each"),
        ("1\n1\n1\n1\n", r"data.weights: .*/weights has 4 lines, but .*/train.en 3; it needs one for each"),
    ],
)
def test_a_weight_that_is_none_is_refused_by_its_line(tmp_path: Path, weights: str, error: str) -> None:
    with pytest.raises(UserError, match=error):
        sources.stream(written(tmp_path, weights), Split.train).read()


def test_a_weight_in_a_row_that_is_none_is_refused_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("en\tde\tw\na\tb\t1\na\tb\tinf\n")
    with pytest.raises(UserError, match=r"data.train: .*/a.tsv:3: a weight must be a number from 0"):
        sources.stream(FilesData(train=f"{tmp_path}/a.tsv", weights="w"), Split.train).read()
    (tmp_path / "a.jsonl").write_text('{"en": "a", "de": "b", "w": -0.5}\n')
    with pytest.raises(UserError, match=r"data.train: .*/a.jsonl:1: a weight must be a number from 0"):
        sources.stream(FilesData(train=f"{tmp_path}/a.jsonl", weights="w"), Split.train).read()
    with pytest.raises(UserError, match=r"data.weights=v: .*/a.tsv has no column 'v', only en, de, w"):
        sources.stream(FilesData(train=f"{tmp_path}/a.tsv", weights="v"), Split.train).read()
    entry = {"name": "files", "train": "x", "weights": "y"}
    with pytest.raises(UserError, match=r"data.corpus.weights: damaged pairs have no weights"):
        AlignmentData(corpus=entry)


def test_a_corpus_of_a_mixture_has_one_weight_for_all_its_pairs(tmp_path: Path) -> None:
    own = written(tmp_path, "1\n0.5\n2.0\n")
    entry = {"train": own.train, "weights": own.weights, "loss_weight": 2.0}
    corpora: dict[str, Any] = {"own": entry, "plain": {"train": own.train}}
    cfg = MixtureData(corpora=corpora, temperature=None, streaming=True)
    found = {name: source.read() for name, source in sources.training_streams(cfg).items()}
    assert found["own"].weights == [2.0, 1.0, 4.0]
    assert found["plain"].all_weights == [1.0] * 3
    assert cfg.has_weights
    streams = list(sources.training_streams(cfg).values())
    buffer, _ = next(streamed(streams, [[0.5, 0.5]], cfg, filter_pairs, [PLAIN] * 2).buffers(6, 0))
    assert buffer.weights == [2.0, 1.0, 4.0, 1.0, 1.0, 1.0]
    with pytest.raises(UserError, match=r"data.corpora.own.loss_weight must be positive, but is 0"):
        MixtureData(corpora={"own": {"train": "x", "loss_weight": 0}})


def trained(folder: Path, weights: list[float], name: str, *more: str) -> Run:
    """Train on the toy pairs with weights, if there are any."""
    toy = sources.load(ToyData(), Split.train)
    for side, lines in (("en", toy.src), ("fr", toy.tgt)):
        (folder / f"toy.{side}").write_text("".join(f"{line}\n" for line in lines))
    (folder / name).write_text("".join(f"{weight}\n" for weight in weights))
    place = f"{folder}/toy"
    data = ["data=files", "data.tgt=fr", *(f"data.{s}={place}" for s in ("train", "validation", "test"))]
    own = [f"data.weights={folder}/{name}"] if weights else []
    return nmt.train(*data, *TINY, *own, *more, run=folder / f"run-{name}")


def test_a_training_with_weight_one_is_the_plain_one_bit_for_bit(tmp_path: Path) -> None:
    plain, ones = trained(tmp_path, [], "plain"), trained(tmp_path, [1.0] * 10, "ones")
    expected = plain.model.state_dict()
    assert all(torch.equal(x, expected[name]) for name, x in ones.model.state_dict().items())
    halves = trained(tmp_path, [0.5] * 10, "halves")  # the divisor is weighted, too
    for name, x in halves.model.state_dict().items():
        torch.testing.assert_close(x, expected[name], rtol=1e-3, atol=1e-4)
    losses = [[row["train/loss"] for row in run.metrics if "train/loss" in row] for run in (plain, halves)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.slow
def test_a_training_with_weights_goes_on_with_the_same_weights_alone(tmp_path: Path) -> None:
    weights = [0.0, 2.0, *[0.5] * 8]
    whole = trained(tmp_path, weights, "whole").model.state_dict()
    trained(tmp_path, weights, "first", "trainer.max_steps=1")
    with pytest.raises(UserError, match="the training data"):
        trained(tmp_path, [1.0] * 10, "first")
    resumed = trained(tmp_path, weights, "first").model.state_dict()
    assert all(torch.equal(x, whole[name]) for name, x in resumed.items())


def test_an_objective_without_weights_is_refused() -> None:
    corpora = "data.corpora={a: {name: toy, loss_weight: 2}}"
    others = "cross_entropy or r_drop or simcut or distillation"
    with pytest.raises(UserError, match=rf"=minimum_risk knows no weights of pairs, .* objective={others}$"):
        compose(VERBS["train"], ["data=mixture", corpora, "data.tgt=fr", "objective=minimum_risk"])
