"""A training, from a config to a scored run directory.

Data, model, trainer and search get their own part of the config; only what joins them, here and in the
other modules of this room, sees the whole. Results go to stdout, progress and remarks to stderr.
"""

from __future__ import annotations

import gc
import shlex
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch

from nmt import distributed, kernels, runtime
from nmt.config.misfits import in_updates
from nmt.config.roots import TrainConfig, with_batch_tokens, with_decoding, with_epoch_size
from nmt.config.spelling import shell_word
from nmt.config.stored import to_plain
from nmt.data.batches.streaming import closed
from nmt.data.batches.training_split import Examples, TrainingData
from nmt.data.parallel_text import Split
from nmt.distributed import World
from nmt.errors import Log, UserError, warn
from nmt.files import EXPORT_RECORD, digest, write_json, write_lines
from nmt.memory import release
from nmt.metrics.label_scores import confusion_lines
from nmt.metrics.scoring import higher_is_better, language_lines, score_line
from nmt.runs.checkpoint_names import identify_checkpoint, load_weights
from nmt.runs.directory import RunDirectory, scores_by_split
from nmt.runs.embeddings import begin_embeddings
from nmt.runs.learnt_files import keep_files
from nmt.runs.objective_context import RunContext
from nmt.runs.opened import initial_model
from nmt.runs.requirements import require_all
from nmt.runs.scored_sets import SetEvaluations, keep_sets
from nmt.runs.start import Start, opened_start, require_unchanged
from nmt.runs.status import Status
from nmt.runs.task import TrainedModel
from nmt.runs.tasks import TASKS
from nmt.runs.teachers import keep_teachers
from nmt.runs.training_data import counted_lengths, first_epoch, prepare, size_is_missing
from nmt.runs.tuning import named_values, tuned_values
from nmt.runs.validation import (
    final_search,
    require_searches,
    scored,
    validated_translations,
    validation_search,
    validator,
)
from nmt.runtime_config import Precision, RuntimeConfig
from nmt.signals import StopRequest
from nmt.training import update_size
from nmt.training.adapting.adaptation import frozen_names, num_learning
from nmt.training.adapting.configs import FewWeightsConfig
from nmt.training.adapting.freezing import freeze
from nmt.training.checkpoint import AVERAGE, MANIFEST
from nmt.training.lengths import EpochSize
from nmt.training.objectives import build_objective
from nmt.training.optimizers.optimizer import build_optimizer
from nmt.training.optimizers.schedule_free import ScheduleFree
from nmt.training.optimizers.schedules import ScheduleContext, peak
from nmt.training.parallel_model import ParallelModel
from nmt.training.recovery import RolledBack
from nmt.training.tracking.configs import TrackingConfig
from nmt.training.tracking.sinks import TrackedRun, Tracker
from nmt.training.train_state import TrainState, selected_steps
from nmt.training.trainer import Trainer
from nmt.training.trainer_config import AverageOf
from nmt.translation.evaluate import Scores

SHARED_SECONDS = 60.0
"""Time in which a network file system shows all machines what one of them has written."""


def train(cfg: TrainConfig, run_dir: Path, key: str = "run", typed: Collection[str] = ()) -> dict[str, Any]:
    """Train until a limit, score the model and return the content of results.json; report a finished run.

    `key` names `run_dir` on the command line, which sets the keys `typed`.
    """
    run = RunDirectory(run_dir, key)
    if (run_dir / EXPORT_RECORD).is_file():
        raise UserError(
            f"{run_dir} is a model alone, as nmt export writes it, and no training can go on there; "
            f"start one from it with {shell_word('init', run_dir)} and another {key}=..."
        )
    with (
        StopRequest(cfg.runtime.grace_seconds) as stop,
        distributed.joined(cfg.runtime.timeout_minutes) as world,
        run.locked() if world.is_main else nullcontext(),
    ):
        unchanged = world.is_main and run.claim(cfg, typed)
        if world.is_main and run.checkpoints.steps():
            require_unchanged(run, cfg)
        _require_shared(run, world)
        results: dict[str, Any] | None = world.broadcast(run.results() if unchanged else None)
        status = Status(run, stop, cfg.runtime.requeue, world)
        if results is None:
            with status if world.is_main else nullcontext():
                results = _train_until_done(cfg, run, world, status)
                if world.is_main:
                    write_json(run.results_file, results)
        else:
            if world.is_main:
                status.repair()
            print(f"{run.path} is finished:")
        print(summary(cfg, results, run))
    return results


def _require_shared(run: RunDirectory, world: World) -> None:
    """Raise `UserError` unless this rank sees in the run directory what rank 0 sees, which has written it."""
    wanted, deadline = world.broadcast(_seen(run)), monotonic() + SHARED_SECONDS
    while _seen(run) != wanted:
        if monotonic() > deadline:
            raise UserError(
                f"rank {world.rank} on {socket.gethostname()} finds other files than rank 0 in {run.path}; "
                f"{run.key}=... must name a directory that all machines share"
            )
        sleep(distributed.POLL_SECONDS)
    world.barrier()


def _seen(run: RunDirectory) -> list[object]:
    """Return the steps of checkpoints, and hashes of the config and of the newest checkpoint, if there."""
    steps = run.checkpoints.steps()
    files = [run.config_file, *(run.checkpoints.folder(step) / MANIFEST for step in steps[-1:])]
    return [steps, *(digest(file) if file.is_file() else "" for file in files)]


def _train_until_done(cfg: TrainConfig, run: RunDirectory, world: World, status: Status) -> dict[str, Any]:
    """Train, and resume whenever the training has gone back to a checkpoint."""
    while True:
        with suppress(RolledBack):
            return _train(cfg, run, world, status)
        gc.collect()  # the model that is left, and its optimizer, refer to themselves
        release()
        _require_shared(run, world)  # another state of a step that all have seen before


def _train(cfg: TrainConfig, run: RunDirectory, world: World, status: Status) -> dict[str, Any]:
    require_all(cfg)
    if world.is_main:
        keep_teachers(run, cfg)
        keep_files(run, cfg)
    cfg = _with_found(cfg, run, world)
    device = runtime.prepare(cfg.runtime)
    with world.main_first():
        checkpoint = run.checkpoints.latest(warn)
    settled = _in_precision(cfg.runtime, device, run.precision() if checkpoint else "", world)
    require_searches(cfg, device)  # an error is an error before the first update
    resume_step = checkpoint.step if checkpoint else 0
    start = None if checkpoint else opened_start(cfg)
    tracked = TrackedRun(run.path, resume_step, cfg.trainer.best_metric)
    tracking = cfg.tracking if world.is_main else TrackingConfig(sinks=[])
    with Tracker(tracked, tracking) as tracker, status.told_at_once() if world.is_main else nullcontext():
        examples = _examples(cfg, world)
        with world.main_first():
            data = prepare(cfg, run, tracker.message, start, examples)
            keep_sets(run, cfg, tracker.message)
        if cfg.trainer.is_to_be_found and not checkpoint:
            own = replace(cfg, runtime=settled)
            cfg = with_batch_tokens(cfg, _found_batch_tokens(own, data, run, device, world, tracker.message))
            if world.is_main:
                run.adopt(cfg)
        as_typed, cfg = _counted(cfg, data, world, tracker.message)
        tracker.begin(replace(tracked, total_steps=cfg.trainer.max_steps, config=to_plain(as_typed)))
        _require_ahead(cfg, resume_step, run.key)
        trained = _trained_model(replace(cfg, runtime=settled), data, device, world)
        if not checkpoint:
            begin_model(trained, start, run if world.is_main else None, tracker.message)
        if frozen := freeze(trained.model, cfg.trainer.freeze):
            tracker.message(frozen)
        learning, size = num_learning(trained.model)
        if isinstance(cfg.adapt, FewWeightsConfig):
            share = f"{learning:,} of {size:,} weights learn ({learning / size:.2%})"
            tracker.message(f"adapt={cfg.adapt.name}: {share}")
            if world.is_main and not checkpoint:
                run.checkpoints.save_base(trained.model.state_dict(), frozen_names(trained.model))
        begun = start.continued(trained.model, data.tokenizer, cfg.trainer.max_steps) if start else None
        trainer = build_trainer(trained, data, run, validator(trained, run, tracker))
        if begun:
            trainer.resume(begun)
            tracker.message(f"the optimizer goes on after step {begun.step}")
        if checkpoint:
            trainer.resume(checkpoint)
            tracker.message(f"going on after step {checkpoint.step} of {run.path}")
        _announce(trained, trainer, learning, size, tracker.message)
        if world.is_main:
            if learns := not trainer.finished():
                run.write_environment(device, settled.precision.value)
            run.adopt(as_typed, learns=learns)
        with closed(data.pairs_of_epoch):
            train_state = trainer.fit(tracker, status.stop)
        tracker.message("scoring the final weights")
        results = conclude(trained, run, train_state, tracker.message)
        results |= {"parameters": size, "learnt_parameters": learning}
        tracker.conclude(results["step"], scores_by_split(results))
        tracker.shown(summary(cfg, results, run))
        return results


def _with_found(cfg: TrainConfig, run: RunDirectory, world: World) -> TrainConfig:
    """Return `cfg` with the numbers that an earlier start has found for this run."""
    known = (run.with_found(cfg) if world.is_main else cfg).trainer
    number, *size = world.broadcast([known.auto_batch_tokens, known.epoch_steps, known.update_tokens])
    cfg = with_epoch_size(cfg, EpochSize(*size))
    return with_batch_tokens(cfg, number) if cfg.trainer.is_to_be_found else cfg


def _counted(cfg: TrainConfig, data: TrainingData, world: World, log: Log) -> tuple[TrainConfig, TrainConfig]:
    """Return `cfg` with the size of an epoch, if lengths are counted by it, and the same in updates alone."""
    if size_is_missing(cfg):
        cfg = with_epoch_size(cfg, EpochSize(*world.broadcast(list(first_epoch(cfg, data)))))
    for line in counted_lengths(cfg):
        log(line)
    return cfg, in_updates(cfg)


def _require_ahead(cfg: TrainConfig, step: int, key: str) -> None:
    """Raise `UserError` unless a training of `cfg` ends behind the checkpoint with which it goes on.

    `key` names the run directory on the command line.
    """
    if cfg.trainer.max_steps is not None and cfg.trainer.max_steps < step:
        raise UserError(
            f"trainer.max_steps={cfg.trainer.max_steps}, but the run has made {step} updates; set it to "
            f"{step} or more, or give a shorter training another {key}=..."
        )


def _examples(cfg: TrainConfig, world: World) -> Examples:
    """Return the examples of the task, which a stream has the ranks encode together."""
    examples = TASKS[cfg.task].examples(cfg)
    if cfg.data.streaming:
        examples.world = world.apart()
    return examples


def _announce(trained: TrainedModel, trainer: Trainer, learning: int, size: int, log: Log) -> None:
    """Log what is about to be trained, and how; warn of what is likely to be meant otherwise."""
    cfg, world, first = trained.cfg, trained.world, trainer.train_state.step + 1
    log(_described(trained, learning, size))
    log(update_size.described(cfg.trainer, first, world.size))
    for doubt in update_size.doubts(cfg.trainer, first, world.size) if world.is_main else ():
        warn(doubt)
    log(f"peak learning rate {peak(cfg.schedule, trainer.schedule):.2e} ({cfg.schedule.name})")
    if validated := validated_translations(cfg):
        log(f"a validation translates {validated}; at the end decoding translates all pairs")


def _described(trained: TrainedModel, learning: int, size: int) -> str:
    """Return what is trained, of `size` weights of which `learning` learn, and on what."""
    device, world = trained.device, trained.world
    few = f", of which {learning:,} learn," if learning < size else ""
    where = f"{world.size} x {device.type}" if world.size > 1 else str(device)
    code = trained.cfg.runtime.precision.value + (f", {kernels.status()}" if device.type == "cpu" else "")
    return f"{trained.cfg.model.name} with {size:,} parameters{few} on {where} in {code}"


def _in_precision(cfg: RuntimeConfig, device: torch.device, begun: str, world: World) -> RuntimeConfig:
    """Return `cfg` in the precision of the training, that of rank 0: the processors of ranks may differ."""
    own = runtime.precision_of_training(cfg, device, begun)
    return replace(cfg, precision=Precision(world.broadcast(own.value)))


def _found_batch_tokens(
    cfg: TrainConfig, data: TrainingData, run: RunDirectory, device: torch.device, world: World, log: Log
) -> int:
    """Return what `trainer.batch_tokens=auto` stands for.

    That is tried with a model and a trainer made for it, so that the training begins like any other.
    """
    trained = _trained_model(with_batch_tokens(cfg, cfg.data.max_tokens), data, device, world)
    freeze(trained.model, cfg.trainer.freeze)
    trainer = build_trainer(trained, data, run, lambda step: {})
    with closed(data.pairs_of_epoch):
        found = trainer.find_batch_tokens(log)
    del trainer
    gc.collect()  # parallel models and hooks refer to each other
    release()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # which metrics show, and the search has made the largest
    return found


def _trained_model(cfg: TrainConfig, data: TrainingData, device: torch.device, world: World) -> TrainedModel:
    """Return the model before its first update."""
    model = initial_model(cfg, data.tokenizer).to(device)
    return TrainedModel(cfg, data.tokenizer, model, device, world=world)


def begin_model(trained: TrainedModel, start: Start | None, run: RunDirectory | None, log: Log) -> None:
    """Give a model the weights that it starts from: those of another run, or vectors of words, if any."""
    if start:
        start.begin(trained.model, trained.tokenizer, run, log)
    else:
        begin_embeddings(trained.model, trained.tokenizer, trained.cfg.init, log)


def build_trainer(
    trained: TrainedModel, data: TrainingData, run: RunDirectory, validate: Callable[[int], dict[str, float]]
) -> Trainer:
    """Return the trainer of a model, with an objective and an optimizer."""
    cfg, model, device, world = trained.cfg, trained.model, trained.device, trained.world
    objective = build_objective(cfg.objective, RunContext(cfg, data))
    parallel_model = ParallelModel(
        model,
        objective,
        cfg.runtime,
        world=world,
        device=device,
        ema_decay=cfg.trainer.ema_decay,
        averages=cfg.optimizer.averages,
        recompute=cfg.trainer.gradient_checkpointing,
    )
    optimizer = build_optimizer(cfg.optimizer, parallel_model.trained, world)
    if parallel_model.average and isinstance(optimizer, ScheduleFree):
        parallel_model.average.decay_at = optimizer.decay_of_average
    return Trainer(
        cfg.trainer,
        cfg.schedule,
        ScheduleContext(d_model=cfg.model.d_model, max_steps=cfg.trainer.max_steps),
        parallel_model=parallel_model,
        amp_step=runtime.MixedPrecisionStep(
            optimizer,
            device=device,
            precision=runtime.resolve_precision(cfg.runtime, device),
            clip_norm=cfg.optimizer.clip_norm,
            clip_value=cfg.optimizer.clip_value,
        ),
        pairs_of_epoch=data.pairs_of_epoch,
        stage_ends=cfg.data.last_updates(cfg.trainer.max_steps),
        validate=validate,
        store=run.checkpoints,
        seed=cfg.seed,
        higher_is_better=higher_is_better(cfg.trainer.best_metric),
        world=world,
    )


def conclude(trained: TrainedModel, run: RunDirectory, train_state: TrainState, log: Log) -> dict[str, Any]:
    """Score the final weights on validation and `data.scored_split`; return the content of results.json.

    The search is the one that `tuned_decoding` finds for them, if it tries any.
    These are the average that `trainer.average` asks for, unless the best checkpoint validates better.
    """
    cfg, store = trained.cfg, run.checkpoints
    with trained.world.main_first():
        if trained.world.is_main:
            store.set_damaged_models_aside(warn)
    saved = store.steps()
    best = (selected_steps(AverageOf.best, 1, saved, train_state, cfg.trainer) or saved[-1:])[0]
    results, of_average = dict[str, Any](step=best), None
    if cfg.trainer.average:
        chosen = cfg.trainer.average_of, cfg.trainer.average
        steps = selected_steps(*chosen, saved, train_state, cfg.trainer)
        if len(steps) < cfg.trainer.average:
            there = "1 checkpoint is" if len(steps) == 1 else f"{len(steps)} checkpoints are"
            warn(f"trainer.average={cfg.trainer.average}, but only {there} there")
        results, of_average = _averaged(trained, run, steps, best, train_state, log)
    final = AVERAGE if "averaged_steps" in results else str(results["step"])
    load_weights(trained.model, run, cfg, final)
    if trained.world.is_main and (old := run.forget_evaluations(identify_checkpoint(run.path, final)[1])):
        log(f"evaluations of earlier weights are removed: {', '.join(old)}")
    if found := tuned_values(trained, run, log):
        results["tuned_decoding"], cfg = found, with_decoding(cfg, found)
        of_average = of_average if cfg == trained.cfg else None
        trained = replace(trained, cfg=cfg)
    for split in dict.fromkeys((Split.validation, cfg.data.scored_split)):
        scores = of_average if split is Split.validation else None
        scores = scores or scored(trained, run, split, final_search(cfg), log)
        if trained.world.is_main:
            write_lines(run.hypotheses / f"{split.value}.{cfg.data.tgt}", scores.hypotheses)
        results |= {split.value: scores.values, "signatures": scores.signatures}
        if scores.by_language:
            results.setdefault("languages", {})[split.value] = scores.by_language
        if scores.details:
            results.setdefault("details", {})[split.value] = scores.details
    if cfg.sets:
        results["sets"] = _scored_sets(trained, run, log)
    results["train_seconds"] = round(train_state.seconds, 1)
    results["tgt_tokens_per_second"] = round(train_state.tokens / max(train_state.update_seconds, 1e-9), 1)
    return results


def _scored_sets(trained: TrainedModel, run: RunDirectory, log: Log) -> dict[str, Any]:
    """Return the scores of the weights in memory on each corpus of `sets`, by split."""
    cfg, found = trained.cfg, dict[str, dict[str, Any]]()
    for split in dict.fromkeys((Split.validation, cfg.data.scored_split)):
        sets = SetEvaluations(trained, run, split, log)
        of_sets = sets.scores(cfg.decoding, cfg.metrics)
        sets.write(of_sets, split.value)
        for name, scores in of_sets.items():
            found.setdefault(name, {})[split.value] = scores.values
            found[name]["signatures"] = scores.signatures
    return found


def _averaged(
    trained: TrainedModel,
    run: RunDirectory,
    steps: list[int],
    best: int,
    train_state: TrainState,
    log: Log,
) -> tuple[dict[str, Any], Scores | None]:
    """Save the average of `steps` if it validates as well as step `best`.

    Both validate as before the end, and now: a run may have gone on with other rules for scores. Return what
    is known of the two for results.json, and the scores of the average if it is saved and these are those of
    the end, too.
    """
    cfg, store, world = trained.cfg, run.checkpoints, trained.world
    with world.main_first():
        if world.is_main:
            store.save_average(store.average(steps), steps)
    if str(best) not in train_state.scores or steps == [best]:
        return {"step": steps[-1], "averaged_steps": steps}, None
    found, search, name = dict[str, Scores](), validation_search(cfg), cfg.trainer.best_metric
    for chosen, checkpoint in (("best", str(best)), ("average", AVERAGE)):
        load_weights(trained.model, run, cfg, checkpoint)
        found[chosen] = scored(trained, run, Split.validation, search, log)
    sign = 1 if higher_is_better(name) else -1
    ranks = {chosen: (sign * one.values[name], -one.values["loss"]) for chosen, one in found.items()}
    compared = {"compared": {chosen: found[chosen].values[name] for chosen in ("average", "best")}}
    if ranks["average"] >= ranks["best"]:
        results = {"step": steps[-1], "averaged_steps": steps, **compared}
        return results, found["average"] if search == final_search(cfg) else None
    with world.main_first():
        if world.is_main:
            store.remove_average()
    return {"step": best, **compared}, None


def summary(cfg: TrainConfig, results: dict[str, Any], run: RunDirectory) -> str:
    """Return the text that a user reads at the end of a training."""
    averaged = results.get("averaged_steps")
    minutes, speed = results["train_seconds"] / 60, results["tgt_tokens_per_second"]
    weights = (
        f"average of steps {', '.join(map(str, averaged))}"
        if averaged
        else f"step {results['step']}, the best"
    )
    if compared := results.get("compared"):
        values = ", ".join(f"{value:.2f} of the {which}" for which, value in compared.items())
        weights += f"; validation {cfg.trainer.best_metric} {values}"
    if (validated := validated_translations(cfg)) and cfg.trainer.best_metric != "loss":
        weights += f"; chosen by the translations of {validated}"
    languages = list(dict.fromkeys(tgt for _, tgt in cfg.data.languages))
    tgt = f" tgt={languages[0]}" if cfg.data.tags and len(languages) > 1 else ""
    size, learnt = results.get("parameters"), results.get("learnt_parameters")  # earlier versions: none
    tuned, named = results.get("tuned_decoding"), shell_word("run", run.path)
    lines = [
        f"run         {run.path}",
        f"weights     {weights}",
        *([f"parameters  {learnt:,} of {size:,} have learnt"] if size != learnt else []),
        *([f"search      {named_values(tuned)}, best on validation"] if tuned else []),
        *_score_lines(results),
        *confusion_lines(results.get("details", {}).get(cfg.data.scored_split.value, {})),
        *(f"signature   {name}|{signature}" for name, signature in results["signatures"].items()),
        f"time        {minutes:.1f} minutes, {speed:,.0f} target tokens per second",
        "",
        "Next:",
        *(f"  {command.format(run=named, tgt=tgt)}" for command in TASKS[cfg.task].next_commands),
        f"  tensorboard --logdir {shlex.quote(str(run.path.parent))}",
    ]
    return "\n".join(lines)


def _score_lines(results: dict[str, Any]) -> Iterator[str]:
    """Yield a line for the scores of each split, and for those of each target language of it."""
    for name, scores in scores_by_split(results).items():
        yield score_line(name, scores)
        yield from language_lines((results.get("languages") or {}).get(name, {}))
