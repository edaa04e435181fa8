"""The wiring of `nmt import`: a model of another program becomes a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nmt.config.composed import Composed
from nmt.config.spelling import shell_word
from nmt.exchange.importing import import_folder
from nmt.verbs.configs import ImportConfig


def run(trial: Composed) -> dict[str, Any]:
    """Write the run directory and say what is in it."""
    cfg = trial.to_config(ImportConfig)
    made, imported = import_folder(Path(cfg.folder), Path(cfg.run), cfg.src, cfg.targets)
    size = sum({x.data_ptr(): x.numel() for x in imported.weights.values()}.values())
    print(f"imported    {imported.model.name} of {size:,} parameters")
    for remark in imported.remarks:
        print(f"note        {remark}")
    print(f"written     {cfg.run}")
    asked = f" tgt={made.data.tgt}" if len(made.data.languages) > 1 else ""
    pairs = (
        "data=mixture data.target_tags=true data.corpora=..."
        if made.data.tags
        else "data=files data.train=..."
    )
    print(f"Next:       nmt translate {shell_word('run', cfg.run)}{asked} < {made.data.src}.txt")
    print(f"            nmt train {shell_word('init', cfg.run)} {pairs}")
    return {}
