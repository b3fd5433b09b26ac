"""ONNX: writes a backbone as a graph, and computes its features with onnxruntime."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hexa.config import UserError, reason
from hexa.runtime.packages import import_extra
from hexa.weights.metadata import metadata_of
from hexa.weights.pretrained import Backbone

#: Largest size of the tensors in bytes; protobuf limits a file to 2 GiB.
_LARGEST = 2**31 - 2**24
INPUT = "images"
OUTPUT = "features"


def check_packages() -> None:
    """Raise UserError if a package that the export needs is not installed."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        import_extra(package, "onnx", "--to onnx")


def write(backbone: Backbone, path: Path) -> int:
    """Write the graph of `backbone` in eval mode to a file; return its number of tensors.

    Input `images`: float32 [batch, C, S, S], RGB or other channels, pixels in [0, 1], S =
    image_size, any batch; normalisation is part of the graph. Output `features`: float32 [batch,
    num_features]. The metadata describe both, in addition to `metadata.metadata_of`. Raises
    UserError if torch cannot export this network.
    """
    size = backbone.image_size
    channels = len(backbone.mean)
    if sum(value.nbytes for value in backbone.state_dict().values()) > _LARGEST:
        problem = "an ONNX file has at most 2 GiB, and this network is larger"
        raise UserError(f"--to onnx: {problem}; export --to timm")
    try:
        with warnings.catch_warnings(), _plain_attention(backbone):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                backbone.cpu().eval(),
                (torch.rand(2, channels, size, size),),
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes={INPUT: {0: torch.export.Dim("batch")}},
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        problem = reason(error.__cause__ or error, 200)
        name = backbone.network_config.name
        raise UserError(f"--to onnx: torch cannot export {name} ({problem})") from None
    assert program is not None
    said = {
        "input": described(backbone),
        "output": f"{OUTPUT} [N, {backbone.num_features}], float32",
    }
    program.model.metadata_props.update(metadata_of(backbone) | said)
    program.save(path)
    return len(program.model.graph.initializers)


def described(backbone: Backbone) -> str:
    """Return the input of the graph: name, shape, type and range, such as `images [N, 3, 224, 224],
    float32 in [0, 1], RGB`."""
    size = backbone.image_size
    channels = len(backbone.mean)
    colours = ", RGB" if channels == 3 else ""
    return f"{INPUT} [N, {channels}, {size}, {size}], float32 in [0, 1]{colours}"


@contextmanager
def _plain_attention(network: nn.Module) -> Iterator[None]:
    """Disable timm's fused attention, which torch cannot export if positions are attention
    biases."""
    fused = [module for module in network.modules() if getattr(module, "fused_attn", False)]
    try:
        for module in fused:
            module.fused_attn = False  # type: ignore[assignment]
        yield
    finally:
        for module in fused:
            module.fused_attn = True  # type: ignore[assignment]


def features(path: Path, images: Tensor) -> Tensor:
    """Return the features that onnxruntime computes on the CPU: pixels in [0, 1], [B, C, S, S] ->
    [B, D]."""
    runtime: Any = import_extra("onnxruntime", "onnx", "an ONNX file")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])
