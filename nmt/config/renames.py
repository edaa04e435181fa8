"""Keys that had other names in earlier versions: stored configs are translated, typed keys refused by name.

Knows keys and plain values; knows no dataclass.
"""

from __future__ import annotations

from typing import Any

RENAMED_KEYS = {
    "data.split": "data.scored_split",
    "decoding.alpha": "decoding.length_penalty_alpha",
    "decoding.num_best": "decoding.n_best",
    "trainer.label_smoothing": "objective.label_smoothing",
}
"""Full key of an earlier version -> its name now."""

NEW_PARTS = {"objective": {"name": "cross_entropy"}}
"""Parts that a config of an earlier version lacks -> what they were before they could be chosen."""


def translate(plain: dict[str, Any]) -> None:
    """Give the keys of a stored config, nested dicts, the names they have now; in place."""
    for old, new in RENAMED_KEYS.items():
        (old_part, old_name), (new_part, new_name) = old.rsplit(".", 1), new.rsplit(".", 1)
        values = plain.get(old_part)
        if isinstance(values, dict) and old_name in values:
            part = plain.setdefault(new_part, dict(NEW_PARTS.get(new_part, {})))
            part.setdefault(new_name, values.pop(old_name))
