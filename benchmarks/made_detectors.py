"""Networks of the layers of YuNet and MTCNN with random weights, for machines without their files: as fast as these."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from fedra.faces import template
from fedra.faces.photos.mtcnn import FILES
from fedra.faces.photos.yunet import KINDS, STRIDES

Side = int | str
BLOCKS = ((16, 16), (16, 16), (16, 32), (32, 32), (32, 64), *[(64, 64)] * 7)
"""Channels of the blocks of YuNet's backbone."""
POOLED = (0, 4, 6, 8)
"""Blocks whose outputs are pooled."""
CASCADE: tuple[tuple[Side, Sequence[tuple[int, int, int]], int], ...] = (
    ("side", ((10, 3, 2), (16, 3, 0), (32, 3, 0)), 0),
    (24, ((28, 3, 3), (48, 3, 3), (64, 2, 0)), 128),
    (48, ((32, 3, 3), (64, 3, 3), (64, 3, 2), (128, 2, 0)), 256),
)
"""MTCNN's networks: input side; channels, kernel and pooling of the convolutions; neurons (0: fully convolutional)."""


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._draw = np.random.default_rng(0)

    def add(self, kind: str, *inputs: str, name: str | None = None, **settings: object) -> str:
        output = name or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **settings))
        return output

    def constant(self, values: object, dtype: type = np.float32) -> str:
        name = f"weights_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, dtype=dtype), name))
        return name

    def random(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant(self._draw.normal(0, scale * (2 / np.prod(shape[1:])) ** 0.5, shape))

    def convolve(
        self,
        x: str,
        shape: tuple[int, ...],
        bias: object = 0.0,
        *,
        groups: int = 1,
        stride: int = 1,
        pad: bool = True,
        scale: float = 1.0,
    ) -> str:
        biases = self.constant(np.broadcast_to(np.asarray(bias), shape[:1]))
        pads = [shape[2] // 2 if pad else 0] * 4
        weights = self.random(*shape, scale=scale)
        return self.add("Conv", x, weights, biases, strides=[stride] * 2, pads=pads, group=groups)

    def block(self, x: str, before: int, after: int, bias: object = 0.0, scale: float = 1.0) -> str:
        """Convolve by 1x1, then each channel by 3x3."""
        x = self.convolve(x, (after, before, 1, 1), scale=scale)
        return self.convolve(x, (after, 1, 3, 3), bias, groups=after)

    def save(self, path: Path, shape: Sequence[Side], outputs: dict[str, Sequence[Side]]) -> None:
        given = helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)
        found = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sides) for name, sides in outputs.items()]
        graph = helper.make_graph(self.nodes, path.stem, [given], found, self.weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def write_yunet(path: Path, shift: float = 0.0) -> None:
    """Write a YuNet; `shift` is added to the class logits of stride 8, the only stride that finds faces."""
    graph = _Graph()
    x = graph.add("Relu", graph.convolve("input", (16, 3, 3, 3), stride=2, scale=1 / 255))
    pooled = []
    for number, (before, after) in enumerate(BLOCKS):
        x = graph.add("Relu", graph.block(x, before, after))
        if number in POOLED:
            pooled.append(x)
            x = graph.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    levels = [x]
    for other in (pooled[3], pooled[2]):
        x = graph.add("Add", other, graph.add("Resize", x, "", graph.constant([1, 1, 2, 2]), mode="nearest"))
        x = graph.add("Relu", graph.block(x, 64, 64))
        levels.append(x)
    # A face of twelve cells, with the points where faces have them.
    biases: dict[str, object] = {"obj": 99.0, "bbox": np.log(12), "kps": (template(112) - 56).ravel() / 112 * 12}
    for stride, level in zip(reversed(STRIDES), levels, strict=True):
        for kind, width in KINDS.items():
            bias = biases.get(kind, shift if stride == 8 else -99.0)
            found = graph.block(level, 64, width, bias, scale=0.1 if kind == "cls" else 0.01)
            found = graph.add("Transpose", found, perm=[0, 2, 3, 1])
            names = (None, f"{kind}_{stride}") if kind in ("cls", "obj") else (f"{kind}_{stride}", None)
            found = graph.add("Reshape", found, graph.constant([1, -1, width], np.int64), name=names[0])
            if names[1]:
                graph.add("Sigmoid", found, name=names[1])
    outputs = {f"{kind}_{stride}": [1, "cells", width] for kind, width in KINDS.items() for stride in STRIDES}
    graph.save(path, [1, 3, "height", "width"], outputs)


def shift_for(path: Path, canvas: NDArray[np.float32], cells: int) -> float:
    """Return the shift that lets so many cells reach the score of 0.6 on this input."""
    import onnxruntime

    (found,) = onnxruntime.InferenceSession(path).run(["cls_8"], {"input": canvas})
    score = np.sort(found.ravel().astype(np.float64))[-cells]
    return float(np.log(0.36 / 0.64) - np.log(score / (1 - score)))


def write_mtcnn(folder: Path) -> None:
    """Write MTCNN's three networks."""
    for name, (side, layers, neurons) in zip(FILES, CASCADE, strict=True):
        graph, x, before, left = _Graph(), "input", 3, 0 if isinstance(side, str) else side
        for after, kernel, pool in layers:
            x = graph.convolve(x, (after, before, kernel, kernel), pad=False)
            x = graph.add("PRelu", x, graph.constant(np.full((after, 1, 1), 0.25)))
            before, left = after, left - kernel + 1
            if pool:
                x = graph.add("MaxPool", x, kernel_shape=[pool] * 2, strides=[2, 2], ceil_mode=1)
                left = -(-(left - pool) // 2) + 1
        if neurons:
            x = graph.add("Gemm", graph.add("Flatten", x), graph.random(neurons, before * left**2), transB=1)
            x, before = graph.add("PRelu", x, graph.constant([0.25])), neurons
        outputs = {"scores": 2, "moves": 4} | ({"points": 10} if side == 48 else {})
        for output, width in outputs.items():
            last = None if output == "scores" else output
            scale = 1.0 if output == "scores" else 0.05
            if neurons:
                found = graph.add("Gemm", x, graph.random(width, before, scale=scale), transB=1, name=last)
            else:
                found = graph.add("Conv", x, graph.random(width, before, 1, 1, scale=scale), name=last)
            if last is None:
                graph.add("Softmax", found, axis=1, name=output)
        sides = ["height", "width"] if isinstance(side, str) else [side, side]
        tail = [] if neurons else ["rows", "columns"]
        graph.save(folder / name, ["n", 3, *sides], {key: ["n", width, *tail] for key, width in outputs.items()})
