"""The configs of search, and the table of strategies.

Every key of `decoding` is here, with its default, range and meaning. Imports no torch: the code of a
row is loaded at its first use.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum

from nmt.checks import at_least, finite, not_negative, within
from nmt.errors import UserError
from nmt.loading import Code
from nmt.metrics.configs import Utility
from nmt.runtime_config import Precision

PARTS_OF_VOCABULARY = ("shortlist", "allowed")
"""Keys that name a file of what is left of the vocabulary."""
BATCH_TOKENS_ON_CPU, BATCH_TOKENS_ON_GPU = 8192, 32_768


class GlossaryUse(Enum):
    """How terms of the source get their translations."""

    auto = "auto"
    """both where the run was trained with terms, else constrain."""
    annotate = "annotate"
    """The source offers them to a model that was trained so; the model may change or ignore them."""
    constrain = "constrain"
    """The search enforces them as they are written."""
    both = "both"
    """The source offers them and the search enforces them."""


class LineSplitting(Enum):
    """Which lines are translated sentence by sentence, and joined again."""

    long = "long"
    """Lines of more sentences, or of several and more tokens, than the model has learnt from."""
    all = "all"
    """All lines of several sentences, such as paragraphs."""
    none = "none"
    """No lines: those that are too long for the model are cut."""


SPLITTING = ("split_lines", "split_tokens")
"""Keys about the lines of a file or a stream, which no pair of a split depends on."""


@dataclass
class DecodingConfig:
    """The keys of all search strategies."""

    strategy: str = ""
    """Search strategy; chosen together with its other fields by `decoding=...`."""
    max_length_ratio: float = 2.0
    """Longest translation in tokens per source token, EOS counted in both; max_length_offset is added."""
    max_length_offset: int = 10
    """Tokens added to the longest translation of every sentence."""
    min_length: int = 0
    """Fewest tokens of a translation, EOS not counted; min_length_ratio tokens per source token are added."""
    min_length_ratio: float = 0.0
    """Fewest tokens of a translation per source token, EOS counted in the source."""
    no_repeat_ngram_size: int = 0
    """No n tokens in a row appear twice in a translation; 0 allows all."""
    repetition_penalty: float = 1.0
    """Factor on the log probability of tokens that a translation has already; 1: none."""
    avoid: list[str] = field(default_factory=list)
    """Words or phrases that no translation has."""
    shortlist: str | None = None
    """File of nmt shortlist: each sentence may only have the pieces that its source pieces become, which
    makes the output layer smaller; null: all pieces."""
    allowed: str | None = None
    """File with a word, a phrase or a character in each line: translations have only the pieces that spell
    these words and phrases, and pieces of these characters; null: all pieces."""
    n_best: int = 1
    """Hypotheses returned per sentence."""
    batch_tokens: int | None = None
    """Source tokens of a batch, with padding, times the hypotheses that are open per sentence; null: 8,192,
    on a GPU 32,768."""
    max_source_tokens: int = 1024
    """Longer source lines are cut here, with a warning; EOS included."""
    split_lines: LineSplitting = LineSplitting.long
    """long, all or none: which lines are split into sentences, which are translated one by one; see
    docs/documents.md."""
    split_tokens: int | None = None
    """Source tokens of the longest line that split_lines=long leaves whole, EOS included; null: what the
    sources of the validation pairs have, in tokens and in sentences."""
    precision: Precision | None = None
    """fp32, bf16, fp16, int8 or auto: the format that linear maps multiply in; null: fp32, on a GPU auto.

    16 bits are faster on hardware made for them, and 8 bits (int8) on CPUs without AMX, but they change some
    translations. auto chooses what suits the device, so that results depend on the device. In bf16 on a GPU,
    everything but log probabilities is bf16.
    """

    def __post_init__(self) -> None:
        at_least(self, "decoding", 1, "n_best", "batch_tokens", "max_source_tokens")
        at_least(self, "decoding", 2, "split_tokens")
        finite(self, "decoding", "max_length_ratio", "max_length_offset", "min_length_ratio")
        not_negative(self, "decoding", "min_length", "no_repeat_ngram_size")
        at_least(self, "decoding", 1, "repetition_penalty")
        finite(self, "decoding", "repetition_penalty")
        if self.min_length_ratio > self.max_length_ratio:
            raise UserError(
                "decoding.min_length_ratio must not exceed decoding.max_length_ratio, but "
                f"{self.min_length_ratio} > {self.max_length_ratio}; raise the latter"
            )
        if self.min_length > self.max_source_tokens:
            raise UserError(
                "decoding.min_length must not exceed decoding.max_source_tokens, as no translation must "
                f"be longer than a source may be, but {self.min_length} > {self.max_source_tokens}; lower it"
            )
        for key in PARTS_OF_VOCABULARY:
            if (file := getattr(self, key)) is not None and not file.strip():
                raise UserError(f"decoding.{key} must name a file, but is empty; null is for all pieces")
        if not all(map(str.strip, self.avoid)):
            raise UserError("decoding.avoid must list words or phrases, but one of them is blank")

    @property
    def rows_per_sentence(self) -> int:
        """Hypotheses of a sentence that are open at a time."""
        return self.n_best

    def tokens_at_once(self, device_type: str) -> int:
        """Return `batch_tokens`, or what suits the device."""
        return self.batch_tokens or (BATCH_TOKENS_ON_CPU if device_type == "cpu" else BATCH_TOKENS_ON_GPU)

    @property
    def without_phrases(self) -> str:
        """Why the search cannot be asked for phrases that must appear; empty where it can."""
        return ""

    @property
    def narrowed_by(self) -> list[str]:
        """The keys that leave a part of the vocabulary, of those that are set."""
        return [key for key in PARTS_OF_VOCABULARY if getattr(self, key) is not None]

    @property
    def has_minimum(self) -> bool:
        """Whether translations must not be too short."""
        return self.min_length > 0 or self.min_length_ratio > 0


GENERATED_TOKENS = 200
"""Tokens that a language model adds to a prompt, unless told otherwise."""


class LengthPenalty(Enum):
    """The divisor of the log probability of a finished hypothesis of `length` tokens.

    Search ends early because no penalty exceeds the one at the length limit: a new kind must not fall with
    the length, or `Beams.done` has to look for the largest one.
    """

    gnmt = "gnmt"
    """((5 + length) / 6) ** alpha"""
    average = "average"
    """length ** alpha"""
    none = "none"
    """1, whatever alpha is"""


@dataclass
class BeamConfig(DecodingConfig):
    """Beam search for the translation with the highest score."""

    strategy: str = "beam"
    beam_size: int = 5
    """Hypotheses kept open per sentence; 1 is greedy search."""
    patience: float = 1.0
    """A sentence is done with patience x beam_size finished hypotheses, or when no open one can be better;
    greedy search with the first."""
    length_penalty: LengthPenalty = LengthPenalty.gnmt
    """gnmt, average or none."""
    length_penalty_alpha: float = 1.0
    """Strength of the length penalty; 0 switches it off."""
    coverage_penalty: float = 0.0
    """Weight of the attention that a finished hypothesis lacks, as a penalty; 0: none."""
    num_groups: int = 1
    """Groups that the beams are divided into, which keep away from each other: diverse beam search."""
    diversity_penalty: float = 0.5
    """With several groups, what a token costs for each beam of other groups that has just chosen it."""
    cuda_graphs: bool = False
    """On a GPU, record steps of the search as CUDA graphs and replay them; meant for large files."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "decoding", 1, "beam_size")
        at_least(self, "decoding", 1, "num_groups", "patience")
        finite(self, "decoding", "length_penalty_alpha", "coverage_penalty", "diversity_penalty")
        if self.cuda_graphs and self.narrowed_by:
            raise UserError(
                "decoding.cuda_graphs=true records searches over the whole vocabulary; set it to false, or "
                f"decoding.{self.narrowed_by[0]}=null"
            )
        if self.n_best > self.beam_size:
            raise UserError(
                f"decoding.n_best must not exceed decoding.beam_size, but {self.n_best} > "
                f"{self.beam_size}; try decoding.beam_size={self.n_best}"
            )
        if self.beam_size % self.num_groups:
            fitting = self.num_groups * -(-self.beam_size // self.num_groups)
            raise UserError(
                f"decoding.num_groups must divide decoding.beam_size, but {self.beam_size} beams make no "
                f"{self.num_groups} groups of one size; try decoding.beam_size={fitting}"
            )

    @property
    def rows_per_sentence(self) -> int:
        return self.beam_size

    @property
    def without_phrases(self) -> str:
        if self.num_groups > 1:
            return (
                f"decoding.num_groups={self.num_groups} is for sentences without phrases that must appear; "
                "use one of the two"
            )
        if self.beam_size < 2:
            return (
                "phrases that must appear need several beams, but decoding.beam_size=1; "
                "try decoding.beam_size=10"
            )
        return ""

    @property
    def most_finished(self) -> float:
        """Finished hypotheses with which the search of a sentence ends."""
        return self.patience * self.beam_size if self.beam_size > 1 else 1


@dataclass
class DrawingConfig(DecodingConfig):
    """The keys of the strategies that draw tokens at random."""

    temperature: float = 1.0
    """Divisor of the logits: below 1 likely tokens become likelier, 0 always takes the likeliest."""
    top_k: int | None = None
    """Sample from this many of the likeliest tokens, and those as likely as the last; null: from all."""
    top_p: float = 1.0
    """Sample from the fewest likeliest tokens that together have this probability."""
    epsilon: float = 0.0
    """Sample from the tokens that have at least this probability, or from the likeliest if none has."""
    min_p: float = 0.0
    """Sample from the tokens that have at least this share of the probability of the likeliest."""
    seed: int = 1
    """Seed of the samples; the same seed gives the same samples."""

    def __post_init__(self) -> None:
        super().__post_init__()
        finite(self, "decoding", "temperature")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"decoding.top_k must be at least 1 or null, but is {self.top_k}")
        within(self, "decoding", "(0, 1]", "top_p")
        within(self, "decoding", "[0, 1)", "epsilon", "min_p")

    @property
    def without_phrases(self) -> str:
        return (
            f"phrases that must appear need a beam, but decoding.strategy={self.strategy} draws tokens at "
            "random; use decoding=beam decoding.beam_size=10"
        )


@dataclass
class SamplingConfig(DrawingConfig):
    """Tokens sampled one after the other."""

    strategy: str = "sampling"


class ReferenceWeights(Enum):
    """How much a candidate counts as a reference."""

    count = "count"
    """As often as it was found."""
    probability = "probability"
    """By its probability under the model, over that of all candidates."""


@dataclass
class MBRConfig(DrawingConfig):
    """Minimum Bayes risk decoding: the candidate that is most like all candidates."""

    strategy: str = "mbr"
    epsilon: float = 0.02
    num_samples: int = 64
    """Samples of a sentence, drawn as with `decoding=sampling`; 0: none."""
    beam_size: int = 0
    """Hypotheses of beam search that are candidates, too; 0: none."""
    length_penalty: LengthPenalty = BeamConfig.length_penalty
    """gnmt, average or none: that of the beam."""
    length_penalty_alpha: float = BeamConfig.length_penalty_alpha
    """Strength of the length penalty of the beam; 0 switches it off."""
    pool_models: bool = False
    """Find candidates with each model of an ensemble, and take all of them; false: with the ensemble."""
    utility: Utility = Utility.chrf
    """chrf or bleu: what a candidate is worth where another is the reference."""
    aggregate: bool = False
    """One reference in place of all: their mean as counts of n-grams, which is faster for many candidates."""
    reference_weights: ReferenceWeights = ReferenceWeights.count
    """count or probability: how much a candidate counts as a reference."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "decoding", 0, "num_samples", "beam_size")
        found = self.num_samples + self.beam_size
        if not found:
            raise UserError("decoding=mbr needs candidates; set decoding.num_samples or decoding.beam_size")
        if self.n_best > found:
            raise UserError(
                "decoding.n_best must not exceed decoding.num_samples + decoding.beam_size, but "
                f"{self.n_best} > {found}; try decoding.num_samples={self.n_best - self.beam_size}"
            )
        if self.beam_size:
            self.beam()

    @property
    def rows_per_sentence(self) -> int:
        return max(self.num_samples, self.beam_size)

    @property
    def without_phrases(self) -> str:
        return super().without_phrases if self.num_samples else self.beam().without_phrases

    def beam(self) -> BeamConfig:
        """Return the config of the beam search whose hypotheses are candidates."""
        shared = {field.name: getattr(self, field.name) for field in fields(DecodingConfig)}
        penalty = {"length_penalty": self.length_penalty, "length_penalty_alpha": self.length_penalty_alpha}
        own = {"strategy": BeamConfig.strategy, "n_best": self.beam_size, "beam_size": self.beam_size}
        return BeamConfig(**(shared | penalty | own))


STRATEGIES: dict[str, tuple[type[DecodingConfig], Code]] = {
    "beam": (BeamConfig, "nmt.decoding.guided_search.search"),
    "sampling": (SamplingConfig, "nmt.decoding.sampling.sample"),
    "mbr": (MBRConfig, "nmt.decoding.mbr.draw_candidates"),
}
