"""Attention weights as a table for a notebook."""

from __future__ import annotations

import numpy as np

from nmt.attention_views.maps import SentenceMaps
from nmt.attention_views.table import weights_table
from nmt.data.tokens.tokenizer import EOS, Piece


def test_each_weight_is_a_cell_and_text_is_escaped() -> None:
    weights = np.array([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]], np.float32)
    table = weights_table("a < b", weights, ["<b>", "x", "y"], ["u", "v"])
    assert table.count("<td") == 6
    assert 'title="0.75" style="background:rgba(8, 64, 129, 0.75)' in table
    assert "<b>" not in table
    assert "&lt;b&gt;" in table


def test_maps_show_cross_attention_and_say_when_there_is_none() -> None:
    pieces = [Piece(5, "a", "a"), EOS]
    half = np.full((2, 2, 2), 0.5, np.float32)
    maps = SentenceMaps(3, pieces, pieces, [half], [half], [half])
    assert repr(maps) == (
        "SentenceMaps(line 3: 'a' -> 'a', encoder of 1 layers, decoder of 1 layers, cross of 1 layers)"
    )
    assert maps._repr_html_().startswith("<div><strong>target to source, mean of all layers and heads")
    assert "source to itself" in SentenceMaps(3, pieces, pieces, [half])._repr_html_()
    assert "empty" in SentenceMaps(3)._repr_html_()
