"""Weights in the pickled files of torch, such as `pytorch_model.bin`, read without unpickling anything.

The opcodes of a pickle are a program for a machine with a stack. Here they are data, which the disassembler
of the standard library names one by one: dictionaries, lists, tuples, numbers and text are built from them,
and three functions of torch may be named, for which ours are called. Whatever else a file asks for is
refused by its name, and so is a tensor that is not within the bytes of its storage.

Both formats of torch are read: the zip archive (`data.pkl`, and a file for each storage), and the one before
torch 1.6, in which most models of OPUS-MT are published: five pickles, then the storages one after the other.
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

MOST_BYTES = 1 << 26
"""Bytes of the largest pickle in an archive; that of a model of a thousand tensors has a thousandth of it."""
LEGACY_MAGIC, LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001
"""The first two pickles of a file from before there were archives."""
STORAGES = {
    "torch FloatStorage": torch.float32,
    "torch DoubleStorage": torch.float64,
    "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16,
    "torch LongStorage": torch.int64,
    "torch IntStorage": torch.int32,
    "torch ShortStorage": torch.int16,
    "torch CharStorage": torch.int8,
    "torch ByteStorage": torch.uint8,
    "torch BoolStorage": torch.bool,
}
"""Names of the kinds of storages, and the type of their numbers."""
NUMBERS_AND_TEXT = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY: dict[str, Callable[[], object]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
COLLECTIONS = {
    *EMPTY,
    *("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("APPEND", "APPENDS", "SETITEM", "SETITEMS"),
}
DAMAGE = (
    *(ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError, EOFError, OSError),
    *(struct.error, zipfile.BadZipFile),
)
"""What the readers of archives and pickles, and the machine below, raise where bytes are damaged."""
_MARK = object()


class Refused(ValueError):
    """What a file asks for is not part of reading weights, or the file is damaged."""


class Named(NamedTuple):
    """A class or function that a pickle names, as "module name"; nothing is imported for it."""

    name: str


class Storage(NamedTuple):
    """The numbers that tensors share, as a pickle names them."""

    key: str
    dtype: torch.dtype
    size: int


class View(NamedTuple):
    """A tensor, as a pickle describes it: a part of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_weights(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a pickled file by their names; names of one tensor share memory.

    Raises:
        Refused: the file cannot be read, is damaged, or asks for anything but tensors.
    """
    try:
        views, storages = _of_archive(file) if zipfile.is_zipfile(file) else _of_legacy(file)
        return {name: _tensor(view, storages) for name, view in views.items()}
    except Refused:
        raise
    except DAMAGE as error:
        raise Refused(f"is damaged: {error}") from error


def _of_archive(file: Path) -> tuple[dict[str, View], dict[str, Tensor]]:
    """Return the tensors of an archive, and the storages by their keys."""
    with zipfile.ZipFile(file) as archive:
        inside = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        for info in inside.values():
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise Refused(f"has a part that torch never compresses or encrypts: {info.filename}")
        if "byteorder" in inside and archive.read(inside["byteorder"]) != b"little":
            raise Refused("has numbers that begin with their highest byte")
        if inside["data.pkl"].file_size > MOST_BYTES:
            raise Refused(f"has a pickle of more than {MOST_BYTES:,} bytes")
        views = _views(_built(io.BytesIO(archive.read(inside["data.pkl"]))))
        kept = {view.storage.key: view.storage for view in views.values()}
        storages = {
            key: _numbers(storage, archive.read(inside[f"data/{key}"])) for key, storage in kept.items()
        }
    return views, storages


def _of_legacy(file: Path) -> tuple[dict[str, View], dict[str, Tensor]]:
    """Return the tensors of a file from before there were archives, and the storages by their keys."""
    with file.open("rb") as stream:
        if (_built(stream), _built(stream)) != (LEGACY_MAGIC, LEGACY_VERSION):
            raise Refused("is no file that torch.save has written")
        system = _built(stream)
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise Refused("has numbers that begin with their highest byte")
        views, keys = _views(_built(stream)), _built(stream)
        kept = {view.storage.key: view.storage for view in views.values()}
        if not isinstance(keys, list) or set(keys) != set(kept):
            raise Refused("is damaged: its storages are not those of its tensors")
        storages = {}
        for key in keys:
            (size,) = struct.unpack("<q", stream.read(8))
            if size != kept[key].size:
                raise Refused(f"is damaged: storage {key} has {size:,} numbers and not {kept[key].size:,}")
            wanted = size * kept[key].dtype.itemsize
            storages[key] = _numbers(kept[key], stream.read(min(wanted, file.stat().st_size)))
    return views, storages


def _views(content: object) -> dict[str, View]:
    """Return the tensors of a dictionary of weights, which `content` must be."""
    if not isinstance(content, dict) or not content:
        raise Refused("holds no dictionary of weights")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, View):
            raise Refused(f"holds {type(value).__name__} and not a tensor as {str(name)[:80]!r}")
    return content


def _numbers(storage: Storage, data: bytes) -> Tensor:
    """Return the numbers of a storage, (size,)."""
    if len(data) != storage.size * storage.dtype.itemsize:
        raise Refused(f"is damaged: storage {storage.key} is cut off")
    return torch.frombuffer(bytearray(data or 8), dtype=storage.dtype)[: storage.size]


def _tensor(view: View, storages: Mapping[str, Tensor]) -> Tensor:
    """Return a tensor as the part of its storage that it is."""
    last = view.offset + sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
    count, size = math.prod(view.shape), view.storage.size
    if count > size or (count and last >= size):
        raise Refused("is damaged: a tensor reaches beyond its storage")
    return storages[view.storage.key].as_strided(view.shape, view.strides, view.offset)


def _storage(described: object) -> Storage:
    """Return the storage that a reference of a pickle describes."""
    kind, named, key, _, size, *rest = described if isinstance(described, tuple) else ()
    dtype = STORAGES.get(named.name) if isinstance(named, Named) else None
    if kind != "storage" or dtype is None:
        raise Refused(f"asks for {getattr(named, 'name', named)!r}, which is no storage of numbers")
    if not isinstance(key, str) or not _are_counts(size) or any(part is not None for part in rest):
        raise Refused("is damaged: it describes a storage wrongly")
    return Storage(key, dtype, size)


def _view(storage: object, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: object) -> View:
    """Stand for `torch._utils._rebuild_tensor_v2`."""
    if not isinstance(storage, Storage) or not _are_counts(offset, *shape, *strides):
        raise Refused("is damaged: it describes a tensor wrongly")
    return View(storage, offset, shape, strides)


def _parameter(data: object, *_: object) -> object:
    """Stand for `torch._utils._rebuild_parameter`."""
    return data


def _are_counts(*values: object) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


FUNCTIONS: dict[str, Callable[..., object]] = {
    "collections OrderedDict": dict,
    "torch._utils _rebuild_tensor_v2": _view,
    "torch._utils _rebuild_parameter": _parameter,
}
"""What a pickle may name and call, and what is called for it."""


def _built(stream: BinaryIO) -> object:
    """Return what the pickle at this place of a file describes; the stream is behind it afterwards."""
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(_Bounded(stream)):  # type: ignore[arg-type]  # all it calls
        if opcode.name == "STOP":
            return machine.stack.pop()
        if opcode.name not in ("PROTO", "FRAME"):
            machine.do(opcode.name, argument)
    raise Refused("is damaged: it ends early")


class _Bounded:
    """A stream that gives no more than MOST_BYTES at once, whatever length a damaged file states."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream

    def read(self, size: int) -> bytes:
        if size > MOST_BYTES:
            raise Refused(f"is damaged: it states a part of {size:,} bytes")
        return self._stream.read(size)

    def readline(self) -> bytes:
        return self._stream.readline(MOST_BYTES)


class _Machine:
    """The stack and the memory of what a pickle describes."""

    def __init__(self) -> None:
        self.stack = list[Any]()
        self._memory = dict[int, Any]()

    def do(self, name: str, argument: Any) -> None:
        """Follow one opcode with its argument; raise `Refused` for one that weights do not need."""
        stack, memory = self.stack, self._memory
        if name in NUMBERS_AND_TEXT:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memory[len(memory) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memory[argument])
        elif name in COLLECTIONS:
            self._collect(name)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            stack.append(_named(argument or f"{stack.pop(-2)} {stack.pop()}"))
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(FUNCTIONS[function.name](*arguments))
        elif name == "BUILD":
            stack.pop()  # the version numbers that a dictionary of weights carries
        else:
            raise Refused(f"asks for the operation {name}, which is not part of reading weights")

    def _collect(self, name: str) -> None:
        """Make a collection, or add to one."""
        stack = self.stack
        if name in EMPTY:
            stack.append(EMPTY[name]())
        elif name == "TUPLE":
            stack.append(tuple(self._above_mark()))
        elif name.startswith("TUPLE"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name.startswith("APPEND"):
            values = self._above_mark() if name == "APPENDS" else [stack.pop()]
            stack[-1].extend(values)
        else:
            values = self._above_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            stack[-1].update(_items(values))

    def _above_mark(self) -> list[Any]:
        """Take what is above the newest mark, and the mark, from the stack."""
        position = len(self.stack) - 1 - self.stack[::-1].index(_MARK)
        values = self.stack[position + 1 :]
        del self.stack[position:]
        return values


def _named(name: str) -> Named:
    if name not in FUNCTIONS and name not in STORAGES:
        raise Refused(f"asks for {name.replace(' ', '.')!r}, which is not part of reading weights")
    return Named(name)


def _items(values: list[Any]) -> dict[str | int, Any]:
    """Return keys and values in turn as a dictionary."""
    keys = values[::2]
    if not all(isinstance(key, str | int) for key in keys):
        raise Refused("is damaged: a key is neither text nor a number")
    return dict(zip(keys, values[1::2], strict=True))
