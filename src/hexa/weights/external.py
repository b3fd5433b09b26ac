"""Your own networks: `python:FILE.py:CALLABLE` names a function that returns one."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hexa.config import UserError, nearest, reason, users_code
from hexa.weights.preparation import ASSUMED, DECLARED, Preparation, assumed

#: Attributes by which a network declares its preparation, if the name differs from the field's.
_ATTRIBUTES = {"size": "image_size", "crop": "image_crop", "interpolation": "image_interpolation"}


class External(nn.Module):
    """A user's network as a backbone: normalised images -> features [B, D]; maps [B, D, H, W] are
    averaged.

    preparation: from the network's attributes mean, std, image_size, image_crop and
    image_interpolation; the default is ImageNet's mean and std and 224 pixels.
    """

    def __init__(self, network: nn.Module, spec: str) -> None:
        super().__init__()
        self.network = network
        self.preparation = _declared(network, spec)
        self.num_features = self._width(spec)

    @property
    def wrapped(self) -> nn.Module:
        """The user's own network, without averaging of maps."""
        return self.network

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.network(images)
        return output.mean((2, 3)) if output.ndim == 4 else output

    @torch.no_grad()
    def _width(self, spec: str) -> int:
        """Return the feature width for two blank images. Raises UserError if the output is not a
        batch of features."""
        shape = (2, len(self.preparation.mean), self.preparation.size, self.preparation.size)
        try:
            output: Any = self.network.eval()(torch.zeros(shape))
        except Exception as error:
            raise UserError(
                f"{spec}: fails on images {shape}: {type(error).__name__}: {reason(error, 200)}"
            ) from error
        if not (isinstance(output, Tensor) and output.ndim in (2, 4) and len(output) == 2):
            returned = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise UserError(
                f"{spec}: must return features [B, D] or maps [B, D, H, W], got {returned} for images "
                f"{shape}"
            )
        return int(output.shape[1])


def _declared(network: nn.Module, spec: str) -> Preparation:
    """Return the preparation of images that the network declares."""
    values = assumed().values()
    attributes = {name: getattr(network, _ATTRIBUTES.get(name, name), None) for name in values}
    declared = {name: value for name, value in attributes.items() if value is not None}
    origins = {name: DECLARED if name in declared else ASSUMED for name in values}
    try:
        return Preparation(**(values | declared), origins=origins)
    except UserError as error:
        raise UserError(f"{spec}: declares an invalid preparation: {error}") from None


def external(spec: str) -> External:
    """Return the network of `python:FILE.py:CALLABLE`. Raises UserError."""
    home, _, name = spec.removeprefix("python:").rpartition(":")
    if not home or not name:
        raise UserError(f"{spec}: write python:FILE.py:CALLABLE, such as python:my.py:resnet")
    if not Path(home).is_file():
        raise UserError(f"{spec}: no such file: {home}")
    with users_code(spec):
        names = runpy.run_path(home)
    make = names.get(name)
    if not callable(make):
        known = [key for key, value in names.items() if callable(value) and not key.startswith("_")]
        raise UserError(f"{spec}: {home} has no function '{name}'; {nearest(name, known)}")
    try:
        with users_code(spec):
            network = make()
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{spec}: {name}() raised {type(error).__name__}: {reason(error, 200)}"
        ) from error
    if not isinstance(network, nn.Module):
        raise UserError(
            f"{spec}: {name}() returned {type(network).__name__}, not a torch.nn.Module"
        )
    return External(network, spec)
