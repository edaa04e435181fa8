"""One verb of the command line: a row of the table in `nmt.verbs`.

Names modules and imports them when a verb is run, so that `nmt --help` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Verb:
    """The facts about a verb that the command line needs before the module of the verb is imported."""

    name: str
    """Word after `nmt`; the config of the verb starts from configs/NAME.yaml."""
    summary: str
    """Line of `nmt --help` that says what the verb does."""
    config: str
    """MODULE.CLASS of the config dataclass; the function `run` is in the same module."""
    groups: tuple[str, ...]
    """Folders of configs/; the config takes one choice from each."""
    examples: tuple[str, ...]
    """Commands for `nmt VERB --help`."""
    opens_run: bool = True
    """Whether run=DIR names a run whose config the verb starts from."""
    reads_input: bool = False
    """Whether sentences come from standard input, which can be read only once."""
    shared: bool = False
    """Whether several processes, started by torchrun, can share the work."""

    def config_class(self) -> type[Any]:
        """Import the config dataclass."""
        module, _, name = self.config.rpartition(".")
        return getattr(import_module(module), name)

    def run(self, trial: object) -> dict[str, Any]:
        """Call `run` of the module with a `Composed` config; return the scores by split, if there are any."""
        return import_module(self.config.rpartition(".")[0]).run(trial)
