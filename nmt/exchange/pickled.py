"""Weights in the pickled files of torch, such as `pytorch_model.bin`, read without unpickling anything.

The opcodes of a pickle are a program for a machine with a stack. Here they are data, which the disassembler
of the standard library names one by one: dictionaries, lists, tuples, numbers and text are built from them,
and three functions of torch may be named, for which ours are called. Whatever else a file asks for is
refused by its name, and so is a tensor that is not within the bytes of its storage.

Both formats of torch are read: the zip archive (`data.pkl`, and a file for each storage), and the one before
torch 1.6, in which most models of OPUS-MT are published: five pickles, then the storages one after the other.
"""

from __future__ import annotations

import math
import pickletools
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

MOST_BYTES = 1 << 24
"""Bytes of the largest pickle; that of a thousand tensors has a hundredth of it."""
MOST_DIMENSIONS = 64
"""Those that a tensor of torch may have."""
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
NUMBER_TAKEN = {
    **{"TUPLE": None, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3},
    **{"APPEND": 1, "APPENDS": None, "SETITEM": 2, "SETITEMS": None},
}
"""How many values an operation on collections takes from the stack; None: all above a mark."""
DAMAGE = (
    *(ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError, EOFError, OSError),
    *(struct.error, zipfile.BadZipFile),
)
"""What the readers of archives and pickles, and the machine below, raise where bytes are damaged."""


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
        if sum(info.file_size for info in inside.values()) > file.stat().st_size:
            raise Refused("is damaged: its parts overlap")
        with archive.open(inside["data.pkl"]) as pickled:
            views = _views(_built(pickled))
        kept = _storages(views)
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
        kept = _storages(views)
        if not isinstance(keys, list) or len(keys) != len(kept) or not all(_is_text(key) for key in keys):
            raise Refused("is damaged: its storages are not those of its tensors")
        if set(keys) != kept.keys():
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


def _storages(views: Mapping[str, View]) -> dict[str, Storage]:
    """Return the storages of tensors by their keys."""
    kept = dict[str, Storage]()
    for view in views.values():
        if kept.setdefault(view.storage.key, view.storage) != view.storage:
            raise Refused(f"is damaged: it describes storage {view.storage.key} in two ways")
    return kept


def _numbers(storage: Storage, data: bytes) -> Tensor:
    """Return the numbers of a storage, (size,)."""
    if len(data) != storage.size * storage.dtype.itemsize:
        raise Refused(f"is damaged: storage {storage.key} is cut off")
    return torch.frombuffer(bytearray(data or 8), dtype=storage.dtype)[: storage.size]


def _tensor(view: View, storages: Mapping[str, Tensor]) -> Tensor:
    """Return a tensor as the part of its storage that it is."""
    last = view.offset + sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
    count, size = math.prod(view.shape), view.storage.size
    if count and last >= size:
        raise Refused("is damaged: a tensor reaches beyond its storage")
    if count > size:
        raise Refused("holds a tensor of more numbers than are stored, which weights never are")
    return storages[view.storage.key].as_strided(view.shape, view.strides, view.offset)


def _storage(described: object) -> Storage:
    """Return the storage that a reference of a pickle describes."""
    kind, named, key, _, size, *rest = described if isinstance(described, tuple) else ()
    dtype = STORAGES.get(named.name) if isinstance(named, Named) else None
    if kind != "storage" or dtype is None:
        what = repr(named.name) if isinstance(named, Named) else f"a {type(named).__name__}"
        raise Refused(f"asks for {what}, which is no storage of numbers")
    if not _is_text(key) or not _are_counts(size) or any(part is not None for part in rest):
        raise Refused("is damaged: it describes a storage wrongly")
    return Storage(key, dtype, size)


def _view(storage: object, offset: Any, shape: Any, strides: Any, *more: object) -> View:
    """Stand for `torch._utils._rebuild_tensor_v2`."""
    are_sizes = all(isinstance(x, tuple) and len(x) <= MOST_DIMENSIONS for x in (shape, strides))
    if not isinstance(storage, Storage) or not are_sizes or not _are_counts(offset, *shape, *strides):
        raise Refused("is damaged: it describes a tensor wrongly")
    if len(more) > 2:  # behind requires_grad and hooks
        raise Refused("holds a tensor with further marks, such as one that is to be negated")
    return View(storage, offset, shape, strides)


def _ordered(*items: object) -> dict[str, Any]:
    """Stand for `collections.OrderedDict`, whose items come behind."""
    if items:
        raise Refused("is damaged: a dictionary begins with items")
    return {}


def _parameter(data: object, *_: object) -> object:
    """Stand for `torch._utils._rebuild_parameter`."""
    return data


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _are_counts(*values: object) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


FUNCTIONS: dict[str, Callable[..., object]] = {
    "collections OrderedDict": _ordered,
    "torch._utils _rebuild_tensor_v2": _view,
    "torch._utils _rebuild_parameter": _parameter,
}
"""What a pickle may name and call, and what is called for it."""


def _built(stream: IO[bytes]) -> object:
    """Return what the pickle at this place of a file describes; the stream is behind it afterwards."""
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(_Bounded(stream)):  # type: ignore[arg-type]  # all it calls
        if opcode.name == "STOP":
            return machine.stack.pop()
        if opcode.name not in ("PROTO", "FRAME"):
            machine.do(opcode.name, argument)
    raise Refused("is damaged: it ends early")


class _Bounded:
    """A stream that gives no more than MOST_BYTES, whatever lengths a damaged file states."""

    def __init__(self, stream: IO[bytes]):
        self._stream, self._left = stream, MOST_BYTES

    def read(self, size: int) -> bytes:
        if size > self._left:
            raise Refused(f"has a pickle of more than {MOST_BYTES:,} bytes")
        self._left -= size
        return self._stream.read(size)

    def readline(self) -> bytes:
        line = self._stream.readline(self._left)
        self._left -= len(line)
        return line


class _Machine:
    """The stack and the memory of what a pickle describes."""

    def __init__(self) -> None:
        self.stack = list[Any]()
        self._below = list[list[Any]]()
        """What is below each mark; `stack` is what is above the newest."""
        self._memory = dict[int, Any]()

    def do(self, name: str, argument: Any) -> None:
        """Follow one opcode with its argument; raise `Refused` for one that weights do not need."""
        stack, memory = self.stack, self._memory
        if name in NUMBERS_AND_TEXT:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name == "MARK":
            self._below.append(stack)
            self.stack = []
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memory[len(memory) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memory[argument])
        elif name in EMPTY or name in NUMBER_TAKEN:
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
        if name in EMPTY:
            self.stack.append(EMPTY[name]())
            return
        values = self._taken(NUMBER_TAKEN.get(name))
        if name.startswith("TUPLE"):
            self.stack.append(tuple(values))
        elif name.startswith("APPEND"):
            self.stack[-1].extend(values)
        else:
            self.stack[-1].update(_items(values))

    def _taken(self, number: int | None) -> list[Any]:
        """Take as many values from the stack, in their order; None: all above the newest mark, and it."""
        if number is None:
            values, self.stack = self.stack, self._below.pop()
            return values
        values = self.stack[-number:]
        del self.stack[-number:]
        return values


def _named(name: str) -> Named:
    if name not in FUNCTIONS and name not in STORAGES:
        raise Refused(f"asks for {name.replace(' ', '.')!r}, which is not part of reading weights")
    return Named(name)


def _items(values: list[Any]) -> dict[str, Any]:
    """Return keys and values in turn as a dictionary."""
    keys = values[::2]
    if not all(map(_is_text, keys)):
        raise Refused("holds a dictionary whose keys are not text")
    return dict(zip(keys, values[1::2], strict=True))
