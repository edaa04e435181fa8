"""Search whose steps can be recorded: it finds what beam search finds, in tensors that stay where they are.

Without a GPU a step stands for its own recording: what is tested is that its tensors keep shape and memory.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from nmt import graph_search, kernels
from nmt.beam_search import BeamConfig, LengthPenalty, beam_search
from nmt.graph_search import Loop, Step
from nmt.hypotheses import Hypothesis
from nmt.models.base import TranslationModel
from tests.test_beam_search import TableModel, sentences, tiny_transformer
from tests.test_contract import CASES, build

MODELS: list[Callable[[], TranslationModel]] = [lambda: TableModel(11, eos_bias=-3.0), tiny_transformer]


@pytest.fixture(autouse=True)
def _plain_torch() -> Iterator[None]:
    """Kernels have places of their own for keys and values."""
    with kernels.disabled(), torch.inference_mode():
        yield


class Recorded:
    """Remembers what was recorded, and that every step leaves all tensors where they were."""

    def __init__(self) -> None:
        self.loops: list[Loop] = []
        self.num_steps = 0

    def __call__(self, step: Step) -> Step:
        loop: Loop = step.__self__  # type: ignore[attr-defined]
        self.loops.append(loop)
        del loop

        def replay(model: TranslationModel) -> None:
            loop: Loop = step.__self__  # type: ignore[attr-defined]
            before = [(x.data_ptr(), x.shape) for x in (*loop.tensors, loop.news)]
            step(model)
            assert [(x.data_ptr(), x.shape) for x in (*loop.tensors, loop.news)] == before
            self.num_steps += 1

        return replay


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert [h.ids for h in mine] == [h.ids for h in theirs]
        assert [h.score for h in mine] == pytest.approx([h.score for h in theirs], abs=1e-4)
        assert [h.log_prob for h in mine] == pytest.approx([h.log_prob for h in theirs], abs=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_every_family_finds_the_same(
    case: Callable[[], object], sentences: Callable[[int, int, int], tuple[Tensor, Tensor, Tensor]]
) -> None:
    """In five sentences, which fill up a batch of eight; the second time in the tensors of the first."""
    model = build(case()).eval()  # type: ignore[arg-type]
    src, src_mask, _ = sentences(5, 9, 1)
    for beam_size in (1, 3):
        cfg = BeamConfig(beam_size=beam_size, num_best=min(2, beam_size), max_length_ratio=1.5)
        expected, recorded = beam_search(model, src, src_mask, cfg), Recorded()
        assert_same(graph_search.graph_search(model, src, src_mask, cfg, recorded), expected)
        num_loops, num_steps = len(recorded.loops), recorded.num_steps
        assert num_loops >= 1
        assert_same(graph_search.graph_search(model, src, src_mask, cfg, recorded), expected)
        assert (len(recorded.loops), recorded.num_steps) == (num_loops, 2 * num_steps)


@pytest.mark.parametrize("penalty", LengthPenalty)
@pytest.mark.parametrize("make_model", MODELS)
def test_batches_shrink_and_windows_grow(
    make_model: Callable[[], TranslationModel], penalty: LengthPenalty
) -> None:
    """Translations of up to 60 tokens take two windows, and 40 sentences take batches of 64, 32, 16 ..."""
    model, recorded = make_model(), Recorded()
    src, src_mask = sentences(40, longest=25)
    cfg = BeamConfig(beam_size=4, num_best=3, length_penalty=penalty, alpha=0.7)
    found = graph_search.graph_search(model, src, src_mask, cfg, recorded)
    assert_same(found, beam_search(model, src, src_mask, cfg))
    assert max(len(hypotheses[0].ids) for hypotheses in found) > graph_search.COLUMNS
    sizes = [len(loop.waiting) for loop in recorded.loops]
    assert sizes[0] == 64
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) >= 3
    assert len({loop.beams.window for loop in recorded.loops}) >= 2


def test_sentences_that_end_with_their_first_token_never_enter_a_batch() -> None:
    model, recorded = TableModel(11), Recorded()
    src, src_mask = sentences(6)
    cfg = BeamConfig(max_length_ratio=0.0, max_length_offset=1)
    found = graph_search.graph_search(model, src, src_mask, cfg, recorded)
    assert_same(found, beam_search(model, src, src_mask, cfg))
    assert recorded.loops == []


def test_old_recordings_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.graph_search.MOST_GRAPHS", 2)
    model = tiny_transformer()
    for size in (1, 2, 4, 8):
        src, src_mask = sentences(size)
        recorded = Recorded()
        found = graph_search.graph_search(model, src, src_mask, BeamConfig(), recorded)
        assert_same(found, beam_search(model, src, src_mask, BeamConfig()))
        assert len(graph_search._loops[model]) <= 2


def test_recordings_go_with_their_model() -> None:
    model, recorded = tiny_transformer(), Recorded()
    graph_search.graph_search(model, *sentences(3), BeamConfig(), recorded)
    loops = [weakref.ref(loop) for loop in recorded.loops]
    del model, recorded
    gc.collect()
    assert loops
    assert [loop() for loop in loops] == [None] * len(loops)


def test_weights_that_change_in_place_count() -> None:
    """Validation during training searches with the same tensors again."""
    model, (src, src_mask) = tiny_transformer(), sentences(8)
    graph_search.graph_search(model, src, src_mask, BeamConfig(), Recorded())
    for weight in model.parameters():
        weight.mul_(1.1)
    found = graph_search.graph_search(model, src, src_mask, BeamConfig(), Recorded())
    assert_same(found, beam_search(model, src, src_mask, BeamConfig()))


def test_without_a_gpu_nothing_is_recorded() -> None:
    model, (src, src_mask) = tiny_transformer(), sentences(8)
    cfg = BeamConfig(cuda_graphs=True)
    assert_same(graph_search.search(model, src, src_mask, cfg), beam_search(model, src, src_mask, cfg))
    assert model not in graph_search._loops
