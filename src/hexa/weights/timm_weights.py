"""timm's weights, downloaded or cached; without a connection, an error within seconds."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path, PurePosixPath
from typing import Any

import huggingface_hub
import timm
import torch
from timm.models import get_deprecated_models
from torch import nn

from hexa.config import UserError, nearest, reason

#: Seconds to wait for the server's first answer.
PATIENCE = 3.0


def current(name: str) -> str:
    """Return timm's current name of a renamed network, such as convnext_tiny.fb_in22k for
    convnext_tiny_in22k."""
    return get_deprecated_models().get(name) or name


def load(name: str) -> nn.Module:
    """Return timm's network NAME or NAME.TAG with its trained weights, without classifier.

    Raises UserError for an unknown name, and if the weights are neither cached nor can be
    downloaded.
    """
    if name not in timm.list_models() and name not in timm.list_pretrained():
        raise UserError(f"timm:{name}: timm has no such model; {nearest(name, timm.list_models())}")
    config = timm.models.get_pretrained_cfg(name)
    overlay = None
    try:
        if config is not None:
            hub = huggingface_hub.constants.ENDPOINT
            address = str(hub if config.hf_hub_id else config.url or "")
            if not _answers(address):  # timm would retry for 47 seconds
                overlay = {"file": _stored(config, f"no answer from {address}")}
        network: nn.Module = timm.create_model(
            name, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay
        )
    except Exception as error:
        plain = name.partition(".")[0]
        problem = f"its weights are not cached here and cannot be downloaded ({reason(error)})"
        remedy = f"give a file of weights, FILE#{plain}, or random:{plain} for an untrained network"
        raise UserError(f"timm:{name}: {problem}; {remedy}") from None
    return network


def _stored(config: timm.models.PretrainedCfg, otherwise: str) -> str:
    """Return the file of the weights in the cache of the Hugging Face hub or of torch, where timm
    looks for it.

    Raises FileNotFoundError with the message `otherwise` if there is none.
    """
    repository, _, revision = (config.hf_hub_id or "").partition("@")
    if repository:
        usual = ("model.safetensors", "pytorch_model.bin")
        names = (config.hf_hub_filename,) if config.hf_hub_filename else usual
        cached = huggingface_hub.try_to_load_from_cache
        paths: list[Any] = [cached(repository, one, revision=revision or None) for one in names]
    else:
        paths = [Path(torch.hub.get_dir(), "checkpoints", PurePosixPath(config.url or "/").name)]
    for path in paths:
        if isinstance(path, str | Path) and Path(path).is_file():
            return str(path)
    raise FileNotFoundError(otherwise)


def _answers(address: str) -> bool:
    """Return whether a server answers anything within PATIENCE; also in the hub's offline mode,
    which needs no server."""
    if huggingface_hub.constants.HF_HUB_OFFLINE or not address.startswith("http"):
        return True
    request = urllib.request.Request(address, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=PATIENCE).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError) as error:
        return "SSL" in str(error)  # certificates are left to timm
    return True
