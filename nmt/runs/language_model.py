"""The task of language modelling: text in, its continuation out.

A language model learns from the targets alone, as one long text cut into windows of `data.max_tokens`. A
batch is one of pairs whose sources are empty, (B, 0), so that model, trainer and checkpoints are the same as
for translation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from nmt.config.roots import TrainConfig
from nmt.data.batches.encode import encode_pairs
from nmt.data.batches.examples import TextWindows
from nmt.data.cleaning.filters import FilterReport
from nmt.data.encoded_pairs import EncodedPairs, windows
from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import EOS_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.decoding.configs import DecodingConfig, SamplingConfig
from nmt.decoding.sampling import continuation, draw_lines
from nmt.errors import UserError, warn
from nmt.runs.task import TaskCode, TrainedModel
from nmt.training.tracking.sinks import Tracker
from nmt.translation.evaluate import Scores
from nmt.translation.translate import evaluating, in_precision

LINES_AT_ONCE = 256
"""Lines that are sampled together."""


class LanguageModelTask(TaskCode):
    """The task of continuing text, learnt from windows of text."""

    next_commands = ('nmt generate {run} prompt="..."', "nmt generate {run} decoding.temperature=0.7")

    measures_accuracy = True

    def examples(self, cfg: TrainConfig) -> TextWindows:
        """Return windows of the text."""
        return TextWindows(cfg.data, cfg.seed)

    def evaluation_pairs(
        self, trained: TrainedModel, text: ParallelText
    ) -> tuple[EncodedPairs, FilterReport]:
        """Return the text cut into windows from its beginning; nothing is left out."""
        pairs, report = encode_pairs(text, trained.tokenizer)
        return windows(pairs, trained.cfg.data.max_tokens), report

    def outputs(
        self, trained: TrainedModel, text: ParallelText, decoding: DecodingConfig, metrics: Sequence[str]
    ) -> Scores:
        """Continue the first lines of the text by the length of a window each; there are no scores."""
        sampling = decoding if isinstance(decoding, SamplingConfig) else SamplingConfig()
        prompts = [f"{line}\n" for line in text.tgt[: trained.cfg.trainer.num_samples]]
        length = trained.cfg.data.max_tokens
        return Scores({}, {}, [prompt + continued(trained, prompt, sampling, length) for prompt in prompts])

    def show(
        self, trained: TrainedModel, text: ParallelText, scores: Scores, tracker: Tracker, step: int
    ) -> None:
        """Record each line with its continuation."""
        rows = [(sample,) for sample in scores.hypotheses]
        tracker.table(step, "valid/samples", ("line and continuation",), rows)


def continued(trained: TrainedModel, prompt: str, cfg: SamplingConfig, max_tokens: int) -> str:
    """Return the text of `max_tokens` sampled tokens that continue `prompt`; EOS ends a line."""
    _require_free(cfg)
    ids, window = _prompt_ids(trained, prompt), trained.cfg.data.max_tokens
    model = in_precision(trained.model, cfg, trained.device)
    with evaluating(model):
        sampled = continuation(model, ids, cfg, window=window, device=trained.device)
        tokens = list(itertools.islice(sampled, max_tokens))
    return decoded_text(trained.tokenizer, ids, tokens)


def sampled_lines(
    trained: TrainedModel, prompt: str, cfg: SamplingConfig, num: int, max_tokens: int
) -> Iterator[str]:
    """Yield `num` lines that begin with `prompt`, each sampled by itself to its end, or for `max_tokens`.

    A line fits into one window of the model. A warning says how many lines are as long as a line can be.

    Raises:
        UserError: the prompt has a line break, or leaves no room for a token.
    """
    _require_free(cfg)
    if "\n" in prompt:
        raise UserError(f"the prompt of lines is the beginning of one line, but {prompt!r} has a line break")
    before, window = [EOS_ID, *_prompt_ids(trained, prompt)], trained.cfg.data.max_tokens
    longest = min(max_tokens, window - 1 - len(before))  # BOS is in the window, too
    if longest < 1:
        raise UserError(
            f"the prompt has {len(before) - 1} tokens, and the model sees data.max_tokens={window} at most, "
            "two of them before the prompt; shorten it"
        )
    model, num_full = in_precision(trained.model, cfg, trained.device), 0
    for first in range(0, num, LINES_AT_ONCE):
        numbers = range(first, min(first + LINES_AT_ONCE, num))
        with evaluating(model):
            found = draw_lines(model, before, numbers, cfg, longest=longest, device=trained.device)
        for tokens in found:
            num_full += len(tokens) == longest
            yield prompt + decoded_text(trained.tokenizer, before, tokens)
    if num_full:
        seen = f"the model sees data.max_tokens={window} at most, the prompt and two before it among them"
        limit = seen if longest < max_tokens else f"max_tokens={max_tokens}"
        warn(f"{num_full:,} of {num:,} lines end after {longest} tokens, perhaps unfinished: {limit}")


def _require_free(cfg: SamplingConfig) -> None:
    """Raise `UserError` for rules that translations alone can follow."""
    if cfg.has_minimum or cfg.avoid or cfg.narrowed_by or cfg.n_best > 1:
        raise UserError(
            "decoding.min_length, min_length_ratio, avoid, shortlist, allowed and n_best are for "
            "translations; leave them out to continue a text (nmt generate lines=N samples several)"
        )


def _prompt_ids(trained: TrainedModel, prompt: str) -> list[int]:
    """Return the ids of a text whose last line is not finished."""
    *whole, unfinished = prompt.split("\n")
    ids = [token for line in trained.tokenizer.encode_tgt(whole) for token in line]
    return ids + trained.tokenizer.encode_tgt([unfinished])[0][:-1]


def decoded_text(tokenizer: Tokenizer, before: Sequence[int], tokens: Sequence[int]) -> str:
    """Return the text of `tokens` that follows the text of the ids `before`."""
    line = list(itertools.takewhile(lambda token: token != EOS_ID, reversed(before)))[::-1]
    lines = [list(line)]
    for token in tokens:
        if token == EOS_ID:
            lines.append([])
        else:
            lines[-1].append(token)
    text = "\n".join(tokenizer.decode(ids) for ids in lines)
    return text[len(tokenizer.decode(line)) :]
