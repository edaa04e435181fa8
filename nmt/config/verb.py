"""One verb of the command line: a row of the table in `nmt.verbs`.

Names modules and imports them when a verb is run, so that `nmt --help` answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from nmt.loading import loaded


@dataclass(frozen=True)
class Verb:
    """The facts about a verb that the command line needs before the module of the verb is imported."""

    name: str
    """Word after `nmt`; the config of the verb starts from configs/NAME.yaml."""
    summary: str
    """Line of `nmt --help` that says what the verb does."""
    config: str
    """MODULE.CLASS of the config dataclass; the module imports no torch."""
    code: str
    """MODULE.FUNCTION that runs the verb."""
    groups: tuple[str, ...]
    """Folders of configs/; the config takes one choice from each."""
    examples: tuple[str, ...]
    """Commands for `nmt VERB --help`."""
    first_keys: tuple[str, ...] = ()
    """Keys that people change first; the help begins with those that the config has."""
    opens_run: bool = True
    """Whether run=DIR names a run whose config the verb starts from."""
    writes_run: bool = False
    """Whether run=DIR names a run that the verb writes, which no other process may be using."""
    data_from: str = ""
    """Key that names runs, from the first of which a verb that opens none takes the data to start from."""
    models: str = ""
    """Key of several runs by names of the user's own, in place of `run`; each has a config of its own."""
    common: tuple[str, ...] = ()
    """Keys and parts that none of these models has for itself."""
    short: Mapping[str, str] = field(default_factory=dict)
    """Keys that stand for others, such as init for init.run."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Keys that take a choice of a group, each with its group, such as distil.decoding with decoding."""
    reads_input: bool = False
    """Whether sentences come from standard input, which can be read only once."""
    stream_key: str = ""
    """Key without which, as KEY=true, a verb that `reads_input` has no need of it; empty: it needs it."""
    words: str = ""
    """Key of the folders that a verb only reads; arguments without `=` are its values."""
    shared: bool = False
    """Whether several processes, started by torchrun or as those of a trial, can share the work."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Keys of what it writes, each of which trials of a sweep must have for themselves, with the name in the
    run that null stands for; empty: null writes nothing."""
    scores: bool = False
    """Whether it scores a model on validation, or can do so, and a sweep can rank its trials."""

    @property
    def run_key(self) -> str:
        """Key of the runs whose config the verb starts from, all of it or its data alone; or empty."""
        return "run" if self.opens_run else self.data_from

    @property
    def groups_from_run(self) -> tuple[str, ...]:
        """Groups with a choice that stands for what the config of the run says."""
        return self.groups if self.opens_run else ("data",) if self.data_from else ()

    def config_class(self) -> type[Any]:
        """Import the config dataclass."""
        return cast(type[Any], loaded(self.config))

    def run(self, trial: object) -> dict[str, Any]:
        """Run the verb with a `Composed` config, and return the scores by split, if there are any."""
        scores: dict[str, Any] = loaded(self.code)(trial)
        return scores
