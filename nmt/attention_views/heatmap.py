"""Heat maps of attention weights as one image, drawn by Matplotlib in memory.

Matplotlib is imported when the first image is drawn, so that nothing else waits for it, and used without
pyplot: nothing is shown, and no global state is touched. Tokens are drawn literally; what no font has is
drawn as a box.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nmt.attention_views.alignment import Weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL = 0.21
"""Inches of a cell, about: a label of 8 points fits beside it."""
LABEL = 0.1
"""Inches of a character of a label, generously."""
TITLE = 1.2
"""Inches of a title: narrower panels get room beside them."""
MARGIN = 0.4
DPI = 100
LONGEST_LABEL = 16
FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans", "Unifont")
"""Asked for what the font of Matplotlib lacks, where they are installed."""

Panel = tuple[str, Weights]
"""A title and the weights (T, S) below it."""


def png(panels: Sequence[Panel], src: Sequence[str], tgt: Sequence[str]) -> bytes:
    """Return a PNG file of `image`."""
    from matplotlib.image import imsave

    file = io.BytesIO()
    imsave(file, image(panels, src, tgt), format="png")
    return file.getvalue()


def image(panels: Sequence[Panel], src: Sequence[str], tgt: Sequence[str]) -> NDArray[np.uint8]:
    """Draw a heat map for each panel, source tokens across, target tokens down: (height, width, 3)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure(panels, src, tgt))
    with warnings.catch_warnings():
        for message in (r"Glyph .* missing from", "constrained_layout not applied"):  # for want of room
            warnings.filterwarnings("ignore", message=message, category=UserWarning)
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def figure(panels: Sequence[Panel], src: Sequence[str], tgt: Sequence[str]) -> Figure:
    """Return a figure with the panels in a grid, about square."""
    from matplotlib.figure import Figure
    from matplotlib.font_manager import fontManager

    across, down = [_label(token) for token in src], [_label(token) for token in tgt]
    left, top = (LABEL * max(map(len, labels)) for labels in (down, across))
    width, height = left + max(CELL * len(across), TITLE) + MARGIN, top + CELL * len(down) + MARGIN
    columns = min(len(panels), max(1, round(math.sqrt(len(panels) * height / width))))
    rows = math.ceil(len(panels) / columns)
    drawn = Figure(figsize=(columns * width, rows * height), dpi=DPI, layout="compressed")
    installed = set(fontManager.get_font_names())
    style: dict[str, Any] = {
        "fontsize": 8,
        "family": ["DejaVu Sans", *(font for font in FONTS if font in installed)],
        "parse_math": False,
    }
    largest = max(float(weights.max()) for _, weights in panels)
    for number, (title, weights) in enumerate(panels, start=1):
        axes = drawn.add_subplot(rows, columns, number)
        axes.imshow(weights, cmap="Blues", vmin=0.0, vmax=largest, interpolation="nearest")
        axes.xaxis.tick_top()
        axes.set_xticks(range(len(across)), across, rotation=90, **style)
        axes.set_yticks(range(len(down)), down, **style)
        axes.tick_params(length=0)
        axes.set_title(f"{title}\nlargest {float(weights.max()):.2f}", fontsize=8, loc="left")
    return drawn


def _label(token: str) -> str:
    """Return a token as one short line."""
    shown = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in token
    )
    return shown if len(shown) <= LONGEST_LABEL else f"{shown[: LONGEST_LABEL - 1]}…"
