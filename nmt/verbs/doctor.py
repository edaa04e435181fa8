"""The wiring of `nmt doctor`: a look at the environment and at a corpus; a report, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from nmt.config.composed import Composed
from nmt.data.parallel_text import Split
from nmt.data.reading.bundled_data import NoData
from nmt.data.reading.sources import has_split, set_configs
from nmt.doctor.configs import DoctorConfig
from nmt.doctor.corpus import SplitReport, examined
from nmt.doctor.environment import Fact, environment
from nmt.doctor.findings import Severity
from nmt.doctor.judging import judged
from nmt.doctor.page import page, report_data
from nmt.doctor.summary import summary
from nmt.errors import UserError, first_of, tell
from nmt.files import require_file_place, write_atomically, write_json


def run(trial: Composed) -> dict[str, Any]:
    """Print a report, and write its page and its JSON where they are asked for.

    Raises:
        UserError: there is something that breaks a training; the report is printed before.
    """
    cfg = trial.to_config(DoctorConfig)
    for key, file in (("json", cfg.doctor.json), ("page", cfg.doctor.page)):
        if file is not None:
            require_file_place(Path(file), f"doctor.{key}", "doctor.json" if key == "json" else "doctor.html")
    if isinstance(cfg.data, NoData):
        _refuse_what_needs_a_corpus(cfg)
        title, reports = "nmt doctor: the environment", list[SplitReport]()
        facts, findings = environment()
    elif not any(has_split(cfg.data, split) for split in Split):
        keys = ", ".join(cfg.data.key(split) for split in Split)
        raise UserError(f"data={cfg.data.name} names nothing to look at; set {keys} or some of them")
    else:
        name = f"{cfg.data.name} ({cfg.data.src}-{cfg.data.tgt})" if cfg.data.has_source else cfg.data.name
        title, facts = f"nmt doctor: {name}", list[Fact]()
        reports, unreadable = examined(cfg.data, set_configs(cfg.sets, cfg.data), cfg.doctor, tell)
        findings = judged(cfg, reports, unreadable)
    print(summary(title, findings, reports, facts))
    content = report_data(title, findings, reports, facts)
    if cfg.doctor.json is not None:
        write_json(Path(cfg.doctor.json), content)
        print(f"\nwritten     {cfg.doctor.json}")
    if cfg.doctor.page is not None:
        write_atomically(Path(cfg.doctor.page), page(content).encode())
        print(f"written     {cfg.doctor.page}")
    broken = [finding for finding in findings if finding.severity is Severity.breaks]
    if broken:
        sys.stdout.flush()
        told = "; ".join(f"{finding.where}: {finding.text}" for finding in broken)
        raise UserError(f"training would fail, or learn nothing, until this is mended: {told}")
    return {}


def _refuse_what_needs_a_corpus(cfg: DoctorConfig) -> None:
    """Raise `UserError` where keys without a corpus name further ones, or a training, as if there was one."""
    if cfg.sets:
        raise UserError(
            f"sets={first_of(cfg.sets)}: further corpora are looked at beside one; name it: data=..."
        )
    if cfg.run is not None:
        raise UserError(
            f"run={cfg.run} stands for its corpus once its training has begun, and beside keys alone that "
            "may change when a run goes on; name the corpus: data=..."
        )
    if cfg.init.run is not None:
        raise UserError(
            f"init={cfg.init.run}: a training from it needs a corpus to look at; name it: data=..."
        )
