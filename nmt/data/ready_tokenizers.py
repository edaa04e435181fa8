"""Tokenizers that are ready before the training: files of the library `tokenizers`, given our special ids.

The tokens of a tokenizer.json keep their order and segment text as before. In front of them come PAD, UNK,
BOS and EOS; the tokens of the file with these meanings are left out. What the run needs as one token besides,
tags of languages and symbols, comes behind. The result is a tokenizer.json, too, which the run keeps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nmt import extras
from nmt.data.piece_models import HuggingFaceModel, loaded
from nmt.data.special_ids import EOS_ID, UNK_ID
from nmt.data.tokenizer_training import SPECIAL_SPELLINGS, TokenizerConfig, own_pieces
from nmt.errors import UserError
from nmt.files import path_of

MEANINGS = (
    ("<pad>", "[PAD]", "<|pad|>"),
    ("<unk>", "[UNK]", "<|unk|>"),
    ("<s>", "[CLS]", "[BOS]", "<bos>", "<|startoftext|>"),
    ("</s>", "[SEP]", "[EOS]", "<eos>", "<|endoftext|>"),
)
"""Names that special tokens of files have, in the order of the special ids."""
MODELS = ("BPE", "Unigram", "WordPiece", "WordLevel")


def ready_models(cfg: TokenizerConfig, tags: Sequence[str] = ()) -> tuple[bytes, bytes]:
    """Return the models of both sides from `cfg.path` and `cfg.tgt_path`; each of `tags` is one token.

    Raises:
        UserError: a file is missing or no such tokenizer, or the library is not installed.
    """
    require_library(cfg)
    own = own_pieces(cfg, tags)
    src = _read("path", path_of(cfg.path), own)
    return src, _read("tgt_path", path_of(cfg.tgt_path), own) if cfg.tgt_path else src


def require_library(cfg: TokenizerConfig) -> None:
    """Raise `UserError` when `cfg.path` needs a library that is not there."""
    if cfg.path:
        extras.require("tokenizers", f"tokenizer.path={cfg.path}")


def _read(key: str, path: Path, own: Sequence[str]) -> bytes:
    """Return the model of a file, once the library accepts it."""
    try:
        content = path.read_bytes()
        model = json.dumps(_renumbered(json.loads(content), own), ensure_ascii=False).encode()
        loaded(content)  # before ids are changed: its words are about the user's file
        HuggingFaceModel(model)
    except OSError as error:
        raise UserError(f"tokenizer.{key}={path} cannot be read: {error.strerror}") from error
    except UserError as error:
        raise UserError(f"tokenizer.{key}={path} {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise UserError(
            f"tokenizer.{key}={path} is no tokenizer.json of the library tokenizers; a SentencePiece model "
            "is trained by the run itself, see tokenizer=unigram"
        ) from error
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
            f"has tokens that tell where words end ({model['end_of_word_suffix']}), but they must tell where "
            "words begin, as those of Metaspace, ByteLevel and WordPiece do"
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
    rules = ({} if name in own else added.get(name, {}) for name in whole)
    listed = [
        _ADDED | rule | {"content": name, "id": ids[name], "special": ids[name] <= EOS_ID}
        for name, rule in zip(whole, rules, strict=True)
    ]
    changed = {"model": model, "added_tokens": sorted(listed, key=lambda token: token["id"])}
    return file | changed | dict.fromkeys(("truncation", "padding", "post_processor"))


_ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def _meant(added: dict[str, Any]) -> Iterator[str]:
    """Yield the special tokens of a file that mean what one of ours does."""
    names = {name for of_meaning in MEANINGS for name in of_meaning}
    return (name for name, token in added.items() if token["special"] and name in names)
