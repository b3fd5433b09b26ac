"""Reading a checkpoint or a pickle of arrays takes no more memory or time than its size warrants."""

from __future__ import annotations

import _codecs
import argparse
import collections
import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hexa.config import UserError
from hexa.runtime import checkpoints, pickles
from hexa.weights import files
from tests.pickles import Calls, Reduces, pairs
from tests.torture.harness import forked

#: Elements that a hostile file asks for.
MANY = 300_000_000
#: Megabytes that a file of some kilobytes may take.
MOST = 60
LIST = list(range(100_000))
PAIRS = pairs(60)


def one_for_many() -> torch.Tensor:
    return torch.zeros(1).expand(MANY)


def in_hexadecimal(text: Any, _: int) -> Any:
    return Calls(_codecs.encode, text, "hex")


HOSTILE: dict[str, Callable[[], Any]] = {
    "bytes": lambda: Calls(
        bytearray,
        Calls(bytearray, MANY),
    ),
    "tensor": lambda: Calls(
        torch.FloatTensor,
        Calls(torch.Tensor, MANY),
    ),
    "storage": lambda: Calls(
        torch.storage.UntypedStorage,
        MANY,
    ),
    "call of a call": lambda: Calls(
        torch._tensor._rebuild_from_type_v2,
        bytearray,
        torch.Tensor,
        (MANY,),
        None,
    ),
    "copied tensor": lambda: Calls(
        torch._utils._rebuild_device_tensor_from_cpu_tensor,
        one_for_many(),
        torch.float64,
        "cpu",
        False,
    ),
    "set of a tensor": lambda: Calls(
        set,
        one_for_many(),
    ),
    "pairs in a tensor": lambda: Calls(
        collections.OrderedDict,
        [one_for_many()],
    ),
    "encodings": lambda: reduce(
        in_hexadecimal,
        range(24),
        b"0123456789abcdef",
    ),
    "nested key": lambda: Reduces(
        collections.OrderedDict,
        (),
        None,
        None,
        iter([(PAIRS, 1)]),
    ),
    "nested element": lambda: Calls(
        set,
        [PAIRS],
    ),
    "nested key of a pair": lambda: Calls(
        collections.OrderedDict,
        [[PAIRS, 1]],
    ),
    "nested name": lambda: Calls(
        torch.serialization._get_layout,
        PAIRS,
    ),
    "nested encoding": lambda: Calls(
        _codecs.encode,
        "x",
        PAIRS,
    ),
    "nested attribute": lambda: Reduces(
        collections.OrderedDict,
        (),
        [(PAIRS, 1)],
    ),
    "replaced method": lambda: Reduces(
        collections.OrderedDict,
        (),
        {"items": 5},
    ),
    "replaced method of a tensor": lambda: replaced_method(),
    "repeated list": lambda: [Calls(torch.Size, LIST) for _ in range(500)],
    "repeated state": lambda: repeated_state(),
}


def replaced_method() -> torch.Tensor:
    found: Any = torch.nn.Parameter(torch.ones(1))
    found.is_complex = 5
    return found


def repeated_state() -> list[Any]:
    state = {f"name {number}": 0 for number in range(20_000)}

    class Namespace(argparse.Namespace):
        def __reduce__(self) -> Any:
            return argparse.Namespace, (), state

    return [Namespace() for _ in range(300)]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("is_zip", [True, False])
def test_small_file_large_content(name: str, is_zip: bool, tmp_path: Path) -> None:
    content = {
        "format": checkpoints.FORMAT,
        "step": 1,
        "w": torch.ones(1),
        "x": HOSTILE[name](),
    }
    path = checkpoints.path_of(tmp_path, 1)
    torch.save(content, path, _use_new_zipfile_serialization=is_zip)
    for read in (files.read, checkpoints.load):
        found = forked(lambda read=read: read(path))
        assert isinstance(found.raised, UserError), found
        assert found.megabytes < MOST


def test_replaced_methods(tmp_path: Path) -> None:
    """The attributes of a mapping are its own."""
    items = {"format": checkpoints.FORMAT, "step": 1, "w": torch.ones(1)}.items()
    path = checkpoints.path_of(tmp_path, 1)
    state = {"get": 5, "items": 5}
    torch.save(Reduces(collections.OrderedDict, (), state, None, iter(items)), path)
    for read in (files.read, checkpoints.load):
        with pytest.raises(UserError):
            read(path)


def test_other_module_names(tmp_path: Path) -> None:
    """Names of modules are those that torch looks up."""
    path = tmp_path / "x.pth"
    content = {"w": torch.ones(1), "x": Calls(collections.Counter, one_for_many())}
    torch.save(content, path, _use_new_zipfile_serialization=False)
    old, new = b"collections\nCounter", b"UserList\nCounter"
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))
    found = forked(lambda: list(files.read(path).state))
    assert isinstance(found.raised, UserError), found
    assert found.megabytes < MOST


def archive(content: Any, compression: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as parts:
        parts.writestr("x/data.pkl", pickle.dumps(content, 2))
        parts.writestr("x/version", "3\n")
    return file.getvalue()


@pytest.mark.parametrize("is_long", [True, False])
def test_two_directories(is_long: bool, tmp_path: Path) -> None:
    """zipfile and torch find the same parts, in archives of 32 and of 64 bits."""
    large = archive({"text": "x" * 10**8}, zipfile.ZIP_DEFLATED)
    small = archive({"text": "x"}, zipfile.ZIP_STORED)
    content, end = large[:-22], large[-22:]
    length, offset = struct.unpack("<2L", end[12:20])
    second = small[struct.unpack("<L", small[-6:-2])[0] : -22]
    if is_long:
        fields = b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, length
        first_record = struct.pack("<4sQ2H2L4Q", *fields, offset)
        start = len(content) + len(first_record)
        second_record = struct.pack("<4sQ2H2L4Q", *fields, start)
        locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(content), 1)
        content += first_record + second + second_record + locator + end
    else:
        content += second + end
    path = tmp_path / "x.pth"
    path.write_bytes(content)
    with zipfile.ZipFile(path) as parts:
        assert parts.infolist()[0].file_size < 1000
    found = forked(lambda: files.read(path))
    assert isinstance(found.raised, UserError), found
    assert found.megabytes < MOST


class Storage(NamedTuple):
    """A claimed storage of a tensor."""

    kind: Any
    key: Any
    count: int


class Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, Storage):
            return "storage", value.kind, value.key, "cpu", value.count, None
        return None


def tensor(storage: Storage, count: int) -> Calls:
    hooks: dict[str, Any] = collections.OrderedDict()
    return Calls(torch._utils._rebuild_tensor_v2, storage, 0, (count,), (1,), False, hooks)


ONE = Storage(torch.FloatStorage, "0", 1)
TWO = Storage(torch.DoubleStorage, "0", 2)
#: Version, tensors, and names of storages in files of torch before 1.6.
OLD: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "a storage that is not listed": (1001, [tensor(ONE, MANY)], []),
    "one storage of two types": (1001, [tensor(ONE, 1), tensor(TWO, MANY)], ["0"]),
    "a nested list": (1001, [tensor(ONE, 1)], [PAIRS]),
    "a nested version": (PAIRS, [tensor(ONE, 1)], ["0"]),
    "a nested name": (1001, [tensor(Storage(torch.FloatStorage, PAIRS, 1), 1)], ["0"]),
}


@pytest.mark.parametrize("name", OLD)
def test_old_files(name: str, tmp_path: Path) -> None:
    version, tensors, listed = OLD[name]
    path = tmp_path / "x.pth"
    state = {str(number): value for number, value in enumerate(tensors)}
    with path.open("wb") as file:
        for content in (torch.serialization.MAGIC_NUMBER, version, {}, state, listed):
            Pickler(file, 2).dump(content)
        file.write(struct.pack("<qf", 1, 1.0))
    found = forked(lambda: list(files.read(path).state))
    assert isinstance(found.raised, UserError), found


@pytest.mark.parametrize("is_zip", [True, False])
def test_usual_content(is_zip: bool, tmp_path: Path) -> None:
    """Everything that torch reads without running code is read."""
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)]
    network = torch.nn.Sequential(*layers)
    network[0].weight.decayed = False
    values = torch.rand(50)
    content = {
        "state_dict": network.state_dict(keep_vars=True),
        "views": [values[:10], values[10:].view(4, 10), values[0]],
        "args": argparse.Namespace(lr=0.1, sizes=[1, 2]),
        "counts": collections.Counter("hexa"),
        "size": torch.Size([1, 2]),
        "rest": [{1, 2}, 1j, b"\xff" * 300, bytearray(b"\xff" * 300), {torch.float32}],
        "keys": {(1, "x"): 1, None: 2, 0.5: 3},
        "pairs": Calls(collections.OrderedDict, [["x", torch.ones(1)]]),
        "type": torch.float16,
        "device": torch.device("cpu"),
        "empty": torch.zeros(0),
        "sixteen": torch.ones(3, dtype=torch.uint16 if is_zip else torch.int16),
        "expanded": torch.zeros(1).expand(100),
        "meta": torch.zeros(10**9, device="meta"),
    }
    path = tmp_path / "x.pth"
    torch.save(content, path, _use_new_zipfile_serialization=is_zip)
    pickles.check(str(path))
    with torch.serialization.safe_globals([argparse.Namespace]):
        found = torch.load(path, weights_only=True)
    assert found["state_dict"]["0.weight"].decayed is False
    assert found["args"] == content["args"]


def test_claimed_values(tmp_path: Path) -> None:
    """A storage has as many values as it claims."""
    path = tmp_path / "old.pth"
    torch.save({"w": torch.ones(7001)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    claimed = pickle.dumps(7001, 2)[2:-1]
    assert content.count(claimed) == 2
    many = pickle.dumps(2**31 - 1, 2)[2:-1]
    path.write_bytes(content.replace(claimed, many))
    with pytest.raises(ValueError, match="more values than it has"):
        pickles.check(str(path))


SCALAR = np.float64(0).__reduce__()[0]
LATIN1 = "x" * 50_000
ARRAYS: dict[str, Any] = {
    "a large element": Calls(SCALAR, Calls(np.dtype, f"V{MANY}")),
    "a large text": Calls(SCALAR, Calls(np.dtype, f"U{MANY // 4}")),
    "a long key": {"x" * 20_000: 1},
    "a large key": {1 << 200_000: 1},
    "a nested key": Calls(collections.OrderedDict, [[PAIRS, 1]]),
    "a nested encoding": Calls(_codecs.encode, "x", PAIRS),
    "a replaced method": Reduces(collections.OrderedDict, (), {"items": 5}),
    "repeated bytes": [Calls(_codecs.encode, LATIN1, "latin1") for _ in range(3000)],
    "a long array of bytes": None,
}


@pytest.mark.parametrize("name", ARRAYS)
def test_small_pickle_large_arrays(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    content = pickle.dumps({"w": np.ones(3), "x": ARRAYS[name]}, 2)
    if ARRAYS[name] is None:
        content = b"\x80\x05\x96" + MANY.to_bytes(8, "little") + b"."
    path.write_bytes(content)
    found = forked(lambda: files.read(path))
    assert isinstance(found.raised, UserError), found
    assert found.megabytes < MOST


def test_array_of_many_names(tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(dict.fromkeys(map(str, range(3000)), np.zeros(300_000, "u1"))))
    found = forked(lambda: len(files.read(path).state))
    assert found.value == 3000
    assert found.megabytes < MOST


def test_changed_function(tmp_path: Path) -> None:
    """The state of a function is refused."""
    path = tmp_path / "x.pkl"
    state = pickle.dumps((None, {"__defaults__": ("latin1",)}), 2)[2:-1]
    path.write_bytes(b"\x80\x02c_codecs\nencode\n" + state + b"b.")

    def defaults() -> Any:
        with pytest.raises(UserError):
            files.read(path)
        return [pickles.latin1.__defaults__]

    assert forked(defaults).value == [None]


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_arrays_of_other_types(protocol: int, tmp_path: Path) -> None:
    """Arrays of text, objects, complex numbers and records are left out."""
    content = {
        "w": np.ones(3),
        "text": np.array(["a", "bc"]),
        "objects": np.array(["a", None, {}]),
        "complex": np.ones(3, "c8"),
        "records": np.zeros(3, [("x", "f4"), ("y", "U3")]),
    }
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(content, protocol))
    assert list(files.read(path).state) == ["w"]


@pytest.mark.parametrize(
    "state",
    [
        (3, "|", None, None, None, MANY, 1, 0),
        (3, ">", *[None] * 6),
    ],
)
def test_altered_number_type(state: Any, tmp_path: Path) -> None:
    """The state of a type can change nothing but its byte order."""

    class Altered:
        def __reduce__(self) -> Any:
            return np.dtype, ("f4", False, True), state

    path = tmp_path / "x.pkl"
    number = Calls(SCALAR, Altered(), b"\0\0\x80\x3f")
    path.write_bytes(pickle.dumps({"x": number}, 2))
    with pytest.raises(UserError):  # a number alone is not an array
        files.read(path)
    reader = files._Arrays(io.BytesIO(path.read_bytes()), 1000)
    found = reader.load()["x"]
    assert found.dtype.itemsize == 4
    assert np.dtype("f4").isnative


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("kind", ["<f4", ">f4", "f8", "f2", "i8", "u1", "?"])
def test_usual_arrays(kind: str, protocol: int, tmp_path: Path) -> None:
    rows = np.arange(12).reshape(3, 4)
    values = np.asfortranarray(rows.astype(kind))
    path = tmp_path / "x.pkl"
    content = {"w": values, "again": values, "text": "x", "lr": np.float64(0.5)}
    path.write_bytes(pickle.dumps(content, protocol))
    assert files.read(path).state["w"].tolist() == values.tolist()
