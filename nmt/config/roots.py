"""The root configs that several modules know.

Each component states its own fields, ranges and defaults beside its code; here they come together. A root
config that only one verb knows is in the module of that verb. Knows dataclasses; knows no file and no command
line, and no component ever sees a root config.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeVar, cast, get_origin, get_type_hints

from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf

from nmt.checks import Texts, at_least, not_negative, within
from nmt.config.explain import explained, is_missing
from nmt.config.limits import excesses
from nmt.config.spelling import spelled
from nmt.config.starting import InitConfig
from nmt.data.configs import DataConfig
from nmt.data.modifiers import LEAST_LIKENESS
from nmt.data.reading.compression import without_suffix
from nmt.data.reading.sources import open_group, set_configs
from nmt.data.tokens.tokenizer_training import TokenizerConfig
from nmt.decoding.configs import STRATEGIES, DecodingConfig, GlossaryUse
from nmt.errors import Problems, UserError, suggest
from nmt.metrics.configs import ScoringConfig
from nmt.metrics.scoring import default_best, require_metrics
from nmt.models.configs import EnsembleConfig, ModelConfig
from nmt.runtime_config import RuntimeConfig
from nmt.training.adapting.configs import AdaptationConfig
from nmt.training.lengths import EpochSize, Length, typed_lengths
from nmt.training.objectives.configs import ObjectiveConfig
from nmt.training.optimizers.optimizer_configs import OptimizerConfig
from nmt.training.optimizers.schedule_configs import DecayConfig, ScheduleConfig
from nmt.training.tracking.configs import TrackingConfig
from nmt.training.trainer_config import TrainerConfig

LENGTHS = ("trainer", "schedule")
"""Parts with keys that may be typed in epochs or target tokens."""
MOST_TRIED = 64
"""Combinations of `tuned_decoding`: each is a search of the validation split."""
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
    """Run directory; null names it outputs/DATA-LANGUAGES/MODEL-HASH. The same command again resumes it."""
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
    validation_decoding: dict[str, Any] = field(default_factory=open_group)
    """Keys of decoding that differ in validations before the end of the training, such as {beam_size: 1}."""
    num_validation_pairs: int | None = None
    """Pairs that a validation before the end translates, the first of each set, of a mixture evenly spaced
    ones; null: all. Its loss is that of all pairs."""
    tuned_decoding: dict[str, Any] = field(default_factory=open_group)
    """Values of keys of decoding to try on the validation split when the training ends, such as
    {length_penalty_alpha: [0.6, 1.0, 1.4, 1.8]}; the search of the run gets those, of all combinations, that
    are best by trainer.best_metric."""
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
        at_least(self, "", 1, "num_validation_pairs")
        self.sets = self.sets or {}  # sets=null takes back those of an experiment
        self.validation_decoding = self.validation_decoding or {}
        self.tuned_decoding = self.tuned_decoding or {}
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

    run: Texts = MISSING
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
    domain: str | None = None
    """Domain of the text, for a run whose data.corpora have some; null: none."""


class Shard(NamedTuple):
    """A share of a file: the blocks `number`, `number + of`, ..., counted from 1."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def shard_of(text: str) -> Shard:
    """Return the shard that is written as I/N; raise `UserError` for anything else."""
    if not re.fullmatch(r"[0-9]{1,9}/[0-9]{1,9}", text):
        raise UserError(f"shard must be I/N, such as 3/16 for the third of 16, but is {text!r}")
    shard = Shard(*map(int, text.split("/")))
    if not 1 <= shard.number <= shard.of:
        hint = "" if shard.number else "; for an array of Slurm: --array=1-N"
        raise UserError(f"shard={text}: the first of N shards is 1/N, and the last one N/N{hint}")
    return shard


@dataclass
class FileConfig(TargetConfig):
    """Base of the configs of the verbs that answer each line of standard input, or of a large file."""

    input: str | None = None
    """File to read, plain or compressed; null: standard input."""
    output: str | None = None
    """File to write, compressed if it ends in .gz, .bz2, .xz or .zst; null: standard output."""
    workers: int = 0
    """Processes that share the work on a file; 0: one per GPU, or one per CPU core."""
    shard: str = "1/1"
    """I/N: this process answers each Nth block of the file from the Ith on, on a disk that N processes share;
    the last one to end writes the output. 1/1: all of it."""
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
        shard = self.shard_of_file
        within(self, "", "(0, 10000)", "worker_minutes")
        if (self.input is None) != (self.output is None):
            given, other = ("output", "input") if self.input is None else ("input", "output")
            raise UserError(
                f"{given}={self.input or self.output} needs {other}=..., too; "
                "without both, standard input is read"
            )
        if self.input is None and self.workers:
            raise UserError(f"workers={self.workers} needs input=... and output=...; a stream has one worker")
        if self.input is None and shard.of > 1:
            raise UserError(f"shard={self.shard} needs input=... and output=...; a stream has one process")
        if self.input is not None and self.lines_at_once:
            raise UserError(f"lines_at_once={self.lines_at_once} is for standard input; leave it out")
        for key, file, choice in (("input", self.input, "input_format"), ("output", self.output, "format")):
            if format_of(file) is LineFormat.jsonl and not hasattr(self, choice):
                raise UserError(
                    f"{key}={file} is a name for lines of JSON, but this verb has lines of text there; "
                    "name a file of text"
                )

    @property
    def shard_of_file(self) -> Shard:
        """The share of the file that this process answers."""
        return shard_of(self.shard)


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
    memory: str | None = None
    """Translation memory for a run that was trained with data.augment=[{name: matches}], which is offered the
    translation of the source most like its own: a path as for data=files, such as memory.tmx, or memory.tsv
    of lines SOURCE TAB TARGET."""
    memory_least: float = LEAST_LIKENESS
    """Least likeness of the two sources: 1 less the share of the words that have to be edited."""
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
        if self.memory is not None and not self.memory.strip():
            raise UserError("memory must name a file, but is empty")

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
    """Return the dataclasses of a composed config, without the keys that `root` lacks.

    Raises:
        UserError: values are missing, cannot be resolved or are out of range; the message has all of them.
    """
    problems, parts, hints = Problems(), dict[str, Any](), get_type_hints(root)
    known = {part.name for part in dataclasses.fields(cast(Any, root))}
    for name in filter(known.__contains__, map(str, cfg)):
        with problems.gathered(), explained():
            if OmegaConf.is_missing(cfg, name):
                raise UserError(is_missing(name, hints.get(name)))
            part = cfg[name]
            _require_texts(name, part)
            with keys_below(name, _groups_of(part)):
                parts[name] = OmegaConf.to_object(part) if OmegaConf.is_config(part) else part
            if dataclasses.is_dataclass(parts[name]):
                problems += excesses(dataclasses.asdict(parts[name]), f"{name}.")
    problems += excesses({name: part for name, part in parts.items() if isinstance(part, int | float)})
    with problems.gathered():
        made = root(**parts)
    problems.refuse()
    return made


def _require_texts(key: str, part: Any) -> None:
    """Raise `UserError` where a list of texts has a list or a group in it, which OmegaConf lets pass."""
    if isinstance(part, DictConfig):
        for name in map(str, part):
            if not OmegaConf.is_missing(part, name):
                _require_texts(f"{key}.{name}", part[name])
    elif isinstance(part, ListConfig) and part._metadata.element_type is str:
        for number in range(len(part)):
            if OmegaConf.is_config(one := part._get_node(number)):
                raise UserError(
                    f"{key}[{number}] must be text, but is {spelled(OmegaConf.to_container(one))}"
                )


def _groups_of(part: object) -> Iterator[str]:
    """Yield the keys of a part of a config whose values are dataclasses themselves."""
    named = part if isinstance(part, DictConfig) else {}
    for key in map(str, named):
        if dataclasses.is_dataclass(OmegaConf.get_type(named, key)):
            yield key


@contextlib.contextmanager
def keys_below(part: str, names: Iterable[str]) -> Iterator[None]:
    """Call the keys `names`, in the problems of a `UserError` of the block, PART.NAME."""
    try:
        yield
    except UserError as error:
        key = re.compile(rf"(?<![\w./])(?=\w)(?=({'|'.join(names)})(=|\.[a-z]))")
        raise UserError(*(key.sub(f"{part}.", problem) for problem in error.problems)) from error


def search_with(search: DecodingConfig, values: Mapping[str, Any]) -> DecodingConfig:
    """Return `search` with other values of the keys of `decoding`.

    Raises:
        UserError: `search` is no strategy, a name is unknown, a value is not what the search takes, or it
            names another strategy.
    """
    if getattr(search, "strategy", None) not in STRATEGIES:  # of a caller who may have passed anything
        kinds = ", ".join(config.__name__ for config, _ in STRATEGIES.values())
        raise UserError(f"decoding must be one of {kinds} of nmt.decoding.configs, but is {search!r:.80}")
    if values.get("strategy", search.strategy) != search.strategy:
        raise UserError(
            f"decoding.strategy is {search.strategy} and cannot be set by itself to {values['strategy']!r}; "
            "pass a config of nmt.decoding.configs: run.translate(lines, SamplingConfig()), or MBRConfig()"
        )
    with explained():
        cfg = OmegaConf.create({"decoding": OmegaConf.structured(search)}, flags={"struct": True})
        for name, value in values.items():
            listed = list(value) if isinstance(value, tuple) else value
            OmegaConf.update(cfg, f"decoding.{name}", listed, merge=True)
        _require_texts("decoding", cfg.decoding)
        return cast(DecodingConfig, OmegaConf.to_object(cfg.decoding))


def with_decoding(cfg: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """Return `cfg` with other values of keys of `decoding`: see `search_with`."""
    return dataclasses.replace(cfg, decoding=search_with(cfg.decoding, values))


def search_of_validations(cfg: RecipeConfig) -> DecodingConfig:
    """Return the search of the validations before the end: `decoding` with `validation_decoding`.

    Raises:
        UserError: a key there is unknown, or a value is not what the search takes.
    """
    key, given = "validation_decoding", cfg.validation_decoding
    if not isinstance(given, Mapping):
        raise UserError(f"{key} must be a group of keys, such as {{beam_size: 1}}, but is {given!r}")
    if given.get("strategy", cfg.decoding.strategy) != cfg.decoding.strategy:
        raise UserError(
            f"{key}.strategy cannot be {given['strategy']!r}: validations search by decoding="
            f"{cfg.decoding.strategy}, with other values of its keys; "
            "that of mbr is greedy with {num_samples: 0, beam_size: 1}"
        )
    if not given:
        return cfg.decoding
    try:
        search = search_with(cfg.decoding, given)
        Problems(excesses(dataclasses.asdict(search), "decoding.")).refuse()
    except UserError as error:
        told = (re.sub(r"\bdecoding\.", f"{key}.", problem) for problem in error.problems)
        raise UserError(*(problem if key in problem else f"{key}: {problem}" for problem in told)) from error
    return search


@contextlib.contextmanager
def _about(key: str) -> Iterator[None]:
    """Begin the problems of a `UserError` of the block with `key`."""
    try:
        yield
    except UserError as error:
        raise UserError(*(f"{key}: {problem}" for problem in error.problems)) from error


def tried_values(cfg: RecipeConfig) -> list[dict[str, Any]]:
    """Return the values of keys of `decoding` that are tried when the training ends: all combinations.

    Raises:
        UserError: the values of a key are no list, a key is unknown, a value is not what the search takes, or
            there are too many combinations.
    """
    key, given = "tuned_decoding", cast(object, cfg.tuned_decoding)  # any value that was typed
    if not isinstance(given, Mapping) or not all(isinstance(one, list) and one for one in given.values()):
        raise UserError(
            f"{key} must be a group of keys with a list of values each, such as "
            f"{{length_penalty_alpha: [0.6, 1.0, 1.4]}}, but is {given!r}"
        )
    if "strategy" in given:
        raise UserError(f"{key}.strategy cannot be tried: a strategy is chosen by decoding=...; leave it out")
    hints = get_type_hints(type(cfg.decoding))
    for name, values in given.items():
        if get_origin(hints.get(name)) is list and not all(isinstance(one, list) for one in values):
            raise UserError(f"{key}.{name} must list the lists to try, as [[A, B], [C]], but is {values!r}")
    if (number := math.prod(map(len, given.values()))) > MOST_TRIED:
        raise UserError(f"{key} has {number:,} combinations, and {MOST_TRIED} are the most; leave some out")
    found = [dict(zip(given, values, strict=True)) for values in itertools.product(*given.values())]
    problems = Problems()
    for values in filter(None, found):
        with problems.gathered(), _about(f"{key} (null tries nothing)"):
            search = search_with(cfg.decoding, values)
            Problems(excesses(dataclasses.asdict(search), "decoding.")).refuse()
    problems.refuse()
    return found


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


def decay_follows_limit(cfg: TrainConfig) -> bool:
    """Return whether the learning rate depends on `trainer.max_steps`."""
    return isinstance(cfg.schedule, DecayConfig) and cfg.schedule.decay_steps is None


def require_checkpoint(checkpoint: str, key: str = "checkpoint") -> None:
    """Raise `UserError` unless `checkpoint`, that of `key`, is a name of `NAMED_CHECKPOINTS` or a step."""
    if checkpoint not in NAMED_CHECKPOINTS and not (checkpoint.isascii() and checkpoint.isdigit()):
        raise UserError(
            f"{key} must be one of {', '.join(NAMED_CHECKPOINTS)} or the number of a step, "
            f"but is {checkpoint!r}{suggest(checkpoint, NAMED_CHECKPOINTS)}"
        )
