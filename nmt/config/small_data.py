"""Settings that are chosen from the size of the training split, each with its reason.

A config leaves a key of `KEYS` open by stating `${small_data}` for it, as configs/experiment/small_data.yaml
does; any other value is never replaced. configs/model/by_corpus.yaml leaves open the size of the model, for
corpora of any size. Every value is a function of the counts of the split (`Census`), and of the values that
the config already has. With more words no size falls, and no regularisation rises.

The rules go through the recipe for 29,000 pairs of Multi30k, configs/experiment/multi30k_en_de.yaml, but for
its tokenizer: twice as many pieces, and case markup (Berard et al. 2019), are better there and for 5,000
pairs (docs/records.md). What they do elsewhere follows Sennrich and Zhang 2019 (fewer pieces, smaller
batches, more smoothing), Araabi and Monz 2020 (the same for the Transformer), Atrio and
Popescu-Belis 2022 (all of it in proportion to the scarcity) and Gowda and May 2020 (vocabularies).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nmt.config.overrides import config_dir
from nmt.config.plain import read_plain
from nmt.config.roots import Task, TrainConfig
from nmt.config.schemas import copied
from nmt.data.cleaning import census
from nmt.data.cleaning.census import Census, SideCensus
from nmt.data.cleaning.filters import all_lines, filter_of
from nmt.data.special_ids import EOS_ID
from nmt.data.text import casing
from nmt.data.tokens.tokenizer_training import COUNTED, Case, Normalization, TokenizerConfig, TokenizerKind
from nmt.disk_cache import cache_dir
from nmt.errors import UserError
from nmt.models.configs import TransformerConfig

REFERENCE_WORDS = 345_000
"""Words of the 29,000 pairs of Multi30k, English side, for which the recipe was made."""
REFERENCE_BATCH, REFERENCE_STEPS, REFERENCE_MERGES = 2048, 5000, 7900
"""What that recipe does: tokens in a batch, updates, pieces that are no single characters."""
TOKENS_PER_WORD = 1.5
"""Target pieces of a word for that recipe, about; one tenth of the data has 1.26 times as many, and so on."""
FILLED = 0.78
"""Target tokens of an update, as a share of the tokens that a batch may have."""
MOST_TOKENS = 30e6
"""Target tokens of the longest training: about an hour on two CPU cores with AMX."""
DROPOUT_OF_A_PASS = 0.02
"""Dropout is at most so much for each pass over the data, which is what there is to learn by heart from."""
REWRITTEN = 0.01
"""Share of target lines from which on they are not normalised, so that the model can write what they have."""
REFERENCE_DISTINCT, DISTINCT_POWER = 20_000, 0.63
"""Different words of that recipe, about, and the power of the number of words with which they grow."""
MOST_PASSES = 150
"""Passes over the training split of the longest training."""
VALIDATIONS = 5
"""Validations of a training, evenly spread; the learning rate ends at 0, so that the last is the best."""

VOCABULARY = "tokenizer.vocab_size"
MODEL = tuple(
    f"model.{name}" for name in ("d_model", "d_ff", "num_heads", "encoder_layers", "decoder_layers")
)
"""The keys that configs/model/by_corpus.yaml leaves open."""
NORMALIZATION = "tokenizer.normalization"
WITHOUT_RECIPE = (VOCABULARY, NORMALIZATION, *MODEL)
"""The keys that may be open without a recipe, the first two by configs/experiment/files.yaml."""
CORPORA = ("files", "hub", "iwslt2017", "mixture", "wmt14", "wmt16", "wmt19")
"""The choices of data whose size is not known before, or is large: without a recipe, model=by_corpus."""
MODELS = ((0, "transformer_tiny"), (1_000_000, "transformer_small"), (20_000_000, "transformer_base"))
"""The least words of the longer side for which model=by_corpus is each of these."""
OPEN = "${small_data}"
"""The value of a key that the rules are to choose: in the form of a reference, which any type takes."""
KEYS = (
    VOCABULARY,
    "tokenizer.case",
    NORMALIZATION,
    "model.dropout",
    "objective.label_smoothing",
    "trainer.batch_tokens",
    "trainer.max_steps",
    "trainer.eval_every_steps",
    "trainer.save_every_steps",
    "schedule.warmup_steps",
)
"""Keys that a config may leave open to the rules for small data."""

_SIDE = SideCensus(REFERENCE_WORDS, 20_000, 1_600_000, 0, "".join(map(chr, range(33, 133))))
NOMINAL = Census(29_000, _SIDE, _SIDE)
"""A usual training split, for configs whose values are checked before any data is read."""


@dataclass(frozen=True)
class Setting:
    """The value of one key, and why it is that; no reason where the value has no effect."""

    key: str
    value: int | float | str
    reason: str


def open_keys(cfg: DictConfig) -> list[str]:
    """Return the keys of `KEYS` and `MODEL` that a composed config leaves open."""
    stated = dict[str, Any]()
    for part in dict.fromkeys(key.rpartition(".")[0] for key in (*KEYS, *MODEL)):
        group = OmegaConf.select(cfg, part)
        stated[part] = OmegaConf.to_container(group) if isinstance(group, DictConfig) else {}

    def is_open(key: str) -> bool:
        part, _, name = key.rpartition(".")
        return isinstance(stated[part], dict) and stated[part].get(name) == OPEN

    return [key for key in (*KEYS, *MODEL) if is_open(key)]


def filled(cfg: DictConfig, settings: Sequence[Setting]) -> DictConfig:
    """Return a copy of a composed config in which the keys that are open have the values of `settings`."""
    closed, missing = copied(cfg), open_keys(cfg)
    for setting in settings:
        if setting.key in missing:
            OmegaConf.update(closed, setting.key, setting.value)
    return closed


def counted_pairs(cfg: TrainConfig) -> Census:
    """Count the training split of `cfg`; raise `UserError` when it has no pairs to count before training."""
    is_text = cfg.task is Task.language_model
    if why := f"task={cfg.task.value}" if is_text else _not_countable(cfg):
        raise UserError(
            f"{why} has no sentence pairs to count before the training, but experiment=small_data chooses by "
            f"their number; take another experiment, or set all of {', '.join(KEYS)}"
        )
    return counted(cfg)


def counted(cfg: TrainConfig) -> Census:
    """Count what the task trains on: pairs, labelled texts, or the targets alone."""
    usable = all_lines if cfg.task is Task.language_model else filter_of(cfg.data)
    return census.take(cfg.data, usable, cache_dir())


def _not_countable(cfg: TrainConfig) -> str:
    """Return the setting with which nothing can be counted before training, or nothing."""
    return "data.streaming=true" if cfg.data.streaming else ""


def without_recipe(cfg: TrainConfig, composed: DictConfig) -> tuple[list[Setting], str]:
    """Return what a config chooses that leaves open no more than `WITHOUT_RECIPE`, and the name of its model.

    The name is empty where the model is not open.
    """
    missing, model = open_keys(composed), ""
    chosen = [_vocabulary(cfg, composed)] if VOCABULARY in missing else []
    if NORMALIZATION in missing:
        chosen.append(_text_form(cfg, composed))
    if {*missing} & {*MODEL}:
        why = _not_countable(cfg)
        words = 0 if why else counted(cfg).words
        reason = f"not chosen by the corpus, which {why} does not count" if why else f"for {words:,} words"
        model = model_of(words)
        chosen += [setting for setting in _model(words, reason) if setting.key in missing]
    return chosen, model


def _vocabulary(cfg: TrainConfig, composed: DictConfig) -> Setting:
    """Return the size of the tokenizer for a config that leaves none of the rules for small data open."""
    usual, kind = TokenizerConfig.vocab_size, cfg.tokenizer.kind
    if cfg.tokenizer.path:
        return Setting(VOCABULARY, usual, "")
    if kind in COUNTED:
        return Setting(VOCABULARY, usual, f"at most, of tokenizer.kind={kind.value}")
    if why := _not_countable(cfg):
        return Setting(VOCABULARY, usual, f"not chosen by the corpus, which {why} does not count")
    counts = counted(cfg)
    size = settings_for(counts, composed)[0].value
    what = "lines of text" if cfg.task is Task.language_model else "training pairs"
    return Setting(VOCABULARY, size, f"for {counts.pairs:,} {what}, {counts.words:,} words")


def _text_form(cfg: TrainConfig, composed: DictConfig) -> Setting:
    """Return how text is normalised for a config that leaves it open; the usual way needs no reason.

    Nothing is counted where the vocabulary is stated: such a corpus may be very large.
    """
    usual = TokenizerConfig.normalization.value
    is_counted = VOCABULARY in open_keys(composed) and not _not_countable(cfg)
    if cfg.tokenizer.path or not is_counted:
        return Setting(NORMALIZATION, usual, "")
    found = next(one for one in settings_for(counted(cfg), composed) if one.key == NORMALIZATION)
    return Setting(NORMALIZATION, usual, "") if found.value == usual else found


def model_of(words: int) -> str:
    """Return the choice of the group `model` for so many words."""
    return next(name for least, name in reversed(MODELS) if words >= least)


def _model(words: int, reason: str) -> Iterator[Setting]:
    """Yield the width and depth of the model for so many words."""
    name = model_of(words)
    stated = read_plain(config_dir() / "model" / f"{name}.yaml")
    for key in MODEL:
        field = key.removeprefix("model.")
        yield Setting(key, stated.get(field, getattr(TransformerConfig, field)), reason)


def settings_for(counts: Census, cfg: DictConfig) -> list[Setting]:
    """Return a setting for each of `KEYS`, and of `MODEL` if that is open; `cfg` has what is known."""
    missing = open_keys(cfg)
    known = {key: OmegaConf.select(cfg, key) for key in (*KEYS, *_ALSO_READ) if key not in missing}
    model = _model(counts.words, f"for {counts.words:,} words") if {*missing} & {*MODEL} else ()
    return [*_settings(counts, known), *model]


_ALSO_READ = (
    "tokenizer.kind",
    "tokenizer.path",
    "tokenizer.lowercase",
    "tokenizer.source_factors",
    "tokenizer.symbols",
    "tokenizer.joint",
    "tokenizer.byte_fallback",
    "task",
    "data.max_tokens",
    "trainer.accumulate",
)


def remarks(counts: Census, cfg: DictConfig, settings: Sequence[Setting]) -> Iterator[str]:
    """Yield a line on what was counted, and one for each setting: chosen, or stated by the user."""
    entries = (OmegaConf.select(cfg, "data.corpora") or {}).values()
    is_filtered = cfg.data.filters or any(entry.get("filters") for entry in entries)
    left = ", after data.filters but those with models" if is_filtered else ""
    read = counts.pairs + counts.dropped
    limits = f" of {read:,} (the rest is beyond data.max_ratio, max_chars or max_tokens, or empty)"
    pairs = f"{counts.pairs:,} training pairs{limits * (counts.dropped > 0)}"
    yield f"chosen for {pairs}, {counts.words:,} words on the longer side{left}:"
    missing = open_keys(cfg)
    for setting in settings:
        key = setting.key
        if key in missing:
            yield f"  {key}={setting.value}: {setting.reason}"
        else:
            stated = OmegaConf.select(cfg, key)
            yield f"  {key}={stated}, as you say; the rules say {setting.value}: {setting.reason}"


def _settings(counts: Census, known: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield the settings in the order in which they follow from each other."""
    words = max(counts.words, 1)
    share = words / REFERENCE_WORDS
    # 1 for a tenth of the words of Multi30k, -1 for ten times as many
    scarcity = -math.log10(share)
    case, normalization = _case(counts, known), _normalization(counts, known)
    stated = {one.key: known.get(one.key, one.value) for one in (case, normalization)}
    yield _vocab_size(counts, share, {**known, **stated})
    yield case
    yield normalization
    batch, per_update = _batch(share, known)
    steps, passes = _updates(words, share, per_update, known)
    yield from _regularisation(scarcity, passes)
    yield batch
    yield from steps


def _vocab_size(counts: Census, share: float, known: Mapping[str, Any]) -> Setting:
    """Return the size of the tokenizer; see docs/configuration.md for the sizes of other papers."""
    is_normalised = Normalization(known["tokenizer.normalization"]) is not Normalization.identity
    alphabets = [side.alphabet if is_normalised else side.written for side in (counts.src, counts.tgt)]
    characters = sorted({*"".join(alphabets)})
    if Case(known["tokenizer.case"]) is Case.markup:
        characters = [*casing.MARKS, *"".join(casing.marked(characters))]
    alphabet = len({*characters})
    single = EOS_ID + 2 + alphabet + 256 * bool(known.get("tokenizer.byte_fallback"))  # and the space
    richer = max if known.get("tokenizer.joint", True) else min  # each side has a tokenizer of this size
    most = richer(_distinct(counts.src), _distinct(counts.tgt)) // 2
    wanted = _bounded(REFERENCE_MERGES * share**0.4, 100, 15_000)
    merges = int(min(wanted, most))
    size = max(_rounded(single + merges), single + min(merges, 1))
    if most < wanted:
        why = f"{most:,} more, half of the different words, which are few"
    else:
        why = f"{_rounded(merges):,} more that {counts.words:,} words can teach (docs/records.md)"
    return Setting(VOCABULARY, size, f"{alphabet:,} different characters, and {why}")


def _distinct(side: SideCensus) -> int:
    """Return the different words of a side; without spaces between words, as many as other text has."""
    if side.has_spaces:
        return side.distinct
    return min(int(REFERENCE_DISTINCT * (side.words / REFERENCE_WORDS) ** DISTINCT_POWER), side.words)


def _normalization(counts: Census, known: Mapping[str, Any]) -> Setting:
    """Return how text is normalised: not at all where that would rewrite the targets."""
    key, usual, rewritten = NORMALIZATION, TokenizerConfig.normalization.value, counts.tgt.rewritten
    if known.get("task") is Task.classification:
        return Setting(key, usual, "targets are labels, which are not normalised")
    if path := known.get("tokenizer.path"):
        return Setting(key, usual, f"tokenizer.path={path} is trained already")
    if rewritten <= REWRITTEN * counts.pairs:
        return Setting(key, usual, "one form for each character, as is usual")
    why = f"{usual} rewrites {rewritten:,} target lines, which a model then could not write as they are"
    return Setting(key, Normalization.identity.value, why)


def _case(counts: Census, known: Mapping[str, Any]) -> Setting:
    """Return what becomes of capitals: marks, where there are capitals and the tokenizer can have marks."""
    kind, lowercase = known.get("tokenizer.kind"), known.get("tokenizer.lowercase")
    normalization = Normalization(known.get("tokenizer.normalization") or Normalization.nmt_nfkc)
    has_capitals = any(char.isupper() for char in counts.src.alphabet + counts.tgt.alphabet)
    if path := known.get("tokenizer.path"):
        why = f"tokenizer.path={path} is trained already"
    elif kind is TokenizerKind.word:
        why = "tokenizer.kind=word has no pieces for marks"
    elif lowercase or normalization.value.endswith("_cf") or not has_capitals:
        why = "there are no capitals"
    elif "case" in (known.get("tokenizer.source_factors") or []):
        why = "a factor tells the case of sources"
    elif any((sign[:1] + sign[-1:]).isalpha() for sign in known.get("tokenizer.symbols") or []):
        why = "tokenizer.symbols begin or end with letters"
    else:
        why = "Word and WORD have the pieces of word, and marks for the capitals (Berard et al. 2019)"
        return Setting("tokenizer.case", Case.markup.value, why)
    return Setting("tokenizer.case", Case.keep.value, why)


def _regularisation(scarcity: float, passes: float) -> Iterator[Setting]:
    """Yield what keeps a model from learning pairs by heart."""
    rest = "0.05 more for a tenth of the words (Atrio and Popescu-Belis 2022)"
    wanted, most = _step(0.3 + 0.05 * scarcity, 0.2, 0.4), _step(DROPOUT_OF_A_PASS * passes, 0.05, 0.4)
    few = f"{DROPOUT_OF_A_PASS} for each of about {passes:.1f} passes over the data (docs/records.md)"
    why = few if most < wanted else f"0.3 at 29,000 pairs, {rest}"
    yield Setting("model.dropout", min(wanted, most), why)
    smoothing = _step(0.1 + 0.05 * scarcity, 0.1, 0.2)
    why = f"0.1 at 29,000 pairs or more, {rest}"
    yield Setting("objective.label_smoothing", smoothing, why)


def _batch(share: float, known: Mapping[str, Any]) -> tuple[Setting, float]:
    """Return the size of a batch, and the tokens of an update, padding included."""
    exact = _bounded(REFERENCE_BATCH * share ** (1 / 3), 512, 4096)
    least = known.get("data.max_tokens") or 0
    batch = max(round(exact / 128) * 128, least)
    noisy = "small batches are noisy, which few pairs need (Atrio and Popescu-Belis 2022)"
    why = noisy if share <= 1 else "2,048 at 29,000 pairs, twice as many for eight times the words"
    stated = known.get("trainer.batch_tokens")
    tokens = stated if isinstance(stated, int) else max(exact, least)
    why = why if batch > least else "the longest sentence must fit"
    return Setting("trainer.batch_tokens", batch, why), tokens * (known.get("trainer.accumulate") or 1)


def _updates(
    words: int, share: float, per_update: float, known: Mapping[str, Any]
) -> tuple[list[Setting], float]:
    """Return the number of updates, with what is a part of that number, and the passes over the data."""
    a_pass = words * TOKENS_PER_WORD * share**-0.1
    tokens = REFERENCE_STEPS * REFERENCE_BATCH * FILLED * share ** (0.4 if share < 1 else 0.5)
    tokens = min(tokens, MOST_TOKENS, MOST_PASSES * a_pass)
    chosen = max(_rounded(tokens / (per_update * FILLED)), 200)
    limit = known.get("trainer.max_steps")
    steps = limit if isinstance(limit, int) else chosen
    passes = [number * per_update * FILLED / a_pass for number in (chosen, steps)]
    rule = "fewer words are seen more often" if share <= 1 else "more words need fewer"
    every = max(math.ceil(steps / VALIDATIONS), 1)
    warmup = int(_bounded(0.06 * steps, 0, 500))
    return [
        Setting("trainer.max_steps", chosen, f"about {_rounded(passes[0])} passes: {rule}"),
        Setting("trainer.eval_every_steps", every, f"{VALIDATIONS} validations"),
        Setting("trainer.save_every_steps", every, "a checkpoint for each validation"),
        Setting("schedule.warmup_steps", warmup, f"6% of {steps:,} updates, at most 500"),
    ], passes[1]


def _bounded(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)


def _step(value: float, least: float, most: float) -> float:
    """Return `value` within bounds, as a multiple of 0.05."""
    return round(round(_bounded(value, least, most) / 0.05) * 0.05, 2)


def _rounded(value: float) -> int:
    """Return `value` with two significant digits."""
    digits = max(len(str(int(value))) - 2, 0)
    return int(round(value / 10**digits) * 10**digits)
