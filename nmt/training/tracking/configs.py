"""The keys of `tracking`, and the table of sinks, which imports no library before it needs it."""

from __future__ import annotations

from dataclasses import dataclass, field

from nmt.errors import UserError, suggest
from nmt.loading import Code

SINKS: dict[str, Code] = {
    "display": "nmt.training.tracking.sinks.Display",
    "train_log": "nmt.training.tracking.sinks.TrainLog",
    "jsonl": "nmt.training.tracking.sinks.JsonLines",
    "tensorboard": "nmt.training.tracking.sinks.TensorBoard",
    "wandb": "nmt.training.tracking.remote_sinks.WandB",
    "mlflow": "nmt.training.tracking.remote_sinks.MLflow",
    "trackio": "nmt.training.tracking.remote_sinks.Trackio",
}
"""Name in `tracking.sinks` -> its class, which imports what it needs when a sink is made."""


def _default_sinks() -> list[str]:
    return ["display", "train_log", "jsonl", "tensorboard"]


@dataclass
class TrackingConfig:
    """The places that a training reports to."""

    sinks: list[str] = field(default_factory=_default_sinks)
    """Any of display (on stderr), train_log (train.log), jsonl (metrics.jsonl), tensorboard, wandb, mlflow
    and trackio; the last three are packages of their own."""
    project: str = "nmt"
    """Name of the project (of MLflow: the experiment) in wandb, mlflow and trackio."""

    def __post_init__(self) -> None:
        for number, name in enumerate(self.sinks):
            if name not in SINKS:
                raise UserError(
                    f"tracking.sinks[{number}] must be one of {', '.join(SINKS)}, "
                    f"but is {name!r}{suggest(name, SINKS)}"
                )
        if len(set(self.sinks)) < len(self.sinks):
            raise UserError(f"tracking.sinks must name each sink once, but is [{', '.join(self.sinks)}]")
