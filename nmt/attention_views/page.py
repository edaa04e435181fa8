"""Attention weights as one HTML page that needs nothing else: no server, no network, no other file.

The page itself is `page.html` beside this module, which only makes the data for the page. A corpus is
written by strangers: its text goes into the page as JSON in which no character can end the script element,
and the page makes text of it and never markup.

Weights are bytes, 0 for 0.0 to 255 for 1.0, one string of base64 per layer in the order (H, rows, columns):
ten sentences of 30 tokens are 2 MB for 6 layers of 8 heads. Queries and keys are numbers of two bytes, as a
share of the largest of their layer: 1.5 MB for a sentence of 30 tokens and 6 layers, 512 wide.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmt.attention_views.alignment import Weights
from nmt.attention_views.maps import SentenceMaps
from nmt.data.tokens.tokenizer import Piece
from nmt.pages import page_with

TEMPLATE = Path(__file__).with_name("page.html")


def page(title: str, sentences: Sequence[dict[str, Any]]) -> str:
    """Return the page with the sentences that `page_data` returned."""
    return page_with(TEMPLATE, {"title": title, "sentences": list(sentences)})


def page_data(sentence: SentenceMaps) -> dict[str, Any]:
    """Return one sentence as the page reads it; its "maps" are the kinds of attention of the model."""
    sides = {
        "encoder": (sentence.src, sentence.src, sentence.encoder),
        "decoder": (sentence.tgt, sentence.tgt_in, sentence.decoder),
        "cross": (sentence.tgt, sentence.src, sentence.cross),
    }
    return {
        "line": sentence.line,
        "text": sentence.src_text,
        "maps": {
            kind: {
                "rows": _texts(rows),
                "columns": _texts(columns),
                "layers": [*map(_packed, layers)],
                "factors": [tuple(map(_packed_factor, pair)) for pair in sentence.factors.get(kind, [])],
            }
            for kind, (rows, columns, layers) in sides.items()
            if layers
        },
    }


def _texts(pieces: Sequence[Piece]) -> list[str]:
    return [piece.text for piece in pieces]


def _packed(weights: Weights) -> dict[str, Any]:
    scaled = np.rint(weights.clip(0.0, 1.0) * 255).astype(np.uint8)
    return {"heads": len(weights), "weights": base64.b64encode(scaled.tobytes()).decode()}


def _packed_factor(factor: Weights) -> dict[str, Any]:
    """Return queries or keys (H, positions, C) as little-endian numbers from -32767 to 32767."""
    largest = float(np.abs(factor).max(initial=0.0)) or 1.0
    scaled = np.rint(factor * (32767 / largest)).astype("<i2")
    return {
        "largest": largest,
        "channels": factor.shape[2],
        "values": base64.b64encode(scaled.tobytes()).decode(),
    }
