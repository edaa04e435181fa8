"""Scores of translations against references: one row of `METRICS` each.

The scores of sacreBLEU (Post 2018) are computed on detokenised text against the raw references; they equal
those of the `sacrebleu` command on the written files. Knows text; knows no model and no search.
sacreBLEU is imported when a score is computed: composing a config needs the names alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from nmt import extras
from nmt.data.text.scripts import language_of, scripts_of_language
from nmt.errors import UserError, suggest
from nmt.metrics import comet, label_scores
from nmt.metrics.configs import ScoringConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sacrebleu.metrics.base import Metric as SacrebleuMetric
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

Lines = Sequence[str]
Counts: TypeAlias = "NDArray[Any]"


@dataclass(frozen=True)
class ScoredText:
    """The translations of a whole split, and all that a metric may know of them."""

    sources: Lines
    """One line for each translation; perhaps empty where no metric reads them."""
    hypotheses: Lines
    """The translations."""
    references: Sequence[Lines]
    """One list of lines, or several for several references of each line."""
    tgt_lang: str
    """The language of the translations."""
    scoring: ScoringConfig = field(default_factory=ScoringConfig)


class Metric(NamedTuple):
    """A score of the translations of a whole split."""

    label: str
    """Name in score lines and tables."""
    higher_is_better: bool
    score: Callable[[ScoredText], tuple[float, str]]
    """Function that returns the value and its signature, which says how it was computed. All processes of a
    training must compute the same value."""
    require: Callable[[str, ScoringConfig], object] = lambda tgt_lang, scoring: None
    """Function that raises `UserError` where what the metric needs is not there."""
    of_labels: bool = False
    """Whether labels are scored, for task=classification, and not translations."""


SPLIT_BY_SCRIPT = {"CJK": "zh", **dict.fromkeys(("KHMER", "LAO", "MYANMAR", "THAI", "TIBETAN"), "char")}
"""Scripts without spaces between words -> rule of BLEU for languages that sacreBLEU has none for."""
WORD_SPLITTERS = {"ja-mecab": "ja", "ko-mecab": "ko"}
"""Rule of sacreBLEU that needs libraries to split words -> row of `EXTRAS`."""


def _bleu(tgt_lang: str, scoring: ScoringConfig) -> BLEU:
    """Return BLEU; words are split as is usual for `tgt_lang`, or as the config says."""
    from sacrebleu.metrics.bleu import BLEU

    rule = BLEU._TOKENIZER_MAP.get(
        language_of(tgt_lang)
    )  # of zh-CN or zho_Hans, which sacreBLEU does not know
    tokenize = scoring.tokenize or rule or SPLIT_BY_SCRIPT.get(scripts_of_language(tgt_lang) or "")
    if tokenize in WORD_SPLITTERS:
        what = f"scoring.tokenize={tokenize}" if scoring.tokenize else f"data.tgt={tgt_lang}"
        extra = WORD_SPLITTERS[tokenize]
        extras.require(extra, f"BLEU for {what} splits words by MeCab (metrics=[chrf] does not), which")
    try:  # without trg_lang, for which sacreBLEU advises against an unusual rule
        return BLEU(tokenize=tokenize, lowercase=scoring.lowercase)
    except OSError as error:  # the network, or a file that is no model
        raise _missing_pieces(scoring.tokenize or "", error) from error


def _missing_pieces(name: str, error: OSError) -> UserError:
    """Return the error for a SentencePiece model of sacreBLEU that cannot be read or downloaded."""
    from sacrebleu.tokenizers import tokenizer_spm
    from sacrebleu.utils import SACREBLEU_DIR

    model = tokenizer_spm.SPM_MODELS[name]
    file = f"{SACREBLEU_DIR}/models/{model['url'].rpartition('/')[2]}"
    return UserError(
        f"BLEU with the pieces of {name} needs a file that sacreBLEU downloads once, and it cannot: "
        f"{getattr(error, 'reason', error)}; with a network, `curl -L -o {file} {model['url']}` gets it"
    )


def _spbleu(tgt_lang: str, scoring: ScoringConfig) -> BLEU:
    """Return BLEU over the SentencePiece pieces of FLORES-200 (Goyal et al. 2022; NLLB team 2022)."""
    return _bleu(tgt_lang, ScoringConfig("flores200", scoring.lowercase))


def _chrf(tgt_lang: str, scoring: ScoringConfig, word_order: int = 0) -> CHRF:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(word_order=word_order, lowercase=scoring.lowercase)


def _ter(tgt_lang: str, scoring: ScoringConfig) -> TER:
    """Return TER, which has no regard to case by itself."""
    from sacrebleu.metrics.ter import TER

    return TER()


SCORERS: dict[str, Callable[[str, ScoringConfig], SacrebleuMetric]] = {
    "bleu": _bleu,
    "spbleu": _spbleu,
    "chrf": _chrf,
    "chrf++": partial(_chrf, word_order=2),
    "ter": _ter,
}
"""Name of a metric of sacreBLEU -> a function of the target language. Each is a function of sums over
sentences."""


def sentence_counts(
    name: str,
    hypotheses: Lines,
    references: Lines,
    tgt_lang: str,
    *,
    more_references: Sequence[Lines] = (),
    scoring: ScoringConfig | None = None,
) -> tuple[Counts, Callable[[Counts], float]]:
    """Return numbers (sentences, n), and a function from the sum of some of the rows to the metric `name`.

    `name` is one of `SCORERS`.
    """
    import numpy as np

    scorer: Any = SCORERS[name](tgt_lang, scoring or ScoringConfig())
    all_references = [list(lines) for lines in (references, *more_references)]
    rows = scorer._extract_corpus_statistics(list(hypotheses), all_references)
    return np.array(rows), lambda sums: float(scorer._compute_score_from_stats(sums.tolist()).score)


def sentence_chrf(hypotheses: Lines, references: Lines) -> list[float]:
    """Return the chrF of each sentence by itself, 0 to 100."""
    counts, score = sentence_counts("chrf", hypotheses, references, "")
    return [score(row) for row in counts]


def _corpus_score(name: str, text: ScoredText) -> tuple[float, str]:
    """Return a score of sacreBLEU and its signature; TER is in edits per 100 words of the references."""
    scorer = SCORERS[name](text.tgt_lang, text.scoring)
    value = scorer.corpus_score(list(text.hypotheses), [list(lines) for lines in text.references]).score
    return float(value), scorer.get_signature().format()


def _comet(text: ScoredText) -> tuple[float, str]:
    found = comet.sentence_scores(text.sources, text.hypotheses, text.references[0])
    return found.mean, found.signature


def _row(name: str, label: str, higher_is_better: bool = True) -> Metric:
    return Metric(label, higher_is_better, partial(_corpus_score, name), SCORERS[name])


def _of_labels(name: str, label: str) -> Metric:
    """Return the row of a score of labels, in percent."""

    def scored(text: ScoredText) -> tuple[float, str]:
        true = text.references[0]
        counts = label_scores.label_scores(text.hypotheses, true)
        return label_scores.SCORES[name](counts), label_scores.signature_of(name, true)

    return Metric(label, True, scored, of_labels=True)


METRICS: dict[str, Metric] = {
    "bleu": _row("bleu", "BLEU"),
    "spbleu": _row("spbleu", "spBLEU"),
    "chrf": _row("chrf", "chrF"),
    "chrf++": _row("chrf++", "chrF++"),
    "ter": _row("ter", "TER", False),
    "comet": Metric("COMET", True, _comet, lambda tgt_lang, scoring: comet.signature()),
    "accuracy": _of_labels("accuracy", "accuracy"),
    "macro_f1": _of_labels("macro_f1", "macro F1"),
    "micro_f1": _of_labels("micro_f1", "micro F1"),
}
"""Name in `metrics` and `trainer.best_metric` -> the metric."""
MACRO = {f"macro_{name}": name for name in SCORERS}
"""Name in `trainer.best_metric` of the mean of a score over target languages -> the score."""
OF_TOKENS = {"loss": False, "perplexity": False, "nll": False, "token_accuracy": True}
"""Score of the probabilities that a model gives to target tokens -> whether higher values are better."""


def signature_of(name: str, text: ScoredText) -> str:
    """Return how the metric `name` of a text is computed; no model is run for that."""
    return comet.signature() if name == "comet" else METRICS[name].score(text)[1]


def names_of_metrics(*, of_labels: bool) -> list[str]:
    """Return the names of the metrics of labels, or of those of translations."""
    return [name for name, metric in METRICS.items() if metric.of_labels is of_labels]


def of_another_task(names: Sequence[str], task: str, *, of_labels: bool) -> list[str]:
    """Return a sentence for each of `names` that does not score what `task` gives, labels or translations."""
    known = names_of_metrics(of_labels=of_labels)
    kinds = {name: "labels" if METRICS[name].of_labels else "translations" for name in names}
    return [
        f"metrics: {name} is a score of {kind}, but task is {task}; choose among {', '.join(known)}"
        for name, kind in kinds.items()
        if name not in known
    ]


def require_computable(names: Sequence[str], tgt_lang: str, scoring: ScoringConfig) -> None:
    """Raise `UserError` where a metric needs a package, a file or a program that is not there."""
    for name in names:
        METRICS[name].require(tgt_lang, scoring)


def require_metrics(names: Sequence[str]) -> None:
    """Raise `UserError` unless `names`, the value of the key `metrics`, are of `METRICS`, each once."""
    for number, name in enumerate(names):
        if name not in METRICS:
            known, near = ", ".join(METRICS), suggest(name, METRICS)
            raise UserError(f"metrics[{number}] must be one of {known}, but is {name!r}{near}")
    if not names or len(set(names)) < len(names):
        raise UserError(f"metrics must name at least one score, and each once, but is [{', '.join(names)}]")


def require_tunable(key: str, name: str) -> None:
    """Raise `UserError` unless `name`, the value of `key`, is one of `SCORERS` of which more is better."""
    known = [known for known in SCORERS if METRICS[known].higher_is_better]
    if name not in known:
        raise UserError(f"{key} must be one of {', '.join(known)}, but is {name!r}{suggest(name, known)}")


def default_best(names: Sequence[str]) -> str:
    """Return the first of `names` whose higher values are better; loss when there is none."""
    return next((name for name in names if METRICS[name].higher_is_better), "loss")


def directions() -> dict[str, bool]:
    """Return of each score by name whether higher values are better."""
    metrics = {name: metric.higher_is_better for name, metric in METRICS.items()}
    return {**metrics, **{macro: metrics[name] for macro, name in MACRO.items()}, **OF_TOKENS}


def higher_is_better(name: str) -> bool:
    """Return whether higher values of the score `name`, or of one of a set such as news/bleu, are better."""
    return directions().get(name.rpartition("/")[2], False)


def label_of(name: str) -> str:
    """Return the label of a metric, or of its mean over languages; another name as it is."""
    if name in MACRO:
        return f"macro {METRICS[MACRO[name]].label}"
    return METRICS[name].label if name in METRICS else name


def over_languages(names: Collection[str]) -> list[str]:
    """Return the names of the means over target languages of those of the scores `names` that have one."""
    return [macro for macro, name in MACRO.items() if name in names]


def means(by_language: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each score over target languages, in which each language counts the same."""
    several = list(by_language.values())
    names = several[0] if several else ()
    return {
        macro: sum(one[MACRO[macro]] for one in several) / len(several) for macro in over_languages(names)
    }


def labelled_scores(values: Mapping[str, float | str]) -> list[str]:
    """Return "BLEU 38.12", "perplexity 5.20" and the like for the `values` of a split that have a label.

    Values that were read from JSON may be "inf" or "nan".
    """
    labels = {name: label_of(name) for name in (*METRICS, *MACRO)}
    labels |= {"perplexity": "perplexity", "token_accuracy": "token accuracy"}
    return [f"{label} {float(values[name]):.2f}" for name, label in labels.items() if name in values]


def language_lines(scores: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield a line with the scores of each target language."""
    yield from (score_line(f"  into {language}", values) for language, values in scores.items())


def score_line(name: str, values: Mapping[str, float | str]) -> str:
    """Return one line with the scores of one split."""
    return f"{name:<11} {'  '.join(labelled_scores(values))}"
