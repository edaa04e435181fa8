"""The pairs of each epoch: with sampled segmentations a function of seed, epoch, corpus and pair."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from nmt.data.batches import encode
from nmt.data.batches.examples import SentencePairs
from nmt.data.batches.training_split import CorpusText, TrainingText, digest_of, streamed
from nmt.data.cleaning.filters import FilterReport
from nmt.data.encoded_pairs import EncodedPairs
from nmt.data.parallel_text import PairStream, ParallelText
from nmt.data.reading.sources import MixtureData
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig, TokenizerKind
from tests.data.batches.test_streaming import PLAIN

rng = random.Random(1)
LINES = ["".join(rng.choices("abc", k=rng.randint(4, 20))) for _ in range(60)]
TEXT = ParallelText(LINES, [line.upper() for line in LINES])


def epochs(tokenizer: Tokenizer, chunk: int, seed: int = 1) -> Callable[[int, int], EncodedPairs]:
    """Return the sampled pairs of two corpora of the same text, read `chunk` pairs at a time."""

    def chunks() -> list[ParallelText]:
        cuts = range(0, len(TEXT), chunk)
        return [ParallelText(TEXT.src[i : i + chunk], TEXT.tgt[i : i + chunk]) for i in cuts]

    part = CorpusText(FilterReport(len(TEXT)), digest_of(TEXT), {}, lambda: iter(chunks()))
    cfg = MixtureData(corpora={"one": {"train": "x"}, "two": {"train": "x"}})
    examples = SentencePairs(cfg, seed, sampling_alpha=0.2)
    text = TrainingText({"one": part, "two": part}, [0.5, 0.5])
    of_epoch = examples.epochs(text, tokenizer, lambda line: None)
    return lambda epoch, stage: of_epoch(epoch, stage).part(0)


def as_lists(pairs: EncodedPairs) -> list[tuple[list[int], list[int]]]:
    return [(pairs.src[i].tolist(), pairs.tgt[i].tolist()) for i in range(len(pairs))]


@pytest.mark.fault(6, 25)
@pytest.mark.parametrize("kind", [TokenizerKind.unigram, TokenizerKind.bpe])
def test_sampled_epochs_are_the_same_whatever_came_before(kind: TokenizerKind) -> None:
    """Whatever the chunks, the threads, and the epochs that the tokenizer has sampled before."""
    tokenizer = Tokenizer.train(TokenizerConfig(kind=kind, vocab_size=40), TEXT)
    fresh = Tokenizer(tokenizer.cfg, tokenizer.src_model, tokenizer.tgt_model)
    straight, resumed = epochs(tokenizer, 60), epochs(fresh, 7)
    first, second = straight(1, 0), straight(2, 0)
    torch.set_num_threads(2)
    again = resumed(2, 0)
    torch.set_num_threads(1)
    assert (as_lists(again), again.digest) == (as_lists(second), second.digest)
    others = [first, epochs(tokenizer, 60, seed=2)(1, 0)]
    assert len({pairs.digest for pairs in (second, *others)}) == 3
    pairs = as_lists(first)
    assert pairs[:60] != pairs[60:]  # the same text in another corpus is drawn anew
    assert [tokenizer.decode(tgt) for _, tgt in pairs] == 2 * TEXT.tgt


def test_pairs_of_a_stream_are_modified_by_the_rules_of_their_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """However the buffer is cut into chunks, and in a stage that does not read all corpora, too."""
    monkeypatch.setattr(encode, "CHUNK_PAIRS", 3)
    cfg = MixtureData(
        corpora={"tr": {"train": "x", "tgt": "tr"}, "de": {"train": "x"}},
        stages=[{"until": 5, "weights": {"tr": 0.5, "de": 1}}, {"weights": {"de": 1}}],
        temperature=None,
        streaming=True,
        buffer_pairs=12,
        augment=[{"name": "upper_case", "rate": 1.0}],
    )
    examples, text = SentencePairs(cfg, seed=1), ParallelText(["i"], ["i"])
    shares = [cfg.shares([1, 1], stage) for stage in (0, 1)]
    source = PairStream(lambda: "stamp", lambda: iter([text]))
    stream = streamed([source, source], shares, cfg, examples.filter, [PLAIN] * 2)
    tokenizer = Tokenizer.train(
        TokenizerConfig(kind=TokenizerKind.word, vocab_size=6), ParallelText(["I", "İ"], ["I", "İ"])
    )
    of_buffer = examples.epochs(stream, tokenizer, lambda line: None)
    for stage, expected in ((0, [("I", "İ")] * 4 + [("I", "I")] * 8), (1, [("I", "I")] * 12)):
        pairs = as_lists(of_buffer(1, stage).part(0))
        assert [tuple(tokenizer.decode(side[:-1]) for side in pair) for pair in pairs] == expected
