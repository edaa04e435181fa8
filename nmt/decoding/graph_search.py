"""Beam search on a GPU whose steps are recorded as CUDA graphs: one launch a step, and no work for the host.

A graph replays the very same work on the very same memory. So keys, values and ids are in windows that have
room for the steps to come (`WindowBeams`, `WindowCache`: nothing else knows of windows), sentences that are
done stay in the batch until half of it is done, which the host asks every few steps, and the numbers of
sentences, source positions and columns are rounded up: graphs then serve batch after batch of a large file.
The results are those of `nmt.decoding.beam_search`, but for the rounding of sums that shapes change.

Shapes: B sentences of the batch, among them some that are done or only fill it up, K beams.
"""

from __future__ import annotations

import copy
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.data.special_ids import PAD_ID
from nmt.decoding.beam_search import Beams, FinishedBeams, OpenBeams, beam_search
from nmt.decoding.configs import BeamConfig
from nmt.decoding.hypotheses import Hypothesis, length_limits
from nmt.layers.positions import PositionTable
from nmt.models.base import State, TranslationModel
from nmt.models.kv_cache import KeyValueCache, mask_after

COLUMNS = 32
"""Numbers of source positions, and of columns of keys and values, are multiples of this."""
FEWEST_SENTENCES = 8
"""Size of the smallest batch: a smaller one would take a GPU as long, and need graphs of its own."""
MOST_LOOPS = 64
"""Most shapes whose graphs are kept. With one more, all graphs are deleted: a deleted graph takes along the
workspace of matrix products, which the others need."""
RUNS_BEFORE_RECORDING = 3
"""Steps of each shape that are run as they are, as torch advises: libraries may try several ways at first."""
STEPS_PER_QUESTION = 4
"""Steps after which the host asks whether sentences are done; to ask, it waits for the device."""
ALIGNMENT = 256
"""Bytes of whose multiples tensors begin in the memory of loops; enough for every kernel."""


class WindowBeams(Beams):
    """Beams whose step changes no shape and asks the host nothing, for up to `num_tokens` tokens in all."""

    def __init__(self, beams: Beams, num_tokens: int):
        vars(self).update(vars(beams))
        missing = num_tokens - beams.open.ids.shape[2]
        self.open = self.open._replace(ids=F.pad(self.open.ids, (missing, 0), value=PAD_ID))
        self.finished = self.finished._replace(ids=F.pad(self.finished.ids, (missing, 0), value=PAD_ID))
        self.length = torch.as_tensor(beams.length, device=beams.limits.device).clone()

    def make_room(self, ids: Tensor) -> Tensor:
        return ids[:, :, 1:]


@dataclass
class WindowCache(KeyValueCache):
    """A cache whose columns move to the left; columns in front that are not written yet are masked."""

    num_columns: int = 0
    """S: columns written and columns to come."""

    def mask(self, padding: Tensor | None = None) -> Tensor:
        unwritten = self.num_columns - 1 - torch.as_tensor(self.columns)  # ()
        return mask_after(unwritten[None] if padding is None else padding + unwritten, self.num_columns)

    def make_room(self, columns: Tensor) -> Tensor:
        return columns[:, :, 1:]


def prefix_of(state: State) -> int:
    """Return the number of columns before those of target positions, the largest of all parts."""
    own = state.prefix if isinstance(state, KeyValueCache) else 0
    return max([own, *map(prefix_of, state.parts)])


def in_window(state: State, num_tokens: int, device: torch.device) -> State:
    """Return `state` in a window: for `num_tokens`, a step changes no shape and asks the host nothing."""
    position = torch.as_tensor(state.position, device=device).clone()
    if not isinstance(state, KeyValueCache):
        parts = [in_window(part, num_tokens, device) for part in state.parts]
        return replace(state, position=position, parts=parts)
    num_columns = state.prefix + num_tokens
    target = {
        name: F.pad(x, (0, 0, num_columns - x.shape[2], 0)) if name.endswith((".keys", ".values")) else x
        for name, x in state.target.items()
    }
    return WindowCache(state.source, target, position, prefix=state.prefix, num_columns=num_columns)


Replay = Callable[[Callable[[], None]], None]
"""A function that calls a step, or repeats its work; the step must be the same in every call."""


class Graphs:
    """A maker of graphs on one stream of a GPU, which share the memory of intermediate results.

    Sharing is safe because steps run one after the other, and leave their results in other memory.
    """

    def __init__(self, stream: torch.cuda.Stream):
        self.stream = stream
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self) -> Replay:
        return Graph(self)


class Graph:
    """A step that is run as it is the first times, then recorded, and replayed from then on."""

    def __init__(self, shared: Graphs):
        self.shared = shared
        self.graph: torch.cuda.CUDAGraph | None = None
        self.num_runs = 0

    def __call__(self, step: Callable[[], None]) -> None:
        if self.num_runs < RUNS_BEFORE_RECORDING:
            self._run(step)
            return
        if self.graph is None:
            self.graph = self._recorded(step)
        self.graph.replay()

    def _run(self, step: Callable[[], None]) -> None:
        """Run `step` without recording: what libraries set up at their first use cannot be recorded."""
        stream, outside = self.shared.stream, torch.cuda.current_stream()
        stream.wait_stream(outside)
        try:
            with torch.cuda.stream(stream):
                step()
        finally:
            outside.wait_stream(stream)
        self.num_runs += 1

    def _recorded(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph, shared = torch.cuda.CUDAGraph(), self.shared
        mode = "thread_local"  # NCCL has threads of its own
        with (
            torch.cuda.stream(torch.cuda.current_stream()),  # comes back even from a recording that fails
            torch.cuda.graph(graph, pool=shared.pool, stream=shared.stream, capture_error_mode=mode),
        ):
            step()
        return graph


class Loop:
    """A search of certain shapes: tensors that never move in memory, and the step that changes them."""

    def __init__(self, beams: Beams, state: State, active: Tensor, newly_done: Tensor, replay: Replay):
        self.beams, self.state = beams, state
        self.active = active  # (B,) bool, still in search
        self.newly_done = newly_done  # (B,) bool, done and not reported yet
        self.replay = replay

    def run(self, model: TranslationModel, num_steps: int, results: list[list[Hypothesis]]) -> Tensor:
        """Search for `num_steps`, or until half of the batch is done; return the sentences (B',) left."""
        size = len(self.active)
        for number in range(1, num_steps + 1):
            self.replay(partial(self.step, model))
            if number % STEPS_PER_QUESTION and number < num_steps:
                continue
            # The one place where the host waits for the device.
            num_active, num_done = torch.stack([self.active.sum(), self.newly_done.sum()]).tolist()
            if num_done:
                self.beams.report(self.newly_done, results)
                self.newly_done.zero_()
            if not num_active or (2 * num_active <= size and size > FEWEST_SENTENCES):
                break
        return self.active.nonzero().squeeze(1)

    def step(self, model: TranslationModel) -> None:
        """Extend all hypotheses by one token, in the same memory.

        Length and position are counted up in place; everything else is computed, then copied to its place.
        A sentence that is done goes on with the others, but what it has found stays as it is.
        """
        beams, state = copy.copy(self.beams), self.state.select(None)
        beams.grow(model, state)
        state = state.select(beams.rows())
        pairs = zip(beams.finished, self.beams.finished, strict=True)
        beams.finished = FinishedBeams(*(torch.where(rows(self.active, new), new, old) for new, old in pairs))
        done = beams.done() & self.active
        self.newly_done.logical_or_(done)
        self.active.logical_and_(~done)
        for old, new in zip(contents(self.beams, self.state), contents(beams, state), strict=True):
            if new is not old:
                old.copy_(new)


class Loops:
    """The loops of a model, which share one memory, as only one loop searches at a time."""

    def __init__(self, device: torch.device, make_graphs: Callable[[], Callable[[], Replay]]):
        self.device = device
        self.make_graphs = make_graphs
        self.memory = torch.empty(0, dtype=torch.uint8, device=device)
        self.weights: list[Tensor] = []  # kept alive, as graphs know only the addresses
        self.clear()

    def clear(self) -> None:
        """Delete all loops and graphs."""
        self.loops: dict[object, Loop] = {}
        self.graphs = self.make_graphs()

    def begin(self, model: TranslationModel, beams: Beams, state: State, num_active: int) -> Loop:
        """Return the loop that continues a search in a window, for its first `num_active` sentences."""
        active = torch.arange(len(beams.limits), device=self.device) < num_active
        found = [*contents(beams, state), active, torch.zeros_like(active)]
        key = repr(beams.cfg), prefix_of(state), tuple((x.shape, x.dtype) for x in found)
        weights = [x.detach() for x in (*model.parameters(), *model.buffers())]
        has_moved = [x.data_ptr() for x in weights] != [x.data_ptr() for x in self.weights]
        num_bytes = sum(_rounded_up(x.nbytes, ALIGNMENT) for x in found)
        is_small, is_full = num_bytes > len(self.memory), len(self.loops) == MOST_LOOPS
        if has_moved or is_small or (is_full and key not in self.loops):
            self.clear()
            self.weights = weights
        if is_small:
            self.memory = self.memory.new_empty(0)  # freed before more is allocated
            self.memory = self.memory.new_empty(2 * num_bytes)
        if key not in self.loops:
            *places, active, newly_done = self._places(found)
            self.loops[key] = Loop(*_placed(beams, state, places), active, newly_done, self.graphs())
        for place, x in zip(self._places(found), found, strict=True):
            place.copy_(x)
        return self.loops[key]

    def _places(self, found: list[Tensor]) -> list[Tensor]:
        """Return tensors of the shapes of `found` in the shared memory, one behind the other."""
        sizes = [_rounded_up(x.nbytes, ALIGNMENT) for x in found]
        parts = torch.split(self.memory[: sum(sizes)], sizes)
        pairs = zip(parts, found, strict=True)
        return [part[: x.nbytes].view(x.dtype).view(x.shape) for part, x in pairs]


def rows(chosen: Tensor, like: Tensor) -> Tensor:
    """Return `chosen` (B,) with as many dimensions as `like` (B, ...)."""
    return chosen.view(-1, *(1 for _ in like.shape[1:]))


def contents(beams: Beams, state: State) -> list[Tensor]:
    """Return the tensors that a search in a window consists of."""
    of_beams = (beams.sentences, beams.limits, beams.num_finished, *beams.open, *beams.finished)
    return [*_tensors(beams.length), *of_beams, *_contents(state)]


def _contents(state: State) -> Iterator[Tensor]:
    yield from (*_tensors(state.position), *state.source.values(), *state.target.values())
    for part in state.parts:
        yield from _contents(part)


def _tensors(number: int | Tensor) -> list[Tensor]:
    """Return a number that a device counts, as all are in a window."""
    return [number] if isinstance(number, Tensor) else []


def _placed(beams: Beams, state: State, places: Iterable[Tensor]) -> tuple[Beams, State]:
    """Return the search with its tensors replaced by `places`, in the order of `contents`."""
    beams, places = copy.copy(beams), iter(places)
    beams.length = next(places)
    beams.sentences, beams.limits, beams.num_finished = itertools.islice(places, 3)
    beams.open = OpenBeams(*itertools.islice(places, 3))
    beams.finished = FinishedBeams(*itertools.islice(places, 3))
    return beams, _placed_state(state, places)


def _placed_state(state: State, places: Iterator[Tensor]) -> State:
    position = next(places)
    source, target = ({name: next(places) for name in x} for x in (state.source, state.target))
    parts = [_placed_state(part, places) for part in state.parts]
    return replace(state, position=position, source=source, target=target, parts=parts)


_loops: WeakKeyDictionary[nn.Module, Loops] = WeakKeyDictionary()
_lock = threading.Lock()


def search(model: TranslationModel, src: Tensor, src_mask: Tensor, cfg: BeamConfig) -> list[list[Hypothesis]]:
    """Run `beam_search`, or on a GPU `graph_search` if the config asks for it, one call at a time.

    `src` (B, S) ids, `src_mask` (B, S) bool, as in both.
    """
    if not cfg.cuda_graphs or src.device.type != "cuda":
        return beam_search(model, src, src_mask, cfg)
    with _lock, torch.cuda.device(src.device):
        loops = _loops.get(model)
        if loops is None or loops.device != src.device:
            stream = torch.cuda.Stream(src.device)  # one for each model: torch hands out the same 32 in turn
            loops = _loops[model] = Loops(src.device, partial(Graphs, stream))
        return graph_search(model, src, src_mask, cfg, loops)


def forget(model: nn.Module) -> None:
    """Free the memory of the recorded searches of `model`."""
    _loops.pop(model, None)


@torch.inference_mode()
def graph_search(
    model: TranslationModel, src: Tensor, src_mask: Tensor, cfg: BeamConfig, loops: Loops
) -> list[list[Hypothesis]]:
    """Find what `beam_search` finds, by the `loops` of this model; not for the kernels of search on CPU."""
    results: list[list[Hypothesis]] = [[] for _ in range(len(src))]
    beams = Beams(length_limits(src_mask, model.max_length, cfg), cfg)
    num_positions = min(_rounded_up(src.shape[1], COLUMNS), model.max_source or sys.maxsize)
    missing = max(num_positions - src.shape[1], 0)
    state = model.start(F.pad(src, (0, missing), value=PAD_ID), F.pad(src_mask, (0, missing)))
    beams.grow(model, state)  # from one hypothesis of each sentence to K
    if beams.open.log_probs.shape[1] < cfg.beam_size:  # the vocabulary is too small for K beams at once
        return beam_search(model, src, src_mask, cfg)
    state = state.select(beams.rows())
    done = beams.done()
    beams.report(done, results)
    staying = (~done).nonzero().squeeze(1)
    try:
        while num_active := len(staying):
            size = max(1 << (num_active - 1).bit_length(), FEWEST_SENTENCES)
            staying = F.pad(staying, (0, size - num_active))  # any sentence may fill up the batch
            beams.select(staying)
            rows = staying[:, None] * cfg.beam_size + torch.arange(cfg.beam_size, device=src.device)  # (B, K)
            state = state.select(rows.flatten(), staying)
            prefix = prefix_of(state)
            num_columns = prefix + int(state.position)
            window = _rounded_up(num_columns + 1, COLUMNS)
            most = int(beams.limits.max()) - int(beams.length)
            for table in model.modules():
                if isinstance(table, PositionTable):
                    table(min(window, model.max_length or window))  # to have as many rows
            state = in_window(state, window - prefix, src.device)
            beams = WindowBeams(beams, window - prefix)
            loop = loops.begin(model, beams, state, num_active)
            beams, state = copy.copy(loop.beams), loop.state
            staying = loop.run(model, min(window - num_columns, most), results)
            del loop  # else the old memory would stay beside a larger one
    except BaseException:
        loops.clear()  # an interrupted recording is in an unknown state
        raise
    return results


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
