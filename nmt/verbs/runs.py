"""The wiring of `nmt runs`: list the runs in a folder."""

from __future__ import annotations

from typing import Any

from nmt.comparison.configs import RunsConfig
from nmt.comparison.listing import listed
from nmt.config.composed import Composed
from nmt.errors import warn


def run(trial: Composed) -> dict[str, Any]:
    """Print the runs in a folder."""
    print(listed(trial.to_config(RunsConfig), warn))
    return {}
