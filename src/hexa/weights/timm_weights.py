"""timm's weights, downloaded or cached; without a connection, an error within seconds."""

from __future__ import annotations

import urllib.error
import urllib.request

import timm
from huggingface_hub import constants
from torch import nn

from hexa.config import UserError, nearest, reason

#: Seconds to wait for the server's first answer.
PATIENCE = 3.0


def load(name: str) -> nn.Module:
    """Return timm's network NAME or NAME.TAG with its trained weights, without classifier.

    Raises UserError for an unknown name, and if the weights are neither cached nor can be
    downloaded.
    """
    if name not in timm.list_models() and name not in timm.list_pretrained():
        raise UserError(f"timm:{name}: timm has no such model; {nearest(name, timm.list_models())}")
    before = constants.HF_HUB_OFFLINE
    offline = before or not _answers(constants.ENDPOINT)
    try:
        constants.HF_HUB_OFFLINE = offline  # otherwise timm would retry for 47 seconds
        network: nn.Module = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:
        plain = name.partition(".")[0]
        why = f"no answer from {constants.ENDPOINT}" if offline else reason(error)
        raise UserError(
            f"timm:{name}: its weights are not cached here and cannot be downloaded ({why}); "
            f"give a file of weights, FILE#{plain}, or random:{plain} for an untrained network"
        ) from None
    finally:
        constants.HF_HUB_OFFLINE = before
    return network


def _answers(address: str) -> bool:
    """Return whether a server answers anything within PATIENCE."""
    request = urllib.request.Request(address, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=PATIENCE).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError) as error:
        return "SSL" in str(error)  # certificates are left to timm
    return True
