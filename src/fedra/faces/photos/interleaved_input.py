"""Networks that read photographs as they are decoded: interleaved bytes instead of planes of floats."""

from __future__ import annotations

from fedra.errors import ConfigError


def read_interleaved(content: bytes, name: str) -> bytes:
    """Put the split of an image into planes in front of a network.

    onnxruntime's threads, which are awake for the network anyway, do it in half of NumPy's time, with the same bits.

    Args:
        content: An ONNX network that reads floats (1, 3, H, W), blue first.
        name: The name of this input.

    Returns:
        The network with an input of bytes (1, H, W, 3), red first, in its place.
    """
    try:
        import onnx
        from onnx import TensorProto, helper
    except ImportError:
        raise ConfigError("face detection needs onnx: pip install 'fedra[faces]'") from None

    network = onnx.load_model_from_string(content)
    graph = network.graph
    inputs, nodes = list(graph.input), list(graph.node)
    planes = next(item for item in inputs if item.name == name)
    sides = [side.dim_param or side.dim_value or None for side in planes.type.tensor_type.shape.dim[2:]]
    pixels, order, ordered, split = (f"{name}_{what}" for what in ("pixels", "order", "ordered", "split"))
    bytes_input = helper.make_tensor_value_info(pixels, TensorProto.UINT8, [1, *sides, 3])
    blue_first = helper.make_tensor(order, TensorProto.INT64, [3], [2, 1, 0])
    first = [
        helper.make_node("Constant", [], [order], value=blue_first),
        helper.make_node("Transpose", [pixels], [split], perm=[0, 3, 1, 2]),
        helper.make_node("Gather", [split, order], [ordered], axis=1),
        helper.make_node("Cast", [ordered], [name], to=TensorProto.FLOAT),
    ]
    del graph.input[:], graph.node[:]
    graph.input.extend([bytes_input if item is planes else item for item in inputs])
    graph.node.extend(first + nodes)
    changed: bytes = network.SerializeToString()
    return changed
