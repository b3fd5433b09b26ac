"""Folders of transformers, timm and OpenCLIP: a config.json describes the network, next to files of
weights.

Only values are read from a config: no code that it names is run, and no address in it is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import timm

from hexa.config import UserError, nearest, some
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig
from hexa.runtime import parsing
from hexa.weights import files
from hexa.weights.files import Weights
from hexa.weights.layouts import TABLE, WIDTHS
from hexa.weights.metadata import described
from hexa.weights.preparation import Preparation, assumed, of_timm, of_timms_values

CONFIG = "config.json"
OPEN_CLIP = "open_clip_config.json"
PROCESSOR = "preprocessor_config.json"
#: Files of weights in a folder by preference; an index lists the files of shards.
_WEIGHTS = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
    *("open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
)
_MOST_SHARDS = 1000
#: Suffixes of other files of weights; a folder may contain one such file.
_SUFFIXES = (".safetensors", ".bin", ".pth")
#: timm's networks for each `model_type` of transformers: W stands for the name of the width, P for
#: the patch size in pixels. The first existing one is used, with options for the differences.
_NETWORKS: dict[str, list[str]] = TABLE["transformers"]
#: Values of `model_type` that use the networks of another value.
_ALIKE: dict[str, str] = TABLE["alike"]
#: timm's names of activations by transformers' names.
_ACTIVATIONS: dict[str, str] = TABLE["activations"]
#: Fields of OpenCLIP's vision_cfg that hexa supports or may ignore, and their usual values.
_VISION: dict[str, Any] = TABLE["open_clip"]
#: Pillow's numbers of interpolations.
_RESAMPLE = {2: "bilinear", 3: "bicubic"}


class Folder(NamedTuple):
    """The content of a folder of weights.

    config: the network, if config.json describes it.
    preparation: of images, if known.
    """

    weights: Weights
    config: NetworkConfig | None
    preparation: Preparation | None


def is_one(folder: Path) -> bool:
    """True if a folder has a config that `read` supports, or weights with a usual name."""
    return any((folder / name).is_file() for name in (CONFIG, OPEN_CLIP, *_WEIGHTS))


def names_network(path: Path) -> bool:
    """True if this file of weights is next to a config that describes its network."""
    if path.name not in _WEIGHTS or path.suffix == ".json":
        return False
    fields = _json(path.parent / CONFIG)
    return "architecture" in fields or "model_type" in fields or (path.parent / OPEN_CLIP).is_file()


def read(folder: Path, named: bool = False) -> Folder:
    """Return the weights in a folder, with the network and the preparation of images that its files
    describe.

    named: the user names the network, so config.json is not used for it. Raises UserError.
    """
    weights = _weights(folder)
    fields = _json(folder / CONFIG)
    config = None
    preparation = None
    with described(str(folder), "its JSON files do not describe a network"):
        if "architecture" in fields:
            return Folder(weights, *_of_timm(fields, folder / CONFIG))
        if (folder / OPEN_CLIP).is_file():
            path = folder / OPEN_CLIP
            fields = _json(path)
            config = None if named else _of_open_clip(fields, path)
            preparation = _of_processor(_open_clips_processor(fields), path)
        elif "model_type" in fields:
            config = None if named else _of_transformers(fields, folder / CONFIG)
        path = folder / PROCESSOR
        processor: Any = _json(path)
        if not processor:
            path = folder / "processor_config.json"  # of transformers 5
            processor = _json(path).get("image_processor")
        if isinstance(processor, dict):
            preparation = _of_processor(processor, path)
    return Folder(weights, config, preparation)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    fields = parsing.read_json(path, "copy it again")
    if not isinstance(fields, dict):
        raise UserError(f"{path}: is not a JSON object")
    return fields


def _weights(folder: Path) -> Weights:
    """Return the tensors of the folder's file of weights, or of all files that its index lists."""
    name = next((name for name in _WEIGHTS if (folder / name).is_file()), None)
    if name is None:
        others = [path for suffix in _SUFFIXES for path in folder.glob(f"*{suffix}")]
        if len(others) != 1:
            raise UserError(
                f"{folder}: has no {_WEIGHTS[0]} or {_WEIGHTS[2]}; "
                "give the file of weights, FILE#NETWORK"
            )
        return replace(files.read(others[0]), where=str(folder))
    path = folder / name
    if path.suffix != ".json":
        return replace(files.read(path), where=str(folder))
    listed = _json(path).get("weight_map")
    shards = sorted(set(listed.values())) if isinstance(listed, dict) else []
    are_plain = all(isinstance(one, str) and Path(one).name == one for one in shards)
    if not 0 < len(shards) <= _MOST_SHARDS or not are_plain:
        raise UserError(f"{path}: has no weight_map of files in this folder; copy it again")
    missing = [one for one in shards if not (folder / one).is_file()]
    if missing:
        raise UserError(f"{folder}: lacks {some(missing)}, which {name} lists; copy it again")
    return files.read_all([folder / one for one in shards], str(folder))


# -- timm --------------------------------------------------------------------------------------------------------------


def _of_timm(fields: Mapping[str, Any], path: Path) -> tuple[NetworkConfig, Preparation]:
    """Return the network of a timm hub folder, as timm.create_model('local-dir:FOLDER',
    num_classes=0) builds it."""
    name = str(fields["architecture"])
    if name not in timm.list_models():
        near = nearest(name, timm.list_models())
        raise UserError(f"{path}: timm has no network '{name}'; {near}")
    cfg = dict(fields.get("pretrained_cfg") or fields)
    options = dict(fields.get("model_args") or {})
    if cfg.get("global_pool"):
        options.setdefault("global_pool", cfg["global_pool"])
    size = cfg.get("input_size")
    if cfg.get("fixed_input_size") and size:
        options.setdefault("img_size", size[-1])
    for ignored in ("num_classes", "drop_rate", "drop_path_rate", "proj_drop_rate"):
        options.pop(ignored, None)
    channels = options.pop("in_chans", 3)
    if "img_size" in options:
        options["img_size"] = _side(options["img_size"], path)
    config = NetworkConfig(name=name, channels=channels, options=_needed(name, options))
    return config, of_timms_values(cfg, str(path))


def _needed(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from timm's defaults."""
    outline: Any = backbones.outline(NetworkConfig(name=name))
    own = {"global_pool": getattr(outline, "global_pool", None)}
    grid: Any = getattr(outline, "patch_embed", None)
    if getattr(grid, "img_size", None) is not None:
        own["img_size"] = grid.img_size[0]
    return {key: value for key, value in options.items() if key not in own or own[key] != value}


# -- transformers ------------------------------------------------------------------------------------------------------


def _of_transformers(fields: Mapping[str, Any], path: Path) -> NetworkConfig | None:
    """Return the network of a transformers config.json; None for a ResNet, which is identified by
    its tensors."""
    kind = str(fields["model_type"])
    kind = _ALIKE.get(kind, kind)
    if kind == "resnet":
        for name, usual in TABLE["resnet"].items():
            if fields.get(name, usual) != usual:
                raise UserError(f"{path}: timm has no ResNet with {name}={fields[name]}")
        return None
    if isinstance(fields.get("vision_config"), dict):
        fields = fields["vision_config"]
    if kind == "clip_vision_model":
        fields = {**TABLE["clip defaults"], **fields}
    gated = bool(fields.get("use_swiglu_ffn") or fields.get("use_gated_mlp"))
    key = f"{kind} gated" if gated else kind
    if key not in _NETWORKS:
        raise UserError(
            f"{path}: model_type '{kind}' is not known; known: {known()}; "
            f"if timm has this network, name it: {path.parent}#NETWORK"
        )
    width = int(fields["hidden_size"])
    hidden = fields.get("intermediate_size")
    if hidden is None:
        hidden = int(width * float(fields.get("mlp_ratio", 4)))
        # width of DINOv2's gated layers; timm counts both halves
        hidden = 2 * ((int(hidden * 2 / 3) + 7) // 8 * 8) if gated else hidden
    activation = str(fields.get("hidden_act", "gelu"))
    if activation not in _ACTIVATIONS:
        raise UserError(f"{path}: hidden_act '{activation}' is not known")
    # DINOv2's gated layers use silu for any hidden_act
    if kind == "dinov3_vit" and activation != ("silu" if gated else "gelu"):
        layers = "gated layers" if gated else "layers"
        raise UserError(f"{path}: timm's DINOv3 has no {layers} with hidden_act '{activation}'")
    values = {**TABLE["defaults"], **fields}
    wanted = {ours: values[theirs] for ours, theirs in TABLE["fields"].items()}
    wanted["patch_size"] = _side(values["patch_size"], path)
    wanted["img_size"] = _side(values["image_size"], path)
    wanted["hidden"] = int(hidden)
    wanted["act_layer"] = "gelu" if gated else _ACTIVATIONS[activation]
    return _with_options(_NETWORKS[key], wanted, int(values["num_channels"]))


def known() -> str:
    """Return the model_types of transformers that hexa supports, as text."""
    return ", ".join(sorted({*(key for key in _NETWORKS if " " not in key), *_ALIKE, "resnet"}))


def _side(value: Any, path: Path) -> int:
    """Return a side in pixels, also if it is given as two equal sides."""
    sides = set(value) if isinstance(value, list) else {value}
    if len(sides) > 1:
        raise UserError(f"{path}: {value} is not square; hexa builds networks for square images")
    return int(sides.pop())


def _with_options(names: list[str], wanted: Mapping[str, Any], channels: int = 3) -> NetworkConfig:
    """Return the first of these networks that timm has, with options for the differences."""
    word = WIDTHS.get(wanted["embed_dim"], "?")
    patch = str(wanted["patch_size"])
    named = [name.replace("W", word).replace("P", patch) for name in names]
    name = next(name for name in named if name in timm.list_models())
    network: Any = backbones.outline(NetworkConfig(name=name))
    block = network.blocks[0]
    first = block.mlp.fc1_g if hasattr(block.mlp, "fc1_g") else block.mlp.fc1
    rotary = network.pos_embed is None
    own = {
        "embed_dim": network.embed_dim,
        "depth": len(network.blocks),
        "num_heads": block.attn.num_heads,
        "patch_size": network.patch_embed.patch_size[0],
        "norm_eps": network.norm.eps,
        "act_layer": "gelu",
    }
    if rotary:
        own["rope_temperature"] = 100.0
    else:
        own["img_size"] = network.patch_embed.img_size[0]
        own["qkv_bias"] = True
    options = {key: wanted[key] for key, value in own.items() if wanted.get(key, value) != value}
    tokens = network.reg_token.shape[1] if network.reg_token is not None else 0
    if wanted.get("registers", tokens) != tokens:
        options["num_reg_tokens" if rotary else "reg_tokens"] = wanted["registers"]
    width = wanted["embed_dim"]
    ratio = wanted["hidden"] / width
    if ratio != first.out_features / network.embed_dim:
        # timm rounds down
        options["mlp_ratio"] = (
            ratio if int(width * ratio) == wanted["hidden"] else ratio + 0.5 / width
        )
    if wanted.get("init_values") is not None:
        options["init_values"] = wanted["init_values"]
    return NetworkConfig(name=name, channels=channels, options=options)


# -- OpenCLIP ----------------------------------------------------------------------------------------------------------


def _of_open_clip(fields: Mapping[str, Any], path: Path) -> NetworkConfig:
    """Return the vision transformer of an open_clip_config.json."""
    model = fields["model_cfg"]
    given = {key: value for key, value in model["vision_cfg"].items() if value not in (None, False)}
    odd = sorted(given.keys() - _VISION.keys())
    if isinstance(given.get("layers"), list):
        odd.append("ResNet layers")
    if odd:
        what = some(odd)
        raise UserError(f"{path}: a tower with {what}; name timm's: {path.parent}#NETWORK")
    vision = _VISION | given
    width = int(vision["width"])
    wanted: dict[str, Any] = {
        "embed_dim": width,
        "depth": int(vision["layers"]),
        "num_heads": width // int(vision["head_width"]),
        "patch_size": _side(vision["patch_size"], path),
        "img_size": _side(vision["image_size"], path),
        "hidden": int(width * float(vision["mlp_ratio"])),
        "act_layer": "quick_gelu" if model.get("quick_gelu") else "gelu",
        "init_values": vision["ls_init_value"],
    }
    return _with_options(_NETWORKS["clip_vision_model"], wanted)


def _open_clips_processor(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert OpenCLIP's preprocess_cfg to the fields of a transformers image processor."""
    given = fields.get("preprocess_cfg") or {}
    of_clip = of_timm("vit_base_patch32_clip_224.openai")
    return {
        "image_mean": given.get("mean") or of_clip.mean,
        "image_std": given.get("std") or of_clip.std,
        "resample": 2 if given.get("interpolation") == "bilinear" else 3,
        "size": given.get("size"),
    }


# -- preparation of images ---------------------------------------------------------------------------------------------


def _of_processor(fields: Mapping[str, Any], path: Path) -> Preparation:
    """Return the preparation of images by a transformers image processor."""
    values: dict[str, Any] = {}
    if not fields.get("do_normalize", True):
        values |= {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    elif fields.get("image_mean") is not None and fields.get("image_std") is not None:
        values |= {"mean": fields["image_mean"], "std": fields["image_std"]}
    if fields.get("resample") is not None:
        values["interpolation"] = _RESAMPLE.get(fields["resample"], "bicubic")
    shorter = _pixels(fields.get("size"))
    crop = _pixels(fields.get("crop_size")) if fields.get("do_center_crop", True) else None
    size = crop or shorter
    share = fields.get("crop_pct")
    if crop and shorter and crop <= shorter:
        values["crop"] = crop / shorter
    elif isinstance(share, int | float):
        values["crop"] = share
    elif size:
        values["crop"] = 1.0
    if size:
        values["size"] = size
    usual = assumed()
    origins = {**usual.origins, **dict.fromkeys(values, str(path))}
    return Preparation(**{**usual.values(), **values}, origins=origins)


def _pixels(size: Any) -> int | None:
    """Return a transformers size, a number or a mapping, as the shorter side in pixels."""
    if isinstance(size, Mapping):
        sides = [
            value for key, value in size.items() if key in ("shortest_edge", "height", "width")
        ]
        size = min(sides) if sides else None
    if isinstance(size, list):
        size = min(size)
    return None if size is None else int(size)
