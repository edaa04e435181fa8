"""Heat maps of attention weights as images.

Matplotlib is used as a library: figures are drawn in memory by Agg, nothing is shown and no global state is
touched. Matplotlib is imported when the first image is drawn, so that nothing else waits for the import.
Tokens are drawn literally; a character that no font has is drawn as a box.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.attention_views.alignment import Weights

CELL = 0.21
"""Side of a cell in inches: a label of 8 points fits beside the cell."""
LABEL = 0.085
"""Width of a character of a label in inches, generously."""
MARGIN = 0.15
TITLE = 0.2
DPI = 100
LONGEST_LABEL = 16
FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans", "Unifont")
"""Fonts for the characters that Matplotlib's own font lacks, used where installed."""

Panel = tuple[str, Weights]
"""A title and the weights (T, S) below it."""


def png(panels: Sequence[Panel], src: Sequence[str], tgt: Sequence[str]) -> bytes:
    """Return a PNG file with a heat map for each panel, source tokens across, target tokens down."""
    from matplotlib.image import imsave

    file = io.BytesIO()
    imsave(file, image(panels, src, tgt), format="png", dpi=DPI)
    return file.getvalue()


def image(panels: Sequence[Panel], src: Sequence[str], tgt: Sequence[str]) -> NDArray[np.uint8]:
    """Return the heat maps as an array (height, width, 3)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from", category=UserWarning)
        canvas = _canvas(panels, src, tgt)
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def _canvas(panels: Sequence[Panel], src: Sequence[str], tgt: Sequence[str]) -> Any:
    """Return the canvas of a figure that is as large as its cells need, and about square."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import fontManager

    across, down = [_label(token) for token in src], [_label(token) for token in tgt]
    map_width, map_height = CELL * len(across), CELL * len(down)
    left, top = (MARGIN + LABEL * max(map(len, labels)) for labels in (down, across))
    width, height = left + map_width + MARGIN, top + TITLE + map_height + MARGIN
    columns = min(len(panels), max(1, round(math.sqrt(len(panels) * height / width))))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(columns * width, rows * height), dpi=DPI)
    largest = max(float(weights.max()) for _, weights in panels)
    installed = set(fontManager.get_font_names())
    fonts = ["DejaVu Sans", *(font for font in FONTS if font in installed)]
    for number, (title, weights) in enumerate(panels):
        row, column = divmod(number, columns)
        x, y = column + left / width, rows - 1 - row + MARGIN / height
        box = (x / columns, y / rows, map_width / width / columns, map_height / height / rows)
        axes = figure.add_axes(box)
        axes.imshow(weights, cmap="Blues", vmin=0.0, vmax=largest, aspect="auto", interpolation="nearest")
        axes.xaxis.tick_top()
        axes.set_xticks(range(len(across)), across, rotation=90, fontsize=8, family=fonts, parse_math=False)
        axes.set_yticks(range(len(down)), down, fontsize=8, family=fonts, parse_math=False)
        axes.tick_params(length=0)
        axes.set_title(f"{title} (largest {float(weights.max()):.2f})", fontsize=8, loc="left")
    return FigureCanvasAgg(figure)


def _label(token: str) -> str:
    """Return a token as one short line."""
    shown = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in token
    )
    return shown if len(shown) <= LONGEST_LABEL else f"{shown[: LONGEST_LABEL - 1]}…"
