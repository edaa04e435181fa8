"""Models of Marian (Junczys-Dowmunt et al. 2018), such as those of OPUS-MT, as `transformers` stores them.

They are post-norm Transformers with a bias on the logits. Their positions have all sines in the first half of
the channels and all cosines in the second; ours alternate. A Transformer computes the same when its channels
change places in every matrix, so the weights are put into that order, and no position differs.

Their decoder begins with the padding token, which is therefore our BOS, too. See `nmt.exchange.pieces` for
their pieces, and `nmt.exchange.imported` for the names of the layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from nmt.data.tokenizer import Tokenizer
from nmt.data.tokenizer_training import TokenizerConfig
from nmt.errors import UserError
from nmt.exchange.foreign import ForeignFolder
from nmt.exchange.imported import (
    STACK_FIELDS,
    Imported,
    never_predicted,
    numbered,
    stack_config,
    stack_weights,
    tying,
    vocabulary_weights,
)
from nmt.exchange.pieces import Numbering, renumbered
from nmt.layers.choices import NormOrder
from nmt.models.configs import TransformerConfig

FIELDS = STACK_FIELDS | dict.fromkeys(
    ("share_encoder_decoder_embeddings", "normalize_embedding", "normalize_before"), bool | None
)


def read(folder: ForeignFolder, src: str, tgt: str) -> Imported:
    """Return the model of a folder whose config.json has the model_type marian; it knows its languages.

    Raises:
        UserError: a file is missing or damaged, or the model has what ours cannot have.
    """
    settings = folder.settings(FIELDS)
    for name in ("normalize_embedding", "normalize_before"):
        if settings.get(name):
            raise UserError(f"config.json: {name}=true is not supported by the import of Marian's models")
    shared = settings.get("share_encoder_decoder_embeddings") is not False
    segmenters = [folder.segmenter("source.spm"), folder.segmenter("target.spm")]
    if shared:
        vocabularies = [folder.vocabulary("vocab.json")] * 2
        sources = targets = numbered(settings, vocabularies[0], segmenters)
    else:
        vocabularies = [folder.vocabulary("vocab.json"), folder.vocabulary("target_vocab.json")]
        pairs = zip(vocabularies, segmenters, strict=True)
        sources, targets = (numbered(settings, vocabulary, [segmenter]) for vocabulary, segmenter in pairs)
    codes = [name for name in vocabularies[0] if name.startswith(">>") and name.endswith("<<")]
    tokenizer = Tokenizer(
        TokenizerConfig(kind=segmenters[0].kind, vocab_size=len(sources.rows), joint=shared),
        renumbered(segmenters[0], sources.spellings, codes),
        renumbered(segmenters[1], targets.spellings, codes if shared else ()),
    )
    cfg = stack_config(
        settings,
        norm_order=NormOrder.post,
        embedding_scale=bool(settings.get("scale_embedding")),
        tying=tying(settings, joint=shared),
    )
    remarks = [f"a line must begin with its target language: {', '.join(sorted(codes))}"] if codes else []
    return Imported(cfg, tokenizer, dict(_weights(folder.weights(), cfg, sources, targets)), targets, remarks)


def alternating(d_model: int) -> Tensor:
    """Return the order (D,) that puts sines and cosines of one wavelength side by side."""
    half = (d_model + 1) // 2
    channel = torch.arange(d_model)
    return channel // 2 + channel % 2 * half


def _weights(
    found: Mapping[str, Tensor], cfg: TransformerConfig, src: Numbering, tgt: Numbering
) -> Iterator[tuple[str, Tensor]]:
    order = alternating(cfg.d_model)
    yield from stack_weights(found, cfg, order)
    yield from vocabulary_weights(found, cfg, src, tgt, order)
    biases = found.get("final_logits_bias", torch.zeros(max(tgt.rows) + 1)).flatten()
    if len(biases) <= max(tgt.rows):
        raise UserError(f"final_logits_bias has {len(biases)} numbers, which does not fit the vocabulary")
    yield "output.bias", never_predicted(biases[torch.tensor(tgt.rows)], tgt)
