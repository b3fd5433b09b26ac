"""How others name the tensors of a ResNet or an EfficientNet, and what torchvision or timm call them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from hexa.config import UserError

State = Mapping[str, Tensor]

#: conv1, bn1, ReLU and pooling come before it.
_FIRST_STAGE = 4
_STAGE = re.compile(r"^(.*?)(\d+)\.(\d+)\.conv1\.weight$")


def to_detectron2(name: str) -> str:
    """Detectron2's name of a ResNet's tensor: layer1.0.bn2.bias -> res2.0.conv2.norm.bias, conv1 -> stem.conv1."""
    name = re.sub(r"^layer(\d)", lambda found: f"res{int(found[1]) + 1}", name)
    if not name.startswith("res"):
        name = f"stem.{name}"
    name = re.sub(r"\bbn(\d)\.", r"conv\1.norm.", name)
    return name.replace("downsample.0.", "shortcut.").replace("downsample.1.", "shortcut.norm.")


def of_detectron2(name: str) -> str:
    """The inverse of `to_detectron2`."""
    name = name.removeprefix("backbone.bottom_up.").removeprefix("backbone.").removeprefix("stem.")
    name = re.sub(r"^res(\d)", lambda found: f"layer{int(found[1]) - 1}", name)
    name = re.sub(r"\bconv(\d)\.norm\.", r"bn\1.", name)
    return name.replace("shortcut.norm.", "downsample.1.").replace("shortcut.", "downsample.0.")


def plain(state: State) -> dict[str, Tensor]:
    """The state with torchvision's names where VISSL, Detectron2 or lightly renamed a ResNet's; others stay.

    VISSL: trunk._feature_blocks.conv1 … · Detectron2: stem.conv1, res2.0.conv1.norm … · lightly: a Sequential of the
    ResNet's children, backbone.0 for conv1, 1 for bn1 and 4 … 7 for the stages.
    Raises UserError for lightly's own small ResNet in a Sequential.
    """
    if any("_feature_blocks." in key for key in state):
        return {key.split("_feature_blocks.")[1]: value for key, value in state.items() if "_feature_blocks." in key}
    if any(key.endswith("stem.conv1.weight") for key in state):
        ours = (key for key in state if re.search(r"(^|\.)(stem|res\d)\.", key))
        return {of_detectron2(key): state[key] for key in ours}
    return _unnumbered(state)


def _unnumbered(state: State) -> dict[str, Tensor]:
    """lightly's numbers as names; the prefix before them stays."""
    found = [match for key in state if (match := _STAGE.match(key)) and f"{match[1]}0.weight" in state]
    if not found:
        return dict(state)
    # networks beside the first (momentum twins) come later in the file
    prefix, first = found[0][1], min(int(match[2]) for match in found if match[1] == found[0][1])
    if first != _FIRST_STAGE:
        raise UserError(
            "lightly's small ResNet, as a Sequential of its children, has no ReLU behind its first batch-norm: no "
            "network that is known here; evaluate it by python:MODULE:CALLABLE"
        )
    names = {0: "conv1", 1: "bn1", **{first + stage: f"layer{stage + 1}" for stage in range(4)}}
    renamed = {}
    for key, value in state.items():
        number, _, rest = key.removeprefix(prefix).partition(".")
        if key.startswith(prefix) and number.isdecimal() and int(number) in names:
            renamed[f"{prefix}{names[int(number)]}.{rest}"] = value
        else:
            renamed[key] = value
    return renamed


#: Parts of a block in efficientnet_pytorch's words and in timm's, which count from the first convolution: of a block
#: that begins with an expansion, and of one that does not.
_EXPANDED = {
    **{"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"},
    **{"_project_conv": "conv_pwl", "_bn2": "bn3"},
}
_PLAIN = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_AROUND = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}


def is_efficientnet(state: State) -> bool:
    """Whether the names are those of efficientnet_pytorch and efficientnet_lite_pytorch."""
    return any(key.endswith("_conv_stem.weight") for key in state)


def of_efficientnet(state: State, blocks: Sequence[str]) -> dict[str, Tensor]:
    """The state with timm's names, without the classifier. blocks: timm's of the network in order, blocks.0.0 …

    Names that are not known, and blocks beyond the last, stay as they are.
    """
    stem = next(key for key in state if key.endswith("_conv_stem.weight"))
    prefix = stem.removesuffix("_conv_stem.weight")
    renamed = {}
    for key, value in state.items():
        name = key.removeprefix(prefix)
        first, _, rest = name.partition(".")
        if first == "_fc" or not key.startswith(prefix):
            continue
        if first in _AROUND:
            name = f"{_AROUND[first]}.{rest}"
        elif first == "_blocks":
            number, _, inner = rest.partition(".")
            part, _, kind = inner.partition(".")
            parts = _EXPANDED if f"{prefix}_blocks.{number}._expand_conv.weight" in state else _PLAIN
            if number.isdecimal() and int(number) < len(blocks) and part in parts:
                name = f"{blocks[int(number)]}.{parts[part]}.{kind}"
        renamed[name] = value
    return renamed
