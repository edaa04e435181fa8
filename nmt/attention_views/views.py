"""The files that `nmt attention` writes: a page, images, soft and hard alignments.

    attention.html       the weights of every layer and head, to explore in a browser
    cross_0001.png       heat maps of cross-attention: line 1, each layer averaged over its heads
    alignments.jsonl     soft alignments: per line the tokens and the mean weights (T, S) between them
    alignments.pharaoh   hard alignments of words, in the format of Pharaoh: per line `0-0 1-2 ...`

Sentences come one by one; only the first few, for the page, stay in memory. Knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nmt.attention_views import heatmap
from nmt.attention_views.alignment import mean_weights, pharaoh, word_indices, word_links
from nmt.attention_views.configs import View, ViewsConfig
from nmt.attention_views.maps import SentenceMaps
from nmt.attention_views.page import page, page_data
from nmt.errors import UserError, first_of, tell, warn
from nmt.files import write_atomically, written_atomically

MAX_SHOWN_TOKENS = 128
"""Longest side of a sentence on the page and in images: nobody could read more."""


def require_maps(maps: SentenceMaps, cfg: ViewsConfig, model: str) -> None:
    """Raise `UserError` unless a model with these `maps` has what `cfg` asks for; `model` is its name."""
    if not (maps.encoder or maps.decoder or maps.cross):
        raise UserError(f"{model} has no attention to show: it computes no attention weights")
    if not maps.cross and cfg.views != [View.page]:
        wanted = ", ".join(view.value for view in cfg.views if view is not View.page)
        raise UserError(
            f"{model} does not attend from target to source, which {wanted} need; set views=[page]"
        )
    if cfg.layer is not None and maps.cross and cfg.layer > len(maps.cross):
        raise UserError(f"layer must be from 1 to {len(maps.cross)} in {model}, but is {cfg.layer}")


def write_views(sentences: Iterable[SentenceMaps], cfg: ViewsConfig, output: Path, title: str) -> list[Path]:
    """Write the views of all sentences to `output` and return the files.

    A page and images of an earlier call, which show other sentences, are removed.
    """
    on_page: list[dict[str, Any]] = []
    written: list[Path] = []
    with ExitStack() as files:

        def lines_of(view: View, name: str) -> BinaryIO | None:
            if view not in cfg.views:
                return None
            written.append(output / name)
            return files.enter_context(written_atomically(output / name))

        soft, hard = lines_of(View.soft, "alignments.jsonl"), lines_of(View.hard, "alignments.pharaoh")
        for sentence in sentences:
            if soft is not None:
                soft.write(soft_alignment(sentence, cfg.layer).encode())
            if hard is not None:
                hard.write(hard_alignment(sentence, cfg.layer).encode())
            if not _is_shown(sentence, cfg):
                continue
            if View.page in cfg.views:
                on_page.append(page_data(sentence))
            if View.images in cfg.views:
                written.append(output / f"cross_{sentence.line:04}.png")
                write_atomically(written[-1], cross_image(sentence))
    if on_page:
        written.insert(0, output / "attention.html")
        write_atomically(written[0], page(title, on_page).encode())
    elif View.page in cfg.views:
        warn("no page is written, because there is no sentence to show")
    _remove_shown(output, written)
    return written


def _remove_shown(output: Path, kept: Sequence[Path]) -> None:
    """Remove the page and the images in `output` but those that are `kept`, and name them."""
    shown = [output / "attention.html", *sorted(output.glob("cross_[0-9][0-9][0-9][0-9].png"))]
    if old := [file for file in shown if file.is_file() and file not in kept]:
        tell(f"removed from {output}, as of an earlier call: {first_of(file.name for file in old)}")
    for file in old:
        file.unlink()


def _is_shown(sentence: SentenceMaps, cfg: ViewsConfig) -> bool:
    """Return whether a sentence goes on the page and into an image; warn about one that does not."""
    if not {View.page, View.images} & {*cfg.views}:
        return False
    if sentence.line > cfg.max_sentences:
        if sentence.line == cfg.max_sentences + 1:
            warn(f"page and images show the first {cfg.max_sentences} lines; max_sentences=... shows more")
        return False
    if not sentence.src:  # a blank line
        return False
    if not is_readable(sentence):
        warn(f"line {sentence.line} is not shown: a side of it has more than {MAX_SHOWN_TOKENS} tokens")
        return False
    return True


def is_readable(sentence: SentenceMaps) -> bool:
    """Return whether a sentence is short enough to be drawn."""
    return max(len(sentence.src), len(sentence.tgt)) <= MAX_SHOWN_TOKENS


def soft_alignment(sentence: SentenceMaps, layer: int | None) -> str:
    """Return a line of JSON: both texts and their tokens, and the weights, a row for each target token."""
    weights = mean_weights(sentence.cross, layer) if sentence.cross else np.empty((0, 0))
    content = {
        "line": sentence.line,
        "src": sentence.src_text,
        "tgt": sentence.tgt_text,
        "src_tokens": [piece.text for piece in sentence.src],
        "tgt_tokens": [piece.text for piece in sentence.tgt],
        "weights": [[round(weight, 4) for weight in row] for row in weights.tolist()],
    }
    return json.dumps(content, ensure_ascii=False) + "\n"


def hard_alignment(sentence: SentenceMaps, layer: int | None) -> str:
    """Return a line in the format of Pharaoh, empty for a blank one."""
    if not sentence.cross:
        return "\n"
    src_words, tgt_words = (word_indices([p.surface for p in side]) for side in (sentence.src, sentence.tgt))
    return pharaoh(word_links(mean_weights(sentence.cross, layer), src_words, tgt_words)) + "\n"


def cross_image(sentence: SentenceMaps) -> bytes:
    """Return a PNG file: cross-attention of each layer, averaged over its heads, and of all layers."""
    panels = [(f"layer {n}", mean_weights([layer])) for n, layer in enumerate(sentence.cross, start=1)]
    if len(panels) > 1:
        panels.append(("mean of all layers", mean_weights(sentence.cross)))
    return heatmap.png(panels, [p.text for p in sentence.src], [p.text for p in sentence.tgt])
