"""Tokenizers that are ready before the training, of SentencePiece and Hugging Face, given our special ids.

The pieces of a SentencePiece model, or the tokens of a tokenizer.json of the library `tokenizers`, keep their
order and segment text as before. In front of them come PAD, UNK, BOS and EOS; those of the file with these
meanings are left out. What the run needs as one piece besides, tags of languages and symbols, comes behind.
The result is a file of the same format, which the run keeps. What a file is, its content tells.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nmt import extras
from nmt.data.special_ids import EOS_ID, UNK_ID
from nmt.data.tokens.piece_models import HuggingFaceModel, loaded
from nmt.data.tokens.segmenter import PieceType, Segmenter, processor_of
from nmt.data.tokens.tokenizer_training import (
    SPACE,
    SPECIAL_SPELLINGS,
    TokenizerConfig,
    TokenizerKind,
    own_pieces,
    shown_value,
)
from nmt.errors import UserError
from nmt.files import path_of

MEANINGS = (
    ("<pad>", "[PAD]", "<|pad|>"),
    ("<unk>", "[UNK]", "<|unk|>"),
    ("<s>", "[CLS]", "[BOS]", "<bos>", "<|startoftext|>"),
    ("</s>", "[SEP]", "[EOS]", "<eos>", "<|endoftext|>"),
)
"""Names that special tokens of files have, in the order of the special ids."""
NAMES = {name for of_meaning in MEANINGS for name in of_meaning}
MODELS = ("BPE", "Unigram", "WordPiece", "WordLevel")
NEITHER = "is neither a SentencePiece model nor a tokenizer.json of the library tokenizers, or is damaged"
WORD_ENDS = "but they must tell where words begin"
LIBRARY_LACKS = ("sampling_alpha", "case")
"""Keys for which a tokenizer of the library `tokenizers` has no other value than the default."""


def ready_models(cfg: TokenizerConfig, tags: Sequence[str] = ()) -> tuple[bytes, bytes]:
    """Return the models of both sides from `cfg.path` and `cfg.tgt_path`; each of `tags` is one piece.

    Raises:
        UserError: a file is missing or no such tokenizer, or the library is not installed.
    """
    require_library(cfg)
    own = own_pieces(cfg, tags)
    src = _read("path", path_of(cfg.path), own)
    return src, _read("tgt_path", path_of(cfg.tgt_path), own) if cfg.tgt_path else src


def require_library(cfg: TokenizerConfig) -> None:
    """Raise `UserError` when a file of `cfg` is there, and needs a library that is not."""
    for key, file in (("path", cfg.path), ("tgt_path", cfg.tgt_path)):
        if file and path_of(file).is_file() and _is_json(path_of(file).read_bytes()):
            extras.require("tokenizers", f"tokenizer.{key}={file}")


def require_fit(cfg: TokenizerConfig, kinds: Sequence[TokenizerKind | None]) -> None:
    """Raise `UserError` unless the models of `cfg.path` and `cfg.tgt_path` can do what `cfg` asks for.

    None is the kind of a tokenizer of the library `tokenizers`.
    """
    for key, kind in zip(("path", "tgt_path"), kinds, strict=False):
        file = f"tokenizer.{key}={getattr(cfg, key)}"
        if kind is not None:
            try:
                replace(cfg, kind=kind, path="", tgt_path="")  # as one that is trained
            except UserError as error:
                raise UserError(f"{file} is of tokenizer.kind={kind.value}: {error}") from None
            continue
        for lacked in LIBRARY_LACKS:
            value, usual = (shown_value(getattr(of, lacked)) for of in (cfg, TokenizerConfig))
            if value != usual:
                raise UserError(
                    f"tokenizer.{lacked}={value} needs a SentencePiece model, but {file} is a tokenizer of "
                    f"the library tokenizers; set it to {usual}"
                )


def _is_json(content: bytes) -> bool:
    """Return whether the content of a file is an object of JSON; no SentencePiece model begins so."""
    return content.lstrip().startswith(b"{")


def _read(key: str, path: Path, own: Sequence[str]) -> bytes:
    """Return the model of a file, once its library accepts it."""
    try:
        content = path.read_bytes()
        return _of_library(content, own) if _is_json(content) else _of_sentencepiece(content, own)
    except OSError as error:
        raise UserError(f"tokenizer.{key}={path} cannot be read: {error.strerror}") from error
    except UserError as error:
        raise UserError(f"tokenizer.{key}={path} {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise UserError(f"tokenizer.{key}={path} {NEITHER}") from error


def _of_sentencepiece(content: bytes, own: Sequence[str]) -> bytes:
    """Return a SentencePiece model with our special ids, and with each of `own` as a piece.

    Raises:
        UserError: the content is no model, or its pieces do not tell where words begin.
    """
    try:
        segmenter = Segmenter.parse(content)
    except UserError as error:
        raise UserError(NEITHER) from error
    if not all(map(segmenter.proto.HasField, ("trainer_spec", "normalizer_spec"))):  # cut off, say
        raise UserError(NEITHER)
    kinds = [piece.type for piece in segmenter.proto.pieces]
    if PieceType.UNKNOWN not in kinds:
        raise UserError("is a SentencePiece model without a piece for unknown text; train it with an unk_id")
    processor_of(content)
    normalizer = segmenter.proto.normalizer_spec
    if segmenter.proto.trainer_spec.treat_whitespace_as_suffix:
        raise UserError(f"has pieces that tell where words end (treat_whitespace_as_suffix), {WORD_ENDS}")
    if not normalizer.escape_whitespaces:
        raise UserError(f"has pieces with spaces (escape_whitespaces=false), {WORD_ENDS}, by {SPACE}")
    if segmenter.kind is TokenizerKind.word and not normalizer.add_dummy_prefix:
        raise UserError(f"is a model of words without add_dummy_prefix, {WORD_ENDS}, also the first one")
    model = segmenter.renumbered(_pieces(segmenter, own))
    return content if Segmenter.parse(model) == segmenter else model


def _pieces(segmenter: Segmenter, own: Sequence[str]) -> Iterator[Any]:
    """Yield the pieces of a model without the special ones, and those of `own` that it lacks.

    Each of `own` is never split, and one of its pieces where the model has it; a model of words splits none.
    """
    spec, is_word = segmenter.proto.trainer_spec, segmenter.kind is TokenizerKind.word
    kind = PieceType.NORMAL if is_word else PieceType.USER_DEFINED
    missing = dict.fromkeys(SPACE + name if is_word else name for name in own)
    meant = {spec.pad_piece, spec.bos_piece, spec.eos_piece, *NAMES}.difference(missing)
    for piece in segmenter.proto.pieces:
        spelling = piece.piece
        if isinstance(spelling, bytes):  # no UTF-8
            raise UserError(f"is a SentencePiece model with a piece that is no text: {spelling!r}")
        is_special = piece.type == PieceType.UNKNOWN or spelling in SPECIAL_SPELLINGS
        if is_special or (piece.type == PieceType.CONTROL and spelling in meant):
            continue
        is_split = spelling in missing and piece.type != kind
        missing.pop(spelling, None)
        yield PieceType(piece=spelling, score=0.0, type=kind) if is_split else piece
    yield from (PieceType(piece=spelling, score=0.0, type=kind) for spelling in missing)


def _of_library(content: bytes, own: Sequence[str]) -> bytes:
    """Return a tokenizer.json with our special ids, and with each of `own` as a token."""
    model = json.dumps(_renumbered(json.loads(content), own), ensure_ascii=False).encode()
    loaded(content)  # before ids are changed: its words are about the user's file
    HuggingFaceModel(model)
    return model


def _renumbered(file: dict[str, Any], own: Sequence[str]) -> dict[str, Any]:
    """Return the content of a tokenizer.json with our special ids, and with each of `own` as a token behind.

    Raises:
        UserError: the model is of another kind, or spells the ends of words.
    """
    model: dict[str, Any] = dict(file["model"])
    if model.get("type") not in MODELS:
        raise UserError(
            f"has a model of the type {model.get('type')}, but usable are only {', '.join(MODELS)}"
        )
    if model.get("end_of_word_suffix"):
        raise UserError(
            f"has tokens that tell where words end ({model['end_of_word_suffix']}), {WORD_ENDS}, as those of "
            "Metaspace, ByteLevel and WordPiece do"
        )
    is_scored = model["type"] == "Unigram"  # a list of tokens with their scores, else ids by token
    scores: dict[str, float] = dict(model["vocab"]) if is_scored else {}
    tokens = list(scores) if is_scored else sorted(model["vocab"], key=model["vocab"].get)
    added = {token["content"]: token for token in sorted(file["added_tokens"], key=lambda token: token["id"])}
    left_out = {*SPECIAL_SPELLINGS, *(name for name in _meant(added) if name not in own)}
    if is_scored:
        left_out |= set() if model["unk_id"] is None else {tokens[model["unk_id"]]}
        model["unk_id"] = UNK_ID
    else:
        left_out.add(model.get("unk_token") or SPECIAL_SPELLINGS[UNK_ID])
        model["unk_token"] = SPECIAL_SPELLINGS[UNK_ID]
    text = [token for token in dict.fromkeys([*tokens, *added, *own]) if token not in left_out]
    ids = {token: i for i, token in enumerate([*SPECIAL_SPELLINGS, *text])}
    lowest = min(scores.values(), default=0.0)
    model["vocab"] = [[token, scores.get(token, lowest)] for token in ids] if is_scored else ids
    whole = [name for name in dict.fromkeys([*SPECIAL_SPELLINGS, *added, *own]) if name in ids]
    listed = list[dict[str, Any]]()
    for name in whole:
        rule = {} if name in own else added.get(name, {})
        is_special = ids[name] <= EOS_ID or rule.get("special", False)
        listed.append(_ADDED | rule | {"content": name, "id": ids[name], "special": is_special})
    changed = {"model": model, "added_tokens": sorted(listed, key=lambda token: token["id"])}
    return file | changed | dict.fromkeys(("truncation", "padding", "post_processor"))


_ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def _meant(added: dict[str, Any]) -> Iterator[str]:
    """Yield the special tokens of a file that mean what one of ours does."""
    return (name for name, token in added.items() if token["special"] and name in NAMES)
