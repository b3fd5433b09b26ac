"""timm's weights, downloaded or from its cache, failing within seconds if there is no network."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from pathlib import Path, PurePosixPath
from typing import cast

import timm
import torch
from torch import nn

from hexa.config import UserError, nearest, reason

#: Seconds to wait for the first answer of the server.
PATIENCE = 3.0


def load(name: str) -> nn.Module:
    """timm's network NAME or NAME.TAG with its trained weights, without classifier.

    Raises UserError for an unknown name, and if the weights are neither cached nor can be downloaded.
    """
    if name not in timm.list_models() and name not in timm.list_pretrained():
        raise UserError(f"timm:{name}: timm has no such model; {nearest(name, timm.list_models()).split(':')[0]}")
    config = timm.models.get_pretrained_cfg(name)
    stored = None
    if config is not None and not _answers(_address(config)):  # timm would retry for 47 seconds
        stored = _stored(config)
        if stored is None:
            raise _missing(name, f"no answer from {_address(config)}")
    try:
        overlay = None if stored is None else {"file": stored}
        made = timm.create_model(name, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay)
    except Exception as error:
        raise _missing(name, reason(error)) from None
    return cast(nn.Module, made)


def _missing(name: str, why: str) -> UserError:
    plain = name.partition(".")[0]
    return UserError(
        f"timm:{name}: its weights are not cached here and cannot be downloaded ({why}); "
        f"give a file of weights, FILE#{plain}, or random:{plain} for an untrained network"
    )


def _address(config: timm.models.PretrainedCfg) -> str:
    """The address from which timm would download the weights."""
    if config.hf_hub_id:
        from huggingface_hub import constants

        return str(constants.ENDPOINT)
    return str(config.url or "")


def _stored(config: timm.models.PretrainedCfg) -> str | None:
    """The file of the weights in the cache of the Hugging Face hub or of torch, where timm looks for it."""
    if not config.hf_hub_id:
        path = Path(torch.hub.get_dir(), "checkpoints", PurePosixPath(config.url or "/").name)
        return str(path) if path.is_file() else None
    from huggingface_hub import try_to_load_from_cache

    repository, _, revision = config.hf_hub_id.partition("@")
    names = (config.hf_hub_filename,) if config.hf_hub_filename else ("model.safetensors", "pytorch_model.bin")
    paths = (try_to_load_from_cache(repository, one, revision=revision or None) for one in names)
    return next((path for path in paths if isinstance(path, str)), None)


def _answers(address: str) -> bool:
    """Whether a server answers anything within PATIENCE; asked in a thread, since resolving a name may hang.

    True in the hub's offline mode, which needs no server.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or not address.startswith("http"):
        return True
    answered = threading.Event()

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=PATIENCE).close()
        except urllib.error.HTTPError:  # an answer
            pass
        except (OSError, ValueError) as error:
            if "SSL" not in str(error):  # certificates are left to timm
                return
        answered.set()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE + 1)
    return answered.is_set()
