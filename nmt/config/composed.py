"""One config as Hydra composed it: checked, made dataclasses, and completed by the training data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from nmt.config import small_data
from nmt.config.explain import explained
from nmt.config.misfits import check
from nmt.config.registry import SCHEMA_PREFIX
from nmt.config.roots import Root, Task, TrainConfig, to_config
from nmt.config.schemas import compose_with_hydra
from nmt.config.small_data import Setting
from nmt.config.stored import fingerprint, flat, load_config, to_plain
from nmt.config.sweeps import file_name
from nmt.config.verb import Verb
from nmt.errors import Log, UserError, tell
from nmt.files import OUTPUTS


@dataclass
class Composed:
    """One config as Hydra composed it, not yet checked."""

    cfg: DictConfig
    choices: dict[str, Any]
    """Group -> the choice in force."""
    typed: Sequence[str] = ()
    """The groups and keys that the command sets."""
    name: str = ""
    """Name of the trial; empty outside of a sweep."""
    values: Mapping[str, str] = field(default_factory=dict)
    """The values that the sweep sets in this trial, as the command line has them."""
    arguments: tuple[str, ...] = ()
    """The command that is the trial alone, after the verb."""
    folder: Path | None = None
    """Run directory of the trial, for a verb that trains."""
    models: Mapping[str, Composed] = field(default_factory=dict)
    """The config of each model that the command names by `Verb.models`, this one first; else empty."""

    @classmethod
    def of(cls, verb: Verb, lines: Sequence[str], typed: Sequence[str] = ()) -> Composed:
        """Let Hydra, set up for `verb`, compose a config from overrides, of which `typed` are the user's."""
        return cls(*compose_with_hydra(verb, lines), typed)

    @property
    def is_rehearsal(self) -> bool:
        """Whether a training is only tried, with debug=... or dry_run=true, and has no scores."""
        return bool(self.cfg.get("debug") or self.cfg.get("dry_run"))

    def to_config(self, root: type[Root]) -> Root:
        """Return the dataclasses; raise `UserError` for values that are missing or out of range.

        Keys that the rules for small data are to choose have the values for a usual corpus.
        """
        return to_config(closed(self.cfg), root)

    def checked(self, verb: Verb) -> None:
        """Raise `UserError` where the config of `verb` does not hold, before its code is imported."""
        cfg = self.to_config(verb.config_class())
        if isinstance(cfg, TrainConfig) and not verb.data_from:  # else it depends on other runs
            check(cfg)

    def to_training(self) -> tuple[TrainConfig, Path]:
        """Return the checked config of a training, and its run directory; read the data if it decides."""
        cfg = self.to_config(TrainConfig)
        check(cfg)
        if settings := self.chosen():
            cfg = to_config(small_data.filled(self.cfg, settings), TrainConfig)
            check(cfg)
        return cfg, self.run_dir(cfg)

    def to_training_like(self, stored: TrainConfig) -> TrainConfig:
        """Return the config of a training in which what is left open is as in `stored`; read no data."""
        known = dict(flat(to_plain(stored)))
        open_keys = small_data.open_keys(self.cfg)
        settings = [Setting(key, known[key], "") for key in open_keys if key in known]
        return to_config(closed(small_data.filled(self.cfg, settings)), TrainConfig)

    def chosen(self, log: Log = tell) -> list[Setting]:
        """Choose what the config leaves open by the training data, and say why."""
        missing = small_data.open_keys(self.cfg)
        if not missing:
            return []
        cfg = to_config(closed(self.cfg), TrainConfig)
        if {*missing} <= {*small_data.WITHOUT_RECIPE}:
            settings, model = small_data.without_recipe(cfg, self.cfg)
            if model:
                self.choices = self.choices | {"model": model}
            if told := [one for one in settings if one.reason]:
                log(self._defaults(told))
            return settings
        census = small_data.counted_pairs(cfg)
        settings = small_data.settings_for(census, self.cfg)
        for line in small_data.remarks(census, self.cfg, settings):
            log(line)
        return [setting for setting in settings if setting.key in missing]

    def _defaults(self, settings: Sequence[Setting]) -> str:
        """Return the line on what a training takes that leaves this open, and how others are chosen."""
        shown = dict[str, str]()
        for one in settings:
            is_of_model = one.key in small_data.MODEL
            shown["model" if is_of_model else one.key] = (
                f"{self.choices['model'] if is_of_model else one.value} ({one.reason})"
            )
        line = " and ".join(f"{key}={value}" for key, value in shown.items())
        if small_data.VOCABULARY not in shown:
            return f"by the corpus: {line}"
        told = f"without a recipe: {line}; set {' and '.join(shown)} for others"
        if self.cfg.task is Task.language_model or self.cfg.data.streaming:  # which the recipe refuses
            return told
        return (
            f"{told}, or take experiment=small_data, which chooses by the pairs, up to some hundred thousand "
            "of them"
        )

    def run_dir(self, cfg: TrainConfig) -> Path:
        """Return the run directory of a training that begins with this config."""
        if cfg.run is not None:
            return Path(cfg.run)
        languages = [cfg.data.src, cfg.data.tgt] if cfg.task is Task.translation else [cfg.data.tgt]
        data = file_name("-".join([str(self.choices.get("data")), *languages]))
        model = str(self.choices.get("model")).removeprefix(SCHEMA_PREFIX)
        return _found_again(Path(OUTPUTS, data), file_name(model), cfg)


def closed(cfg: DictConfig) -> DictConfig:
    """Return `cfg` with values for a usual corpus where the rules for small data are to choose."""
    with explained():
        if not small_data.open_keys(cfg):
            return cfg
        return small_data.filled(cfg, small_data.settings_for(small_data.NOMINAL, cfg))


def _found_again(folder: Path, name: str, cfg: TrainConfig) -> Path:
    """Return the directory of the run of `cfg` in `folder`, even one stored under old keys, or a new one."""
    mark = fingerprint(cfg)
    new = folder / f"{name}-{mark}"
    for file in sorted(folder.glob(f"{name}-*/config.yaml")) if not new.exists() else []:
        with suppress(UserError):  # is no config of this version
            if fingerprint(load_config(file)) == mark:
                return file.parent
    return new
