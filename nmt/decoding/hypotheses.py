"""The common part of all search strategies: hypotheses, their length limits, and keys of the config.

Shapes: B sentences, S source length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nmt.decoding.configs import DecodingConfig


@dataclass
class Hypothesis:
    """A finished translation in token ids."""

    ids: list[int]
    """Without BOS and EOS."""
    score: float
    """Log probability adjusted for the length, by which the hypotheses of a sentence are ranked."""
    log_prob: float
    """Log probability of the ids and EOS; that of a beam has the repetition penalty in it."""


EDGE = -2
"""In a sequence to avoid: the start of a translation, or any token that does not end in a word."""


@dataclass
class Wish:
    """What the translation of one sentence must have, in ids in the order of the model."""

    prefix: list[int] = field(default_factory=list)
    """Its first tokens."""
    rest: list[dict[int, int]] = field(default_factory=list)
    """The text after `prefix`, which several tokenisations spell: for each number of characters spelt so far,
    the tokens that may follow, and how many are spelt then. No more than their number means the end."""
    must: list[list[list[int]]] = field(default_factory=list)
    """Phrases that must appear, in any order, each in one of its spellings."""
    word_parts: Sequence[int] = ()
    """Tokens that go on with the word before them."""
    word_ends: Sequence[int] = ()
    """Tokens that end in a word, which may go on."""
    capitals: Sequence[int] = ()
    """Tokens that make capitals of the letters right before them, with which the text to begin with ends."""
    letters: Sequence[int] = ()
    """Tokens of letters alone: such a capital may also come behind these."""
    avoid: list[list[int]] = field(default_factory=list)
    """Sequences of tokens that must not appear, with `EDGE` in front of those that must not follow a word."""
    num_given: int = 0
    """First tokens of `prefix` that are given, such as the tag of a language: they cost nothing."""

    @property
    def beginning(self) -> int:
        """The most tokens that spell the text to begin with."""
        return len(self.prefix) + len(self.rest)

    @property
    def size(self) -> int:
        """About how many numbers search holds of the phrases of a sentence."""
        num_spellings, longest = sum(map(len, self.must)), max(map(len, self.avoid), default=0)
        return len(self.avoid) * longest + 100 * num_spellings**2

    @property
    def num_asked(self) -> int:
        """The most tokens that spell what must be there."""
        return self.beginning + sum(max(map(len, spellings)) for spellings in self.must)


def length_limits(
    src_mask: Tensor, max_length: int | None, cfg: DecodingConfig, wishes: Sequence[Wish] | None = None
) -> Tensor:
    """Return the most target tokens (B,) that each sentence may get, EOS included, whatever its batch.

    What the config or a wish demands fits in, as far as the `max_length` positions of the model allow.
    """
    lengths: list[int] = src_mask.sum(1).tolist()
    limits = [int(cfg.max_length_ratio * length) + cfg.max_length_offset for length in lengths]
    if cfg.has_minimum:
        limits = list(map(max, limits, (1 + least for least in fewest_tokens(lengths, cfg, wishes))))
    if wishes is not None:
        demands = [wish.num_asked for wish in wishes]
        demands = [demand + cfg.max_length_offset + 1 if demand else 0 for demand in demands]
        limits = list(map(max, limits, demands))
    if max_length is not None:
        limits = [min(limit, max_length) for limit in limits]
    return torch.tensor([max(limit, 1) for limit in limits], device=src_mask.device)


def fewest_tokens(
    lengths: Sequence[int], cfg: DecodingConfig, wishes: Sequence[Wish] | None = None
) -> list[int]:
    """Return the fewest target tokens, EOS not counted, for sources of `lengths` tokens, EOS included.

    Those that a wish gives, as the tag of a language, come on top.
    """
    given = [wish.num_given for wish in wishes] if wishes else [0] * len(lengths)
    return [
        int(cfg.min_length_ratio * length) + cfg.min_length + extra
        for length, extra in zip(lengths, given, strict=True)
    ]
