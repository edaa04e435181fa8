"""Layers of recurrent cells, over a whole sequence in one kernel or one position at a time.

Knows vectors, not tokens, and nothing of attention. Shapes: N sequences, T positions, L layers, E input
width, D d_model, M state vectors of a cell: the hidden state, and for the LSTM its cell. Padding is at
the end.

Recurrent matrices start orthogonal (Saxe et al. 2014), the others from Xavier's uniform distribution, each
gate by itself; biases start at 0, that of the LSTM's forget gate at 1 (Jozefowicz et al. 2015). Dropout is
applied between layers, never along time (Zaremba et al. 2015).

GRU: Cho et al. 2014, section 2.3, but that the reset gate scales the product of the recurrent matrix and its
bias, not the state before it. LSTM: Hochreiter and Schmidhuber 1997, with forget gate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from nmt.layers.blocks import Dropout, module_list
from nmt.models.configs import Cell
from nmt.runtime import processor_has

KERNELS: dict[Cell, Callable[..., nn.RNNBase]] = {Cell.rnn: nn.RNN, Cell.gru: nn.GRU, Cell.lstm: nn.LSTM}


def _needs_float32(device: str, dtype: torch.dtype) -> bool:
    """Return whether layers run in float32 although autocast asks for `dtype`.

    On CUDA autocast gives cuDNN fp16 for bf16. On CPU, oneDNN has bf16 with AVX-512 alone and no fp16.
    """
    if device == "cuda":
        return dtype is torch.bfloat16
    return device == "cpu" and (dtype is torch.float16 or not processor_has("avx512_bw"))


class RecurrentLayer(nn.Module):
    """One layer of cells, in one direction."""

    is_stepped_through = True
    """Whether a model may call `step` at every position, which passes by hooks on the call of the layer."""

    def __init__(self, cell: Cell, input_size: int, hidden_size: int):
        super().__init__()
        self.cell = cell
        self.kernel = KERNELS[cell](input_size, hidden_size, batch_first=True)
        self._initialise()

    def forward(self, x: Tensor, states: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return hidden states (N, T, D) over x (N, T, E), and the states (N, M, D) after the last.

        `states` (N, M, D) are those before the first position; None stands for zeros.
        """
        device = x.device.type
        if torch.is_autocast_enabled(device) and _needs_float32(device, torch.get_autocast_dtype(device)):
            with torch.autocast(device, enabled=False):
                return self._run(x.float(), None if states is None else states.float())
        return self._run(x, states)

    def _run(self, x: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.cell is not Cell.lstm:
            hidden, last = self.kernel(x, None if states is None else states.transpose(0, 1).contiguous())
            return hidden, last.transpose(0, 1)
        before = None if states is None else tuple(state[None].contiguous() for state in states.unbind(1))
        hidden, (last_hidden, last_cell) = self.kernel(x, before)
        return hidden, torch.cat([last_hidden, last_cell]).transpose(0, 1)

    def step(self, x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the M states (N, D) after x (N, E), the hidden state first.

        The cells of torch are fused on CUDA. Multiplying all words of a target at once, before the loop over
        its positions, would need cells of our own; on CPU it saves nothing for the GRU, a tenth for the LSTM.
        """
        (weights,) = self.kernel.all_weights
        if self.cell is Cell.lstm:
            return torch.lstm_cell(x, states, *weights)
        cell = torch.gru_cell if self.cell is Cell.gru else torch.rnn_tanh_cell
        return (cell(x, states[0], *weights),)

    def _initialise(self) -> None:
        hidden_size = self.kernel.hidden_size
        for name, parameter in self.kernel.named_parameters():
            for gate in torch.split(parameter, hidden_size):
                if name.startswith("bias"):
                    nn.init.zeros_(gate)
                elif name.startswith("weight_hh"):
                    nn.init.orthogonal_(gate)
                else:
                    nn.init.xavier_uniform_(gate)
        if self.cell is Cell.lstm:
            _, forget, _, _ = torch.split(self.kernel.all_weights[0][2], hidden_size)  # of the input bias
            nn.init.ones_(forget)


class RecurrentEncoder(nn.Module):
    """Layers that read each sequence from its start, or half of every layer from its end.

    With two directions each has D / 2 of the D channels of every layer, so that both kinds of encoder are
    equally wide. Instead of packing, which needs the lengths on the host, every sequence is reversed within
    itself: padding stays at the end, where no real position sees it.
    """

    def __init__(self, cell: Cell, d_model: int, num_layers: int, *, bidirectional: bool, dropout: float):
        super().__init__()
        width = d_model // 2 if bidirectional else d_model
        self.layers = nn.ModuleList(RecurrentLayer(cell, d_model, width) for _ in range(num_layers))
        self.reverse_layers = nn.ModuleList(
            RecurrentLayer(cell, d_model, width) for _ in range(num_layers if bidirectional else 0)
        )
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return memory (N, T, D) of x (N, T, D), and the last hidden states (N, D); mask (N, T)."""
        lengths = mask.sum(1)
        rows = torch.arange(len(x), device=x.device)
        if not self.reverse_layers:
            for i, layer in enumerate(self.layers):
                x, _ = layer(self.dropout(x) if i else x)
            return x, x[rows, lengths - 1]

        columns = torch.arange(x.shape[1], device=x.device).expand_as(mask)
        reversed_columns = torch.where(mask, lengths[:, None] - 1 - columns, columns)
        order = (rows[:, None] * x.shape[1] + reversed_columns).flatten()  # its own inverse
        for i, (layer, reverse_layer) in enumerate(zip(self.layers, self.reverse_layers, strict=True)):
            x = self.dropout(x) if i else x
            forth, _ = layer(x)
            back, _ = reverse_layer(_reorder(x, order))
            x = torch.cat([forth, _reorder(back, order)], dim=-1)
        width = x.shape[-1] // 2
        return x, torch.cat([x[rows, lengths - 1, :width], x[:, 0, width:]], dim=-1)


def _reorder(x: Tensor, order: Tensor) -> Tensor:
    """Return x (N, T, D) with its N * T positions in the given order (N * T,)."""
    return x.flatten(0, 1).index_select(0, order).view_as(x)


class RecurrentStack(nn.Module):
    """Layers of cells for a decoder, which hands its states (N, L, M, D) from call to call."""

    def __init__(self, cell: Cell, input_size: int, d_model: int, num_layers: int, *, dropout: float):
        super().__init__()
        sizes = [input_size] + [d_model] * (num_layers - 1)
        self.layers = module_list(RecurrentLayer(cell, size, d_model) for size in sizes)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states (N, T, D) of the top layer over x (N, T, E), and the states after the last."""
        after = []
        for i, (layer, before) in enumerate(zip(self.layers, states.unbind(1), strict=True)):
            x, last = layer(self.dropout(x) if i else x, before)
            after.append(last)
        return x, torch.stack(after, dim=1)

    def step(self, x: Tensor, states: Sequence[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        """Return the M states (N, D) of every layer after x (N, E); the top hidden state is [-1][0]."""
        after: list[tuple[Tensor, ...]] = []
        for layer, before in zip(self.layers, states, strict=True):
            after.append(layer.step(self.dropout(after[-1][0]) if after else x, before))
        return after


def split_states(states: Tensor) -> list[tuple[Tensor, ...]]:
    """Return states (N, L, M, D) as `RecurrentStack.step` takes them: for each layer M of (N, D)."""
    return [layer.unbind(1) for layer in states.unbind(1)]


def join_states(states: Sequence[tuple[Tensor, ...]]) -> Tensor:
    """Return the states (N, L, M, D) that `split_states` would take apart into `states`."""
    return torch.stack([torch.stack(layer, dim=1) for layer in states], dim=1)
