"""The weights of a run under the names of a peer that is a torch module: the same maps and norms.

A peer has keys and values of attention in two matrices, this project in one.
"""

import numpy as np
import torch

MAPS = ("query", "key", "value", "output")


def attention(own, maps, norm):
    """Return a peer's names for our sublayer `own`: its four maps, in the order of MAPS, and its norm."""
    named = {f"{own}.attention.{part}": name for part, name in zip(MAPS, maps, strict=True)}
    return named | {f"{own}.residual.norm": norm}


def feed_forward(inner, outer, norm):
    """Return a peer's names for the parts of our feed-forward sublayer."""
    maps = {"feed_forward.block.inner": inner, "feed_forward.block.outer": outer}
    return maps | {"feed_forward.residual.norm": norm}


def renamed(weights, names):
    """Return the state dict of both stacks: `encoder.layers.0.NAME.weight`, with the `names` of each side.

    Raises:
        KeyError: a weight has no name at the peer; none is dropped.
    """
    state = {}
    for name, value in weights.items():
        side, *path = name.split(".", 2)
        if side in names:
            number, part = path
            part, _, kind = part.rpartition(".")
            sublayer, both, _ = part.partition("key_value")
            pieces = zip(("key", "value"), np.split(value, 2), strict=True) if both else [("", value)]
            for piece, array in pieces:
                theirs = names[side][f"{sublayer}{piece}"]
                state[f"{side}.layers.{number}.{theirs}.{kind}"] = torch.from_numpy(array)
        elif side in ("encoder_norm", "decoder_norm"):
            state[f"{side.removesuffix('_norm')}.layer_norm.{path[0]}"] = torch.from_numpy(value)
    return state
