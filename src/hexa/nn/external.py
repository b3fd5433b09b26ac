"""Networks of anybody's own: `python:MODULE:CALLABLE` names a function that returns one."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hexa.config import UserError, nearest, reason
from hexa.nn.layouts import triple
from hexa.nn.normalize import IMAGENET_MEAN, IMAGENET_STD


class External(nn.Module):
    """Somebody's network as a backbone: normalised images -> features [B, D]; maps [B, D, H, W] are averaged.

    mean, std, image_size: what the network declares by attributes of these names, else ImageNet's and 224.
    """

    def __init__(self, network: nn.Module, spec: str) -> None:
        super().__init__()
        self.network = network
        try:
            self.mean = triple(getattr(network, "mean", IMAGENET_MEAN))
            self.std = triple(getattr(network, "std", IMAGENET_STD))
            self.image_size = int(getattr(network, "image_size", 224))
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{spec}: mean and std must be three numbers each, and image_size one ({reason(error)})"
            ) from None
        self.num_features = self._width(spec)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.network(images)
        return found.mean((2, 3)) if found.ndim == 4 else found

    @torch.no_grad()
    def _width(self, spec: str) -> int:
        """The width of the features of two blank images. Raises UserError if that is not what comes out."""
        images = torch.zeros(2, 3, self.image_size, self.image_size)
        try:
            found: Any = self.network.eval()(images)
        except Exception as error:
            raise UserError(
                f"{spec}: fails on images {tuple(images.shape)}: {type(error).__name__}: {reason(error, 200)}"
            ) from error
        if not (isinstance(found, Tensor) and found.ndim in (2, 4) and len(found) == 2):
            what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise UserError(
                f"{spec}: gave {what} for images {tuple(images.shape)}; features [B, D] or maps [B, D, H, W]"
            )
        return int(found.shape[1])


def external(spec: str) -> External:
    """The network that `python:MODULE:CALLABLE` or `python:FILE.py:CALLABLE` returns. Raises UserError."""
    home, _, name = spec.removeprefix("python:").rpartition(":")
    if not home or not name:
        raise UserError(
            f"{spec}: write python:MODULE:CALLABLE, such as python:my_networks:resnet or python:my.py:resnet"
        )
    module = _import(home, spec)
    make = getattr(module, name, None)
    if not callable(make):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UserError(f"{spec}: {home} has no function '{name}'; {nearest(name, known)}")
    try:
        network = make()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{spec}: {name}() raised {type(error).__name__}: {reason(error, 200)}") from error
    if not isinstance(network, nn.Module):
        raise UserError(f"{spec}: {name}() returned {type(network).__name__}, not a torch.nn.Module")
    return External(network, spec)


def _import(home: str, spec: str) -> ModuleType:
    path = Path(home)
    if path.suffix == ".py":
        if not path.is_file():
            raise UserError(f"{spec}: no such file: {path}")
        found = importlib.util.spec_from_file_location(path.stem, path)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        return module
    try:
        sys.path.insert(0, "")  # where the user is, as for `python -m`
        return importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{home}.".startswith(f"{error.name}."):
            raise UserError(f"{spec}: importing {home} failed: {error}") from error
        raise UserError(f"{spec}: no module {home} is installed here or in this folder") from None
    finally:
        sys.path.remove("")
