"""Recurrent models against the modules of torch and against their papers' equations, one step at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from nmt.errors import UserError
from nmt.layers.attention import recorded_attention
from nmt.models import build_model
from nmt.models.configs import AttentionScore, Cell, RnnConfig, Tying
from nmt.models.recurrence import RecurrentEncoder, RecurrentLayer, RecurrentStack, join_states, split_states
from nmt.models.rnn import Rnn
from nmt.training.objectives.objective import LossModule
from tests.training.objectives.test_objective import cross_entropy

Sentences = Callable[[int, int, int], tuple[Tensor, Tensor, Tensor]]

TORCH_MODULES: dict[Cell, Callable[..., nn.RNNBase]] = {
    Cell.rnn: nn.RNN,
    Cell.gru: nn.GRU,
    Cell.lstm: nn.LSTM,
}
TORCH_CELLS: dict[Cell, Callable[..., nn.RNNCellBase]] = {
    Cell.rnn: nn.RNNCell,
    Cell.gru: nn.GRUCell,
    Cell.lstm: nn.LSTMCell,
}
ATTENTIVE = [attention for attention in AttentionScore if attention is not AttentionScore.none]


def build(**fields: Any) -> Rnn:
    """Return a small model in eval mode, with biases that make a difference."""
    cfg = RnnConfig(**({"d_model": 16, "dropout": 0.0} | fields))
    model = Rnn(cfg, src_vocab_size=23, tgt_vocab_size=23).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def twin_of(layers: Iterable[Any], reverse_layers: Iterable[Any] = ()) -> nn.RNNBase:
    """Return the module of torch, of several layers and directions, with the weights of these."""
    forth, back = list(layers), list(reverse_layers)
    sizes = forth[0].kernel.input_size, forth[0].kernel.hidden_size, len(forth)
    twin = TORCH_MODULES[forth[0].cell](*sizes, batch_first=True, bidirectional=bool(back))
    weights = {}
    for suffix, direction in (("", forth), ("_reverse", back)):
        for i, layer in enumerate(direction):
            for name, weight in layer.kernel.state_dict().items():
                weights[name.replace("_l0", f"_l{i}{suffix}")] = weight
    twin.load_state_dict(weights)
    return twin


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("cell", Cell)
def test_the_encoder_equals_torch_on_packed_sequences(
    cell: Cell, num_layers: int, bidirectional: bool
) -> None:
    encoder = RecurrentEncoder(cell, 16, num_layers, bidirectional=bidirectional, dropout=0.0)
    lengths = torch.tensor([3, 7, 1, 6])
    mask = torch.arange(7) < lengths[:, None]
    x = torch.randn(4, 7, 16)
    memory, summary = encoder(x, mask)

    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    output, last = twin_of(encoder.layers, encoder.reverse_layers)(packed)
    last = last[0] if cell is Cell.lstm else last
    expected, _ = pad_packed_sequence(output, batch_first=True)
    assert_close(memory[mask], expected[mask])
    assert_close(summary, torch.cat(list(last[-2:] if bidirectional else last[-1:]), dim=-1))


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("cell", Cell)
def test_the_stack_equals_torch_at_once_and_step_by_step(cell: Cell, num_layers: int) -> None:
    stack = RecurrentStack(cell, 10, 16, num_layers, dropout=0.0)
    x, before = torch.randn(4, 6, 10), torch.randn(4, num_layers, cell.num_states, 16)
    by_torch = [part.contiguous() for part in before.permute(2, 1, 0, 3)]
    expected, last = twin_of(stack.layers)(x, tuple(by_torch) if cell is Cell.lstm else by_torch[0])
    last = torch.stack(last if cell is Cell.lstm else (last,)).permute(2, 1, 0, 3)

    hidden, after = stack(x, before)
    assert_close(hidden, expected)
    assert_close(after, last)

    states, steps = split_states(before), []
    for column in x.unbind(1):
        states = stack.step(column, states)
        steps.append(states[-1][0])
    assert_close(torch.stack(steps, dim=1), expected)
    assert_close(join_states(states), last)


class NaiveCells:
    """The cells of a decoder as those of torch, for one sentence and one position at a time."""

    def __init__(self, model: Rnn, summary: Tensor):
        decoder: Any = model.decoder
        self.cells: list[nn.RNNCellBase] = []
        self.states: list[Any] = []  # a pair for the LSTM
        initial = torch.tanh(decoder.bridge(summary)).view(decoder.shape)
        for layer, states in zip(decoder.stack.layers, initial, strict=True):
            cell = TORCH_CELLS[layer.cell](layer.kernel.input_size, layer.kernel.hidden_size)
            cell.load_state_dict({k.removesuffix("_l0"): v for k, v in layer.kernel.state_dict().items()})
            self.cells.append(cell)
            self.states.append(tuple(states) if layer.cell is Cell.lstm else states[0])

    def top(self) -> Tensor:
        return self._hidden(-1)

    def step(self, *inputs: Tensor) -> Tensor:
        x = torch.cat(inputs)
        for i, cell in enumerate(self.cells):
            self.states[i] = cell(x, self.states[i])
            x = self._hidden(i)
        return x

    def _hidden(self, layer: int) -> Tensor:
        state = self.states[layer]
        return state[0] if isinstance(state, tuple) else state


def naive(model: Rnn, cfg: RnnConfig, src: Tensor, tgt_in: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs (T, D) and weights (T, S) of one sentence without padding, by the equations."""
    encoded = model.encoder(model.src_embedding(src)[None], torch.ones(1, len(src), dtype=torch.bool))
    (memory,), (summary,) = encoded
    decoder: Any = model.decoder
    cells, fed, outputs, all_weights = NaiveCells(model, summary), torch.zeros(cfg.d_model), [], []
    for word in model.tgt_embedding(tgt_in):
        if cfg.attention is AttentionScore.none:
            weights = torch.zeros(len(src))
            if cfg.input_feeding:
                s = cells.step(summary, word)
                output = torch.tanh(decoder.readout(torch.cat([s, summary, word])))
            else:
                output = torch.tanh(decoder.readout(cells.step(word)))
        elif cfg.attention is AttentionScore.additive:
            W, U = decoder.attention.query.weight, decoder.attention.key
            (v,) = decoder.attention.score.weight
            weights = torch.stack([v @ torch.tanh(W @ cells.top() + U(h)) for h in memory]).softmax(0)
            context = weights @ memory
            s = cells.step(word, context)
            output = torch.tanh(decoder.readout(torch.cat([s, context, word])))
        else:
            s = cells.step(word, fed) if cfg.input_feeding else cells.step(word)
            general = cfg.attention is AttentionScore.general
            W = decoder.attention.key.weight if general else torch.eye(cfg.d_model)
            weights = torch.stack([s @ W @ h for h in memory]).softmax(0)
            fed = output = torch.tanh(decoder.combine(torch.cat([weights @ memory, s])))
        outputs.append(output)
        all_weights.append(weights)
    return torch.stack(outputs), torch.stack(all_weights)


@pytest.mark.parametrize(("cell", "layers"), [(Cell.rnn, 1), (Cell.gru, 2), (Cell.lstm, 1), (Cell.lstm, 2)])
@pytest.mark.parametrize(
    ("attention", "input_feeding"),
    [
        (kind, fed)
        for kind in AttentionScore
        for fed in (True, False)
        if fed or kind != AttentionScore.additive
    ],
)
def test_the_decoder_is_that_of_the_equations(
    sentences: Sentences, attention: AttentionScore, input_feeding: bool, cell: Cell, layers: int
) -> None:
    fields: dict[str, Any] = {
        "cell": cell,
        "decoder_layers": layers,
        "attention": attention,
        "input_feeding": input_feeding,
    }
    cfg, model = RnnConfig(d_model=16, **fields), build(**fields)
    src, src_mask, tgt_in = sentences(3, 6, 5)
    hidden = model(src, src_mask, tgt_in)
    recorded = model.attention(src, src_mask, tgt_in).cross
    for b, length in enumerate(src_mask.sum(1).tolist()):
        expected, weights = naive(model, cfg, src[b, :length], tgt_in[b])
        assert_close(hidden[b], expected)
        if attention is not AttentionScore.none:
            assert_close(recorded[0][b, 0, :, :length], weights)


@pytest.mark.parametrize("input_feeding", [True, False])
@pytest.mark.parametrize("attention", ATTENTIVE)
def test_attention_weights(sentences: Sentences, attention: AttentionScore, input_feeding: bool) -> None:
    """One map of a whole target in a forward pass, one of one position in each step of search."""
    model = build(attention=attention, input_feeding=input_feeding or attention is AttentionScore.additive)
    src, src_mask, tgt_in = sentences(3, 6, 5)
    maps = model.attention(src, src_mask, tgt_in)
    (weights,) = maps.cross
    assert weights.shape == (3, 1, 5, 6)
    assert_close(weights.sum(-1), torch.ones(3, 1, 5))
    assert torch.equal(weights > 0, src_mask[:, None, None].expand(weights.shape))
    assert maps.encoder == maps.decoder == []

    with recorded_attention(model) as recorded:
        state = model.start(src, src_mask)
        for last in tgt_in.unbind(1):
            model.step(last, state)
    assert_close(torch.cat(recorded["cross"], dim=2), weights)


def test_attention_weights_of_beams(sentences: Sentences) -> None:
    model = build()
    src, src_mask, tgt_in = sentences(2, 6, 4)
    state = model.start(src, src_mask).select(torch.tensor([0, 0, 1, 1]))
    with recorded_attention(model) as recorded:
        model.step(torch.tensor([5, 6, 7, 8]), state)
    (weights,) = recorded["cross"]
    assert_close(weights[:, 0, 0], model.attention(src, src_mask, tgt_in).cross[0][[0, 0, 1, 1], 0, 0])


@pytest.mark.parametrize("input_feeding", [True, False])
def test_there_are_no_weights_without_attention(sentences: Sentences, input_feeding: bool) -> None:
    model = build(attention=AttentionScore.none, input_feeding=input_feeding)
    assert model.attention(*sentences(3, 6, 5)).cross == []


@pytest.mark.parametrize("attention", AttentionScore)
def test_dropout_is_off_in_eval_mode_only(sentences: Sentences, attention: AttentionScore) -> None:
    model = build(attention=attention, encoder_layers=2, decoder_layers=2, dropout=0.3)
    batch = sentences(3, 6, 5)
    assert torch.equal(model(*batch), model(*batch))
    model.train()
    assert not torch.equal(model(*batch), model(*batch))


@pytest.mark.parametrize("cell", Cell)
def test_initial_weights(cell: Cell) -> None:
    layer = RecurrentLayer(cell, 48, 32)
    ((w_ih, w_hh, b_ih, b_hh),) = layer.kernel.all_weights
    for gate in torch.split(w_hh.detach(), 32):
        assert_close(gate @ gate.T, torch.eye(32))
    for gate in torch.split(w_ih.detach(), 32):
        limit = (6 / (48 + 32)) ** 0.5
        assert 0.97 * limit < float(gate.abs().max()) <= limit
    forget_gate = torch.zeros_like(b_ih)
    if cell is Cell.lstm:
        forget_gate[32:64] = 1.0
    assert torch.equal(b_ih + b_hh, forget_gate)


@pytest.mark.parametrize("cell", Cell)
def test_layers_in_bf16_are_in_float32_without_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, cell: Cell
) -> None:
    layer, x = RecurrentLayer(cell, 16, 16), torch.randn(3, 5, 16)
    expected = layer(x)[0]
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True}, raising=False)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(layer(x)[0], expected)


@pytest.mark.parametrize("tying", [Tying.none, Tying.tgt_output])
def test_two_vocabularies(sentences: Sentences, tying: Tying) -> None:
    model = build_model(RnnConfig(d_model=16, tying=tying), src_vocab_size=23, tgt_vocab_size=31)
    assert model.project(model(*sentences(2, 4, 3))).shape == (2, 3, 31)


@pytest.mark.parametrize("tying", Tying)
def test_tying_asks_for_a_joint_vocabulary(tying: Tying) -> None:
    assert RnnConfig(tying=tying).shares_vocabulary == (tying not in (Tying.none, Tying.tgt_output))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 0}, "model.d_model must be at least 1, but is 0"),
        ({"encoder_layers": 0}, "model.encoder_layers must be at least 1, but is 0"),
        ({"decoder_layers": -1}, "model.decoder_layers must be at least 1, but is -1"),
        ({"dropout": 1.0}, "model.dropout must be in [0, 1), but is 1.0"),
        (
            {"d_model": 15},
            "model.d_model must be even with model.bidirectional=true, but is 15; try model.d_model=16",
        ),
        (
            {"input_feeding": False},
            "model.attention=additive needs model.input_feeding=true, but it is false: the context is an "
            "input of the cell; set model.input_feeding=true or model.attention=general",
        ),
    ],
)
def test_config_errors(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        RnnConfig(**fields)


def test_an_odd_width_is_fine_in_one_direction(sentences: Sentences) -> None:
    assert build(d_model=15, bidirectional=False)(*sentences(2, 4, 3)).shape == (2, 3, 15)


def test_compiling_leaves_it_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*_: object, **__: object) -> None:
        raise AssertionError("a recurrent model is compiled")

    monkeypatch.setattr(torch, "compile", compiled)
    LossModule(build(), cross_entropy(), compiled=True)


@pytest.mark.parametrize("cell", Cell)
def test_trains_in_fp16(cell: Cell, sentences: Sentences) -> None:
    """Where the kernels have no such precision they run in float32, and say nothing."""
    cfg = RnnConfig(d_model=16, cell=cell, encoder_layers=2, attention=AttentionScore.none)
    model = build_model(cfg, src_vocab_size=23, tgt_vocab_size=23).train()
    with torch.autocast("cpu", torch.float16):
        hidden = model(*sentences(3, 5, 4))
    torch.autograd.backward(hidden.float().sum())
    gradients = [p.grad for name, p in model.named_parameters() if name.startswith("encoder")]
    assert gradients
    assert all(grad is not None and bool(grad.isfinite().all()) for grad in gradients)
