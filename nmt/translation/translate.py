"""Lines of text in, translations out: encode, sort by length, batch, search, detokenise, restore the order.

A strategy of `RANKINGS` finds hypotheses of which the text decides which are best; they are ranked here.

One line gives one translation, whatever it holds; a blank line gives an empty one. Nothing here reads or
writes files. Search runs in `decoding.precision` and in eval mode; a model in training mode is in that mode
again afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nmt.data.batches.batching import pad, plan_in_order
from nmt.data.configs import CONTEXT_SEPARATOR
from nmt.data.documents import current
from nmt.data.special_ids import EOS_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.decoding import RANKINGS, decode
from nmt.decoding.configs import DecodingConfig
from nmt.decoding.forcing import log_probs_of
from nmt.decoding.graph_search import forget
from nmt.decoding.hypotheses import Hypothesis, Wish
from nmt.distributed import ALONE, World
from nmt.errors import Log, UserError, first_of, warn
from nmt.layers.half import can_be_half, in_half
from nmt.layers.low_precision import in_low_precision
from nmt.loading import loaded
from nmt.memory import in_halves
from nmt.models.base import TranslationModel
from nmt.progress import told
from nmt.runtime import search_precision
from nmt.runtime_config import Precision
from nmt.translation.allowed import AllowedTokens
from nmt.translation.requests import Request, Wishes

LINES_AT_ONCE = 1024
"""Lines of a stream or a file that are sorted by length and translated at once."""
LESS = "lower decoding.max_source_tokens, or set decoding.precision=bf16"
"""What makes the work on a single line take less memory."""
CHARS_PER_TOKEN = 64
"""Characters that are split into tokens for each token that may be read: no text has such long tokens."""


@dataclass
class Translation:
    """The translation of one line."""

    text: str
    """One line of text."""
    score: float = 0.0
    """The score of the search, comparable between translations of the same line: the length-penalised log
    probability, or of decoding=mbr the expected utility."""
    alternatives: list[Translation] = field(default_factory=list)
    """The next best translations, best first: decoding.n_best - 1, fewer only where fewer exist."""
    ids: list[int] = field(default_factory=list)
    """The target ids that the text was made of, without BOS and EOS."""
    tokens: list[str] = field(default_factory=list)
    """If asked for: the spelling of each id in the vocabulary, and `</s>`, in the order of the prediction,
    without the tag of a language that is given. Of a target with context those of the sentence itself."""
    log_probs: list[float] = field(default_factory=list)
    """If asked for: the log probability of each of `tokens`, given the source and the tokens before it."""
    truncated: bool = False
    """Whether only the beginning of the source was translated."""
    unmet: list[str] = field(default_factory=list)
    """Texts of the request that the translation lacks, or that it has but should avoid."""
    split: int = 1
    """Parts of the line that were translated one by one, and joined."""

    def as_json(self) -> dict[str, Any]:
        """Return what a line of JSON holds: all but the ids, the alternatives in the same form."""
        return {
            "translation": self.text,
            "score": round(self.score, 4),
            "tokens": self.tokens,
            "log_probs": [round(value, 4) for value in self.log_probs],
            "truncated": self.truncated,
            "split": self.split,
            "unmet": self.unmet,
            "alternatives": [other.as_json() for other in self.alternatives],
        }


def translate(
    lines: Sequence[str | Request],
    model: TranslationModel,
    tokenizer: Tokenizer,
    cfg: DecodingConfig,
    *,
    device: torch.device,
    warn: Log = warn,
    numbers: Sequence[int] | None = None,
    world: World = ALONE,
    token_scores: bool = False,
    warn_unmet: bool = True,
) -> list[Translation]:
    """Return one translation per line, in the order of `lines`, on every rank of `world`.

    `token_scores` asks for `tokens` and `log_probs` of each translation, which take another pass; unless
    `warn_unmet` is False, `warn` gets a message about lines whose requests are not met.

    The batches are the same however many ranks there are, and each rank searches for its part of them.

    A line of more tokens than `decoding.max_source_tokens`, or than the model has positions, is cut, and so
    is one of `CHARS_PER_TOKEN` times as many characters; `warn` then gets one message for each kind that
    names the lines by their `numbers`, from 1 where there are none.
    """
    requests = list(map(Request.of, lines))
    named = numbers or range(1, len(lines) + 1)
    sources, cut = read_sources([one.src for one in requests], model, tokenizer, cfg, warn, named)
    asked = _Asked(requests, sources, tokenizer, cfg, token_scores)
    asked.require_room(longest_target(model, cfg), named)
    allowed = AllowedTokens(cfg, tokenizer, warn)
    of_blank = ([] if i in sources else asked.unmet(i, "") for i in range(len(lines)))
    translations = [Translation("", unmet=one) for one in of_blank]
    places = np.fromiter(sources, dtype=np.int64)
    lengths = np.fromiter(map(len, sources.values()), dtype=np.int64)
    plan = plan_in_order(
        lengths, lengths, max_tokens=cfg.tokens_at_once(device.type) // cfg.rows_per_sentence
    )
    batches = [places[batch].tolist() for batch in plan]
    found = []
    with evaluating(model):
        searched = in_precision(model, cfg, device)

        def search(numbers: Sequence[int]) -> list[list[Translation]]:
            own = [sources[i] for i in numbers]
            src, src_mask = (tensor.to(device) for tensor in pad(own))
            hypotheses = decode(searched, src, src_mask, cfg, asked.wishes(numbers), allowed.of(own))
            ranked = [_detokenised(best, tokenizer, cfg) for best in hypotheses]
            asked.complete(numbers, ranked, searched, device)
            return ranked

        for numbers in world.shard(told(batches, "translating", "lines")):
            ranked = in_halves(search, numbers, f"lower decoding.beam_size or decoding.n_best, {LESS}")
            found.append([[vars(one) for one in best] for best in ranked])
    for numbers, sentences in zip(batches, world.unshard(found), strict=True):
        for i, several in zip(numbers, sentences, strict=True):
            translations[i] = _best([Translation(**(one | {"truncated": i in cut})) for one in several])
    unmet = list(dict.fromkeys(named[i] for i, one in enumerate(translations) if one.unmet))
    if unmet and warn_unmet:
        warn(unmet_message(unmet))
    return translations


def read_sources(
    lines: Sequence[str],
    model: TranslationModel,
    tokenizer: Tokenizer,
    cfg: DecodingConfig,
    warn: Log,
    numbers: Sequence[int],
    done: str = "translated",
) -> tuple[dict[int, list[int]], set[int]]:
    """Return the ids of lines that are not blank, by their places, and the places of lines that are cut.

    Warnings name the lines by their `numbers`, and say what is `done` to the part of a line that is left.
    """
    longest = longest_source(model, cfg)
    encoded = tokenizer.encode_src(beginnings(lines, longest))
    # A line may also turn out blank when it is normalised: then no piece of it is left.
    shortest = len(tokenizer.src_start) + 2
    sources = {i: ids for i, ids in enumerate(encoded) if len(ids) >= shortest and lines[i].strip()}
    if shortened := [i for i, ids in enumerate(encoded) if is_shortened(lines[i], len(ids), longest)]:
        warn(cut_message([numbers[i] for i in shortened], longest, cfg, done, unit="characters"))
    too_long = [i for i, ids in sources.items() if len(ids) > longest]
    for i in too_long:
        sources[i] = [*sources[i][: longest - 1], EOS_ID]
    if too_long:
        warn(cut_message([numbers[i] for i in too_long], longest, cfg, done))
    return sources, {*shortened, *too_long}


class _Asked:
    """What is asked of the translations of some lines."""

    def __init__(
        self,
        requests: Sequence[Request],
        sources: dict[int, list[int]],
        tokenizer: Tokenizer,
        cfg: DecodingConfig,
        token_scores: bool,
    ):
        self.requests, self.sources = requests, sources
        self.tokenizer, self.token_scores = tokenizer, token_scores
        is_asked = cfg.avoid or any(one.prefix or one.must or one.avoid or one.due for one in requests)
        has_wishes = is_asked or any(tokenizer.tgt_start(one.src) for one in requests)
        self.of_text = Wishes(tokenizer, cfg.avoid) if has_wishes else None
        self.made = [self.of_text.of(one) for one in requests] if self.of_text else []

    def require_room(self, most: int, numbers: Sequence[int]) -> None:
        """Raise `UserError` for a line that asks for more than `most` tokens: search would have no end."""
        for number, wish in zip(numbers, self.made, strict=False):
            require_room(wish, most, f"line {number}")

    def wishes(self, numbers: Sequence[int]) -> list[Wish] | None:
        """Return the wishes for a batch of lines, or None where there is none in all lines."""
        return None if self.of_text is None else [self.made[i] for i in numbers]

    def unmet(self, number: int, text: str) -> list[str]:
        """Return what the translation `text` of a line lacks."""
        return [] if self.of_text is None else self.of_text.unmet(self.requests[number], current(text))

    def complete(
        self,
        numbers: Sequence[int],
        ranked: Sequence[Sequence[Translation]],
        model: TranslationModel,
        device: torch.device,
    ) -> None:
        """Write what the translations of some lines lack, and the scores of their tokens."""
        for i, several in zip(numbers, ranked, strict=True):
            for one in several:
                one.unmet = self.unmet(i, one.text)
        if self.token_scores:
            ids = [[one.ids for one in several] for several in ranked]
            values = log_probs_of(model, [self.sources[i] for i in numbers], ids, device)
            for i, several, ours in zip(numbers, ranked, values, strict=True):
                given = len(self.tokenizer.tgt_start(self.requests[i].src))
                for one, log_probs in zip(several, ours, strict=True):
                    spelt = self.tokenizer.tgt_spellings([*one.ids, EOS_ID])
                    spelt, log_probs = spelt[given:], log_probs[given:]
                    kept = _of_sentence(spelt, self.tokenizer.cfg.right_to_left)
                    one.tokens, one.log_probs = spelt[kept], log_probs[kept]


def _of_sentence(tokens: Sequence[str], right_to_left: bool) -> slice:
    """Return where the tokens of the sentence itself are, without those of its context."""
    places = [place for place, token in enumerate(tokens) if token == CONTEXT_SEPARATOR]
    if not places:
        return slice(None)
    return slice(places[0]) if right_to_left else slice(places[-1] + 1, None)


def require_room(wish: Wish, most: int, name: str) -> None:
    """Raise `UserError` that names the line for a wish of more than `most` tokens."""
    if wish.num_asked > most:
        raise UserError(
            f"{name}: prefix and must have {wish.num_asked:,} tokens, but as in a source, at most {most:,} "
            "can be asked for"
        )


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put the model into eval mode without gradients while the block runs; afterwards restore its mode.

    The memory of recorded searches is freed if the model was in training.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)
        if was_training:
            forget(model)


def in_precision(model: TranslationModel, cfg: DecodingConfig, device: torch.device) -> TranslationModel:
    """Return the model to search with: a copy in `decoding.precision`, or `model` if that changes nothing."""
    precision = search_precision(cfg.precision, device)
    if precision is Precision.bf16 and device.type != "cpu" and can_be_half(model):
        return in_half(in_low_precision(model, Precision.fp32), torch.bfloat16)
    return in_low_precision(model, precision)


def _detokenised(
    hypotheses: Sequence[Hypothesis], tokenizer: Tokenizer, cfg: DecodingConfig
) -> list[Translation]:
    """Return translations of a line, best first, ranked by their text if the strategy is of `RANKINGS`."""
    decoded = {ids: tokenizer.decode(ids) for ids in dict.fromkeys(tuple(h.ids) for h in hypotheses)}
    texts = [decoded[tuple(h.ids)] for h in hypotheses]
    order = [(i, h.score) for i, h in enumerate(hypotheses)]
    if cfg.strategy in RANKINGS and hypotheses:
        order = loaded(RANKINGS[cfg.strategy])(hypotheses, texts, cfg)
    return [Translation(texts[i], score, ids=hypotheses[i].ids) for i, score in order]


def _best(ranked: list[Translation]) -> Translation:
    """Return the first of the translations of a line, with the others as its alternatives."""
    if not ranked:
        raise UserError(
            "the model gives no token a probability, as its numbers overflow; "
            "set decoding.precision=fp32, or choose another checkpoint=..."
        )
    best, *others = ranked
    best.alternatives = others
    return best


def longest_source(model: TranslationModel, cfg: DecodingConfig) -> int:
    """Return how many tokens of a line are read, EOS included: as many as config and positions allow."""
    return min(cfg.max_source_tokens, model.max_source or cfg.max_source_tokens)


def longest_target(model: TranslationModel, cfg: DecodingConfig, *, has_source: bool = True) -> int:
    """Return how many tokens a target that is given may have, EOS included, with a source or without."""
    return min(cfg.max_source_tokens, (model.max_length if has_source else model.max_text) or sys.maxsize)


def beginnings(lines: Iterable[str], longest: int) -> list[str]:
    """Return as much of each line as can give `longest` tokens; more would only cost time and memory."""
    return [line[: CHARS_PER_TOKEN * longest] for line in lines]


def is_shortened(line: str, num_tokens: int, longest: int) -> bool:
    """Return whether `beginnings` took text of a line away that would not be cut for its `num_tokens`."""
    return num_tokens <= longest and bool(line[CHARS_PER_TOKEN * longest :].strip())


def cut_message(
    line_numbers: Sequence[int],
    longest: int,
    cfg: DecodingConfig,
    done: str,
    unit: str = "tokens",
) -> str:
    """Return the warning about lines of which only what `longest` tokens can hold is `done`."""
    size = longest if unit == "tokens" else CHARS_PER_TOKEN * longest
    reason = f"decoding.max_source_tokens={longest}"
    if longest < cfg.max_source_tokens:
        reason = f"the model has {longest} positions"
    numbers = [*dict.fromkeys(line_numbers)]  # each once, of a line that is translated in parts
    return f"only the first {size} {unit} of line {first_of(numbers)} are {done}, because {reason}"


def unmet_message(line_numbers: Sequence[int]) -> str:
    """Return the warning about translations that are not as their requests say."""
    return (
        f"translations without a text that must be there, or with one that was to be avoided: "
        f"{len(line_numbers):,}, line {first_of(line_numbers)}"
    )
