"""An optimizer and a schedule that somebody adds, by a row and a file each, driven by the command line."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml

from nmt import cli
from nmt.models.base import TranslationModel
from nmt.training.optimizers import optimizer, optimizer_configs, schedule_configs, schedules


@dataclass
class HeavyBallConfig(optimizer_configs.OptimizerConfig):
    """Gradient descent with momentum."""

    name: str = "heavy_ball"
    momentum: float = 0.9
    """Share of the last update in the next."""


@dataclass
class StairsConfig(schedule_configs.PeakConfig):
    """Half the rate after every `width` steps."""

    name: str = "stairs"
    width: int = 10
    """Steps of one rate."""


def build_heavy_ball(cfg: HeavyBallConfig, model: TranslationModel) -> torch.optim.Optimizer:
    groups = optimizer.parameter_groups(model, cfg)
    return torch.optim.SGD(groups, lr=0.0, momentum=cfg.momentum)


def stairs(step: int, cfg: StairsConfig, context: schedules.ScheduleContext) -> float:
    return float(schedules.warmup(step, cfg) * cfg.peak_rate * 0.5 ** ((step - 1) // cfg.width))


COMMAND = shlex.split("""
train experiment=none data=toy data.max_tokens=32 tokenizer=word
model.d_model=16 model.num_heads=2 model.encoder_layers=1 model.decoder_layers=1
optimizer=heavy_ball optimizer.momentum=0.8 schedule=stairs schedule.width=2
schedule.peak_rate=0.4 schedule.warmup_steps=0 trainer.max_steps=5 trainer.log_every_steps=1 decoding=greedy
""")


def test_a_row_and_a_file_are_all_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(optimizer_configs.OPTIMIZERS, "heavy_ball", (HeavyBallConfig, build_heavy_ball))
    monkeypatch.setitem(schedule_configs.SCHEDULES, "stairs", (StairsConfig, stairs))
    for group, name in (("optimizer", "heavy_ball"), ("schedule", "stairs")):
        file = tmp_path / "configs" / group / f"{name}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(f"defaults: [base_{name}, _self_]\n")
    run = tmp_path / "run"
    assert cli.main([*COMMAND, f"--config-dir={tmp_path / 'configs'}", f"run={run}"]) == 0
    assert "peak learning rate 4.00e-01 (stairs)" in capsys.readouterr().err
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["train/lr"] for line in lines if "train/lr" in line] == [0.4, 0.4, 0.2, 0.2, 0.1]
    stored = yaml.safe_load((run / "config.yaml").read_text())
    assert (stored["optimizer"]["name"], stored["optimizer"]["momentum"]) == ("heavy_ball", 0.8)
    assert (stored["schedule"]["name"], stored["schedule"]["width"]) == ("stairs", 2)
