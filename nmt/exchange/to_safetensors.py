"""The weights of any model under the names of this project, in one file, with the facts to rebuild the model.

A name is the path of modules to a parameter, as docs/export.md explains. A matrix that has several names,
because the model is tied, is stored under the first; `tied` of config.json has the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from nmt import __version__
from nmt.config.stored import to_plain
from nmt.data.configs import domain_tag
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.exchange.configs import ExportConfig
from nmt.exchange.shared import untied
from nmt.files import write_json
from nmt.runs.opened import Run

WEIGHTS = "model.safetensors"


def write(run: Run, cfg: ExportConfig, folder: Path) -> None:
    """Write model.safetensors and config.json."""
    weights, tied = untied(run.model.state_dict())
    dtype = getattr(torch, cfg.quantization.value)
    save_file(
        {name: tensor.cpu().to(dtype).contiguous() for name, tensor in weights.items()},
        folder / WEIGHTS,
        metadata={"format": "pt", "nmt": __version__},
    )
    facts = {
        "nmt_version": __version__,
        "task": run.cfg.task.value,
        "model": to_plain(run.cfg.model),
        "tokenizer": to_plain(run.cfg.tokenizer),
        "src_vocab_size": run.tokenizer.src_vocab_size,
        "tgt_vocab_size": run.tokenizer.tgt_vocab_size,
        "pad_id": PAD_ID,
        "unk_id": UNK_ID,
        "bos_id": BOS_ID,
        "eos_id": EOS_ID,
        **_targets(run),
        "dtype": cfg.quantization.value,
        "tied": tied,
    }
    if not run.cfg.adapt.merges:
        facts["adapt"] = to_plain(run.cfg.adapt)
    write_json(folder / "config.json", facts)


def _targets(run: Run) -> dict[str, Any]:
    """Return what the ids of the target side stand for: labels in the order of their ids, or languages."""
    if run.tokenizer.labels:
        return {"labels": run.tokenizer.labels, "first_label_id": EOS_ID + 1}
    data = run.cfg.data
    domains = {domain: domain_tag(domain) for domain in data.domains.values()}
    return {"languages": data.languages, "tags": data.tags} | ({"domains": domains} if domains else {})
