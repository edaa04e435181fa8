"""A run directory: all files of one training, so that a run can be moved and shared.

    config.yaml  environment.json  tokenizer*.model  data/  MANIFEST.json  checkpoints/  metrics.jsonl
    tb/  trackers/  hypotheses/  evaluations/  results.json  status.json  init.json  teachers.json
    alignments.json  {src,tgt}_embeddings.json  import.json  export.json  nonfinite_step_*.json  train.log

MANIFEST.json holds the SHA-256 of the tokenizer and of the kept data, which never change once the training
has begun; runs of earlier versions have none.

Knows files, not models: `nmt.training.checkpoint` knows the content of a checkpoint, and `nmt.config.stored`
that of config.yaml.
"""

from __future__ import annotations

import itertools
import os
import platform
import shutil
import sys
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from nmt import __version__, kernels
from nmt.config.roots import TrainConfig, epoch_size, with_batch_tokens, with_epoch_size
from nmt.config.spelling import shell_word
from nmt.config.stored import difference, load_config, may_change, refuse_difference, save_config
from nmt.containment import require_contained
from nmt.data.batches.training_split import TrainingText
from nmt.data.configs import DataConfig
from nmt.data.parallel_text import MAX_LINE_CHARS, ParallelText, Split
from nmt.data.reading.lines import is_cut
from nmt.data.reading.sources import MAX_SCORED_BYTES
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.errors import UserError, suggest, warn
from nmt.files import (
    EXPORT_RECORD,
    IMPORT_RECORD,
    NUMBER,
    another,
    digest,
    locked,
    read_json,
    write_json,
    write_lines,
)
from nmt.metrics.label_scores import are_details
from nmt.runtime_config import num_processes
from nmt.training.checkpoint import CheckpointStore

PACKAGES = (
    "torch",
    "numpy",
    "sentencepiece",
    "sacrebleu",
    "datasets",
    "hydra-core",
    "omegaconf",
    "safetensors",
)
SEALED = (
    "tokenizer*.model",
    "data/train.json",
    *(f"data/{folder}{split}.*" for folder in ("", "*/") for split in ("validation", "test")),
)
"""Files whose SHA-256 is in MANIFEST.json."""
EARLIER_PRECISION = "precision_on_cpu"
"""Field of environment.json: the number format on CPU of a training that went on on a GPU."""
ENDINGS = {"failed": "has failed", "stopped": "was stopped", "preempted": "was interrupted"}
"""What a message says of a training that has ended early, by its state in status.json."""
RESULTS = {
    **dict.fromkeys(("step", "train_seconds", "tgt_tokens_per_second"), float),
    "signatures": dict[str, str],
    "validation": dict[str, NUMBER],
    **dict.fromkeys(("test", "train"), dict[str, NUMBER] | None),
    "averaged_steps": list[int] | None,
    "compared": dict[str, NUMBER] | None,
    "tuned_decoding": dict[str, Any] | None,
    "languages": dict[str, dict[str, dict[str, NUMBER]]] | None,
    "details": dict[str, dict[str, dict[str, dict[str, float]]]] | None,
    **dict.fromkeys(("parameters", "learnt_parameters"), int | None),
    "sets": dict[str, dict[str, dict[str, float | str]]] | None,
}
"""Fields of results.json with their types; None: may be missing."""


class RunDirectory:
    """The files of one run, which may come from a stranger."""

    def __init__(self, path: Path, key: str = "run"):
        """Open the directory, which may be missing; raise `UserError` if a name in it leads out of it.

        `key` is what names the directory on the command line, for errors; empty where no other would do.
        """
        require_contained(path)
        self.path, self.key = path, key
        self.config_file = path / "config.yaml"
        self.results_file = path / "results.json"
        self.status_file = path / "status.json"
        self.hypotheses = path / "hypotheses"
        self.evaluations = path / "evaluations"
        self._data = path / "data"
        self._train_digest = self._data / "train.json"
        self._manifest = path / "MANIFEST.json"

    @property
    def or_anew(self) -> str:
        """The other way out where something that the run depends on has changed, if there is one."""
        return f", or start anew with another {self.key}=..." if self.key else ""

    @property
    def checkpoints(self) -> CheckpointStore:
        """The checkpoints of this run."""
        return CheckpointStore(self.path / "checkpoints")

    @property
    def is_finished(self) -> bool:
        """Whether the weights are final: scored at the end of a training, imported or exported."""
        records = self.results_file.name, IMPORT_RECORD, EXPORT_RECORD
        return any((self.path / name).is_file() for name in records)

    def locked(self) -> AbstractContextManager[None]:
        """Lock the directory against all other trainings; see `files.locked`."""
        return locked(self.path, another(self.key))

    def claim(self, cfg: TrainConfig, typed: Collection[str] = ()) -> bool:
        """Return whether the directory holds a run of exactly `cfg`; make it one if nothing is trained yet.

        `typed` are the keys that the command sets, for errors, and a warning where the name of a new
        directory is all that is said, and is nearly that of a run beside it.

        Raises:
            UserError: the directory belongs to a run with another config (shows the difference), or holds
                a tokenizer or checkpoints but no config.yaml, and so may not be a run.
        """
        if self.config_file.exists():
            self._settle()
        trained, cfg = self.checkpoints.steps(), self.with_found(cfg)
        if not self.config_file.exists() and (trained or Tokenizer.exists(self.path)):
            raise UserError(
                f"{self.path} holds {'checkpoints' if trained else 'a tokenizer'} but no config.yaml, "
                f"so it is not a run directory; nothing there was touched; {another(self.key)}"
            )
        if trained:
            self.verify()
            stored = load_config(self.config_file)
            return not refuse_difference(stored, cfg, self.path, trained[-1], self.key, typed)
        if "run" in typed and all(map(may_change, typed)) and not self.config_file.exists():
            beside = [file.parent.name for file in self.path.absolute().parent.glob("*/config.yaml")]
            if near := suggest(self.path.name, beside):
                warn(f"{self.path} is a new run, of data={cfg.data.name}, as the command says no more{near}")
        tokenizers = self.path.glob("tokenizer*.model")
        for leftover in (
            self._manifest,
            self._train_digest,
            self.checkpoints.base,
            *tokenizers,
        ):  # of a start that failed
            _remove(leftover)
        save_config(cfg, self.config_file)
        return False

    def with_found(self, cfg: TrainConfig) -> TrainConfig:
        """Return `cfg` with the numbers that were found for this run: those of `config.stored.FOUND`.

        A run that is trained keeps them for good, one that is not for the same config.
        """
        if not self.config_file.is_file():
            return cfg
        with suppress(UserError):  # is no config of this version, which `claim` deals with
            stored = load_config(self.config_file)
            known = with_epoch_size(cfg, epoch_size(stored))
            if cfg.trainer.is_to_be_found:
                known = with_batch_tokens(known, stored.trainer.auto_batch_tokens)
            if self.checkpoints.steps() or not difference(stored, known):
                return known
        return cfg

    def _settle(self) -> None:
        """Settle what killed processes left half written; call with the directory locked."""
        self.checkpoints.clean()  # a checkpoint that was being replaced counts again
        name = ".tmp-*.*"
        for draft in itertools.chain(
            self.path.glob(name), self._data.glob(name), self.hypotheses.rglob(name)
        ):
            process = draft.suffix[1:]
            if process.isdecimal() and (int(process) == os.getpid() or not Path("/proc", process).exists()):
                _remove(draft)

    def adopt(self, cfg: TrainConfig, *, learns: bool = True) -> None:
        """Store `cfg` as the config of the run, and remove what an earlier, shorter training ended with.

        Unless the run `learns`, translations by `nmt evaluate` stay: `forget_evaluations` deals with them.
        """
        _remove(self.results_file)
        for folder, split in itertools.product((self.hypotheses, *self.hypotheses.glob("*/")), Split):
            is_evaluated = folder == self.hypotheses and (self.evaluations / f"{split.value}.json").is_file()
            for file in folder.glob(f"{split.value}.*") if learns or not is_evaluated else ():
                _remove(file)  # those of validations have names of their own
        self.checkpoints.remove_average()
        save_config(cfg, self.config_file)

    def precision(self) -> str:
        """Return the number format in which this run was trained last on CPU; nothing where no file tells."""
        with suppress(UserError):
            facts = read_json(self.path / "environment.json")
            on_cpu = facts.get("kernels") != ""  # a GPU has none
            return str(facts.get("precision" if on_cpu else EARLIER_PRECISION, ""))
        return ""

    def write_environment(self, device: torch.device, precision: str) -> None:
        """Record the command, the versions of packages, and the device of this process."""
        facts = {
            "command": sys.argv,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": {"nmt": __version__} | {name: metadata.version(name) for name in PACKAGES},
            "device": torch.cuda.get_device_name(device)
            if device.type == "cuda"
            else platform.processor() or "cpu",
            "cpu": cpu_name(),
            "kernels": kernels.status() if device.type == "cpu" else "",
            "processes": num_processes(),
            "threads": torch.get_num_threads(),
            "precision": precision,
        }
        if device.type == "cuda" and (earlier := self.precision()):
            facts[EARLIER_PRECISION] = earlier
        write_json(self.path / "environment.json", facts)

    def seal(self) -> None:
        """Record the SHA-256 of the tokenizer and of the kept data; see `verify`."""
        sums = {name: digest(self.path / name) for name in self._sealed_names()}
        if not self._manifest.is_file() or read_json(self._manifest) != sums:
            write_json(self._manifest, sums)

    def verify(self) -> None:
        """Raise `UserError` when the tokenizer or kept data have changed since `seal` recorded them."""
        sums = read_json(self._manifest) if self._manifest.is_file() else {}
        for name in self._sealed_names():
            if name in sums and (found := digest(self.path / name)) != sums[name]:
                raise UserError(
                    f"{self.path / name} has changed since the run began: its SHA-256 is {found[:16]}..., "
                    f"but {self._manifest.name} has {str(sums[name])[:16]!r}...; restore the file"
                )

    def require_checkpoint(self) -> None:
        """Raise `UserError` when there is nothing to open yet; say how the training ended, if it did."""
        if self.checkpoints.steps():
            return
        told = ""
        if self.status_file.is_file():
            found = read_json(self.status_file, {"state": str, "reason": str})
            reason = f": {found['reason']}" if found["reason"] else ""
            told = f", and its training {ENDINGS.get(found['state'], 'goes on')}{reason}"
        command = f"nmt train {shell_word('run', self.path)} ..."
        raise UserError(f"{self.path} has no checkpoint yet{told}; train it with `{command}`")

    def copy_sealed(self, folder: Path) -> None:
        """Copy the tokenizer and the kept data into another directory."""
        for name in self._sealed_names():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.path / name, target)

    def _sealed_names(self) -> list[str]:
        files = sorted(file for pattern in SEALED for file in self.path.glob(pattern) if file.is_file())
        return [str(file.relative_to(self.path)) for file in files]

    def keep_text(self, split: Split, text: ParallelText, data: DataConfig) -> None:
        """Copy an evaluation split, as it was read, so that the run can be scored without its corpus.

        Raises:
            UserError: a run with checkpoints has a copy of other pairs.
        """
        trained = bool(self.checkpoints.steps())
        if trained:  # else the copy may be of a start that failed
            self.require_same_text(split, text, data)
        if not trained or self.kept_text(split, data) != text:
            self.keep_set("", split, text, data)

    def require_same_text(self, split: Split, text: ParallelText, data: DataConfig) -> None:
        """Raise `UserError` when there is a copy of an evaluation split, and it is of other pairs."""
        kept = self.kept_text(split, data)
        if kept is not None and (kept.src, kept.tgt) != (text.src, text.tgt):
            raise UserError(
                f"the {split.value} data of {self.path} has changed since the run began; "
                f"restore it{self.or_anew}"
            )

    def keep_set(self, name: str, split: Split, text: ParallelText, data: DataConfig) -> None:
        """Replace the copy of a split of the corpus `name` of `sets`; an empty name: of the data."""
        for old in (self._data / name).glob(f"{split.value}.ref*.{data.tgt}"):
            _remove(old)
        sides = [*self._sides(split, data, name), *self._references(split, data, name, len(text.references))]
        for file, lines in zip(sides, (text.src, text.tgt, *text.references), strict=True):
            write_lines(file, lines)

    def kept_text(self, split: Split, data: DataConfig, name: str = "") -> ParallelText | None:
        """Return the copy of an evaluation split, of `sets` if it has a `name`, or None when there is none.

        Raises:
            UserError: a file is no text as `keep_text` writes it, or its lines are not those of the other.
        """
        sides = self._sides(split, data, name)
        if not all(side.is_file() for side in sides):
            return None
        count = len(list((self._data / name).glob(f"{split.value}.ref*.{data.tgt}")))
        sides += self._references(split, data, name, count)
        src, tgt, *references = map(_kept_lines, sides)
        for side, lines in zip(sides[1:], (tgt, *references), strict=True):
            if len(src) != len(lines):
                raise UserError(
                    f"{sides[0]} has {len(src):,} lines, but {side} has {len(lines):,}; restore them"
                )
        return ParallelText(src, tgt, references)

    def _sides(self, split: Split, data: DataConfig, name: str = "") -> list[Path]:
        return [self._data / name / f"{split.value}.{lang}" for lang in (data.src, data.tgt)]

    def _references(self, split: Split, data: DataConfig, name: str, count: int) -> list[Path]:
        """Return the files of `count` further references, which have the numbers from 2."""
        names = [f"{split.value}.ref{number + 2}.{data.tgt}" for number in range(count)]
        return [self._data / name / file for file in names]

    def require_same_data(self, text: TrainingText) -> None:
        """Store a hash of the training split, or raise `UserError` when it differs from the stored one."""
        own = {"training_pairs": len(text), "sha256": text.sha256}
        if not self._train_digest.is_file():
            write_json(self._train_digest, own)
        elif (stored := read_json(self._train_digest, {"training_pairs": int, "sha256": str})) != own:
            raise UserError(
                f"the training data of {self.path} has changed since the run began: "
                f"{stored['training_pairs']:,} pairs then, {len(text):,} now, with other content; "
                f"restore the data{self.or_anew}"
            )

    def forget_evaluations(self, digest: str) -> list[str]:
        """Remove the evaluations of other final weights than those of `digest`, and their translations.

        Return the names of what is removed. Evaluations of a checkpoint by its name stay.
        """
        kept, removed, stale = set[Path](), [], set[Path]()
        for file in sorted(self.evaluations.glob("*.json")):
            with suppress(UserError):  # is damaged, and no matter of the training
                found = read_json(file, {"hypotheses": str, "weights": dict, "changed": dict})
                named = "checkpoint" in found["changed"]
                is_kept = named or digest[:16] in found["weights"].get("checkpoint", ())
                (kept if is_kept else stale).add(self.path / found["hypotheses"])
                if not is_kept:
                    _remove(file)
                    removed.append(file.stem)
        for translations in stale - kept:
            if translations.parent == self.hypotheses:
                _remove(translations)
        return sorted(removed)

    def results(self) -> dict[str, Any] | None:
        """Return the scores of the finished run, or None while it is not finished."""
        if not self.results_file.is_file():
            return None
        found = read_json(self.results_file, RESULTS)
        for split, details in (found.get("details") or {}).items():
            if not are_details(details):
                raise UserError(
                    f"{self.results_file} is damaged: details of {split} are not scores of labels"
                )
        return found


def scores_by_split(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the scores in the content of results.json by split, and by SPLIT-NAME for those of `sets`."""
    named = {"": results} | {f"-{name}": found for name, found in results.get("sets", {}).items()}
    return {
        f"{split.value}{name}": found[split.value]
        for name, found in named.items()
        for split in Split
        if split.value in found
    }


def cpu_name() -> str:
    """Return the name of the processor, as far as the system tells."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _remove(file: Path) -> None:
    """Remove a file if it is there; what is no file stays, and is named by whoever writes the file."""
    if file.is_file():
        file.unlink(missing_ok=True)


def _kept_lines(file: Path) -> list[str]:
    """Return the lines that `write_lines` wrote; raise `UserError` for any other content."""
    if file.stat().st_size > MAX_SCORED_BYTES:
        raise UserError(f"{file} is damaged: it has more than {MAX_SCORED_BYTES >> 20} MB; restore it")
    try:
        *lines, rest = file.read_bytes().decode().split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is damaged: byte {error.start} is not UTF-8; restore it") from error
    if rest or any(map(is_cut, lines)):
        problem = "its last line has no end" if rest else f"a line has over {MAX_LINE_CHARS:,} characters"
        raise UserError(f"{file} is damaged: {problem}; restore it")
    return lines
