"""Models for `transformers`: a class of that library that computes the same, and a tokenizer for it.

    norm_order  embedding_norm  class       positions
    pre         false           Blenderbot  a table: sinusoids, trained vectors, or zeros
    pre         true            MBart       a table
    post        true            Bart        a table
    post        false           Marian      its own sinusoids

Marian makes its table itself and never stores it, all sines in the first half of the channels; ours
alternate. A Transformer computes the same when its channels change places in every matrix, and so do those of
the exported one. Maps without bias get zeros. The tokenizer is Marian's for all: SentencePiece itself, which
therefore gives our ids.

Shapes: D d_model, V vocabulary, L positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.data.tokens.tokenizer_training import SPACE, TagSide, TokenizerKind
from nmt.errors import UserError
from nmt.exchange import to_ctranslate2
from nmt.exchange.configs import ExportConfig, Format
from nmt.exchange.shared import (
    ANY_MODEL,
    beam_search_of,
    library,
    misfits,
    position_table,
    refuse,
    transformer_of,
)
from nmt.files import write_json
from nmt.layers.choices import Activation, Norm, NormOrder, Positions, SelfAttention
from nmt.models.configs import TransformerConfig, Tying
from nmt.models.transformer import Transformer
from nmt.runs.agreement import pieces_of
from nmt.runs.opened import Run

ACTIVATIONS = {
    Activation.relu: "relu",
    Activation.gelu: "gelu",
    Activation.silu: "silu",
}
"""Activations that the classes have -> the names of `transformers`."""


class Family(NamedTuple):
    """A class of `transformers`."""

    name: str
    first_row: int | None
    """Row of the table of positions that the first token gets; None: the class makes its own sinusoids."""


FAMILIES = {
    (NormOrder.pre, False): Family("Blenderbot", 0),
    (NormOrder.pre, True): Family("MBart", 2),
    (NormOrder.post, True): Family("Bart", 2),
    (NormOrder.post, False): Family("Marian", None),
}
"""`model.norm_order` and `model.embedding_norm` -> the class that computes so."""


OWN = ("final_logits_bias", "embed_positions.weight")
"""Ends of names that keep what the class puts there, unless we have another value: zeros, and sinusoids."""
SHARED = "model.shared.weight"
"""The matrix of embeddings that Marian has only where all are one."""
SUBLAYERS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
PARTS = {
    f"{ours}.{part}": [f"{theirs}{name}" for name in names]
    for ours, theirs in SUBLAYERS.items()
    for part, names in {
        "attention.query": [".q_proj"],
        "attention.key_value": [".k_proj", ".v_proj"],
        "attention.output": [".out_proj"],
        "residual.norm": ["_layer_norm"],
    }.items()
} | {
    "feed_forward.block.inner": ["fc1"],
    "feed_forward.block.outer": ["fc2"],
    "feed_forward.residual.norm": ["final_layer_norm"],
}
"""Parts of our layers -> those of a layer of `transformers`, which has keys and values in two maps."""
WRITERS = ("attention.output", "block.outer")
"""Ends of the names of maps whose outputs are the D channels; other maps read them."""


def write(run: Run, cfg: ExportConfig, folder: Path) -> None:
    """Write model.safetensors, config.json, generation_config.json and the files of the tokenizer.

    Raises:
        UserError: no class computes what the model does, or `transformers` is not installed.
    """
    model_cfg = transformer_of(run, cfg)
    other = "" if to_ctranslate2.obstacles(run, model_cfg) else "format=ctranslate2 holds this model, and "
    refuse(_misfits(run, model_cfg), f"{other}{ANY_MODEL}")
    library("transformers", Format.huggingface).logging.disable_progress_bar()
    assert isinstance(run.model, Transformer)
    model = converted(run.model.cpu().float(), model_cfg, run.cfg.decoding.max_source_tokens)
    model.generation_config = _generation(run, model.config.max_position_embeddings)
    model.to(getattr(torch, cfg.quantization.value)).save_pretrained(folder)
    _write_tokenizer(run, folder, model.config.max_position_embeddings)


def _misfits(run: Run, cfg: TransformerConfig) -> list[str]:
    family = FAMILIES[cfg.norm_order, cfg.embedding_norm]
    own = cfg.decoder_stack
    shares = {cfg.d_model // cfg.num_heads, own.d_model // own.num_heads}
    added = (Positions.sinusoidal, Positions.learned, Positions.none)
    held: dict[str, Any] = {
        "norm": [Norm.layer_norm],
        "norm_eps": [1e-5],
        "final_norm": [None, cfg.norm_order is NormOrder.pre],
        "positions": [Positions.sinusoidal] if family.first_row is None else added,
        "activation": ACTIVATIONS,
        "d_k": [None, *(shares if len(shares) == 1 else ())],
        "d_v": [None, *(shares if len(shares) == 1 else ())],
        "num_kv_heads": [None, *({cfg.num_heads} & {own.num_heads})],
        "decoder_d_model": [None, cfg.d_model],
        "qk_norm": [False],
        "decoder_self_attention": [SelfAttention.attention],
    }
    problems = misfits(cfg, "model", held, f"the class {family.name} of transformers")
    sizes = run.tokenizer.src_vocab_size, run.tokenizer.tgt_vocab_size
    if sizes[0] != sizes[1] and family.first_row is not None:
        problems.append(
            f"the vocabularies must have one size for the class {family.name} of transformers, but "
            f"tokenizer.joint=false gave {sizes[0]:,} and {sizes[1]:,} pieces"
        )
    if TokenizerKind.word in run.tokenizer.kinds:
        problems.append(
            "tokenizer.kind must be unigram or bpe or char for a tokenizer of transformers, but is word"
        )
    held = {"right_to_left": [False], "src_tag": [""], "tgt_tag": [""]}
    held |= {"tag_side": [TagSide.source], "source_factors": [[]]}
    return problems + misfits(run.cfg.tokenizer, "tokenizer", held, "a tokenizer of transformers")


def converted(model: Transformer, cfg: TransformerConfig, num_positions: int) -> Any:
    """Return a model of `transformers` with the weights of `model`, in float32 and for evaluation.

    A table of positions has `num_positions` rows, one that was trained as many as it has.

    Raises:
        UserError: this version of `transformers` shares matrices that the model has apart.
    """
    import transformers

    family = FAMILIES[cfg.norm_order, cfg.embedding_norm]
    table = position_table(model.src_embedding, num_positions)
    src_size, tgt_size = model.src_embedding.tokens.num_embeddings, model.output.out_features
    settings: dict[str, Any] = {
        "vocab_size": src_size,
        "d_model": cfg.d_model,
        "encoder_layers": cfg.encoder_layers,
        "decoder_layers": cfg.decoder_layers,
        "encoder_attention_heads": cfg.num_heads,
        "decoder_attention_heads": cfg.decoder_stack.num_heads,
        "encoder_ffn_dim": cfg.d_ff,
        "decoder_ffn_dim": cfg.decoder_stack.d_ff,
        "activation_function": ACTIVATIONS[cfg.activation],
        "dropout": cfg.dropout,
        "attention_dropout": cfg.attention_dropout,
        "activation_dropout": cfg.activation_dropout,
        "scale_embedding": cfg.embedding_scale,
        "max_position_embeddings": len(table),
        "tie_word_embeddings": cfg.tying is Tying.all,
        "pad_token_id": PAD_ID,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "decoder_start_token_id": BOS_ID,
        "forced_eos_token_id": None,
    }
    if family.first_row is None:
        settings["share_encoder_decoder_embeddings"] = cfg.tying is Tying.all
        settings["tie_word_embeddings"] = cfg.tying in (Tying.all, Tying.tgt_output)
        settings["decoder_vocab_size"] = tgt_size
    config = getattr(transformers, f"{family.name}Config")(**settings)
    kind = "MTModel" if family.first_row is None else "ForConditionalGeneration"
    target = getattr(transformers, f"{family.name}{kind}")(config).eval()
    fresh = target.state_dict()
    state = {name: fresh[name] for name in fresh if name.endswith(OWN)} | dict(_state(model, family, table))
    if SHARED not in fresh:
        del state[SHARED]
    target.load_state_dict(state)
    loaded = target.state_dict()
    if shared := [name for name in state if not torch.equal(state[name], loaded[name])]:
        raise UserError(
            f"transformers {transformers.__version__} shares {', '.join(shared)} with other weights, which "
            "model.tying sets apart; use pip install 'transformers>=5', or format=ctranslate2"
        )
    return target


def _state(model: Transformer, family: Family, table: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights by the names of `transformers`; `table` (L, D) holds the positions."""
    order = torch.arange(table.shape[1])
    if family.first_row is None:
        order = torch.cat([order[0::2], order[1::2]])
    matrices: dict[str, Tensor] = {
        "model.shared": model.src_embedding.tokens.weight,
        "model.encoder.embed_tokens": model.src_embedding.tokens.weight,
        "model.decoder.embed_tokens": model.tgt_embedding.tokens.weight,
        "lm_head": model.output.weight,
    }
    for name, matrix in matrices.items():
        yield f"{name}.weight", matrix[:, order]
    if model.output.bias is not None:
        yield "final_logits_bias", model.output.bias[None]
    for side, embedding in (("encoder", model.src_embedding), ("decoder", model.tgt_embedding)):
        stack = f"model.{side}"
        if family.first_row is not None:
            rows = position_table(embedding, len(table))
            skipped = rows.new_zeros(family.first_row, rows.shape[1])
            yield f"{stack}.embed_positions.weight", torch.cat([skipped, rows])
        norms = {"layernorm_embedding": embedding.norm, "layer_norm": getattr(model, f"{side}_norm")}
        for name, norm in norms.items():
            yield from _parameters([f"{stack}.{name}"], norm, order)
        for number, layer in enumerate(getattr(model, f"{side}_layers")):
            for name, module in layer.named_modules():
                theirs = [f"{stack}.layers.{number}.{part}" for part in PARTS.get(name, [])]
                yield from _parameters(theirs, module, order, writes=name.endswith(WRITERS))


def _parameters(
    names: Sequence[str], module: nn.Module, order: Tensor, *, writes: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Yield weight and bias of a norm, or of a map whose rows `names` share, with the D channels in `order`.

    `writes` tells whether these are the outputs of the map, and not its inputs. A module without weight is
    the identity.
    """
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if weight is None or not names:
        return
    bias = torch.zeros(len(weight)) if bias is None else bias
    if writes or weight.dim() == 1:
        weight, bias = weight[order], bias[order]
    else:
        weight = weight[:, order]
    for name, rows, values in zip(names, weight.chunk(len(names)), bias.chunk(len(names)), strict=True):
        yield f"{name}.weight", rows
        yield f"{name}.bias", values


def _generation(run: Run, longest: int) -> Any:
    """Return the defaults of `generate`: the beams of the run, and that PAD and BOS are never predicted."""
    import transformers

    beam_size, alpha = beam_search_of(run.cfg.decoding)
    return transformers.GenerationConfig(
        num_beams=beam_size,
        length_penalty=alpha,
        max_length=longest,
        suppress_tokens=[PAD_ID, BOS_ID],
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        decoder_start_token_id=BOS_ID,
    )


def _write_tokenizer(run: Run, folder: Path, longest: int) -> None:
    """Write the vocabularies and the config of a MarianTokenizer, whose SentencePiece models are there."""
    src, tgt = pieces_of(run.tokenizer.src_model), pieces_of(run.tokenizer.tgt_model)
    for name, pieces in (("vocab", src), ("target_vocab", tgt)):
        write_json(folder / f"{name}.json", {_code_or_piece(piece): i for i, piece in enumerate(pieces)})
    facts = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": run.cfg.data.src,
        "target_lang": run.cfg.data.tgt,
        "unk_token": tgt[UNK_ID],
        "bos_token": tgt[BOS_ID],
        "eos_token": tgt[EOS_ID],
        "pad_token": tgt[PAD_ID],
        "separate_vocabs": src != tgt,
        "model_max_length": longest,
    }
    write_json(folder / "tokenizer_config.json", facts)


def _code_or_piece(piece: str) -> str:
    """Return the key of a piece: MarianTokenizer takes language codes off the line, without their space."""
    bare = piece.removeprefix(SPACE)
    return bare if bare.startswith(">>") and bare.endswith("<<") else piece
