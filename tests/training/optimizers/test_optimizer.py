"""Parameter groups, the ranges of the configs, and an optimizer that resumes bit for bit."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from nmt.errors import UserError
from nmt.layers.choices import Positions
from nmt.models.base import TranslationModel
from nmt.models.configs import Tying
from nmt.runtime import MixedPrecisionStep, step_unless
from nmt.runtime_config import Precision
from nmt.training.optimizers.optimizer import (
    build_optimizer,
    kept_bytes,
    load_optimizer_tensors,
    optimizer_tensors,
    parameter_groups,
)
from nmt.training.optimizers.optimizer_configs import (
    OPTIMIZERS,
    AdafactorConfig,
    AdamConfig,
    AdamWConfig,
    MuonConfig,
    OptimizerConfig,
    ScheduleFreeConfig,
    SgdConfig,
)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (AdamConfig, {"beta1": 1.0}, "optimizer.beta1 must be in [0, 1), but is 1.0"),
        (AdamConfig, {"beta2": -0.1}, "optimizer.beta2 must be in [0, 1), but is -0.1"),
        (AdamConfig, {"eps": 0.0}, "optimizer.eps must be positive, but is 0.0"),
        (AdamConfig, {"weight_decay": -1.0}, "optimizer.weight_decay must not be negative, but is -1.0"),
        (AdamConfig, {"clip_norm": -1.0}, "optimizer.clip_norm must not be negative, but is -1.0"),
        (AdamConfig, {"clip_value": -1.0}, "optimizer.clip_value must not be negative, but is -1.0"),
        (ScheduleFreeConfig, {"beta1": 0.0}, "optimizer.beta1 must be in (0, 1), but is 0.0"),
        (MuonConfig, {"momentum": 1.0}, "optimizer.momentum must be in [0, 1), but is 1.0"),
        (MuonConfig, {"rms": 0.0}, "optimizer.rms must be positive, but is 0.0"),
        (MuonConfig, {"iterations": 0}, "optimizer.iterations must be positive, but is 0"),
        (AdafactorConfig, {"beta2_decay": 1.0}, "optimizer.beta2_decay must be in (0, 1), but is 1.0"),
        (AdafactorConfig, {"clip_update": 0.5}, "optimizer.clip_update must be at least 1, but is 0.5"),
        (AdafactorConfig, {"min_scale": 0.0}, "optimizer.min_scale must be positive, but is 0.0"),
        (SgdConfig, {"momentum": 1.0}, "optimizer.momentum must be in [0, 1), but is 1.0"),
        (
            SgdConfig,
            {"momentum": 0.0, "nesterov": True},
            "optimizer.nesterov=true needs an optimizer.momentum above 0",
        ),
    ],
)
def test_config_errors(kind: type[OptimizerConfig], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        kind(**fields)


def ids_of(parameters: object) -> list[int]:
    assert isinstance(parameters, list)
    return [id(parameter) for parameter in parameters]


@pytest.mark.parametrize("tying", Tying)
def test_weight_decay_is_for_matrices(tiny_model: Callable[..., TranslationModel], tying: Tying) -> None:
    model = tiny_model(tying=tying, positions=Positions.learned)
    decayed, plain = parameter_groups(model, AdamWConfig(weight_decay=0.01))
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.01, 0.0)
    decayed_ids, plain_ids = (ids_of(group["params"]) for group in (decayed, plain))
    assert sorted(decayed_ids + plain_ids) == sorted(id(p) for p in model.parameters())  # each of them once

    for name, parameter in model.named_parameters(remove_duplicate=False):
        untied_output = name == "output.weight" and tying in (Tying.none, Tying.src_tgt)
        spared = name.endswith("bias") or "norm" in name or "embedding" in name or "positions" in name
        tied_output = name == "output.weight" and not untied_output
        assert id(parameter) in (plain_ids if spared or tied_output else decayed_ids), name


def test_matrices_come_first_without_weight_decay_too(tiny_model: Callable[..., TranslationModel]) -> None:
    """Norms are added up in this order when gradients are clipped: another one would be another rounding."""
    model = tiny_model()
    first, second = parameter_groups(model, AdamConfig())
    decayed, plain = parameter_groups(model, AdamConfig(weight_decay=0.1))
    assert (ids_of(first["params"]), ids_of(second["params"])) == (
        ids_of(decayed["params"]),
        ids_of(plain["params"]),
    )


def test_a_model_without_matrices_has_one_group() -> None:
    assert len(parameter_groups(nn.LayerNorm(4), AdamWConfig(weight_decay=0.01))) == 1


@pytest.mark.parametrize("kind", [AdamConfig, MuonConfig, SgdConfig])
def test_weights_with_a_rate_and_a_decay_of_their_own(
    tiny_model: Callable[..., TranslationModel], kind: type[OptimizerConfig]
) -> None:
    """A rate of 0 leaves weights as they are; the first group that matches any name of a weight counts."""
    model = tiny_model(tying=Tying.all)
    groups = [
        {"weights": ["encoder.0.*", "output.*"], "rate": 0},
        {"weights": "encoder.*", "weight_decay": 0.5},
    ]
    cfg = kind(weight_decay=0.1, groups=groups)
    optimizer = build_optimizer(cfg, model)
    found = {
        id(p): (group["rate"], group["weight_decay"])
        for group in optimizer.param_groups
        for p in group["params"]
    }
    for name, parameter in model.named_parameters():
        still = name.startswith(("encoder.0.", "src_embedding.tokens"))  # which is the output layer, too
        is_plain = parameter.ndim < 2 or "embedding" in name
        own = 0.5 if name.startswith("encoder.") and not still else 0.0 if is_plain else 0.1
        assert found[id(parameter)] == (0 if still else 1, own), name
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    amp_step = MixedPrecisionStep(
        optimizer, device=torch.device("cpu"), precision=Precision.fp32, clip_norm=0.0
    )
    amp_step.step(0.1, torch.zeros(()))
    for name, parameter in model.named_parameters():
        still = name.startswith(("encoder.0.", "src_embedding.tokens"))
        assert torch.equal(parameter, before[name]) == still, name


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([{"rate": 1}], "optimizer.groups[0] must be a group such as {weights: [encoder.*], rate: 0.1}"),
        ([{"weights": ["x"], "lr": 1}], "unknown key optimizer.groups[0].lr"),
        (
            [{"weights": ["x"], "rate": -1}],
            "optimizer.groups[0].rate must be a number of at least 0, but is -1",
        ),
        (
            [{"weights": ["encoder.*"], "rate": None}],
            "optimizer.groups[0].rate must be a number of at least 0, but is None",
        ),
        (
            [{"weights": [1]}],
            "optimizer.groups[0].weights must be a list of patterns such as encoder.*, but is [1]",
        ),
        (
            [{"weights": 5}],
            "optimizer.groups[0].weights must be a list of patterns such as encoder.*, but is 5",
        ),
    ],
)
def test_a_group_that_cannot_be_is_refused(groups: list[object], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        AdamConfig(groups=groups)


def test_a_group_without_weights_is_refused(tiny_model: Callable[..., TranslationModel]) -> None:
    cfg = AdamConfig(groups=[{"weights": ["encodr.*"]}])
    with pytest.raises(UserError, match=r"optimizer\.groups\[0\]\.weights: no weight has a name like"):
        build_optimizer(cfg, tiny_model())


def test_adamw_decays_the_weights_themselves() -> None:
    """Where the gradient is zero, Adam leaves a weight alone and AdamW shrinks it by rate * weight_decay."""
    layer = nn.Linear(3, 2)
    before = layer.weight.detach().clone()
    optimizer = build_optimizer(AdamWConfig(weight_decay=0.5), layer)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    torch.autograd.backward(layer(torch.zeros(1, 3)).sum())
    optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), before * (1 - 0.1 * 0.5))


@pytest.mark.parametrize("kind", [AdamConfig, AdamWConfig])
def test_adam_by_hand(kind: type[AdamConfig]) -> None:
    """Two updates with moments of other lengths than usual, and an `eps` that counts."""
    layer = nn.Linear(1, 1, bias=False)
    optimizer = build_optimizer(kind(beta1=0.5, beta2=0.75, eps=0.1, weight_decay=0.0), layer)
    weight, first, second = float(layer.weight.detach()), 0.0, 0.0
    for step, gradient in enumerate((1.0, -3.0), start=1):
        layer.weight.grad = torch.full((1, 1), gradient)
        for group in optimizer.param_groups:
            group["lr"] = 0.2
        optimizer.step()
        first = 0.5 * first + 0.5 * gradient
        second = 0.75 * second + 0.25 * gradient**2
        weight -= 0.2 * first / (1 - 0.5**step) / ((second / (1 - 0.75**step)) ** 0.5 + 0.1)
        assert float(layer.weight.detach()) == pytest.approx(weight, rel=1e-5)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """Make a few updates whose data depend on nothing but the number of the step."""
    for step in steps:
        torch.manual_seed(step)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * step
        optimizer.zero_grad()
        torch.autograd.backward(model(torch.randn(4, 6)).square().sum())
        optimizer.step()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 2))


STATES = {
    ("muon", 2): ("momentum_buffer",),
    **{("adamw_8bit", n): ("step", "exp_avg", "exp_avg_sq_root") for n in (1, 2)},
    ("adafactor", 2): ("step", "row_var", "col_var"),
    ("adafactor", 1): ("step", "variance"),
    ("sgd", 2): ("momentum_buffer",),
    ("sgd", 1): ("momentum_buffer",),
    **{("schedule_free", n): ("step", "weight_sum", "iterate", "exp_avg_sq") for n in (1, 2)},
}
"""What an optimizer keeps of a parameter, by the number of its axes, where that is not what Adam keeps."""


def test_adafactor_keeps_two_vectors_of_a_matrix_and_moves_it_by_a_share_of_itself() -> None:
    layer = nn.Linear(30, 20, bias=False)
    optimizer = build_optimizer(AdafactorConfig(), layer)
    before = layer.weight.detach().clone()
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    torch.autograd.backward(layer(torch.randn(50, 30)).square().sum())
    optimizer.step()
    assert sum(x.numel() for x in optimizer_tensors(optimizer, layer).values()) == 30 + 20 + 1
    moved = (layer.weight.detach() - before).square().mean().sqrt()
    torch.testing.assert_close(moved, 0.01 * before.square().mean().sqrt(), rtol=1e-4, atol=0)


def moved_by(cfg: OptimizerConfig, gradients: list[Tensor], start: float = 0.0) -> Tensor:
    """Return where updates at a rate of 0.1 take two weights."""
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.full((2,), start))
    optimizer = build_optimizer(cfg, layer)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for gradient in gradients:
        layer.weight.grad = gradient
        optimizer.step()
    return layer.weight.detach()


def test_nesterov_looks_ahead() -> None:
    gradients = [torch.tensor([1.0, 2.0])] * 2
    plain = moved_by(SgdConfig(momentum=0.5), gradients)
    ahead = moved_by(SgdConfig(momentum=0.5, nesterov=True), gradients)
    torch.testing.assert_close(plain, -0.1 * (1 + 1.5) * gradients[0])
    torch.testing.assert_close(ahead, -0.1 * (1.5 + 1.75) * gradients[0])


def test_the_keys_of_adafactor_bound_its_updates() -> None:
    """A weight at 0 moves by `min_scale` of the rate, and where gradients jump, by `clip_update` times that.

    A smaller `beta2_decay` gives the newest gradient a larger share of the second moment.
    """
    gradient = torch.tensor([1.0, -1.0])
    for scale in (1e-3, 1e-2):
        moved = moved_by(AdafactorConfig(min_scale=scale), [gradient])
        torch.testing.assert_close(moved, -0.1 * scale * gradient)
    jump = [gradient, 100 * gradient]
    steps = {
        clip: moved_by(AdafactorConfig(clip_update=clip), jump) - moved_by(AdafactorConfig(), jump[:1])
        for clip in (1.0, 1.2, 100.0)
    }
    torch.testing.assert_close(steps[1.0], -0.1 * 1e-3 * gradient)
    torch.testing.assert_close(steps[1.2], -0.1 * 1.2e-3 * gradient)
    share = 2**-0.8
    free = 100 / (1 - share + share * 100**2) ** 0.5
    torch.testing.assert_close(steps[100.0], -0.1 * free * 1e-3 * gradient)
    slow = moved_by(AdafactorConfig(beta2_decay=0.4, clip_update=100.0), jump)
    first = moved_by(AdafactorConfig(), jump[:1])
    share = 2**-0.4
    free = 100 / (1 - share + share * 100**2) ** 0.5
    torch.testing.assert_close(slow - first, -0.1 * free * 1e-3 * gradient)


def test_the_size_of_gradients_is_nothing_to_adafactor() -> None:
    """As its floor under the second moment is far below gradients of large models and rare rows."""
    torch.manual_seed(1)
    gradients = torch.randn(3, 40, 8) * torch.logspace(0, -3, 40)[:, None]
    ends = list[Tensor]()
    for factor in (1.0, 1e-4, 1e-8):
        network = nn.ParameterDict({"matrix": torch.full((40, 8), 0.1), "vector": torch.full((40,), 0.1)})
        optimizer = build_optimizer(AdafactorConfig(), network)
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        for gradient in factor * gradients:
            network["matrix"].grad, network["vector"].grad = gradient.clone(), gradient[:, 0].clone()
            optimizer.step()
        ends.append(torch.cat([network["matrix"].detach().flatten(), network["vector"].detach()]))
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stored_optimizer_goes_on_bit_for_bit(name: str) -> None:
    cfg = OPTIMIZERS[name][0](weight_decay=0.1)
    assert cfg.name == name
    straight = network()
    stopped = network()
    stopped.load_state_dict(straight.state_dict())
    train(straight, build_optimizer(cfg, straight), range(1, 7))

    optimizer = build_optimizer(cfg, stopped)
    train(stopped, optimizer, range(1, 4))
    tensors = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, stopped).items()}
    assert set(tensors) == {
        f"{weight}/{key}"
        for weight, parameter in stopped.named_parameters()
        for key in STATES.get((name, parameter.ndim), ("step", "exp_avg", "exp_avg_sq"))
    }
    resumed = network()
    resumed.load_state_dict(stopped.state_dict())
    optimizer = build_optimizer(cfg, resumed)
    load_optimizer_tensors(optimizer, resumed, tensors)
    train(resumed, optimizer, range(4, 7))

    for ours, expected in zip(resumed.parameters(), straight.parameters(), strict=True):
        assert torch.equal(ours, expected)
    if name != "sgd":
        assert float(tensors["0.bias/step"]) == 3.0  # what was handed in is not shared


def num_matrices() -> int:
    """Return how many tensors of 41 rows there are outside of parameters."""
    there = [x for x in gc.get_objects() if type(x) is Tensor and not x.is_meta]
    return sum(x.ndim == 2 and len(x) == 41 for x in there)


class Stored(Tensor):
    """A tensor of a checkpoint that counts others when it is copied."""

    beside: ClassVar[list[int]] = []

    def to(self, *args: Any, **options: Any) -> Any:
        self.beside.append(num_matrices())
        return super().to(*args, **options)


def test_a_state_is_loaded_where_no_other_is() -> None:
    model, again = nn.Linear(6, 41), nn.Linear(6, 41)
    optimizer = build_optimizer(AdamConfig(), model)
    train(model, optimizer, range(1, 2))
    tensors = {name: x.as_subclass(Stored) for name, x in optimizer_tensors(optimizer, model).items()}
    before = num_matrices()
    load_optimizer_tensors(build_optimizer(AdamConfig(), again), again, tensors)
    assert len(Stored.beside) == 6
    assert max(Stored.beside) <= before + 2  # what is loaded


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_first_update_that_is_left_out_leaves_nothing_behind(name: str) -> None:
    trained, expected = network(), network()
    expected.load_state_dict(trained.state_dict())
    optimizer = build_optimizer(OPTIMIZERS[name][0](), trained)
    for parameter in trained.parameters():
        parameter.grad = torch.full_like(parameter, torch.inf)
    step_unless(optimizer, torch.ones(()))
    train(trained, optimizer, range(1, 3))
    train(expected, build_optimizer(OPTIMIZERS[name][0](), expected), range(1, 3))
    for ours, theirs in zip(trained.parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_optimizer_of_another_model() -> None:
    other = nn.Sequential(nn.Linear(6, 5))
    optimizer = build_optimizer(AdamConfig(), other)
    message = (
        "the optimizer's tensors of the checkpoint do not fit the config: 2 of 4 tensors differ: "
        "'2.weight/exp_avg' is unknown; 0.bias/exp_avg_sq is missing"
    )
    state = {"0.bias/step": torch.zeros(()), "0.bias/exp_avg": torch.zeros(5)}
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        load_optimizer_tensors(optimizer, other, state | {"2.weight/exp_avg": torch.zeros(2, 5)})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_size_of_what_an_optimizer_keeps_is_known_before_its_first_update(
    name: str, tiny_model: Callable[..., TranslationModel]
) -> None:
    model = tiny_model()
    optimizer = build_optimizer(OPTIMIZERS[name][0](), model)
    known = kept_bytes(optimizer, model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kept = [x for x in optimizer_tensors(optimizer, model).values() if x.ndim]
    counts = known - sum(x.nbytes for x in kept)
    assert 0 <= counts <= 12 * len([*model.parameters()])
