"""Translate with JoeyNMT's own model and search, with the weights of a run.

Its layer norms have another epsilon, and its table of positions is computed in float32; both are replaced.
"""

import numpy as np
import torch
from job import by_length, of_text, parallel, read_job, translated
from joeynmt.search import search
from joeynmt_train import batch_of, build
from states import attention, feed_forward, renamed


class OfLength(float):
    """An exponent that applies to the length, where JoeyNMT takes a power of (5 + length) / 6."""

    def __rpow__(self, base):
        return (6.0 * base - 5.0) ** float(self)


def converted(weights):
    """Return the state dict of JoeyNMT's model, except for the positions."""

    def sublayer(own, theirs, norm):
        maps = (f"{theirs}.{part}_layer" for part in ("q", "k", "v", "output"))
        return attention(own, maps, norm)

    block = feed_forward(*(f"feed_forward.{part}" for part in ("pwff_layer.0", "pwff_layer.3", "layer_norm")))
    names = {
        "encoder": sublayer("self_attention", "src_src_att", "layer_norm") | block,
        "decoder": sublayer("self_attention", "trg_trg_att", "x_layer_norm")
        | sublayer("cross_attention", "src_trg_att", "dec_layer_norm")
        | block,
    }
    embeddings = torch.from_numpy(weights["src_embedding.tokens.weight"])
    tied = ("src_embed.lut", "trg_embed.lut", "decoder.output_layer")
    return renamed(weights, names) | {f"{name}.weight": embeddings for name in tied}


def load(job):
    """Return a function of lines."""
    torch.set_num_threads(parallel(job)[1])
    weights = dict(np.load(job["weights"]))
    model, state = build(job).eval(), converted(weights)
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = job["norm_eps"]
    positions = torch.from_numpy(weights["positions"])[None]
    for side in ("encoder", "decoder"):
        state[f"{side}.pe.pe"] = getattr(model, side).pe.pe = positions
    model.load_state_dict(state)

    @torch.inference_mode()
    def find(sources):
        ids, _, _ = search(
            model,
            batch_of(job, sources),
            max_output_length=2 * sources.shape[1] + 10,
            beam_size=job["beam_size"],
            beam_alpha=OfLength(job["alpha"]),
            min_output_length=0,
        )
        return ids.tolist()

    return of_text(job, by_length(job, find))


if __name__ == "__main__":
    translated(read_job(), load)
