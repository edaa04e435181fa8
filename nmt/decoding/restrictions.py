"""Rules for the next token that beams and samples share: what may not follow, and what is made unlikely.

A rule sees nothing but the ids of a hypothesis, so that none has a state of its own that must follow the
beams. Knows ids, no text; `nmt.translation.requests` makes a `Wish` of text.

Shapes: B sentences in search, K hypotheses of one, t their tokens so far, V vocabulary, A sequences to avoid.

Repetition penalty: Keskar et al. 2019, section 4.1, here on log probabilities, which any constant added to
the logits leaves as they are. Blocking of n-grams: Paulus et al. 2018, section 2.5.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.special_ids import EOS_ID
from nmt.decoding.configs import DecodingConfig
from nmt.decoding.hypotheses import EDGE, Wish, fewest_tokens

NOTHING = -1
"""No token: equals none, or stands in front of a sequence for any."""

UNLIKELY = -1e4
"""The least log probability of what a translation must begin with, unknown tokens included."""


class Restrictions:
    """The rules of a config and of the wishes of each sentence."""

    def __init__(self, cfg: DecodingConfig, src_mask: Tensor, wishes: Sequence[Wish] | None):
        """Hold the rules for sources with the mask (B, S); `wishes` has one for each sentence, or is None."""
        wishes = wishes or []
        self.cfg, device = cfg, src_mask.device
        self.fewest: Tensor | None = None  # (B,)
        if cfg.has_minimum:
            self.fewest = torch.tensor(fewest_tokens(src_mask.sum(1).tolist(), cfg, wishes), device=device)
        self.avoided = _in_table([wish.avoid for wish in wishes], device)  # (B, A, L)
        asking = next((wish for wish in wishes if wish.avoid), Wish())
        self.word_ends = table_of(asking.word_ends, device)
        self.num_given = torch.tensor([wish.num_given for wish in wishes], device=device)  # (B,)
        self.beginnings = Beginnings(wishes, device) if any(wish.beginning for wish in wishes) else None

    @property
    def change_nothing(self) -> bool:
        """Whether there is no rule."""
        cfg = self.cfg
        rules = (cfg.no_repeat_ngram_size, cfg.repetition_penalty != 1, cfg.has_minimum)
        return not any(rules) and self.avoided is None and self.beginnings is None

    def __call__(self, log_probs: Tensor, ids: Tensor, sentences: Tensor) -> Tensor:
        """Return log probabilities (B, K, V), overwritten, of what may follow `ids` (B, K, t), else -inf.

        `sentences` (B,) are the places of the sentences in the first batch. Where other rules forbid all that
        a translation may begin with, they do not count.
        """
        cfg, length = self.cfg, ids.shape[2]
        is_beginning = self.beginnings is not None and length < self.beginnings.longest
        unruled = log_probs.clone() if is_beginning else log_probs
        if cfg.repetition_penalty != 1 and length:
            log_probs.scatter_(2, ids, log_probs.gather(2, ids) * cfg.repetition_penalty)
        if 0 < cfg.no_repeat_ngram_size <= length:
            _block_ngrams(log_probs, ids, cfg.no_repeat_ngram_size)
        if self.avoided is not None:
            _block_ends(log_probs, *self._with_edges(ids, sentences), self.avoided[sentences])
        if self.fewest is not None:
            too_short = self.fewest[sentences] > length
            log_probs[:, :, EOS_ID].masked_fill_(too_short[:, None], -torch.inf)
        if self.beginnings is not None:
            self.beginnings.keep_small(log_probs, ids, sentences)
            if is_beginning:
                return self.beginnings(unruled, log_probs, ids, sentences)
        return log_probs

    def _with_edges(self, ids: Tensor, sentences: Tensor) -> tuple[Tensor, Tensor]:
        """Return `ids` (B, K, t) with `EDGE` in front and for given ones, and where a word may follow.

        Both are (B, K, t + 1).
        """
        padded = F.pad(ids, (1, 0))
        is_start = torch.arange(padded.shape[2], device=ids.device) <= self.num_given[sentences, None, None]
        return padded.masked_fill(is_start, EDGE), is_start | ~are_in(self.word_ends, padded)


def _block_ngrams(log_probs: Tensor, ids: Tensor, n: int) -> None:
    """Forbid the tokens that would repeat an n-gram of `ids` (B, K, t)."""
    windows = ids.unfold(2, n, 1)  # (B, K, t - n + 1, n)
    last = ids[:, :, ids.shape[2] - n + 1 :]  # (B, K, n - 1)
    is_repeated = (windows[..., :-1] == last[:, :, None]).all(3)
    _forbid(log_probs, windows[..., -1], is_repeated)


def _block_ends(log_probs: Tensor, ids: Tensor, are_edges: Tensor, sequences: Tensor) -> None:
    """Forbid the last token of a sequence (B, A, L) where the tokens before it end `ids` (B, K, t).

    An `EDGE` of a sequence is one of `are_edges` (B, K, t).
    """
    before, last = sequences[..., :-1], sequences[..., -1]
    num = min(before.shape[2], ids.shape[2])
    recent = ids[:, :, None, ids.shape[2] - num :]  # (B, K, 1, num)
    are_recent_edges = are_edges[:, :, None, ids.shape[2] - num :]
    wanted = before[:, None, :, before.shape[2] - num :]  # (B, 1, A, num)
    is_whole = (before[:, None, :, : before.shape[2] - num] == NOTHING).all(3)  # (B, 1, A)
    agree = (recent == wanted) | (wanted == NOTHING) | ((wanted == EDGE) & are_recent_edges)
    matches = agree.all(3) & is_whole & (last != NOTHING)[:, None]
    tokens = last.clamp(min=0)[:, None].expand(-1, ids.shape[1], -1)
    _forbid(log_probs, tokens, matches.expand_as(tokens))


def _forbid(log_probs: Tensor, tokens: Tensor, are_forbidden: Tensor) -> None:
    """Forbid `tokens` (B, K, J) where `are_forbidden` (B, K, J), even if others of the same id are not."""
    bounds = torch.full_like(tokens, torch.inf, dtype=log_probs.dtype)
    log_probs.scatter_reduce_(2, tokens, bounds.masked_fill(are_forbidden, -torch.inf), "amin")


class Beginnings:
    """The texts that translations must begin with."""

    def __init__(self, wishes: Sequence[Wish], device: torch.device):
        self.wishes, self.device = wishes, device
        self.longest = max(wish.beginning for wish in wishes)
        """After this many tokens, every text has been spelt."""
        asking = next((wish for wish in wishes if wish.capitals), None)
        self.has_small = asking is not None
        self.capitals = torch.tensor(asking.capitals if asking else (), dtype=torch.long, device=device)
        self.are_letters = table_of(asking.letters if asking else (), device)
        self.are_small = torch.tensor([bool(wish.capitals) for wish in wishes], device=device)  # (B,)
        widest = max(len(wish.prefix) for wish in wishes)
        table = [wish.prefix + [NOTHING] * (widest + 1 - len(wish.prefix)) for wish in wishes]
        self.prefixes = torch.tensor(table, device=device)  # (B, P + 1)
        self.num_given = torch.tensor([wish.num_given for wish in wishes], device=device)  # (B,)
        self.num_forced = torch.tensor([len(wish.prefix) for wish in wishes], device=device)  # (B,)
        num_rest = torch.tensor([0, *(len(wish.rest) for wish in wishes)], device=device)
        self.first_rows = num_rest.cumsum(0)[:-1]  # (B,) rows of the table of `spelt` characters
        self.num_rest = num_rest[1:]  # (B,)
        self._table: Tensor | None = None

    def __call__(self, unruled: Tensor, ruled: Tensor, ids: Tensor, sentences: Tensor) -> Tensor:
        """Return `ruled` (B, K, V), with -inf for tokens that do not go on with an unfinished beginning.

        Where the rules allow none of these, they are as in `unruled` (B, K, V).
        """
        table, length = self._rest(unruled.shape[2]), ids.shape[2]
        forced = self.prefixes[sentences, min(length, self.prefixes.shape[1] - 1)]  # (B,)
        is_forced = length < self.num_forced[sentences]
        spelt, _ = self._spelt(table, ids, sentences)  # (B, K)
        is_open = spelt < self.num_rest[sentences, None]
        rows = (self.first_rows[sentences, None] + spelt).clamp(max=len(table) - 1)
        tokens = torch.arange(unruled.shape[2], device=self.device)
        allowed = torch.where(
            is_forced[:, None, None], tokens == forced[:, None, None], table[rows] != NOTHING
        )
        is_given = (length < self.num_given[sentences])[:, None, None]
        begun = torch.where(allowed, ruled.masked_fill(is_given, 0.0), -torch.inf)
        is_against_rules = (begun == -torch.inf).all(2, keepdim=True)
        begun = torch.where(allowed & is_against_rules, unruled.clamp(min=UNLIKELY), begun)
        return torch.where((is_forced[:, None] | is_open)[:, :, None], begun, ruled)

    def keep_small(self, log_probs: Tensor, ids: Tensor, sentences: Tensor) -> None:
        """Forbid in `log_probs` (B, K, V) the marks that would make capitals of a beginning in small letters.

        These stand behind its last word, of which letters alone may follow it: other marks end what a mark
        is about, so that "i" may go on as "iPhone".
        """
        if not self.has_small:
            return
        may_go_on = are_in(self.are_letters, ids[:, :, self.longest :]).all(2)
        rows, beams = (may_go_on & self.are_small[sentences, None]).nonzero().unbind(1)  # (N,)
        if not len(rows):
            return
        ids, sentences, length = ids[rows, None, beams], sentences[rows], ids.shape[2]  # (N, 1, t) and (N,)
        table = self._rest(log_probs.shape[2])
        spelt, num_first = self._spelt(table, ids[:, :, : self.longest], sentences)  # (N, 1)
        is_spelt = (spelt >= self.num_rest[sentences, None]) & (num_first >= self.num_forced[sentences, None])
        is_first = torch.arange(length, device=self.device) < num_first[:, :, None]
        goes_on = is_spelt & (is_first | are_in(self.are_letters, ids)).all(2)
        places = rows[:, None], beams[:, None], self.capitals
        log_probs[places] = log_probs[places].masked_fill(goes_on, -torch.inf)

    def _spelt(self, table: Tensor, ids: Tensor, sentences: Tensor) -> tuple[Tensor, Tensor]:
        """Return how many characters (B, K) of the rest are spelt by the tokens after the prefix.

        With it, how many of the tokens (B, K) are of the prefix or the rest.
        """
        spelt, num_first = ids.new_zeros(ids.shape[:2]), ids.new_zeros(ids.shape[:2])
        first, num_rest = self.first_rows[sentences, None], self.num_rest[sentences, None]
        for place in range(ids.shape[2]):
            is_forced = place < self.num_forced[sentences, None]
            is_rest = ~is_forced & (spelt < num_rest)
            found = table[(first + spelt).clamp(max=len(table) - 1), ids[:, :, place]].long()
            spelt = torch.where(is_rest & (found != NOTHING), found, spelt)
            num_first += is_forced | is_rest
        return spelt, num_first

    def _rest(self, vocab_size: int) -> Tensor:
        """Return the table (rows, V): characters spelt after each token, `NOTHING` where it may not follow.

        It is made when the vocabulary is known, at the first step.
        """
        if self._table is None:
            rows = [row for wish in self.wishes for row in wish.rest]
            self._table = torch.full((max(len(rows), 1), vocab_size), NOTHING, dtype=torch.int16)
            for number, row in enumerate(rows):
                self._table[number, list(row)] = torch.tensor(list(row.values()), dtype=torch.int16)
            self._table = self._table.to(self.device)
        return self._table


def _in_table(sequences: Sequence[Sequence[Sequence[int]]], device: torch.device) -> Tensor | None:
    """Return (B, A, L), `NOTHING` in front of shorter sequences and for missing ones; None for none."""
    most = max((len(several) for several in sequences), default=0)
    if not most:
        return None
    longest = max(len(one) for several in sequences for one in several)
    table = [
        [[NOTHING] * (longest - len(one)) + list(one) for one in [*several, *[[]] * (most - len(several))]]
        for several in sequences
    ]
    return torch.tensor(table, device=device)


def table_of(tokens: Sequence[int], device: torch.device) -> Tensor:
    """Return for each token, up to the one behind the last of `tokens`, whether it is one of them."""
    table = torch.zeros(max(tokens, default=0) + 2, dtype=torch.bool, device=device)
    table[torch.tensor(tokens, dtype=torch.long, device=device)] = True
    return table


def are_in(table: Tensor, ids: Tensor) -> Tensor:
    """Return whether `ids` are tokens of a `table_of` some."""
    return table[ids.clamp(max=len(table) - 1)]
