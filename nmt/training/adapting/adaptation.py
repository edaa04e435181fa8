"""Few weights that learn beside those of another run, which stay as they are.

An adaptation is one config dataclass, one subclass of `Adaptation` and one row of `ADAPTATIONS` in
`nmt.training.adapting.configs`. It adds weights to a model and renames none, so that the weights of a model
without it find their places.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from nmt.loading import loaded
from nmt.models.base import TranslationModel
from nmt.training.adapting.configs import ADAPTATIONS, AdaptationConfig, FewWeightsConfig
from nmt.training.adapting.freezing import matching


class Adaptation:
    """A way to train few weights; this one adds none, so that all learn."""

    def __init__(self, cfg: Any):
        self.cfg = cfg

    def insert(self, model: TranslationModel) -> None:
        """Add weights to `model` that change nothing of what it computes before they learn.

        Raises:
            UserError: the model has no place for them.
        """

    def merge(self, model: TranslationModel) -> None:
        """Make the added weights a part of the others where `cfg.merges` says so."""


def adapt(model: TranslationModel, cfg: AdaptationConfig) -> None:
    """Add the weights of an adaptation to `model`, and freeze all others but those of `adapt.train`.

    Raises:
        UserError: the model has no place for them, or a pattern matches no name.
    """
    if not isinstance(cfg, FewWeightsConfig):
        return
    own = list(model.parameters())
    _build(cfg).insert(model)
    for parameter in own:
        parameter.requires_grad_(False)
    named = dict(model.named_parameters(remove_duplicate=False))
    for name in matching(cfg.train, named, "adapt.train"):
        named[name].requires_grad_(True)


def merge(model: TranslationModel, cfg: AdaptationConfig) -> None:
    """Make what an adaptation has learnt a part of the other weights of `model`, where that is possible."""
    _build(cfg).merge(model)


def frozen_names(model: nn.Module) -> set[str]:
    """Return all names of the weights that do not learn."""
    named = model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if not parameter.requires_grad}


def num_learning(model: nn.Module) -> tuple[int, int]:
    """Return how many weights learn, and how many there are."""
    learning = sum(x.numel() for x in model.parameters() if x.requires_grad)
    return learning, sum(x.numel() for x in model.parameters())


def _build(cfg: AdaptationConfig) -> Adaptation:
    built: Adaptation = loaded(ADAPTATIONS[cfg.name][1])(cfg)
    return built
