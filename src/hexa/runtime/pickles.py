"""Bounds on the memory that reading an untrusted pickle takes."""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Sized
from contextlib import suppress
from typing import IO, Any, ClassVar

import torch

#: First bytes of torch's files, which are zip archives; files of torch before 1.6 are pickles.
ZIP = b"PK"
#: Functions that torch's own reader calls, and that allocate whatever their arguments ask for.
_ALLOCATES = re.compile(
    r"(builtins|__builtin__)\.bytearray|torch\..*(Tensor|Storage)"
    r"|torch\._utils\._rebuild_(?!parameter|tensor|meta)\w+"
)
#: Functions that copy the elements of their arguments.
_COPIES = re.compile(r"collections\.\w+|(builtins|__builtin__)\.\w+|torch\.Size")
#: A function that calls its first argument with its third.
_CALLS = "torch._tensor._rebuild_from_type_v2"
#: Pickles in a file of torch before 1.6, in front of the values of its tensors.
_PICKLES = 5
#: Codes that only pickles of other objects have.
_FOREIGN = (pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX)


class Unpickler(pickle._Unpickler):  # C's allocates memory for as many objects as a file claims
    """A reader whose memory is proportional to the size of the pickle, if no function that
    `find_class` returns takes more than its arguments do.

    A pickle may name one list a million times, so the elements that calls copy are counted.
    """

    stack: list[Any]
    read: Callable[[int], bytes]
    append: Callable[[Any], None]

    def __init__(self, file: IO[bytes], size: int, encoding: str = "ASCII") -> None:
        """size: of the pickle in bytes."""
        super().__init__(file, encoding=encoding)
        self._left = 2 * size

    def count(self, values: Any) -> None:
        """Count elements that a function may copy. Raises UnpicklingError if there are more than
        the file can hold."""
        inner = values if isinstance(values, tuple) else ()
        self._left -= sum(len(one) for one in (values, *inner) if isinstance(one, Sized))
        if self._left < 0:
            raise pickle.UnpicklingError("it repeats its values")

    def check_call(self, function: Any, arguments: Any) -> None:
        """Raise UnpicklingError for a call that may take more memory than its arguments do."""
        if not isinstance(arguments, tuple):
            raise pickle.UnpicklingError("it calls a function with a single value")
        self.count(arguments)

    def load_reduce(self) -> None:
        self.check_call(*self.stack[-2:])
        super().load_reduce()  # type: ignore[misc]

    def load_newobj(self) -> None:
        self.check_call(*self.stack[-2:])
        super().load_newobj()  # type: ignore[misc]

    def load_build(self) -> None:
        self.count(self.stack[-1])
        super().load_build()  # type: ignore[misc]

    def load_bytearray8(self) -> None:
        (length,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(length)))  # not as long as claimed, but as the file is

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        code: load
        for code, load in pickle._Unpickler.dispatch.items()
        if bytes([code]) not in _FOREIGN
    }
    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def latin1(text: str, encoding: str) -> bytes:
    """The function `_codecs.encode` of old pickles of bytes; other encodings are refused."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding}")
    return text.encode("latin-1")


def check(name: str) -> None:
    """Raise an error unless torch can read the file `name` in memory proportional to its size.

    torch's restricted reader runs no code, but builds bytes, lists and tensors of any size that a
    small file asks for. Raises UnpicklingError, ValueError, OSError, or what damaged bytes cause.
    """
    size = os.path.getsize(name)
    with open(name, "rb") as file:
        if file.read(len(ZIP)) != ZIP:
            file.seek(0)
            _check_old(file, size)
            return
    with zipfile.ZipFile(name) as archive:
        parts = archive.infolist()
    is_stored = all(part.compress_type == zipfile.ZIP_STORED for part in parts)
    if not is_stored or sum(part.file_size for part in parts) > size:
        raise ValueError("its parts are compressed")
    content = torch._C.PyTorchFileReader(name).get_record("data.pkl")
    _Rehearsal(io.BytesIO(content), len(content), size).load()


def _check_old(file: IO[bytes], size: int) -> None:
    """`check` for a file of torch before 1.6."""
    with suppress(EOFError):  # torch says so itself
        if _Rehearsal(file, size, size).load() == torch.serialization.MAGIC_NUMBER:
            for _ in range(1, _PICKLES):
                _Rehearsal(file, size, size).load()


class _Stand:
    """Stands for a function that a pickle names, and for what the function returns."""

    __slots__ = ("length", "name")

    def __init__(self, name: str, length: int = 0) -> None:
        self.name = name
        self.length = length

    def __call__(self, *arguments: Any) -> _Stand:
        return _Stand(self.name, sum(len(one) for one in arguments if isinstance(one, Sized)))

    def __len__(self) -> int:
        return self.length

    def __setitem__(self, key: Any, value: Any) -> None:
        self.length += 1


class _Rehearsal(Unpickler):
    """Reads a pickle of torch without its tensors, and calls nothing that it names."""

    def __init__(self, file: IO[bytes], size: int, available: int) -> None:
        """available: size of the file in bytes, including the values of its tensors."""
        super().__init__(file, size, encoding="utf-8")
        self._available = available
        self._storages = set[Any]()

    def find_class(self, module: str, name: str) -> Any:
        return latin1 if (module, name) == ("_codecs", "encode") else _Stand(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> _Stand:
        """Return a storage; its values must fit into the file, at a byte each."""
        _, _, key, _, count, *_ = pid
        if key not in self._storages:
            self._storages.add(key)
            self._available -= abs(count)
        if self._available < 0:
            raise ValueError("it claims more values than it has")
        return _Stand("storage")

    def check_call(self, function: Any, arguments: Any) -> None:
        super().check_call(function, arguments)
        name = getattr(function, "name", "")
        is_bounded = not (arguments and _ALLOCATES.fullmatch(name))
        if _COPIES.fullmatch(name):  # a tensor can claim any number of elements
            lists = (one for one in arguments if isinstance(one, list | tuple))
            every = [*arguments, *(element for one in lists for element in one)]
            is_bounded &= not any(isinstance(one, _Stand) for one in every)
        if not is_bounded:
            raise pickle.UnpicklingError(f"it names {name}")
        if name == _CALLS:
            self.check_call(arguments[0], arguments[2])

    def load_newobj(self) -> None:
        self.load_reduce()

    def load_build(self) -> None:
        state = self.stack.pop()
        self.count(state)
        if isinstance(state, _Stand):
            raise pickle.UnpicklingError(f"it names {state.name}")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {**Unpickler.dispatch}
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.BUILD[0]] = load_build
