"""Models of Marian (Junczys-Dowmunt et al. 2018), such as those of OPUS-MT, as `transformers` stores them.

They are post-norm Transformers with a bias on the logits. Their positions have all sines in the first half of
the channels and all cosines in the second; ours alternate. A Transformer computes the same when its channels
change places in every matrix, so the weights are put into that order, and no position differs.

Their decoder begins with the padding token, which is therefore our BOS, too. See `nmt.exchange.pieces` for
their pieces, and `nmt.exchange.imported` for the names of the layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from nmt.data.reading.mixture import TAG
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig
from nmt.errors import UserError, suggest
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
    with_tags,
)
from nmt.exchange.pieces import Numbering, renumbered
from nmt.layers.choices import NormOrder
from nmt.models.configs import TransformerConfig

FIELDS = STACK_FIELDS | dict.fromkeys(
    ("share_encoder_decoder_embeddings", "normalize_embedding", "normalize_before"), bool | None
)


def read(folder: ForeignFolder, src: str, targets: Sequence[str]) -> Imported:
    """Return the model of a folder whose config.json has the model_type marian.

    It knows its languages. Of a model of several target languages a piece in front of a source, such as
    >>fra<<, asks for one: for those among `targets` it is our tag.

    Raises:
        UserError: a file is missing or damaged, or the model has what ours cannot have.
    """
    settings = folder.settings(FIELDS)
    for name in ("normalize_embedding", "normalize_before"):
        if settings.get(name):
            raise UserError(f"config.json: {name}=true is not supported by the import of Marian's models")
    shared = settings.get("share_encoder_decoder_embeddings") is not False
    segmenters = [folder.segmenter("source.spm"), folder.segmenter("target.spm")]
    vocabulary = folder.vocabulary("vocab.json")
    spoken = _asked_for(vocabulary, targets)
    vocabulary = with_tags(vocabulary, spoken)
    if shared:
        ours_src = ours_tgt = numbered(settings, vocabulary, segmenters)
    else:
        ours_src = numbered(settings, vocabulary, segmenters[:1])
        ours_tgt = numbered(settings, folder.vocabulary("target_vocab.json"), segmenters[1:])
    typed = [name for name in vocabulary if _is_code(name)]
    symbols = [*typed, *filter(TAG.fullmatch, vocabulary)]
    tokenizer = Tokenizer(
        TokenizerConfig(kind=segmenters[0].kind, vocab_size=len(ours_src.rows), joint=shared),
        renumbered(segmenters[0], ours_src.spellings, symbols),
        renumbered(segmenters[1], ours_tgt.spellings, symbols if shared else ()),
    )
    cfg = stack_config(
        settings,
        norm_order=NormOrder.post,
        embedding_scale=bool(settings.get("scale_embedding")),
        tying=tying(settings, joint=shared),
    )
    remarks = [f"a line must begin with its target language: {', '.join(sorted(typed))}"]
    weights = dict(_weights(folder.weights(), cfg, ours_src, ours_tgt))
    return Imported(cfg, tokenizer, weights, ours_tgt, remarks if typed and not spoken else [], bool(spoken))


def _asked_for(vocabulary: Mapping[str, int], targets: Sequence[str]) -> dict[str, str]:
    """Return the piece of each target language that has one.

    Raises:
        UserError: there are several languages, and the model has no piece for one of them.
    """
    spoken = {tgt: f">>{tgt}<<" for tgt in targets if f">>{tgt}<<" in vocabulary}
    for tgt in targets if len(targets) > 1 else ():
        if tgt not in spoken:
            known = sorted(name.strip("<>") for name in vocabulary if _is_code(name))
            told = (
                f"it knows {', '.join(known)}{suggest(tgt, known)}"
                if known
                else "it has one; name that alone"
            )
            raise UserError(f"tgt={tgt}: the model cannot be asked for this language; {told}")
    return spoken


def _is_code(piece: str) -> bool:
    return piece.startswith(">>") and piece.endswith("<<")


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
