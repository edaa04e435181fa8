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

CELL = 21
"""Side of a cell in pixels: a label fits beside the cell."""
LABEL = 8.5
"""Width of a character of a label in pixels, generously."""
FONT_SIZE = 8
"""In points."""
MARGIN, GAP, TITLE = 15, 4, 20
"""In pixels: around the map, between a label and its cell, above the labels."""
FRAME = 0.6
"""Grey of the line around the cells."""
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
    """Return the canvas of a figure that is as large as its cells need, and about square.

    Cells and labels are put on the figure itself: the axes of Matplotlib would take most of the time.
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import fontManager

    across, down = [_label(token) for token in src], [_label(token) for token in tgt]
    left, top = (round(MARGIN + LABEL * max(map(len, labels))) for labels in (down, across))
    width, height = left + CELL * len(across) + MARGIN, top + TITLE + CELL * len(down) + MARGIN
    columns = min(len(panels), max(1, round(math.sqrt(len(panels) * height / width))))
    size = columns * width, math.ceil(len(panels) / columns) * height
    figure = Figure(figsize=(size[0] / DPI, size[1] / DPI), dpi=DPI)
    installed = set(fontManager.get_font_names())
    fonts = ["DejaVu Sans", *(font for font in FONTS if font in installed)]
    largest = max(float(weights.max()) for _, weights in panels) or 1.0  # where no weight is above 0

    def write(text: str, x: float, y: float, **style: Any) -> None:
        """Write text at pixels that count from the top left."""
        place = x / size[0], 1 - y / size[1]
        figure.text(*place, text, fontsize=FONT_SIZE, family=fonts, parse_math=False, **style)

    for number, (title, weights) in enumerate(panels):
        row, column = divmod(number, columns)
        x, y = column * width + left, row * height + TITLE + top  # of the first cell
        cells = colormaps["Blues"](weights / largest).repeat(CELL, axis=0).repeat(CELL, axis=1)
        cells[[0, -1], :, :3] = cells[:, [0, -1], :3] = FRAME
        figure.figimage(cells, x, size[1] - y - len(cells), origin="upper")
        write(f"{title} (largest {float(weights.max()):.2f})", x, y - top, va="bottom")
        for i, label in enumerate(across):
            write(label, x + CELL * (i + 0.5), y - GAP, rotation=90, ha="center", va="bottom")
        for i, label in enumerate(down):
            write(label, x - GAP, y + CELL * (i + 0.5), ha="right", va="center_baseline")
    return FigureCanvasAgg(figure)


def _label(token: str) -> str:
    """Return a token as one short line."""
    shown = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in token
    )
    return shown if len(shown) <= LONGEST_LABEL else f"{shown[: LONGEST_LABEL - 1]}…"
