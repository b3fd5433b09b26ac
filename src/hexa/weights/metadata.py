"""Metadata of hexa's safetensors files: how to rebuild the network, and how to prepare images for it."""

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
from hexa.weights.preparation import CROP, NAMES, Preparation

if TYPE_CHECKING:
    from hexa.weights.pretrained import Backbone

#: Longest text that is copied from a file into results.
_LONGEST = 300


def content_hash(state: Mapping[str, Tensor]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of names and values of a network's state."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(name.encode())
        digest.update(
            value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()[:16]


def metadata_of(backbone: Backbone) -> dict[str, str]:
    """The metadata of a backbone's file. content: a hash of its tensors, to detect damage."""
    return {
        "format": "hexa backbone 1",
        "network": backbone.network_config.model_dump_json(),
        "mean": json.dumps(backbone.mean),
        "std": json.dumps(backbone.std),
        "image_size": str(backbone.image_size),
        "crop": json.dumps(backbone.preparation.crop),
        "interpolation": backbone.preparation.interpolation,
        "origins": json.dumps(backbone.preparation.origins),
        "info": json.dumps({name: v for name, v in backbone.info.items() if name != "note"}),
        "content": backbone.content_hash(),
    }


Description = tuple[NetworkConfig, Preparation, dict[str, Any]]
"""A network, how images are prepared for it, and further facts (recipe, encoder, step …)."""


def of_metadata(metadata: Mapping[str, str], where: str) -> Description:
    """What a file's metadata describe; older files lack some. Raises UserError."""
    with described(where, "its metadata does not say how to build the network"):
        origins = {
            name: str(origin)
            for name, origin in _plain(metadata.get("origins", "{}")).items()
            if name in NAMES
        }
        mean, std, size = (json.loads(metadata[name]) for name in ("mean", "std", "image_size"))
        crop = json.loads(metadata.get("crop", str(CROP)))
        interpolation = metadata.get("interpolation", "bilinear")
        network = NetworkConfig.model_validate_json(metadata["network"])
        return (
            network,
            Preparation(mean, std, size, crop, interpolation, origins),
            _plain(metadata["info"]),
        )


def of_config(path: Path) -> Description:
    """What the config.yaml of a run describes. Raises UserError."""
    with described(str(path), "not the config.yaml of a run"):
        fields = parsing.from_yaml(parsing.read_text(path, parsing.MOST_YAML))
        network = NetworkConfig.model_validate(fields["network"])
        like = {"crop": CROP, "interpolation": "bilinear"} | (fields.get("start") or {})
        size = round(fields["views"]["size"] * fields["views"].get("test_scale", 1.0))
        preparation = Preparation(
            network.mean, network.std, size, like["crop"], like["interpolation"]
        )
        return network, preparation, {"recipe": str(fields["recipe"])}


@contextmanager
def described(where: str, what: str) -> Iterator[None]:
    """Report fields that do not describe a network as `where: what (reason)`.

    An error that names `where` itself is kept, since it says more.
    """
    try:
        yield
    except (OSError, KeyError, ValueError, TypeError, OverflowError, RecursionError) as error:
        if isinstance(error, UserError) and str(error).startswith(f"{where}: "):
            raise
        problem = ConfigError.of(error) if isinstance(error, pydantic.ValidationError) else error
        raise UserError(
            f"{where}: {what} ({'it lacks ' * isinstance(error, KeyError)}{reason(problem)})"
        ) from None


def ordered(content: bytes) -> bytes:
    """A safetensors file with its metadata sorted, so that equal backbones give equal files.

    safetensors writes them in random order. A file begins with the length of its header in eight bytes, and the header,
    JSON padded with spaces to a multiple of eight; offsets of tensors count from its end.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    written = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    written += b" " * (-len(written) % 8)
    return len(written).to_bytes(8, "little") + written + content[end:]


def _plain(text: str) -> dict[str, Any]:
    """The short texts and finite numbers of a JSON object, which results and tables can show."""
    return {
        name: value
        for name, value in dict(json.loads(text)).items()
        if (isinstance(value, str) and len(value) <= _LONGEST and value.isprintable())
        or (isinstance(value, int | float) and math.isfinite(value))
    }
