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

from nmt import kernels
from nmt.data.batches.batching import Batch
from nmt.distributed import ALONE, World
from nmt.models.base import TranslationModel
from nmt.runtime import part_of, resolve_precision, whole
from nmt.runtime_config import Parallel, Precision, RuntimeConfig
from nmt.training.checkpoint import require_match
from nmt.training.objectives.objective import LossModule, Objective
from nmt.training.optimizers.ema import MovingAverage
from nmt.training.optimizers.optimizer import load_optimizer_tensors, optimizer_tensors
from nmt.training.recomputation import recompute_layers, stack_layers

OF_OBJECTIVE, OF_TRAINED = "objective/", "trained/"
"""Prefixes of names among the optimizer's tensors in a checkpoint: the tensors of the objective, and the
weights that the optimizer updates where those of the checkpoint are their moving average."""


class ParallelModel:
    """A model and its objective, called for the loss of a batch; the optimizer updates `trained`.

    `trained` is `model` itself, with two exceptions. With an average, `model` is the moving average of
    `trained`. With FSDP, `trained` holds a part of the weights, and `model` is a whole copy for evaluation,
    of them or of their average, that `refresh` brings up to date.
    """

    def __init__(
        self,
        model: TranslationModel,
        objective: Objective,
        cfg: RuntimeConfig | None = None,
        *,
        world: World = ALONE,
        device: torch.device | None = None,
        ema_decay: float = 0.0,
        averages: bool = False,
        recompute: bool = False,
    ):
        """Wrap the model; with `recompute` its layers are computed again in backward.

        With `averages` there is an average as with an `ema_decay`, whose `decay_at` the optimizer sets.
        """
        averages |= ema_decay > 0.0
        cfg, device = cfg or RuntimeConfig(), device or torch.device("cpu")
        self.is_sharded = world.size > 1 and cfg.parallel is Parallel.fsdp
        self.model = model
        self.objective = objective
        self.trained = _copied(model, on_cpu=self.is_sharded) if self.is_sharded or averages else model
        if recompute:
            recompute_layers(self.trained)
        average = model if averages else None
        self.module: nn.Module = LossModule(self.trained, objective, compiled=cfg.compile, average=average)
        if self.is_sharded:
            _shard(self.module, world, device, resolve_precision(cfg, device))
        elif world.size > 1:
            ddp, ids = nn.parallel.DistributedDataParallel, [device.index] if device.type == "cuda" else None
            tables = [name for name, _ in self.module.named_buffers()]  # each rank extends its own positions
            ddp._set_params_and_buffers_to_ignore_for_model(self.module, tables)
            self.module = ddp(self.module, device_ids=ids, gradient_as_bucket_view=True)
        self.average = self._average(ema_decay) if averages else None

    def __call__(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the summed loss of `batch` in update `step`, and the named sums of the objective."""
        return self.module(step, *batch.tensors)

    @property
    def uniform_loss(self) -> float:
        """The loss of a uniform guess, in nats per target token."""
        return math.log(self.model.output.weight.shape[0])

    @property
    def learning(self) -> dict[str, nn.Parameter]:
        """The weights that the optimizer updates, by name."""
        return {name: x for name, x in self.trained.named_parameters() if x.requires_grad}

    def _average(self, decay: float) -> MovingAverage:
        """Return the moving average of the weights, in `model`, or in parts that `refresh` gathers there."""
        weights = dict(self.trained.named_parameters())
        averages = dict(self.model.requires_grad_(False).named_parameters())
        parts = {name: x.detach().clone() for name, x in weights.items()} if self.is_sharded else averages
        return MovingAverage(parts, weights, decay)

    def exchanging(self, is_last: bool) -> contextlib.AbstractContextManager[object]:
        """Return the context of forward and backward; the last batch of an update exchanges gradients."""
        if isinstance(self.module, nn.parallel.DistributedDataParallel) and not is_last:
            return self.module.no_sync()
        if self.is_sharded:
            sharded: Any = self.module
            sharded.set_requires_gradient_sync(is_last)
        return contextlib.nullcontext()

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring `model` up to date; all processes must call this."""
        if self.is_sharded:
            state = self.trained.state_dict(keep_vars=True)
            averages = self.average.tensors if self.average else {}
            instead = {id(x): averages.get(name, x) for name, x in self.trained.named_parameters()}
            for name, held in self.model.state_dict().items():  # one by one: a GPU holds one more at a time
                held.copy_(whole(instead.get(id(state[name]), state[name])))
        if self.average:
            self.model.train()  # evaluation restores the mode, which teaching may have changed

    def tensors(self, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the weights for evaluation, and the other tensors of the training, by name.

        These are the state of optimizer and objective, and the weights that learn where the others are their
        average. All ranks must call this. With FSDP each rank has its parts of these other tensors, of which
        `whole` gathers one.
        """
        self.refresh()
        state = {OF_OBJECTIVE + name: x for name, x in self.objective.tensors.items()}
        if self.average:
            state |= {OF_TRAINED + name: x.detach() for name, x in self.learning.items()}
        return self.model.state_dict(), state | optimizer_tensors(optimizer, self.trained)

    @torch.no_grad()
    def load(
        self, optimizer: torch.optim.Optimizer, weights: dict[str, Tensor], state: dict[str, Tensor]
    ) -> None:
        """Load what `tensors` returned, be it in another number of processes.

        Raises:
            UserError: the tensors are not those of this model and this optimizer; none is loaded then.
        """
        require_match(weights, self.model.state_dict(), "the weights of the checkpoint")
        own, trained = _named(state, OF_OBJECTIVE), _named(state, OF_TRAINED)
        averaged = dict(self.model.named_parameters()) if self.average else {}
        learning = self.learning if self.average else {}
        for name in averaged.keys() - learning.keys():
            trained.pop(name, None)  # earlier versions stored frozen weights, too
        beside = {name: averaged[name] for name in learning}
        require_match(trained, beside, "the weights beside their moving average in the checkpoint")
        prefixes = OF_OBJECTIVE, OF_TRAINED
        of_optimizer = {name: x for name, x in state.items() if not name.startswith(prefixes)}
        load_optimizer_tensors(optimizer, self.trained, of_optimizer)
        self.model.load_state_dict(weights)
        device = self.model.output.weight.device
        self.objective.tensors = {name: x.to(device) for name, x in own.items()}
        for name, x in self.trained.state_dict().items() if self.trained is not self.model else ():
            x.copy_(part_of(self.model.state_dict()[name], x))
        for name, x in self.average.tensors.items() if self.average else ():
            x.copy_(part_of(averaged[name], x))
        for name, x in learning.items():
            x.copy_(part_of(trained[name], x))


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, by the rest of the name."""
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def _copied(model: TranslationModel, *, on_cpu: bool) -> TranslationModel:
    """Return a copy of the model; its recurrent layers have their weights in one piece, as cuDNN wants.

    With `on_cpu` the weights are there until they are split between processes.
    """
    kept = {
        id(x): nn.Parameter(x.detach().to("cpu", copy=True), x.requires_grad)
        for x in model.parameters()
        if on_cpu
    }
    copied = copy.deepcopy(model, kept)
    for module in copied.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
    return copied


def _shard(module: nn.Module, world: World, device: torch.device, precision: Precision) -> None:
    """Split every layer of the stacks by itself, so that few layers are whole at a time, then the rest.

    Layers that are stepped through belong to the rest: by themselves they would be gathered for every token.
    In bf16 the layers are gathered in bf16, to which products round their weights anyway; gradients are
    summed in fp32. The rest stays in fp32: what the embeddings give is the sum that all layers add to. So do
    layers on CPU whose weights are read by kernels, which take fp32.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (world.size,))
    is_rounded = precision is Precision.bf16 and (device.type != "cpu" or not kernels.load())
    dtype = torch.bfloat16 if is_rounded else None
    of_layers = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
    for layer in reversed(stack_layers(module)):
        fully_shard(layer, mesh=mesh, mp_policy=of_layers)
    fully_shard(module, mesh=mesh)
