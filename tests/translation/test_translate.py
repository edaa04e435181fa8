"""Lines in, translations out: order, blank lines, cuts, batches.

The model copies its source, so that the right answer is known for every line.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import EOS_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig, TokenizerKind
from nmt.decoding.configs import BeamConfig
from nmt.errors import UserError
from nmt.models.base import State, TranslationModel
from nmt.translation.translate import CHARS_PER_TOKEN, Translation, cut_message, translate

CPU = torch.device("cpu")
LINES = [
    "",
    "two dogs run",
    "a man in a red shirt stands in the snow",
    "   ",
    "a dog",
    "\t",
    "the snow is red and the man is in it",
    "run",
    "",
]


class CopyModel(TranslationModel):
    """Gives nearly all probability to the source token at the same position."""

    def __init__(self, vocab_size: int, max_length: int | None = None):
        super().__init__()
        self.output = cast(Any, nn.Identity())
        self.vocab_size = vocab_size
        self.max_length = max_length
        self.seen: list[tuple[int, int]] = []
        self.modes: set[tuple[bool, bool]] = set()

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        state = self.start(src, src_mask)
        return torch.stack([self.advance(last, state) for last in tgt_in.unbind(1)], dim=1)

    def start(self, src: Tensor, src_mask: Tensor) -> State:
        self.seen.append((src.shape[0], src.shape[1]))
        self.modes.add((self.training, torch.is_grad_enabled()))
        return State({"src": src}, {})

    def advance(self, last: Tensor, state: State) -> Tensor:
        src = state.source["src"]
        copied = src[:, min(state.position, src.shape[1] - 1)]
        state.position += 1
        logits = 10.0 * torch.nn.functional.one_hot(copied, self.vocab_size).float()
        logits[:, EOS_ID] -= 1.0  # of all mistakes, to end is the least likely
        return logits.repeat_interleave(len(last) // len(src), dim=0)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    lines = [line for line in LINES if line.strip()]
    text = ParallelText(lines * 10, lines * 10)
    return Tokenizer.train(TokenizerConfig(kind=TokenizerKind.char, vocab_size=40), text)


@pytest.fixture
def model(tokenizer: Tokenizer) -> CopyModel:
    return CopyModel(tokenizer.tgt_vocab_size)


def texts(translations: list[Translation]) -> list[str]:
    return [translation.text for translation in translations]


@pytest.mark.fault(29)
@pytest.mark.parametrize("batch_tokens", [1, 100, 8192])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_one_translation_per_line_in_order(
    tokenizer: Tokenizer, model: CopyModel, batch_tokens: int, beam_size: int
) -> None:
    cfg = BeamConfig(beam_size=beam_size, batch_tokens=batch_tokens)
    translations = translate(LINES, model, tokenizer, cfg, device=CPU)
    assert texts(translations) == [line.strip() for line in LINES]
    assert all((t.score < 0.0) == bool(t.text) for t in translations)


def test_batches_of_similar_lengths_keep_the_budget(tokenizer: Tokenizer, model: CopyModel) -> None:
    translate(LINES * 20, model, tokenizer, BeamConfig(beam_size=4, batch_tokens=1600), device=CPU)
    assert sum(num for num, _ in model.seen) == 20 * sum(bool(line.strip()) for line in LINES)
    assert all(num * length * 4 <= 1600 for num, length in model.seen)
    assert len(model.seen) < 20


def test_what_does_not_fit_into_memory_is_searched_half_by_half(
    tokenizer: Tokenizer, model: CopyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [one.text for one in translate(LINES, model, tokenizer, BeamConfig(), device=CPU)]
    most, sizes = 2, []

    def start(src: Tensor, src_mask: Tensor) -> State:
        sizes.append(len(src))
        if len(src) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return CopyModel.start(model, src, src_mask)

    monkeypatch.setattr(model, "start", start)
    found = translate(LINES, model, tokenizer, BeamConfig(), device=CPU)
    assert [one.text for one in found] == expected
    assert max(sizes) > most
    most = 0
    with pytest.raises(UserError, match=r"memory is exhausted by a single line; lower decoding\.beam"):
        translate(LINES, model, tokenizer, BeamConfig(), device=CPU)


def test_nothing_to_translate(tokenizer: Tokenizer, model: CopyModel) -> None:
    assert translate([], model, tokenizer, BeamConfig(), device=CPU) == []
    blank = ["", " ", "\u200b"]  # the last only turns out blank when it is normalised
    assert texts(translate(blank, model, tokenizer, BeamConfig(), device=CPU)) == ["", "", ""]
    assert model.seen == []


def test_alternatives_follow_the_best(tokenizer: Tokenizer, model: CopyModel) -> None:
    cfg = BeamConfig(beam_size=4, n_best=3)
    blank, best = translate(["", "a dog"], model, tokenizer, cfg, device=CPU)
    assert blank.alternatives == []
    assert best.text == "a dog"
    assert len(best.alternatives) == 2
    scores = [best.score, *(other.score for other in best.alternatives)]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.fault(29)
def test_an_overlong_line_is_cut_with_a_warning_that_names_it(tokenizer: Tokenizer, model: CopyModel) -> None:
    warnings: list[str] = []
    lines = ["run", "a man in the snow", "a dog"]
    cfg = BeamConfig(max_source_tokens=8)
    translations = translate(lines, model, tokenizer, cfg, device=CPU, warn=warnings.append)
    kept = tokenizer.decode(tokenizer.encode_src([lines[1]])[0][:7])
    assert texts(translations) == ["run", kept, "a dog"]
    assert warnings == [
        "only the first 8 tokens of line 2 are translated, because decoding.max_source_tokens=8"
    ]

    warnings.clear()
    model.max_length = 6
    translate(["dog", *lines * 4], model, tokenizer, cfg, device=CPU, warn=warnings.append)
    assert warnings == [
        "only the first 6 tokens of line 3, 4, 6, 7, 9 and 3 more are translated, "
        "because the model has 6 positions"
    ]


def test_a_line_whose_parts_are_cut_is_named_once() -> None:
    message = cut_message([2, 2, 2, 5], 8, BeamConfig(max_source_tokens=8), "translated")
    assert message.startswith("only the first 8 tokens of line 2, 5 are translated")


@pytest.mark.fault(28, 29)
def test_a_huge_line_is_cut_before_it_is_tokenised(
    tokenizer: Tokenizer, model: CopyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    lines = ["a dog " * 1000, "run", " " * 600 + "dog", " " * 9999]
    cfg = BeamConfig(max_source_tokens=8)
    whole = translate(["a dog " * 10], model, tokenizer, cfg, device=CPU, warn=warnings.append)
    warnings.clear()
    encode, longest = tokenizer.encode_src, []

    def measured(lines: list[str]) -> list[list[int]]:
        longest.append(max(map(len, lines)))
        return encode(lines)

    monkeypatch.setattr(tokenizer, "encode_src", measured)
    translations = translate(lines, model, tokenizer, cfg, device=CPU, warn=warnings.append)
    assert texts(translations) == [*texts(whole), "run", "", ""]
    assert longest == [8 * CHARS_PER_TOKEN]
    assert warnings == [
        "only the first 512 characters of line 3 are translated, because decoding.max_source_tokens=8",
        "only the first 8 tokens of line 1 are translated, because decoding.max_source_tokens=8",
    ]


def test_warnings_go_to_standard_error(
    tokenizer: Tokenizer, model: CopyModel, capsys: pytest.CaptureFixture[str]
) -> None:
    translate(["a man in the snow"], model, tokenizer, BeamConfig(max_source_tokens=8), device=CPU)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("warning: only the first 8 tokens of line 1 are translated")


@pytest.mark.parametrize("training", [True, False])
def test_search_is_in_eval_mode_and_the_mode_is_restored(
    tokenizer: Tokenizer, model: CopyModel, training: bool
) -> None:
    model.train(training)
    translate(LINES, model, tokenizer, BeamConfig(), device=CPU)
    assert model.modes == {(False, False)}
    assert model.training is training
