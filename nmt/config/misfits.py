"""Checks across components: settings that no component can see by itself to go together.

Each check yields one sentence for each misfit, with the keys, the values and the way out. Knows dataclasses;
knows no file and no command line.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, cast

from nmt.config.explain import has_no_schema
from nmt.config.registry import VARIANTS
from nmt.config.roots import (
    LENGTHS,
    Task,
    TrainConfig,
    decay_follows_limit,
    epoch_size,
    lengths_with_units,
    search_of_validations,
    search_with,
    tried_values,
)
from nmt.config.spelling import spelled
from nmt.config.starting import OF_WORDS, InitConfig, OptimizerUse, VocabularyUse
from nmt.data import filter_table
from nmt.data.configs import DataConfig, directions
from nmt.data.filter_table import DuplicatesConfig
from nmt.data.modifiers import MATCH_MARK, TERM_MARKS, ModifierConfig
from nmt.data.parallel_text import Split
from nmt.data.reading.files import missing_splits
from nmt.data.reading.sources import set_configs
from nmt.data.tokens.tokenizer_training import TagSide, TokenizerKind, prepare_lines
from nmt.decoding.configs import DecodingConfig, SamplingConfig
from nmt.errors import Problems, suggest
from nmt.metrics.scoring import MACRO, SCORERS, of_another_task, over_languages
from nmt.models.configs import TransformerConfig
from nmt.runtime_config import Parallel
from nmt.training.adapting.configs import FewWeightsConfig
from nmt.training.lengths import are_counted, in_steps
from nmt.training.objectives.configs import (
    OBJECTIVES,
    DistillationConfig,
    GuidedAlignmentConfig,
    MinimumRiskConfig,
)
from nmt.training.optimizers.optimizer_configs import AdafactorConfig, MuonConfig
from nmt.training.optimizers.schedule_configs import ConstantConfig, DecayConfig
from nmt.training.trainer_config import AUTO


def check(cfg: TrainConfig) -> None:
    """Raise `UserError` for combinations that no component can see by itself, all of them in one message."""
    Problems(
        [
            *_misfits_of_parts(cfg),
            *_misfits_of_training(cfg),
            *_misfits_of_start(cfg),
            *_misfits_of_adaptation(cfg),
            *_misfits_of_metrics(cfg),
        ]
    ).refuse()


def _misfits_of_parts(cfg: TrainConfig) -> Iterator[str]:
    for part, (name_field, classes) in VARIANTS.items():
        chosen = getattr(cfg, part)
        if type(chosen) is not classes.get(getattr(chosen, name_field)):
            yield has_no_schema(part)
    if cfg.model.shares_vocabulary and not cfg.tokenizer.joint and not cfg.tokenizer.labels:
        yield (
            f"model.name={cfg.model.name} shares one matrix between source and target, which needs "
            f"tokenizer.joint=true; set that{', or model.tying=tgt_output' if cfg.model.needs_source else ''}"
        )
    for language, tag in cfg.data.tags.items():
        if cfg.tokenizer.strip_punctuation and prepare_lines(cfg.tokenizer, [tag])[0].lower() != tag.lower():
            yield (
                f"tokenizer.strip_punctuation=true takes the tag {tag} of data.target_tags=true apart; "
                f"name the language without punctuation, not {language!r}"
            )
    yield from _misfits_of_symbols(cfg)
    yield from _misfits_of_modifiers(cfg)
    yield from _misfits_of_sets(cfg)
    yield from _misfits_of_sides(cfg)
    yield from _misfits_of_task(cfg)
    yield from _misfits_of_validations(cfg)
    longest = cfg.model.longest_text if cfg.task is Task.language_model else cfg.model.longest
    if longest is not None and cfg.data.max_tokens > longest:
        yield (
            f"data.max_tokens must not exceed {longest}, which is what model.max_positions leaves with "
            f"learned positions, but is {cfg.data.max_tokens}; lower the one or raise the other"
        )
    for split in missing_splits(cfg.data):
        other = {
            Split.validation: " to some hundred pairs or more that you take out of those to train on",
            Split.test: ", or data.scored_split=validation to score that one",
        }.get(split, "")
        yield f"{cfg.data.key(split)} is not set, but the {split.value} split is needed; set it{other}"


def _misfits_of_symbols(cfg: TrainConfig) -> Iterator[str]:
    """Yield what takes apart that the data puts into sources; tags of languages are looked at before."""
    for name, tag in cfg.data.origin_tags.items():
        if tag in cfg.data.marks:
            yield f"data.corpora.{name}.tag is {tag} in sources, as a mark of theirs is; choose another word"
    symbols = [one for one in cfg.data.symbols if one not in cfg.data.tags.values()]
    for symbol in symbols if cfg.tokenizer.strip_punctuation else ():
        yield (
            f"tokenizer.strip_punctuation=true takes {symbol} apart, which data.context, data.augment or "
            "data.corpora puts into sources; leave out one of the two"
        )
    if MATCH_MARK in symbols and (cfg.data.has_labels or cfg.data.streaming):
        what = "labels have none" if cfg.data.has_labels else "a stream (data.streaming=true) is not searched"
        yield f"data.augment has matches, translations of similar sources, but {what}; leave matches out"
    marks = [one for one in (*TERM_MARKS, MATCH_MARK) if one in symbols]
    if marks and not cfg.tokenizer.joint and not cfg.tokenizer.byte_fallback:
        yield (
            f"tokenizer.joint=false has no pieces for text of the target language in sources, which "
            f"{' and '.join(marks)} of data.augment offer; set tokenizer.joint=true"
        )
    if marks and cfg.tokenizer.kind is TokenizerKind.word:
        yield (
            f"tokenizer.kind=word has no words for the marks {' and '.join(marks)} of data.augment; choose "
            "another, such as tokenizer=bpe"
        )


def _misfits_of_modifiers(cfg: TrainConfig) -> Iterator[str]:
    """Yield where modifiers of a corpus follow each other in an order that spoils what they do."""
    found = list[str]()
    for name in cfg.data.parts(Split.train):
        for one, other in itertools.pairwise(cfg.data.modifiers_of(name)):
            both = f"{other.key_prefix} ({other.name}) is behind {one.key_prefix} ({one.name})"
            if other.is_first:
                found.append(f"{both}, which changes the source that it looks up; put {other.name} first")
            if one.is_last:
                found.append(
                    f"{both}, whose {one.name} it would change; put {one.name} last{_own(one, other)}"
                )
    yield from dict.fromkeys(found)


def _own(one: ModifierConfig, other: ModifierConfig) -> str:
    """Return where a modifier of all corpora is last that is before those of one corpus."""
    own, rest = other.key_prefix.rpartition("[")[0], one.key_prefix.rpartition("[")[0]
    return "" if own == rest else f": in {own}, and in that of each other corpus"


def _misfits_of_sets(cfg: TrainConfig) -> Iterator[str]:
    """Yield what sets put into sources that the training does not."""
    problems = Problems()
    for name, one in set_configs(cfg.sets, cfg.data).items():
        with problems.gathered():
            one.require_known(cfg.data)
        if cfg.task is Task.translation and one.has_labels:
            yield f"sets.{name} has labels, and the training has translations; choose another name=... there"
        other = unasked(cfg.data, one.languages) if cfg.data.parts(Split.train) else []
        if cfg.task is Task.translation and other and not one.has_labels:
            yield (
                f"sets.{name} is {directions(other)}, but the training is {directions(cfg.data.languages)}; "
                f"set sets.{name}.src and sets.{name}.tgt to these, or leave them out"
            )
    yield from problems


def unasked(data: DataConfig, languages: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the directions that no training corpus has, and no tag of a target language asks for."""
    known = {(part.src, part.tgt) for part in data.parts(Split.train).values()}
    return [pair for pair in languages if pair not in known and pair[1] not in data.tags]


def way_to_tags(data: DataConfig) -> str:
    """Return how sources of `data` get the tag of their target language."""
    if data.is_mixture:
        return "set data.target_tags=true"
    return (
        f'set data=mixture data.target_tags=true "data.corpora={{NAME: {{name: {data.name}, src: {data.src}, '
        f'tgt: {data.tgt}, ...}}}}", with the other keys of data.* there'
    )


def _misfits_of_sides(cfg: TrainConfig) -> Iterator[str]:
    if cfg.tokenizer.tag_side is not TagSide.source and not cfg.data.tags:
        way_out = way_to_tags(cfg.data) if cfg.init.run else "set tokenizer.tag_side=source"
        yield (
            f"tokenizer.tag_side={cfg.tokenizer.tag_side.value} is for the tags of data.target_tags=true, "
            f"but there are none; {way_out}"
        )
    if cfg.tokenizer.source_factors and not cfg.model.needs_source:
        yield (
            f"tokenizer.source_factors needs a model with an encoder, but model.name={cfg.model.name} has "
            "one matrix for both sides; choose model=transformer, or set it to []"
        )
    if cfg.data.has_weights and not cfg.objective.heeds_weights:
        heeding = [name for name, (kind, _) in OBJECTIVES.items() if kind().heeds_weights]
        yield (
            f"objective={cfg.objective.name} knows no weights of pairs, but the data has some (weights or "
            f"loss_weight); leave them out, or choose objective={' or '.join(heeding)}"
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


def _misfits_of_validations(cfg: TrainConfig) -> Iterator[str]:
    for language in cfg.data.tags:
        if f"into_{language}" in cfg.sets:
            yield f"sets.into_{language} has the name of the scores into {language}; give it another"
    given = {"validation_decoding": cfg.validation_decoding, "num_validation_pairs": cfg.num_validation_pairs}
    if cfg.task is Task.language_model and (keys := [key for key, value in given.items() if value]):
        yield f"{' and '.join(keys)} are for translations, and task=language_model has none; leave them out"
        return
    problems = Problems()
    with problems.gathered():
        search = search_of_validations(cfg)
        if search != cfg.decoding:
            problems.extend(_misfits_of_search(cfg, search, "validation_decoding"))
    with problems.gathered():
        for values in filter(None, tried_values(cfg)):
            found = _misfits_of_search(cfg, search_with(cfg.decoding, values), "tuned_decoding")
            problems.extend(one for one in found if one not in problems)
    yield from problems


def _misfits_of_search(cfg: TrainConfig, search: DecodingConfig, part: str) -> Iterator[str]:
    if getattr(search, "coverage_penalty", 0.0) and not cfg.model.attends_to_source:
        yield (
            f"{part}.coverage_penalty needs a model that attends to the source, but "
            f"model.name={cfg.model.name} has no attention; leave it out"
        )
    for key in search.narrowed_by if cfg.task is not Task.translation else ():
        yield f"{part}.{key} is for task=translation; leave it out"
    if cfg.task is Task.language_model and isinstance(search, SamplingConfig):  # which continues text to show
        for key in ("min_length", "min_length_ratio", "avoid", "n_best"):
            if (value := getattr(search, key)) != getattr(SamplingConfig(), key):
                yield f"{part}.{key}={value} is for task=translation; leave it out"


def _misfits_of_task(cfg: TrainConfig) -> Iterator[str]:
    yield from _misfits_of_labels(cfg)
    if cfg.task is Task.language_model and cfg.model.needs_source:
        yield (
            f"task=language_model needs a model without a source, but model.name={cfg.model.name} has an "
            "encoder; choose model=gpt"
        )
    yield from _misfits_of_search(cfg, cfg.decoding, "decoding")
    if cfg.task is Task.language_model and cfg.tokenizer.sampling_alpha:
        yield "tokenizer.sampling_alpha is for task=translation; set it to 0"
    if cfg.task is Task.language_model and any(
        part.filters for part in [cfg.data, *cfg.data.parts(Split.train).values()]
    ):
        yield "data.filters is for pairs; with task=language_model set it to []"
    for row in filter_table.parsed("data.filters", cfg.data.filters):
        if isinstance(row, DuplicatesConfig) and row.earlier and not cfg.data.is_mixture:
            yield f"{row.key_prefix}.earlier is for the corpora of data=mixture; leave it out"
    for part in [cfg.data, *cfg.data.parts(Split.train).values()] if cfg.task is not Task.translation else ():
        if part.fixers and (part is cfg.data or not cfg.data.fixers):  # which its corpora have, too
            key = f"{part.key_prefix}.fixers"
            yield f"{key} is for pairs to translate; with task={cfg.task.value} set it to []"
            break
    if cfg.task is Task.language_model and cfg.data.has_weights:
        yield "data.weights is for task=translation; with task=language_model set it to null"
    if cfg.task is Task.language_model and cfg.data.context:
        yield (
            f"data.context={cfg.data.context} is for task=translation: a language model reads its text in "
            "order; set data.context=0 data.context_target=false"
        )
    if cfg.task is not Task.translation and cfg.data.domains:
        yield "data.corpora.NAME.domain is for task=translation; leave it out"
    if cfg.task is Task.language_model and cfg.data.is_augmented:
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
    if cfg.objective.needs_attention and isinstance(cfg.model, TransformerConfig) and cfg.model.layer_drop:
        yield (
            f"objective={cfg.objective.name} teaches a layer in every update, but model.layer_drop="
            f"{cfg.model.layer_drop:g} leaves layers out; set it to 0"
        )
    names_alignments = isinstance(cfg.objective, GuidedAlignmentConfig) and cfg.objective.alignments
    if names_alignments and (len(cfg.data.parts(Split.train)) != 1 or cfg.data.streaming):
        yield (
            "objective.alignments names the lines of one corpus that is read before the training, but the "
            "training data is a mixture or a stream; set objective.alignments=null to estimate alignments"
        )
    if names_alignments and cfg.data.context:
        yield (
            "objective.alignments counts the words of each pair alone, but data.context="
            f"{cfg.data.context} puts sentences before them; leave out one of the two, or set "
            "objective.alignments=null to estimate alignments"
        )
    if isinstance(cfg.objective, MinimumRiskConfig) and cfg.objective.metric not in SCORERS:
        yield (
            f"objective.metric must be one of {', '.join(SCORERS)}, which score sentences, but is "
            f"{cfg.objective.metric!r}{suggest(cfg.objective.metric, SCORERS)}"
        )
    if cfg.model.learns_source and isinstance(cfg.objective, DistillationConfig | MinimumRiskConfig):
        yield (
            f"objective={cfg.objective.name} is about targets behind their sources, but model.loss_on=both "
            "makes one text of a pair; set model.loss_on=target"
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
    if cfg.data.num_stages > 1 and cfg.trainer.max_epochs is not None:
        yield (
            f"trainer.max_epochs={cfg.trainer.max_epochs} counts whole passes over the training split, but "
            "data.stages end some of them early; set trainer.max_epochs=null, and trainer.max_steps"
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
        average = "" if cfg.optimizer.averages else "trainer.ema_decay=0.999, or "
        yield (
            "objective.teacher=ema is the moving average of the weights, but trainer.ema_decay is 0; "
            f"set {average}objective.teacher=self"
        )
    if cfg.objective.needs_average and cfg.runtime.parallel is Parallel.fsdp:
        yield (
            "objective.teacher=ema needs all averaged weights in each process, but runtime.parallel=fsdp "
            "splits them; set runtime.parallel=ddp, or objective.teacher=self"
        )
    yield from _misfits_of_objective(cfg)
    yield from _misfits_of_decay(cfg)


def _misfits_of_optimizer(cfg: TrainConfig) -> Iterator[str]:
    if isinstance(cfg.optimizer, MuonConfig) and not cfg.model.has_matrices:
        yield (
            f"optimizer={cfg.optimizer.name} is for plain matrices besides the vocabulary, but "
            f"model.name={cfg.model.name} has none; choose optimizer=adam or optimizer=adamw"
        )
    if isinstance(cfg.optimizer, MuonConfig | AdafactorConfig) and cfg.runtime.parallel is Parallel.fsdp:
        yield (
            f"optimizer={cfg.optimizer.name} needs whole matrices, but runtime.parallel=fsdp splits them; "
            "set runtime.parallel=ddp, or optimizer=adamw"
        )
    if cfg.optimizer.averages and cfg.trainer.ema_decay:
        teacher = " and objective.teacher=self" if cfg.objective.needs_average else ""
        yield (
            f"optimizer={cfg.optimizer.name} averages the weights itself, but trainer.ema_decay is "
            f"{cfg.trainer.ema_decay:g}; set it to 0{teacher}"
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


def _misfits_of_start(cfg: TrainConfig) -> Iterator[str]:
    usual = InitConfig()
    for field in dataclasses.fields(InitConfig) if cfg.init.run is None else ():
        value = getattr(cfg.init, field.name)
        if field.name not in OF_WORDS and value != getattr(usual, field.name):
            key = f"init.{field.name}"
            yield (
                f"{key}={spelled(value)} is about the model of another run, but there is none; name it with "
                f"init=RUN, or leave {key} out"
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
    if cfg.task is not Task.language_model:
        yield from of_another_task(cfg.metrics, cfg.task.value, of_labels=cfg.task is Task.classification)
    if best == "loss":
        return
    if cfg.task is Task.language_model:
        yield f"trainer.best_metric={best} scores translations; with task=language_model set it to loss"
    elif best in MACRO and len(cfg.data.tags) < 2:
        plain = MACRO[best]
        also = "" if plain in cfg.metrics else f" metrics=[{','.join([*cfg.metrics, plain])}]"
        yield (
            f"trainer.best_metric={best} is a mean over target languages, but data.target_tags tells no two "
            f"apart; set trainer.best_metric={plain}{also}"
        )
    elif best not in [*cfg.metrics, *over_languages(cfg.metrics)]:
        near = suggest(best, [*cfg.metrics, "loss", "auto"])
        yield (
            f"trainer.best_metric={best} is not computed: metrics is [{', '.join(cfg.metrics)}]; "
            f"set trainer.best_metric to one of them or to loss{near}"
        )


def in_updates(cfg: TrainConfig) -> TrainConfig:
    """Return `cfg` with all lengths in updates; raise `UserError` when they then contradict each other."""
    if not lengths_with_units(cfg):
        return cfg
    counted: dict[str, Any] = {part: in_steps(part, getattr(cfg, part), epoch_size(cfg)) for part in LENGTHS}
    found = dataclasses.replace(cfg, **counted)
    check(found)
    return found
