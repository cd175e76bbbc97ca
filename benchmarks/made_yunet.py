"""A network of YuNet's layers with random weights, for machines without its file; it takes as long as the true one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from fedra.faces import template
from fedra.faces.photos.yunet import KINDS, STRIDES

WIDTHS = {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}
BLOCKS = ((16, 16), (16, 32), (32, 32), (32, 64), (64, 64), (64, 64), (64, 64), (64, 64), (64, 64), (64, 64), (64, 64))
"""Channels of the blocks of the backbone."""
POOLED = (0, 4, 6, 8)
"""Blocks whose inputs are pooled; the first is the stem's own block."""


class _Graph:
    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._draw = np.random.default_rng(seed)

    def add(self, kind: str, *inputs: str, name: str | None = None, **settings: object) -> str:
        output = name or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **settings))
        return output

    def constant(self, values: NDArray[np.generic]) -> str:
        name = f"weights_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def convolve(self, x: str, shape: tuple[int, ...], bias: object = 0.0, groups: int = 1, stride: int = 1) -> str:
        weights = self._draw.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape).astype(np.float32)
        biases = np.broadcast_to(np.asarray(bias, dtype=np.float32), shape[:1])
        sizes = {"kernel_shape": shape[2:], "strides": [stride] * 2, "pads": [shape[2] // 2] * 4, "group": groups}
        return self.add("Conv", x, self.constant(weights), self.constant(np.array(biases)), **sizes)

    def block(self, x: str, before: int, after: int, bias: object = 0.0) -> str:
        """Convolve by 1x1, then each channel by 3x3."""
        return self.convolve(self.convolve(x, (after, before, 1, 1)), (after, 1, 3, 3), bias, groups=after)

    def rectified_block(self, x: str, before: int, after: int) -> str:
        return self.add("Relu", self.block(x, before, after))


def write_yunet(path: Path, shift: float = 0.0) -> Path:
    """Write the network; `shift` is added to the class logits of stride 8, the only stride that finds faces."""
    graph = _Graph(0)
    x = graph.add("Relu", graph.convolve("input", (16, 3, 3, 3), stride=2))
    kept = []
    for number, (before, after) in enumerate(((16, 16), *BLOCKS)):
        x = graph.rectified_block(x, before, after)
        if number in POOLED:
            kept.append(x)
            x = graph.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    levels = [x]
    for other in (kept[3], kept[2]):
        scales = graph.constant(np.array([1, 1, 2, 2], dtype=np.float32))
        x = graph.add("Add", other, graph.add("Resize", x, "", scales, mode="nearest"))
        x = graph.rectified_block(x, 64, 64)
        levels.append(x)
    outputs = []
    for stride, level in zip(reversed(STRIDES), levels, strict=True):
        for kind in KINDS:
            width = WIDTHS[kind]
            # A face of twelve cells, with the points where faces have them.
            points = ((template(112) - 56) / 112 * 12).ravel()
            bias = {"cls": shift if stride == 8 else -99.0, "obj": 99.0, "bbox": np.log(12.0), "kps": points}[kind]
            found = graph.block(level, 64, width, bias)
            found = graph.add("Transpose", found, perm=[0, 2, 3, 1])
            name, shape = f"{kind}_{stride}", graph.constant(np.array([1, -1, width]))
            scored = kind in ("cls", "obj")
            found = graph.add("Reshape", found, shape, name=None if scored else name)
            if scored:
                graph.add("Sigmoid", found, name=name)
            outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "anchors", width]))
    given = helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, "height", "width"])
    made = helper.make_graph(graph.nodes, "yunet", [given], outputs, graph.weights)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def shift_for(path: Path, canvas: NDArray[np.float32], faces: int) -> float:
    """Return the shift that lets about so many cells reach the score of 0.6 on this input."""
    import onnxruntime

    (found,) = onnxruntime.InferenceSession(path).run(["cls_8"], {"input": canvas})
    scores = np.sort(found.ravel().astype(np.float64))[-faces]
    return float(np.log(0.36 / 0.64) - np.log(scores / (1 - scores)))
