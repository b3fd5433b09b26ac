"""Names of a backbone's tensors in files of other software.

`LAYOUTS` maps the names of timm's and torchvision's networks to those of each layout; `renamed` goes back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from hexa.weights.files import State
from hexa.weights.preparation import Preparation, published

_WIDER = ("wide_resnet50_2", "wide_resnet101_2", "resnext50_32x4d", "resnext101_32x8d")
#: Networks by family, with which a state is compared unless the user names its network.
NETWORKS = {
    "ResNet": (*(f"resnet{depth}" for depth in (18, 34, 50, 101, 152)), *_WIDER),
    # efficientnet_pytorch pads convolutions as TensorFlow does and adds 1e-3 to variances in batch-norms; timm's
    # networks without tf_ have the same tensors but do neither
    "EfficientNet": tuple(f"tf_efficientnet_lite{number}" for number in range(5)),
}

#: Words in timm's names of vision transformers, by width.
WIDTHS = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge", 1536: "giant"}

Renames = tuple[tuple[str, str], ...]
"""(pattern, replacement) pairs, applied in this order. {} in a replacement stands for the number of different matches
before this one; (a|b|c) for several tensors that are joined in this order."""

#: Names of modules that follow a network and are not part of it.
HEADS = (
    r"(fc|heads?|head_\w+|\w+_heads?|classifiers?|\w+_classifier|linear|last_linear|lin_cls|logits|pre_logits|"
    r"proj|(\w+_)?project(ion|or)s?(_\w+)?|predict(or|ion)\w*|pred|prototypes?\w*|pooler|decoder\w*|mask_token|masked_embed|queue\w*|"
    r"n_averaged|local_cls_norm|position_ids)"
)


class Layout(NamedTuple):
    """How some software names a backbone's tensors."""

    renames: Renames = ()
    """Turn the plain names of timm or torchvision into those of the layout."""
    leftovers: str = rf"{HEADS}(\.|$)"
    """A regular expression of names that are not part of the network."""
    family: str | None = None
    """The only networks that have this layout, one of NETWORKS."""


_RESNET_OF_TRANSFORMERS: Renames = (
    (r"^conv1\.", "embedder.embedder.convolution."),
    (r"^bn1\.", "embedder.embedder.normalization."),
    *((rf"^layer{n}\.(\d+)\.", rf"encoder.stages.{n - 1}.layers.\1.") for n in range(1, 5)),
    *((rf"\.conv{n}\.", f".layer.{n - 1}.convolution.") for n in range(1, 4)),
    *((rf"\.bn{n}\.", f".layer.{n - 1}.normalization.") for n in range(1, 4)),
    (r"\.downsample\.0\.", ".shortcut.convolution."),
    (r"\.downsample\.1\.", ".shortcut.normalization."),
)
_EMBEDDINGS: Renames = (
    (r"^cls_token$", "embeddings.cls_token"),
    (r"^reg_token$", "embeddings.register_tokens"),
    (r"^pos_embed$", "embeddings.position_embeddings"),
    (r"^patch_embed\.proj\.", "embeddings.patch_embeddings.projection."),
    (r"^norm\.", "layernorm."),
)
#: As transformers 4 names them in memory, and all versions in files.
_ATTENTION: Renames = (
    (r"\.attn\.qkv\.", ".attention.attention.(query|key|value)."),
    (r"\.attn\.proj\.", ".attention.output.dense."),
)
#: As transformers 5 names them in memory.
_ATTENTION_5: Renames = (
    (r"\.attn\.qkv\.", ".attention.(q_proj|k_proj|v_proj)."),
    (r"\.attn\.proj\.", ".attention.o_proj."),
)
_SCALE: Renames = ((r"\.ls(\d)\.gamma$", r".layer_scale\1.lambda1"),)
_NORMS: Renames = ((r"\.norm1\.", ".layernorm_before."), (r"\.norm2\.", ".layernorm_after."))
_DINOV3: Renames = (
    (r"^patch_embed\.proj\.", "embeddings.patch_embeddings."),
    (r"^norm\.", "norm."),
    *_EMBEDDINGS[:3],
    (r"\.gamma_(\d)$", r".layer_scale\1.lambda1"),
    (r"\.attn\.(q|v)_bias$", r".attention.\1_proj.bias"),
    *_ATTENTION_5,
    (r"\.mlp\.fc1\.", ".mlp.up_proj."),
    (r"\.mlp\.fc1_g\.", ".mlp.gate_proj."),
    (r"\.mlp\.fc1_x\.", ".mlp.up_proj."),
    (r"\.mlp\.fc2\.", ".mlp.down_proj."),
)
_TRANSFORMERS = rf"(embeddings\.(mask_token|position_ids)|{HEADS}(\.|$))"

#: The layouts by the software that writes them. Of several that have as many of a file's names, the first is chosen.
LAYOUTS = {
    "plain": Layout(),
    "kuangliu and robustness": Layout(
        ((r"\.downsample\.", ".shortcut."),),
        family="ResNet",
    ),
    "efficientnet_pytorch": Layout(
        (
            *((r"^conv_", "_conv_"), (r"^bn1\.", "_bn0."), (r"^bn2\.", "_bn1.")),
            # blocks are numbered without stages; the first has no expansion
            *((r"^blocks\.\d+\.\d+\.", "_blocks.{}."), (r"\.conv_dw\.", "._depthwise_conv.")),
            *(
                (r"^_blocks\.0\.bn", "_blocks.0._bn"),
                (r"^_blocks\.0\.conv_pw\.", "_blocks.0._project_conv."),
            ),
            *((r"\.conv_pw\.", "._expand_conv."), (r"\.conv_pwl\.", "._project_conv.")),
            *((rf"\.bn{number}\.", f"._bn{number - 1}.") for number in range(1, 4)),
        ),
        leftovers=r"_fc\.",
        family="EfficientNet",
    ),
    "Detectron2": Layout(
        (
            *((rf"^layer{stage}\.", f"res{stage + 1}.") for stage in range(1, 5)),
            *((r"\bbn(\d)\.", r"conv\1.norm."), (r"downsample\.1\.", "shortcut.norm.")),
            *((r"downsample\.0\.", "shortcut."), (r"^(?!res)", "stem.")),
        ),
        leftovers=r"(?!(stem|res\d)\.)",  # whatever is outside the ResNet
        family="ResNet",
    ),
    # the children of torchvision's ResNet by number: conv1, bn1, ReLU, pooling, stages
    "lightly": Layout(
        (
            *((rf"^layer{n}\.", f"{n + 3}.") for n in range(1, 5)),
            (r"^conv1\.", "0."),
            (r"^bn1\.", "1."),
        ),
        family="ResNet",
    ),
    "ResNet of transformers": Layout(_RESNET_OF_TRANSFORMERS, family="ResNet"),
    "OpenCLIP": Layout(
        (
            (r"^cls_token$", "class_embedding"),
            (r"^pos_embed$", "positional_embedding"),
            (r"^patch_embed\.proj\.", "conv1."),
            (r"^norm_pre\.", "ln_pre."),
            (r"^norm\.", "ln_post."),
            (r"^blocks\.", "transformer.resblocks."),
            (r"\.norm(\d)\.", r".ln_\1."),
            (r"\.ls(\d)\.gamma$", r".ls_\1.gamma"),
            (r"\.attn\.qkv\.", ".attn.in_proj_"),
            (r"\.attn\.proj\.", ".attn.out_proj."),
            (r"\.mlp\.fc1\.", ".mlp.c_fc."),
            (r"\.mlp\.fc2\.", ".mlp.c_proj."),
        )
    ),
    "CLIP of transformers": Layout(
        (
            (r"^cls_token$", "embeddings.class_embedding"),
            (r"^pos_embed$", "embeddings.position_embedding.weight"),
            (r"^patch_embed\.proj\.", "embeddings.patch_embedding."),
            (r"^norm_pre\.", "pre_layrnorm."),
            (r"^norm\.", "post_layernorm."),
            (r"^blocks\.", "encoder.layers."),
            (r"\.norm(\d)\.", r".layer_norm\1."),
            (r"\.attn\.qkv\.", ".self_attn.(q_proj|k_proj|v_proj)."),
            (r"\.attn\.proj\.", ".self_attn.out_proj."),
        ),
        _TRANSFORMERS,
    ),
    "DINOv2 of transformers": Layout(
        (*_EMBEDDINGS, (r"^blocks\.", "encoder.layer."), *_ATTENTION, *_SCALE), _TRANSFORMERS
    ),
    "DINOv2 with SwiGLU of transformers": Layout(
        (
            *(*_EMBEDDINGS, (r"^blocks\.", "encoder.layer."), *_ATTENTION, *_SCALE),
            (r"\.mlp\.fc1\.", ".mlp.weights_in."),
            (r"\.mlp\.fc2\.", ".mlp.weights_out."),
        ),
        _TRANSFORMERS,
    ),
    "DINOv2 of transformers 5": Layout(
        (*_EMBEDDINGS, (r"^blocks\.", "encoder.layer."), *_ATTENTION_5, *_SCALE), _TRANSFORMERS
    ),
    "DINOv2 with SwiGLU of transformers 5": Layout(
        (
            *(*_EMBEDDINGS, (r"^blocks\.", "encoder.layer."), *_ATTENTION_5, *_SCALE),
            (r"\.mlp\.fc1\.", ".mlp.(gate_proj|up_proj)."),
            (r"\.mlp\.fc2\.", ".mlp.down_proj."),
        ),
        _TRANSFORMERS,
    ),
    "ViT of transformers": Layout(
        (
            *(*_EMBEDDINGS, (r"^blocks\.", "encoder.layer."), *_ATTENTION, *_NORMS),
            (r"\.mlp\.fc1\.", ".intermediate.dense."),
            (r"\.mlp\.fc2\.", ".output.dense."),
        ),
        _TRANSFORMERS,
    ),
    "ViT of transformers 5": Layout(
        (*_EMBEDDINGS, (r"^blocks\.", "layers."), *_ATTENTION_5, *_NORMS), _TRANSFORMERS
    ),
    "DINOv3 of transformers": Layout((*_DINOV3, (r"^blocks\.", "layer.")), _TRANSFORMERS),
    "DINOv3 of transformers 5": Layout((*_DINOV3, (r"^blocks\.", "model.layer.")), _TRANSFORMERS),
    "ViT of torchvision": Layout(
        (
            (r"^cls_token$", "class_token"),
            (r"^pos_embed$", "encoder.pos_embedding"),
            (r"^patch_embed\.proj\.", "conv_proj."),
            (r"^norm\.", "encoder.ln."),
            (r"^blocks\.(\d+)\.", r"encoder.layers.encoder_layer_\1."),
            (r"\.norm(\d)\.", r".ln_\1."),
            (r"\.attn\.qkv\.", ".self_attention.in_proj_"),
            (r"\.attn\.proj\.", ".self_attention.out_proj."),
            (r"\.mlp\.fc1\.", ".mlp.0."),
            (r"\.mlp\.fc2\.", ".mlp.3."),
        )
    ),
}

#: How published code prepares images, by a regular expression of a tensor's path that only its files have.
PUBLISHED = {
    # their code normalises with another standard deviation of red (D22)
    r"(.*\.)?module\.projection_head\..*": published(
        "SwAV and DeepCluster-v2", std=(0.228, 0.224, 0.225)
    ),
    r"(.*\.)?module\.encoder_q\.conv1\.weight": published("MoCo and PCL"),
    r"(.*\.)?module\.encoder\.conv1\.weight": published("SimSiam"),
}


def names(layout: Layout, own: Iterable[str]) -> dict[str, str]:
    """{plain name: the layout's name} of a network's tensors; (a|b) in a name stands for several that are joined."""
    renamed = {name: name for name in own}
    for pattern, new in layout.renames:
        numbers: dict[str, int] = {}
        for name, theirs in renamed.items():
            if found := re.search(pattern, theirs):
                number = numbers.setdefault(found[0], len(numbers))
                renamed[name] = (
                    theirs[: found.start()]
                    + found.expand(new).format(number)
                    + theirs[found.end() :]
                )
    return renamed


def pieces(name: str) -> list[str]:
    """The tensors that a layout's name stands for: a.(q|k).b is a.q.b and a.k.b."""
    begin, bracket, rest = name.partition("(")
    if not bracket:
        return [name]
    choices, _, end = rest.partition(")")
    return [begin + choice + end for choice in choices.split("|")]


def renamed(layout: Layout, state: State, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state with the plain names of a network, whose own state is `own`.

    Tensors that this network does not have keep their names, except for leftovers, which are dropped.
    """
    found: dict[str, Tensor] = {}
    used: set[str] = set()
    for plain, theirs in names(layout, own).items():
        parts = pieces(theirs)
        if not all(part in state for part in parts):
            continue
        value = state[parts[0]]
        if len(parts) > 1:
            if len({state[part].shape[1:] for part in parts}) > 1 or not value.ndim:
                continue
            value = torch.cat([state[part] for part in parts])
        used.update(parts)
        missing = own[plain].ndim - value.ndim
        if layout.renames and missing > 0:  # a class token [D] for [1, 1, D]
            value = value.reshape((1,) * missing + value.shape)
        found[plain] = value
    # a head's name in one network is a normalisation's in another
    others = {
        name: value
        for name, value in state.items()
        if name not in used and not re.match(layout.leftovers, name)
    }
    return others | found


def published_for(state: State) -> Preparation | None:
    """The preparation of images by the published code that wrote a file, if its names tell."""
    for pattern, preparation in PUBLISHED.items():
        if any(re.fullmatch(pattern, name) for name in state):
            return preparation
    return None
