"""The weights of a run for a peer that is a torch module as well: the same maps and norms under its names.

What it has apart and this project has in one matrix are the keys and the values of attention.
"""

import numpy as np
import torch

MAPS = ("query", "key", "value", "output")


def attention(own, maps, norm):
    """What the parts of our sublayer `own` are called: its four maps, in the order of MAPS, and its norm."""
    named = {f"{own}.attention.{part}": name for part, name in zip(MAPS, maps, strict=True)}
    return named | {f"{own}.residual.norm": norm}


def feed_forward(inner, outer, norm):
    """What the parts of our feed-forward sublayer are called."""
    maps = {"feed_forward.block.inner": inner, "feed_forward.block.outer": outer}
    return maps | {"feed_forward.residual.norm": norm}


def renamed(weights, names):
    """The state dict of both stacks: `encoder.layers.0.NAME.weight`, with the `names` of each side.

    A weight that has no name there is a KeyError: none is left behind.
    """
    state = {}
    for name, value in weights.items():
        side, *place = name.split(".", 2)
        if side in names:
            number, part = place
            part, _, kind = part.rpartition(".")
            sublayer, both, _ = part.partition("key_value")
            pieces = zip(("key", "value"), np.split(value, 2), strict=True) if both else [("", value)]
            for piece, array in pieces:
                theirs = names[side][f"{sublayer}{piece}"]
                state[f"{side}.layers.{number}.{theirs}.{kind}"] = torch.from_numpy(array)
        elif side in ("encoder_norm", "decoder_norm"):
            state[f"{side.removesuffix('_norm')}.layer_norm.{place[0]}"] = torch.from_numpy(value)
    return state
