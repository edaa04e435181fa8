"""Images: of the right size, whatever the tokens are, and dark where the weights are."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from nmt.attention_views import heatmap
from nmt.attention_views.alignment import Weights

LETTERS = list("abcdefghijklmnopqrstuvwxyz")


def weights(T: int, S: int) -> Weights:
    return np.eye(T, S, dtype=np.float32)


def test_a_png_is_as_large_as_its_cells_and_labels_need() -> None:
    file = heatmap.png([("layer 1", weights(5, 20))], LETTERS[:20], ["token"] * 5)
    found = Image.open(io.BytesIO(file))
    side, title = 2 * heatmap.MARGIN, heatmap.TITLE
    width = side + 5 * heatmap.LABEL + 20 * heatmap.CELL
    height = side + title + heatmap.LABEL + 5 * heatmap.CELL
    assert found.size == pytest.approx((width, height), abs=1)
    assert (found.size[1], found.size[0], 3) == heatmap.image(
        [("", weights(5, 20))], LETTERS[:20], ["token"] * 5
    ).shape


@pytest.mark.parametrize(("panels", "columns"), [(1, 1), (4, 2), (5, 2), (7, 3)])
def test_panels_are_laid_out_about_square(panels: int, columns: int) -> None:
    one = heatmap.image([("", weights(9, 10))], LETTERS[:10], LETTERS[:9])
    many = heatmap.image([("", weights(9, 10))] * panels, LETTERS[:10], LETTERS[:9])
    rows = -(-panels // columns)
    assert many.shape[:2] == pytest.approx((rows * one.shape[0], columns * one.shape[1]), abs=panels)


def test_a_cell_is_dark_where_its_weight_is() -> None:
    T, S = 4, 6
    shown = heatmap.image([("", weights(T, S))], LETTERS[:S], LETTERS[:T]).mean(axis=2)
    left, bottom, cell = heatmap.MARGIN + heatmap.LABEL, heatmap.MARGIN, heatmap.CELL
    top = shown.shape[0] - bottom - T * cell
    centres = [
        [shown[int(top + (t + 0.5) * cell), int(left + (s + 0.5) * cell)] for s in range(S)] for t in range(T)
    ]
    assert (np.array(centres) < 100).tolist() == weights(T, S).astype(bool).tolist()


@pytest.mark.parametrize(
    "token",
    [
        "$\\frac{",
        "$x$",
        "\\alpha_$^",
        "日本語",
        "\U0001f600\ufe0f",
        "\x01\x00\n\t",
        "▁" + 40 * "w",
        "שלום",
        "",
        "%s{}",
    ],
)
def test_any_text_can_be_a_label(token: str) -> None:
    """Warnings are errors here: a glyph that is missing is none."""
    plain = heatmap.image([("", weights(2, 2))], ["a", "b"], ["a", "b"])
    shown = heatmap.image([("", weights(2, 2))], ["a", token], ["a", token])
    assert shown.shape[0] <= plain.shape[0] + heatmap.LONGEST_LABEL * heatmap.LABEL
    assert len(np.unique(shown)) > 10


def test_weights_that_are_all_0_are_cells_without_colour() -> None:
    shown = heatmap.image([("", weights(3, 2))], ["a", "b"], ["a", "b", "c"])
    nothing = heatmap.image([("", np.zeros_like(weights(3, 2)))], ["a", "b"], ["a", "b", "c"])
    assert nothing.shape == shown.shape
    assert nothing.mean() > shown.mean()


def test_formulas_are_not_typeset() -> None:
    literal, other = (heatmap.image([("", weights(1, 1))], [token], ["a"]) for token in ("$x$", "$y$"))
    assert literal.shape == other.shape
    assert (literal != other).any()
    assert literal.shape[0] == heatmap.image([("", weights(1, 1))], ["xyz"], ["a"]).shape[0]


def test_what_takes_seconds_is_not_imported_before_it_is_used() -> None:
    code = "import nmt.runs.train, sys; print({'matplotlib', 'torch._dynamo'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=110, check=True
    )
    assert done.stdout.strip() == "set()"
