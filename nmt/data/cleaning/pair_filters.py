"""The filters of data.filters: what each measures of a pair, and which values it accepts.

Each function takes the config of a row and a `Context` and returns a `PairFilter`. Values are those of a
chunk of pairs, one row each; a filter that compares pairs with others accepts the values of all pairs at
once.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from regex import compile as compile_pattern

from nmt import extras
from nmt.data.configs import DataConfig
from nmt.data.filter_table import (
    Action,
    CharactersConfig,
    ClassifierConfig,
    Compared,
    CrossEntropyConfig,
    DuplicatesConfig,
    IdenticalConfig,
    Kept,
    LanguageConfig,
    LengthConfig,
    ModelFilterConfig,
    NumbersConfig,
    OverlapConfig,
    RatioConfig,
    RegexConfig,
    ScoresConfig,
    ScriptConfig,
    Sides,
    Unit,
    WordLengthConfig,
)
from nmt.data.parallel_text import ONE_FOR_EACH, PairStream, ParallelText, Split
from nmt.data.reading import sources
from nmt.data.reading.lines import read_lines, require_file
from nmt.data.text.scripts import language_of, script_of, scripts_of_language
from nmt.data.text.words import counted_words
from nmt.errors import UserError
from nmt.files import path_of

MATCH_SECONDS = 5.0
"""Longest time that a pattern may be looked for in one line."""
Values = NDArray[Any]
Mask = NDArray[np.bool_]


@dataclass
class NumberedText(ParallelText):
    """Pairs with their numbers in the corpus, from 0."""

    numbers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def kept(self, mask: Sequence[Any] | Any) -> NumberedText:
        """Return the pairs whose value in `mask` is true."""
        chosen = np.asarray(mask)
        if chosen.all():
            return self
        left = super().kept(chosen)
        return NumberedText(left.src, left.tgt, numbers=self.numbers[chosen])


@dataclass(frozen=True)
class PairFilter:
    """A filter that is ready to judge pairs."""

    values: Callable[[NumberedText], Values]
    """A function that returns the values of a chunk of pairs (N,) or (N, 2), called in the order of the
    corpus with the pairs that the filters before have kept."""
    accept: Callable[[Values], Mask] = lambda values: values
    """A function that returns which pairs to keep, given their values."""
    needs_all: bool = False
    """Whether `accept` must be given the values of all pairs at once; they are then held in memory."""
    shows_values: bool = True
    """Whether a value tells a person something."""
    finish: Callable[[int], None] = lambda pairs: None
    """A function that is given the number of pairs of the whole corpus, after the last of them; raises
    `UserError` where the filter needs another number."""


Scorer = Callable[[ParallelText], Values]
"""A function that returns the scores of pairs (N,), higher for better ones."""


class ModelScorers(Protocol):
    """The access to trained models, which `nmt.runs.scorers` gives."""

    def digest(self, cfg: ModelFilterConfig) -> str:
        """Return a hash that tells the weights of the models of a filter from others."""
        ...

    def open(self, cfg: ModelFilterConfig, languages: tuple[str, str]) -> Scorer:
        """Return the function that scores pairs of `languages` under the models of a filter."""
        ...


@dataclass(frozen=True)
class Context:
    """What a filter may need besides its config."""

    languages: tuple[str, str]
    """Of source and target."""
    scored_on: Mapping[str, ParallelText] = field(default_factory=dict)
    """The pairs to score on, by split."""
    scorers: ModelScorers | None = None
    """Access to trained models; None where there are none."""
    corpus: DataConfig | None = None
    """The config of the corpus whose training pairs are judged; None for pairs of no corpus."""
    earlier: tuple[DataConfig, ...] = ()
    """The configs of the corpora of the same languages before it in the mixture."""

    def open_scorer(self, cfg: ModelFilterConfig) -> Scorer:
        """Return the function that scores pairs under the models of a filter."""
        assert self.scorers is not None
        return self.scorers.open(cfg, self.languages)


def between(low: float | None, high: float | None) -> Callable[[Values], Mask]:
    """Return the function that accepts values of which all are in a range."""

    def accept(values: Values) -> Mask:
        inside = (values >= (-math.inf if low is None else low)) & (
            values <= (math.inf if high is None else high)
        )
        return np.asarray(inside if inside.ndim == 1 else inside.all(1))

    return accept


def _of_sides(sides: Sides, measure: Callable[[list[str]], Values]) -> Callable[[NumberedText], Values]:
    """Return the function that measures some sides of pairs."""
    if sides is Sides.src:
        return lambda text: measure(text.src)
    if sides is Sides.tgt:
        return lambda text: measure(text.tgt)
    return lambda text: np.stack([measure(text.src), measure(text.tgt)], 1)


def _numbers(values: Iterable[float], lines: Sequence[Any]) -> Values:
    return np.fromiter(values, np.float64, len(lines))


def _sizes(unit: Unit) -> Callable[[list[str]], Values]:
    if unit is Unit.characters:
        return lambda lines: _numbers((len(line.strip()) for line in lines), lines)
    return lambda lines: _numbers((len(counted_words(line)) for line in lines), lines)


def length(cfg: LengthConfig, context: Context) -> PairFilter:
    """Return the filter for the lengths of sides."""
    return PairFilter(_of_sides(cfg.sides, _sizes(cfg.unit)), between(cfg.min, cfg.max))


def ratio(cfg: RatioConfig, context: Context) -> PairFilter:
    """Return the filter for the ratio of the lengths of both sides."""
    sizes = _sizes(cfg.unit)

    def values(text: NumberedText) -> Values:
        src, tgt = sizes(text.src), sizes(text.tgt)
        longer = np.maximum(src, tgt)
        return np.where(longer > cfg.short, longer / np.maximum(np.minimum(src, tgt), 1), 1.0)

    return PairFilter(values, between(None, cfg.max))


def word_length(cfg: WordLengthConfig, context: Context) -> PairFilter:
    """Return the filter for the length of the longest word of a side."""

    def longest(lines: list[str]) -> Values:
        return _numbers((max(map(len, counted_words(line)), default=0) for line in lines), lines)

    return PairFilter(_of_sides(cfg.sides, longest), between(None, cfg.max))


# Characters

LETTER, DIGIT, BAD, OTHER, SPACE = range(5)


class _Kinds(dict[str, int]):
    """Character -> its kind, found at its first use."""

    def __missing__(self, character: str) -> int:
        category = unicodedata.category(character)
        kind = {"L": LETTER, "M": LETTER, "N": DIGIT, "Z": SPACE}.get(category[0], OTHER)
        if character == "\t":
            kind = SPACE
        elif category in ("Cc", "Co", "Cn", "Cs") or character == "\ufffd":
            kind = BAD
        self[character] = kind
        return kind


_KINDS = _Kinds()


def characters(cfg: CharactersConfig, context: Context) -> PairFilter:
    """Return the filter for the shares of letters and digits, and for control characters."""

    def fits(line: str) -> bool:
        counts = Counter(map(_KINDS.__getitem__, line))
        size = len(line) - counts[SPACE]
        letters, digits = counts[LETTER] >= cfg.letters * size, counts[DIGIT] <= cfg.digits * size
        return letters and digits and (cfg.control or not counts[BAD])

    def measure(lines: list[str]) -> Values:
        return _numbers(map(fits, lines), lines)

    return PairFilter(_of_sides(cfg.sides, measure), between(1, None), shows_values=False)


class _Scripts(dict[str, str]):
    """Letter -> its script, "" for what is no letter; found at its first use."""

    def __missing__(self, character: str) -> str:
        found = self[character] = script_of(character) if unicodedata.category(character)[0] == "L" else ""
        return found


_SCRIPTS = _Scripts()


def _scripts_of(named: str | None, language: str, key: str) -> frozenset[str]:
    if named is None:
        named = scripts_of_language(language)
    if named is None:
        raise UserError(
            f"{key} must be set, such as LATIN: the script of the language {language!r} is not known here"
        )
    return frozenset(name.strip().upper() for name in named.split(","))


def script(cfg: ScriptConfig, context: Context) -> PairFilter:
    """Return the filter for the share of the letters that are of the script of a side."""

    def measure(wanted: frozenset[str], lines: list[str]) -> Values:
        def share(line: str) -> float:
            counts = Counter(map(_SCRIPTS.__getitem__, line))
            num_letters = len(line) - counts[""]
            return sum(counts[name] for name in wanted) / num_letters if num_letters else 1.0

        return _numbers(map(share, lines), lines)

    return PairFilter(_of_each(cfg, context, _scripts_of, measure), between(cfg.min, None))


def _of_each(
    cfg: ScriptConfig | LanguageConfig,
    context: Context,
    wanted_of: Callable[[str | None, str, str], Any],
    measure: Callable[[Any, list[str]], Values],
) -> Callable[[NumberedText], Values]:
    """Return the function that measures each of some sides by what is wanted of it."""
    parts: list[Callable[[NumberedText], Values]] = []
    if cfg.sides is not Sides.tgt:
        src = wanted_of(cfg.src, context.languages[0], f"{cfg.key_prefix}.src")
        parts.append(lambda text: measure(src, text.src))
    if cfg.sides is not Sides.src:
        tgt = wanted_of(cfg.tgt, context.languages[1], f"{cfg.key_prefix}.tgt")
        parts.append(lambda text: measure(tgt, text.tgt))
    return lambda text: np.stack([part(text) for part in parts], 1)


def language(cfg: LanguageConfig, context: Context) -> PairFilter:
    """Return the filter for the probability of the language that a side should have."""
    identifier = _identifier(cfg)
    classes = list(identifier.nb_classes)

    def code(named: str | None, of_data: str, key: str) -> int:
        wanted = named or language_of(of_data)
        if wanted not in classes:
            known = ", ".join(sorted(classes))
            raise UserError(f"{key} must be a language that is told apart, but is {wanted!r}; one of {known}")
        return classes.index(wanted)

    def measure(wanted: int, lines: list[str]) -> Values:
        found = (1.0 if len(line) <= cfg.short else float(identifier._decide(line)[wanted]) for line in lines)
        return _numbers(found, lines)

    return PairFilter(_of_each(cfg, context, code, measure), between(cfg.min, None))


def _identifier(cfg: LanguageConfig) -> Any:
    extras.require("language", f"{cfg.key_prefix}: the filter language")
    from py3langid import langid  # type: ignore[import-untyped]

    try:
        return _loaded(langid._load_identifier, tuple(cfg.among) if cfg.among else None)
    except ValueError as error:
        raise UserError(f"{cfg.key_prefix}.among: {error}") from error


@functools.lru_cache(2)
def _loaded(load: Callable[..., Any], among: tuple[str, ...] | None) -> Any:
    return load(norm_probs=True, langs=among)


# Comparison

_NO_WORD = compile_pattern(r"[^\p{L}\p{M}\p{N}]+")


def normalised(line: str) -> str:
    """Return the letters, their marks and the digits of a line in one case; the whole line without any."""
    folded = unicodedata.normalize("NFKC", line).casefold()
    return _NO_WORD.sub("", folded) or folded


def _compared(text: ParallelText, by: Compared, normalise: bool) -> Iterator[str]:
    """Yield what is compared of each pair."""
    sides = {Compared.src: [text.src], Compared.tgt: [text.tgt]}.get(by, [text.src, text.tgt])
    found: list[Iterable[str]] = [map(normalised, side) if normalise else side for side in sides]
    return map("\n".join, zip(*found, strict=True))


def identical(cfg: IdenticalConfig, context: Context) -> PairFilter:
    """Return the filter for pairs with the same text on both sides."""

    def values(text: NumberedText) -> Values:
        sides = [map(normalised if cfg.normalise else str.strip, side) for side in (text.src, text.tgt)]
        same = np.fromiter(itertools.starmap(str.__eq__, zip(*sides, strict=True)), bool, len(text))
        return ~same | (_sizes(Unit.characters)(text.src) <= cfg.short)

    return PairFilter(values, shows_values=False)


def numbers(cfg: NumbersConfig, context: Context) -> PairFilter:
    """Return the filter for numbers that are on one side alone."""

    def values(text: NumberedText) -> Values:
        sides = zip(map(_numerals, text.src), map(_numerals, text.tgt), strict=True)
        return _numbers((((a - b) + (b - a)).total() if a or b else 0 for a, b in sides), text.src)

    return PairFilter(values, between(None, cfg.max))


_NUMERAL = re.compile("\\d+(?:[.,'\u2019\u00a0\u202f]\\d+)*")


def _numerals(line: str) -> Counter[str]:
    """Return the digits of each number of a line; signs between digits are no part of a number."""
    found = Counter[str]()
    for numeral in _NUMERAL.findall(line):
        digits = (c for c in numeral if c.isdecimal())
        found["".join(c if c.isascii() else str(unicodedata.decimal(c)) for c in digits)] += 1
    return found


def regex(cfg: RegexConfig, context: Context) -> PairFilter:
    """Return the filter for pairs in which a pattern occurs.

    Raises:
        UserError: a line takes longer than `MATCH_SECONDS`, as some patterns do that repeat repetitions.
    """
    pattern = compile_pattern(cfg.pattern)

    def occurs_in(line: str) -> bool:
        try:
            return pattern.search(line, timeout=MATCH_SECONDS) is not None
        except TimeoutError as error:
            raise UserError(
                f"{cfg.key_prefix}.pattern={cfg.pattern} takes more than {MATCH_SECONDS:g} seconds on the "
                f"line {line[:60]!r}; write it without repetitions inside of repetitions"
            ) from error

    def measure(lines: list[str]) -> Values:
        return np.fromiter(map(occurs_in, lines), bool, len(lines))

    occurs = _of_sides(cfg.sides, measure)

    def values(text: NumberedText) -> Values:
        found = occurs(text)
        found = np.asarray(found if found.ndim == 1 else found.any(1))
        return found if cfg.action is Action.keep else ~found

    return PairFilter(values, shows_values=False)


def overlap(cfg: OverlapConfig, context: Context) -> PairFilter:
    """Return the filter for pairs that are also scored on."""
    known = {one for text in context.scored_on.values() for one in _compared(text, cfg.by, cfg.normalise)}

    def values(text: NumberedText) -> Values:
        compared = _compared(text, cfg.by, cfg.normalise)
        return np.fromiter((one not in known for one in compared), bool, len(text))

    return PairFilter(values, shows_values=False)


def duplicates(cfg: DuplicatesConfig, context: Context) -> PairFilter:
    """Return the filter for pairs that occurred before: 64-bit hashes, of which 16 bytes a pair are held."""
    is_ranked = cfg.keep is Kept.best
    ranked = _Scores(cfg.scores, cfg.column, f"{cfg.key_prefix}.scores", context) if is_ranked else None

    def values(text: NumberedText) -> Values:
        ranks = -ranked.at(text.numbers) if ranked else np.zeros(len(text))
        return np.stack([_digests(cfg, text), ranks.view(np.uint64)], 1)

    def accept(found: Values) -> Mask:
        order = np.lexsort((found[:, 1].copy().view(np.float64), found[:, 0]))
        ordered = found[order, 0]
        is_new = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(found) else np.zeros(0, bool)
        kept = np.zeros(len(found), bool)
        kept[order[is_new]] = True
        for source in earlier_streams(context) if cfg.earlier else ():
            known = [_digests(cfg, chunk) for chunk in source.chunks()]
            kept &= ~np.isin(found[:, 0], np.concatenate(known))
        return kept

    filter_ = PairFilter(values, accept, needs_all=True, shows_values=False)
    return dataclasses.replace(filter_, finish=ranked.finish) if ranked else filter_


def earlier_streams(context: Context) -> list[PairStream]:
    """Return the training pairs of the corpora before the one that is judged, as filters see pairs."""
    return [sources.stream(one, Split.train, in_context=False) for one in context.earlier]


def _digests(cfg: DuplicatesConfig, text: ParallelText) -> NDArray[np.uint64]:
    compared = _compared(text, cfg.by, cfg.normalise)
    digests = (hashlib.blake2b(one.encode("utf-8", "surrogatepass"), digest_size=8) for one in compared)
    return np.frombuffer(b"".join(digest.digest() for digest in digests), np.uint64)


# Scores


class _Scores:
    """A number for each line of a corpus, read once from the first to the last."""

    def __init__(self, file: str | None, column: str | None, key: str, context: Context):
        """Read a file, which `key` names, or a column of it; without a file, a column of the corpus."""
        self._key, self._next, self._corpus, ends = key, 0, "the corpus", list[int]()
        if context.corpus is not None:
            self._corpus = f"{context.corpus.key(Split.train)}={context.corpus.place(Split.train)}"
            ends = sources.ends_of_documents(context.corpus)
        self._ends = np.asarray(ends, np.int64)
        if file is not None:
            require_file(path_of(file), key)
            self._where, self._line = f"{key}: {file}", ":"
            self._values = self._read(path_of(file), column)
        else:
            assert column is not None
            assert context.corpus is not None
            own = f"{key.rpartition('.')[0]}.column"
            self._where, self._line = f"{own}={column}", ": row "
            self._values = enumerate(sources.numbers(context.corpus, column, own), start=1)

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the numbers of pairs, whose numbers rise from call to call."""
        found = np.empty(len(rows))
        for i, row in enumerate((rows + np.searchsorted(self._ends, rows, "right")).tolist()):
            line = next(itertools.islice(self._values, row - self._next, None), None)
            if line is None:
                raise UserError(
                    f"{self._where} has no score for row {row + 1:,} of {self._corpus}; {ONE_FOR_EACH}"
                )
            self._next = row + 1
            found[i] = self._number(*line)
        return found

    def finish(self, pairs: int) -> None:
        """Raise `UserError` unless there is one number for each line of the corpus."""
        found, lines = self._next + sum(1 for _ in self._values), pairs + len(self._ends)
        if found != lines:
            raise UserError(
                f"{self._where} has {found:,} lines of scores, but {self._corpus} {lines:,} rows; "
                f"{ONE_FOR_EACH}"
            )

    def _read(self, path: Path, column: str | None) -> Iterator[tuple[int, object]]:
        """Yield the number of each line, and what should be a number in it."""
        lines = enumerate(read_lines(path, self._key), start=1)
        name = path.name
        if column is None:
            return lines
        if ".jsonl" in name:
            return ((number, self._of_json(line, column)) for number, line in lines)
        if ".tsv" not in name:
            raise UserError(f"{self._where}: only .tsv and .jsonl files have columns; remove column")
        if column.isdecimal():
            place = int(column) - 1
        else:
            header = next(lines)[1].split("\t")
            if column not in header:
                raise UserError(f"{self._where} has no column {column!r}, only {', '.join(header)[:200]}")
            place = header.index(column)
        return ((number, (line.split("\t")[place : place + 1] or [""])[0]) for number, line in lines)

    def _of_json(self, line: str, column: str) -> object:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        return row.get(column) if isinstance(row, dict) else None

    def _number(self, line: int, value: object) -> float:
        try:
            number = float(value) if isinstance(value, str | int | float) else math.nan
        except ValueError:
            number = math.nan
        if math.isnan(number):
            where = f"{self._where}{self._line}{line}"
            raise UserError(f"{where}: a score must be a number, but is {str(value)[:80]!r}")
        return number


def scores(cfg: ScoresConfig, context: Context) -> PairFilter:
    """Return the filter for scores of another program."""
    known = _Scores(cfg.file, cfg.column, f"{cfg.key_prefix}.file", context)
    return PairFilter(lambda text: known.at(text.numbers), between(cfg.min, cfg.max), finish=known.finish)


def cross_entropy(cfg: CrossEntropyConfig, context: Context) -> PairFilter:
    """Return the filter for the log probability of a pair by token under one model or two."""
    scorer = context.open_scorer(cfg)
    if cfg.share is None:
        return PairFilter(scorer, between(cfg.min, None))
    return PairFilter(scorer, functools.partial(best_share, cfg.share), needs_all=True)


def classifier(cfg: ClassifierConfig, context: Context) -> PairFilter:
    """Return the filter for the probability of a label under a classifier of pairs."""
    return PairFilter(context.open_scorer(cfg), between(cfg.min, None))


def best_share(share: float, found: Values) -> Mask:
    """Return which pairs are of the best share by their values; among equal values the first are."""
    kept = np.zeros(len(found), bool)
    kept[np.argsort(-found, kind="stable")[: math.ceil(share * len(found))]] = True
    return kept
