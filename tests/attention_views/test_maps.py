"""Sentences in, tokens and weights out: order, blank lines, forced targets, cuts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from nmt.attention_views.maps import BATCH_TOKENS, SentenceMaps, attend, attend_pairs, empty_maps
from nmt.data.batches.batching import pad
from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import BOS_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig, TokenizerKind
from nmt.decoding.configs import BeamConfig
from nmt.errors import UserError
from nmt.layers.choices import Positions
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.models.configs import DecoderOnlyConfig, RnnConfig, TransformerConfig
from nmt.models.fusion import Fusion
from nmt.translation.translate import translate

CPU = torch.device("cpu")
LINES = ["two dogs run in the snow", "a man in a red shirt", "a dog", "the snow is red"]
CFG = BeamConfig(beam_size=2, max_length_ratio=1.0, max_length_offset=3)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    cfg = TokenizerConfig(kind=TokenizerKind.char, vocab_size=23)
    return Tokenizer.train(cfg, ParallelText(LINES * 10, LINES * 10))


def build(tokenizer: Tokenizer, **fields: Any) -> TranslationModel:
    cfg = TransformerConfig(
        d_model=16, d_ff=32, num_heads=2, encoder_layers=2, decoder_layers=2, dropout=0.0, **fields
    )
    sizes = {"src_vocab_size": tokenizer.src_vocab_size, "tgt_vocab_size": tokenizer.tgt_vocab_size}
    return build_model(cfg, **sizes).eval()


@pytest.fixture
def model(tokenizer: Tokenizer) -> TranslationModel:
    return build(tokenizer)


def maps(lines: list[str], model: TranslationModel, tokenizer: Tokenizer) -> list[SentenceMaps]:
    return list(attend(lines, model, tokenizer, CFG, device=CPU))


def test_the_weights_are_those_of_the_model(model: TranslationModel, tokenizer: Tokenizer) -> None:
    found = maps(["a dog\tred snow", "two dogs run in the snow\tdogs"], model, tokenizer)
    for sentence, (source, target) in zip(found, [(LINES[2], "red snow"), (LINES[0], "dogs")], strict=True):
        src, src_mask = pad(tokenizer.encode_src([source]))
        ids = tokenizer.encode_tgt([target])[0]
        with torch.inference_mode():
            expected = model.attention(src, src_mask, torch.tensor([[BOS_ID, *ids[:-1]]]))
        for name in ("encoder", "decoder", "cross"):
            layers = getattr(expected, name)
            assert len(getattr(sentence, name)) == len(layers) == 2
            for mine, layer in zip(getattr(sentence, name), layers, strict=True):
                np.testing.assert_allclose(mine, layer[0].numpy(), atol=1e-6)
        S, T = len(sentence.src), len(ids)
        assert [layer.shape for layer in sentence.cross] == [(2, T, S)] * 2
        assert [layer.shape for layer in sentence.decoder] == [(2, T, T)] * 2
        assert (sentence.src_text, sentence.tgt_text) == (source, target)
        assert [piece.id for piece in sentence.tgt] == ids
        assert [piece.text for piece in sentence.tgt_in][:2] == ["<s>", sentence.tgt[0].text]


def test_a_model_from_right_to_left_is_shown_in_the_order_of_the_text(
    model: TranslationModel, tokenizer: Tokenizer
) -> None:
    """Each row still has the weights with which its token was predicted."""
    cfg = replace(tokenizer.cfg, right_to_left=True)
    turned = Tokenizer(cfg, tokenizer.src_model, tokenizer.tgt_model)
    pair, found = maps(["a dog\tred snow", "a dog"], model, turned)
    assert pair.tgt_text == "red snow"
    assert found.tgt_text == translate(["a dog"], model, turned, CFG, device=CPU)[0].text
    ids = turned.encode_tgt(["red snow"])[0]
    T = len(ids)
    assert [piece.id for piece in pair.tgt] == [*ids[-2::-1], ids[-1]]
    src, src_mask = pad(tokenizer.encode_src(["a dog"]))
    with torch.inference_mode():
        expected = model.attention(src, src_mask, torch.tensor([[BOS_ID, *ids[:-1]]]))
    row_of = [*range(T - 2, -1, -1), T - 1]
    for t in range(T):
        for mine, theirs in zip(pair.cross, expected.cross, strict=True):
            np.testing.assert_allclose(mine[:, t], theirs[0, :, row_of[t]].numpy(), atol=1e-6)
        for mine, theirs in zip(pair.decoder, expected.decoder, strict=True):
            weights = theirs[0, :, row_of[t]].numpy()  # to BOS and the tokens in the order of the model
            np.testing.assert_allclose(mine[:, t, 0], weights[:, 0], atol=1e-6)
            np.testing.assert_allclose(mine[:, t, 1:], weights[:, :0:-1], atol=1e-6)


def test_a_target_that_is_not_given_is_the_translation(model: TranslationModel, tokenizer: Tokenizer) -> None:
    translations = translate(LINES, model, tokenizer, CFG, device=CPU)
    found = maps(LINES, model, tokenizer)
    assert any(translation.ids for translation in translations)
    assert [[piece.id for piece in sentence.tgt[:-1]] for sentence in found] == [t.ids for t in translations]
    assert [sentence.src_text for sentence in found] == LINES


def test_lines_keep_their_order_whatever_they_hold(model: TranslationModel, tokenizer: Tokenizer) -> None:
    lines = ["", "a dog", "   ", "the snow\tred", "\tred", "the snow is red\t", "a man"]
    found = list(attend(lines, model, tokenizer, CFG, device=CPU, chunk=2))
    assert [sentence.line for sentence in found] == [1, 2, 3, 4, 5, 6, 7]
    assert [sentence.src_text for sentence in found] == [
        "", "a dog", "", "the snow", "", "the snow is red", "a man"
    ]  # fmt: skip
    assert (found[3].tgt_text, found[5].tgt_text) == ("red", "")
    assert [piece.text for piece in found[5].tgt] == ["</s>"]
    assert (found[0].tgt, found[0].tgt_in, found[0].cross) == ([], [], [])
    assert found[0] == SentenceMaps(1)


def test_a_sentence_has_the_same_weights_in_any_batch(model: TranslationModel, tokenizer: Tokenizer) -> None:
    lines = [f"{source}\t{target}" for source in LINES for target in LINES] * 10
    assert sum(map(len, lines)) > 2 * BATCH_TOKENS
    together = maps(lines, model, tokenizer)
    assert [sentence.line for sentence in together] == list(range(1, len(lines) + 1))
    for sentence in together[::7]:
        (alone,) = maps([lines[sentence.line - 1]], model, tokenizer)
        np.testing.assert_allclose(np.stack(sentence.cross), np.stack(alone.cross), atol=1e-5)


def test_the_model_is_handed_back_in_its_mode(model: TranslationModel, tokenizer: Tokenizer) -> None:
    found = attend(["a dog\tred"], model.train(), tokenizer, CFG, device=CPU)
    next(found)
    assert model.training
    assert torch.is_grad_enabled()


def test_a_second_tab_is_refused(model: TranslationModel, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError) as raised:
        maps(["a dog", "a\tb\tc"], model, tokenizer)
    assert str(raised.value) == "line 2 of the input has 2 TABs; a line is SOURCE, or SOURCE TAB TARGET"


def test_what_is_too_long_is_cut_with_a_warning(tokenizer: Tokenizer) -> None:
    model = build(tokenizer, positions=Positions.learned, max_positions=12)
    lines = ["two dogs run in the snow", "a dog\ttwo dogs run in the snow", "two dogs run in\ta"]
    warnings: list[str] = []
    found = list(attend(lines, model, tokenizer, CFG, device=CPU, warn=warnings.append))
    assert warnings == [
        "only the first 12 tokens of line 1 are translated, because the model has 12 positions",
        "only the first 12 tokens of line 2, 3 are looked at, because the model has 12 positions",
    ]
    assert [len(sentence.src) for sentence in found] == [12, 7, 12]
    assert len(found[1].tgt) == 12
    assert found[1].tgt[-1].text == "</s>"
    assert found[2].src_text == "two dogs r"


def test_each_side_is_cut_at_its_own_limit(tokenizer: Tokenizer) -> None:
    sizes = {"src_vocab_size": tokenizer.src_vocab_size, "tgt_vocab_size": tokenizer.tgt_vocab_size}
    lm = DecoderOnlyConfig(d_model=16, d_ff=32, num_heads=2, num_layers=1, max_positions=10)
    net = build(tokenizer, positions=Positions.learned, max_positions=12)
    model = Fusion(net, build_model(lm, **sizes), 0.3).eval()
    warnings: list[str] = []
    lines = ["two dogs run in\ta", "a\ttwo dogs run in", "a dog runs\ta dog"]
    found = list(attend(lines, model, tokenizer, CFG, device=CPU, warn=warnings.append))
    assert warnings == [
        "only the first 12 tokens of line 1 are looked at, because the model has 12 positions",
        "only the first 9 tokens of line 2 are looked at, because the model has 9 positions",
    ]
    assert [(len(sentence.src), len(sentence.tgt)) for sentence in found] == [(12, 3), (3, 9), (12, 7)]


def test_a_huge_line_is_cut_before_it_is_tokenised(tokenizer: Tokenizer) -> None:
    model = build(tokenizer, positions=Positions.learned, max_positions=12)
    warnings: list[str] = []
    lines = [" " * 999 + "dog\ta dog", "a\t" + "two dogs " * 99999]
    found = list(attend(lines, model, tokenizer, CFG, device=CPU, warn=warnings.append))
    assert warnings == [
        "only the first 12 tokens of line 2 are looked at, because the model has 12 positions",
        "only the first 768 characters of line 1 are looked at, because the model has 12 positions",
    ]
    assert [len(sentence.tgt) for sentence in found] == [0, 12]


def test_the_same_for_pairs(model: TranslationModel, tokenizer: Tokenizer) -> None:
    (sentence,) = attend_pairs([("a dog", "red\tsnow")], model, tokenizer, CFG, device=CPU)
    assert sentence.tgt_text == "red\tsnow"


def test_empty_maps_show_what_there_is(model: TranslationModel) -> None:
    empty = empty_maps(model, CPU)
    for layers in (empty.encoder, empty.decoder, empty.cross):
        assert [layer.tolist() for layer in layers] == [[[[1.0]], [[1.0]]]] * 2


def explained(sentence: SentenceMaps, kind: str) -> None:
    """Check that weights are the softmax of the products, over all that may be attended to."""
    for weights, (queries, keys) in zip(getattr(sentence, kind), sentence.factors[kind], strict=True):
        scores = queries @ keys.transpose(0, 2, 1) / queries.shape[2] ** 0.5
        for head, row in np.ndindex(weights.shape[:2]):
            seen = weights[head, row] > 0
            rest = np.log(weights[head, row][seen]) - scores[head, row][seen]  # the same number for all
            np.testing.assert_allclose(rest, rest[:1].repeat(len(rest)), atol=1e-4)


@pytest.mark.parametrize("right_to_left", [False, True])
def test_queries_and_keys_are_those_that_the_weights_come_from(
    tokenizer: Tokenizer, right_to_left: bool
) -> None:
    cfg = replace(tokenizer.cfg, right_to_left=right_to_left)
    turned = Tokenizer(cfg, tokenizer.src_model, tokenizer.tgt_model)
    model = build(tokenizer, positions=Positions.rotary)
    lines = ["a dog\tred snow", "two dogs run in the snow\tdogs", "a man\ta man"]
    *with_factors, last = attend(lines, model, turned, CFG, device=CPU, neuron_lines=2)
    for sentence in with_factors:
        for kind in ("encoder", "decoder", "cross"):
            explained(sentence, kind)
    assert last.factors == {}


def test_a_decoder_only_model_has_queries_and_keys_of_both_sides(tokenizer: Tokenizer) -> None:
    cfg = DecoderOnlyConfig(d_model=16, d_ff=32, num_heads=2, num_layers=2, dropout=0.0)
    sizes = {"src_vocab_size": tokenizer.src_vocab_size, "tgt_vocab_size": tokenizer.tgt_vocab_size}
    model = build_model(cfg, **sizes).eval()
    lines = ["two dogs run in the snow\tdogs", "a dog\tred snow"]
    for sentence in attend(lines, model, tokenizer, CFG, device=CPU, neuron_lines=2):
        for kind in ("encoder", "decoder", "cross"):
            explained(sentence, kind)


def test_attention_without_products_has_no_queries_and_keys(tokenizer: Tokenizer) -> None:
    cfg = RnnConfig(d_model=16, dropout=0.0)
    sizes = {"src_vocab_size": tokenizer.src_vocab_size, "tgt_vocab_size": tokenizer.tgt_vocab_size}
    model = build_model(cfg, **sizes).eval()
    (sentence,) = attend(["a dog\tred snow"], model, tokenizer, CFG, device=CPU, neuron_lines=1)
    assert sentence.cross
    assert not sentence.factors
