"""The config of a training that starts from the model of another run, which it follows.

The model, the tokenizer and the task of that run become overrides of the new training, so that only what
differs need be said; what the user says goes before. Knows configs; opens no model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from nmt.checks import at_least
from nmt.config.spelling import spelled
from nmt.errors import UserError
from nmt.layers.choices import Positions
from nmt.models.configs import ModelConfig, StackConfig, TransformerConfig
from nmt.training.adapting.configs import ADAPTATIONS


class VocabularyUse(Enum):
    """Tokenizer of a training that starts from a model."""

    keep = "keep"
    extend = "extend"
    remap = "remap"


class OptimizerUse(Enum):
    """State in which the optimizer of such a training begins."""

    fresh = "fresh"
    keep = "keep"


OF_WORDS = ("src_embeddings", "tgt_embeddings")
"""Keys of `init` that name vectors of words; all others are about the model of another run."""


@dataclass
class InitConfig:
    """The model that a training starts from; init=RUN is short for init.run=RUN."""

    run: str | None = None
    """Run directory whose model is the start; null: random weights."""
    checkpoint: str = "final"
    """final (the one that results.json is about), best, last, average, or the number of a step."""
    weights: list[str] = field(default_factory=lambda: ["*"])
    """Patterns of the names of weights to take, such as encoder.* and src_embedding.*; others begin anew.
    Without a pattern the tokenizer alone is taken, for a model of any kind and task."""
    encoder_layers: list[int] | None = None
    """Layers of the encoder to take, counted from 1, such as [1,3,5]: the model has no others; null: all."""
    decoder_layers: list[int] | None = None
    """The same for the decoder."""
    vocabulary: VocabularyUse = VocabularyUse.keep
    """keep: the tokenizer of the run; extend: with more pieces behind its own, learnt from the training
    pairs; remap: a new tokenizer, whose pieces begin from those of the run that spell the same."""
    new_pieces: int = 1000
    """Most pieces that extend adds, on each side where they have vocabularies of their own."""
    optimizer: OptimizerUse = OptimizerUse.fresh
    """fresh: step 0 of the schedule; keep: the moments and the step of a checkpoint go on."""
    src_embeddings: str | None = None
    """Text file of word2vec, GloVe or fastText, plain or compressed, from whose vectors the embeddings of
    the source pieces begin that it has, scaled to the size of random ones; null: all begin at random."""
    tgt_embeddings: str | None = None
    """The same for target pieces. A piece whose row is of both sides begins from the file of the source."""

    def __post_init__(self) -> None:
        at_least(self, "init", 1, "new_pieces")
        if self.run is not None and not self.run.strip():
            raise UserError("init.run must name a run directory, but is empty; null starts without one")
        for key in OF_WORDS:
            if self.run is not None and getattr(self, key) is not None:
                raise UserError(
                    f"init.{key} is for a model that begins anew; with init={self.run} leave it out"
                )
        self.run = None if self.run is None else str(Path(self.run))
        if self.optimizer is OptimizerUse.keep and self.layers != (None, None):
            raise UserError(
                "init.optimizer=keep goes on with every weight of the run, but init.encoder_layers or "
                "init.decoder_layers leaves some out; leave them out, or the optimizer is fresh"
            )

    @property
    def layers(self) -> tuple[list[int] | None, list[int] | None]:
        """Those of the encoder and of the decoder to take; None takes all."""
        return self.encoder_layers, self.decoder_layers

    @property
    def is_whole(self) -> bool:
        """Whether all weights are taken."""
        return "*" in self.weights


FREE = ("*dropout*", "layer_drop", "init", "embedding_init")
"""Keys of a model that neither name nor shape a weight, nor say what is computed of them."""
OF_COMPUTATION = (
    "num_heads",
    "decoder_num_heads",
    "encoder_sharing",
    "decoder_sharing",
    "norm_order",
    "norm_eps",
    "positions",
    "max_distance",
    "activation",
    "embedding_scale",
    "prefix",
)
"""Keys of a model that say what is computed of the weights of its layers, and of most values shape none."""
OF_STACKS = {
    "num_heads": {"encoder", "layers"},
    "decoder_num_heads": {"decoder"},
    "encoder_sharing": {"encoder"},
    "decoder_sharing": {"decoder"},
}
"""For those that are of certain layers alone the names of these in the model."""
OF_TEXT = (
    "kind",
    "path",
    "tgt_path",
    "joint",
    "byte_fallback",
    "normalization",
    "lowercase",
    "strip_punctuation",
    "case",
    "symbols",
    "moses_src",
    "moses_tgt",
    "right_to_left",
    "source_factors",
)
"""Keys of a tokenizer on which the ids of a text depend once its pieces are known."""


def kept(model: ModelConfig, layers: tuple[list[int] | None, list[int] | None]) -> ModelConfig:
    """Return the config of the model of a run with the layers alone that `init` takes."""
    if layers == (None, None):
        return model
    try:
        return model.keeping(*layers)
    except UserError as error:
        raise UserError(f"init.{error}") from None


def following(
    stored: dict[str, Any], typed: Sequence[str], *, keeps_tokenizer: bool, is_whole: bool
) -> list[str]:
    """Return overrides for the model, task and tokenizer of a `stored` config, but what is `typed`.

    `typed` are keys and groups that the user sets: a `model` of another choice is followed in no key. What an
    adaptation has added is followed where the model `is_whole`.
    """
    lines = [] if "task" in typed else [f"task={stored['task']}"]
    if "model" not in typed:
        values = dict(stored["model"])
        lines.append(f"model=base_{values.pop('name')}")
        lines += values_of("model", values, typed)
    if is_whole and "adapt" not in typed and not _merges(stored):
        values = dict(stored["adapt"])
        lines.append(f"adapt=base_{values.pop('name')}")
        lines += values_of("adapt", values, typed)
    if keeps_tokenizer:
        own = {} if "tokenizer" not in typed else {"sampling_alpha", "max_sentences"}
        values = {key: value for key, value in stored["tokenizer"].items() if key not in own}
        lines += values_of("tokenizer", values, typed)
    return lines


def _merges(stored: dict[str, Any]) -> bool:
    """Return whether the model of a run is one without an adaptation once it is opened."""
    return ADAPTATIONS[stored["adapt"]["name"]][0].merges


def values_of(part: str, values: dict[str, Any], typed: Sequence[str]) -> Iterator[str]:
    """Yield an override for each of the `values` of a part, but for the keys that are `typed`."""
    for key, value in values.items():
        if f"{part}.{key}" not in typed:
            yield f"{part}.{key}={spelled(value)}"


def contradictions(
    cfg: dict[str, Any], stored: dict[str, Any], *, model: bool, tokenizer: bool
) -> Iterator[str]:
    """Yield a line for each key in which a training cannot differ from the run that it starts from.

    Both are plain configs; `model` and `tokenizer` tell which of the two parts have to agree.
    """
    if cfg["task"] != stored["task"] and model:
        yield f"task={cfg['task']}, but {stored['task']} there"
    if model:
        yield from _differences("model", cfg["model"], stored["model"], without=_free(stored["model"]))
        if not _merges(stored):
            yield from _differences("adapt", cfg["adapt"], stored["adapt"], without=["train"])
    if tokenizer:
        others = [key for key in stored["tokenizer"] if key not in OF_TEXT]
        yield from _differences("tokenizer", cfg["tokenizer"], stored["tokenizer"], without=others)


def other_shapes(cfg: dict[str, Any], stored: dict[str, Any]) -> list[str]:
    """Return a line for each key of both models that shapes weights, where the two plain configs differ."""
    both = _shared_keys(cfg, stored)
    found = list(_differences("model", *both, without=_free(both[0])))
    new, old = ({"source_factors": of["tokenizer"]["source_factors"]} for of in (cfg, stored))
    return [*found, *_differences("tokenizer", new, old, without=())]


def other_computation(new: ModelConfig, old: ModelConfig, stacks: Collection[str]) -> list[str]:
    """Return a line for each key by which weights of the `stacks` of a model compute something else in a new.

    `stacks` are the first parts of their names.
    """
    both = _computation(new), _computation(old)
    others = [key for key in OF_COMPUTATION if any(key not in values for values in both)]
    others += [key for key, of_stacks in OF_STACKS.items() if of_stacks.isdisjoint(stacks)]
    return list(_differences("model", *both, without=others)) if stacks else []


def _computation(model: ModelConfig) -> dict[str, Any]:
    """Return the plain values of `OF_COMPUTATION` in a model, alike where they mean the same."""
    values = {key: getattr(model, key) for key in OF_COMPUTATION if hasattr(model, key)}
    if isinstance(model, StackConfig):
        is_in_use = model.positions in (Positions.relative, Positions.t5)
        values["max_distance"] = model.furthest if is_in_use else None
    if isinstance(model, TransformerConfig):
        values["decoder_num_heads"] = model.decoder_stack.num_heads
        for side, order in (("encoder", model.encoder_order), ("decoder", model.decoder_order)):
            if len(set(order)) == len(order):  # each layer has its own weights, however many there are
                values[f"{side}_sharing"] = None
    return {key: value.name if isinstance(value, Enum) else value for key, value in values.items()}


def _shared_keys(cfg: dict[str, Any], stored: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of the models of two plain configs that both have, but the family."""
    shared = [key for key in stored["model"] if key in cfg["model"] and key != "name"]
    return {key: cfg["model"][key] for key in shared}, {key: stored["model"][key] for key in shared}


def _free(model: dict[str, Any]) -> list[str]:
    """Return the keys of a plain model that neither name nor shape a weight, nor say what is computed."""
    return [key for key in model if any(fnmatch(key, pattern) for pattern in FREE)]


def _differences(
    part: str, new: dict[str, Any], old: dict[str, Any], without: Sequence[str]
) -> Iterator[str]:
    for key in [*old, *(key for key in new if key not in old)]:
        if key not in without and new.get(key) != old.get(key):
            shown = [_shown(values[key]) if key in values else "no such key" for values in (new, old)]
            yield f"{part}.{key}={shown[0]}, but {shown[1]} there"


def _shown(value: object) -> str:
    """Return a value in a message: text as it is."""
    return value if isinstance(value, str) else spelled(value)


def refuse_contradictions(init: InitConfig, plain: dict[str, Any], stored: dict[str, Any]) -> None:
    """Raise `UserError` when a training says otherwise than the run that it starts from; both are plain."""
    keeps = init.vocabulary is not VocabularyUse.remap
    found = list(contradictions(plain, stored, model=init.is_whole, tokenizer=keeps))
    if found:
        lines = "\n  ".join([f"init={init.run} has a model that this training contradicts:", *found])
        of_weights = "tokenizer.source_factors=" if init.is_whole else "model."
        of_pieces = any(line.startswith("tokenizer.") and not line.startswith(of_weights) for line in found)
        remap = "; init.vocabulary=remap takes a new tokenizer" if of_pieces else ""
        part = "; init.weights=[encoder.*] takes a part into another model" if "model." in lines else ""
        adapted = "; what its adapt=... has added goes on without adapt" if "adapt." in lines else ""
        raise UserError(f"{lines}\nleave these keys out, then they follow the run{adapted}{part}{remap}")
