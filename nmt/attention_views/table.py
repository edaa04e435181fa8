"""Attention weights as a small table in HTML without a script, for a notebook.

A corpus is written by strangers: every text is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nmt.attention_views.alignment import Weights

COLOUR = "8, 64, 129"
"""Red, green and blue of a weight of 1."""


def weights_table(title: str, weights: Weights, src: Sequence[str], tgt: Sequence[str]) -> str:
    """Return weights (T, S) as coloured cells, source tokens across, target tokens down."""
    style = 'style="writing-mode:vertical-rl;transform:rotate(180deg);text-align:left;font-weight:normal"'
    head = "".join(f"<th {style}>{escape(token)}</th>" for token in src)
    lines = "".join(
        f'<tr><th style="text-align:right;font-weight:normal">{escape(token)}</th>'
        f"{''.join(map(_cell, row))}</tr>"
        for token, row in zip(tgt, weights.tolist(), strict=True)
    )
    return f"<div><strong>{escape(title)}</strong><table><tr><th></th>{head}</tr>{lines}</table></div>"


def _cell(weight: float) -> str:
    return f'<td title="{weight:.2f}" style="background:rgba({COLOUR}, {weight:.2f});min-width:1.2em"></td>'
