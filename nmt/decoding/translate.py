"""Lines of text in, translations out: encode, sort by length, batch, search, detokenise, restore the order.

A strategy of `RANKINGS` finds hypotheses of which the text decides which are best; they are ranked here.

One line gives one translation, whatever it holds; a blank line gives an empty one. Nothing here reads or
writes files. Search runs in `decoding.precision` and in eval mode; a model in training mode is in that mode
again afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import numpy as np
import torch

from nmt.data.batching import pad, plan_in_order
from nmt.data.special_ids import EOS_ID
from nmt.data.tokenizer import Tokenizer
from nmt.decoding import RANKINGS, decode
from nmt.decoding.configs import DecodingConfig
from nmt.decoding.graph_search import forget
from nmt.decoding.hypotheses import Hypothesis
from nmt.distributed import ALONE, World
from nmt.errors import Log, UserError, warn
from nmt.layers.low_precision import in_low_precision
from nmt.loading import loaded
from nmt.models.base import TranslationModel
from nmt.progress import told
from nmt.runtime import resolve_precision
from nmt.runtime_config import RuntimeConfig

LINES_AT_ONCE = 1024
"""Lines of a stream or a file that are sorted by length and translated at once."""
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


def translate(
    lines: Sequence[str],
    model: TranslationModel,
    tokenizer: Tokenizer,
    cfg: DecodingConfig,
    *,
    device: torch.device,
    warn: Log = warn,
    first_line: int = 1,
    world: World = ALONE,
) -> list[Translation]:
    """Return one translation per line, in the order of `lines`, on every rank of `world`.

    The batches are the same however many ranks there are, and each rank searches for its part of them.

    A line of more tokens than `decoding.max_source_tokens`, or than the model has positions, is cut, and so
    is one of `CHARS_PER_TOKEN` times as many characters; `warn` then gets one message for each kind that
    names the lines, counted from `first_line`.
    """
    longest = longest_source(model, cfg)
    encoded = tokenizer.encode_src(beginnings(lines, longest))
    # A line may also turn out blank when it is normalised: then only EOS is left of it.
    sources = {i: ids for i, ids in enumerate(encoded) if len(ids) > 1 and lines[i].strip()}
    if shortened := [i for i, ids in enumerate(encoded) if is_shortened(lines[i], len(ids), longest)]:
        warn(cut_message([i + first_line for i in shortened], longest, cfg, unit="characters"))
    too_long = [i for i, ids in sources.items() if len(ids) > longest]
    for i in too_long:
        sources[i] = [*sources[i][: longest - 1], EOS_ID]
    if too_long:
        warn(cut_message([i + first_line for i in too_long], longest, cfg))

    translations = [Translation("") for _ in lines]
    places = np.fromiter(sources, dtype=np.int64)
    lengths = np.fromiter(map(len, sources.values()), dtype=np.int64)
    plan = plan_in_order(lengths, lengths, max_tokens=cfg.batch_tokens // cfg.rows_per_sentence)
    batches = [places[batch].tolist() for batch in plan]
    found = []
    with evaluating(model):
        searched = in_precision(model, cfg, device)
        for numbers in world.shard(told(batches, "translating", "lines")):
            src, src_mask = (tensor.to(device) for tensor in pad([sources[i] for i in numbers]))
            hypotheses = decode(searched, src, src_mask, cfg)
            found.append([[asdict(x) for x in _detokenised(best, tokenizer, cfg)] for best in hypotheses])
    for numbers, sentences in zip(batches, world.unshard(found), strict=True):
        for i, ranked in zip(numbers, sentences, strict=True):
            translations[i] = _best([Translation(**translation) for translation in ranked])
    return translations


def translate_stream(
    lines: Iterable[str],
    model: TranslationModel,
    tokenizer: Tokenizer,
    cfg: DecodingConfig,
    *,
    device: torch.device,
    warn: Log = warn,
    chunk: int = LINES_AT_ONCE,
) -> Iterator[Translation]:
    """Yield one translation per line, in order, holding at most `chunk` lines in memory."""
    remaining = iter(lines)
    first_line = 1
    while block := list(itertools.islice(remaining, chunk)):
        yield from translate(block, model, tokenizer, cfg, device=device, warn=warn, first_line=first_line)
        first_line += len(block)


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
    """Return the model to search with: `model` itself, or a copy in `decoding.precision`."""
    return in_low_precision(model, resolve_precision(RuntimeConfig(precision=cfg.precision), device))


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
    return min(cfg.max_source_tokens, model.max_length or cfg.max_source_tokens)


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
    done: str = "translated",
    unit: str = "tokens",
) -> str:
    """Return the warning about lines of which only what `longest` tokens can hold is `done`."""
    size = longest if unit == "tokens" else CHARS_PER_TOKEN * longest
    shown = ", ".join(map(str, line_numbers[:5]))
    more = f" and {len(line_numbers) - 5} more" if len(line_numbers) > 5 else ""
    reason = f"decoding.max_source_tokens={longest}"
    if longest < cfg.max_source_tokens:
        reason = f"the model has {longest} positions"
    return f"only the first {size} {unit} of line {shown}{more} are {done}, because {reason}"
