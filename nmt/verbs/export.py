"""The wiring of `nmt export`: the model of a run, written for another program."""

from __future__ import annotations

import dataclasses
from typing import Any

from nmt.config.composed import Composed
from nmt.exchange.configs import ExportConfig
from nmt.exchange.export import export
from nmt.runs.opening import open_runs


def run(trial: Composed) -> dict[str, Any]:
    """Write the folder, and print what it is and how large."""
    cfg = trial.to_config(ExportConfig)
    opened = open_runs(cfg)
    opened.cfg = dataclasses.replace(opened.cfg, decoding=cfg.decoding)  # the defaults of the exported model
    folder = export(opened, cfg)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"written     {folder}: {cfg.format.value}, {cfg.quantization.value}, {size / 2**20:.1f} MiB")
    print(f"use         {folder / 'README.md'} has a program, and what is known about the model")
    return {}
