"""The wiring of what shows in seconds whether a training would work, for `nmt train`: no run is touched.

    debug=smoke      two updates, validation, checkpoints, their average and all scores, on a few pairs
    debug=overfit    one batch until the model knows it by heart
    debug=profile    where the time of an update goes, with a trace
    dry_run=true     shapes, parameters, memory, disk and time, without a training

All of them take the first pairs of the data, with a tokenizer trained on these.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from omegaconf import OmegaConf

from nmt import runtime
from nmt.config import small_data
from nmt.config.misfits import in_updates
from nmt.config.roots import Task, TrainConfig, epoch_size, lengths_with_units, with_epoch_size
from nmt.config.starting import InitConfig, OptimizerUse
from nmt.data.batches.batching import Indices, Plan
from nmt.data.batches.streaming import closed
from nmt.data.cleaning import census
from nmt.data.cleaning.filters import filter_pairs
from nmt.data.encoded_pairs import EncodedPairs
from nmt.data.reading.excerpt import Excerpt, excerpt
from nmt.data.tokens.tokenizer_training import TokenizerConfig, TokenizerKind
from nmt.errors import tell
from nmt.models.configs import ModelConfig
from nmt.runs.checkpoint_names import identify_checkpoint
from nmt.runs.directory import RunDirectory
from nmt.runs.opened import initial_model
from nmt.runs.start import opened_start
from nmt.runs.task import TrainedModel
from nmt.runs.train import begin_model, build_trainer, train
from nmt.runs.training_data import first_epoch, prepare, size_is_missing
from nmt.training import rehearsal
from nmt.training.adapting.configs import AdaptationConfig, FewWeightsConfig
from nmt.training.adapting.freezing import freeze
from nmt.training.checkpoint import AVERAGE
from nmt.training.lengths import EpochSize, in_steps, typed_lengths
from nmt.training.objectives.configs import (
    CrossEntropyConfig,
    DistillationConfig,
    GuidedAlignmentConfig,
    ObjectiveConfig,
)
from nmt.training.optimizers.schedule_configs import ConstantConfig, DecayConfig
from nmt.training.optimizers.schedules import ScheduleContext, peak
from nmt.training.trainer import Trainer
from nmt.training.trainer_config import AUTO, AverageOf, TrainerConfig

FEW_PAIRS, MANY_PAIRS = 2_000, 20_000
"""Training pairs of smoke and overfit, and of profile and dry_run."""
SCORED_PAIRS = 8
"""Pairs that are translated in a validation."""
LOCAL_SINKS = ("display", "train_log", "jsonl", "tensorboard")
"""Sinks that a smoke run tries; the others would show it to the world."""
SMOKE_TOKENS = 1024
BY_HEART_TOKENS, BY_HEART_PAIRS, BY_HEART_STEPS = 512, 16, 500
"""Size of the batch to learn by heart, and updates after which that has failed."""
TIMED_UPDATES = 5
USUAL_TOKENS = 4096
"""Size of a batch where `trainer.batch_tokens=auto` would look for one."""
USUAL_EPOCH = EpochSize(steps=10_000, update_tokens=USUAL_TOKENS)
"""Size of an epoch of data of which only the first pairs are read, for lengths typed in epochs or tokens."""
NOISE = ("label_smoothing", "cut", "layer_drop")
"""Keys besides those of dropout that keep a model from learning by heart."""
Component = TypeVar("Component", ModelConfig, ObjectiveConfig, AdaptationConfig)


def smoke(cfg: TrainConfig, folder: Path) -> None:
    """Train for two updates and do everything that a training does."""
    started = time.monotonic()
    cfg = smoke_config(_on_excerpt(cfg, folder, FEW_PAIRS)[0])
    with contextlib.redirect_stdout(io.StringIO()):  # the summary names a run that is not kept
        results = train(cfg, folder / "smoke")
    splits = " and ".join(name for name in ("validation", "test", "train") if name in results)
    print(
        f"smoke: two updates, validation, checkpoints, their average and the scores of {splits} work "
        f"({time.monotonic() - started:.1f} s); nothing was kept"
    )


def smoke_config(cfg: TrainConfig) -> TrainConfig:
    """Return the config of two updates that go through everything; its scores mean nothing."""
    cfg = _roughly_counted(cfg)
    first, limit = _first_step(cfg.init), cfg.trainer.max_steps
    trainer = dataclasses.replace(
        cfg.trainer,
        max_epochs=None,
        max_tokens=None,
        max_minutes=None,
        auto_batch_tokens=None,
        max_steps=first + 2 if limit is None or limit > first else limit,
        batch_tokens=max(cfg.data.max_tokens, min(_batch_tokens(cfg), SMOKE_TOKENS)),
        accumulate=min(cfg.trainer.accumulate, 2),
        log_every_steps=1,
        eval_every_steps=2,
        save_every_steps=1,
        keep_last=2,
        patience=0,
        average=2,
        average_of=AverageOf.last,
    )
    schedule = cfg.schedule
    if isinstance(schedule, DecayConfig):  # the rates are those of the first two updates
        schedule = dataclasses.replace(schedule, decay_steps=schedule.decay_steps or cfg.trainer.max_steps)
    decoding = dataclasses.replace(cfg.decoding, max_length_ratio=0.0, max_length_offset=10)
    sinks = [sink for sink in cfg.tracking.sinks if sink in LOCAL_SINKS]
    tracking = dataclasses.replace(cfg.tracking, sinks=sinks)
    return dataclasses.replace(cfg, trainer=trainer, schedule=schedule, decoding=decoding, tracking=tracking)


def overfit(cfg: TrainConfig, folder: Path) -> None:
    """Train on one batch, without dropout and smoothing, until its loss is near zero."""
    started = time.monotonic()
    with _opened(overfit_config(_on_excerpt(cfg, folder, FEW_PAIRS)[0]), folder) as session:
        plan = session.trainer.plan(session.pairs)
        indices = plan[0][:BY_HEART_PAIRS]
        learnt = rehearsal.overfit(session.trainer, session.pairs, indices, BY_HEART_STEPS)
    print(
        f"overfit: one batch of {len(indices)} pairs is learnt by heart after {learnt.steps} updates: loss "
        f"{learnt.first_loss:.3f} -> {learnt.loss:.3f} nats per token ({time.monotonic() - started:.1f} s)"
    )


def overfit_config(cfg: TrainConfig) -> TrainConfig:
    """Return the config of a training that nothing keeps from learning a batch by heart."""
    cfg = _roughly_counted(cfg)
    context = ScheduleContext(d_model=cfg.model.d_model, max_steps=cfg.trainer.max_steps)
    schedule = ConstantConfig(peak_rate=peak(cfg.schedule, context), warmup_steps=20)
    tokens = max(cfg.data.max_tokens, BY_HEART_TOKENS)
    return dataclasses.replace(
        cfg,
        model=_without_noise(cfg.model),
        adapt=_without_noise(cfg.adapt),
        objective=_without_noise(cfg.objective),
        tokenizer=dataclasses.replace(cfg.tokenizer, sampling_alpha=0.0),
        schedule=schedule,
        trainer=dataclasses.replace(cfg.trainer, batch_tokens=tokens, auto_batch_tokens=None),
    )


def _without_noise(cfg: Component) -> Component:
    """Return a config without what keeps a model from learning by heart."""
    names = [name for name in vars(cfg) if name.endswith("dropout") or name in NOISE]
    changes: dict[str, Any] = dict.fromkeys(names, 0.0)
    return dataclasses.replace(cfg, **changes)


def profile(cfg: TrainConfig, folder: Path, trace: Path) -> None:
    """Show where the time of an update goes, by phase and by operation, and write a trace."""
    vocab_size = _vocab_size(cfg.tokenizer)
    cfg, found = _on_excerpt(cfg, folder, MANY_PAIRS)
    with _opened(_with_batch(cfg), folder, 0 if found.is_whole else vocab_size) as session:
        batches = session.some_batches()
        phases = rehearsal.timed(session.trainer, session.pairs, batches)
        total = sum(phases.seconds.values())
        print(f"profile of {len(batches)} updates of one batch: {total / len(batches):.3f} s each")
        for name, seconds in phases.seconds.items():
            print(f"  {seconds / total:5.1%}  {1000 * seconds / len(batches):9.2f} ms  {name}")
        print("operations by their own time, and the share of it:")
        print(rehearsal.profiled(session.trainer, session.pairs, batches, trace))
    print(f"trace: {trace} (open it in chrome://tracing or https://ui.perfetto.dev)")


def dry_run(cfg: TrainConfig, folder: Path) -> None:
    """Show the shapes, parameters, memory, disk and time of a training, after a few updates."""
    vocab_size = _vocab_size(cfg.tokenizer)
    typed = cfg
    cfg, found = _on_excerpt(cfg, folder, MANY_PAIRS)
    with _opened(_with_batch(cfg), folder, 0 if found.is_whole else vocab_size) as session:
        batches = session.some_batches()
        phases = rehearsal.timed(session.trainer, session.pairs, batches)
        largest = session.plan.largest(session.pairs.src_lengths, session.pairs.tgt_lengths)[0]
        memory = rehearsal.memory(session.trainer, session.pairs, largest)
        parts = rehearsal.sizes_by_part(session.trainer.parallel_model.trained)
        seconds = sum(phases.seconds.values()) / len(batches)
        lines = [
            *_lines_on_data(session, found, batches, largest),
            f"parameters  {sum(parts.values()):,}: "
            + ", ".join(f"{name} {size:,}" for name, size in parts.items()),
            *_lines_on_memory(memory, cfg),
            *_lines_on_time(session, found, seconds, typed.trainer),
            *_lines_on_lengths(session, found, typed),
        ]
    print("\n".join(["dry run, estimated; nothing was kept", *lines]))


def _lines_on_data(
    session: Session, found: Excerpt, batches: Sequence[Indices], largest: Indices
) -> Iterator[str]:
    first = "all" if found.is_whole else "the first"
    src, tgt = session.pairs.src_lengths, session.pairs.tgt_lengths
    lengths = f"{src.mean():.1f} source and {tgt.mean():.1f} target tokens each"
    unit = "training pairs" if found.data.has_source else "lines of training text"
    kept = f", of which {len(src):,} are kept" if len(src) < found.num_pairs and found.data.has_source else ""
    yield f"data        {first} {found.num_pairs:,} {unit}{kept}; {lengths}"
    for name, indices in (("usual", batches[0]), ("largest", largest)):
        S, T = int(src[indices].max()), int(tgt[indices].max())
        B = len(indices)
        of_src, of_tgt = (1 - x[indices].sum() / max(B * most, 1) for x, most in ((src, S), (tgt, T)))
        padding = f"{of_src:.0%} and {of_tgt:.0%} padding" if S else f"{of_tgt:.0%} padding"
        yield f"batch       {name}: src ({B}, {S}), tgt ({B}, {T}), {padding}"


def _lines_on_memory(memory: rehearsal.TrainingMemory, cfg: TrainConfig) -> Iterator[str]:
    parts = memory._asdict()
    sizes = ", ".join(f"{name} {_size(size)}" for name, size in parts.items() if size)
    yield f"memory      {_size(sum(parts.values()))}: {sizes}; and temporary tensors"
    learning = memory.gradients  # of each weight that learns there is one
    own = learning if isinstance(cfg.adapt, FewWeightsConfig) else memory.weights
    checkpoint = own + (learning if memory.average else 0) + memory.optimizer
    kept, shared = cfg.trainer.keep_last + cfg.trainer.keep_best, memory.weights - own
    once = f", {_size(shared)} that they share among them" if shared else ""
    of_all = f"{_size(kept * checkpoint + shared)} for the {kept} that are kept{once}"
    yield f"disk        {_size(checkpoint)} for a checkpoint, {of_all}"


def _lines_on_time(session: Session, found: Excerpt, seconds: float, cfg: TrainerConfig) -> Iterator[str]:
    """Yield the times of an update, of an epoch and of the training; `seconds` are those of a batch."""
    size, tokens = len(session.plan), session.pairs.tgt_lengths.sum() / len(session.plan)
    of_update = seconds * cfg.accumulate
    later = ", at first" if any(change.accumulate for change in cfg.all_changes) else ""
    yield f"time        {of_update:.3f} s an update{later}, {tokens / seconds:,.0f} target tokens per second"
    more = "" if found.is_whole else f" for every {found.num_pairs:,} pairs"
    yield f"epoch       {cfg.num_updates(size):,} updates{more}"
    steps = _limits_in_updates(cfg, size, tokens, is_whole=found.is_whole)
    if not steps:
        return
    batches = cfg.num_batches(min(steps))
    passes = f" ({batches / size:,.1f} epochs)" if found.is_whole else ""
    limit = f"; trainer.max_minutes={cfg.max_minutes:g} may end it before" if cfg.max_minutes else ""
    needed = _duration(batches * seconds)
    yield f"training    {min(steps):,} updates{passes}: {needed}, and validations{limit}"


def _limits_in_updates(cfg: TrainerConfig, size: int, tokens: float, *, is_whole: bool) -> list[int]:
    """Return the limits of a training in updates, but those in epochs of data that is not known whole.

    An epoch has `size` batches of `tokens` target tokens each, in the mean.
    """
    steps: list[int] = [cfg.max_steps] if isinstance(cfg.max_steps, int) else []
    typed = [length for name, _, length in typed_lengths("trainer", cfg) if name == "max_steps"]
    counted = EpochSize(cfg.num_updates(size), max(1, round(tokens * cfg.accumulate)))
    steps += [length.steps(counted) for length in typed if is_whole or length.unit == "token"]
    if cfg.max_epochs and is_whole:
        steps.append(cfg.num_updates(cfg.max_epochs * size))
    if cfg.max_tokens:
        steps.append(cfg.num_updates(round(cfg.max_tokens / tokens)))
    return steps


def _lines_on_lengths(session: Session, found: Excerpt, cfg: TrainConfig) -> Iterator[str]:
    """Yield what each length that is typed in epochs or target tokens is in updates."""
    steps = cfg.trainer.num_updates(len(session.plan))
    size = EpochSize(steps, max(1, round(session.pairs.tgt_lengths.sum() / steps)))
    for key, text, length in lengths_with_units(cfg):
        of_all = found.is_whole or length.unit == "token"
        more = "" if of_all else f" for every {found.num_pairs:,} pairs"
        yield f"length      {key}={text!r} is about {length.steps(size):,} updates{more}"


def _size(number: float) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{minutes:.1f} minutes"


def _vocab_size(cfg: TokenizerConfig) -> int:
    """Return the pieces of a tokenizer that all data would give, 0 where an excerpt has as many."""
    return 0 if cfg.kind is TokenizerKind.char or cfg.path else cfg.vocab_size


def _on_excerpt(cfg: TrainConfig, folder: Path, most_pairs: int) -> tuple[TrainConfig, Excerpt]:
    """Return `cfg` on the first pairs of its data, with a tokenizer that can be trained on them."""
    found = excerpt(cfg.data, folder, most_pairs=most_pairs, most_scored=SCORED_PAIRS)
    tokenizer, objective = cfg.tokenizer, cfg.objective
    for name in found.left_out:
        tell(f"the filter {name} reads something for each pair of all data; it is left out here")
    if cfg.task is Task.translation and not found.is_whole:
        counts = census.take(found.data, filter_pairs, folder / "cache")
        rules = small_data.settings_for(counts, OmegaConf.structured(cfg))
        size = next(setting.value for setting in rules if setting.key == "tokenizer.vocab_size")
        tokenizer = dataclasses.replace(tokenizer, vocab_size=min(tokenizer.vocab_size, int(size)))
    if isinstance(objective, DistillationConfig):
        tell("objective=distillation needs the tokenizer of all data; cross_entropy takes its place here")
        objective = CrossEntropyConfig()
    if isinstance(objective, GuidedAlignmentConfig) and objective.alignments and not found.is_whole:
        tell("objective.alignments is about all data; estimated alignments take its place here")
        objective = dataclasses.replace(objective, alignments=None)
    changed = dataclasses.replace(cfg, run=None, data=found.data, tokenizer=tokenizer, objective=objective)
    return changed if found.is_whole else _roughly_counted(changed), found


def _roughly_counted(cfg: TrainConfig) -> TrainConfig:
    """Return `cfg` with all lengths in updates, by a usual epoch; no decay ends before its warm-up."""
    cfg = with_epoch_size(cfg, USUAL_EPOCH)
    schedule, size = cfg.schedule, epoch_size(cfg)
    if isinstance(schedule, DecayConfig):
        counted: dict[str, Any] = {
            name: length.steps(size) for name, _, length in typed_lengths("schedule", schedule)
        }
        warmup = counted.get("warmup_steps", schedule.warmup_steps)
        end = counted.get("decay_steps", schedule.decay_steps)
        end = end or in_steps("trainer", cfg.trainer, size).max_steps
        if counted:  # of numbers alone it is known already
            counted["decay_steps"] = max(end or 0, warmup + 1)
        cfg = dataclasses.replace(cfg, schedule=dataclasses.replace(schedule, **counted))
    return in_updates(cfg)


def _first_step(init: InitConfig) -> int:
    """Return the number of updates after which the optimizer of another run goes on; 0 for a fresh one."""
    if init.run is None or init.optimizer is OptimizerUse.fresh:
        return 0
    checkpoint, _ = identify_checkpoint(init.run, init.checkpoint)
    return 0 if checkpoint == AVERAGE else int(checkpoint)


def _batch_tokens(cfg: TrainConfig) -> int:
    return USUAL_TOKENS if cfg.trainer.is_to_be_found else cfg.trainer.tokens_per_batch


def _with_batch(cfg: TrainConfig) -> TrainConfig:
    """Return `cfg` with a number for `trainer.batch_tokens`."""
    if cfg.trainer.is_to_be_found:
        tell(f"trainer.batch_tokens={AUTO} is looked for at the start of a run; {USUAL_TOKENS} is taken here")
    changed = dataclasses.replace(cfg.trainer, batch_tokens=_batch_tokens(cfg), auto_batch_tokens=None)
    return dataclasses.replace(cfg, trainer=changed)


class Session(NamedTuple):
    """A trainer that is not run, and its first epoch."""

    trainer: Trainer
    pairs: EncodedPairs
    plan: Plan

    def some_batches(self) -> list[Indices]:
        """Return the first batches of the epoch."""
        return self.plan[: min(TIMED_UPDATES, len(self.plan))]


@contextlib.contextmanager
def _opened(cfg: TrainConfig, folder: Path, vocab_size: int = 0) -> Iterator[Session]:
    """Prepare the data and the model of `cfg`, which predicts at least `vocab_size` tokens.

    It starts from the weights of `init.run` if there is one, but where `vocab_size` asks for more tokens.
    """
    device, run = runtime.prepare(cfg.runtime), RunDirectory(folder / "session")
    run.path.mkdir()
    start = opened_start(cfg)
    data = prepare(cfg, run, tell, start)
    if size_is_missing(cfg):
        cfg = with_epoch_size(cfg, first_epoch(cfg, data))
    cfg = in_updates(cfg)
    model = initial_model(cfg, data.tokenizer, vocab_size).to(device)
    trained = TrainedModel(cfg, data.tokenizer, model, device)
    if not (start and vocab_size):
        begin_model(trained, start, None, tell)
    if frozen := freeze(trained.model, cfg.trainer.freeze):
        tell(frozen)
    trainer = build_trainer(trained, data, run, lambda step: {})
    with closed(data.pairs_of_epoch):
        pairs = data.pairs_of_epoch(1, 0).part(0)
        yield Session(trainer, pairs, trainer.plan(pairs))
