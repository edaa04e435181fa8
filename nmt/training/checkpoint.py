"""Checkpoints on disk: written atomically, verified when read, averaged and pruned.

A checkpoint is a folder of safetensors and JSON. There is no pickle, so reading one cannot run code. Which
tensors make up a model, and which steps are worth keeping, is not known here: callers hand over named tensors
and a JSON object.

    checkpoints/step_00001000/   model.safetensors  optimizer.safetensors  state.json  MANIFEST.json
    checkpoints/average/         model.safetensors  state.json  MANIFEST.json
    checkpoints/base.safetensors                    where few weights learn: all others, once

A folder is written under a temporary name, synced to the disk and only then renamed, so a crash at any moment
leaves the old checkpoint or the new one. MANIFEST.json comes last, with size and SHA-256 of the other files,
the number of the format and the version of nmt that wrote it: a checkpoint of a later format is refused, and
never taken for a damaged one. A file may come from a stranger, so sizes are bounded before anything is made.
Names with a dot are no checkpoints: `.tmp-*` is being written, `.old-*` replaced, `.trash-*` deleted (after a
crash, `clean` settles these three), and `.corrupt-*` was set aside for a person to look at.

A directory has one writer at a time; readers need no lock. A `step` is one optimizer update, counted from 1.
Averaging of checkpoints: Vaswani et al. 2017, section 6.1.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import os
import re
import reprlib
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nmt import __version__
from nmt.errors import Log, TrainingStopped, UserError
from nmt.files import (
    MAX_JSON_BYTES,
    digest,
    load_json,
    misfits,
    parse_json,
    publish,
    require_space,
    written_atomically,
)

FORMAT = 1
"""Number of the layout that is written here; all up to it are read."""
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
MANIFEST = "MANIFEST.json"
AVERAGE = "average"
BASE = "base.safetensors"
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types of tensors in a checkpoint -> their names in safetensors."""
MAX_TENSORS, MAX_AXES, MAX_ELEMENTS = 1 << 16, 8, 1 << 48
"""Bounds of a file of tensors and of each of them; Adam of a model of 1,000 layers has some 50,000."""
ALIASES = "aliases"  # safetensors metadata: {name: name of the stored tensor whose memory it shares}


@dataclass
class Checkpoint:
    """Everything a run needs to go on from `step`."""

    step: int
    model: dict[str, Tensor]
    """Names that share memory on saving (tied embeddings) share it again after loading."""
    optimizer: dict[str, Tensor]
    """Empty in an average."""
    state: dict[str, Any]
    """JSON: string keys, lists rather than tuples."""


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, directory: Path):
        self.directory = directory

    def folder(self, step: int) -> Path:
        """Return the folder of the checkpoint of `step`, whether it exists or not."""
        return self.directory / f"step_{step:08d}"

    def steps(self) -> list[int]:
        """Return the steps that have a folder, in ascending order; loading shows whether they are valid."""
        folders = self.directory.iterdir() if self.directory.is_dir() else []
        return sorted(int(path.name[5:]) for path in folders if re.fullmatch(r"step_\d{8,}", path.name))

    def save(self, checkpoint: Checkpoint) -> None:
        """Write `checkpoint`; one of the same step is replaced.

        Raises:
            TrainingStopped: the disk is full or not writable; what was saved before is intact.
        """
        folder, own = self.folder(checkpoint.step), self._own(checkpoint.model)
        with self._writing(f"checkpoint {folder}"):
            require_space(self.directory, num_bytes([*own.values(), *checkpoint.optimizer.values()]))
        self._write(folder, _pack(own, checkpoint.optimizer, checkpoint.state))

    def save_base(self, model: dict[str, Tensor], names: Collection[str]) -> None:
        """Write the tensors `names` of `model`, which no update changes, once for all checkpoints.

        Call this before the first of them is saved. Raises like `save`.
        """
        with self._writing(f"{self.base}"):
            self.directory.mkdir(parents=True, exist_ok=True)
            with written_atomically(self.base) as file:
                file.writelines(_pack_tensors({name: x for name, x in model.items() if name in names}))

    @property
    def base(self) -> Path:
        """The file of the tensors that all checkpoints share, where there are such."""
        return self.directory / BASE

    @functools.cached_property
    def _base_entry(self) -> dict[str, int | str]:
        """The entry of the shared file in the manifest of a checkpoint."""
        return {"size": self.base.stat().st_size, "sha256": digest(self.base)}

    def _own(self, model: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of `model` that are not among those that all checkpoints share."""
        if not self.base.is_file():
            return model
        with safe_open(self.base, framework="pt") as file:
            shared = {*file.keys(), *_aliases(self.base)}
        return {name: x for name, x in model.items() if name not in shared}

    def require_space(self, count: float, model: dict[str, Tensor], further: int) -> None:
        """Raise `TrainingStopped` unless the disk has room for `count` checkpoints.

        Each of them is of `model`, beside what is written once for all, and `further` bytes.
        """
        with self._writing(f"checkpoints to {self.directory}"):
            require_space(self.directory, int(count * (num_bytes(self._own(model).values()) + further)))

    def save_average(self, model: dict[str, Tensor], steps: Sequence[int]) -> None:
        """Write `model`, the average of `steps`, in place of an earlier average. Raises like `save`."""
        self._write(self.directory / AVERAGE, _pack(self._own(model), None, {"steps": list(steps)}))

    def remove_average(self) -> None:
        """Delete the average, if there is one. Raises like `save`."""
        self._remove(self.directory / AVERAGE)

    def load(self, step: int) -> Checkpoint:
        """Read and verify the checkpoint of `step`; never another one.

        Raises:
            UserError: the checkpoint is missing or damaged; names the file and the reason.
        """
        with self._required(self.folder(step)) as folder:
            return _read(folder, step)

    def load_model(self, step: int) -> dict[str, Tensor]:
        """Read and verify the model of `step` alone. Raises like `load`."""
        with self._required(self.folder(step)) as folder:
            return _read_model(folder, _read_manifest(folder))

    def load_state(self, step: int) -> dict[str, Any]:
        """Read and verify the JSON object of `step` alone. Raises like `load`."""
        with self._required(self.folder(step)) as folder:
            return _read_json(_verified(folder, STATE, _read_manifest(folder)))

    def load_average(self) -> Checkpoint:
        """Read and verify the average of `state["steps"]`; `step` is the last of them. Raises like `load`."""
        with self._required(self.directory / AVERAGE) as folder:
            manifest = _read_manifest(folder)
            state = _read_json(_verified(folder, STATE, manifest))
            if misfits(state, {"steps": list[int]}) or not state["steps"]:
                raise _Damage(f"{STATE} names no steps")
            return Checkpoint(max(state["steps"]), _read_model(folder, manifest), {}, state)

    def digest(self, folder: Path) -> str:
        """Return the SHA-256 of the manifest in `folder`, and so of all files. Raises like `load`."""
        with self._required(folder):
            return _sha256(folder / MANIFEST)

    def has_average(self) -> bool:
        """Return whether an average was saved."""
        return (self.directory / AVERAGE).is_dir()

    def latest(self, warn: Log) -> Checkpoint | None:
        """Read the newest valid checkpoint; None when there is no checkpoint at all.

        Newer checkpoints that are damaged are set aside; `warn` gets the folder and the reason.

        Raises:
            UserError: there are checkpoints, but all of them are damaged, or one is of a later format;
                nothing is moved then.
        """
        damaged: dict[Path, str] = {}
        for step in reversed(self.steps()):
            try:
                checkpoint = _read(self.folder(step), step)
            except _Damage as damage:
                damaged[self.folder(step)] = str(damage)
                continue
            self._set_aside(damaged, warn, f"using step {step}")
            return checkpoint
        self._require_one(damaged)
        return None

    def set_damaged_models_aside(self, warn: Log) -> None:
        """Set aside every checkpoint whose model is damaged; `warn` gets the folder and the reason.

        Raises:
            UserError: no model is left, or one is of a later format; nothing is moved then.
        """
        damaged: dict[Path, str] = {}
        for step in self.steps():
            try:
                _read_model(self.folder(step), _read_manifest(self.folder(step)))
            except _Damage as damage:
                damaged[self.folder(step)] = str(damage)
        if len(damaged) == len(self.steps()):
            self._require_one(damaged)
        self._set_aside(damaged, warn, "so its weights are neither the best nor in an average")

    def _set_aside(self, damaged: Mapping[Path, str], warn: Log, consequence: str) -> None:
        """Give damaged checkpoints free names, and say so with the reason of each."""
        for folder, reason in damaged.items():
            names = (f".corrupt-{folder.name}" + (f"-{n}" if n > 1 else "") for n in itertools.count(1))
            aside = next(path for name in names if not os.path.lexists(path := self.directory / name))
            with self._writing(f"{aside}, as {folder.name} is damaged"):
                os.rename(folder, aside)
            warn(f"checkpoint {folder} is damaged: {reason}; set aside as {aside.name}, {consequence}")

    def _require_one(self, damaged: Mapping[Path, str]) -> None:
        """Raise `UserError` if there are checkpoints, all of them `damaged`."""
        if damaged:
            reasons = "".join(f"\n  {folder.name}: {reason}" for folder, reason in damaged.items())
            raise UserError(
                f"every checkpoint in {self.directory} is damaged:{reasons}\n"
                "bring one back from a copy, or start over in another run directory (run=...)"
            )

    def prune(self, keep: set[int]) -> None:
        """Delete the checkpoints of all steps but `keep`. Raises like `save`."""
        for step in self.steps():
            if step not in keep:
                self._remove(self.folder(step))

    def _remove(self, folder: Path) -> None:
        """Delete the folder, if it is there, so that a crash leaves it whole or gone."""
        trash = self.directory / f".trash-{folder.name}"
        with self._writing(f"checkpoint {folder}"):
            shutil.rmtree(trash, ignore_errors=True)
            if folder.exists():
                os.rename(folder, trash)
            shutil.rmtree(trash, ignore_errors=True)

    def clean(self) -> None:
        """Settle what a crash left half done; for the writer alone, as it removes what is being written."""
        for old in self.directory.glob(".old-*"):
            final = self.directory / old.name[len(".old-") :]
            if not final.exists():  # the crash came between the two renames of a replacement
                os.rename(old, final)
        for pattern in (".tmp-*", ".old-*", ".trash-*"):
            for path in self.directory.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:  # of the weights that all checkpoints share
                    path.unlink(missing_ok=True)

    def average(self, steps: Sequence[int]) -> dict[str, Tensor]:
        """Return the mean of the models of `steps`, summed in float64. Raises like `load`.

        Tensors that are not floating point are taken from the last step.
        """
        models = [self.load_model(step) for step in steps]  # mapped from the files, not copied into memory
        means: dict[int, Tensor] = {}
        for name, tensor in models[-1].items():
            if id(tensor) not in means:  # tied tensors are averaged once and stay tied
                means[id(tensor)] = _mean([model[name] for model in models])
        return {name: means[id(tensor)] for name, tensor in models[-1].items()}

    def _write(self, final: Path, files: Mapping[str, Iterable[bytes | memoryview]]) -> None:
        """Write `files` and their manifest into a temporary folder and rename it to `final`."""
        temporary = self.directory / f".tmp-{final.name}-{os.getpid()}"
        with self._writing(f"checkpoint {final}"):
            self.clean()  # a leftover of the same name would be in the way of the renames
            temporary.mkdir(parents=True)
            entries = {name: _write_file(temporary / name, parts) for name, parts in files.items()}
            entries |= {BASE: self._base_entry} if self.base.is_file() else {}
            manifest = {"format": FORMAT, "nmt": __version__, "folder": final.name, "files": entries}
            _write_file(temporary / MANIFEST, _pack_json(manifest))
            publish(temporary, final)  # `clean` finishes or undoes this if it is interrupted

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Turn a failure to write `what` into `TrainingStopped`, and remove what was half written."""
        try:
            yield
        except OSError as error:
            with suppress(OSError):  # the first error is the one to show
                self.clean()
            intact = ", ".join(map(str, self.steps())) or "none"
            raise TrainingStopped(
                f"cannot write {what}: {error.strerror or error}; "
                f"steps saved before and intact: {intact}; "
                "make room or fix the permissions, then run the same command again"
            ) from error

    @contextmanager
    def _required(self, folder: Path) -> Iterator[Path]:
        """Turn a checkpoint that is missing or damaged into `UserError`."""
        others = ", ".join(str(step) for step in self.steps() if self.folder(step) != folder) or "none"
        if not folder.is_dir():
            raise UserError(f"there is no checkpoint {folder}; steps saved there: {others}")
        try:
            yield folder
        except _Damage as damage:
            text = f"checkpoint {folder} is damaged: {damage}; other steps saved there: {others}"
            raise UserError(text) from damage


class _Damage(Exception):
    """A checkpoint cannot be trusted; the text names the file and the reason."""


def _pack(
    model: dict[str, Tensor], optimizer: dict[str, Tensor] | None, state: dict[str, Any]
) -> dict[str, Iterable[bytes | memoryview]]:
    """Return the content of each file, in parts that are made when they are written."""
    files: dict[str, Iterable[bytes | memoryview]] = {MODEL: _pack_tensors(model)}
    if optimizer is not None:
        files[OPTIMIZER] = _pack_tensors(optimizer)
    return files | {STATE: _pack_json(state)}


def _pack_tensors(tensors: dict[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield tensors in safetensors format, stored once where names share memory. Equal content, equal bytes.

    The library itself would copy all tensors, or write a file that was never hashed.
    """
    owners: dict[tuple[object, ...], str] = {}
    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    for name, tensor in tensors.items():
        owner = owners.setdefault(memory_of(tensor), name)
        if owner == name:
            stored[name] = tensor.detach()
        else:
            aliases[name] = owner
    order = sorted(stored, key=lambda name: (-stored[name].element_size(), name))  # so that all are aligned
    header: dict[str, Any] = {"__metadata__": {ALIASES: json.dumps(aliases)}}
    end = 0
    for name in order:
        x = stored[name]
        offsets = [end, end := end + x.nbytes]
        header[name] = {"dtype": DTYPES[x.dtype], "shape": list(x.shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        yield stored[name].cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def memory_of(tensor: Tensor) -> tuple[object, ...]:
    """Return what is equal for tensors that are the same memory seen in the same way."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the memory of tensors; what several share counts once."""
    return sum({(x.device, x.data_ptr()): x.nbytes for x in tensors}.values())


def _pack_json(value: dict[str, Any]) -> list[bytes]:
    return [(json.dumps(value, indent=1) + "\n").encode()]


def _write_file(path: Path, parts: Iterable[bytes | memoryview]) -> dict[str, int | str]:
    """Write a file; return its entry in the manifest, computed from `parts`, not from the disk."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for part in parts:
            digest.update(part)
            size += file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return {"size": size, "sha256": digest.hexdigest()}


def _read(folder: Path, step: int) -> Checkpoint:
    """Read and verify all files of a checkpoint, or raise `_Damage`."""
    manifest = _read_manifest(folder)
    return Checkpoint(
        step=step,
        model=_read_model(folder, manifest),
        optimizer=_read_tensors(folder, OPTIMIZER, manifest),
        state=_read_json(_verified(folder, STATE, manifest)),
    )


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Return the entries of MANIFEST.json by the name of the file, or raise `_Damage`.

    Raises:
        UserError: a later nmt wrote the checkpoint.
    """
    if not (folder / MANIFEST).is_file():
        raise _Damage(f"{MANIFEST} is missing")
    manifest = _read_json(folder / MANIFEST)
    number = manifest.get("format")
    if type(number) is not int or number < 1:
        raise _Damage(f"{MANIFEST} has format {reprlib.repr(number)}, but formats are numbers from 1")
    if number > FORMAT:
        writer = f", written by {reprlib.repr(manifest['nmt'])}" if "nmt" in manifest else ""
        raise UserError(
            f"checkpoint {folder} needs nmt of format {reprlib.repr(number)}{writer}; "
            f"nmt {__version__} reads formats up to {FORMAT}; update nmt. Nothing was moved"
        )
    if manifest.get("folder") != folder.name:
        raise _Damage(f"{MANIFEST} belongs to {reprlib.repr(manifest.get('folder'))}")
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise _Damage(f"{MANIFEST} lists no files")
    return files


def _verified(folder: Path, name: str, manifest: dict[str, Any]) -> Path:
    """Return the path of file `name`, whose size and SHA-256 agree with the manifest, or raise `_Damage`."""
    entry = manifest.get(name)
    if not (isinstance(entry, dict) and {"size", "sha256"} <= entry.keys()):
        raise _Damage(f"{MANIFEST} does not list {name}")
    path = folder / name
    if not path.is_file():
        raise _Damage(f"{name} is missing")
    size = path.stat().st_size
    if size != entry["size"]:
        raise _Damage(f"{name} has {size} bytes, but {MANIFEST} says {reprlib.repr(entry['size'])}")
    if _sha256(path) != entry["sha256"]:
        raise _Damage(f"{name} does not match its SHA-256 in {MANIFEST}")
    return path


def _sha256(path: Path) -> str:
    try:
        return digest(path)
    except OSError as error:
        raise _Damage(f"{path.name} cannot be read: {error.strerror}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return load_json(path)
    except (OSError, ValueError) as error:  # ValueError: not JSON, or not Unicode
        raise _Damage(f"{path.name} cannot be read: {error}") from error


def _read_model(folder: Path, manifest: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of the model, with those that all checkpoints share where the manifest says so."""
    shared = _read_tensors(folder.parent, BASE, manifest) if BASE in manifest else {}
    return shared | _read_tensors(folder, MODEL, manifest)


def _read_tensors(folder: Path, name: str, manifest: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name, aliases included, mapped from the file."""
    path = _verified(folder, name, manifest)
    try:
        aliases = _aliases(path)
        with safe_open(path, framework="pt") as file:
            tensors: dict[str, Tensor] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise _Damage(f"{name} cannot be read: {error}") from error
    if not all(
        isinstance(owner, str) and owner in tensors and alias not in tensors
        for alias, owner in aliases.items()
    ):
        raise _Damage(f"{name} has an alias of a tensor that it does not hold")
    return tensors | {alias: tensors[owner] for alias, owner in aliases.items()}


def _aliases(path: Path) -> dict[str, Any]:
    """Return the aliases in a safetensors file whose header is within bounds, or raise `ValueError`."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = parse_json(file.read(min(size, MAX_JSON_BYTES + 1)))
    metadata = header.pop("__metadata__", {})
    if misfits({"metadata": metadata}, {"metadata": dict[str, str]}):
        raise ValueError("its metadata is no text")
    aliases = parse_json(metadata.get(ALIASES, "{}").encode())
    if (count := len(header) + len(aliases)) > MAX_TENSORS:
        raise ValueError(f"it has {count:,} tensors, but at most {MAX_TENSORS:,} are read")
    for name, entry in header.items():
        if not _is_tensor(entry):
            raise ValueError(f"{reprlib.repr(name)} is no tensor of a type and size that is read")
    return aliases


def _is_tensor(entry: object) -> bool:
    """Return whether an entry of a header describes a tensor that torch can hold."""
    if not isinstance(entry, dict) or misfits(entry, {"dtype": str, "shape": list[int]}):
        return False
    shape = entry["shape"]
    fits = len(shape) <= MAX_AXES and math.prod(max(n, 1) for n in shape) <= MAX_ELEMENTS
    return fits and entry["dtype"] in DTYPES.values()


def widened(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `tensors` with those of 16-bit numbers in float32."""
    return {
        name: x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for name, x in tensors.items()
    }


def require_match(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], what: str) -> None:
    """Raise `UserError` unless `found` has the names, shapes and types of `wanted`; `what` names `found`."""
    wrong = [f"{name} is missing" for name in wanted.keys() - found.keys()]
    wrong += [f"{reprlib.repr(name)} is unknown" for name in found.keys() - wanted.keys()]
    wrong += [
        f"{name} is {_kind(found[name])}, not {_kind(wanted[name])}"
        for name in wanted.keys() & found.keys()
        if _kind(found[name]) != _kind(wanted[name])
    ]
    if wrong:
        listed = "; ".join(sorted(wrong)[:5]) + ("; ..." if len(wrong) > 5 else "")
        total = len(found.keys() | wanted.keys())
        raise UserError(f"{what} do not fit the config: {len(wrong):,} of {total:,} tensors differ: {listed}")


def _kind(tensor: Tensor) -> str:
    return f"{DTYPES.get(tensor.dtype, tensor.dtype)} {list(tensor.shape)}"


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    last = tensors[-1]
    if not last.is_floating_point():
        return last.clone()
    total = torch.zeros_like(last, dtype=torch.float64)
    for tensor in tensors:
        total += tensor
    return (total / len(tensors)).to(last.dtype)
