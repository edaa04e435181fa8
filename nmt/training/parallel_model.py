"""The model in training with its objective, in one process or shared by several.

DDP (Li et al. 2020) gives every process all weights and averages the gradients; FSDP2 (Zhao et al. 2023)
splits weights, gradients and the state of the optimizer between processes. Everything else sees whole tensors
under the names of the model, so that a checkpoint does not depend on the number of processes.
"""

from __future__ import annotations

import contextlib
import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from nmt.data.batching import Batch
from nmt.distributed import ALONE, World
from nmt.models.base import TranslationModel
from nmt.runtime import Parallel, RuntimeConfig, whole
from nmt.training.checkpoint import require_match
from nmt.training.objective import LossModule, Objective
from nmt.training.optimizer import load_optimizer_tensors, optimizer_tensors

ALIGNMENT = 8
"""Lengths of compiled batches are multiples of this: bf16 matrices and masks then lie as tensor cores want.

Nothing more is fixed. Batches are cut by tokens, so that their number of sentences varies with the lengths,
and a graph for each shape would be compiled over and over; one graph for all of them is compiled once.
"""

OF_OBJECTIVE = "objective/"
"""Prefix of the names of the objective's tensors among the optimizer's tensors in a checkpoint."""


class ParallelModel:
    """A model and its objective, called for the loss of a batch; the optimizer updates `trained`.

    `trained` is `model` itself, except with FSDP: then `trained` holds a part of the weights, and `model` is
    a whole copy for evaluation that `refresh` brings up to date.
    """

    def __init__(
        self,
        model: TranslationModel,
        objective: Objective,
        cfg: RuntimeConfig | None = None,
        *,
        world: World = ALONE,
        device: torch.device | None = None,
    ):
        cfg, device = cfg or RuntimeConfig(), device or torch.device("cpu")
        shards = world.size > 1 and cfg.parallel is Parallel.fsdp
        fits = not (model.max_length or 0) % ALIGNMENT  # or padding might need a position too many
        self.multiple = ALIGNMENT if cfg.compile and fits else 1  # of S and T
        self.model = model
        self.objective = objective
        self.trained = copy.deepcopy(model) if shards else model
        self.module: nn.Module = LossModule(self.trained, objective, compiled=cfg.compile)
        if shards:
            _shard(self.module, world, device)
        elif world.size > 1:
            ddp, ids = nn.parallel.DistributedDataParallel, [device.index] if device.type == "cuda" else None
            tables = [name for name, _ in self.module.named_buffers()]  # each rank extends its own positions
            ddp._set_params_and_buffers_to_ignore_for_model(self.module, tables)
            self.module = ddp(self.module, device_ids=ids, gradient_as_bucket_view=True)

    def __call__(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the summed loss of `batch` in update `step`, and the named sums of the objective."""
        return self.module(step, batch.src, batch.src_mask, batch.tgt_in, batch.tgt_out, batch.rows)

    @property
    def uniform_loss(self) -> float:
        """The loss of a uniform guess, in nats per target token."""
        return math.log(self.model.output.weight.shape[0])

    def exchanging(self, is_last: bool) -> contextlib.AbstractContextManager[object]:
        """Return the context of forward and backward; the last batch of an update exchanges gradients."""
        if isinstance(self.module, nn.parallel.DistributedDataParallel) and not is_last:
            return self.module.no_sync()
        if self.trained is not self.model:
            sharded: Any = self.module
            sharded.set_requires_gradient_sync(is_last)
        return contextlib.nullcontext()

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring `model` up to date; all processes must call this."""
        if self.trained is not self.model:
            self.model.load_state_dict({key: whole(x) for key, x in self.trained.state_dict().items()})

    def tensors(self, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the weights, and the state of optimizer and objective, by name; all ranks must call this."""
        self.refresh()
        state = {OF_OBJECTIVE + name: x for name, x in self.objective.tensors.items()}
        state |= optimizer_tensors(optimizer, self.trained)
        return self.model.state_dict(), {name: whole(x) for name, x in state.items()}

    @torch.no_grad()
    def load(
        self, optimizer: torch.optim.Optimizer, weights: dict[str, Tensor], state: dict[str, Tensor]
    ) -> None:
        """Load what `tensors` returned, be it in another number of processes.

        Raises:
            UserError: the tensors are not those of this model and this optimizer; none is loaded then.
        """
        require_match(weights, self.model.state_dict(), "the weights of the checkpoint")
        own = {name: state[name] for name in state if name.startswith(OF_OBJECTIVE)}
        of_optimizer = {name: state[name] for name in state if name not in own}
        load_optimizer_tensors(optimizer, self.trained, of_optimizer)
        self.model.load_state_dict(weights)
        device = self.model.output.weight.device
        self.objective.tensors = {name.removeprefix(OF_OBJECTIVE): x.to(device) for name, x in own.items()}
        if self.trained is not self.model:
            for name, parameter in self.trained.state_dict().items():
                parameter.copy_(_part_of(self.model.state_dict()[name], parameter))
            for parameter, values in optimizer.state.items():
                values |= {key: _part_of(x, parameter) for key, x in values.items() if x.ndim}


def _shard(module: nn.Module, world: World, device: torch.device) -> None:
    """Split every layer of the stacks by itself, so that few layers are whole at a time, then the rest.

    Layers that are stepped through belong to the rest: by themselves they would be gathered for every token.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world.size,))
    stacks = [stack for stack in module.modules() if isinstance(stack, nn.ModuleList)]
    for layer in reversed([layer for stack in stacks for layer in stack]):
        if not getattr(layer, "is_stepped_through", False):
            fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)


def _part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the part of a whole `tensor` that this process holds, split as `like` is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
