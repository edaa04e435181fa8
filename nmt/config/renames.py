"""Names of earlier versions: keys of stored configs are translated, typed keys and choices refused by name.

Knows keys and plain values; knows no dataclass.
"""

from __future__ import annotations

from typing import Any

RENAMED_KEYS = {
    "data.split": "data.scored_split",
    "decoding.alpha": "decoding.length_penalty_alpha",
    "decoding.num_best": "decoding.n_best",
    "trainer.label_smoothing": "objective.label_smoothing",
    "optimizer.algorithm": "optimizer.name",
    "optimizer.muon_momentum": "optimizer.momentum",
    "optimizer.muon_rms": "optimizer.rms",
    "optimizer.muon_iterations": "optimizer.iterations",
    "optimizer.schedule": "schedule.name",
    "optimizer.warmup_steps": "schedule.warmup_steps",
    "optimizer.factor": "schedule.factor",
    "optimizer.peak_rate": "schedule.peak_rate",
    "optimizer.final_rate": "schedule.final_rate",
    "optimizer.decay_steps": "schedule.decay_steps",
    "optimizer.reduce_factor": "schedule.reduce_factor",
    "optimizer.plateau_patience": "schedule.plateau_patience",
    "optimizer.min_rate": "schedule.min_rate",
}
"""Full key of an earlier version -> its name now."""

RENAMED_CHOICES = {
    f"optimizer={name}": f"schedule={name}"
    for name in ("noam", "inverse_sqrt", "linear", "cosine", "plateau", "constant")
}
"""GROUP=CHOICE of an earlier version -> what it is now."""

NEW_PARTS = {"objective": {"name": "cross_entropy"}}
"""Parts that a config of an earlier version lacks -> what they were before they could be chosen."""


def translate(plain: dict[str, Any]) -> None:
    """Rename the keys of a stored config (nested dicts) to their present names, in place."""
    optimizer = plain.get("optimizer")
    if isinstance(optimizer, dict) and optimizer.get("algorithm") in ("adam", "adamw"):
        for name in ("muon_momentum", "muon_rms", "muon_iterations"):  # stored for all, used by Muon alone
            optimizer.pop(name, None)
    for old, new in RENAMED_KEYS.items():
        (old_part, old_name), (new_part, new_name) = old.rsplit(".", 1), new.rsplit(".", 1)
        values = plain.get(old_part)
        if isinstance(values, dict) and old_name in values:
            moved = plain.setdefault(new_part, dict(NEW_PARTS.get(new_part, {})))
            if isinstance(moved, dict) and new_name not in moved:
                moved[new_name] = values.pop(old_name)
