"""The recurrent encoder-decoder: without attention, with that of Bahdanau, or with that of Luong.

The score of the attention decides the order of a step of the decoder:

    none            The last state of the encoder, the summary, is all that the decoder knows of the source
                    (Sutskever et al. 2014). With input feeding the summary is part of every input (Cho et al.
                    2014).
    additive        The state before the step is the query; the context enters the cell together with the word
                    (Bahdanau et al. 2015).
    dot, general    The state after the step is the query; context and state make the attentional vector. With
                    input feeding that vector is part of the next input (Luong et al. 2015).

Words are predicted from one more tanh layer over the vectors of a step. Where an input depends on the step
before, the target is a loop over positions, otherwise one kernel a layer. Words, hidden states of the decoder
and memory have D channels; a bidirectional encoder has D / 2 in each direction. The decoder starts from a
tanh layer over the last states of the encoder, whatever the cell and the depths.
Knows token ids and nothing of text, batches or loss. Shapes: B sentences, S source length, T target length,
D d_model, L decoder layers, M states of a cell, K beams, N = B * K hypotheses, V target vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from nmt.layers.blocks import Dropout
from nmt.models.base import State, TranslationModel
from nmt.models.configs import AttentionScore, RnnConfig
from nmt.models.recurrence import RecurrentEncoder, RecurrentStack, join_states, split_states
from nmt.models.rnn_attention import AdditiveAttention, DotAttention, GeneralAttention, RecurrentAttention
from nmt.models.vocabulary import build_vocabulary


class Decoder(nn.Module, ABC):
    """The base of the decoders, which read a whole target in training and word after word in search."""

    def __init__(self, cfg: RnnConfig, *, num_inputs: int):
        super().__init__()
        self.shape = (cfg.decoder_layers, cfg.cell.num_states, cfg.d_model)  # L, M, D
        self.bridge = _xavier(cfg.d_model, cfg.decoder_layers * cfg.cell.num_states * cfg.d_model, bias=True)
        self.stack = RecurrentStack(
            cfg.cell, num_inputs * cfg.d_model, cfg.d_model, cfg.decoder_layers, dropout=cfg.dropout
        )

    def start(self, memory: Tensor, summary: Tensor, src_mask: Tensor) -> State:
        """Return the state before the first word, given memory (B, S, D), summary (B, D), mask (B, S)."""
        states = torch.tanh(self.bridge(summary)).view(-1, *self.shape)
        return State(source=self.read(memory, summary, src_mask), target={"states": states})

    @abstractmethod
    def read(self, memory: Tensor, summary: Tensor, src_mask: Tensor) -> dict[str, Tensor]:
        """Return the tensors, with B rows, that the decoder stores of the source; shapes as in `start`."""

    @abstractmethod
    def forward(self, words: Tensor, state: State) -> Tensor:
        """Return outputs (N, T, D) after each of the words (N, T, D); advance `state` in place."""


class PlainDecoder(Decoder):
    """A decoder without attention: Sutskever et al. 2014; with input feeding Cho et al. 2014, section 2.2."""

    def __init__(self, cfg: RnnConfig):
        super().__init__(cfg, num_inputs=2 if cfg.input_feeding else 1)
        self.input_feeding = cfg.input_feeding
        self.readout = _xavier((3 if cfg.input_feeding else 1) * cfg.d_model, cfg.d_model, bias=True)

    def read(self, memory: Tensor, summary: Tensor, src_mask: Tensor) -> dict[str, Tensor]:
        return {"summary": summary} if self.input_feeding else {}

    def forward(self, words: Tensor, state: State) -> Tensor:
        inputs = words
        if self.input_feeding:
            summary = state.source["summary"]
            summary = summary.repeat_interleave(len(words) // len(summary), dim=0)  # one for each hypothesis
            inputs = torch.cat([summary[:, None].expand_as(words), words], dim=-1)
        hidden, state.target["states"] = self.stack(inputs, state.target["states"])
        seen = torch.cat([hidden, inputs], dim=-1) if self.input_feeding else hidden
        return torch.tanh(self.readout(seen))


class AttentiveDecoder(Decoder):
    """The base of decoders with attention: the stored source, and attention to it."""

    def __init__(self, cfg: RnnConfig, attention: RecurrentAttention, *, num_inputs: int):
        super().__init__(cfg, num_inputs=num_inputs)
        self.attention = attention

    def read(self, memory: Tensor, summary: Tensor, src_mask: Tensor) -> dict[str, Tensor]:
        return {"memory": memory, "keys": self.attention.keys(memory), "mask": src_mask}

    def look(self, queries: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Return contexts (N, T, D) and weights (N, T, S) of queries (N, T, D).

        The K hypotheses of a sentence are K * T queries over the one stored copy of its source.
        """
        source = state.source
        grouped = queries.reshape(len(source["mask"]), -1, queries.shape[-1])  # (B, K * T, D)
        contexts, weights = self.attention(grouped, source["keys"], source["memory"], source["mask"])
        return contexts.view_as(queries), weights.view(*queries.shape[:2], -1)


class BahdanauDecoder(AttentiveDecoder):
    """A decoder whose last state is the query and whose context enters the cell: Bahdanau et al. 2015.

    Section 3.1 and appendix A.2.2. The query is the state of the top layer. State, context and word make the
    output, by a tanh layer in place of the paper's maxout layer.
    """

    def __init__(self, cfg: RnnConfig):
        super().__init__(cfg, AdditiveAttention(cfg.d_model), num_inputs=2)
        self.readout = _xavier(3 * cfg.d_model, cfg.d_model, bias=True)

    def forward(self, words: Tensor, state: State) -> Tensor:
        states = split_states(state.target["states"])
        hidden, contexts, weights = [], [], []
        for word in words.unbind(1):
            context, weight = self.look(states[-1][0][:, None], state)
            states = self.stack.step(torch.cat([word, context[:, 0]], dim=-1), states)
            hidden.append(states[-1][0])
            contexts.append(context)
            weights.append(weight)
        state.target["states"] = join_states(states)
        self.attention.record(torch.cat(weights, dim=1))
        seen = [torch.stack(hidden, dim=1), torch.cat(contexts, dim=1), words]
        return torch.tanh(self.readout(torch.cat(seen, dim=-1)))


class LuongDecoder(AttentiveDecoder):
    """A decoder whose new state is the query: Luong et al. 2015, sections 3 and 3.3.

    The output is the attentional vector, tanh(W [context; state]).
    """

    def __init__(self, cfg: RnnConfig):
        general = cfg.attention is AttentionScore.general
        attention = GeneralAttention(cfg.d_model) if general else DotAttention()
        super().__init__(cfg, attention, num_inputs=2 if cfg.input_feeding else 1)
        self.input_feeding = cfg.input_feeding
        self.combine = _xavier(2 * cfg.d_model, cfg.d_model, bias=False)

    def start(self, memory: Tensor, summary: Tensor, src_mask: Tensor) -> State:
        state = super().start(memory, summary, src_mask)
        if self.input_feeding:
            state.target["fed"] = torch.zeros_like(summary)
        return state

    def forward(self, words: Tensor, state: State) -> Tensor:
        if not self.input_feeding:
            hidden, state.target["states"] = self.stack(words, state.target["states"])
            output, weights = self.attend(hidden, state)
            self.attention.record(weights)
            return output

        states, fed = split_states(state.target["states"]), state.target["fed"]
        all_outputs, all_weights = [], []
        for word in words.unbind(1):
            states = self.stack.step(torch.cat([word, fed], dim=-1), states)
            output, weights = self.attend(states[-1][0][:, None], state)
            fed = output[:, 0]
            all_outputs.append(output)
            all_weights.append(weights)
        state.target["states"], state.target["fed"] = join_states(states), fed
        self.attention.record(torch.cat(all_weights, dim=1))
        return torch.cat(all_outputs, dim=1)

    def attend(self, hidden: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Return attentional vectors (N, T, D) of hidden states (N, T, D), and the weights (N, T, S)."""
        contexts, weights = self.look(hidden, state)
        return torch.tanh(self.combine(torch.cat([contexts, hidden], dim=-1))), weights


DECODERS: dict[AttentionScore, type[PlainDecoder | BahdanauDecoder | LuongDecoder]] = {
    AttentionScore.none: PlainDecoder,
    AttentionScore.additive: BahdanauDecoder,
    AttentionScore.dot: LuongDecoder,
    AttentionScore.general: LuongDecoder,
}


def _xavier(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class Rnn(TranslationModel):
    """See the module's docstring; the contract is in `nmt.models.base`."""

    gains_from_compiling = False
    """The kernels of torch are the gain; a loop over positions would be compiled anew for every T."""

    def __init__(self, cfg: RnnConfig, *, src_vocab_size: int, tgt_vocab_size: int):
        super().__init__()
        src, tgt, output = build_vocabulary(
            cfg.tying, cfg.d_model, src_vocab_size=src_vocab_size, tgt_vocab_size=tgt_vocab_size
        )
        self.src_embedding, self.tgt_embedding, self.output = src, tgt, output
        self.dropout = Dropout(cfg.dropout)
        self.encoder = RecurrentEncoder(
            cfg.cell,
            cfg.d_model,
            cfg.encoder_layers,
            bidirectional=cfg.bidirectional,
            dropout=cfg.dropout,
        )
        self.decoder = DECODERS[cfg.attention](cfg)

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Return the hidden states (B, T, D) of every target position (teacher forcing)."""
        return self._decode(tgt_in, self.start(src, src_mask))

    def start(self, src: Tensor, src_mask: Tensor) -> State:
        """Encode the source."""
        memory, summary = self.encoder(self.dropout(self.src_embedding(src)), src_mask)
        return self.decoder.start(memory, summary, src_mask)

    def advance(self, last: Tensor, state: State) -> Tensor:
        """Return the hidden states (N, D) that predict the token after `last` (N,)."""
        hidden = self._decode(last[:, None], state)
        state.position += 1
        return hidden[:, 0]

    def _decode(self, ids: Tensor, state: State) -> Tensor:
        words = self.dropout(self.tgt_embedding(ids))
        return self.dropout(self.decoder(words, state))
