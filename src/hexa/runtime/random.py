"""Stateless randomness: a named stream of the seed, not a generator that remembers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

Key = str | int


@dataclass(frozen=True)
class Stream:
    """A place in the tree of random streams, named by the seed and a path of keys.

    Two uses with the same name draw the same numbers, whatever was drawn before, in this process or another. So a
    resumed run restores no generator, a hard example cannot disturb the data stream, and one view can be reproduced
    alone (DESIGN §3.2; REFERENCE §10.20).

    >>> Stream(0).child("views", 3).integer() == Stream(0, ("views", 3)).integer()
    True
    """

    seed: int
    path: tuple[Key, ...] = ()

    def child(self, *keys: Key) -> Stream:
        """The stream one or several keys further down."""
        return Stream(self.seed, self.path + keys)

    def integer(self) -> int:
        """A 63-bit integer that is a function of seed and path alone: SHA-256, so alike on every machine."""
        name = repr((int(self.seed), *self.path)).encode()
        return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """A generator at the start of this stream. Draw on the CPU unless the numbers may differ between devices."""
        return torch.Generator(device).manual_seed(self.integer())


@contextmanager
def global_draws(stream: Stream, device: torch.device | str = "cpu") -> Iterator[None]:
    """While entered, torch's global generators, of the CPU and of `device`, begin where this stream does.

    For third-party code that takes no generator. Their states are restored afterwards.
    """
    where = torch.device(device)
    with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
        # torch.manual_seed would also seed every other GPU, for good
        torch.default_generator.manual_seed(stream.integer())
        if where.type == "cuda":
            with torch.cuda.device(where):
                torch.cuda.manual_seed(stream.integer())
        yield
