"""Objectives: those of the table, and others added by a row, a class and a YAML file alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F
from torch.testing import assert_close

from nmt import cli
from nmt.data.batches.batching import Batch, collate
from nmt.data.encoded_pairs import EncodedPairs
from nmt.data.special_ids import UNK_ID
from nmt.errors import UserError
from nmt.layers.loss import projected_nll
from nmt.models.base import TranslationModel
from nmt.models.vocabulary import TokenEmbedding
from nmt.runtime import seed_everything
from nmt.training.objectives import build_objective
from nmt.training.objectives.configs import (
    OBJECTIVES,
    CrossEntropyConfig,
    ObjectiveConfig,
    RDropConfig,
    SimCutConfig,
)
from nmt.training.objectives.objective import Align, Costs, CrossEntropy, LossModule, Objective, Sample
from nmt.training.objectives.objective import cut as cut_tokens

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
        (loss, nll), (other, _) = (module.nll(x, batch, 0.1) for x in hidden)
        p, q = (module.logits(x).float().log_softmax(-1) for x in hidden)
        kl = 0.5 * ((p.exp() - q.exp()) * (p - q)).sum()
        return 0.5 * (loss + other) + self.cfg.weight * kl, {"nll": nll, "kl": kl}


def cut(batch: Batch) -> Batch:
    return replace(batch, src=batch.src.where(batch.src % 3 != 0, UNK_ID))


class MeanTeacher(Objective):
    """Agreement with the moving average of the model's own weights (Tarvainen and Valpola 2017)."""

    def __call__(self, module: LossModule, batch: Batch, step: int) -> Sums:
        own = {name: x.detach() for name, x in module.model.named_parameters()}
        average = {name: self.tensors.get(name, x) * 0.5 + x * 0.5 for name, x in own.items()}
        hidden = module.hidden(batch)
        with torch.no_grad():
            taught = functional_call(module.model, average, (batch.src, batch.src_mask, batch.tgt_in))
        self.tensors = average
        loss, nll = module.nll(hidden, batch, 0.1)
        return loss + (hidden - batch.real(taught)).square().sum(), {"nll": nll}


class Silent:
    """The context of an objective that asks nothing."""

    def open_model(self, run: str) -> TranslationModel:
        raise AssertionError("nobody asked for another model")

    def aligner(self, alignments: str | None) -> Align:
        raise AssertionError("nobody asked for alignments")

    def sampler(self, temperature: float) -> Sample:
        raise AssertionError("nobody asked for samples")

    def costs(self, metric: str) -> Costs:
        raise AssertionError("nobody asked for costs")


def cross_entropy() -> CrossEntropy:
    """Return the default objective."""
    return CrossEntropy(CrossEntropyConfig(), Silent())


def mean_teacher() -> MeanTeacher:
    """Return an objective that remembers tensors."""
    return MeanTeacher(ObjectiveConfig(), Silent())


def consistency(**fields: Any) -> Consistency:
    """As the tests of training use it: the two passes differ without dropout, too."""
    return Consistency(ConsistencyConfig(**({"cut": True} | fields)), Silent())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of choices of a user, with the objective of this file in the table."""
    monkeypatch.setitem(OBJECTIVES, "consistency", (ConsistencyConfig, Consistency))
    file = tmp_path / "configs" / "objective" / "consistency.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("defaults: [base_consistency, _self_]\n")
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


@pytest.mark.slow
def test_distillation_from_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    teachers = [tmp_path / "teacher", tmp_path / "other_teacher"]
    train(teachers[0], "objective.label_smoothing=0")
    train(teachers[1], "model.d_model=32", "model.encoder_layers=1", "seed=2")
    names = f"objective.teachers=[{teachers[0]},{teachers[1]}]"
    first, last = train(tmp_path / "run", "objective=distillation", names, "objective.weight=1")
    assert first["train/kl"] == pytest.approx(first["train/loss"])
    assert first["train/kl"] > last["train/kl"] > 0
    assert last["train/nll"] > last["train/kl"]
    capsys.readouterr()
    command = ["train", "experiment=toy_en_fr", "objective=distillation"]
    wrong = [*command, names, "tokenizer.lowercase=false"]
    assert cli.main([*wrong, f"run={tmp_path / 'other'}"]) == 2
    assert f"objective.teachers: the run {teachers[0]} has another tok" in capsys.readouterr().err
    assert cli.main(command) == 2
    assert "objective.teachers is missing; set objective.teachers=..." in capsys.readouterr().err
    assert cli.main([*command, "objective.teachers=[]"]) == 2
    assert "objective.teachers names no run; set objective.teachers=[RUN,...]" in capsys.readouterr().err


def trained_in_parts(folder: Path, *options: str) -> list[dict[str, float]]:
    """Train in one go and in two, check that the metrics are the same, and return them."""
    whole = train(folder / "whole", *options)
    train(folder / "parts", *options, "trainer.max_steps=5")
    parts = train(folder / "parts", *options)
    for line, other in zip(whole, parts, strict=True):
        same = [key for key in line if "second" not in key]
        assert {key: line[key] for key in same} == {key: other[key] for key in same}
    return parts


@pytest.mark.parametrize(
    "objective",
    ["cross_entropy", *(pytest.param(one, marks=pytest.mark.slow) for one in ("r_drop", "simcut"))],
)
def test_a_bundled_objective_trains_and_resumes(objective: str, tmp_path: Path) -> None:
    options = [f"objective={objective}", "objective.word_dropout=0.2", "trainer.accumulate=2"]
    metrics = trained_in_parts(tmp_path, *options)
    if objective != "cross_entropy":
        assert metrics[-1]["train/kl"] > 0


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
    objective = build_objective(CrossEntropyConfig(label_smoothing=0.3), Silent())
    assert isinstance(objective, CrossEntropy)
    module = LossModule(model, objective, compiled=False)
    loss, named = module(1, *vars(batch).values())
    hidden = batch.real(model(batch.src, batch.src_mask, batch.tgt_in))
    expected = projected_nll(hidden, model.output, batch.targets, 0.3)
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


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_simcut_and_r_drop_are_the_formulas_of_their_articles(
    pairs: EncodedPairs, tiny_model: Callable[..., TranslationModel], dropout: float
) -> None:
    model, batch = tiny_model(dropout=dropout).train(), batch_of(pairs)
    parameters = list(model.parameters())
    targets = batch.targets
    for cfg in (SimCutConfig(weight=3.0, cut=0.3), RDropConfig(weight=5.0, word_dropout=0.2)):
        objective = build_objective(cfg, Silent())
        seed_everything("objective")
        loss, named = LossModule(model, objective, compiled=False)(1, *vars(batch).values())
        gradients = torch.autograd.grad(loss, parameters)

        seed_everything("objective")  # the same cuts, then the same dropout masks of one doubled batch
        first, second = hide(batch, cfg.word_dropout), hide(batch, getattr(cfg, "cut", cfg.word_dropout))
        both = Batch(*(torch.cat(x) for x in zip(first.tensors, second.tensors, strict=True)))
        hidden = model(both.src, both.src_mask, both.tgt_in).chunk(2)
        logits = [model.output(batch.real(x)) for x in hidden]
        smoothed = [F.cross_entropy(x, targets, label_smoothing=0.1, reduction="sum") for x in logits]
        p, q = (x.log_softmax(-1) for x in logits)
        kl_pq, kl_qp = (F.kl_div(b, a, log_target=True, reduction="sum") for a, b in ((p, q), (q, p)))
        expected = smoothed[0] + 3.0 * kl_pq
        if isinstance(cfg, RDropConfig):
            expected = (smoothed[0] + smoothed[1] + 5.0 * (kl_pq + kl_qp) / 2) / 2
        assert_close(loss, expected)
        assert_close(named["kl"], (kl_pq + kl_qp) / 2)
        assert_close(named["nll"], F.cross_entropy(logits[0], targets, reduction="sum"))
        assert_close(gradients, torch.autograd.grad(expected, parameters), rtol=1e-4, atol=1e-5)
        assert float(named["kl"].detach()) > 1e-3


def hide(batch: Batch, rate: float) -> Batch:
    """Return the batch with a share of the ids replaced by -1, in the order of random numbers of `cut`."""
    if not rate:
        return batch
    src = batch.src.where(torch.rand(batch.src.shape) >= rate, -1)
    return replace(batch, src=src, tgt_in=batch.tgt_in.where(torch.rand(batch.tgt_in.shape) >= rate, -1))


def test_a_hidden_token_has_the_embedding_zero() -> None:
    table = TokenEmbedding(5, 3)
    assert torch.equal(table(torch.tensor([-1, 2])), torch.stack([torch.zeros(3), table.weight[2]]))
    (gradient,) = torch.autograd.grad(table(torch.tensor([-1, 2])).sum(), table.weight)
    assert gradient.sum(1).tolist() == [0, 0, 3, 0, 0]
    with pytest.raises(IndexError):
        table.eval()(torch.tensor([-1]))


def test_tokens_are_hidden_at_the_rate(pairs: EncodedPairs) -> None:
    batch = batch_of(pairs)
    hidden = [cut_tokens(batch, 0.25) for _ in range(50)]
    share = torch.stack([(x.src == -1).float().mean() for x in hidden]).mean()
    assert 0.22 < float(share) < 0.28
    assert cut_tokens(batch, 0.0) is batch
