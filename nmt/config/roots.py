"""The root configs of the verbs, and the checks across components.

Each component states its own fields, ranges and defaults beside its code; here they come together. Knows
dataclasses; knows no file and no command line, and no component ever sees a root config.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar, cast

from omegaconf import MISSING, DictConfig, OmegaConf

from nmt.attention_views.views import ViewsConfig
from nmt.config.explain import SCHEMA_PREFIX, VARIANTS
from nmt.data.pairs import Split
from nmt.data.sources import DataConfig, has_split
from nmt.data.tokenizer import TokenizerConfig
from nmt.data.tokenizer_training import prepare
from nmt.decoding import DecodingConfig
from nmt.decoding.evaluate import Metric
from nmt.errors import UserError, suggest
from nmt.models import ModelConfig
from nmt.runtime import Parallel, RuntimeConfig
from nmt.training.optimizer import Algorithm, DecayConfig, OptimizerConfig
from nmt.training.trainer import BestMetric, TrainerConfig

NAMED_CHECKPOINTS = ("final", "best", "last", "average")


class Task(Enum):
    """What a model learns; the code of each is in `nmt.runs.tasks`."""

    translation = "translation"
    language_model = "language_model"


def _default_metrics() -> list[Metric]:
    return [Metric.bleu, Metric.chrf]


@dataclass
class TrainConfig:
    """Train a model, keep its best checkpoints and score the result."""

    run: str | None = None
    """Run directory; null names it outputs/DATA-SRC-TGT/MODEL-HASH. The same command again resumes it."""
    task: Task = Task.translation
    """translation, or language_model: the target side alone, as one long text."""
    seed: int = 1
    """Fixes the initial weights, the order of the data and dropout."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """Where and how the arithmetic runs."""
    model: ModelConfig = MISSING
    """The family and size of the model."""
    data: DataConfig = MISSING
    """Where the sentence pairs come from."""
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """How text becomes pieces."""
    optimizer: OptimizerConfig = MISSING
    """The optimizer and the schedule of its learning rate."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """How long to train, and what to keep."""
    decoding: DecodingConfig = MISSING
    """How translations are searched for, in validation and at the end."""
    metrics: list[Metric] = field(default_factory=_default_metrics)
    """Scores of a validation: bleu, chrf, ter."""

    def __post_init__(self) -> None:
        if self.run is not None and not self.run.strip():
            raise UserError("run must name a directory, but is empty; run=null lets the program name it")
        _require_metrics(self.metrics)


@dataclass
class RunConfig:
    """What every verb that reads a run has in common."""

    run: str = MISSING
    """Run directory."""
    checkpoint: str = "final"
    """final (the one that results.json is about), best, last, average, or the number of a step."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """Where and how the arithmetic runs."""
    decoding: DecodingConfig = MISSING
    """How translations are found, or tokens drawn."""

    def __post_init__(self) -> None:
        require_checkpoint(self.checkpoint)


@dataclass
class EvaluateConfig(RunConfig):
    """Score a trained model; data, decoding, metrics and runtime start from those of its run."""

    data: DataConfig = MISSING
    """What to translate and score against; data.scored_split says which part of it."""
    metrics: list[Metric] = field(default_factory=_default_metrics)
    """Scores to compute: bleu, chrf, ter."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_metrics(self.metrics)


@dataclass
class GenerateConfig(RunConfig):
    """Continue a text with a trained language model; runtime starts from that of the run."""

    prompt: str = ""
    """How the text begins; empty: the model begins."""
    max_tokens: int = 200
    """Tokens to add."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_tokens < 1:
            raise UserError(f"max_tokens must be at least 1, but is {self.max_tokens}")


@dataclass
class TargetConfig(RunConfig):
    """What the verbs have in common that are given sources."""

    tgt: str | None = None
    """The language to translate into, for a run with data.target_tags."""


@dataclass
class TranslateConfig(TargetConfig):
    """Translate a file, or standard input; decoding and runtime start from those of the run."""

    input: str | None = None
    """File to translate, plain or gzip-compressed; null: standard input."""
    output: str | None = None
    """File to write, compressed if it ends in .gz; null: standard output."""
    workers: int = 0
    """Processes that translate a file; 0: one per GPU, or one per CPU core."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, value in (("input", self.input), ("output", self.output)):
            if value is not None and not value.strip():
                raise UserError(f"{key} must name a file, but is empty")
        if self.workers < 0:
            raise UserError(f"workers must not be negative, but is {self.workers}")
        if self.input is None and self.output is not None:
            raise UserError(
                f"output={self.output} needs input=..., too; without both, standard input is translated"
            )
        if self.input is not None and self.output is None:
            raise UserError(
                f"input={self.input} needs output=..., too; without both, standard input is translated"
            )
        if self.input is None and self.workers:
            raise UserError(f"workers={self.workers} needs input=... and output=...; a stream has one worker")


@dataclass
class AttentionVerbConfig(ViewsConfig, TargetConfig):
    """Show what a trained model attends to, for sentences, or pairs with a TAB between, on standard input."""

    def __post_init__(self) -> None:
        TargetConfig.__post_init__(self)
        ViewsConfig.__post_init__(self)


Config = TrainConfig | EvaluateConfig | TranslateConfig | GenerateConfig | AttentionVerbConfig
Root = TypeVar("Root", TrainConfig, EvaluateConfig, TranslateConfig, GenerateConfig, AttentionVerbConfig)


def to_config(cfg: DictConfig, root: type[Root]) -> Root:
    """Return the dataclasses of a composed config.

    Raises:
        UserError: values out of range, all of them in one message.
        OmegaConfBaseException: a value is missing or cannot be resolved.
    """
    problems = []
    for name in cfg:
        part = cfg[name]
        try:
            if isinstance(part, DictConfig):
                OmegaConf.to_object(part)
        except UserError as error:
            problems.append(str(error))
    _refuse(problems)
    return cast(Root, OmegaConf.to_object(cfg))


def check(cfg: TrainConfig) -> None:
    """Raise `UserError` for combinations that no component can see by itself, all of them in one message."""
    _refuse([*_misfits_of_parts(cfg), *_misfits_of_training(cfg), *_misfits_of_metrics(cfg)])


def _misfits_of_parts(cfg: TrainConfig) -> Iterator[str]:
    for part, (name_field, classes) in VARIANTS.items():
        chosen = getattr(cfg, part)
        if type(chosen) is not classes.get(getattr(chosen, name_field)):
            schemas = ", ".join(f"{SCHEMA_PREFIX}{name}" for name in classes)
            yield (
                f"the file of {part}=... says not what its keys are; "
                f"begin it with `defaults: [SCHEMA, _self_]`, where SCHEMA is one of {schemas}"
            )
    if cfg.model.shares_vocabulary and not cfg.tokenizer.joint:
        yield (
            f"model.name={cfg.model.name} shares one matrix between source and target, which needs "
            f"tokenizer.joint=true; set that{', or model.tying=tgt_output' if cfg.model.needs_source else ''}"
        )
    for language, tag in cfg.data.tags.items():
        if prepare(cfg.tokenizer, [tag])[0].lower() != tag.lower():
            yield (
                f"tokenizer.strip_punctuation=true takes the tag {tag} of data.target_tags=true apart; "
                f"name the language without punctuation, not {language!r}"
            )
    yield from _misfits_of_task(cfg)
    longest = cfg.model.longest if cfg.task is Task.translation else cfg.model.longest_text
    if longest is not None and cfg.data.max_tokens > longest:
        yield (
            f"data.max_tokens must not exceed {longest}, which is what model.max_positions leaves with "
            f"learned positions, but is {cfg.data.max_tokens}; lower the one or raise the other"
        )
    for split in dict.fromkeys((Split.train, Split.validation, cfg.data.scored_split)):
        if not has_split(cfg.data, split):
            other = ", or data.scored_split=validation to score that one" if split is Split.test else ""
            yield f"{cfg.data.key(split)} is not set, but the {split.value} split is needed; set it{other}"


def _misfits_of_task(cfg: TrainConfig) -> Iterator[str]:
    if cfg.task is Task.language_model and cfg.model.needs_source:
        yield (
            f"task=language_model needs a model without a source, but model.name={cfg.model.name} has an "
            "encoder; choose model=gpt"
        )
    if cfg.task is Task.language_model and cfg.tokenizer.sampling_alpha:
        yield "tokenizer.sampling_alpha is for task=translation; set it to 0"
    if cfg.task is Task.translation and not cfg.data.has_source:
        yield "data=text has one language; add task=language_model, or choose data with two"
    if cfg.task is Task.language_model and cfg.data.streaming:
        yield "data.streaming=true is for task=translation; set it to false"
    if cfg.task is Task.language_model and cfg.data.is_mixture:
        yield "data=mixture is for task=translation; choose data=text"


def _misfits_of_training(cfg: TrainConfig) -> Iterator[str]:
    limits = ("max_steps", "max_epochs", "max_tokens", "max_minutes")
    if all(getattr(cfg.trainer, limit) is None for limit in limits):
        yield f"training would never end; set one of {', '.join(f'trainer.{limit}' for limit in limits)}"
    if cfg.data.streaming and cfg.trainer.max_epochs is not None:
        yield (
            "trainer.max_epochs counts passes over the training split, but data.streaming=true knows none; "
            "set trainer.max_steps instead"
        )
    if cfg.trainer.batch_tokens < cfg.data.max_tokens:
        yield (
            f"trainer.batch_tokens must hold the longest sentence, data.max_tokens={cfg.data.max_tokens}, "
            f"but is {cfg.trainer.batch_tokens}; set trainer.batch_tokens higher or data.max_tokens lower"
        )
    if cfg.optimizer.algorithm is Algorithm.muon and cfg.runtime.parallel is Parallel.fsdp:
        yield (
            "optimizer.algorithm=muon needs whole matrices, but runtime.parallel=fsdp splits them; "
            "set runtime.parallel=ddp, or optimizer.algorithm=adamw"
        )
    if decay_follows_limit(cfg):
        decay = cast(DecayConfig, cfg.optimizer)
        if cfg.trainer.max_steps is None:
            yield (
                f"optimizer={decay.schedule} must know where its decay ends; "
                "set trainer.max_steps or optimizer.decay_steps"
            )
        elif cfg.trainer.max_steps <= decay.warmup_steps:
            yield (
                f"optimizer={decay.schedule} decays until trainer.max_steps={cfg.trainer.max_steps}, which "
                f"must be above optimizer.warmup_steps={decay.warmup_steps}; lower optimizer.warmup_steps"
            )


def _misfits_of_metrics(cfg: TrainConfig) -> Iterator[str]:
    best = best_metric(cfg)
    if best is BestMetric.loss:
        return
    if cfg.task is Task.language_model:
        yield f"trainer.best_metric={best.value} scores translations; with task=language_model set it to loss"
    elif best.value not in [metric.value for metric in cfg.metrics]:
        yield (
            f"trainer.best_metric={best.value} is not computed: metrics is {_shown(cfg.metrics)}; "
            "set trainer.best_metric to one of them or to loss"
        )


def best_metric(cfg: TrainConfig) -> BestMetric:
    """What `trainer.best_metric` stands for, auto spelt out."""
    if cfg.trainer.best_metric is not BestMetric.auto:
        return cfg.trainer.best_metric
    scored = [metric.value for metric in cfg.metrics] if cfg.task is Task.translation else []
    usable = [BestMetric(name) for name in scored if name in {known.value for known in BestMetric}]
    return usable[0] if usable else BestMetric.loss


def decay_follows_limit(cfg: TrainConfig) -> bool:
    """Whether the learning rate depends on `trainer.max_steps`."""
    return isinstance(cfg.optimizer, DecayConfig) and cfg.optimizer.decay_steps is None


def _require_metrics(metrics: list[Metric]) -> None:
    if not metrics or len(set(metrics)) < len(metrics):
        raise UserError(f"metrics must name at least one score, and each once, but is {_shown(metrics)}")


def _shown(metrics: list[Metric]) -> str:
    return f"[{', '.join(metric.value for metric in metrics)}]"


def require_checkpoint(checkpoint: str) -> None:
    """Raise `UserError` unless `checkpoint` is one of `NAMED_CHECKPOINTS` or the number of a step."""
    if checkpoint not in NAMED_CHECKPOINTS and not (checkpoint.isascii() and checkpoint.isdigit()):
        raise UserError(
            f"checkpoint must be one of {', '.join(NAMED_CHECKPOINTS)} or the number of a step, "
            f"but is {checkpoint!r}{suggest(checkpoint, NAMED_CHECKPOINTS)}"
        )


def _refuse(problems: list[str]) -> None:
    if len(problems) == 1:
        raise UserError(problems[0])
    if problems:
        raise UserError("\n  - ".join([f"{len(problems)} settings cannot be used:", *problems]))
