"""The root configs that several modules know, and the checks across components.

Each component states its own fields, ranges and defaults beside its code; here they come together. A root
config that only one verb knows is in the module of that verb. Knows dataclasses; knows no file and no command
line, and no component ever sees a root config.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar, cast

from omegaconf import MISSING, DictConfig, OmegaConf

from nmt.checks import at_least, not_negative, within
from nmt.config.explain import explained
from nmt.config.limits import excesses
from nmt.config.registry import SCHEMA_PREFIX, VARIANTS
from nmt.config.starting import InitConfig, OptimizerUse, VocabularyUse
from nmt.data.compression import without_suffix
from nmt.data.pairs import DataConfig, Split
from nmt.data.sources import has_split, open_group, set_configs
from nmt.data.tokenizer_training import TagSide, TokenizerConfig, prepare
from nmt.decoding.configs import DecodingConfig, GlossaryUse, ScoringConfig
from nmt.decoding.metrics import METRICS, default_best, names_of_metrics, require_metrics
from nmt.errors import Problems, UserError, suggest
from nmt.models.configs import EnsembleConfig, ModelConfig
from nmt.runtime_config import Parallel, RuntimeConfig
from nmt.training.adaptation_table import AdaptationConfig, FewWeightsConfig
from nmt.training.lengths import EpochSize, Length, are_counted, in_steps, typed_lengths
from nmt.training.objective_configs import WEIGHING, ObjectiveConfig
from nmt.training.optimizer_configs import AdafactorConfig, MuonConfig, OptimizerConfig
from nmt.training.schedule_configs import ConstantConfig, DecayConfig, ScheduleConfig
from nmt.training.tracking_config import TrackingConfig
from nmt.training.trainer_config import AUTO, TrainerConfig

LENGTHS = ("trainer", "schedule")
"""Parts with keys that may be typed in epochs or target tokens."""
NAMED_CHECKPOINTS = ("final", "best", "last", "average")


class Task(Enum):
    """Tasks that a model can learn; the code of each is in `nmt.runs.tasks`."""

    translation = "translation"
    language_model = "language_model"
    classification = "classification"


def _auto_metrics() -> list[str]:
    return ["auto"]


def default_metrics(task: Task) -> list[str]:
    """Return what `metrics=[auto]` stands for."""
    return ["accuracy", "macro_f1", "micro_f1"] if task is Task.classification else ["bleu", "chrf"]


@dataclass
class RecipeConfig:
    """All keys of a training; recipes set some of them."""

    run: str | None = None
    """Run directory; null names it outputs/DATA-SRC-TGT/MODEL-HASH. The same command again resumes it."""
    task: Task = Task.translation
    """translation, language_model (the target side alone, as one long text) or classification (the target
    is a label)."""
    seed: int = 1
    """Seed of the initial weights, the order of the data and dropout."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """Device, number format and threads."""
    init: InitConfig = field(default_factory=InitConfig)
    """The model that the training starts from; init=RUN is short for init.run=RUN."""
    model: ModelConfig = MISSING
    """The family and size of the model."""
    data: DataConfig = MISSING
    """Source of the sentence pairs."""
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """Rules that split text into pieces."""
    adapt: AdaptationConfig = field(default_factory=AdaptationConfig)
    """Few weights that learn beside those of init=RUN, in place of all."""
    optimizer: OptimizerConfig = MISSING
    """Rule that computes an update from the gradients."""
    schedule: ScheduleConfig = MISSING
    """The learning rate of each update."""
    objective: ObjectiveConfig = MISSING
    """Quantity that the updates minimise."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """Length of the training, and checkpoints to keep."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    """Places that the training reports to."""
    decoding: DecodingConfig = MISSING
    """Search for translations, in validation and at the end."""
    metrics: list[str] = field(default_factory=_auto_metrics)
    """Scores of a validation: bleu, spbleu, chrf, chrf++, ter or comet; of labels accuracy, macro_f1 or
    micro_f1. [auto] is [bleu, chrf], and all three of labels."""
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    """Rules of the scores."""
    sets: dict[str, Any] = field(default_factory=open_group)
    """Further corpora to score on, by names of your own, each with the keys of its source and its
    validation, its test, or both: {news: {test: PATH}, wmt22: {name: sacrebleu, test: wmt22}}."""

    def __post_init__(self) -> None:
        if self.run is not None and not self.run.strip():
            raise UserError("run must name a directory, but is empty; run=null lets the program name it")
        if self.metrics == _auto_metrics():
            self.metrics = default_metrics(self.task)
        require_metrics(self.metrics)
        if isinstance(self.data, DataConfig):
            set_configs(self.sets, self.data)
        if self.task is Task.classification:
            self.tokenizer = dataclasses.replace(self.tokenizer, labels=True)
        if self.trainer.best_metric == "auto":
            best = default_best([] if self.task is Task.language_model else self.metrics)
            self.trainer = dataclasses.replace(self.trainer, best_metric=best)

    @property
    def keeps_average(self) -> bool:
        """Whether checkpoints hold an average of the weights, and beside it those that learn."""
        return self.trainer.ema_decay > 0.0 or self.optimizer.averages


@dataclass
class TrainConfig(RecipeConfig):
    """Train a model, keep its best checkpoints and score the result."""


@dataclass
class RunConfig:
    """Base of the configs of the verbs that open a run."""

    run: Any = MISSING
    """Run directory; [A,B] is an ensemble."""
    checkpoint: Any = "final"
    """final (the one that results.json is about), best, last, average, or the number of a step.

    Of several runs: one name for all, or a list with one for each.
    """
    encoder_layers: list[int] | None = None
    """Layers of the encoder to keep, counted from 1, such as [1,3,5], for a Transformer that was trained with
    model.layer_drop; null: all."""
    decoder_layers: list[int] | None = None
    """Layers of the decoder to keep; null: all."""
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    """Rule by which several runs predict together."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """Device, number format and threads."""
    decoding: DecodingConfig = MISSING
    """Search for translations, or sampling of tokens."""

    def __post_init__(self) -> None:
        self.run, self.checkpoint = _names("run", self.run), _names("checkpoint", self.checkpoint)
        for checkpoint in self.checkpoints:
            require_checkpoint(checkpoint)
        if len(self.checkpoints) != len(self.runs):
            raise UserError(
                f"checkpoint must be one name for all runs, or a list with one for each of {len(self.runs)}, "
                f"but has {len(self.checkpoints)}"
            )
        self.ensemble.normalised(len(self.runs))

    @property
    def runs(self) -> list[str]:
        """The run directories: several for an ensemble."""
        return [self.run] if isinstance(self.run, str) else list(self.run)

    @property
    def checkpoints(self) -> list[str]:
        """The checkpoint of each run."""
        several = isinstance(self.checkpoint, list)
        return list(self.checkpoint) if several else [self.checkpoint] * len(self.runs)


def _names(key: str, value: object) -> str | list[str]:
    """Return the value of a key that is a name, or a list of at least one."""
    names = [str(name) for name in value] if isinstance(value, list) else [str(value)]
    if not names or not all(map(str.strip, names)):
        raise UserError(f"{key} must be a name or a list of names, but is {value!r}")
    return names if isinstance(value, list) else names[0]


@dataclass
class TargetConfig(RunConfig):
    """Base of the configs of the verbs that are given source sentences."""

    tgt: str | None = None
    """The language to translate into, for a run with data.target_tags."""


@dataclass
class FileConfig(TargetConfig):
    """Base of the configs of the verbs that answer each line of standard input, or of a large file."""

    input: str | None = None
    """File to read, plain or compressed; null: standard input."""
    output: str | None = None
    """File to write, compressed if it ends in .gz; null: standard output."""
    workers: int = 0
    """Processes that share the work on a file; 0: one per GPU, or one per CPU core."""
    worker_minutes: float = 120.0
    """Longest time for a block of 1,024 lines of a file; a worker that takes longer counts as stuck."""
    lines_at_once: int | None = None
    """Lines of standard input that are read before they are answered; null: 1 at a terminal, else 1,024."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, value in (("input", self.input), ("output", self.output)):
            if value is not None and not value.strip():
                raise UserError(f"{key} must name a file, but is empty")
        not_negative(self, "", "workers")
        at_least(self, "", 1, "lines_at_once")
        within(self, "", "(0, 10000)", "worker_minutes")
        if (self.input is None) != (self.output is None):
            given, other = ("output", "input") if self.input is None else ("input", "output")
            raise UserError(
                f"{given}={self.input or self.output} needs {other}=..., too; "
                "without both, standard input is read"
            )
        if self.input is None and self.workers:
            raise UserError(f"workers={self.workers} needs input=... and output=...; a stream has one worker")
        if self.input is not None and self.lines_at_once:
            raise UserError(f"lines_at_once={self.lines_at_once} is for standard input; leave it out")


class LineFormat(Enum):
    """What a line of input or output is."""

    text = "text"
    """A sentence, and what the verb says."""
    jsonl = "jsonl"
    """An object of JSON."""


@dataclass
class TranslateConfig(FileConfig):
    """Translate a file, or standard input; decoding and runtime start from those of the run."""

    scores: bool = False
    """Write NUMBER ||| TEXT ||| SCORE also with decoding.n_best=1, as always with more."""
    format: LineFormat | None = None
    """text or jsonl: what is written for each line; null: jsonl if output ends in .jsonl, else text."""
    input_format: LineFormat | None = None
    """text or jsonl: what a line of input is; null: jsonl if input ends in .jsonl, else text."""
    prefixes: bool = False
    """A line of input is SOURCE TAB PREFIX, and the translation begins with the prefix."""
    glossary: str | None = None
    """File of lines SOURCE TERM TAB TARGET TERM: what the translation must have where the source has it."""
    glossary_use: GlossaryUse = GlossaryUse.auto
    """annotate: terms are offered in the source, to a run that was trained with data.augment=[{name: terms}];
    constrain: the search enforces them; both; auto: both where they can be offered, else constrain."""
    documents: bool = False
    """The lines are documents, with a blank line between two, or lines of JSON with another "document"; each
    gets the context that the run was trained with. Else each line is a document by itself."""
    markup: bool = False
    """Inline tags and entities (HTML, XLIFF) are taken out, and put where the translated words are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prefixes and self.reads_json:
            raise UserError('prefixes=true is for lines of text; an object of JSON has its "prefix" itself')
        if self.prefixes and self.documents:
            raise UserError(
                'prefixes=true is not for documents=true; lines of JSON have their "prefix" themselves'
            )
        if self.scores and self.writes_json:
            raise UserError("scores=true is for lines of text; format=jsonl has the scores anyway")
        if self.glossary is not None and not self.glossary.strip():
            raise UserError("glossary must name a file, but is empty")

    @property
    def reads_json(self) -> bool:
        """Whether a line of input is an object of JSON."""
        return (self.input_format or format_of(self.input)) is LineFormat.jsonl

    @property
    def writes_json(self) -> bool:
        """Whether an object of JSON is written for each line."""
        return (self.format or format_of(self.output)) is LineFormat.jsonl


def format_of(file: str | None) -> LineFormat:
    """Return the format of lines that the name of a file says."""
    return LineFormat.jsonl if without_suffix(file or "").endswith(".jsonl") else LineFormat.text


Root = TypeVar("Root")


def to_config(cfg: DictConfig, root: type[Root]) -> Root:
    """Return the dataclasses of a composed config.

    Raises:
        UserError: values are missing, cannot be resolved or are out of range; the message has all of them.
    """
    problems, parts = Problems(), dict[str, Any]()
    for name in map(str, cfg):
        with problems.gathered(), explained():
            part = cfg[name]
            parts[name] = OmegaConf.to_object(part) if OmegaConf.is_config(part) else part
            if dataclasses.is_dataclass(parts[name]):
                problems += excesses(dataclasses.asdict(parts[name]), f"{name}.")
    problems += excesses({name: part for name, part in parts.items() if isinstance(part, int | float)})
    with problems.gathered():
        made = root(**parts)
    problems.refuse()
    return made


def with_values(part: Root, key: str, values: Mapping[str, Any]) -> Root:
    """Return the component `part`, which configs name `key`, with other values.

    Raises:
        UserError: a name is unknown, or a value is not what the component takes.
    """
    with explained():
        cfg = OmegaConf.create({key: OmegaConf.structured(part)}, flags={"struct": True})
        for name, value in values.items():
            OmegaConf.update(cfg, f"{key}.{name}", value, merge=True)
        return cast(Root, OmegaConf.to_object(cfg[key]))


def check(cfg: TrainConfig) -> None:
    """Raise `UserError` for combinations that no component can see by itself, all of them in one message."""
    Problems(
        [
            *_misfits_of_parts(cfg),
            *_misfits_of_training(cfg),
            *_misfits_of_adaptation(cfg),
            *_misfits_of_metrics(cfg),
        ]
    ).refuse()


def _misfits_of_parts(cfg: TrainConfig) -> Iterator[str]:
    for part, (name_field, classes) in VARIANTS.items():
        chosen = getattr(cfg, part)
        if type(chosen) is not classes.get(getattr(chosen, name_field)):
            schemas = ", ".join(f"{SCHEMA_PREFIX}{name}" for name in classes)
            yield (
                f"the file of {part}=... does not say what its keys are; "
                f"begin it with `defaults: [SCHEMA, _self_]`, where SCHEMA is one of {schemas}"
            )
    if cfg.model.shares_vocabulary and not cfg.tokenizer.joint and not cfg.tokenizer.labels:
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
    yield from _misfits_of_sides(cfg)
    yield from _misfits_of_task(cfg)
    longest = cfg.model.longest_text if cfg.task is Task.language_model else cfg.model.longest
    if longest is not None and cfg.data.max_tokens > longest:
        yield (
            f"data.max_tokens must not exceed {longest}, which is what model.max_positions leaves with "
            f"learned positions, but is {cfg.data.max_tokens}; lower the one or raise the other"
        )
    for split in dict.fromkeys((Split.train, Split.validation, cfg.data.scored_split)):
        if not has_split(cfg.data, split):
            other = ", or data.scored_split=validation to score that one" if split is Split.test else ""
            yield f"{cfg.data.key(split)} is not set, but the {split.value} split is needed; set it{other}"


def _misfits_of_sides(cfg: TrainConfig) -> Iterator[str]:
    if cfg.tokenizer.tag_side is not TagSide.source and not cfg.data.tags:
        yield (
            f"tokenizer.tag_side={cfg.tokenizer.tag_side.value} is for the tags of data.target_tags=true, "
            "but there are none; set tokenizer.tag_side=source"
        )
    if cfg.tokenizer.source_factors and not cfg.model.needs_source:
        yield (
            f"tokenizer.source_factors needs a model with an encoder, but model.name={cfg.model.name} has "
            "one matrix for both sides; choose model=transformer, or set it to []"
        )
    if cfg.data.has_weights and cfg.objective.name not in WEIGHING:
        yield (
            f"objective={cfg.objective.name} knows no weights of pairs, but the data has some (weights or "
            f"loss_weight); leave them out, or choose objective={' or '.join(WEIGHING)}"
        )


def _misfits_of_labels(cfg: TrainConfig) -> Iterator[str]:
    is_classification = cfg.task is Task.classification
    if is_classification and cfg.model.shares_vocabulary:
        yield (
            f"task=classification: labels share no matrix with text, but model.name={cfg.model.name} has "
            "one matrix for both; choose model=encoder"
        )
    if cfg.model.finds_labels_alone and cfg.task is Task.translation:
        yield f"model.name={cfg.model.name} finds labels; add task=classification, or choose another model"
    if is_classification and not cfg.data.has_labels:
        yield f"task=classification needs labels, but data={cfg.data.name} has none; choose data=labels"
    if not is_classification and cfg.data.has_labels:
        yield f"data={cfg.data.name} has labels; add task=classification, or choose data with two languages"
    if is_classification and cfg.data.streaming:
        yield "data.streaming=true does not know all labels at the start; set it to false"
    if cfg.tokenizer.labels and not is_classification:
        yield "tokenizer.labels=true is for task=classification alone; leave it out"


def _misfits_of_task(cfg: TrainConfig) -> Iterator[str]:
    yield from _misfits_of_labels(cfg)
    if cfg.task is Task.language_model and cfg.model.needs_source:
        yield (
            f"task=language_model needs a model without a source, but model.name={cfg.model.name} has an "
            "encoder; choose model=gpt"
        )
    for key in cfg.decoding.narrowed_by if cfg.task is not Task.translation else ():
        yield f"decoding.{key} is for task=translation; leave it out"
    if cfg.task is Task.language_model and cfg.tokenizer.sampling_alpha:
        yield "tokenizer.sampling_alpha is for task=translation; set it to 0"
    if cfg.task is Task.language_model and any(
        part.filters for part in [cfg.data, *cfg.data.parts(Split.train).values()]
    ):
        yield "data.filters is for pairs; with task=language_model set it to []"
    if cfg.task is Task.language_model and cfg.data.augment:
        yield "data.augment is for pairs; with task=language_model set it to []"
    if cfg.task is Task.language_model and cfg.tokenizer.right_to_left:
        yield "tokenizer.right_to_left=true is for task=translation; set it to false"
    if cfg.task is Task.translation and not cfg.data.has_source:
        yield "data=text has one language; add task=language_model, or choose data with two"
    if cfg.task is Task.language_model and cfg.data.streaming:
        yield "data.streaming=true is for task=translation; set it to false"
    if cfg.task is Task.language_model and cfg.data.is_mixture:
        yield "data=mixture is for task=translation; choose data=text"


def _misfits_of_objective(cfg: TrainConfig) -> Iterator[str]:
    """Yield what an objective that looks beyond the loss cannot go with."""
    if cfg.objective.needs_attention and cfg.trainer.gradient_checkpointing:
        yield (
            f"objective={cfg.objective.name} keeps the weights of an attention, which "
            "trainer.gradient_checkpointing=true drops; set it to false, and lower trainer.batch_tokens"
        )
    if cfg.objective.needs_search and cfg.runtime.parallel is Parallel.fsdp:
        yield (
            f"objective={cfg.objective.name} translates with all weights in each process, but "
            "runtime.parallel=fsdp splits them; set runtime.parallel=ddp"
        )
    if cfg.objective.needs_text and cfg.task is not Task.translation:
        yield f"objective={cfg.objective.name} is for task=translation, but task={cfg.task.value}"


def _misfits_of_training(cfg: TrainConfig) -> Iterator[str]:
    limits = ("max_steps", "max_epochs", "max_tokens", "max_minutes")
    if all(getattr(cfg.trainer, limit) is None for limit in limits):
        yield f"training would never end; set one of {', '.join(f'trainer.{limit}' for limit in limits)}"
    if cfg.data.streaming and cfg.trainer.max_epochs is not None:
        yield (
            "trainer.max_epochs counts passes over the training split, but data.streaming=true has none; "
            "set trainer.max_steps instead"
        )
    yield from _misfits_of_lengths(cfg)
    problems = Problems()
    limits_with_units = [text for key, text, _ in lengths_with_units(cfg) if key == "trainer.max_steps"]
    if limits_with_units and cfg.data.stages_follow_limit:
        yield (
            "data.stages end at shares of trainer.max_steps, which must then be a number of updates, but is "
            f"{limits_with_units[0]!r}; give that number, or the update where each stage ends"
        )
    else:
        with problems.gathered():
            cfg.data.last_updates(cfg.trainer.max_steps)
    yield from problems
    if cfg.trainer.is_to_be_found and cfg.runtime.parallel is Parallel.fsdp:
        yield (
            f"trainer.batch_tokens={AUTO} cannot be found with runtime.parallel=fsdp; set it "
            "to a number, or trainer.auto_batch_tokens to the one in the config.yaml of the run"
        )
    if not cfg.trainer.is_to_be_found and cfg.trainer.tokens_per_batch < cfg.data.max_tokens:
        key = f"trainer.{'auto_' if cfg.trainer.batch_tokens == AUTO else ''}batch_tokens"
        yield (
            f"{key} must hold the longest sentence, data.max_tokens={cfg.data.max_tokens}, "
            f"but is {cfg.trainer.tokens_per_batch}; set {key} higher or data.max_tokens lower"
        )
    if cfg.trainer.gradient_checkpointing and cfg.runtime.compile:
        yield (
            "trainer.gradient_checkpointing=true is for layers as they are, but runtime.compile=true makes "
            "other code of them; set one of the two to false"
        )
    yield from _misfits_of_optimizer(cfg)
    if cfg.objective.needs_average and not cfg.trainer.ema_decay:
        yield (
            "objective.teacher=ema is the moving average of the weights, but trainer.ema_decay is 0; "
            "set trainer.ema_decay=0.999, or objective.teacher=self"
        )
    if cfg.objective.needs_average and cfg.runtime.parallel is Parallel.fsdp:
        yield (
            "objective.teacher=ema needs all averaged weights in each process, but runtime.parallel=fsdp "
            "splits them; set runtime.parallel=ddp, or objective.teacher=self"
        )
    yield from _misfits_of_objective(cfg)
    yield from _misfits_of_decay(cfg)


def _misfits_of_optimizer(cfg: TrainConfig) -> Iterator[str]:
    if isinstance(cfg.optimizer, MuonConfig | AdafactorConfig) and cfg.runtime.parallel is Parallel.fsdp:
        yield (
            f"optimizer={cfg.optimizer.name} needs whole matrices, but runtime.parallel=fsdp splits them; "
            "set runtime.parallel=ddp, or optimizer=adamw"
        )
    if cfg.optimizer.averages and cfg.trainer.ema_decay:
        yield (
            f"optimizer={cfg.optimizer.name} averages the weights itself, but trainer.ema_decay is "
            f"{cfg.trainer.ema_decay:g}; set it to 0"
        )
    if cfg.optimizer.averages and not isinstance(cfg.schedule, ConstantConfig):
        yield (
            f"optimizer={cfg.optimizer.name} averages the weights in place of a decay, but "
            f"schedule={cfg.schedule.name} has one; set schedule=constant, with its warm-up"
        )


def _misfits_of_decay(cfg: TrainConfig) -> Iterator[str]:
    if decay_follows_limit(cfg):
        decay = cast(DecayConfig, cfg.schedule)
        if cfg.trainer.max_steps is None:
            yield (
                f"schedule={decay.name} must know where its decay ends; "
                "set trainer.max_steps or schedule.decay_steps"
            )
        elif are_counted(decay.warmup_steps, cfg.trainer.max_steps) and (
            cfg.trainer.max_steps <= decay.warmup_steps
        ):
            yield (
                f"schedule={decay.name} decays until trainer.max_steps={cfg.trainer.max_steps}, which "
                f"must be above schedule.warmup_steps={decay.warmup_steps}; lower schedule.warmup_steps"
            )


def _misfits_of_lengths(cfg: TrainConfig) -> Iterator[str]:
    for key, text, length in lengths_with_units(cfg):
        if cfg.data.streaming and length.unit == "epoch" and cfg.trainer.epoch_steps is None:
            yield (
                f"{key}={text!r} counts passes over the training split, but data.streaming=true has none; "
                "give a number of updates, or of tokens such as '10M tokens'"
            )


def _misfits_of_adaptation(cfg: TrainConfig) -> Iterator[str]:
    adapt, init = cfg.adapt, cfg.init
    if not isinstance(adapt, FewWeightsConfig):
        return
    what = f"adapt={adapt.name} trains few weights beside those of another run"
    if init.run is None:
        yield f"{what}, but there is none; name it with init=RUN, or leave adapt out"
    if not init.is_whole:
        yield f"{what}, but init.weights takes a part of them; leave init.weights out, or adapt"
    if init.optimizer is OptimizerUse.keep:
        yield f"{what}, of which its optimizer knows nothing; leave out init.optimizer=keep"
    if init.vocabulary is not VocabularyUse.keep and not adapt.train:
        yield (
            f"{what}, so that the pieces of init.vocabulary={init.vocabulary.value} would never learn; add "
            "adapt.train=['*embedding*','output.*']"
        )


def _misfits_of_metrics(cfg: TrainConfig) -> Iterator[str]:
    best = cfg.trainer.best_metric
    known = names_of_metrics(of_labels=cfg.task is Task.classification)
    for name in cfg.metrics if cfg.task is not Task.language_model else ():
        if name not in known:
            of = "labels" if METRICS[name].of_labels else "translations"
            yield (
                f"metrics: {name} is a score of {of}, but task is {cfg.task.value}; choose among "
                f"{', '.join(known)}"
            )
    if best == "loss":
        return
    if cfg.task is Task.language_model:
        yield f"trainer.best_metric={best} scores translations; with task=language_model set it to loss"
    elif best not in cfg.metrics:
        near = suggest(best, [*cfg.metrics, "loss", "auto"])
        yield (
            f"trainer.best_metric={best} is not computed: metrics is [{', '.join(cfg.metrics)}]; "
            f"set trainer.best_metric to one of them or to loss{near}"
        )


def with_batch_tokens(cfg: TrainConfig, number: int | None) -> TrainConfig:
    """Return `cfg`, whose `trainer.batch_tokens` is auto, with the number that auto stands for."""
    return dataclasses.replace(cfg, trainer=dataclasses.replace(cfg.trainer, auto_batch_tokens=number))


def with_epoch_size(cfg: TrainConfig, size: EpochSize) -> TrainConfig:
    """Return `cfg` with what is known of the size of an epoch, unless it says so itself."""
    trainer = cfg.trainer
    steps = size.steps if trainer.epoch_steps is None else trainer.epoch_steps
    tokens = size.update_tokens if trainer.update_tokens is None else trainer.update_tokens
    known = dataclasses.replace(trainer, epoch_steps=steps, update_tokens=tokens)
    return dataclasses.replace(cfg, trainer=known)


def epoch_size(cfg: TrainConfig) -> EpochSize:
    """Return what the config knows of the size of an epoch."""
    return EpochSize(cfg.trainer.epoch_steps, cfg.trainer.update_tokens)


def lengths_with_units(cfg: TrainConfig) -> list[tuple[str, str, Length]]:
    """Return the key, the text and the length of every key that is typed in epochs or target tokens."""
    return [
        (f"{part}.{name}", text, length)
        for part in LENGTHS
        for name, text, length in typed_lengths(part, getattr(cfg, part))
    ]


def in_updates(cfg: TrainConfig) -> TrainConfig:
    """Return `cfg` with all lengths in updates; raise `UserError` when they then contradict each other."""
    if not lengths_with_units(cfg):
        return cfg
    counted: dict[str, Any] = {part: in_steps(part, getattr(cfg, part), epoch_size(cfg)) for part in LENGTHS}
    found = dataclasses.replace(cfg, **counted)
    check(found)
    return found


def decay_follows_limit(cfg: TrainConfig) -> bool:
    """Return whether the learning rate depends on `trainer.max_steps`."""
    return isinstance(cfg.schedule, DecayConfig) and cfg.schedule.decay_steps is None


def require_checkpoint(checkpoint: str) -> None:
    """Raise `UserError` unless `checkpoint` is one of `NAMED_CHECKPOINTS` or the number of a step."""
    if checkpoint not in NAMED_CHECKPOINTS and not (checkpoint.isascii() and checkpoint.isdigit()):
        raise UserError(
            f"checkpoint must be one of {', '.join(NAMED_CHECKPOINTS)} or the number of a step, "
            f"but is {checkpoint!r}{suggest(checkpoint, NAMED_CHECKPOINTS)}"
        )
