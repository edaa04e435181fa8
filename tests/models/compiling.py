"""What the families have in common when they are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

from nmt.models.base import TranslationModel


def assert_one_graph(
    model: TranslationModel, sentences: Callable[[int, int, int], tuple[Tensor, Tensor, Tensor]]
) -> None:
    """Compile `model` and require that one graph serves all lengths, with the results of plain code."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend=backend)
    for sizes in ((2, 5, 4), (3, 7, 9), (4, 6, 6)):
        batch = sentences(*sizes)
        assert_close(compiled(*batch), model(*batch))
    assert len(graphs) == 1
