"""Reading a checkpoint or a pickle of arrays takes no more memory than its size warrants."""

from __future__ import annotations

import _codecs
import argparse
import collections
import io
import pickle
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hexa.config import UserError
from hexa.runtime import checkpoints, pickles
from hexa.weights import files
from tests.pickles import Calls
from tests.torture.harness import forked

#: Elements that a hostile file asks for.
MANY = 300_000_000
#: Megabytes that a file of some kilobytes may take.
MOST = 60
LIST = list(range(100_000))


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
    "repeated list": lambda: [Calls(torch.Size, LIST) for _ in range(500)],
    "repeated state": lambda: repeated_state(),
}


def repeated_state() -> list[Any]:
    state = {f"name {number}": 0 for number in range(20_000)}

    class Namespace(argparse.Namespace):
        def __reduce__(self) -> Any:
            return argparse.Namespace, (), state

    return [Namespace() for _ in range(300)]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("is_zip", [True, False])
def test_small_file_large_content(name: str, is_zip: bool, tmp_path: Path) -> None:
    content = {"format": checkpoints.FORMAT, "step": 1, "w": torch.ones(1), "x": HOSTILE[name]()}
    path = checkpoints.path_of(tmp_path, 1)
    torch.save(content, path, _use_new_zipfile_serialization=is_zip)
    for read in (files.read, checkpoints.load):
        found = forked(lambda read=read: read(path))
        assert isinstance(found.raised, UserError), found
        assert found.megabytes < MOST


@pytest.mark.parametrize("is_zip", [True, False])
def test_usual_content(is_zip: bool, tmp_path: Path) -> None:
    """Everything that torch reads without running code is read."""
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    network[0].weight.decayed = False
    values = torch.rand(50)
    content = {
        "state_dict": network.state_dict(keep_vars=True),
        "views": [values[:10], values[10:].view(4, 10), values[0]],
        "args": argparse.Namespace(lr=0.1, sizes=[1, 2]),
        "counts": collections.Counter("hexa"),
        "rest": [torch.Size([1, 2]), {1, 2}, torch.float16, torch.device("cpu"), b"\xff" * 300, 1j],
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
    path.write_bytes(content.replace(claimed, pickle.dumps(2**31 - 1, 2)[2:-1]))
    with pytest.raises(ValueError, match="more values than it has"):
        pickles.check(str(path))


SCALAR = np.float64(0).__reduce__()[0]
LATIN1 = "x" * 50_000
ARRAYS: dict[str, Any] = {
    "a large element": Calls(SCALAR, Calls(np.dtype, f"V{MANY}")),
    "a large text": Calls(SCALAR, Calls(np.dtype, f"U{MANY // 4}")),
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


@pytest.mark.parametrize("state", [(3, "|", None, None, None, MANY, 1, 0), (3, ">", *[None] * 6)])
def test_altered_number_type(state: Any, tmp_path: Path) -> None:
    """The state of a type can change nothing but its byte order."""

    class Altered:
        def __reduce__(self) -> Any:
            return np.dtype, ("f4", False, True), state

    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps({"x": Calls(SCALAR, Altered(), b"\0\0\x80\x3f")}, 2))
    with pytest.raises(UserError):  # a number alone is not an array
        files.read(path)
    found = files._Arrays(io.BytesIO(path.read_bytes()), 1000).load()["x"]
    assert found.dtype.itemsize == 4
    assert np.dtype("f4").isnative


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("kind", ["<f4", ">f4", "f8", "f2", "i8", "u1", "?"])
def test_usual_arrays(kind: str, protocol: int, tmp_path: Path) -> None:
    values = np.asfortranarray(np.arange(12).reshape(3, 4).astype(kind))
    path = tmp_path / "x.pkl"
    content = {"w": values, "again": values, "text": "x", "lr": np.float64(0.5)}
    path.write_bytes(pickle.dumps(content, protocol))
    assert files.read(path).state["w"].tolist() == values.tolist()
