"""Search whose steps can be recorded: it finds what beam search finds, in tensors that stay where they are.

Without a GPU a step stands for its own recording: what is tested is that its tensors keep shape and memory.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from nmt import kernels
from nmt.decoding import graph_search as module
from nmt.decoding.beam_search import beam_search
from nmt.decoding.configs import BeamConfig, LengthPenalty
from nmt.decoding.graph_search import Loop, Loops, Replay, contents, forget, graph_search, search
from nmt.decoding.hypotheses import Hypothesis
from nmt.errors import UserError
from nmt.layers.choices import Positions
from nmt.models.base import State, TranslationModel
from nmt.models.configs import ModelConfig, TransformerConfig
from nmt.translation.translate import evaluating
from tests.decoding.test_beam_search import TableModel, sentences, tiny_transformer
from tests.models.test_contract import ENSEMBLES, SEARCHED, build

MODELS: list[Callable[[], TranslationModel]] = [lambda: TableModel(11, eos_bias=-3.0), tiny_transformer]


@pytest.fixture(autouse=True)
def _plain_torch() -> Iterator[None]:
    """Kernels have places of their own for keys and values."""
    with kernels.disabled(), torch.inference_mode():
        yield


class Recorder:
    """Calls steps, counts them and the recordings that there would be, and notices tensors that move."""

    def __init__(self) -> None:
        self.num_steps: list[int] = []
        """Of each recording."""

    def __call__(self) -> Replay:
        number = len(self.num_steps)
        self.num_steps.append(0)
        places: list[tuple[int, torch.Size]] = []

        def replay(step: Callable[[], None]) -> None:
            loop: Loop = step.func.__self__  # type: ignore[attr-defined]
            step()
            tensors = (*contents(loop.beams, loop.state), loop.active, loop.newly_done)
            found = [(x.data_ptr(), x.shape) for x in tensors]
            places[:] = places or found
            assert found == places
            self.num_steps[number] += 1

        return replay


def in_loops(recorder: Recorder) -> Loops:
    return Loops(torch.device("cpu"), lambda: recorder)


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert [h.ids for h in mine] == [h.ids for h in theirs]
        assert [h.score for h in mine] == pytest.approx([h.score for h in theirs], rel=1e-4, abs=1e-4)
        assert [h.log_prob for h in mine] == pytest.approx([h.log_prob for h in theirs], rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("case", [*ENSEMBLES, *SEARCHED])
def test_every_family_finds_the_same(
    case: Callable[[], ModelConfig], sentences: Callable[[int, int, int], tuple[Tensor, Tensor, Tensor]]
) -> None:
    """In five sentences, which fill up a batch of eight; the second time in the tensors of the first."""
    model = build(case()).eval()
    src, src_mask, _ = sentences(5, 9, 1)
    for beam_size in (1, 3) if model.reads_target else (1,):  # else tokens in any order are as probable
        cfg = BeamConfig(
            beam_size=beam_size, n_best=min(2, beam_size), max_length_ratio=1.0, max_length_offset=2
        )
        recorder = Recorder()
        loops, expected = in_loops(recorder), beam_search(model, src, src_mask, cfg)
        assert_same(graph_search(model, src, src_mask, cfg, loops), expected)
    once = list(recorder.num_steps)
    assert len(once) >= 1
    assert_same(graph_search(model, src, src_mask, cfg, loops), expected)
    assert recorder.num_steps == [2 * num for num in once]


@pytest.mark.parametrize("penalty", LengthPenalty)
@pytest.mark.parametrize("make_model", MODELS)
def test_batches_shrink_and_windows_grow(
    make_model: Callable[[], TranslationModel], penalty: LengthPenalty
) -> None:
    """Translations of up to 60 tokens take two windows, and 40 sentences take batches of 64, 32, 16 and 8."""
    model, loops = make_model(), in_loops(Recorder())
    src, src_mask = sentences(40, longest=25)
    cfg = BeamConfig(beam_size=4, n_best=3, length_penalty=penalty, length_penalty_alpha=0.7)
    expected = beam_search(model, src, src_mask, cfg)
    assert max(len(hypotheses[0].ids) for hypotheses in expected) > module.COLUMNS
    for _ in range(2):  # the first time, the memory is replaced by a larger one
        assert_same(graph_search(model, src, src_mask, cfg, loops), expected)
    used = list(loops.loops.values())
    assert {len(loop.active) for loop in used} == {64, 32, 16, 8}
    assert {loop.beams.open.ids.shape[2] for loop in used} == {32, 64}
    assert {x.untyped_storage().data_ptr() for loop in used for x in contents(loop.beams, loop.state)} == {
        loops.memory.untyped_storage().data_ptr()
    }


@pytest.mark.parametrize("make_model", MODELS)
def test_what_is_found_does_not_depend_on_how_often_the_host_asks(
    make_model: Callable[[], TranslationModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to some steps after a sentence is done, when more of its hypotheses may have ended."""
    model, (src, src_mask) = make_model(), sentences(20, longest=12)
    cfg, num_steps = BeamConfig(beam_size=4, n_best=3), []
    expected = beam_search(model, src, src_mask, cfg)
    for steps in (1, 3, 1000):
        monkeypatch.setattr(module, "STEPS_PER_QUESTION", steps)
        recorder = Recorder()
        assert_same(graph_search(model, src, src_mask, cfg, in_loops(recorder)), expected)
        num_steps.append(sum(recorder.num_steps))
    assert num_steps == sorted(num_steps)


@pytest.mark.parametrize("num", [1, 7, 8, 9, 33])
def test_any_number_of_sentences(num: int) -> None:
    model, loops = tiny_transformer(), in_loops(Recorder())
    src, src_mask = sentences(num)
    found = graph_search(model, src, src_mask, BeamConfig(), loops)
    assert_same(found, beam_search(model, src, src_mask, BeamConfig()))


def test_sentences_that_end_with_their_first_token_never_enter_a_batch() -> None:
    model, recorder = TableModel(11), Recorder()
    src, src_mask = sentences(6)
    cfg = BeamConfig(max_length_ratio=0.0, max_length_offset=1)
    found = graph_search(model, src, src_mask, cfg, in_loops(recorder))
    assert_same(found, beam_search(model, src, src_mask, cfg))
    assert recorder.num_steps == []


def test_a_beam_wider_than_the_vocabulary() -> None:
    model, (src, src_mask) = tiny_transformer(), sentences(4)
    cfg = BeamConfig(beam_size=12, max_length_ratio=0.0, max_length_offset=4)
    found = graph_search(model, src, src_mask, cfg, in_loops(Recorder()))
    assert_same(found, beam_search(model, src, src_mask, cfg))


@pytest.mark.parametrize("length", [20, 40])
def test_as_long_a_source_as_the_positions_allow_and_no_longer(length: int) -> None:
    cfg = TransformerConfig(d_model=16, num_heads=2, positions=Positions.learned, max_positions=20)
    model = build(cfg).eval()
    src, src_mask = torch.randint(4, 11, (3, length)), torch.ones(3, length, dtype=torch.bool)
    if length > 20:
        with pytest.raises(UserError, match="max_positions"):
            graph_search(model, src, src_mask, BeamConfig(), in_loops(Recorder()))
    else:
        found = graph_search(model, src, src_mask, BeamConfig(), in_loops(Recorder()))
        assert_same(found, beam_search(model, src, src_mask, BeamConfig()))


def test_old_recordings_make_room_and_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.decoding.graph_search.MOST_LOOPS", 1)
    model, recorder = tiny_transformer(), Recorder()
    loops = in_loops(recorder)
    gc.collect()
    gc.disable()  # a GPU that runs out of memory does not make Python collect what refers to itself
    try:
        before = num_alive()
        graph_search(model, *sentences(64), BeamConfig(), loops)
        assert len(recorder.num_steps) > 2
        assert num_alive() == before + 1
    finally:
        gc.enable()


def num_alive() -> int:
    return sum(type(x) is Loop for x in gc.get_objects())


def test_an_interrupted_search_leaves_no_recording() -> None:
    model, recorder = tiny_transformer(), Recorder()
    loops, advance = in_loops(recorder), model.advance

    def interrupted(last: Tensor, state: State) -> Tensor:
        if state.position == 5:
            raise KeyboardInterrupt
        return advance(last, state)

    model.advance = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        graph_search(model, *sentences(8), BeamConfig(), loops)
    assert recorder.num_steps == [4]
    assert loops.loops == {}
    model.advance = advance  # type: ignore[method-assign]
    found = graph_search(model, *sentences(8), BeamConfig(), loops)
    assert_same(found, beam_search(model, *sentences(8), BeamConfig()))


def test_recordings_go_with_their_model_and_before_training_goes_on() -> None:
    for leave in (lambda model: None, forget):
        model = tiny_transformer()
        loops = module._loops.setdefault(model, in_loops(Recorder()))
        graph_search(model, *sentences(3), BeamConfig(), loops)
        seen = weakref.ref(loops)
        del loops
        leave(model)
        if leave is not forget:
            del model
        assert seen() is None
    model.train()
    module._loops[model] = in_loops(Recorder())
    with evaluating(model):
        assert model in module._loops
    assert model not in module._loops


def test_weights_that_change_in_place_count_and_those_that_move_are_noticed() -> None:
    """Validation during training searches with the same tensors again."""
    model, (src, src_mask), recorder = tiny_transformer(), sentences(8), Recorder()
    loops, num_recorded = in_loops(recorder), []
    for change in (Tensor.contiguous, partial(torch.mul, other=1.1), None):
        for weight in model.parameters():
            if change is None:
                weight.mul_(1.1)
            else:
                weight.data = change(weight.data)
        found = graph_search(model, src, src_mask, BeamConfig(), loops)
        assert_same(found, beam_search(model, src, src_mask, BeamConfig()))
        num_recorded.append(len(recorder.num_steps))
    assert num_recorded[1] == num_recorded[2] == 2 * num_recorded[0]


def test_without_a_gpu_nothing_is_recorded() -> None:
    model, (src, src_mask) = tiny_transformer(), sentences(8)
    cfg = BeamConfig(cuda_graphs=True)
    assert_same(search(model, src, src_mask, cfg), beam_search(model, src, src_mask, cfg))
    assert model not in module._loops
