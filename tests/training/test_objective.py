"""Objectives: the one there is, and others added by a row, a class and a YAML file alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import MISSING
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F
from torch.testing import assert_close

from nmt import cli, training
from nmt.data.batching import Batch, collate
from nmt.data.encoded_pairs import EncodedPairs
from nmt.data.special_ids import UNK_ID
from nmt.errors import UserError
from nmt.layers.loss import projected_nll
from nmt.models import TranslationModel
from nmt.training import OBJECTIVES
from nmt.training.objective import (
    CrossEntropy,
    CrossEntropyConfig,
    LossModule,
    Objective,
    ObjectiveConfig,
    OpenModel,
)

Sums = tuple[Tensor, dict[str, Tensor]]


@dataclass
class ConsistencyConfig(ObjectiveConfig):
    """Two passes that should agree: R-Drop (Liang et al. 2021), or SimCut (Gao et al. 2022) if `cut`."""

    name: str = "consistency"
    weight: float = 1.0
    """Of the divergence of the two distributions."""
    cut: bool = False
    """Hide every third source token from the second pass."""


class Consistency(Objective):
    """Cross-entropy of two passes, and the divergence between them in both directions."""

    def __call__(self, module: LossModule, batch: Batch, step: int) -> Sums:
        hidden = [module.hidden(batch), module.hidden(cut(batch) if self.cfg.cut else batch)]
        (loss, nll), (other, _) = (module.nll(x, batch.real(batch.tgt_out), 0.1) for x in hidden)
        p, q = (module.logits(x).float().log_softmax(-1) for x in hidden)
        kl = 0.5 * ((p.exp() - q.exp()) * (p - q)).sum()
        return 0.5 * (loss + other) + self.cfg.weight * kl, {"nll": nll, "kl": kl}


def cut(batch: Batch) -> Batch:
    return replace(batch, src=batch.src.where(batch.src % 3 != 0, UNK_ID))


@dataclass
class DistillationConfig(ObjectiveConfig):
    """Token-level distillation (Kim and Rush 2016)."""

    name: str = "distillation"
    teacher: str = MISSING
    """Run directory of the teacher."""


class Distillation(Objective):
    """Cross-entropy against the distribution of another run's model."""

    def __init__(self, cfg: DistillationConfig, open_model: OpenModel):
        super().__init__(cfg, open_model)
        self.teacher = open_model(cfg.teacher)

    def __call__(self, module: LossModule, batch: Batch, step: int) -> Sums:
        hidden = module.hidden(batch)
        _, nll = module.nll(hidden.detach(), batch.real(batch.tgt_out), 0.0)
        with torch.no_grad():
            taught = self.teacher(batch.src, batch.src_mask, batch.tgt_in)
            taught = self.teacher.project(batch.real(taught)).float().log_softmax(-1)
        kl = (taught.exp() * (taught - module.logits(hidden).float().log_softmax(-1))).sum()
        return kl, {"nll": nll, "kl": kl}


class MeanTeacher(Objective):
    """Agreement with the moving average of the model's own weights (Tarvainen and Valpola 2017)."""

    def __call__(self, module: LossModule, batch: Batch, step: int) -> Sums:
        own = {name: x.detach() for name, x in module.model.named_parameters()}
        average = {name: self.tensors.get(name, x) * 0.5 + x * 0.5 for name, x in own.items()}
        hidden = module.hidden(batch)
        with torch.no_grad():
            taught = functional_call(module.model, average, (batch.src, batch.src_mask, batch.tgt_in))
        self.tensors = average
        loss, nll = module.nll(hidden, batch.real(batch.tgt_out), 0.1)
        return loss + (hidden - batch.real(taught)).square().sum(), {"nll": nll}


def no_other_model(run: str) -> TranslationModel:
    raise AssertionError("nobody asked for another model")


def cross_entropy() -> CrossEntropy:
    """Return the default objective."""
    return CrossEntropy(CrossEntropyConfig(), no_other_model)


def mean_teacher() -> MeanTeacher:
    """Return an objective that remembers tensors."""
    return MeanTeacher(ObjectiveConfig(), no_other_model)


def consistency(**fields: Any) -> Consistency:
    """As the tests of training use it: the two passes differ without dropout, too."""
    return Consistency(ConsistencyConfig(**({"cut": True} | fields)), no_other_model)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of choices of a user, with the two objectives of this file in the table."""
    for cfg, cls in ((ConsistencyConfig, Consistency), (DistillationConfig, Distillation)):
        monkeypatch.setitem(OBJECTIVES, cfg().name, (cfg, cls))
        file = tmp_path / "configs" / "objective" / f"{cfg().name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"defaults: [base_{cfg().name}, _self_]\n")
    return tmp_path / "configs"


def train(run: Path, *arguments: str) -> list[dict[str, float]]:
    """Train on the toy corpus through the command line; return the lines of metrics of the updates."""
    sizes = ["model.d_model=16", "model.d_ff=16", "model.num_heads=2", "trainer.log_every_steps=5"]
    quick = ["trainer.max_steps=10", "decoding.max_length_offset=5", "runtime.device=cpu"]
    command = ["train", "experiment=toy_en_fr", *sizes, *quick, f"run={run}", *arguments]
    assert cli.main(command) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "train/loss" in line]


def test_an_objective_with_a_second_pass(folder: Path, tmp_path: Path) -> None:
    lines = train(tmp_path / "run", "objective=consistency", "objective.weight=2", f"--config-dir={folder}")
    assert [line["step"] for line in lines] == [5, 10]
    for line in lines:
        assert line["train/kl"] > 0  # two passes with one mask would agree
        assert line["train/loss"] > line["train/nll"]
    assert cli.main(["evaluate", f"run={tmp_path / 'run'}", "decoding.max_length_offset=5"]) == 0


def test_an_objective_with_a_teacher(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "teacher", "objective.label_smoothing=0")
    learn = ["objective=distillation", f"--config-dir={folder}"]
    first, last = train(tmp_path / "run", *learn, f"objective.teacher={tmp_path / 'teacher'}")
    assert first["train/kl"] == first["train/loss"] > last["train/kl"] > 0
    assert last["train/nll"] > last["train/kl"]
    capsys.readouterr()
    wrong = [*learn, f"objective.teacher={tmp_path / 'teacher'}", "tokenizer.lowercase=false"]
    assert cli.main(["train", "experiment=toy_en_fr", f"run={tmp_path / 'other'}", *wrong]) == 2
    assert (
        f"objective=distillation: the run {tmp_path / 'teacher'} has another tok" in capsys.readouterr().err
    )
    assert cli.main(["train", "experiment=toy_en_fr", *learn]) == 2
    assert "objective.teacher is missing; set objective.teacher=..." in capsys.readouterr().err


def test_another_objective_is_not_chosen_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "objective.name=consistency"]) == 2
    assert "objective.name cannot be set by itself: it follows from objective=" in capsys.readouterr().err
    assert cli.main(["train", "objective=cross_entropie"]) == 2
    assert "there is no objective=cross_entropie; did you mean 'cross_entropy'?" in capsys.readouterr().err
    assert cli.main(["train", "objective.label_smoothing=1"]) == 2
    assert "objective.label_smoothing must be in [0, 1), but is 1.0" in capsys.readouterr().err


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_a_share_that_is_none_is_refused(smoothing: float) -> None:
    with pytest.raises(UserError, match=rf"label_smoothing must be in \[0, 1\), but is {smoothing}"):
        CrossEntropyConfig(label_smoothing=smoothing)


def batch_of(pairs: EncodedPairs) -> Batch:
    return collate(pairs, range(8))


def test_cross_entropy_is_the_loss_of_the_layer(
    pairs: EncodedPairs, tiny_model: Callable[..., TranslationModel]
) -> None:
    model, batch = tiny_model(), batch_of(pairs)
    objective = training.build_objective(CrossEntropyConfig(label_smoothing=0.3), no_other_model)
    assert isinstance(objective, CrossEntropy)
    module = LossModule(model, objective, compiled=False)
    loss, named = module(1, *vars(batch).values())
    hidden = batch.real(model(batch.src, batch.src_mask, batch.tgt_in))
    expected = projected_nll(hidden, model.output, batch.real(batch.tgt_out), 0.3)
    assert torch.equal(loss, expected[0])
    assert list(named) == ["nll"]
    assert torch.equal(named["nll"], expected[1])


def test_two_passes_have_the_gradients_of_plain_torch(
    pairs: EncodedPairs, tiny_model: Callable[..., TranslationModel]
) -> None:
    model, batch = tiny_model(), batch_of(pairs)
    parameters = list(model.parameters())
    loss, named = LossModule(model, consistency(weight=3.0), compiled=False)(1, *vars(batch).values())

    logits = [
        model.output(model(x.src, x.src_mask, x.tgt_in))[batch.tgt_out != 0] for x in (batch, cut(batch))
    ]
    targets = batch.tgt_out[batch.tgt_out != 0]
    smoothed = [F.cross_entropy(x, targets, label_smoothing=0.1, reduction="sum") for x in logits]
    p, q = (x.log_softmax(-1) for x in logits)
    both = [F.kl_div(a, b, log_target=True, reduction="sum") for a, b in ((p, q), (q, p))]
    expected = (smoothed[0] + smoothed[1]) / 2 + 3.0 * (both[0] + both[1]) / 2

    assert float(named["kl"].detach()) > 1e-3
    assert_close(loss, expected)
    assert_close(named["kl"], (both[0] + both[1]) / 2)
    gradients = torch.autograd.grad(loss, parameters)
    assert_close(gradients, torch.autograd.grad(expected, parameters), rtol=1e-4, atol=1e-5)
