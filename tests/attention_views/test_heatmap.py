"""Images: of the right size, whatever the tokens are, and dark where the weights are."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from numpy.typing import NDArray
from PIL import Image

from nmt.attention_views import heatmap
from nmt.attention_views.alignment import Weights

LETTERS = list("abcdefghijklmnopqrstuvwxyz")


def weights(T: int, S: int) -> Weights:
    return np.eye(T, S, dtype=np.float32)


def is_whole(shown: NDArray[np.uint8]) -> bool:
    """Whether nothing is cut off: the image has a white border."""
    border = np.concatenate([shown[0], shown[-1], shown[:, 0], shown[:, -1]])
    return bool((border == 255).all())


@pytest.mark.parametrize("labels", [LETTERS[:20], ["x" * heatmap.LONGEST_LABEL] * 20])
def test_labels_and_cells_are_within_the_image(labels: list[str]) -> None:
    shown = heatmap.image([("layer 1", weights(5, 20))], labels, ["a token"] * 5)
    assert is_whole(shown)
    assert len(np.unique(shown)) > 10


def test_a_png_is_the_image() -> None:
    panels = [("layer 1", weights(3, 4))]
    found = Image.open(io.BytesIO(heatmap.png(panels, LETTERS[:4], LETTERS[:3]))).convert("RGB")
    assert (np.asarray(found) == heatmap.image(panels, LETTERS[:4], LETTERS[:3])).all()


@pytest.mark.parametrize(("panels", "columns"), [(1, 1), (4, 2), (5, 2), (7, 3)])
def test_panels_are_laid_out_about_square(panels: int, columns: int) -> None:
    one = heatmap.image([("", weights(9, 10))], LETTERS[:10], LETTERS[:9])
    many = heatmap.image([("", weights(9, 10))] * panels, LETTERS[:10], LETTERS[:9])
    rows = -(-panels // columns)
    assert many.shape[:2] == pytest.approx((rows * one.shape[0], columns * one.shape[1]), abs=panels)


def test_a_cell_is_dark_where_its_weight_is() -> None:
    T, S = 4, 6
    canvas = FigureCanvasAgg(heatmap.figure([("", weights(T, S))], LETTERS[:S], LETTERS[:T]))
    canvas.draw()
    shown = np.asarray(canvas.buffer_rgba())[..., :3].mean(axis=2)
    (axes,) = canvas.figure.axes
    centres = axes.transData.transform([(s, t) for t in range(T) for s in range(S)])
    dark = [shown[int(shown.shape[0] - y), int(x)] < 100 for x, y in centres]
    assert np.reshape(dark, (T, S)).tolist() == weights(T, S).astype(bool).tolist()


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
    longest = heatmap.LONGEST_LABEL * heatmap.LABEL * heatmap.DPI
    assert plain.shape[0] <= shown.shape[0] + heatmap.DPI * heatmap.LABEL <= plain.shape[0] + longest
    assert is_whole(shown)
    assert len(np.unique(shown)) > 10


def test_formulas_are_not_typeset() -> None:
    literal, other = (heatmap.image([("", weights(1, 1))], [token], ["a"]) for token in ("$x$", "$y$"))
    assert literal.shape == other.shape
    assert (literal != other).any()


def test_matplotlib_is_not_imported_before_it_is_used() -> None:
    code = "import nmt.verbs.train, sys; print('matplotlib' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=110, check=True
    )
    assert done.stdout.strip() == "False"
