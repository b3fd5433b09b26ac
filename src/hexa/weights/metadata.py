"""Metadata of hexa's safetensors files: how to rebuild the network, and how to prepare images for it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pydantic
import torch
from torch import Tensor

from hexa.config import ConfigError, UserError, reason
from hexa.nn.backbones import NetworkConfig
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
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
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
        "info": json.dumps(backbone.info),
        "content": backbone.content_hash(),
    }


def of_metadata(metadata: Mapping[str, str], where: str) -> tuple[NetworkConfig, Preparation, dict[str, Any]]:
    """Network, preparation and info from a file's metadata; older files lack some. Raises UserError."""
    try:
        return (
            NetworkConfig.model_validate_json(metadata["network"]),
            Preparation(
                json.loads(metadata["mean"]),
                json.loads(metadata["std"]),
                int(metadata["image_size"]),
                json.loads(metadata.get("crop", str(CROP))),
                metadata.get("interpolation", "bilinear"),
                {name: str(origin) for name, origin in _plain(metadata.get("origins", "{}")).items() if name in NAMES},
            ),
            _plain(metadata["info"]),
        )
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{where}: its metadata does not say how to build the network ({said(error)})") from None


def said(error: Exception) -> str:
    """Why fields do not describe a network, in a few words."""
    if isinstance(error, pydantic.ValidationError):
        error = ConfigError.of(error)
    return f"it lacks {reason(error)}" if isinstance(error, KeyError) else reason(error)


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
