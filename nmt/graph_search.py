"""Beam search on a GPU whose steps are recorded as CUDA graphs: one launch a step, and no work for the host.

A graph replays the very same work on the very same memory. So keys, values and ids stand in windows that have
room for the steps to come, sentences that are done stay in the batch until half of it is, and the numbers of
sentences, source positions and columns are rounded up: graphs then serve batch after batch of a large file.
What is found is what `nmt.beam_search` finds, but for the rounding of sums that shapes change.

Shapes: B sentences in search, those that fill up the batch among them, K beams.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.beam_search import BeamConfig, Beams, beam_search
from nmt.hypotheses import Hypothesis, length_limits
from nmt.models.base import State, TranslationModel
from nmt.models.cache import in_window
from nmt.positions import PositionTable
from nmt.tokenizer import PAD_ID

COLUMNS = 32
"""Numbers of source positions, and of columns of keys and values, are multiples of this."""
MOST_GRAPHS = 16
"""Graphs that are kept of a model, with their memory; the one that was not used for longest goes first."""

Step = Callable[[TranslationModel], None]
Recorder = Callable[[Step], Step]


class Replayed:
    """`step`, run as it is the first time, recorded the second time, and replayed from then on."""

    def __init__(self, step: Step):
        self.step = step
        self.graph: torch.cuda.CUDAGraph | None = None
        self.has_run = False

    def __call__(self, model: TranslationModel) -> None:
        if not self.has_run:  # what libraries set up at their first use cannot be recorded
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.step(model)
            torch.cuda.current_stream().wait_stream(stream)
            self.has_run = True
            return
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL has threads of its own
                self.step(model)
            self.graph = graph
        self.graph.replay()


class Loop:
    """A search of certain shapes: tensors that stay where they are, and the step that changes their values.

    It takes over the tensors that it is made with, whose search is the first that it does.
    """

    def __init__(self, beams: Beams, state: State, model: TranslationModel, record: Recorder):
        self.beams, self.state = beams, state
        self.waiting = torch.ones_like(beams.limits, dtype=torch.bool)  # (B,) in search
        self.news = torch.zeros_like(self.waiting)  # (B,) done with the last step
        self.step = record(self._step)
        self.used = [*model.parameters(), *model.buffers()]  # a graph knows no more than their addresses

    @property
    def tensors(self) -> list[Tensor]:
        """All that a step may change, and what it reads of the source."""
        return tensors(self.beams, self.state)

    def run(
        self, model: TranslationModel, num_waiting: int, num_steps: int, results: list[list[Hypothesis]]
    ) -> Tensor:
        """Search for the first `num_waiting` sentences until half of the batch is done, or `num_steps` are.

        Returns which ones (B',) are left.
        """
        self.waiting.copy_(torch.arange(len(self.waiting), device=self.waiting.device) < num_waiting)
        for _ in range(num_steps):
            self.step(model)
            if self.news.any():  # the one place in a step where the host waits for the device
                self.beams.report(self.news, results)
                self.waiting &= ~self.news
                if 2 * int(self.waiting.sum()) <= len(self.waiting):
                    break
        return self.waiting.nonzero().squeeze(1)

    def _step(self, model: TranslationModel) -> None:
        beams, state = copy.copy(self.beams), self.state.select(None)
        beams.grow(model, state)
        state = model.reorder(state, beams.rows())
        self.news.copy_(beams.done() & self.waiting)
        for mine, new in zip(self.tensors, tensors(beams, state), strict=True):
            if new is not mine:
                mine.copy_(new)


def tensors(beams: Beams, state: State) -> list[Tensor]:
    """What a search in a window consists of."""
    lengths = [x for x in (beams.length, state.position) if isinstance(x, Tensor)]  # both, in a window
    of_beams = (beams.last, beams.sentences, beams.limits, beams.num_finished, *beams.open, *beams.finished)
    return [*lengths, *of_beams, *state.source.values(), *state.target.values()]


_loops: WeakKeyDictionary[TranslationModel, OrderedDict[object, Loop]] = WeakKeyDictionary()


def search(model: TranslationModel, src: Tensor, src_mask: Tensor, cfg: BeamConfig) -> list[list[Hypothesis]]:
    """`beam_search`, with graphs where there is a GPU and the config asks for them."""
    if cfg.cuda_graphs and src.device.type == "cuda":
        return graph_search(model, src, src_mask, cfg, Replayed)
    return beam_search(model, src, src_mask, cfg)


def graph_search(
    model: TranslationModel, src: Tensor, src_mask: Tensor, cfg: BeamConfig, record: Recorder
) -> list[list[Hypothesis]]:
    """Find what `beam_search` finds; `record` makes of a step what is called in its place."""
    results: list[list[Hypothesis]] = [[] for _ in range(len(src))]
    beams = Beams(length_limits(src_mask, model.max_length, cfg), cfg)
    missing = min(_rounded_up(src.shape[1]), model.max_length or _rounded_up(src.shape[1])) - src.shape[1]
    state = model.start(F.pad(src, (0, missing), value=PAD_ID), F.pad(src_mask, (0, missing)))
    beams.grow(model, state)  # from one hypothesis of each sentence to K
    state = model.reorder(state, beams.rows())
    beams.report(beams.done(), results)
    staying = (~beams.done()).nonzero().squeeze(1)
    while num_waiting := len(staying):
        size = 1 << (num_waiting - 1).bit_length()
        staying = F.pad(staying, (0, size - num_waiting))  # any sentence will do
        beams.select(staying)
        rows = staying[:, None] * cfg.beam_size + torch.arange(cfg.beam_size, device=src.device)
        state = model.reorder(state, rows.flatten(), staying)
        num_columns = int(state.columns)
        window = _rounded_up(num_columns + 1)
        state = in_window(state, window, tables(model), src.device)
        beams.put_in_window(window - state.prefix)
        loop = _loop(beams, state, model, record)
        staying = loop.run(model, num_waiting, window - num_columns, results)
        beams, state = copy.copy(loop.beams), loop.state
    return results


def tables(model: TranslationModel) -> list[PositionTable]:
    """Those that have to reach as far as a window."""
    return [module for module in model.modules() if isinstance(module, PositionTable)]


def _loop(beams: Beams, state: State, model: TranslationModel, record: Recorder) -> Loop:
    """The one for these shapes and this config, with the values of `beams` and `state`."""
    loops = _loops.setdefault(model, OrderedDict())
    new = tensors(beams, state)
    key = repr(beams.cfg), state.prefix, tuple((x.shape, x.dtype, x.device) for x in new)
    if key in loops:
        for mine, theirs in zip(loops[key].tensors, new, strict=True):
            mine.copy_(theirs)
    else:
        loops[key] = Loop(beams, state, model, record)
        if len(loops) > MOST_GRAPHS:
            loops.popitem(last=False)
    loops.move_to_end(key)
    return loops[key]


def _rounded_up(number: int) -> int:
    return -(-number // COLUMNS) * COLUMNS
