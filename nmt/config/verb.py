"""One verb of the command line: a row of the table in `nmt.verbs`.

Names modules and imports them when a verb is run, so that `nmt --help` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Verb:
    """What the command line must know of a verb before its module is imported."""

    name: str
    """What stands after `nmt`; configs/NAME.yaml says what the verb starts from."""
    summary: str
    """What the verb does, in a line of `nmt --help`."""
    config: str
    """MODULE.CLASS of the config dataclass; the function `run` is in the same module."""
    groups: tuple[str, ...]
    """Folders of configs/, of each of which the config takes one choice."""
    examples: tuple[str, ...]
    """Commands for `nmt VERB --help`."""
    opens_run: bool = True
    """Whether run=DIR names a trained model, from whose config that of the verb starts."""
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
