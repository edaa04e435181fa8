"""The config of the files of `nmt attention`; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from nmt.checks import not_negative
from nmt.errors import UserError


class View(Enum):
    """A kind of file."""

    page = "page"
    images = "images"
    soft = "soft"
    hard = "hard"


@dataclass
class ViewsConfig:
    """Choice of the files, sentences and layers."""

    output: str | None = None
    """Directory to write to; null: attention/ in the run directory."""
    views: list[View] = field(default_factory=lambda: list(View))
    """page, images, soft (alignments of tokens, with weights), hard (alignments of words)."""
    layer: int | None = None
    """Layer of cross-attention that the alignments come from, counted from 1; null: the mean of all."""
    max_sentences: int = 10
    """Number of lines on the page and in images; alignments are written for every line."""
    neurons: int = 1
    """Number of the first of these lines that the page has queries and keys of, for the neuron view."""

    def __post_init__(self) -> None:
        if not self.views or len(set(self.views)) < len(self.views):
            shown = ", ".join(view.value for view in self.views)
            raise UserError(f"views must name at least one view, and each once, but is [{shown}]")
        if self.output is not None and not self.output.strip():
            raise UserError("output must name a directory, but is empty; output=null is RUN/attention")
        if self.layer is not None and self.layer < 1:
            raise UserError(f"layer counts from 1, but is {self.layer}; null means all layers")
        not_negative(self, "", "neurons")
        if self.max_sentences < 1:
            raise UserError(
                f"max_sentences must be at least 1, but is {self.max_sentences}; "
                "views=[soft,hard] writes neither page nor images"
            )

    @property
    def neuron_lines(self) -> int:
        """The number of the last line that queries and keys are needed of; 0 for none."""
        return min(self.neurons, self.max_sentences) if View.page in self.views else 0

    @property
    def last_line(self) -> int | None:
        """Number of the line after which nothing more would be written; None where every line counts."""
        return None if {View.soft, View.hard} & {*self.views} else self.max_sentences + 1
