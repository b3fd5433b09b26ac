"""Stateless randomness: named streams derived from the seed, instead of generators with state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

Key = str | int


@dataclass(frozen=True)
class Stream:
    """A node in the tree of random streams, identified by the seed and a path of keys.

    The same stream always gives the same numbers, in any process and whatever was drawn before. A
    resumed run therefore restores no generator, a hard example cannot disturb the data stream, and
    a single view can be reproduced (F1).

    >>> Stream(0).child("views", 3).integer() == Stream(0, ("views", 3)).integer()
    True
    """

    seed: int
    path: tuple[Key, ...] = ()

    def child(self, *keys: Key) -> Stream:
        """Return the stream with additional keys in its path."""
        return Stream(self.seed, self.path + keys)

    def integer(self) -> int:
        """Return a 63-bit integer from the SHA-256 of seed and path, the same on every machine."""
        return (
            int.from_bytes(
                hashlib.sha256(repr((int(self.seed), *self.path)).encode()).digest()[:8], "big"
            )
            >> 1
        )

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a generator seeded with this stream. CPU and GPU generators give different
        numbers."""
        return torch.Generator(device).manual_seed(self.integer())


@contextmanager
def global_draws(stream: Stream, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed torch's global generators, of the CPU and of `device`, with this stream inside the
    context.

    For third-party code that does not accept a generator. The states are restored on exit.
    """
    where = torch.device(device)
    with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
        # torch.manual_seed would also seed all other GPUs permanently
        torch.default_generator.manual_seed(stream.integer())
        if where.type == "cuda":
            with torch.cuda.device(where):
                torch.cuda.manual_seed(stream.integer())
        yield
