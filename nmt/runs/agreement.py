"""The agreement of several runs that are to predict together: the same ids must mean the same in all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path

from torch import Tensor

from nmt.config.roots import Task
from nmt.data.tokens.piece_models import piece_model
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.errors import UserError, warn
from nmt.runs.task import TrainedModel

ADVICE = "train both on the same data with the same tokenizer=..."
UNRELATED = 0.5
"""Cosine of the weights of two models below which neither has started from the other."""


def require_agreement(runs: Sequence[tuple[Path, TrainedModel]]) -> None:
    """Raise `UserError` unless all runs have the task, the vocabularies and the languages of the first."""
    first_name, first = runs[0]
    for name, other in runs[1:]:
        for problem in _differences(str(first_name), first, str(name), other):
            raise UserError(f"run=[{first_name},{name}] cannot predict together: {problem}")


def require_equal_shapes(runs: Sequence[tuple[Path, TrainedModel]]) -> None:
    """Raise `UserError` unless the weights of all runs can be averaged; warn where the mean makes no sense.

    Models from random weights of their own do not have the same thing at the same place.
    """
    (first_name, first), *others = runs
    own = first.model.state_dict()
    for name, other in others:
        theirs, pair = other.model.state_dict(), f"run=[{first_name},{name}] ensemble.mean=weights"
        differing = [
            key
            for key in {**own, **theirs}
            if key not in own or key not in theirs or own[key].shape != theirs[key].shape
        ]
        if type(first.model) is not type(other.model) or differing:
            what = f": {', '.join(differing[:3])}" if differing else ""
            raise UserError(
                f"{pair}: the models are not of one family and size, so that their weights have no mean"
                f"{what}; leave out ensemble.mean, then their predictions are averaged"
            )
        if (cosine := _cosine(own, theirs)) < UNRELATED:
            warn(
                f"{pair}: the weights have a cosine of {cosine:.2f}, as those of trainings from other random "
                "weights; their mean translates nothing unless one run started from the other (init=RUN)"
            )


def _cosine(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Return the cosine of all matrices of two models; norms and biases are alike in any."""
    pairs = [(x.double(), b[key].double()) for key, x in a.items() if x.ndim > 1 and x.is_floating_point()]
    dots = sum(float((x * y).sum()) for x, y in pairs)
    lengths = [sum(float(side.square().sum()) for side in sides) for sides in zip(*pairs, strict=True)]
    return dots / max((lengths[0] * lengths[1]) ** 0.5, 1e-30) if lengths else 1.0


def _differences(a: str, first: TrainedModel, b: str, other: TrainedModel) -> Iterator[str]:
    """Yield what the runs named `a` and `b` differ in, the most important first."""
    if first.cfg.task is not other.cfg.task:
        yield f"the task of {a} is {first.cfg.task.value}, but that of {b} is {other.cfg.task.value}"
    yield from _token_differences(a, first.tokenizer, b, other.tokenizer)
    of_first, of_other = first.cfg.data, other.cfg.data
    if first.cfg.task is Task.language_model:
        if of_first.max_tokens != of_other.max_tokens:
            yield (
                f"they read windows of another length: data.max_tokens is {of_first.max_tokens} in {a}, "
                f"but {of_other.max_tokens} in {b}"
            )
        return
    if set(of_first.languages) != set(of_other.languages):
        known = [
            " and ".join(f"{src} to {tgt}" for src, tgt in dict.fromkeys(data.languages))
            for data in (of_first, of_other)
        ]
        yield f"{a} translates {known[0]}, but {b} {known[1]}"
    if of_first.tags != of_other.tags:
        tags = [" ".join(data.tags.values()) or "no tag" for data in (of_first, of_other)]
        yield f"{a} asks for a language by {tags[0]}, but {b} by {tags[1]}; see data.target_tags"
    domains = [", ".join(sorted({*data.domains.values()})) for data in (of_first, of_other)]
    if domains[0] != domains[1]:
        yield f"{a} knows the domains {domains[0] or 'none'}, but {b} {domains[1] or 'none'}"


def _token_differences(a: str, first: Tokenizer, b: str, other: Tokenizer) -> Iterator[str]:
    """Yield what two tokenizers differ in."""
    if first.fingerprint == other.fingerprint:
        return
    for side, of_first, of_other in (
        ("target", first.tgt_model, other.tgt_model),
        ("source", first.src_model, other.src_model),
    ):
        pieces, others = pieces_of(of_first), pieces_of(of_other)
        if len(pieces) != len(others):
            yield (
                f"their {side} vocabularies differ: {len(pieces):,} pieces in {a}, but {len(others):,} in "
                f"{b}; {ADVICE}"
            )
        for number, (piece, another) in enumerate(zip_longest(pieces, others)):
            if piece != another:
                yield (
                    f"their {side} vocabularies differ: piece {number} is {piece!r} in {a}, but {another!r} "
                    f"in {b}; {ADVICE}"
                )
    settings, others_settings = asdict(first.cfg), asdict(other.cfg)
    changed = [f"tokenizer.{key}" for key, value in settings.items() if others_settings[key] != value]
    yield (
        f"their tokenizers have the same pieces, but split text by other rules or statistics"
        f"{': ' if changed else ''}{', '.join(changed)}; {ADVICE}"
    )


def pieces_of(model: bytes) -> list[str]:
    """Return the spellings of all pieces of a model, in the order of their ids."""
    found = piece_model(model)
    return found.spellings(range(found.size))
