"""What several formats need: refusals of models that they cannot hold, ties, and tables of positions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nmt.config.roots import Task
from nmt.config.stored import to_plain
from nmt.decoding.configs import SPLITTING, BeamConfig, DecodingConfig, LengthPenalty
from nmt.errors import Problems, UserError
from nmt.exchange.configs import ExportConfig, Format
from nmt.files import EXPORT_RECORD, NUMBER, read_json
from nmt.layers.positions import LearnedPositions
from nmt.models.configs import TransformerConfig
from nmt.models.stack import Embedding
from nmt.runs.opened import Run
from nmt.training.checkpoint import memory_of

SOURCE, TARGET = "source.spm", "target.spm"
"""Names of the SentencePiece models in every folder."""
ANY_MODEL = "format=safetensors holds any model"
SCORES = {
    **dict.fromkeys(("validation", "test"), dict[str, NUMBER] | None),
    "signatures": dict[str, str] | None,
}
"""Fields of export.json that are scores of the run that the model is from, with their types."""


def recorded_scores(run: Run) -> dict[str, Any] | None:
    """Return the scores of the final weights by split, and signatures; None where no training has ended.

    Those of a model that was exported are of the run that it is from.
    """
    file = run.directory.path / EXPORT_RECORD
    found = run.directory.results() or (read_json(file, SCORES) if file.is_file() else {})
    return {key: found[key] for key in SCORES if key in found} if "signatures" in found else None


def transformer_of(run: Run, cfg: ExportConfig) -> TransformerConfig:
    """Return the config of the model if it is an encoder-decoder Transformer; else raise `UserError`."""
    model = run.cfg.model
    if isinstance(model, TransformerConfig) and run.cfg.task is Task.translation:
        if not run.cfg.adapt.merges:
            raise UserError(
                f"format={cfg.format.value} holds no adapt={run.cfg.adapt.name}, which {cfg.run} was trained "
                f"with and which no weight of the model can take in, unlike adapt=lora; {ANY_MODEL}"
            )
        return model
    task = "" if run.cfg.task is Task.translation else f" and task={run.cfg.task.value}"
    raise UserError(
        f"format={cfg.format.value} holds encoder-decoder Transformers (model.name=transformer) that "
        f"translate, but {cfg.run} has model.name={model.name}{task}; {ANY_MODEL}"
    )


def misfits(part: object, prefix: str, held: Mapping[str, Collection[Any]], name: str) -> list[str]:
    """Return a phrase for each key of the config `part` whose value is not among those `held` by `name`."""
    return [
        f"{prefix}.{key} must be {_listed(values)} for {name}, but is {shown(getattr(part, key))}"
        for key, values in held.items()
        if getattr(part, key) not in values
    ]


def refuse(problems: list[str], way_out: str) -> None:
    """Raise one `UserError` with all problems, if there are any, each followed by the way out."""
    Problems([f"{problem}; {way_out}" for problem in problems]).refuse()


def _listed(values: Collection[Any]) -> str:
    return " or ".join(shown(value) for value in values)


def shown(value: Any) -> str:
    """Return a value as a command line has it."""
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value) or "''"


def library(name: str, target: Format) -> ModuleType:
    """Import the library of a format; raise `UserError` if it is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UserError(
            f"format={target.value} needs the package {name}, which is not installed: "
            "pip install 'nmt[export]'"
        ) from error


def untied(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each tensor under the first of its names, and further names with the first.

    Names are of one tensor where they share memory, which a copy to another device would part.
    """
    first: dict[object, str] = {}
    kept, tied = dict[str, Tensor](), dict[str, str]()
    for name, tensor in weights.items():
        owner = first.setdefault(memory_of(tensor), name)
        if owner == name:
            kept[name] = tensor
        else:
            tied[name] = owner
    return kept, tied


def position_table(embedding: Embedding, num_positions: int) -> Tensor:
    """Return (L, D), what is added to embeddings: what was trained, else `num_positions` rows."""
    positions = embedding.positions
    if positions is None:
        return torch.zeros(num_positions, embedding.tokens.embedding_dim)
    if isinstance(positions, LearnedPositions):
        return positions.rows
    return positions(num_positions)


CARRIED = ("beam_size", "length_penalty", "length_penalty_alpha", "max_length_ratio", "max_length_offset")
"""Keys of a search that other programs are told of."""
WITHOUT_EFFECT = ("n_best", "batch_tokens", "cuda_graphs", "precision")
"""Keys that make no other translation of a line the best, but for rounding."""
OF_LINES = ("max_source_tokens", *SPLITTING)
"""Keys about long lines, which a folder for other programs takes whole up to its own limit."""


def lost_settings(search: DecodingConfig) -> list[str]:
    """Return the settings of a search, as KEY=VALUE, that other programs do without."""
    if not isinstance(search, BeamConfig):
        return [f"decoding.strategy={search.strategy}"]
    default, own = to_plain(BeamConfig), to_plain(search)
    told = {*CARRIED, *WITHOUT_EFFECT, *OF_LINES}
    return [
        f"decoding.{key}={shown(own[key])}" for key in default if key not in told and own[key] != default[key]
    ]


def beam_search_of(search: DecodingConfig) -> tuple[int, float]:
    """Return beam size and exponent of the length, for programs that divide scores by the length ** exponent.

    Sampling, and other strategies that those programs have not, become the default beam search. With one
    beam no score is compared with another, and the exponent is 1.
    """
    beam = search if isinstance(search, BeamConfig) else BeamConfig()
    if beam.beam_size == 1:
        return 1, 1.0
    return beam.beam_size, 0.0 if beam.length_penalty is LengthPenalty.none else beam.length_penalty_alpha
