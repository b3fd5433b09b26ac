"""Bounds on the memory and time that reading an untrusted pickle takes."""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import suppress
from numbers import Number
from typing import IO, Any, ClassVar

import torch
from torch._utils import IMPORT_MAPPING, NAME_MAPPING

#: First bytes of torch's files, which are zip archives; files of torch before 1.6 are pickles.
ZIP = b"PK"
#: Last record of a zip archive: signature, size and offset of its directory, size of a comment.
_END = struct.Struct("<4s8x2LH")
#: Two records before it in 64-bit archives: signature, size and offset of the directory; signature
#: of the second, offset of the first.
_END_64 = struct.Struct("<4s36x2Q4s4xQ4x")
#: A function that calls its first argument with its third.
_CALLS = "torch._tensor._rebuild_from_type_v2"
#: Functions that set the attributes in their fourth argument.
_SETS = (_CALLS, "torch._utils._rebuild_parameter_with_state")
#: Functions that return a tensor without copying any values.
_TENSORS = re.compile(
    r"torch\._utils\._rebuild_(tensor(_v2|_v3)?|parameter(_with_state)?|meta_tensor_no_storage)"
    r"|torch\.nn\.parameter\.Parameter"
)
#: Functions that copy the elements of their arguments, or use these as keys.
_PLAIN = re.compile(
    r"collections\.(OrderedDict|Counter)|builtins\.(set|complex)|torch\.(Size|device)"
    r"|torch\.serialization\._get_layout|argparse\.Namespace|_codecs\.encode"
)
#: Codes that use values as keys, and the places of these on the stack.
_HASHES = {
    pickle.SETITEM: slice(-2, -1),
    pickle.SETITEMS: slice(None, None, 2),
    pickle.DICT: slice(None, None, 2),
    pickle.ADDITEMS: slice(None),
    pickle.FROZENSET: slice(None),
}
#: Longest key in bytes; one long key may be compared a million times.
_LONGEST_KEY = 10_000
#: Codes that only pickles of other objects have.
_FOREIGN = (pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX)


def _checking(code: bytes) -> Callable[[Any], None]:
    """Return pickle's function for a code, after a check of the keys."""
    load: Callable[[Any], None] = pickle._Unpickler.dispatch[code[0]]

    def checked(reader: Unpickler) -> None:
        reader.check_keys(reader.stack[_HASHES[code]])
        load(reader)

    return checked


class Unpickler(pickle._Unpickler):  # C's allocates memory for as many objects as a file claims
    """A reader whose memory is proportional to the size of the pickle, if no function that
    `find_class` returns takes more than its arguments do.

    A pickle may name one list a million times, so the elements that calls copy are counted.
    """

    #: Types of keys; the hash of nested tuples may take forever.
    keys: ClassVar[tuple[type, ...]] = (str, bytes, Number, type(None))
    stack: list[Any]
    read: Callable[[int], bytes]
    append: Callable[[Any], None]

    def __init__(self, file: IO[bytes], size: int, encoding: str = "ASCII") -> None:
        """size: of the pickle in bytes."""
        super().__init__(file, encoding=encoding)
        self._left = 2 * size

    def _spend(self, elements: int) -> None:
        self._left -= elements
        if self._left < 0:
            raise pickle.UnpicklingError("it repeats its values")

    def count(self, values: Any) -> None:
        """Count elements that a function may copy. Raises UnpicklingError if there are more than
        the file can hold."""
        inner = values if isinstance(values, tuple) else ()
        self._spend(sum(len(one) for one in (values, *inner) if isinstance(one, Sized)))

    def check_keys(self, keys: Iterable[Any]) -> None:
        """Raise UnpicklingError unless keys are short text, numbers, None, or flat tuples of these."""
        for key in keys:
            parts = key if isinstance(key, tuple) else (key,)
            self._spend(len(parts) - 1)
            are_plain = all(isinstance(part, self.keys) for part in parts)
            if not are_plain or max(map(sys.getsizeof, parts), default=0) > _LONGEST_KEY:
                raise pickle.UnpicklingError("a key is neither short text nor a number")

    def check_attributes(self, state: Any) -> None:
        """Raise UnpicklingError unless `state` is a mapping of attributes, or None, and none of
        them replaces an attribute of mappings or tensors."""
        is_new = state is None or isinstance(state, dict)
        for name in state or ():
            is_new &= not (hasattr(OrderedDict, name) or hasattr(torch.Tensor, name))
        if not is_new:
            raise pickle.UnpicklingError("it replaces attributes")

    def check_call(self, function: Any, arguments: Any) -> None:
        """Raise UnpicklingError for a call that may take more memory than its arguments do."""
        if not isinstance(arguments, tuple):
            raise pickle.UnpicklingError("it calls a function with a single value")
        self.count(arguments)

    def load_reduce(self) -> None:
        self.check_call(*self.stack[-2:])
        super().load_reduce()  # type: ignore[misc]

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
    dispatch |= {code[0]: _checking(code) for code in _HASHES}
    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def latin1(text: str, encoding: str) -> bytes:
    """The function `_codecs.encode` of old pickles of bytes; other encodings are refused."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("another encoding than latin1")
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
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
        _check_directory(file, size)
    is_stored = all(part.compress_type == zipfile.ZIP_STORED for part in parts)
    if not is_stored or sum(part.file_size for part in parts) > size:
        raise ValueError("its parts are compressed")
    content = torch._C.PyTorchFileReader(name).get_record("data.pkl")
    _Rehearsal(io.BytesIO(content), len(content), size).load()


def _check_directory(file: IO[bytes], size: int) -> None:
    """Raise ValueError unless the directory of a zip archive ends where its end record begins;
    otherwise, zipfile and torch may find different parts."""
    end = size - _END.size
    file.seek(end - _END_64.size)
    kind_64, *place, locator, begin = _END_64.unpack(file.read(_END_64.size))
    kind, length, offset, comment = _END.unpack(file.read())
    is_last = kind == b"PK\5\6" and comment == 0
    if locator == b"PK\6\7":
        end -= _END_64.size
        length, offset = place
        is_last &= kind_64 == b"PK\6\6" and begin == end
    if not is_last or offset + length != end:
        raise ValueError("its directory is not at its end")


def _check_old(file: IO[bytes], size: int) -> None:
    """`check` for a file of torch before 1.6: five pickles, then the values of its tensors."""
    with suppress(EOFError):  # torch says so itself
        if _Rehearsal(file, size, size).load() != torch.serialization.MAGIC_NUMBER:
            return
        version = _Rehearsal(file, size, size).load()
        _Rehearsal(file, size, size).load()
        content = _Rehearsal(file, size, size)
        content.load()
        listed = _Rehearsal(file, size, size).load()
        content.check_keys(listed)
        # a tensor may enlarge its storage, which torch finds out if the storage is listed
        is_complete = content.storages.keys() <= set(listed)
        if version != torch.serialization.PROTOCOL_VERSION or not is_complete:
            raise ValueError("it does not list its values")


class _Stand:
    """Stands for what a function returns."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


class _Named(_Stand):
    """Stands for a function, or for a type of numbers."""

    def __call__(self, *arguments: Any) -> Any:
        return latin1(*arguments) if self.name == "_codecs.encode" else _Stand(self.name)


_STORAGE = _Stand("storage")


class _Rehearsal(Unpickler):
    """Reads a pickle of torch without its tensors, and calls nothing that it names."""

    keys = (*Unpickler.keys, _Named)

    def __init__(self, file: IO[bytes], size: int, available: int) -> None:
        """available: size of the file in bytes, including the values of its tensors."""
        super().__init__(file, size, encoding="utf-8")
        self._available = available
        self.storages: dict[Any, tuple[str, int]] = {}

    def find_class(self, module: str, name: str) -> _Named:
        """Return a stand-in, by the name that torch looks up."""
        present = IMPORT_MAPPING.get(module, module), name
        return _Named(".".join(NAME_MAPPING.get((module, name), present)))

    def persistent_load(self, pid: Any) -> _Stand:
        """Return a storage; its values must fit into the file, at a byte each."""
        _, kind, key, _, count, *view = pid
        self.check_keys([key, *(one[0] for one in view if one)])
        if key not in self.storages:
            self._available -= abs(count)
        claim = (kind.name if count else "", count)
        if self._available < 0 or self.storages.setdefault(key, claim) != claim:
            raise ValueError("it claims more values than it has")
        return _STORAGE

    def check_call(self, function: Any, arguments: Any) -> None:
        super().check_call(function, arguments)
        name = getattr(function, "name", "a value")
        if name in _SETS:
            self.check_attributes(arguments[3])
        if name == _CALLS:
            self.check_call(arguments[0], arguments[2])
            is_bounded = bool(_TENSORS.fullmatch(arguments[0].name))
        elif name == "builtins.bytearray":
            is_bounded = all(type(one) is bytes for one in arguments)
        elif _PLAIN.fullmatch(name):
            self.check_keys(_elements(name, arguments))
            is_bounded = True
        else:
            is_bounded = bool(_TENSORS.fullmatch(name))
        if "_rebuild_tensor" in name:
            is_bounded &= arguments[0] is _STORAGE
        if not is_bounded:
            raise pickle.UnpicklingError(f"it names {name}")

    def load_build(self) -> None:
        state = self.stack.pop()
        self.count(state)
        if self.stack[-1].name != "argparse.Namespace":
            self.check_attributes(state)
        elif not isinstance(state, dict):
            raise pickle.UnpicklingError("it has no attributes")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {**Unpickler.dispatch}
    dispatch[pickle.NEWOBJ[0]] = Unpickler.load_reduce
    dispatch[pickle.BUILD[0]] = load_build


def _elements(name: str, arguments: Any) -> Iterator[Any]:
    """Return what a function of `_PLAIN` copies of its arguments, or uses as keys."""
    for one in arguments:
        if isinstance(one, list | tuple):
            yield from (pair[0] for pair in one) if name == "collections.OrderedDict" else one
        elif not isinstance(one, dict | set):
            yield one
