"""Consistency objectives with the moving average of the weights as the teacher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from nmt import cli
from nmt.data.encoded_pairs import EncodedPairs
from nmt.models.base import TranslationModel
from nmt.runtime import seed_everything
from nmt.training.objectives import build_objective
from nmt.training.objectives.configs import ConsistencyConfig, RDropConfig, SimCutConfig, Teacher
from nmt.training.parallel_model import ParallelModel
from tests.training.objectives.test_objective import Silent, batch_of, hide, train, trained_in_parts


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(
    "cfg",
    [
        SimCutConfig(weight=3.0, cut=0.3, word_dropout=0.1, teacher=Teacher.ema),
        RDropConfig(weight=5.0, word_dropout=0.2, teacher=Teacher.ema),
    ],
)
def test_the_average_teaches_as_in_plain_torch(
    pairs: EncodedPairs, tiny_model: Callable[..., TranslationModel], cfg: ConsistencyConfig, dropout: float
) -> None:
    average, batch = tiny_model(dropout=dropout), batch_of(pairs)
    made = ParallelModel(average, build_objective(cfg, Silent()), ema_decay=0.9)
    with torch.no_grad():
        for x in made.trained.parameters():
            x.add_(0.1 * torch.randn_like(x))
    model = made.trained.train()
    parameters = list(model.parameters())
    seed_everything("objective")
    loss, named = made(batch, 1)
    gradients = torch.autograd.grad(loss, parameters)
    assert all(x.grad is None and not x.requires_grad for x in average.parameters())

    seed_everything("objective")
    passes = [hide(batch, cfg.word_dropout)]
    passes += [hide(batch, cfg.cut)] if isinstance(cfg, SimCutConfig) else []
    src, src_mask, tgt_in = (
        torch.cat([getattr(x, name) for x in passes]) for name in ("src", "src_mask", "tgt_in")
    )
    logits = [batch.real(model.output(x)) for x in model(src, src_mask, tgt_in).chunk(len(passes))]
    taught = batch.real(average.output(average.eval()(batch.src, batch.src_mask, batch.tgt_in)))
    targets = batch.targets
    kl = F.kl_div(
        logits[-1].log_softmax(-1), taught.log_softmax(-1).detach(), log_target=True, reduction="sum"
    )
    smoothed = F.cross_entropy(logits[0], targets, label_smoothing=0.1, reduction="sum")
    expected = smoothed + (3.0 if isinstance(cfg, SimCutConfig) else 2.5) * kl
    assert_close(loss, expected)
    assert_close(named["kl"], kl)
    assert_close(named["nll"], F.cross_entropy(logits[0], targets, reduction="sum"))
    assert_close(gradients, torch.autograd.grad(expected, parameters), rtol=1e-4, atol=1e-5)
    assert float(kl.detach()) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["simcut", "r_drop"])
def test_a_training_with_the_average_as_the_teacher_resumes(objective: str, tmp_path: Path) -> None:
    options = [f"objective={objective}", "objective.teacher=ema", "trainer.ema_decay=0.9"]
    metrics = trained_in_parts(tmp_path, *options)
    assert metrics[-1]["train/kl"] > 0
    assert cli.main(["evaluate", f"run={tmp_path / 'parts'}", "decoding.max_length_offset=5"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "objective.teacher=ema is the moving average of the weights, but trainer.ema_decay is 0; set"),
        (
            ["trainer.ema_decay=0.9", "runtime.parallel=fsdp"],
            "objective.teacher=ema needs all averaged weights in each process, but runtime.parallel=fsdp",
        ),
    ],
)
def test_a_teacher_that_is_not_there_is_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "objective=simcut", "objective.teacher=ema", *options]) == 2
    assert message in capsys.readouterr().err


def test_teachers_in_16_bits(tmp_path: Path) -> None:
    options = ["runtime.precision=bf16", "trainer.max_steps=4", "trainer.log_every_steps=2"]
    average = train(
        tmp_path / "a", *options, "objective=simcut", "objective.teacher=ema", "trainer.ema_decay=0.9"
    )
    taught = train(
        tmp_path / "b", *options, "objective=distillation", f"objective.teachers=[{tmp_path / 'a'}]"
    )
    for metrics in (average, taught):
        assert 0 < metrics[-1]["train/kl"] < 5
