"""An optimizer and a schedule that somebody adds, by a row and a file each, driven by the command line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

TOY = """
from dataclasses import dataclass

import torch

from nmt.training import optimizer, schedules


@dataclass
class SgdConfig(optimizer.OptimizerConfig):
    name: str = "sgd"
    momentum: float = 0.9


@dataclass
class StairsConfig(schedules.PeakConfig):
    name: str = "stairs"
    width: int = 10


def build_sgd(cfg, model):
    groups = optimizer.parameter_groups(model, cfg.weight_decay)
    return torch.optim.SGD(groups, lr=0.0, momentum=cfg.momentum)


def stairs(step, cfg, context):
    return schedules.warmup(step, cfg) * cfg.peak_rate * 0.5 ** ((step - 1) // cfg.width)


optimizer.OPTIMIZERS["sgd"] = (SgdConfig, build_sgd)
schedules.SCHEDULES["stairs"] = (StairsConfig, stairs)

from nmt.cli import main

raise SystemExit(main())
"""


COMMAND = shlex.split("""
toy.py train --config-dir=configs run=run experiment=none data=toy data.max_tokens=32 tokenizer=word
model.d_model=16 model.num_heads=2 model.encoder_layers=1 model.decoder_layers=1
optimizer=sgd optimizer.momentum=0.8 schedule=stairs schedule.width=2
schedule.peak_rate=0.4 schedule.warmup_steps=0 trainer.max_steps=5 trainer.log_every_steps=1 decoding=greedy
""")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "toy.py").write_text(TOY)
    for group, name in (("optimizer", "sgd"), ("schedule", "stairs")):
        file = tmp_path / "configs" / group / f"{name}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(f"defaults: [base_{name}, _self_]\n")
    return tmp_path


def test_a_row_and_a_file_are_all_it_takes(files: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, *COMMAND], cwd=files, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "peak learning rate 4.00e-01 (stairs)" in done.stderr
    lines = [json.loads(line) for line in (files / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["train/lr"] for line in lines if "train/lr" in line] == [0.4, 0.4, 0.2, 0.2, 0.1]
    stored = yaml.safe_load((files / "run" / "config.yaml").read_text())
    assert (stored["optimizer"]["name"], stored["optimizer"]["momentum"]) == ("sgd", 0.8)
    assert (stored["schedule"]["name"], stored["schedule"]["width"]) == ("stairs", 2)
