"""The stages of a mixture: which corpora are read, with which weights, and until which update.

A stage is a function of the number of the update alone, so that a resumed run and all ranks are in the same
one. Knows names and numbers; knows neither files nor shares, which depend on the sizes of corpora, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nmt.errors import UserError, suggest


class Stage(NamedTuple):
    """A part of the training that has a mixture of its own."""

    until: int | float | None
    """Its last update, as a number or, below 1, a share of trainer.max_steps; None: that of the training."""
    weights: Mapping[str, float]
    """The weights of the corpora that are read, by name."""


def parsed(entries: Sequence[Any], weights: Mapping[str, float]) -> list[Stage]:
    """Return the stages that `entries`, the values of data.stages, say; `weights` are those of the corpora.

    Raises:
        UserError: an entry is no stage, names what is no corpus, or leaves open where it ends; or there is a
            corpus that no stage reads.
    """
    stages = [_stage(f"data.stages[{i}]", entry, weights) for i, entry in enumerate(entries)]
    for i, stage in enumerate(stages[:-1]):
        if stage.until is None:
            raise UserError(
                f"data.stages[{i}].until is missing: only the last stage ends with the training; "
                "set it to a number of updates, or to a share of trainer.max_steps such as 0.33"
            )
    if stages and stages[-1].until is not None:
        raise UserError(
            f"data.stages[{len(stages) - 1}].until={stages[-1].until}: the last stage ends with the "
            "training; remove its until, or add the stage that follows it"
        )
    read = {name for stage in stages for name in stage.weights}
    for name in weights if stages else ():
        if name not in read:
            raise UserError(
                f"data.corpora.{name} is read in none of data.stages; give it a weight there, "
                "or leave it out of data.corpora"
            )
    return stages


def _stage(key: str, entry: Any, weights: Mapping[str, float]) -> Stage:
    if not isinstance(entry, Mapping):
        raise UserError(
            f"{key} must be a group of keys, such as {{until: 1700, weights: {{NAME: 1}}}}, but is {entry!r}"
        )
    for name in entry:
        if name not in Stage._fields:
            near = suggest(str(name), Stage._fields) or f"; its keys are {' and '.join(Stage._fields)}"
            raise UserError(f"unknown key {key}.{name}{near}")
    own = entry.get("weights")
    until = entry.get("until")
    return Stage(_until(key, until), dict(weights) if own is None else _weights(key, own, weights))


def _until(key: str, until: Any) -> int | float | None:
    is_number = isinstance(until, int | float) and not isinstance(until, bool)
    if until is not None and not (is_number and (0 < until < 1 if isinstance(until, float) else until > 0)):
        raise UserError(
            f"{key}.until must be a number of updates, such as 1700, or a share of trainer.max_steps between "
            f"0 and 1, such as 0.33, but is {until!r}"
        )
    found: int | float | None = until
    return found


def _weights(key: str, own: Any, known: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(own, Mapping) or not own:
        raise UserError(f"{key}.weights must be weights by names of corpora, as {{NAME: 1}}, but is {own!r}")
    for name, weight in own.items():
        if name not in known:
            near = suggest(str(name), known)
            raise UserError(f"{key}.weights: there is no corpus {name!r}, only {', '.join(known)}{near}")
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 0.0 < weight < float("inf"):
            raise UserError(
                f"{key}.weights.{name} must be positive, but is {weight!r}; leave out a corpus that "
                "the stage does not read"
            )
    return {str(name): float(weight) for name, weight in own.items()}


def last_updates(stages: Sequence[Stage], max_steps: int | None) -> list[int]:
    """Return the last update of each stage but the last one, in a training of `max_steps` updates.

    Raises:
        UserError: a stage would have no update, or ends at a share of a number that is not known.
    """
    found: list[int] = []
    for i, stage in enumerate(stages[:-1]):
        until, before = stage.until or 0, found[-1] if found else 0
        key, of = f"data.stages[{i}].until={until}", ""
        if isinstance(until, float):
            if max_steps is None:
                raise UserError(
                    f"{key} is a share of trainer.max_steps, which is null; set trainer.max_steps, "
                    "or until to a number of updates"
                )
            until, of = round(until * max_steps), f" of trainer.max_steps={max_steps}"
        if until <= before:
            end = f"the stage before it ends with update {before:,}" if before else "updates count from 1"
            raise UserError(f"{key} is update {until:,}{of}, but {end}; raise it")
        found.append(until)
    return found


def described(ends: Sequence[int], shares: Sequence[Mapping[str, float]], max_steps: int | None) -> list[str]:
    """Return a line for each stage that tells its last update and the shares of the corpora it reads."""
    lines = []
    for i, of_stage in enumerate(shares):
        until = f" until step {ends[i]:,}" if i < len(ends) else ""
        if i and max_steps is not None and ends[i - 1] >= max_steps:
            until = f" (never: trainer.max_steps is {max_steps:,})"
        read = ", ".join(f"{name} {share:.1%}" for name, share in of_stage.items() if share)
        lines.append(f"stage {i + 1}{until}: {read}")
    return lines
