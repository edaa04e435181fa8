"""The root configs of the verbs that have one of their own; imports no torch.

Those that several modules know are in `nmt.config.roots`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING

from nmt.attention_views.configs import ViewsConfig
from nmt.checks import Texts, at_least, not_negative
from nmt.config.roots import (
    FileConfig,
    LineFormat,
    RunConfig,
    TargetConfig,
    Task,
    TrainConfig,
    format_of,
    keys_below,
    require_checkpoint,
)
from nmt.data.configs import DataConfig
from nmt.data.reading import mixture, sources
from nmt.decoding.configs import GENERATED_TOKENS, DecodingConfig
from nmt.errors import UserError
from nmt.files import OUTPUTS
from nmt.metrics.configs import ScoringConfig
from nmt.metrics.scoring import require_metrics, require_tunable
from nmt.models.configs import EnsembleConfig
from nmt.runs.configs import SelectionConfig, Side
from nmt.serving.configs import ServingConfig
from nmt.training.objectives.configs import DistillationConfig


class Debug(Enum):
    """A look at a training that takes seconds, and touches no run."""

    smoke = "smoke"
    overfit = "overfit"
    profile = "profile"


@dataclass
class TrainVerbConfig(TrainConfig):
    """Train a model, keep its best checkpoints and score the result."""

    debug: Debug | None = None
    """smoke (two updates of everything, on a few pairs), overfit (one batch until it is known by heart) or
    profile (where the time of an update goes); nothing is kept but the trace of profile. null: train."""
    dry_run: bool = False
    """Show shapes, parameters, memory, disk and time of the training, estimated from a few updates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.debug is not None and self.dry_run:
            raise UserError(
                f"debug={self.debug.value} and dry_run=true exclude each other; leave one of them out"
            )


@dataclass
class PrepareOptions:
    """The way in which data is prepared, on which its result does not depend, and what is told of it."""

    workers: int = 0
    """Processes that filter, and encode a corpus of more than a million pairs; 0: one per CPU core."""
    filtered: str | None = None
    """Folder for the pairs that data.filters keep, repaired by data.fixers, kept.SRC and kept.TGT, and for a
    table of those that are dropped, dropped.tsv; null: no such files."""

    def __post_init__(self) -> None:
        not_negative(self, "prepare", "workers")


@dataclass
class PrepareConfig(TrainConfig):
    """Prepare the data of a training: all keys of nmt train, so that the training finds what it needs."""

    prepare: PrepareOptions = field(default_factory=PrepareOptions)
    """Processes, and files of what is filtered."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self.data, "streaming", False):  # a part that is refused is missing here
            raise UserError(
                "data.streaming=true reads the pairs during the training and stores nothing, so that there "
                "is nothing to prepare; set it to false"
            )


@dataclass
class EvaluateConfig(RunConfig):
    """Score a trained model; data, decoding, metrics and runtime start from those of its run."""

    data: DataConfig = MISSING
    """Corpus to translate and to score against; data.scored_split chooses its split."""
    metrics: list[str] = MISSING
    """Scores to compute: bleu, spbleu, chrf, chrf++, ter or comet; of labels accuracy, macro_f1, micro_f1."""
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    """Rules of the scores."""
    sets: dict[str, Any] = field(default_factory=sources.open_group)
    """Further corpora to score on, by names of your own; see nmt train --help."""
    testset: Texts = None
    """Test set of sacreBLEU by name, such as wmt22, or a list of them, instead of the data."""
    read_corpus: bool = False
    """Read or download the corpus that the config of the run names if the run has no copy of the pairs."""
    domain: str | None = None
    """Domain of the sources that have none of their own, for a run whose data.corpora have some."""
    confidence: bool = False
    """Report how the log probability per token of each translation correlates with its chrF; write both."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_metrics(self.metrics)
        if isinstance(self.data, DataConfig):
            sources.set_configs(self.sets, self.data)

    @property
    def testsets(self) -> list[str]:
        """The names of test sets of sacreBLEU."""
        names = self.testset if isinstance(self.testset, list) else [self.testset]
        return [str(name) for name in names if name is not None]


@dataclass
class ScoreConfig(FileConfig):
    """Score pairs with a TAB between; of decoding, precision, limit and batches count, and no search."""

    normalise: bool = False
    """Whether a score is divided by the number of target tokens, EOS counted."""
    per_token: bool = False
    """Whether two columns follow: the pieces of the target, and the log probability of each."""


@dataclass
class ClassifyConfig(FileConfig):
    """Find the labels of texts; of decoding, precision, limit and batches count, and no search."""

    format: LineFormat | None = None
    """text (LABEL TAB PROBABILITY) or jsonl (all probabilities): what is written for each line; null: jsonl
    if output ends in .jsonl, else text."""

    @property
    def writes_json(self) -> bool:
        """Whether an object of JSON is written for each line."""
        return (self.format or format_of(self.output)) is LineFormat.jsonl


@dataclass
class RerankConfig(FileConfig):
    """Rerank the translations of the scored split, of standard input or of a file."""

    scorers: list[str] = MISSING
    """Run directories: models of the same direction, from right to left perhaps, of the opposite direction,
    or language models of the target."""
    tune_for: str = "bleu"
    """bleu, spbleu, chrf or chrf++: the metric of the validation split that the weights are tuned for."""
    tuning_seed: int = 1
    """Seed of the search for weights."""
    stream: bool = False
    """Whether standard input is translated, rather than the scored split."""
    data: DataConfig = MISSING
    """Corpus whose validation split tunes the weights; data.scored_split chooses the split to report on."""
    metrics: list[str] = MISSING
    """Scores to report."""
    read_corpus: bool = False
    """Read or download the corpus that the config of the run names if the run has no copy of the pairs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_metrics(self.metrics)
        require_tunable("tune_for", self.tune_for)
        if not self.scorers:
            raise UserError("scorers must name at least one run, such as scorers=[outputs/reverse]")
        if self.stream and self.input is not None:
            raise UserError("stream=true reads standard input; leave it out to read input=...")


@dataclass
class ShortlistConfig:
    """Make the file of decoding.shortlist for a run, from its training pairs or from others."""

    run: Texts = MISSING
    """Run directory whose tokenizer splits the pairs."""
    output: str | None = None
    """File to write; null: shortlist.npz in the run directory."""
    translations: int = 100
    """Target pieces of each source piece: the most probable ones."""
    frequent: int = 200
    """Target pieces that every sentence may have: the most frequent ones."""
    max_pairs: int = 1_000_000
    """Pairs that are read, from the first on."""
    data: DataConfig = MISSING
    """Corpus whose training pairs are read; that of the run by default."""
    read_corpus: bool = False
    """Read or download the corpus that the config of the run names."""

    def __post_init__(self) -> None:
        at_least(self, "", 1, "translations", "max_pairs")
        not_negative(self, "", "frequent")
        if self.output is not None and not self.output.strip():
            raise UserError("output must name a file, but is empty")
        if isinstance(self.run, list):
            raise UserError(
                f"run must be one directory, but is {self.run}; the runs of an ensemble share a tokenizer, "
                "and so the file that is made for one of them"
            )


@dataclass
class GenerateConfig(RunConfig):
    """Continue a text with a trained language model; runtime starts from that of the run."""

    prompt: str = ""
    """Beginning of the text; empty: the model begins."""
    max_tokens: int = GENERATED_TOKENS
    """Number of tokens to add; with lines=N the most for each line."""
    lines: int | None = None
    """Number of lines to write, each sampled by itself from the prompt to its end; null: one text, of as many
    lines as the model makes of max_tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "", 1, "max_tokens", "lines")


@dataclass
class AttentionVerbConfig(ViewsConfig, TargetConfig):
    """Show what a trained model attends to, for sentences, or pairs with a TAB between, on standard input."""

    def __post_init__(self) -> None:
        TargetConfig.__post_init__(self)
        ViewsConfig.__post_init__(self)


@dataclass
class ServeConfig(TargetConfig):
    """Answer requests over HTTP with a trained model; decoding and runtime start from those of the run."""

    models: dict[str, Any] = field(default_factory=sources.open_group)
    """Several models by names of your own, in place of run: {en-de: RUN, de-en: [A,B]}, the first of which is
    the default. A mapping has keys of that model alone: {fast: {run: RUN, decoding.beam_size: 1}}."""
    serve: ServingConfig = field(default_factory=ServingConfig)
    """Address and limits of the server."""


class Combine(Enum):
    """The use of several teachers of one direction."""

    ensemble = "ensemble"
    each = "each"


@dataclass
class DistilOptions(SelectionConfig):
    """What the teachers translate, and how; which translations the student sees, and how often."""

    checkpoint: str = "final"
    """Checkpoint of each teacher: final, best, last, average, or the number of a step."""
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    """Rule by which teachers translate together; weights are in the order of `teacher`."""
    combine: Combine = Combine.ensemble
    """Several teachers of one direction: ensemble (they translate together), or each for itself (data
    diversification, Nguyen et al. 2020)."""
    decoding: DecodingConfig = MISSING
    """Search of the teachers, chosen by distil.decoding=...; the student's own is decoding."""
    workers: int = 0
    """Processes that translate; 0: one per GPU, or one per CPU core."""
    src_text: list[str] = field(default_factory=list)
    """Files of text in the source language to translate instead of the sources of the training pairs."""
    tgt_text: list[str] = field(default_factory=list)
    """Files of text in the target language to translate instead of the targets of the training pairs
    (back-translation, Sennrich et al. 2016)."""
    original_weight: float = 1.0
    """Weight of the original training pairs; that of synthetic ones is 1. 0: synthetic pairs alone."""
    backward_tag: str | None = None
    """Tag in front of back-translated sources in training, such as bt for <bt> (Caswell et al. 2019)."""
    folder: str = f"{OUTPUTS}/stages"
    """Folder of the stages; trainings with the same teachers, text and search share them."""
    train: bool = True
    """Train the student; false: only make the stages, and print the data of the student."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_checkpoint(self.checkpoint, "distil.checkpoint")
        not_negative(self, "distil", "workers", "original_weight")
        if self.backward_tag is not None:
            mixture.require_tag("distil.backward_tag", self.backward_tag)
        if not self.folder.strip():
            raise UserError("distil.folder must name a folder, but is empty")

    def text(self, side: Side) -> list[str]:
        """Return the files to translate instead of this side of the training pairs."""
        return self.src_text if side is Side.src else self.tgt_text


@dataclass
class DistilConfig(TrainConfig):
    """Train a student on translations by other runs, beside the pairs that these were trained on."""

    teacher: Texts = MISSING
    """Run directory of the teacher, or several as [A,B]; one of the other direction translates targets."""
    distil: DistilOptions = field(default_factory=DistilOptions)
    """The teachers' part."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.teachers or not all(map(str.strip, self.teachers)):
            raise UserError(f"teacher must name a run directory, or several as [A,B], not {self.teacher!r}")
        if twice := sorted({run for run in self.teachers if self.teachers.count(run) > 1}):
            raise UserError(f"teacher names {twice[0]} twice; name each run once")
        with keys_below("distil", ["ensemble"]):
            self.distil.ensemble.normalised(len(self.teachers))
        if self.task is not Task.translation:
            raise UserError(f"nmt distil trains translation, but task is {self.task.value}")
        if isinstance(self.data, DataConfig):  # not so where it is refused itself
            self._require_single_sentences(self.data)
        if isinstance(self.objective, DistillationConfig):
            raise UserError(
                "objective=distillation needs teachers with the tokenizer of the student, but nmt distil "
                "trains one on original and synthetic pairs; choose another objective=..."
            )

    def _require_single_sentences(self, data: DataConfig) -> None:
        """Raise `UserError` for data that is not known pairs of single sentences."""
        if data.streaming:
            raise UserError(
                "data.streaming=true: the pairs to translate must be known at the start; set it to false"
            )
        if not data.has_source:
            raise UserError(f"data={data.name} has one language; choose data with two")
        if data.context:
            raise UserError(
                f"data.context={data.context}: nmt distil translates and teaches single sentences; set "
                "data.context=0 data.context_target=false"
            )

    @property
    def teachers(self) -> list[str]:
        """The run directories of the teachers."""
        return [str(run) for run in self.teacher] if isinstance(self.teacher, list) else [str(self.teacher)]

    def ensemble_of(self, runs: Sequence[str]) -> EnsembleConfig:
        """Return the rule by which some of the teachers translate together."""
        weights = dict(zip(self.teachers, self.distil.ensemble.weights or (), strict=False))
        chosen = [weights[run] for run in runs] if weights else None
        return dataclasses.replace(self.distil.ensemble, weights=chosen)


@dataclass
class ImportConfig:
    """Make a run directory of a model that another program has trained."""

    folder: str = MISSING
    """Folder with config.json, model.safetensors or pytorch_model.bin, and the files of a tokenizer."""
    run: str = MISSING
    """New run directory."""
    src: str = MISSING
    """Source language, such as en."""
    tgt: Texts = MISSING
    """Target language, such as de; of a model of several languages also a list, such as [de,fr], the one of
    which tgt=... of nmt translate then names."""

    def __post_init__(self) -> None:
        if MISSING in (self.src, *self.targets):  # which is told of by itself
            return
        if not self.src.strip():
            raise UserError("src must be a language, but is empty")
        repeated = [tgt for tgt, count in Counter([*self.targets, self.src]).items() if count > 1]
        if not all(map(str.strip, self.targets)) or not self.targets or repeated:
            told = f", and {repeated[0]} is named twice" if repeated else ""
            raise UserError(
                f"tgt must be a language besides src={self.src}, or a list of some, but is {self.tgt}{told}"
            )

    @property
    def targets(self) -> list[str]:
        """The target languages."""
        given = self.tgt if isinstance(self.tgt, list) else [self.tgt]
        return ["" if tgt is None or isinstance(tgt, list | dict) else str(tgt) for tgt in given]
