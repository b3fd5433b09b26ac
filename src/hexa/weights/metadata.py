"""Metadata of hexa's safetensors files: the description of the network and of the preparation of
images."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
import torch
from torch import Tensor

from hexa.config import ConfigError, UserError, reason
from hexa.nn.backbones import NetworkConfig
from hexa.runtime import parsing
from hexa.weights.files import Unreadable, Weights
from hexa.weights.preparation import CROP, NAMES, Preparation

if TYPE_CHECKING:
    from hexa.weights.pretrained import Backbone

#: Only key of a file's metadata.
KEY = "hexa"
#: Longest text to copy from a file into results, in characters.
_LONGEST = 300


def content_hash(state: Mapping[str, Tensor]) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of names and values of a network's
    state."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(name.encode())
        digest.update(
            value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()[:16]


def metadata_of(backbone: Backbone) -> dict[str, str]:
    """Return the metadata of a backbone's file, JSON under one key. content: a hash of its tensors,
    to detect damage.

    One key, because safetensors writes several keys in random order, and equal backbones must give
    equal files.
    """
    fields = {
        "format": "hexa backbone 2",
        "network": backbone.network_config.model_dump(mode="json"),
        **backbone.preparation.values(),
        "origins": backbone.preparation.origins,
        "info": {name: value for name, value in backbone.info.items() if name != "note"},
        "content": backbone.content_hash(),
    }
    return {KEY: json.dumps(fields)}


Description = tuple[NetworkConfig, Preparation, dict[str, Any]]
"""A network, the preparation of its images, and other facts (recipe, encoder, step …)."""


def of_metadata(weights: Weights) -> Description:
    """Return the description in the metadata of hexa's own file. Raises UserError, or Unreadable if
    the tensors differ."""
    with described(weights.where, "its metadata does not say how to build the network"):
        fields = parsing.from_json(weights.metadata[KEY])
        network = NetworkConfig.model_validate(fields["network"])
        values = {name: fields[name] for name in NAMES}
        preparation = Preparation(**values, origins=_plain(fields["origins"]))
        info = _plain(fields["info"])
        info.pop("note", None)  # notes are on how a file was loaded, so no file has any
        content = fields["content"]
    if content != content_hash(weights.state):
        raise Unreadable(
            f"{weights.where}: damaged: its tensors do not match their checksum in the file"
        )
    return network, preparation, info


def of_config(path: Path) -> Description:
    """Return the description in the config.yaml of a run. Raises UserError."""
    with described(str(path), "not the config.yaml of a run"):
        fields = parsing.from_yaml(parsing.read_text(path, parsing.MOST_YAML, within=path.parent))
        network = NetworkConfig.model_validate(fields["network"])
        like = {"crop": CROP, "interpolation": "bilinear"} | (fields.get("start") or {})
        size = round(fields["views"]["size"] * fields["views"].get("test_scale", 1.0))
        preparation = Preparation(
            network.mean, network.std, size, like["crop"], like["interpolation"]
        )
        return network, preparation, {"recipe": str(fields["recipe"])}


#: Errors that values of another kind or size than expected cause.
_WRONG = (
    OSError,
    LookupError,
    ValueError,
    TypeError,
    ArithmeticError,
    AttributeError,
    RecursionError,
    StopIteration,
)


@contextmanager
def described(where: str, what: str) -> Iterator[None]:
    """Report fields that do not describe a network as `where: what (reason)`.

    An error that already names `where`, or a file in it, is kept, because it is more specific.
    """
    try:
        yield
    except _WRONG as error:
        if isinstance(error, UserError) and str(error).startswith(where):
            raise
        problem = ConfigError.of(error) if isinstance(error, pydantic.ValidationError) else error
        said = f"it lacks {error}" if isinstance(error, KeyError) else reason(problem)
        raise UserError(f"{where}: {what} ({said})") from None


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the short texts and finite numbers of a JSON object, for results and tables."""

    def is_shown(value: object) -> bool:
        if isinstance(value, str):
            return len(value) <= _LONGEST and value.isprintable()
        return isinstance(value, int | float) and math.isfinite(value)

    return {name: value for name, value in dict(fields).items() if is_shown(value)}
