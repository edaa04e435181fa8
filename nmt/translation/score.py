"""Log probabilities of given translations: pairs of lines in, scores out, order kept.

A pair is scored by one pass of the model over its source and its whole target (teacher forcing), and by the
contract of the models alone. Search sums the same log probabilities: the score of the ids of a hypothesis is
its `log_prob`. Nothing here reads or writes files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from nmt.data.batches.batching import collate, plan_in_order
from nmt.data.encoded_pairs import EncodedPairs, RaggedIds
from nmt.data.special_ids import EOS_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.decoding.configs import DecodingConfig
from nmt.decoding.forcing import token_log_probs
from nmt.errors import Log, first_of, warn
from nmt.memory import in_halves
from nmt.models.base import TranslationModel
from nmt.translation.translate import (
    CHARS_PER_TOKEN,
    LESS,
    beginnings,
    evaluating,
    is_shortened,
    longest_source,
    longest_target,
)

UNSCORED = -math.inf
"""The score of a pair that a model cannot read."""


@dataclass
class PairScore:
    """The log probability of one target line given its source; -inf, and no token, for an unreadable pair."""

    ids: list[int] = field(default_factory=list)
    """Target ids in the order in which the model predicts them, EOS the last."""
    log_probs: list[float] = field(default_factory=list)
    """Natural logarithm of the probability of each id, given the source and the ids before it."""

    @property
    def log_prob(self) -> float:
        """The log probability of the target."""
        return math.fsum(self.log_probs) if self.log_probs else UNSCORED

    @property
    def per_token(self) -> float:
        """The log probability of the target divided by its number of tokens, EOS counted."""
        return self.log_prob / max(len(self.log_probs), 1)


def score(
    sources: Sequence[str] | None,
    targets: Sequence[str],
    model: TranslationModel,
    tokenizer: Tokenizer,
    cfg: DecodingConfig,
    *,
    device: torch.device,
    warn: Log = warn,
    first_line: int = 1,
) -> list[PairScore]:
    """Return the score of each target line given its source line, in their order.

    Without `sources` the model is a language model, and a line is scored as one that follows another.

    A pair without a source is not scored, nor is a pair of which a side has more tokens than
    `decoding.max_source_tokens` or than the model has positions for it; `warn` then gets one message for each
    kind and side that names the lines, counted from `first_line`. A blank target is EOS alone.
    """
    most = longest_target(model, cfg, has_source=sources is not None)
    tgt_ids = tokenizer.encode_tgt(beginnings(targets, most), sources)
    if sources is None:
        src_ids: list[list[int]] = [[] for _ in targets]
        tgt_ids = [[EOS_ID, *ids] for ids in tgt_ids]
        sides = [("text", targets, tgt_ids, most)]
        blank = set[int]()
    else:
        longest = longest_source(model, cfg)
        src_ids = tokenizer.encode_src(beginnings(sources, longest))
        sides = [("source", sources, src_ids, longest), ("target", targets, tgt_ids, most)]
        shortest = len(tokenizer.src_start) + 2
        blank = {i for i, ids in enumerate(src_ids) if len(ids) < shortest or not sources[i].strip()}
    unscored = blank.copy()
    if blank:
        warn(_message(blank, first_line, "without a source", "the source is blank"))
    for side, lines, encoded, limit in sides:
        too_long = {
            i
            for i, (line, ids) in enumerate(zip(lines, encoded, strict=True))
            if len(ids) > limit or is_shortened(line, len(ids), limit)
        } - unscored
        if too_long:
            reason = f"the {side} has more than {limit} tokens, or {CHARS_PER_TOKEN * limit} characters"
            warn(_message(too_long, first_line, "too long", reason))
        unscored |= too_long
    scored = [i for i in range(len(targets)) if i not in unscored]
    size = cfg.tokens_at_once(device.type)
    found = score_ids([src_ids[i] for i in scored], [tgt_ids[i] for i in scored], model, size, device=device)
    scores = [PairScore() for _ in targets]
    for i, log_probs in zip(scored, found, strict=True):
        first = 1 if sources is None else len(tokenizer.tgt_start(sources[i]))  # what is given, not predicted
        scores[i] = PairScore(tgt_ids[i][first:], log_probs[first:])
    return scores


def score_ids(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    model: TranslationModel,
    max_tokens: int,
    *,
    device: torch.device,
) -> list[list[float]]:
    """Return the log probability of each target id; all sentences end with EOS.

    Pairs of similar length share a batch of at most `max_tokens` tokens on either side, with padding.
    """
    pairs = EncodedPairs(RaggedIds.of(sources), RaggedIds.of(targets))
    scores: list[list[float]] = [[] for _ in targets]
    with evaluating(model):

        def scored(numbers: Sequence[int]) -> list[list[float]]:
            lengths = pairs.tgt_lengths[list(numbers)].tolist()
            found = token_log_probs(model, collate(pairs, numbers).to(device)).split(lengths)
            return [log_probs.tolist() for log_probs in found]

        for batch in plan_in_order(pairs.src_lengths, pairs.tgt_lengths, max_tokens=max_tokens):
            numbers = batch.tolist()
            for i, log_probs in zip(numbers, in_halves(scored, numbers, LESS), strict=True):
                scores[i] = log_probs
    return scores


def _message(numbers: set[int], first_line: int, kind: str, reason: str) -> str:
    """Return the warning about pairs that are not scored."""
    lines = sorted(i + first_line for i in numbers)
    return f"line {first_of(lines)}: {kind}, scored {UNSCORED}, because {reason}"
