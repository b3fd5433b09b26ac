"""Checkpoints: written atomically, by several processes in parts, refused if damaged or foreign."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hexa.config import UserError, reason
from hexa.runtime import parsing, pickles, processes
from hexa.runtime.files import by_plain_name, write_whole

FORMAT = "hexa-checkpoint-2"
_NAME = re.compile(r"step-\d{8,}\.(pt|part\d+|unfinished\d+)")

State = dict[str, Any]


class BadCheckpoint(UserError):
    """A file that is truncated, damaged, or not a checkpoint of hexa; the message gives the
    reason."""


def path_of(folder: Path, step: int, part: int = 0) -> Path:
    """Return the file of a step: step-00000123.pt, or the part of a process: step-00000123.part1."""
    path = folder / f"step-{step:08d}.pt"
    return path.with_suffix(f".part{part}") if part else path


def begin(folder: Path, step: int, parts: int) -> Path:
    """Announce the files of a step before any process calls `save`, and return the first.

    Old files of the step are deleted. An empty file such as step-00000123.unfinished1 stands for
    each part but the first until the part is written. Raises OSError.
    """
    folder.mkdir(exist_ok=True)
    for old in _files(folder):
        if step_of(old) == step:
            old.unlink()
    for part in range(1, parts):
        _mark(folder, step, part).touch(exist_ok=False)
    return path_of(folder, step)


def _mark(folder: Path, step: int, part: int) -> Path:
    return path_of(folder, step).with_suffix(f".unfinished{part}")


def save(
    folder: Path,
    step: int,
    state: Mapping[str, Any],
    part: int = 0,
    keep: int = 2,
    stays: int | None = None,
) -> Path:
    """Write the state of a step atomically, then delete all but the newest `keep` checkpoints up to
    this step.

    part: rank of the process, if each writes its own part of a sharded state; see `begin`.
    stays: never delete checkpoints at multiples of this step.

    Files with a checkpoint's name are always complete, even if the machine stops. `state` contains
    tensors, numbers, text, and lists and dictionaries of these. A checksum over everything is
    stored too, in case the disk damages the file. The run folder must exist; if it was deleted, it is
    not created again. Raises OSError.
    """
    folder.mkdir(exist_ok=True)
    content: State = {"format": FORMAT, "step": step, **state}
    content.pop("checksum", None)  # present if the state was loaded from a file
    content["checksum"] = checksum(content)
    path = write_whole(
        path_of(folder, step, part), lambda file: torch.save(content, file), make_folders=False
    )
    _mark(folder, step, part).unlink(missing_ok=True)
    steps = [step_of(one) for one in checkpoints(folder)]
    kept = [number for number in steps if number <= step][-keep:]
    for old in _files(folder):
        number = step_of(old)
        if number < step and number not in kept and (stays is None or number % stays):
            old.unlink(missing_ok=True)  # other processes delete the same files
    return path


def load(path: Path, compare: bool = True) -> State:
    """Read a checkpoint with its parts, weights only: no code in the files is executed. Raises
    BadCheckpoint with the reason.

    A sharded entry of the method is the list of its parts, in rank order.
    compare: verify the checksums, which reads all tensors.
    """
    content = _read(path, compare)
    try:
        shards: list[Any] = [content.get("method")]
        for number in range(1, content.get("parts", 1)):
            part = _read(path.with_suffix(f".part{number}"), compare)
            if part["step"] != content["step"]:
                raise LookupError
            shards.append(part["method"])
        if shards[1:]:
            joined = {name: [shard[name] for shard in shards] for name in shards[-1]}
            content["method"] = {**content["method"], **joined}
    except (LookupError, TypeError, RuntimeError):  # hexa never writes such kinds of content
        raise BadCheckpoint(f"{path}: damaged (its parts do not belong together)") from None
    return content


def _read(path: Path, compare: bool) -> State:
    try:
        parsing.check(path, sys.maxsize, within=path.parent.parent)
        with by_plain_name(path) as name:
            pickles.check(name)
            content: State = torch.load(name, map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:
        raise BadCheckpoint(f"{path}: {error.strerror or error}") from None
    except UserError as error:
        raise BadCheckpoint(str(error)) from None
    except Exception as error:  # torch raises all sorts of exceptions on damaged bytes
        raise BadCheckpoint(f"{path}: truncated, damaged or foreign ({reason(error)})") from None
    of_hexa = isinstance(content, dict) and content.get("format") == FORMAT
    if not of_hexa or not isinstance(content.get("step"), int):
        raise BadCheckpoint(f"{path}: not a checkpoint of hexa (format {FORMAT})")
    with contextlib.suppress(
        RuntimeError, TypeError, OSError
    ):  # hexa never writes such kinds of tensors or depths of nesting
        state = {name: value for name, value in content.items() if name != "checksum"}
        if not compare or (
            _is_plausible(state, path.stat().st_size) and content.get("checksum") == checksum(state)
        ):
            return content
    raise BadCheckpoint(f"{path}: damaged (its content does not match its checksum)")


def _is_plausible(content: State, size: int) -> bool:
    """Return False if the content is more than a file of `size` bytes can hold.

    A manipulated content may contain itself, or an element that claims a billion values; traversing
    it would never end.
    """
    waiting: list[Any] = [content]
    entries = total = 0
    while waiting and entries <= size and total <= 8 * size:
        value = waiting.pop()
        entries += 1
        if isinstance(value, Tensor):
            total += value.nbytes
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
    return not waiting and total <= 8 * size


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a folder, found by name, oldest first."""
    files = _files(folder)
    unfinished = {path.stem for path in files if path.suffix.startswith(".unfinished")}
    complete = (path for path in files if path.suffix == ".pt" and path.stem not in unfinished)
    return sorted(complete, key=step_of)


def _files(folder: Path) -> list[Path]:
    """Return all files of checkpoints; the first files of steps come first.

    If a process is killed while it deletes files in this order, no step looks complete that is not.
    """
    paths = folder.iterdir() if folder.is_dir() else ()
    found = [path for path in paths if _NAME.fullmatch(path.name) and path.is_file()]
    return sorted(found, key=lambda path: path.suffix != ".pt")


def step_of(path: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(path.stem.removeprefix("step-"))


def newest_good(
    folder: Path,
    warn: Callable[[str], None],
) -> tuple[Path, State] | None:
    """Return the newest intact checkpoint, or None; damaged ones are skipped with a warning."""
    for path in reversed(checkpoints(folder)):
        try:
            return path, load(path)
        except BadCheckpoint as error:
            warn(f"{error}; trying the previous checkpoint")
    return None


def newest_good_of_all(
    folder: Path, warn: Callable[[str], None], device: torch.device
) -> tuple[Path, State] | None:
    """`newest_good` for all processes of a run, which call this together and communicate through
    `device`.

    The main process reads and verifies the whole file. The others map the same file into memory and
    read only what they use, for example their own rows of a memory bank. Tensors are on the CPU;
    the file stays open as long as one of them exists. Raises UserError if processes see different
    files.
    """
    newest = newest_good(folder, warn) if processes.is_main() else None
    step = processes.of_main(-1 if newest is None else step_of(newest[0]), device)
    if step >= 0 and not processes.is_main():
        with contextlib.suppress(BadCheckpoint):
            path = path_of(folder, step)
            newest = path, load(path, compare=False)
    seen = zlib.crc32(
        repr((bool(checkpoints(folder)), newest and newest[1].get("checksum"))).encode()
    )
    if processes.any_of(seen != processes.of_main(seen, device), device):
        raise UserError(
            f"{folder}: processes see different checkpoints; use a disk shared by all machines"
        )
    return newest


def checksum(content: object) -> str:
    """Return the SHA-256 over names, types, shapes and bytes of nested dictionaries, lists, tensors
    and plain values."""
    digest = hashlib.sha256()
    for piece in _pieces(content):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(value: object) -> Iterator[bytes | memoryview]:
    if isinstance(value, Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)}".encode()
        flat = value.detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data if flat.numel() else b""
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        for key, inner in value.items():
            yield repr(key).encode()
            yield from _pieces(inner)
    elif isinstance(value, list | tuple):
        yield f"{type(value).__name__} {len(value)}".encode()
        for inner in value:
            yield from _pieces(inner)
    else:
        yield repr(value).encode()
