"""The table of sources: one row for each kind of corpus, including bundled corpora and mixtures.

An entry of a mixture names a row of the same table, so that every corpus that can be trained on alone can be
a part of a mixture; one corpus is a mixture of one. Filtering and tokenisation are unknown here.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ValidationError

from nmt.checks import at_least, positive
from nmt.data import documents, rows
from nmt.data.augment import damage
from nmt.data.configs import SEPARATOR, ColumnsConfig, DataConfig, domain_tag
from nmt.data.parallel_text import MAX_LINE_CHARS, PairStream, ParallelText, Split, joined_streams
from nmt.data.reading import augmented, files, hub, labels, mixture, stages, testsets
from nmt.data.reading.augmented import AugmentedData
from nmt.data.reading.bundled_data import DemoData, NoData, ToyData, stream_bundled, stream_none
from nmt.data.reading.files import FilesData, TextData
from nmt.data.reading.hub import DatasetConfig, HubData
from nmt.data.reading.labels import HubLabelsData, LabelsData
from nmt.data.reading.testsets import TestsetData
from nmt.data.text.fixers import repaired
from nmt.errors import UserError, suggest

MAX_SCORED_BYTES = 1 << 30
"""Memory that the pairs of a split to score on may take."""
MIXED = ("weight", "loss_weight", "tag", "domain", "fixers", "filters", "augment")
"""Keys of an entry of a mixture that are not those of its source."""
ON_SETS = ("augment", "domain")
"""Keys of an entry of `sets` that are not those of its source."""


def open_group() -> Any:
    """Return a group that accepts any key, below a config that accepts only known ones."""
    return DictConfig({}, flags={"struct": False})


@dataclass
class MixtureData(DataConfig):
    """Several corpora, mixed by weight and size; see docs/data.md."""

    is_mixture: ClassVar[bool] = True

    name: str = "mixture"
    corpora: dict[str, dict[str, Any]] = field(default_factory=open_group)
    """The corpora, by names of your own. Each has the keys of its source, which name=... chooses, weight,
    loss_weight (of each of its pairs in the loss), tag (bt for <bt> in front of its sources in training),
    domain (med for <domain:med> in front of its sources, which translations are asked for by domain=med),
    fixers, filters and augment; see docs/data.md."""
    temperature: float | None = 1.0
    """A corpus of n pairs counts n^(1 / temperature) times its weight; null: its weight alone."""
    temperature_of: mixture.TemperatureOf = mixture.TemperatureOf.corpora
    """corpora; directions: a corpus of n of the N pairs of its two languages in their order counts
    N^(1 / temperature) * n / N times its weight."""
    stages: list[Any] = field(default_factory=list)
    """Parts of the training with weights of their own, in order, such as [{until: 0.33, weights: {NAME: 1,
    OTHER: 1}}, {weights: {NAME: 1}}]; until is an update, or below 1 a share of trainer.max_steps. A corpus
    without a weight is not read. Empty: one stage, with the weights of the corpora."""
    target_tags: bool = False
    """Put the tag of the target language, such as <2de>, in front of every source."""
    scored: list[str] = field(default_factory=list)
    """Names of the corpora whose validation and test pairs are scored; empty: all that have some, and the
    languages that the training ends with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = self.corpora or {}
        if not isinstance(given, Mapping):
            raise UserError(
                f"data.corpora must be a group of names, such as {{a: {{train: PATH}}}}, but is {given!r}"
            )
        self.corpora = {str(name): _weighted(str(name), entry) for name, entry in given.items()}
        self._parts = {name: _entry_config(self, name) for name in self.corpora}
        weights = {name: entry["weight"] for name, entry in self.corpora.items()}
        self.stages = [dict(stage._asdict()) for stage in stages.parsed(self.stages or [], weights)]
        for name in self.scored if self.corpora else ():  # there are none behind an error in them
            if name not in self.corpora:
                known = ", ".join(self.corpora)
                raise UserError(
                    f"data.scored: there is no corpus {name!r}, only {known}{suggest(name, self.corpora)}"
                )
        positive(self, "data", "temperature", hint="; use null for weights alone")
        if self.streaming and self.temperature is not None:
            raise UserError(
                "data.streaming=true does not know how large the corpora are; set data.temperature=null, so "
                "that the weights say how much of each is read"
            )
        for tgt in self.tags:
            if set(tgt) & set(" <>"):
                raise UserError(
                    f"data.target_tags needs names of languages without spaces and brackets, not {tgt!r}"
                )

    @property
    def has_source(self) -> bool:
        """Whether all corpora are pairs."""
        return all(part.has_source for part in self.parts(Split.train).values())

    @property
    def marks(self) -> list[str]:
        """Those of all corpora, and of each."""
        return [*super().marks, *(mark for part in self.parts(Split.train).values() for mark in part.marks)]

    @property
    def has_labels(self) -> bool:
        """Whether all corpora have labels."""
        parts = self.parts(Split.train)
        return bool(parts) and all(part.has_labels for part in parts.values())

    @property
    def has_weights(self) -> bool:
        """Whether pairs of some corpus have weights, or all of a corpus one."""
        parts = self.parts(Split.train).values()
        return bool(self.loss_weights) or any(part.has_weights for part in parts)

    @property
    def loss_weights(self) -> dict[str, float]:
        """The weights in the loss of all pairs of a corpus, by its name, where it has one."""
        entries = self.corpora.items()
        return {name: float(entry["loss_weight"]) for name, entry in entries if "loss_weight" in entry}

    def require_known(self, trained: DataConfig) -> None:
        """Raise `UserError` where a model of `trained` knows a domain of the corpora not."""
        for name, domain in self.domains.items():
            mixture.require_domain(domain, trained, f"data.corpora.{name}.domain")

    def place(self, split: Split) -> str | None:
        """Return the names of the corpora that have the split."""
        return ", ".join(self.parts(split)) or None

    @property
    def origins(self) -> set[str]:
        """What is read for any of the corpora."""
        return {origin for part in self.parts(Split.train).values() for origin in part.origins}

    def key(self, split: Split) -> str:
        """Return the config key to set for the split."""
        return "data.corpora" if split is Split.train else f"data.corpora.NAME.{split.value}"

    def parts(self, split: Split) -> dict[str, DataConfig]:
        """Return the corpora that have `split`, by name; but for training, only the scored ones."""
        parts = self._parts
        if split is Split.train:
            return dict(parts)
        languages = self.languages
        scored = self.scored or [n for n, part in parts.items() if (part.src, part.tgt) in languages]
        return {n: part for n, part in parts.items() if n in scored and part.place(split) is not None}

    @property
    def num_stages(self) -> int:
        """The number of stages, 1 without `stages`."""
        return len(self.stages) or 1

    @property
    def stages_follow_limit(self) -> bool:
        """Whether a stage ends at a share of the training."""
        return any(isinstance(stage["until"], float) for stage in self.stages)

    def last_updates(self, max_steps: int | None) -> list[int]:
        """Return the last update of each stage but the last; see `nmt.data.reading.stages.last_updates`."""
        return stages.last_updates([stages.Stage(**stage) for stage in self.stages], max_steps)

    def shares(self, sizes: Sequence[int], stage: int = 0) -> list[float]:
        """Return the share of each corpus in an epoch of a stage, 0 for one that the stage does not read."""
        weights = {name: entry["weight"] for name, entry in self.corpora.items()}
        own = self.stages[stage]["weights"] if self.stages else weights
        parts, of_each = self.parts(Split.train), self.temperature_of is mixture.TemperatureOf.corpora
        groups = [name if of_each else (part.src, part.tgt) for name, part in parts.items()]
        return mixture.shares([own.get(name, 0.0) for name in weights], sizes, self.temperature, groups)

    @property
    def languages(self) -> list[tuple[str, str]]:
        """Source and target language of each corpus that is read in the last stage."""
        last = self.stages[-1]["weights"] if self.stages else self.corpora
        return [(part.src, part.tgt) for name, part in self.parts(Split.train).items() if name in last]

    @property
    def tags(self) -> dict[str, str]:
        """The tag of each target language, in the order of the corpora; none unless `target_tags`."""
        parts = self.parts(Split.train).values()
        return {part.tgt: mixture.tag_of_language(part.tgt) for part in parts} if self.target_tags else {}

    @property
    def origin_tags(self) -> dict[str, str]:
        """The tags of the corpora that have one, by name."""
        return {name: f"<{entry['tag']}>" for name, entry in self.corpora.items() if "tag" in entry}

    @property
    def domains(self) -> dict[str, str]:
        """The domains of the corpora that have one, by name."""
        return {name: entry["domain"] for name, entry in self.corpora.items() if "domain" in entry}

    @property
    def scored_languages(self) -> tuple[str, str]:
        """Those of the scored corpora, each if all have the same, else `src` or `tgt`."""
        scored = {**self.parts(Split.validation), **self.parts(Split.test)}.values()
        sources, targets = {part.src for part in scored}, {part.tgt for part in scored}
        return (
            sources.pop() if len(sources) == 1 else self.src,
            targets.pop() if len(targets) == 1 else self.tgt,
        )


@dataclass
class AlignmentData(DataConfig):
    """The pairs of a corpus, true ones and damaged ones, for a classifier of misaligned pairs.

    The source of a line is `SRC TAB TGT`, its target the label `aligned` or `misaligned`; see
    docs/filtering_by_model.md.
    """

    name: str = "alignment"
    scored_split: Split = Split.validation
    """The split scored at the end of training and by `nmt evaluate`."""
    corpus: dict[str, Any] = field(default_factory=open_group)
    """The pairs, with the keys of their source as an entry of a mixture has them: {train: PREFIX, validation:
    PREFIX}, or {dataset: NAME, validation: validation}."""
    damage: dict[str, float] = field(
        default_factory=lambda: {kind: rate for kind, (rate, _) in damage.KINDS.items()}
    )
    """How often each kind of damage is chosen, relative to the others; 0: never."""
    copies: int = 4
    """How often each training pair occurs, in turn as it is and damaged anew; other splits have one copy."""
    damage_seed: int = 1
    """Another number makes other damages."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, self.key_prefix, 1, "copies")
        for kind, rate in self.damage.items():
            if kind not in damage.KINDS:
                known = ", ".join(damage.KINDS)
                raise UserError(
                    f"{self.key_prefix}.damage: there is no kind {kind!r}, only {known}"
                    f"{suggest(kind, damage.KINDS)}"
                )
            if not 0.0 <= rate < float("inf"):
                raise UserError(f"{self.key_prefix}.damage.{kind} must be 0 or more, but is {rate}")
        if not sum(self.damage.values()):
            raise UserError(f"{self.key_prefix}.damage: all rates are 0; give one kind a higher rate")
        self.place(Split.train)  # refuses an entry that fits no source
        if self.pairs.has_weights:
            raise UserError(f"{self.pairs.key_prefix}.weights: damaged pairs have no weights; leave it out")

    @property
    def has_labels(self) -> bool:
        """Always True."""
        return True

    @property
    def marks(self) -> list[str]:
        """The piece between the two sides, too."""
        return [*super().marks, SEPARATOR]

    @property
    def pairs(self) -> DataConfig:
        """The config of the source of the true pairs."""
        common = {"src": self.src, "tgt": self.tgt, "streaming": self.streaming}
        return _part_config(self.corpus or {}, f"{self.key_prefix}.corpus", common)

    def place(self, split: Split) -> str | None:
        """Return the place of the true pairs."""
        return self.pairs.place(split)

    def key(self, split: Split) -> str:
        """Return the config key of the place of the true pairs."""
        return self.pairs.key(split)

    @property
    def origins(self) -> set[str]:
        """What is read for the true pairs."""
        return self.pairs.origins


def _weighted(name: str, entry: Any) -> dict[str, Any]:
    """Return the keys of an entry that are not null, and its weight; refuse a tag that cannot be a piece."""
    if not isinstance(entry, dict):
        raise UserError(
            f"data.corpora.{name} must be a group of keys, such as {{train: PATH}}, but is {entry!r}"
        )
    for key in ("weight", "loss_weight"):
        weight = entry.get(key)
        if weight is not None and (not isinstance(weight, int | float) or not 0.0 < weight < float("inf")):
            raise UserError(f"data.corpora.{name}.{key} must be positive, but is {weight}")
    given = {str(key): value for key, value in entry.items() if value is not None}
    for key in given.keys() & {"tag", "domain"}:
        mixture.require_tag(f"data.corpora.{name}.{key}", given[key])
    return given | {"weight": float(given.get("weight", 1.0))}


def _entry_config(cfg: MixtureData, name: str) -> DataConfig:
    """Return the config of the source that reads an entry of a mixture.

    The source is the row `name=...` of `SOURCES`; by default hub where `dataset` or `path` is given, else
    files. Unless the entry names them, its languages are those of the mixture, and it has neither validation
    nor test pairs.
    """
    prefix = f"data.corpora.{name}"
    given = {key: value for key, value in cfg.corpora[name].items() if key not in MIXED}
    common = {"src": cfg.src, "tgt": cfg.tgt, "streaming": cfg.streaming, **_context(cfg)}
    part = _part_config(given, prefix, common, MIXED)
    if part.place(Split.train) is None:
        raise UserError(f"{prefix}: a corpus needs train (files), or dataset or path (a dataset)")
    own = {key: cfg.corpora[name].get(key, []) for key in ("fixers", "filters", "augment")}
    part = dataclasses.replace(part, **own)
    return dataclasses.replace(part, fixers=[*cfg.fixers, *part.fixers])  # a corpus is also read by itself


def _context(cfg: DataConfig) -> dict[str, Any]:
    """Return the keys of `cfg` that say how much context pairs have, where they have some."""
    keys = ("context", "context_target", "context_short", "max_tokens", "max_chars")
    return {key: getattr(cfg, key) for key in keys} if cfg.context else {}


def like_trained(cfg: DataConfig, trained: DataConfig) -> DataConfig:
    """Return `cfg`, of another corpus, with the context of `trained` if both have documents."""
    if not trained.context or not cfg.knows_documents:
        return cfg
    return dataclasses.replace(cfg, **_context(trained))


def _part_config(
    entry: Mapping[str, Any], prefix: str, common: Mapping[str, Any], more_keys: Sequence[str] = ()
) -> DataConfig:
    """Return the config of the source that reads an entry under the key `prefix`.

    Fields that the entry lacks have the `common` values; errors name `more_keys` among those of the entry.
    """
    if not isinstance(entry, Mapping):
        raise UserError(f"{prefix} must be a group of keys, such as {{train: PATH}}, but is {entry!r}")
    given = {str(key): value for key, value in entry.items()}
    row = given.pop("name", "hub" if given.keys() & {"dataset", "path"} else "files")
    known = [known for known, (cls, _) in SOURCES.items() if cls not in (MixtureData, NoData)]
    if row not in known:
        raise UserError(
            f"{prefix}.name must be one of {', '.join(known)}, but is {row!r}{suggest(row, known)}"
        )
    cls = SOURCES[row][0]
    own = {known.name for known in fields(cls)} - {known.name for known in fields(DataConfig)}
    keys = {cls.split_field(split): split.value for split in Split}  # field -> key in a mixture
    fields_of = {keys.get(known, known): known for known in sorted(own | {"src", "tgt"})}
    for key in given:
        if key not in fields_of:
            near = suggest(key, [*fields_of, *more_keys])
            others = f"; the keys of name={row} are {', '.join([*more_keys, *fields_of])}"
            raise UserError(f"unknown key {prefix}.{key}{near or others}")
    unscored = {cls.split_field(split) for split in (Split.validation, Split.test)} & own
    named = {"name": row, **common}
    values = dict.fromkeys(unscored) | named | {fields_of[key]: value for key, value in given.items()}
    try:
        typed: Any = OmegaConf.to_container(OmegaConf.merge(rows.schema_of(cast(type, cls)), values))
    except ValidationError as error:
        key = str(error.key)
        raise UserError(
            f"{prefix}.{keys.get(key, key)} cannot be {values.get(key)!r}; docs/data.md has its values"
        ) from error
    return cls(**typed, key_prefix=prefix)


def stream_alignment(cfg: AlignmentData, split: Split) -> PairStream:
    """Return one split of true and damaged pairs with their labels."""
    copies = cfg.copies if split is Split.train else 1
    return damage.labelled(stream(cfg.pairs, split), cfg.damage, seed=cfg.damage_seed, copies=copies)


def stream_mixture(cfg: DataConfig, split: Split) -> PairStream:
    """Return one split of all corpora, one after the other."""
    return joined_streams(list(streams(cfg, split).values()))


SOURCES: dict[str, tuple[type[DataConfig], Callable[[Any, Split], PairStream]]] = {
    "demo": (DemoData, stream_bundled),
    "toy": (ToyData, stream_bundled),
    "hub": (HubData, hub.stream),
    "files": (FilesData, files.stream),
    "text": (TextData, files.stream_text),
    "labels": (LabelsData, labels.stream),
    "hub_labels": (HubLabelsData, labels.stream_dataset),
    "sacrebleu": (TestsetData, testsets.stream),
    "mixture": (MixtureData, stream_mixture),
    "alignment": (AlignmentData, stream_alignment),
    "none": (NoData, stream_none),
}


def has_split(cfg: DataConfig, split: Split) -> bool:
    """Return whether the config names this split, which may still be missing on disk or on the hub."""
    return cfg.place(split) is not None


def stream(cfg: DataConfig, split: Split, *, in_context: bool = True) -> PairStream:
    """Return one split, aligned, repaired if it is trained on, and unfiltered, to be read in chunks.

    Sentences of documents are in their context or, unless `in_context`, alone, with a blank pair behind the
    end of each document.

    Raises:
        UserError: the split cannot be read or does not exist; perhaps only when it is read.
    """
    kind, opened = SOURCES.get(cfg.name, (None, None))
    if opened is None or kind is not type(cfg):
        raise UserError(
            f"data.name={cfg.name} does not fit the other keys of data; choose data={'|'.join(SOURCES)}"
        )
    if not has_split(cfg, split):
        named = [known.value for known in Split if has_split(cfg, known)]
        raise UserError(
            f"{cfg.key(split)} is not set, but the {split.value} split is needed; "
            f"the splits that are set: {', '.join(named) or 'none'}"
        )
    source = repaired(opened(cfg, split), cfg, split)
    if cfg.has_documents and in_context:
        source = documents.with_context(source, cfg, split)
    checked = _not_empty if split is Split.train else _to_score
    return source._replace(chunks=lambda: checked(source, cfg, split))


def streams(cfg: DataConfig, split: Split) -> dict[str, PairStream]:
    """Return the split of each corpus that has it, by name; sources have the tags of language and domain."""
    return _streams(cfg, split, {})


def numbers(cfg: DataConfig, column: str, key: str) -> Iterator[object]:
    """Return what a column of the dataset of a corpus holds, for each of its training pairs.

    Raises:
        UserError: the corpus is no dataset, or has no such column; names `key`, which asks for it.
    """
    if not isinstance(cfg, DatasetConfig):
        raise UserError(
            f"{key}={column}: only datasets (data=hub) have further columns, but the corpus is "
            f"name={cfg.name}; name a file, such as the .tsv or .jsonl file of the pairs, too"
        )
    return hub.values(cfg, Split.train, column, key)


def ends_of_documents(cfg: DataConfig) -> list[int]:
    """Return the number of training pairs before each line of a corpus that ends a document and is none."""
    if not isinstance(cfg, ColumnsConfig) or not cfg.has_documents:
        return []
    plain = dataclasses.replace(cfg, document_column=None, weights=None)
    if isinstance(cfg, DatasetConfig) and cfg.document_column:  # which may have blank lines between rows
        plain = dataclasses.replace(plain, documents=False)
    lines = [SOURCES[cfg.name][1](one, Split.train) for one in plain.each(Split.train)]
    ends, read = list[int](), 0
    for chunk in repaired(joined_streams(lines), cfg, Split.train).chunks():
        for pair in zip(chunk.src, chunk.tgt, strict=True):
            if documents.ends_document(*pair):
                ends.append(read)
            else:
                read += 1
    return ends


def training_streams(cfg: DataConfig, *, weighted: bool = True) -> dict[str, PairStream]:
    """Return the pairs of each corpus to train on, by name; their sources tell the origin, too.

    Pairs that are not `weighted` have the weights of the corpus alone, without its factor in the mixture.
    """
    found = _streams(cfg, Split.train, cfg.origin_tags)
    factors = cfg.loss_weights if weighted else {}
    return {name: mixture.weighted_stream(source, factors.get(name, 1.0)) for name, source in found.items()}


def _streams(cfg: DataConfig, split: Split, origins: Mapping[str, str]) -> dict[str, PairStream]:
    tags, domains = cfg.tags, cfg.domain_tags
    found = {}
    for name, part in cfg.parts(split).items():
        own = tags.get(part.tgt), domains.get(name), origins.get(name)
        found[name] = mixture.tagged_stream(stream(part, split), " ".join(filter(None, own)))
    return found


def _not_empty(source: PairStream, cfg: DataConfig, split: Split) -> Iterator[ParallelText]:
    read = 0
    for chunk in source.chunks():
        read += len(chunk)
        yield chunk
    if not read:
        raise UserError(f"{cfg.key(split)}={cfg.place(split)} has no sentence pairs")


def _to_score(source: PairStream, cfg: DataConfig, split: Split) -> Iterator[ParallelText]:
    """Yield the pairs of a split that is held in memory, and of which every pair counts, whole."""
    size = read = 0
    for chunk in _not_empty(source, cfg, split):
        for number, pair in enumerate(zip(chunk.src, chunk.tgt, strict=True), start=read + 1):
            if max(map(len, pair)) > MAX_LINE_CHARS:
                raise UserError(
                    f"{cfg.key(split)}: pair {number:,} has a side of over {MAX_LINE_CHARS:,} characters "
                    "and cannot be scored; split it into sentences, or remove it"
                )
        read += len(chunk)
        size += sum(map(sys.getsizeof, itertools.chain(chunk.src, chunk.tgt)))
        if size > MAX_SCORED_BYTES:
            raise UserError(
                f"{cfg.key(split)}={cfg.place(split)} takes more than {MAX_SCORED_BYTES >> 20} MB of memory, "
                "where a split to score on must be; name fewer pairs"
            )
        yield chunk


def load(cfg: DataConfig, split: Split) -> ParallelText:
    """Read all of one split, to score on, with all its references; see `stream`."""
    if isinstance(cfg, AugmentedData):
        return modified(load(cfg.of, split), cfg)
    return dataclasses.replace(_read(cfg, split), references=references(cfg, split))


def modified(text: ParallelText, cfg: AugmentedData) -> ParallelText:
    """Return the pairs to score on, with the modifiers and the domain of an augmented set."""
    from nmt.data.augment.augmentation import Augmentation  # which imports numpy

    found = Augmentation.of(cfg, cfg.scored_languages)(text, seed=0)
    if cfg.domain is not None:
        known = {domain_tag(cfg.domain), *cfg.of.domain_tags.values()}
        found.src = list(mixture.in_domain(found.src, domain_tag(cfg.domain), known))
    return found


def _read(cfg: DataConfig, split: Split) -> ParallelText:
    source = stream(cfg, split)
    return source._replace(chunks=lambda: _to_score(source, cfg, split)).read()


def references(cfg: DataConfig, split: Split) -> list[list[str]]:
    """Read the further references of one split, each a list of lines.

    Raises:
        UserError: the corpora of a mixture have different numbers of them.
    """
    further = {name: part.further_references(split) for name, part in cfg.parts(split).items()}
    counts = {name: len(of_part) for name, of_part in further.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} has {count + 1}" for name, count in counts.items())
        raise UserError(
            f"the {split.value} pairs of all corpora need the same number of references, but {told}; "
            "set data.corpora.NAME.references, or score some corpora alone with data.scored"
        )
    return [
        [line for other in others for line in _read(other, split).tgt]
        for others in zip(*further.values(), strict=True)
    ]


def set_configs(sets: Mapping[str, Any], data: DataConfig) -> dict[str, DataConfig]:
    """Return the configs of named corpora to score on; their languages are those of `data` unless they say.

    An entry with `augment` alone is `data` itself, modified; one with `domain` has its tag.

    Raises:
        UserError: a name is no name of a folder, or an entry fits no source.
    """
    if not isinstance(sets, Mapping):
        raise UserError(f"sets must be a group of names, such as {{news: {{test: PATH}}}}, but is {sets!r}")
    common = {"src": data.src, "tgt": data.tgt, "max_tokens": data.max_tokens} | _context(data)
    found = {}
    for name, entry in augmented.expanded(sets or {}):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", str(name)) or name in [s.value for s in Split]:
            raise UserError(
                f"sets.{name}: the name of a set must be letters, digits, dots and dashes, "
                "and none of train, validation, test"
            )
        if not isinstance(entry, dict):
            raise UserError(f"sets.{name} must be a group of keys, such as {{test: PATH}}, but is {entry!r}")
        prefix, own = f"sets.{name}", {key: value for key, value in entry.items() if key not in ON_SETS}
        of = data if "augment" in entry and not own else _part_config(own, prefix, common, ON_SETS)
        if "domain" in entry:
            mixture.require_tag(f"{prefix}.domain", entry["domain"])
            if not own:
                raise UserError(f"{prefix}.domain is for a corpus of its own, such as {{test: PATH}}")
        made = AugmentedData.made(of, entry, prefix) if entry.keys() & {*ON_SETS} else of
        found[str(name)] = made
        scored = [split for split in (Split.validation, Split.test) if has_split(made, split)]
        if not scored and of is not data:  # where `data` has none, that is told of `data`
            raise UserError(f"sets.{name} needs validation or test, pairs to score on")
    return found
