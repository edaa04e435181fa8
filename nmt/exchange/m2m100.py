"""Models of M2M-100 (Fan et al. 2021) and NLLB-200 (NLLB Team 2022), as `transformers` stores them.

They are pre-norm Transformers for many languages: a source begins with the piece of its language, and a
target with that of its own, which search is made to begin with. A run has one source language, and one or
several target languages.

Their sinusoids have other wavelengths than ours and begin behind the number of the padding id, so that they
become learned positions, whose table holds just these values. Names of the layers: `nmt.exchange.imported`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TagSide, TokenizerConfig
from nmt.errors import UserError, suggest
from nmt.exchange.foreign import ForeignFolder
from nmt.exchange.imported import (
    STACK_FIELDS,
    Imported,
    never_predicted,
    numbered,
    stack_config,
    stack_weights,
    tying,
    vocabulary_weights,
    with_tags,
)
from nmt.exchange.pieces import Numbering, renumbered
from nmt.layers.choices import NormOrder, Positions
from nmt.models.configs import TransformerConfig

# fmt: off
LANGUAGES = [
    "af", "am", "ar", "ast", "az", "ba", "be", "bg", "bn", "br", "bs", "ca", "ceb", "cs", "cy", "da", "de",
    "el", "en", "es", "et", "fa", "ff", "fi", "fr", "fy", "ga", "gd", "gl", "gu", "ha", "he", "hi", "hr",
    "ht", "hu", "hy", "id", "ig", "ilo", "is", "it", "ja", "jv", "ka", "kk", "km", "kn", "ko", "lb", "lg",
    "ln", "lo", "lt", "lv", "mg", "mk", "ml", "mn", "mr", "ms", "my", "ne", "nl", "no", "ns", "oc", "or",
    "pa", "pl", "ps", "pt", "ro", "ru", "sd", "si", "sk", "sl", "so", "sq", "sr", "ss", "su", "sv", "sw",
    "ta", "th", "tl", "tn", "tr", "uk", "ur", "uz", "vi", "wo", "xh", "yi", "yo", "zh", "zu",
]
# fmt: on
"""Languages of M2M-100 in the order of their rows, for folders that do not name them."""
KNOWN_CODES = "m2m100"
"""What transformers calls these languages."""
LEAST_WIDTH = 4
"""Channels with which there are two wavelengths."""
FIELDS = STACK_FIELDS | {"max_position_embeddings": int}


def read(folder: ForeignFolder, src: str, targets: Sequence[str]) -> Imported:
    """Return the model of a folder whose config.json has the model_type m2m_100, for one source language.

    Raises:
        UserError: a file is missing or damaged, or the model does not know a language.
    """
    settings = folder.settings(FIELDS)
    vocabulary, codes = _vocabulary(folder)
    spoken = {tgt: _tag(tgt, codes, "tgt") for tgt in targets}
    segmenter = folder.segmenter("sentencepiece.bpe.model")
    tagged = len(spoken) > 1
    pieces = with_tags(vocabulary | codes, spoken) if tagged else vocabulary | codes
    numbers = numbered(settings, pieces, [segmenter])
    model = renumbered(segmenter, numbers.spellings)
    cfg_of_pieces = TokenizerConfig(
        kind=segmenter.kind,
        vocab_size=len(numbers.rows),
        src_tag=_tag(src, codes, "src"),
        tgt_tag="" if tagged else spoken[targets[0]],
        tag_side=TagSide.target if tagged else TagSide.source,
    )
    tokenizer = Tokenizer(cfg_of_pieces, model, model)
    cfg = stack_config(
        settings,
        norm_order=NormOrder.pre,
        positions=Positions.learned,
        max_positions=settings["max_position_embeddings"],
        embedding_scale=settings.get("scale_embedding") is not False,
        tying=tying(settings),
    )
    remarks = [
        f"it translates from {src} into {', '.join(targets)}; for another source import the folder again"
    ]
    positions = sinusoids(settings["max_position_embeddings"], cfg.d_model, settings["pad_token_id"] + 1)
    weights = dict(_weights(folder.weights(), cfg, numbers, positions))
    return Imported(cfg, tokenizer, weights, numbers, remarks, tagged)


def _vocabulary(folder: ForeignFolder) -> tuple[dict[str, int], dict[str, int]]:
    """Return the rows of the pieces, and those of the languages, which are among the added tokens."""
    if (folder.path / "vocab.json").is_file():
        vocabulary = folder.vocabulary("vocab.json")
        return vocabulary, _languages(folder, len(vocabulary))
    fast = folder.json("tokenizer.json")
    try:
        added = {str(token["content"]): int(token["id"]) for token in fast["added_tokens"]}
        pieces = fast["model"]["vocab"]
        vocabulary = (
            dict(pieces) if isinstance(pieces, dict) else {str(p): i for i, (p, _) in enumerate(pieces)}
        )
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise UserError(f"{folder.path / 'tokenizer.json'} has no vocabulary: {error!r}") from error
    return folder.numbered(vocabulary | added, "tokenizer.json"), {
        name: row for name, row in added.items() if not name.startswith("<")
    }


def _languages(folder: ForeignFolder, first: int) -> dict[str, int]:
    """Return the rows of the pieces of languages: those of a file, or in their order from `first` on."""
    names, others = "special_tokens_map.json", "tokenizer_config.json"
    special, settings = (
        folder.json(name) if (folder.path / name).is_file() else {} for name in (names, others)
    )
    try:
        added = {str(x["content"]): int(row) for row, x in settings.get("added_tokens_decoder", {}).items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder.path / others} has no tokens in added_tokens_decoder: {error!r}") from error
    if known := {name: row for name, row in folder.numbered(added, others).items() if _is_language(name)}:
        return known
    listed = special.get("additional_special_tokens") or []
    if not isinstance(listed, list):
        raise UserError(f"{folder.path / names} must hold a list of additional_special_tokens")
    spelt = [str(token.get("content") if isinstance(token, dict) else token) for token in listed]
    codes = settings.get("language_codes", KNOWN_CODES)
    if not (found := list(filter(_is_language, spelt))) and codes != KNOWN_CODES:
        raise UserError(
            f"{folder.path / others} has language_codes={codes!r}, whose rows are known from {names} or from "
            f"added_tokens_decoder alone; those of {KNOWN_CODES!r} are known without them"
        )
    return {name: first + i for i, name in enumerate(found or [f"__{code}__" for code in LANGUAGES])}


def _is_language(piece: str) -> bool:
    return piece.startswith("__") and piece.endswith("__")


def _tag(language: str, codes: Mapping[str, int], key: str) -> str:
    """Return the piece of a language: en is __en__ in M2M-100."""
    for spelling in (language, f"__{language}__"):
        if spelling in codes:
            return spelling
    known = [code.strip("_") for code in codes]
    raise UserError(
        f"{key}={language}: the model does not know it{suggest(language, known)}; it knows {', '.join(known)}"
    )


def sinusoids(length: int, d_model: int, first: int) -> Tensor:
    """Return (length, D): the sines and then the cosines of tensor2tensor, from position `first` on."""
    if d_model < LEAST_WIDTH:
        raise UserError(f"config.json: d_model must be at least {LEAST_WIDTH}, but is {d_model}")
    half = d_model // 2
    wavelengths = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
    angles = torch.arange(first, first + length).float()[:, None] * wavelengths
    return torch.cat([angles.sin(), angles.cos(), torch.zeros(length, d_model % 2)], dim=1)


def _weights(
    found: Mapping[str, Tensor], cfg: TransformerConfig, numbers: Numbering, positions: Tensor
) -> Iterator[tuple[str, Tensor]]:
    order = torch.arange(cfg.d_model)
    yield from stack_weights(found, cfg, order)
    yield from vocabulary_weights(found, cfg, numbers, numbers, order)
    for side in ("src", "tgt"):
        yield f"{side}_embedding.positions.table.weight", positions
    yield "output.bias", never_predicted(torch.zeros(len(numbers.rows)), numbers)
