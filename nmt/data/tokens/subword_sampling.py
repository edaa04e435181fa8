"""Sampled segmentations (subword regularisation): a pure function of the text, a seed and the line's number.

SentencePiece seeds a generator for each thread of each process, so that the same seed gives other samples in
another process. Here pieces and scores are read from the model, and each random number is a hash of the seed,
the number of the line and the place in the line. So processes, threads, the size of chunks, and what was
sampled before make no difference.

Unigram models (Kudo 2018, section 3): a segmentation x is drawn in proportion to P(x)^alpha from the lattice
of all segmentations, piece by piece from the left, by the probability of all ways to go on behind each piece.
BPE models (Provilkov et al. 2020): a merge that is due is left out with probability alpha. As in
SentencePiece it is not tried again: the two symbols stay apart unless one of them merges with its other
neighbour. User-defined symbols, such as the tags of target languages, are never split.

The usual model has no piece across the space between two words, so that each word is drawn by itself, from a
graph that is made when the word first occurs. Probabilities are rounded to multiples of 2^-32.
"""

from __future__ import annotations

import itertools
import math
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from nmt.data.draws import Uint64s, hashes
from nmt.data.encoded_pairs import RaggedIds
from nmt.data.special_ids import EOS_ID, UNK_ID
from nmt.data.tokens.segmenter import UNKNOWN_PENALTY, PieceType, Segmenter
from nmt.data.tokens.tokenizer_training import SPACE, TokenizerKind

PART_LINES = 2048
"""Lines that are sampled at a time."""
MOST_EDGES = 1 << 22
"""Beyond this number of edges (150 MB; BPE 350 MB) all graphs are thrown away, to be made again as needed."""
LONG_UNIT = 40
"""A BPE unit of more characters is merged anew at each use: it hardly occurs again."""

END, UNMADE = -1, -2
"""Targets of edges: the end of the unit, and a node that nothing has reached yet."""
NONE = -math.inf
"""The score of a merge that there is not."""
ONCE = -1
"""In place of the first node of a unit that has no graph."""

Ints = NDArray[np.int64]


class SubwordSampler:
    """Sampled segmentations by a unigram or BPE model; not for two threads at once."""

    def __init__(self, model: bytes, alpha: float):
        self._normalize = sentencepiece.SentencePieceProcessor(model_proto=model).normalize
        self._pieces, self._alpha = Pieces(model), alpha
        self._kind = _Merges if self._pieces.kind is TokenizerKind.bpe else _Lattices
        self._graphs: _Graphs = self._kind(self._pieces, alpha)

    def sample(self, lines: Sequence[str], *, seed: int, first: int = 0) -> RaggedIds:
        """Return the ids of lines, each ending with `EOS_ID`; `first` is the number of the first line."""
        parts = [RaggedIds.of([])]  # np.concatenate needs an array
        for start in range(0, len(lines), PART_LINES):
            if self._graphs.num_edges > MOST_EDGES:
                self._graphs = self._kind(self._pieces, self._alpha)
            part = lines[start : start + PART_LINES]
            numbers = np.arange(first + start, first + start + len(part), dtype=np.uint64)
            parts.append(self._sample(part, hashes(np.array([seed], np.uint64), numbers)))
        ids, lengths = [part.ids for part in parts], [part.lengths for part in parts]
        return RaggedIds(np.concatenate(ids), np.concatenate(lengths))

    def _sample(self, lines: Sequence[str], keys: Uint64s) -> RaggedIds:
        """Sample lines by random numbers that are made of the key of each line."""
        units = self._pieces.units("\n".join([*self._normalize(list(lines)), ""]))
        nodes, is_end = self._graphs.first_nodes(units)
        line_of: Ints = np.cumsum(is_end) - is_end
        firsts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(is_end) + 1])
        keys = hashes(keys[line_of], (np.arange(len(units)) - firsts[line_of]).astype(np.uint64))
        ids = self._graphs.walk(units, nodes, keys)
        again = (ids[1:] == UNK_ID) & (ids[:-1] == UNK_ID)  # a row of unknown pieces is one piece
        ids = np.delete(ids, np.flatnonzero(again) + 1)
        return RaggedIds(ids, np.diff(np.flatnonzero(ids == EOS_ID), prepend=-1))


class Pieces:
    """The pieces of a model, and how lines are split into units that are segmented by themselves."""

    def __init__(self, model: bytes):
        segmenter = Segmenter.parse(model)
        self.kind, self.size = segmenter.kind, len(segmenter.proto.pieces)
        self.ids = segmenter.ids_of(PieceType.NORMAL)
        self.scores = {text: segmenter.proto.pieces[i].score for text, i in self.ids.items()}
        self.unused = segmenter.ids_of(PieceType.UNUSED)  # that no text becomes
        found = segmenter.ids_of(PieceType.USER_DEFINED)
        self.symbols = {text: i for text, i in found.items() if "\n" not in text}  # as no line has
        self.longest = max(map(len, self.ids), default=1)
        spelt = segmenter.ids_of(PieceType.BYTE)  # none, or all
        self.bytes = [spelt[f"<0x{byte:02X}>"] for byte in range(256)] if spelt else []
        whole = any(SPACE in text[1:] for text in self.ids)  # else no piece goes into the next word
        symbols = "|".join(map(re.escape, sorted(self.symbols, key=len, reverse=True)))
        inside = f"[^\n{'' if whole else SPACE}]"
        pattern = f"\n|{symbols}|.(?:(?!{symbols}){inside})*" if symbols else f"\n|.{inside}*"
        self.units: Callable[[str], list[str]] = re.compile(pattern).findall

    def spelt(self, text: str) -> list[int]:
        """Return the ids of a piece, or of a character that is none."""
        if text in self.ids:
            return [self.ids[text]]
        return [self.bytes[byte] for byte in text.encode()] if self.bytes else [UNK_ID]


class _Graphs(ABC):
    """The graphs of units: each path from the first node of a unit to its end is a segmentation.

    All edges are in flat arrays, in the order of their nodes.
    """

    def __init__(self, pieces: Pieces, alpha: float):
        self._pieces, self._alpha = pieces, alpha
        self._bounds = array("Q")  # of each edge: 2^32 * (its node + the probability of all edges up to it)
        self._targets = array("i")
        self._starts, self._counts = array("i"), array("i")  # the ids of an edge are a slice of self._ids
        self._ids = array("i", range(pieces.size))
        self._num_nodes = 0
        self._roots = array("i")  # the first node of each unit
        self._numbers: dict[str, int] = {}  # of each unit
        for unit, token in {"\n": EOS_ID, **pieces.symbols}.items():
            self._numbers[unit] = len(self._roots)
            self._roots.append(self._add_nodes([[1.0]], [END], [token], [1]))

    @property
    def num_edges(self) -> int:
        """Edges and ids of all graphs."""
        return len(self._targets) + len(self._ids)

    @abstractmethod
    def _first_node(self, unit: str) -> int:
        """Make the graph of a unit, and return its first node, or ONCE."""

    def first_nodes(self, units: list[str]) -> tuple[Ints, NDArray[np.bool_]]:
        """Return the first node of each unit, and whether the unit is the end of a line."""
        for unit in sorted(set(units).difference(self._numbers)):
            self._numbers[unit] = len(self._roots)
            self._roots.append(self._first_node(unit))
        numbers = np.fromiter(map(self._numbers.__getitem__, units), np.int64, len(units))
        return _view(self._roots)[numbers].astype(np.int64), numbers == 0

    def _add_nodes(
        self, sums: Sequence[Sequence[float]], targets: list[int], starts: list[int], counts: list[int]
    ) -> int:
        """Add nodes, given the sum of the weights up to each edge of each; return the number of the first."""
        first = self._num_nodes
        for node, of_node in enumerate(sums, start=first):
            base, scale = node << 32, 2.0**32 / of_node[-1]
            self._bounds.extend([base + round(x * scale) for x in of_node])
        self._targets.extend(targets)
        self._starts.extend(starts)
        self._counts.extend(counts)
        self._num_nodes += len(sums)
        return first

    def _added(self, ids: Sequence[int]) -> tuple[int, int]:
        """Add ids to `self._ids`, whose first ones are those of all pieces; return where they are."""
        if len(ids) == 1:
            return ids[0], 1
        self._ids.extend(ids)
        return len(self._ids) - len(ids), len(ids)

    def walk(self, units: list[str], nodes: Ints, keys: Uint64s) -> NDArray[np.int32]:
        """Draw a path for each unit from its first node by random numbers made of its key; return the ids."""
        going, step = np.arange(len(nodes)), 0
        visits: list[tuple[Ints, Ints]] = []
        while len(going):
            drawn = hashes(keys, np.array([step], np.uint64)) >> np.uint64(32)
            places = (nodes.astype(np.uint64) << np.uint64(32)) + drawn
            edges = np.searchsorted(_view(self._bounds), places, side="right")
            visits.append((going, edges))
            nodes, step = self._follow(edges), step + 1
            more = np.flatnonzero(nodes != END)
            going, nodes, keys = going[more], nodes[more], keys[more]
        return self._ids_of(_in_order(visits, len(units)))

    def _follow(self, edges: Ints) -> Ints:
        """Return the targets of edges."""
        return _view(self._targets)[edges].astype(np.int64)

    def _ids_of(self, edges: Ints) -> NDArray[np.int32]:
        """Return the ids of edges, end to end."""
        counts = _view(self._counts)[edges].astype(np.int64)
        shifts = _view(self._starts)[edges] - (np.cumsum(counts) - counts)
        return _view(self._ids)[np.repeat(shifts, counts) + np.arange(counts.sum())]


class _Lattices(_Graphs):
    """The lattices of a unigram model: a node for each place, its edges the pieces that begin there."""

    def __init__(self, pieces: Pieces, alpha: float):
        super().__init__(pieces, alpha)
        scores, ids = pieces.scores, pieces.ids
        self._table = {text: (alpha * score, ids[text], 1) for text, score in scores.items()}
        self._unknown = alpha * (min(scores.values(), default=0.0) - UNKNOWN_PENALTY)

    def _first_node(self, unit: str) -> int:
        size, root = len(unit), self._num_nodes
        ways = [0.0] * (size + 1)  # log of the sum over all ways to go on from each place
        places = [self._edges_at(unit, start) for start in range(size)]
        sums: list[list[float]] = []
        for start in reversed(range(size)):
            totals = [log + ways[end] for end, (log, _, _) in places[start]]
            most = max(totals)
            sums.append(list(itertools.accumulate([math.exp(total - most) for total in totals])))
            ways[start] = most + math.log(sums[-1][-1])
        edges = [edge for at_place in places for edge in at_place]
        targets = [root + end if end < size else END for end, _ in edges]
        starts, counts = [start for _, (_, start, _) in edges], [count for _, (_, _, count) in edges]
        return self._add_nodes(sums[::-1], targets, starts, counts)

    def _edges_at(self, unit: str, start: int) -> list[tuple[int, tuple[float, int, int]]]:
        """Return the pieces that begin at `start`: where each ends, alpha * log probability, and its ids."""
        table = self._table
        ends = range(start + 1, min(start + self._pieces.longest, len(unit)) + 1)
        found = [(end, edge) for end in ends if (edge := table.get(unit[start:end]))]
        if not found or found[0][0] > start + 1:
            found.insert(0, (start + 1, (self._unknown, *self._added(self._pieces.spelt(unit[start])))))
        return found


class _Symbols(NamedTuple):
    """A unit on its way from characters to the pieces of a BPE model."""

    texts: list[str]
    scores: list[float]
    """Of the merge of each symbol with the next; NONE where there is none, or it was left out."""

    def copy(self) -> _Symbols:
        """Return the same symbols, to be merged otherwise."""
        return _Symbols([*self.texts], [*self.scores])

    def leave_out(self) -> None:
        """Leave out the merge that is due: the best one, and the first of several."""
        self.scores[self.scores.index(max(self.scores))] = NONE

    def merge(self, table: dict[str, float], most: float = math.inf) -> int:
        """Make the merges that are due, `most` of them at most, and return how many they were."""
        texts, scores = self
        made = 0
        while made < most and (best := max(scores, default=NONE)) != NONE:
            i = scores.index(best)
            texts[i : i + 2] = [text := texts[i] + texts[i + 1]]
            del scores[i]
            if i:
                scores[i - 1] = table.get(texts[i - 1] + text, NONE)
            if i < len(scores):
                scores[i] = table.get(text + texts[i + 1], NONE)
            made += 1
        return made


class _Merges(_Graphs):
    """The merges of a BPE model: a node for each choice of merges left out of a unit, made when it is drawn.

    Edge j of a node makes j more merges and leaves out the next one; the last edge makes all.
    """

    def __init__(self, pieces: Pieces, alpha: float):
        super().__init__(pieces, alpha)
        self._states: dict[int, tuple[int, _Symbols]] = {}  # node -> its first edge, and what it begins with

    def _first_node(self, unit: str) -> int:
        return ONCE if len(unit) > LONG_UNIT else self._node(self._characters(unit))

    def _characters(self, unit: str) -> _Symbols:
        scores = self._pieces.scores
        return _Symbols([*unit], [scores.get(unit[i : i + 2], NONE) for i in range(len(unit) - 1)])

    def _node(self, symbols: _Symbols) -> int:
        self._states[self._num_nodes] = len(self._targets), symbols.copy()
        count = symbols.merge(self._pieces.scores)
        start, num_ids = self._all_ids(symbols)
        sums = [1.0 - (1.0 - self._alpha) ** j for j in range(1, count + 1)]
        targets = [UNMADE] * count + [END]
        return self._add_nodes([[*sums, 1.0]], targets, [start] * (count + 1), [0] * count + [num_ids])

    def _all_ids(self, symbols: _Symbols) -> tuple[int, int]:
        return self._added(list(itertools.chain.from_iterable(map(self._pieces.spelt, symbols.texts))))

    def walk(self, units: list[str], nodes: Ints, keys: Uint64s) -> NDArray[np.int32]:
        """Draw a path for each unit; merge units without a graph at once."""
        for i in np.flatnonzero(nodes == ONCE).tolist():
            symbols = self._characters(units[i])
            most = np.arange(3 * len(units[i]), dtype=np.uint64)  # more than are ever due
            for is_left_out in (hashes(keys[i : i + 1], most) < self._alpha * 2.0**64).tolist():
                if max(symbols.scores, default=NONE) == NONE:
                    break
                if is_left_out:
                    symbols.leave_out()
                else:
                    symbols.merge(self._pieces.scores, 1)
            start, num_ids = self._all_ids(symbols)
            nodes[i] = self._add_nodes([[1.0]], [END], [start], [num_ids])
        return super().walk(units, nodes, keys)

    def _follow(self, edges: Ints) -> Ints:
        for edge in np.unique(edges[super()._follow(edges) == UNMADE]).tolist():
            first_edge, state = self._states[(self._bounds[edge] - 1) >> 32]
            symbols = state.copy()
            symbols.merge(self._pieces.scores, edge - first_edge)
            symbols.leave_out()
            self._targets[edge] = self._node(symbols)
        return super()._follow(edges)


def _view(numbers: array[int]) -> NDArray[Any]:
    """Return the numbers as an array, to be forgotten before any is added."""
    return np.frombuffer(numbers, numbers.typecode)


def _in_order(visits: Sequence[tuple[Ints, Ints]], num_units: int) -> Ints:
    """Return the edges of each unit in a row; `visits` are the units of each step, and their edges."""
    lengths = np.zeros(num_units, np.int64)
    for units, _ in visits:
        lengths[units] += 1
    firsts = np.cumsum(lengths) - lengths
    edges = np.empty(lengths.sum(), np.int64)
    for step, (units, edge) in enumerate(visits):
        edges[firsts[units] + step] = edge
    return edges
