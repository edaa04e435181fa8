"""The teachers of `objective=distillation`: other runs, which must predict what the run in training does.

What their configs tell is asked before anything is prepared. `teachers.json` of the run in training says
which weights have taught it, so that it does not go on with others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from nmt.config.roots import Task, TrainConfig
from nmt.config.stored import load_run
from nmt.data.configs import directions
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.errors import Problems, UserError
from nmt.files import read_json, write_json
from nmt.models.base import TranslationModel
from nmt.runs.checkpoint_names import identify_checkpoint
from nmt.runs.directory import RunDirectory
from nmt.runs.opening import open_run
from nmt.training.objectives.configs import DistillationConfig

KEY = "objective.teachers"


def require_teachers(cfg: TrainConfig) -> None:
    """Raise `UserError` unless all teachers have the task, the languages and the tags of the training."""
    problems = Problems()
    for run in _named(cfg):
        with problems.gathered():
            problems += _differences(cfg, run, load_run(run, KEY))
    problems.refuse()


def _named(cfg: TrainConfig) -> Sequence[str]:
    return cfg.objective.teachers if isinstance(cfg.objective, DistillationConfig) else ()


def _differences(cfg: TrainConfig, run: str, teacher: TrainConfig) -> Iterator[str]:
    """Yield why the run of a teacher cannot teach the training of `cfg`."""
    which, own, theirs = f"{KEY}: {run}", cfg.data, teacher.data
    if teacher.task is not cfg.task:
        yield f"{which} was trained with task={teacher.task.value}, but task is {cfg.task.value}"
        return
    longest = teacher.model.longest_text if cfg.task is Task.language_model else teacher.model.longest
    if longest is not None and longest < own.max_tokens:
        yield (
            f"{which} has learned positions for {longest} tokens, but data.max_tokens={own.max_tokens}; "
            "lower that, or choose another teacher"
        )
    if cfg.task is not Task.translation:
        return
    if not {*own.languages} <= {*theirs.languages}:
        known = directions(theirs.languages)
        yield f"{which} translates {known}, but this training {directions(own.languages)}"
    elif any(own.tags.get(tgt) != theirs.tags.get(tgt) for _, tgt in own.languages):
        tags = [" ".join(data.tags.values()) or "no tag" for data in (theirs, own)]
        yield (
            f"{which} is asked for a language by {tags[0]}, but this training does so by {tags[1]}; see "
            "data.target_tags"
        )
    elif unknown := {*own.domains.values()} - {*theirs.domains.values()}:
        yield f"{which} does not know the domain {', '.join(sorted(unknown))} of data.corpora"


def keep_teachers(run: RunDirectory, cfg: TrainConfig) -> None:
    """Record which weights teach a training that begins.

    Raises:
        UserError: a training that goes on was taught by other weights.
    """
    if run.checkpoints.steps() and _record_file(run).is_file():
        require_same_teachers(run, cfg)
    elif found := {one: identify_checkpoint(one) for one in _named(cfg)}:
        facts = {one: {"checkpoint": step, "sha256": sha256} for one, (step, sha256) in found.items()}
        write_json(_record_file(run), facts)


def require_same_teachers(run: RunDirectory, cfg: TrainConfig) -> None:
    """Raise `UserError` when `run` was taught by other weights than the teachers of `cfg` have now."""
    teachers = _named(cfg)
    if not (teachers and _record_file(run).is_file()):
        return
    before = read_json(_record_file(run), dict.fromkeys(teachers, dict))
    for one in teachers:
        then, (checkpoint, sha256) = before[one], identify_checkpoint(one)
        if then.get("sha256") != sha256:
            raise UserError(
                f"{run.path} was taught by other weights than {KEY} has now: checkpoint "
                f"{then.get('checkpoint')} of {one} then, {checkpoint} now; restore that one{run.or_anew}"
            )


def _record_file(run: RunDirectory) -> Path:
    return run.path / "teachers.json"


def open_teacher(run: str, cfg: TrainConfig, tokenizer: Tokenizer) -> TranslationModel:
    """Return the model of a teacher of the training of `cfg`: on its device, in eval mode, frozen.

    Raises:
        UserError: the teacher has another tokenizer.
    """
    opened = open_run(run, runtime_cfg=cfg.runtime)
    if opened.tokenizer.fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"{KEY}: the run {run} has another tokenizer, and so gives other tokens their probabilities; "
            "train both on the same data with the same tokenizer=..."
        )
    return opened.model.requires_grad_(False)
