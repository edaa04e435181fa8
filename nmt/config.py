"""The root configs of the three verbs, the checks across components, and the config.yaml of a run.

Each component states its own fields, ranges and defaults beside its code; here they come together. Knows
dataclasses and their YAML; knows no command line, and no component ever sees a root config.

A stored config.yaml is plain, resolved data. It may come from a stranger, so it is read strictly: no
interpolation, no alias, no unknown key, and the dataclass of a part is looked up by its name in a table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nmt.config_errors import CHOSEN_BY, SCHEMA_PREFIX, explain
from nmt.corpus import DataConfig, has_split
from nmt.decoding import DecodingConfig
from nmt.errors import UserError, suggest
from nmt.evaluate import Metric
from nmt.files import write_atomically
from nmt.models import ModelConfig
from nmt.optimizer import DecayConfig, OptimizerConfig
from nmt.pairs import Split
from nmt.runtime import RuntimeConfig
from nmt.tokenizer import TokenizerConfig
from nmt.trainer import BestMetric, TrainerConfig

MAX_FILE_BYTES = 1_000_000
MAX_FILE_DEPTH = 8

REPORTING = (
    "run",
    "trainer.num_samples",
    "data.split",
    "decoding.*",
    "metrics",
    "runtime.device",
    "runtime.threads",
)
"""Keys that say where and how a run is scored; the name of its directory does not depend on them."""

RESUMABLE = (
    *REPORTING,
    "trainer.max_*",
    "trainer.*_every_steps",
    "trainer.keep_*",
    "trainer.patience",
    "trainer.average*",
)
"""Keys that may differ when a run goes on: they change how long it trains and what it reports."""

NAMED_CHECKPOINTS = ("final", "best", "last", "average")


def _default_metrics() -> list[Metric]:
    return [Metric.bleu, Metric.chrf]


@dataclass
class TrainConfig:
    """Train a model, keep its best checkpoints and score the result."""

    run: str | None = None
    """Run directory; null names it outputs/DATA-SRC-TGT/MODEL-HASH. The same command again resumes it."""
    seed: int = 1
    """Fixes the initial weights, the order of the data and dropout."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """Where and how the arithmetic runs."""
    model: ModelConfig = MISSING
    """The family and size of the model."""
    data: DataConfig = MISSING
    """Where the sentence pairs come from."""
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """How text becomes subword pieces."""
    optimizer: OptimizerConfig = MISSING
    """The optimizer and the schedule of its learning rate."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """How long to train, and what to keep."""
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    """How translations are searched for, in validation and at the end."""
    metrics: list[Metric] = field(default_factory=_default_metrics)
    """Scores of a validation: bleu, chrf, ter."""

    def __post_init__(self) -> None:
        if self.run is not None and not self.run.strip():
            raise UserError("run must name a directory, but is empty; run=null lets the program name it")
        _require_metrics(self.metrics)


@dataclass
class EvaluateConfig:
    """Score a trained model; data, decoding, metrics and runtime start from those of its run."""

    run: str = MISSING
    """Run directory."""
    checkpoint: str = "final"
    """final (the one that results.json is about), best, last, average, or the number of a step."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """Where and how the arithmetic runs."""
    data: DataConfig = MISSING
    """What to translate and score against; data.split says which part of it."""
    decoding: DecodingConfig = MISSING
    """How translations are searched for."""
    metrics: list[Metric] = field(default_factory=_default_metrics)
    """Scores to compute: bleu, chrf, ter."""

    def __post_init__(self) -> None:
        require_checkpoint(self.checkpoint)
        _require_metrics(self.metrics)


@dataclass
class TranslateConfig:
    """Translate standard input to standard output; decoding and runtime start from those of the run."""

    run: str = MISSING
    """Run directory."""
    checkpoint: str = "final"
    """final (the one that results.json is about), best, last, average, or the number of a step."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """Where and how the arithmetic runs."""
    decoding: DecodingConfig = MISSING
    """How translations are searched for."""

    def __post_init__(self) -> None:
        require_checkpoint(self.checkpoint)


Config = TrainConfig | EvaluateConfig | TranslateConfig
Root = TypeVar("Root", TrainConfig, EvaluateConfig, TranslateConfig)


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
    for part, (name_field, classes) in CHOSEN_BY.items():
        chosen = getattr(cfg, part)
        if type(chosen) is not classes.get(getattr(chosen, name_field)):
            schemas = ", ".join(f"{SCHEMA_PREFIX}{name}" for name in classes)
            yield (
                f"the file of {part}=... says not what its keys are; "
                f"begin it with `defaults: [SCHEMA, _self_]`, where SCHEMA is one of {schemas}"
            )
    if cfg.model.shares_vocabulary and not cfg.tokenizer.joint:
        yield (
            "model.tying shares one matrix between source and target, which needs tokenizer.joint=true; "
            "set that, or model.tying=tgt_output"
        )
    if cfg.model.longest is not None and cfg.data.max_tokens > cfg.model.longest:
        yield (
            f"data.max_tokens must not exceed model.max_positions={cfg.model.longest} with learned "
            f"positions, but is {cfg.data.max_tokens}; lower the one or raise the other"
        )
    for split in dict.fromkeys((Split.train, Split.validation, cfg.data.split)):
        if not has_split(cfg.data, split):
            other = ", or data.split=validation to score that one" if split is Split.test else ""
            yield f"{cfg.data.key(split)} is not set, but the {split.value} split is needed; set it{other}"


def _misfits_of_training(cfg: TrainConfig) -> Iterator[str]:
    limits = ("max_steps", "max_epochs", "max_tokens", "max_minutes")
    if all(getattr(cfg.trainer, limit) is None for limit in limits):
        yield f"training would never end; set one of {', '.join(f'trainer.{limit}' for limit in limits)}"
    if cfg.trainer.batch_tokens < cfg.data.max_tokens:
        yield (
            f"trainer.batch_tokens must hold the longest sentence, data.max_tokens={cfg.data.max_tokens}, "
            f"but is {cfg.trainer.batch_tokens}; set trainer.batch_tokens higher or data.max_tokens lower"
        )
    if _decay_follows_limit(cfg):
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
    best = cfg.trainer.best_metric
    if best is not BestMetric.loss and best.value not in [metric.value for metric in cfg.metrics]:
        yield (
            f"trainer.best_metric={best.value} is not computed: metrics is {_shown(cfg.metrics)}; "
            "set trainer.best_metric to one of them or to loss"
        )


def _decay_follows_limit(cfg: TrainConfig) -> bool:
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


def to_plain(cfg: Config) -> dict[str, Any]:
    """Return a config as nested dicts of numbers, strings, lists and None."""
    plain = OmegaConf.to_container(OmegaConf.structured(cfg), resolve=True, enum_to_str=True)
    return cast(dict[str, Any], plain)


def fingerprint(cfg: TrainConfig) -> str:
    """Eight hexadecimal digits that stand for all that decides which weights a training ends with."""
    flat = {key: value for key, value in _flat(to_plain(cfg)) if not _matches(key, REPORTING)}
    return hashlib.sha256(yaml.safe_dump(flat).encode()).hexdigest()[:8]


def save_config(cfg: TrainConfig, path: Path) -> None:
    """Write `cfg` to `path`, which afterwards holds all of it or is unchanged."""
    write_atomically(path, yaml.safe_dump(to_plain(cfg), sort_keys=False, allow_unicode=True).encode())


def load_config(path: Path) -> TrainConfig:
    """Read what `save_config` wrote.

    Raises:
        UserError: the file is missing, not plain, or does not fit this version; names the file and the key.
    """
    try:
        text = _read_text(path)
        _require_plain(text)
        return to_config(_typed(OmegaConf.to_container(OmegaConf.create(text))), TrainConfig)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {explain(error)}") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise UserError(f"a config is smaller than {MAX_FILE_BYTES:,} bytes, but this file is not")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"a config is UTF-8 text, but byte {error.start} is not") from error


def _require_plain(text: str) -> None:
    """Refuse what makes YAML more than data: references, interpolation, boundless nesting."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_FILE_DEPTH:
            raise UserError(f"line {line}: a config is nested less than {MAX_FILE_DEPTH} deep")
        if isinstance(event, yaml.AliasEvent):
            raise UserError(
                f"line {line}: a stored config has no alias, but here is *{event.anchor}; write it out"
            )
        if isinstance(event, yaml.ScalarEvent) and "${" in event.value:
            raise UserError(
                f"line {line}: a stored config is resolved, but here is {event.value!r}; write it out"
            )


def _typed(plain: Any) -> DictConfig:
    """Return the values of a stored config under the types of the dataclasses that it names."""
    if not isinstance(plain, dict):
        raise UserError("a config is a mapping of keys to values, but this file is not")
    schema = OmegaConf.structured(TrainConfig)
    for part, (name_field, classes) in CHOSEN_BY.items():
        values = plain.get(part)
        name = values.get(name_field) if isinstance(values, dict) else None
        if not isinstance(name, str) or name not in classes:
            near = suggest(str(name), classes)
            raise UserError(f"{part}.{name_field} must be one of {', '.join(classes)}, but is {name!r}{near}")
        schema[part] = classes[name]
    for part in schema:
        if OmegaConf.is_dict(schema[part]) and not isinstance(plain.get(part, {}), dict):
            raise UserError(f"{part} must be a group of keys, but is {plain[part]!r}")
    return cast(DictConfig, OmegaConf.merge(schema, plain))


def difference(stored: TrainConfig, new: TrainConfig) -> list[str]:
    """Return one line "key: stored -> new" for every value that differs, save for the directory."""
    return [f"{key}: {old} -> {value}" for key, old, value in _changes(stored, new) if key != "run"]


def refuse_difference(stored: TrainConfig, new: TrainConfig, run_dir: Path) -> list[str]:
    """Return `difference`, unless the run in `run_dir` cannot go on under the new config.

    Raises:
        UserError: a value differs that is not of `RESUMABLE`; shows those that are not.
    """
    fixed = [
        f"{key}: {old} -> {value}"
        for key, old, value in _changes(stored, new)
        if not _matches(key, RESUMABLE) or _moves_decay(key, stored)
    ]
    if fixed:
        lines = "\n  ".join([f"{run_dir} belongs to a run with another config:", *fixed])
        raise UserError(f"{lines}\ngive the values of that run, or start a new one with another run=...")
    return difference(stored, new)


def _matches(key: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(key, pattern) for pattern in patterns)


def _moves_decay(key: str, stored: TrainConfig) -> bool:
    return key == "trainer.max_steps" and _decay_follows_limit(stored)


def _changes(stored: TrainConfig, new: TrainConfig) -> list[tuple[str, Any, Any]]:
    before, after = dict(_flat(to_plain(stored))), dict(_flat(to_plain(new)))
    keys = [*before, *(key for key in after if key not in before)]
    return [
        (key, before.get(key, "unset"), after.get(key, "unset"))
        for key in keys
        if before.get(key, "unset") != after.get(key, "unset")
    ]


def _flat(plain: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in plain.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
