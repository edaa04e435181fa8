"""The stages of a mixture: where they end, what each reads, and what makes no stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.data.batches.batching import plan_epoch
from nmt.data.batches.examples import SentencePairs
from nmt.data.batches.training_split import CorpusText, PairsOfEpoch, TrainingText, digest_of, training_text
from nmt.data.cleaning.filters import FilterReport
from nmt.data.encoded_pairs import EncodedPairs
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading.sources import MixtureData, has_split, load
from nmt.data.reading.stages import Stage, described, last_updates, parsed
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig, TokenizerKind
from nmt.errors import UserError

BOTH_WAYS: dict[str, dict[str, Any]] = {
    "forward": {"name": "demo"},
    "backward": {"name": "demo", "src": "de", "tgt": "en"},
}
BIDIRECTIONAL = [
    {"until": 0.33, "weights": {"forward": 1, "backward": 1}},
    {"weights": {"forward": 1}},
]


def mixture(*stages: Any, **fields: Any) -> MixtureData:
    plain: dict[str, Any] = {"corpora": {"a": {"train": "x"}, "b": {"train": "y", "weight": 2}}}
    return MixtureData(**(plain | fields), stages=list(stages))


def test_a_stage_ends_with_an_update_or_a_share_of_the_training() -> None:
    stages = [Stage(0.25, {}), Stage(700, {}), Stage(0.9, {}), Stage(None, {})]
    assert last_updates(stages, 1000) == [250, 700, 900]
    assert last_updates([], None) == []
    assert mixture().last_updates(None) == []
    assert mixture({"until": 7}, {}).last_updates(None) == [7]


@pytest.mark.parametrize(
    ("untils", "max_steps", "reason"),
    [
        (
            (0.5,),
            None,
            r"data.stages\[0\].until=0.5 is a share of trainer.max_steps, which is null; set",
        ),
        (
            (700, 0.5),
            1000,
            r"data.stages\[1\].until=0.5 is update 500 of trainer.max_steps=1000, but the stage before it "
            "ends with update 700; raise it",
        ),
        ((7, 7), None, r"stages\[1\].until=7 is update 7, but the stage before it ends with update 7"),
        ((0.001,), 100, r"until=0.001 is update 0 of trainer.max_steps=100, but updates count from 1; raise"),
    ],
)
def test_a_stage_without_an_update_is_refused(untils: Any, max_steps: int | None, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        last_updates([*(Stage(until, {}) for until in untils), Stage(None, {})], max_steps)


def test_a_stage_has_its_own_weights_or_those_of_the_corpora() -> None:
    cfg = mixture(
        {"until": 7, "weights": {"b": 1}}, {"until": 9, "weights": None}, {"weights": {"b": 1, "a": 3}}
    )
    assert cfg.num_stages == 3
    shares = [cfg.shares([100, 100], stage) for stage in range(3)]
    assert shares == [[0.0, 1.0], pytest.approx([1 / 3, 2 / 3]), [0.75, 0.25]]
    assert mixture().shares([100, 100]) == shares[1]
    assert (mixture().num_stages, mixture().stages) == (1, [])
    assert cfg == mixture(*cfg.stages)  # as it is stored


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        (
            [5],
            r"^data.stages\[0\] must be a group of keys, such as {until: 1700, weights: {NAME: 1}}, but is 5",
        ),
        ([{"untill": 5}, {}], r"^unknown key data.stages\[0\].untill; did you mean 'until'\?"),
        ([{"x": 5}, {}], r"^unknown key data.stages\[0\].x; its keys are until and weights"),
        (
            [{}, {}],
            r"^data.stages\[0\].until is missing: only the last stage ends with the training; set it to",
        ),
        ([{}, {"until": 9}], r"until is missing"),
        (
            [{"until": 9}],
            r"^data.stages\[0\].until=9: the last stage ends with the training; remove its until",
        ),
        *(
            (
                [{"until": until}, {}],
                r"^data.stages\[0\].until must be a number of updates, such as 1700, or a",
            )
            for until in (0, -1, 1.0, 1000.0, 0.0, float("nan"), True, "half", [1])
        ),
        (
            [{"weights": {}}],
            r"^data.stages\[0\].weights must be weights by names of corpora, as {NAME: 1}, but",
        ),
        ([{"weights": ["a"]}], r"as {NAME: 1}, but is \['a'\]"),
        ([{"weights": {"c": 1}}], r"^data.stages\[0\].weights: there is no corpus 'c', only a, b"),
        *(
            (
                [{"weights": {"a": weight}}],
                r"^data.stages\[0\].weights.a must be positive, but is .*; leave out",
            )
            for weight in (0, -1, "1", float("inf"), float("nan"), True, None)
        ),
        (
            [{"weights": {"a": 1}}],
            r"^data.corpora.b is read in none of data.stages; give it a weight there, or leave",
        ),
    ],
)
def test_what_is_no_stage_is_refused(stages: list[Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        mixture(*stages)


def test_stages_are_described_with_their_ends_and_shares() -> None:
    shares = [{"a": 0.5, "b": 0.5}, {"a": 1.0, "b": 0.0}, {"a": 0.25, "b": 0.75}]
    assert described([1700, 2000], shares, 2000) == [
        "stage 1 until step 1,700: a 50.0%, b 50.0%",
        "stage 2 until step 2,000: a 100.0%",
        "stage 3 (never: trainer.max_steps is 2,000): a 25.0%, b 75.0%",
    ]
    assert described([1700], shares[:2], None)[1] == "stage 2: a 100.0%"
    assert parsed([], {"a": 1.0}) == []


def test_a_run_translates_what_its_last_stage_reads() -> None:
    cfg = MixtureData(corpora=BOTH_WAYS, stages=BIDIRECTIONAL)
    assert cfg.languages == [("en", "de")]
    assert cfg.scored_language == "de"
    assert load(cfg, Split.validation) == load(mixture(corpora={"a": {"name": "demo"}}), Split.validation)
    tagged = MixtureData(corpora=BOTH_WAYS, stages=BIDIRECTIONAL, target_tags=True)
    assert tagged.tags == {"de": "<2de>", "en": "<2en>"}  # all are pieces
    backward = MixtureData(corpora=BOTH_WAYS, stages=BIDIRECTIONAL, scored=["backward"])
    assert list(backward.parts(Split.test)) == ["backward"]
    assert MixtureData(corpora=BOTH_WAYS).languages == [("en", "de"), ("de", "en")]


def test_a_corpus_of_an_earlier_stage_is_scored_if_its_languages_are_those_of_the_last() -> None:
    corpora: dict[str, Any] = {"all": {"train": "x", "validation": "v"}, "clean": {"train": "y"}}
    cfg = MixtureData(corpora=corpora, stages=[{"until": 5}, {"weights": {"clean": 1}}])
    assert has_split(cfg, Split.validation)


def test_both_ways_are_the_same_pairs_swapped(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"en": "a b", "de": "c"}\n{"en": "d", "de": "e f"}\n')
    for place in ({"path": str(tmp_path)}, {"train": str(tmp_path / "train.jsonl")}):
        cfg = MixtureData(corpora={"one": place, "other": {**place, "src": "de", "tgt": "en"}})
        assert load(cfg, Split.train) == ParallelText(["a b", "d", "c", "e f"], ["c", "e f", "a b", "d"])
    demo = load(MixtureData(corpora=BOTH_WAYS), Split.train)
    half = len(demo) // 2
    assert (demo.src[:half], demo.tgt[:half]) == (demo.tgt[half:], demo.src[half:])


class Corpus:
    """Pairs of one word, which count how often they are read."""

    def __init__(self, word: str, size: int):
        self.text, self.reads = ParallelText([word] * size, [word] * size), 0

    def chunks(self) -> Iterator[ParallelText]:
        self.reads += 1
        yield self.text

    @property
    def known(self) -> CorpusText:
        return CorpusText(FilterReport(len(self.text.src)), digest_of(self.text), {}, self.chunks)


STAGES = [
    {"until": 3, "weights": {"a": 1, "b": 1}},
    {"until": 9, "weights": {"b": 1}},
    {"weights": {"a": 3, "b": 1}},
]
WORDS = {"a": "dog", "b": "cat"}


def epochs(alpha: float) -> tuple[dict[str, Corpus], Tokenizer, PairsOfEpoch]:
    corpora = {"a": Corpus("dog", 600), "b": Corpus("cat", 200)}
    cfg = mixture(*STAGES, temperature=None)
    kind = TokenizerKind.unigram if alpha else TokenizerKind.word
    both = ParallelText([*WORDS.values()], [*WORDS.values()])
    tokenizer = Tokenizer.train(TokenizerConfig(kind, vocab_size=12 if alpha else 6), both)
    text = TrainingText({name: corpus.known for name, corpus in corpora.items()}, [0.5, 0.5])
    return corpora, tokenizer, SentencePairs(cfg, 1, alpha).epochs(text, tokenizer, lambda line: None)


def words_of(pairs: EncodedPairs, tokenizer: Tokenizer, epoch: int = 1) -> Counter[str]:
    plan = plan_epoch(
        pairs.src_lengths, pairs.tgt_lengths, seed=1, epoch=epoch, max_tokens=50, draws=pairs.draws
    )
    taken = np.concatenate(list(plan))
    return Counter(tokenizer.decode(ids[:-1].tolist()) for ids in pairs.tgt.take(taken))


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_an_epoch_of_a_stage_has_its_shares_of_the_corpora_that_it_reads(
    alpha: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path))
    corpora, tokenizer, pairs_of_epoch = epochs(alpha)
    first, second, third = (pairs_of_epoch(1, stage).part(0) for stage in range(3))
    assert words_of(first, tokenizer) == {"dog": 400, "cat": 400}
    assert words_of(second, tokenizer) == {"cat": 200}  # as many pairs as are read, each once
    assert words_of(third, tokenizer) == {"dog": 600, "cat": 200}
    assert first.digest != second.digest
    again = pairs_of_epoch(1, 0).part(0)
    assert again.digest == first.digest
    before = {name: corpus.reads for name, corpus in corpora.items()}
    pairs_of_epoch(2, 1)
    assert corpora["a"].reads == before["a"]
    assert corpora["b"].reads == before["b"] + (alpha > 0)


def test_the_stages_are_logged_and_a_tokenizer_sees_their_mean(tmp_path: Path) -> None:
    for corpus in ("x", "y"):
        for side in ("en", "de"):
            (tmp_path / f"{corpus}.{side}").write_text("one\ntwo\n" * 50)
    corpora = {name: {"train": str(tmp_path / place)} for name, place in (("a", "x"), ("b", "y"))}
    cfg, log = mixture(*STAGES, corpora=corpora), list[str]()
    examples = SentencePairs(cfg, 1)
    text = training_text(cfg, examples.filter, {}, log.append, 5)
    assert log[-3:] == [
        "stage 1 until step 3: a 50.0%, b 50.0%",
        "stage 2 until step 9: b 100.0%",
        "stage 3 (never: trainer.max_steps is 5): a 75.0%, b 25.0%",
    ]
    assert text.shares == pytest.approx([1.25 / 3, 1.75 / 3])
