"""Search against two oracles that share no code with it: enumeration, and a beam search in plain Python."""

from __future__ import annotations

import io
import itertools
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch import Tensor, nn

from nmt import cli
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.decoding.beam_search import Beams, beam_search
from nmt.decoding.candidates import Candidates, best_sums
from nmt.decoding.configs import STRATEGIES, BeamConfig, LengthPenalty
from nmt.decoding.hypotheses import Hypothesis, Wish
from nmt.errors import UserError
from nmt.models import build_model
from nmt.models.base import State, TranslationModel
from nmt.models.configs import TransformerConfig

TABLE_SIZE = 9973


class TableModel(TranslationModel):
    """Next-token logits looked up in a random table by a hash of the source and the target so far."""

    def __init__(self, vocab_size: int, seed: int = 0, max_length: int | None = None, eos_bias: float = 0.0):
        super().__init__()
        self.output = cast(Any, nn.Identity())
        generator = torch.Generator().manual_seed(seed)
        self.table = 2.0 * torch.randn(TABLE_SIZE, vocab_size, generator=generator)
        self.table[:, EOS_ID] += eos_bias
        self.max_length = max_length
        self.batch_sizes: list[int] = []

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        state, hidden = self.start(src, src_mask), []
        for last in tgt_in.unbind(1):
            hidden.append(self.advance(last, state))
        return torch.stack(hidden, dim=1)

    def start(self, src: Tensor, src_mask: Tensor) -> State:
        place_values = torch.arange(1, src.shape[1] + 1) ** 2
        source_hash = (src * src_mask * place_values).sum(1)
        return State({"hash": source_hash}, {"hash": torch.zeros_like(source_hash)})

    def advance(self, last: Tensor, state: State) -> Tensor:
        self.batch_sizes.append(len(state.source["hash"]))
        state.target["hash"] = (state.target["hash"] * 31 + last + 1) % TABLE_SIZE
        state.position += 1
        num_beams = len(last) // len(state.source["hash"])
        source_hash = state.source["hash"].repeat_interleave(num_beams)
        return self.table[(state.target["hash"] + 101 * source_hash) % TABLE_SIZE].clone()

    def log_prob(self, src: Tensor, ids: list[int]) -> float:
        """Of the translation `ids` of one sentence (1, S), EOS included, by teacher forcing."""
        tgt_in = torch.tensor([[BOS_ID, *ids]])
        logits = self.project(self(src, torch.ones_like(src, dtype=torch.bool), tgt_in))
        log_probs = logits[0].double().log_softmax(-1)
        return float(log_probs[torch.arange(len(ids) + 1), torch.tensor([*ids, EOS_ID])].sum())


class Scored(NamedTuple):
    score: float
    ids: list[int]


def sentences(num: int, *, longest: int = 9, vocab_size: int = 11, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (num, 1), generator=generator)
    src_mask = torch.arange(int(lengths.max())) < lengths
    return torch.randint(4, vocab_size, src_mask.shape, generator=generator) * src_mask, src_mask


def penalty(length: int, cfg: BeamConfig) -> float:
    penalties: dict[LengthPenalty, float] = {
        LengthPenalty.gnmt: ((5 + length) / 6) ** cfg.length_penalty_alpha,
        LengthPenalty.average: length**cfg.length_penalty_alpha,
        LengthPenalty.none: 1.0,
    }
    return penalties[cfg.length_penalty]


def enumerate_all(model: TableModel, src: Tensor, cfg: BeamConfig, limit: int) -> list[Scored]:
    words = [token for token in range(model.table.shape[1]) if token not in (PAD_ID, BOS_ID, EOS_ID)]
    everything = itertools.chain.from_iterable(itertools.product(words, repeat=n) for n in range(limit))
    scored = [
        Scored(model.log_prob(src, list(ids)) / penalty(len(ids) + 1, cfg), list(ids)) for ids in everything
    ]
    return sorted(scored, reverse=True)


def plain_beam_search(model: TableModel, src: Tensor, cfg: BeamConfig, limit: int) -> list[Scored]:
    """Search by the same rule without batches, caches, early stop or tensors of hypotheses."""
    open_beams: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[Scored] = []
    src_mask = torch.ones_like(src, dtype=torch.bool)
    for length in range(1, limit + 1):
        candidates = []
        for log_prob, ids in open_beams:
            logits = model.project(model(src, src_mask, torch.tensor([[BOS_ID, *ids]])))[0, -1]
            for token, value in enumerate(logits.double().log_softmax(-1).tolist()):
                if token not in (PAD_ID, BOS_ID) and (length < limit or token == EOS_ID):
                    candidates.append((log_prob + value, [*ids, token]))
        candidates.sort(reverse=True)
        for log_prob, ids in candidates[: cfg.beam_size]:
            if ids[-1] == EOS_ID:
                finished.append(Scored(log_prob / penalty(length, cfg), ids[:-1]))
        open_beams = [c for c in candidates if c[1][-1] != EOS_ID][: cfg.beam_size]
        if len(finished) >= (cfg.patience * cfg.beam_size if cfg.beam_size > 1 else 1):
            break
    return sorted(finished, reverse=True)[: cfg.n_best]


def assert_same(found: list[Hypothesis], expected: list[Scored]) -> None:
    assert [h.ids for h in found] == [e.ids for e in expected]
    assert [h.score for h in found] == pytest.approx([e.score for e in expected], abs=1e-5)


PENALTIES = [
    *itertools.product((LengthPenalty.gnmt, LengthPenalty.average), (0.0, 0.6, 1.0, 2.0)),
    (LengthPenalty.none, 1.0),
]


@pytest.mark.parametrize(("kind", "alpha"), PENALTIES)
@pytest.mark.parametrize("n_best", [4, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 15))])
def test_a_beam_as_wide_as_the_space_finds_the_optimum(
    kind: LengthPenalty, alpha: float, n_best: int
) -> None:
    # V = 5 with PAD, BOS and EOS leaves two words; T = 4 with EOS: 1 + 2 + 4 + 8 = 15 strings
    cfg = BeamConfig(
        beam_size=15,
        length_penalty=kind,
        length_penalty_alpha=alpha,
        max_length_ratio=0.0,
        max_length_offset=4,
        n_best=n_best,
    )
    for seed in range(5):
        model = TableModel(vocab_size=5, seed=seed)
        src, src_mask = sentences(3, seed=seed)
        for b, found in enumerate(beam_search(model, src, src_mask, cfg)):
            everything = enumerate_all(model, src[b : b + 1], cfg, limit=4)
            assert len(everything) == 15
            assert_same(found, everything[:n_best])


@pytest.mark.parametrize(("kind", "alpha"), PENALTIES)
@pytest.mark.parametrize(
    "beam_size", [1, 2, 5, *(pytest.param(one, marks=pytest.mark.slow) for one in (3, 4, 6))]
)
@pytest.mark.parametrize("patience", [1.0, 1.5, 100.0])
def test_narrow_beams_equal_a_plain_beam_search(
    kind: LengthPenalty, alpha: float, beam_size: int, patience: float
) -> None:
    one = BeamConfig(
        beam_size=beam_size,
        patience=patience,
        length_penalty=kind,
        length_penalty_alpha=alpha,
        max_length_ratio=1.0,
        max_length_offset=2,
    )
    many = replace(one, n_best=beam_size)
    for vocab_size in (5, 11):
        model = TableModel(vocab_size, seed=beam_size, eos_bias=1.0)
        src, src_mask = sentences(8, longest=5, seed=vocab_size)
        best, ranked = beam_search(model, src, src_mask, one), beam_search(model, src, src_mask, many)
        for b in range(len(src)):
            sentence = src[b : b + 1, src_mask[b]]
            expected = plain_beam_search(model, sentence, many, limit=sentence.shape[1] + 2)
            assert_same(ranked[b], expected)
            assert_same(best[b], expected[:1])


def test_a_patient_search_finds_no_worse_translations() -> None:
    """A search that ends with K finished hypotheses may miss the best of those that are open."""
    model = TableModel(11, seed=3, eos_bias=2.0)
    src, src_mask = sentences(64)
    hasty, patient = (
        [x[0].score for x in beam_search(model, src, src_mask, BeamConfig(beam_size=3, patience=patience))]
        for patience in (1.0, 100.0)
    )
    gains = [b - a for a, b in zip(hasty, patient, strict=True)]
    assert min(gains) > -1e-6
    assert sum(gain > 0.01 for gain in gains) > 1


def test_one_beam_equals_greedy_search() -> None:
    model = TableModel(vocab_size=11)
    src, src_mask = sentences(50)
    cfg = BeamConfig(beam_size=1, max_length_ratio=1.0, max_length_offset=2)
    for b, [found] in enumerate(beam_search(model, src, src_mask, cfg)):
        sentence = src[b : b + 1, src_mask[b]]
        state = model.start(sentence, torch.ones_like(sentence, dtype=torch.bool))
        ids = [BOS_ID]
        while ids[-1] != EOS_ID and len(ids) <= sentence.shape[1] + 2:
            logits = model.step(torch.tensor(ids[-1:]), state)[0]
            logits[[PAD_ID, BOS_ID]] = -torch.inf
            ids.append(int(logits.argmax()))
        assert found.ids == ids[1:-1]  # the last is EOS, or stands where EOS is forced


def tiny_transformer() -> TranslationModel:
    torch.manual_seed(0)
    cfg = TransformerConfig(d_model=16, d_ff=32, num_heads=2, encoder_layers=2, decoder_layers=2)
    model = build_model(cfg, src_vocab_size=11, tgt_vocab_size=11).eval()
    with torch.no_grad():  # far from uniform, as a trained model is
        for weight in model.parameters():
            weight.mul_(2.0)
    return model


@pytest.mark.parametrize("beam_size", [1, 5])
@pytest.mark.parametrize("make_model", [lambda: TableModel(11, eos_bias=-1.0), tiny_transformer])
def test_the_batch_mates_of_a_sentence_do_not_matter(
    make_model: Callable[[], TranslationModel], beam_size: int
) -> None:
    model = make_model()
    src, src_mask = sentences(32, longest=20)
    cfg = BeamConfig(beam_size=beam_size, n_best=min(2, beam_size))
    shuffled = torch.randperm(32, generator=torch.Generator().manual_seed(5))

    def search_in_batches_of(size: int, order: Tensor) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = [[] for _ in range(32)]
        for part in torch.split(order, size):
            longest = int(src_mask[part].sum(1).max())
            results = beam_search(model, src[part, :longest], src_mask[part, :longest], cfg)
            for b, hypotheses in zip(part.tolist(), results, strict=True):
                found[b] = hypotheses
        return found

    with torch.inference_mode():
        one_by_one = search_in_batches_of(1, torch.arange(32))
        for size, order in ((7, torch.arange(32)), (32, shuffled), (7, shuffled)):
            for alone, together in zip(one_by_one, search_in_batches_of(size, order), strict=True):
                assert [h.ids for h in together] == [h.ids for h in alone]
                assert [h.score for h in together] == pytest.approx([h.score for h in alone], abs=1e-4)
    assert len({len(hypotheses[0].ids) for hypotheses in one_by_one}) > 5


def test_log_probability_is_the_models_own_and_best_come_first() -> None:
    model = TableModel(vocab_size=11)
    src, src_mask = sentences(20)
    for b, hypotheses in enumerate(beam_search(model, src, src_mask, BeamConfig(n_best=5))):
        assert len({tuple(h.ids) for h in hypotheses}) == 5
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        for hypothesis in hypotheses:
            expected = model.log_prob(src[b : b + 1, src_mask[b]], hypothesis.ids)
            assert hypothesis.log_prob == pytest.approx(expected, abs=1e-4)
            assert hypothesis.score == pytest.approx(expected / ((6 + len(hypothesis.ids)) / 6), abs=1e-4)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_each_sentence_has_its_own_length_limit_where_the_end_is_forced(beam_size: int) -> None:
    model = TableModel(vocab_size=11, eos_bias=-50.0)  # would never end
    src, src_mask = sentences(30)
    cfg = BeamConfig(beam_size=beam_size, max_length_ratio=1.5, max_length_offset=1)
    for model.max_length in (None, 6):
        for b, [found] in enumerate(beam_search(model, src, src_mask, cfg)):
            limit = int(1.5 * int(src_mask[b].sum())) + 1
            assert len(found.ids) + 1 == (limit if model.max_length is None else min(limit, 6))
            expected = model.log_prob(src[b : b + 1, src_mask[b]], found.ids)
            assert found.log_prob == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("vocab_size", [5, 64, 100, 256])
@pytest.mark.parametrize("num", [1, 10, 40])
def test_best_continuations_are_those_of_topk(vocab_size: int, num: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size + num)
    log_probs = torch.randn(6, 3, vocab_size, generator=generator)
    before = torch.randn(6, 3, generator=generator)
    before[0, 1:] = -torch.inf  # empty beams
    sums = (before[:, :, None] + log_probs).flatten(1)
    expected, places = sums.topk(min(num, sums.shape[1]))
    best, beams, tokens = best_sums(before, log_probs, num)
    assert torch.equal(best, expected)
    real = best > -torch.inf
    assert torch.equal((beams * vocab_size + tokens)[real], places[real])
    assert int(tokens.max()) < vocab_size


def test_a_limit_of_nothing_still_gives_a_translation() -> None:
    src, src_mask = sentences(2)
    cfg = BeamConfig(max_length_ratio=0.0, max_length_offset=0, n_best=5)
    for hypotheses in beam_search(TableModel(vocab_size=11), src, src_mask, cfg):
        assert [h.ids for h in hypotheses] == [[]]  # the only translation of one token is EOS


def test_unused_ids_are_never_generated_and_unk_may_be() -> None:
    model = TableModel(vocab_size=6, eos_bias=-3.0)
    model.table[:, [PAD_ID, BOS_ID]] += 3.0
    src, src_mask = sentences(30)
    generated = {token for [found] in beam_search(model, src, src_mask, BeamConfig()) for token in found.ids}
    assert generated == {UNK_ID, 4, 5}


@pytest.mark.parametrize("beam_size", [1, 3])
def test_finished_sentences_leave_the_batch(beam_size: int) -> None:
    model = TableModel(vocab_size=11, eos_bias=2.0)
    src, src_mask = sentences(40)
    found = beam_search(model, src, src_mask, BeamConfig(beam_size=beam_size))
    assert model.batch_sizes[0] == 40
    assert model.batch_sizes == sorted(model.batch_sizes, reverse=True)
    assert len(set(model.batch_sizes)) > 3
    if beam_size == 1:  # every sentence was stepped once per token
        assert sum(model.batch_sizes) == sum(len(hypotheses[0].ids) + 1 for hypotheses in found)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"beam_size": 0}, "decoding.beam_size must be at least 1, but is 0"),
        ({"patience": 0.5}, "decoding.patience must be at least 1, but is 0.5"),
        ({"batch_tokens": -3}, "decoding.batch_tokens must be at least 1, but is -3"),
        ({"max_source_tokens": 0}, "decoding.max_source_tokens must be at least 1, but is 0"),
        ({"n_best": 0}, "decoding.n_best must be at least 1, but is 0"),
        (
            {"length_penalty_alpha": -0.5},
            "decoding.length_penalty_alpha must be finite and not negative, but is -0.5",
        ),
        (
            {"length_penalty_alpha": math.nan},
            "decoding.length_penalty_alpha must be finite and not negative, but is nan",
        ),
        (
            {"max_length_ratio": math.inf},
            "decoding.max_length_ratio must be finite and not negative, but is inf",
        ),
        (
            {"max_length_offset": -1},
            "decoding.max_length_offset must be finite and not negative, but is -1",
        ),
        (
            {"min_length": 10**12},
            "decoding.min_length must not exceed decoding.max_source_tokens, as no translation must be "
            "longer than a source may be, but 1000000000000 > 1024; lower it",
        ),
        ({"min_length": -1}, "decoding.min_length must not be negative, but is -1"),
        ({"no_repeat_ngram_size": -2}, "decoding.no_repeat_ngram_size must not be negative, but is -2"),
        ({"repetition_penalty": 0.5}, "decoding.repetition_penalty must be at least 1, but is 0.5"),
        (
            {"coverage_penalty": -1.0},
            "decoding.coverage_penalty must be finite and not negative, but is -1.0",
        ),
        (
            {"min_length_ratio": 3.0},
            "decoding.min_length_ratio must not exceed decoding.max_length_ratio, but 3.0 > 2.0; "
            "raise the latter",
        ),
        ({"avoid": ["a", " "]}, "decoding.avoid must list words or phrases, but one of them is blank"),
        (
            {"num_groups": 3},
            "decoding.num_groups must divide decoding.beam_size, but 5 beams make no 3 groups of one size; "
            "try decoding.beam_size=6",
        ),
        (
            {"beam_size": 2, "n_best": 4},
            "decoding.n_best must not exceed decoding.beam_size, but 4 > 2; try decoding.beam_size=4",
        ),
    ],
)
def test_values_out_of_range_are_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        replace(BeamConfig(), **overrides)
    assert str(caught.value) == message


@dataclass
class ForcedConfig(BeamConfig):
    """Beam search in which the first token of every translation is given."""

    strategy: str = "forced"
    first: int = 4
    """Id of the first token."""


def forced(
    model: TranslationModel,
    src: Tensor,
    src_mask: Tensor,
    cfg: ForcedConfig,
    wishes: Sequence[Wish] | None = None,
) -> list[list[Hypothesis]]:
    def choose(beams: Beams, log_probs: Tensor, num: int) -> Candidates:
        if beams.length == 0:
            others = torch.arange(log_probs.shape[2]) != cfg.first
            log_probs = log_probs.masked_fill(others, -torch.inf)
        return best_sums(beams.open.log_probs, log_probs, num)

    return beam_search(model, src, src_mask, cfg, choose)


def test_a_strategy_that_changes_scores_is_a_row_a_class_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(STRATEGIES, "forced", (ForcedConfig, forced))
    run = shutil.copytree(Path(__file__).resolve().parents[1] / "fixtures" / "run_0_1", tmp_path / "run")
    (tmp_path / "configs" / "decoding").mkdir(parents=True)
    choice = tmp_path / "configs" / "decoding" / "forced.yaml"
    choice.write_text("defaults: [base_forced, _self_]\nbeam_size: 2\n", encoding="utf-8")
    text = io.BytesIO(b"the cat sleeps in the house\nthe dog sleeps in the garden\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(text, encoding="utf-8"))
    arguments = ["translate", f"--config-dir={choice.parents[1]}", f"run={run}", "runtime.device=cpu"]
    assert cli.main([*arguments, "decoding=forced", "decoding.first=6"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["in", "in"]


@torch.inference_mode()
@pytest.mark.parametrize("beam_size", [1, 4])
def test_choosing_the_best_sums_is_what_search_does_by_itself(beam_size: int) -> None:
    model, (src, src_mask) = tiny_transformer(), sentences(20)
    cfg = BeamConfig(beam_size=beam_size)
    expected = beam_search(model, src, src_mask, cfg)
    found = beam_search(
        model, src, src_mask, cfg, lambda beams, x, num: best_sums(beams.open.log_probs, x, num)
    )
    for mine, theirs in zip(found, expected, strict=True):
        assert [h.ids for h in mine] == [h.ids for h in theirs]
        assert [h.score for h in mine] == pytest.approx([h.score for h in theirs], rel=1e-4, abs=1e-4)
