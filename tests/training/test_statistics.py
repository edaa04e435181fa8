"""Statistics of updates: sums by name, overflows and faults, and measures added by a row alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nmt.training.statistics import BatchSize, Fault, Update, UpdateStatistics, gpu_memory, means
from nmt.training.trainer_config import MEASURES
from tests.training.objectives.test_objective import train

CPU = torch.device("cpu")
NO_WEIGHTS: dict[str, nn.Parameter] = {}


def end_update(statistics: UpdateStatistics, step: int, loss: float, norm: float) -> float:
    """One update of one batch of 10 tokens; returns whether it is left out."""
    named = {"nll": torch.tensor(loss / 2), "kl": torch.tensor(1.0)}
    statistics.add_batch(torch.tensor(loss), named, BatchSize(8, 16, 12), counts=True)
    return float(statistics.end_update(step, 10, Update(NO_WEIGHTS, torch.tensor(norm))))


def test_sums_have_the_names_that_the_objective_gives_them() -> None:
    statistics = UpdateStatistics(CPU, forgives_overflow=False)
    assert statistics.read() == ({}, None)
    assert [end_update(statistics, step, 20.0, 3.0) for step in (1, 2)] == [0.0, 0.0]
    sums, fault = statistics.read()
    sizes = {"src_tokens": 16, "src_positions": 32, "tgt_positions": 24}
    assert sums == {"loss": 40, "nll": 20, "kl": 2, **sizes, "norm": 6, "overflows": 0}
    assert fault is None
    assert set(statistics.read()[0].values()) == {0.0}
    assert means(sums | {"tokens": 20.0, "steps": 2.0, "seconds": 4.0, "flops": 1.0}) == {
        "loss": 2.0,
        "nll": 1.0,
        "kl": 0.1,
        "tgt_tokens_per_second": 5.0,
        "grad_norm": 3.0,
        "padding_src": 0.5,
        "padding_tgt": pytest.approx(1 / 6),
    }


def test_a_language_model_has_no_padding_of_sources() -> None:
    statistics = UpdateStatistics(CPU, forgives_overflow=False)
    statistics.add_batch(torch.tensor(1.0), {}, BatchSize(0, 0, 4), counts=True)
    statistics.end_update(1, 3, Update(NO_WEIGHTS, torch.tensor(1.0)))
    found = means(statistics.read()[0] | {"tokens": 3.0, "steps": 1.0, "seconds": 1.0, "flops": 0.0})
    assert (found["padding_tgt"], found.keys() & {"padding_src"}) == (0.25, set())


def test_batches_of_an_update_add_up_and_some_count_nothing() -> None:
    statistics = UpdateStatistics(CPU, forgives_overflow=False)
    for loss, counts in ((1.0, True), (math.nan, False), (2.0, True)):
        statistics.add_batch(torch.tensor(loss), {}, BatchSize(3, 4, 5), counts=counts)
    assert not statistics.end_update(1, 4, Update(NO_WEIGHTS, torch.tensor(1.0)))
    sizes = {"src_tokens": 6, "src_positions": 8, "tgt_positions": 10}
    assert statistics.read()[0] == {"loss": 3, **sizes, "norm": 1, "overflows": 0}


@pytest.mark.parametrize("name", ["loss", "tokens", "norm"])
def test_a_name_that_means_something_else_is_refused(name: str) -> None:
    statistics = UpdateStatistics(CPU, forgives_overflow=False)
    with pytest.raises(ValueError, match=f"cannot name a sum {name}; it is taken"):
        statistics.add_batch(torch.tensor(1.0), {name: torch.tensor(1.0)}, BatchSize(3, 4, 5), counts=True)


def test_an_overflow_is_forgiven_counted_and_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEASURES, "norm_again", lambda update: update.grad_norm)
    statistics = UpdateStatistics(CPU, forgives_overflow=True, measures=["norm_again"])
    norms = (2.0, math.inf, 4.0)
    assert [end_update(statistics, step, 20.0, norm) for step, norm in enumerate(norms, 1)] == [0.0, 1.0, 0.0]
    sums, fault = statistics.read()
    assert (sums["norm"], sums["update/norm_again"], sums["overflows"]) == (6.0, 6.0, 1.0)
    assert fault is None
    found = means(sums | {"tokens": 30.0, "steps": 3.0, "seconds": 1.0, "flops": 0.0})
    assert found["grad_norm"] == found["norm_again"] == 3.0


@pytest.mark.fault(20)
@pytest.mark.parametrize("forgives_overflow", [False, True])
def test_after_a_fault_all_is_left_out(forgives_overflow: bool) -> None:
    statistics = UpdateStatistics(CPU, forgives_overflow=forgives_overflow)
    losses = (20.0, math.nan, 20.0, math.inf)
    left_out = [end_update(statistics, step, loss, 1.0) for step, loss in enumerate(losses, 1)]
    assert left_out == [0.0, 1.0, 1.0, 1.0]
    _, fault = statistics.read()
    assert isinstance(fault, Fault)
    assert fault.step == 2
    assert math.isnan(fault.loss)


@pytest.mark.fault(21)
def test_some_faults_in_a_row_are_tolerated() -> None:
    """They are in no sum; the row ends with an update that is sound, and goes on over a resume."""
    statistics = UpdateStatistics(CPU, forgives_overflow=False, tolerated=2)
    losses = (20.0, math.nan, math.inf, 10.0, 30.0)
    assert [end_update(statistics, step, x, 1.0) for step, x in enumerate(losses, 1)] == [0, 1, 1, 0, 0]
    sums, fault = statistics.read()
    assert (sums["loss"], sums["kl"], sums["tgt_positions"], sums["norm"]) == (60.0, 3.0, 36.0, 3.0)
    assert fault == Fault(step=3, loss=math.inf, norm=1.0, updates=2, tokens=20)
    assert statistics.in_a_row == 0
    assert statistics.read()[1] is None
    assert end_update(statistics, 6, 1.0, math.nan) == 1
    statistics.read()
    resumed = UpdateStatistics(CPU, forgives_overflow=False, tolerated=2)
    resumed.resume(statistics.in_a_row)
    assert [end_update(resumed, step, x, 1.0) for step, x in ((7, math.nan), (8, -math.inf))] == [1, 1]
    assert end_update(resumed, 9, 20.0, 1.0) == 1  # after the one that was too many
    _, fault = resumed.read()
    assert fault == Fault(step=8, loss=-math.inf, norm=1.0, updates=3, tokens=30)
    assert resumed.in_a_row == 4


def test_memory_is_that_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_memory(CPU) == {}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5 * 10**8)
    assert gpu_memory(torch.device("cuda")) == {"gpu_memory_gb": 0.5}


def test_the_measures_there_are() -> None:
    weights = {
        "encoder.0.weight": [3.0, 4.0],
        "encoder.0.bias": [0.0],
        "encoder.1.weight": [12.0],
        "norm.x": [0.0],
    }
    gradients = {"encoder.0.weight": [1.0, -2.0], "encoder.0.bias": [2.0], "norm.x": [-0.5]}
    parameters = {name: nn.Parameter(torch.tensor(values)) for name, values in weights.items()}
    for name, values in gradients.items():
        parameters[name].grad = torch.tensor(values)
    update = Update(parameters, torch.tensor(9.0))
    statistics = UpdateStatistics(CPU, forgives_overflow=False, measures=list(MEASURES))
    statistics.add_batch(torch.tensor(1.0), {}, BatchSize(1, 1, 1), counts=True)
    statistics.end_update(1, 1, update)
    sums, _ = statistics.read()
    assert {name: x for name, x in sums.items() if name.startswith("update/")} == {
        "update/weight_norm": 13.0,
        "update/largest_gradient": 2.0,
        "update/layer_grad_norm/encoder.0": 3.0,
        "update/layer_grad_norm/norm": 0.5,
    }


def test_a_measure_is_added_by_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def biases(update: Update) -> dict[str, Tensor]:
        found = [x for name, x in update.gradients().items() if name.endswith("bias")]
        return {
            "number": torch.tensor(float(len(found))),
            "largest": torch.stack([x.max() for x in found]).max(),
        }

    monkeypatch.setitem(MEASURES, "biases", biases)
    lines = train(tmp_path / "run", "trainer.measures=[biases,weight_norm]")
    assert [line["step"] for line in lines] == [5, 10]
    for line in lines:
        assert line["train/biases/number"] > 5
        assert 0 < line["train/biases/largest"] < 1  # clipped
        assert line["train/weight_norm"] > 1
