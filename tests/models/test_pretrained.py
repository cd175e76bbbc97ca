"""Weights from files: every known layout, mismatches told in a sentence, hostile files refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from fedra.errors import ConfigError, DataError
from fedra.models import RecognitionModel, build, load_weights

IMAGE = (3, 32, 32)
EVOLVE_BLOCKS = (
    *("conv_23", *(f"conv_3.model.{i}" for i in range(4)), "conv_34", *(f"conv_4.model.{i}" for i in range(6))),
    *("conv_45", *(f"conv_5.model.{i}" for i in range(2))),
)


def unit(prefix: str, linear: bool = False) -> list[str]:
    return [f"{prefix}.conv", f"{prefix}.bn", *(() if linear else (f"{prefix}.prelu",))]


def evolve(prefix: str = "") -> list[str]:
    """The layers of face.evoLVe's MobileFaceNet in their order."""
    blocks = [
        layer
        for block in EVOLVE_BLOCKS
        for layer in (*unit(f"{block}.conv"), *unit(f"{block}.conv_dw"), *unit(f"{block}.project", linear=True))
    ]
    end = [*unit(f"{prefix}conv_6_dw", linear=True), f"{prefix}linear", f"{prefix}bn"]
    return [*unit("conv1"), *unit("conv2_dw"), *blocks, *unit("conv_6_sep"), *end]


def xiaoccer() -> list[str]:
    blocks = [f"blocks.{block}.conv.{layer}" for block in range(15) for layer in range(8)]
    end = [*unit("linear7", linear=True), *unit("linear1", linear=True)]
    return [*unit("conv1"), *unit("dw_conv1"), *blocks, *unit("conv2"), *end]


def insightface_mbf(counts: tuple[int, int, int, int]) -> list[str]:
    first, *others = counts

    def block(prefix: str) -> list[str]:
        inside = ((part, layer) for part in range(3) for layer in range(3 if part < 2 else 2))
        return [f"{prefix}.layers.{part}.layers.{layer}" for part, layer in inside]

    def row(number: int, count: int) -> list[str]:
        return [name for i in range(count) for name in block(f"layers.{number}.layers.{i}")]

    names = [f"layers.0.layers.{i}" for i in range(3)]
    names += [f"layers.1.layers.{i}" for i in range(3)] if first == 1 else row(1, first)
    for stage, count in enumerate(others):
        names += block(f"layers.{2 + 2 * stage}") + row(3 + 2 * stage, count)
    names += [f"conv_sep.layers.{i}" for i in range(3)]
    return [*names, *(f"features.layers.0.layers.{i}" for i in range(2)), "features.layers.2", "features.layers.3"]


def insightface_iresnet(counts: tuple[int, ...]) -> list[str]:
    names = ["conv1", "bn1", "prelu"]
    for stage, count in enumerate(counts):
        for number in range(count):
            inside = ["bn1", "conv1", "bn2", "prelu", "conv2", "bn3"]
            inside += ["downsample.0", "downsample.1"] if number == 0 else []
            names += [f"layer{stage + 1}.{number}.{name}" for name in inside]
    return [*names, "bn2", "fc", "features"]


def fedfr(counts: tuple[int, ...]) -> list[str]:
    names = []
    for stage, count in enumerate(counts, start=1):
        names += [f"layer{stage}.0", f"layer{stage}.1"]
        inside = ("conv1", "prelu1", "conv2", "prelu2")
        names += [f"layer{stage}.{2 + number}.{name}" for number in range(count) for name in inside]
    return [*names, "fc"]


def public_file(model: RecognitionModel, layers: list[str]) -> dict[str, Tensor]:
    """The body's tensors under the names that a public network gives its layers, taken in order."""
    ours = [layer for layer in model.body.modules() if layer.state_dict() and not list(layer.children())]
    pairs = zip(layers, ours, strict=True)
    return {f"{name}.{leaf}": value for name, layer in pairs for leaf, value in layer.state_dict().items()}


def trained(name: str, **settings: Any) -> RecognitionModel:
    """A model whose running statistics are not those of a fresh one."""
    model = build(name, IMAGE, 4, seed=1, **settings)
    with torch.no_grad():
        for number, buffer in enumerate(model.buffers()):
            if buffer.is_floating_point():
                buffer += 0.01 * (number + 1)
    return model


def same_body(one: nn.Module, other: nn.Module) -> bool:
    theirs = other.get_submodule("body").state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.get_submodule("body").state_dict().items())


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize(
    ("name", "settings", "layers"),
    [
        ("mobilefacenet", {"width": 0.1}, evolve()),
        ("mobilefacenet", {"width": 0.1}, evolve("output_layer.")),
        ("mobilefacenet", {"width": 0.1}, xiaoccer()),
        ("mbf", {"scale": 1, "embedding": 8}, insightface_mbf((1, 4, 6, 2))),
        ("mbf", {"scale": 1, "embedding": 8, "blocks": (2, 3, 12, 1)}, insightface_mbf((2, 3, 12, 1))),
        ("iresnet18", {"width": 2}, insightface_iresnet((2, 2, 2, 2))),
        ("iresnet50", {"width": 2}, insightface_iresnet((3, 4, 14, 3))),
        ("sphere20", {"width": 2}, fedfr((1, 2, 4, 1))),
    ],
    ids=["evolve", "curricular", "xiaoccer", "mbf", "mbf-deep", "iresnet18", "iresnet50", "fedfr"],
)
def test_public_layouts(name: str, settings: dict[str, Any], layers: list[str], suffix: str, tmp_path: Path) -> None:
    source, model = trained(name, **settings), build(name, IMAGE, 4, seed=2, **settings)
    head = model.head.get_parameter("weight").clone()
    tensors, path = public_file(source, layers), tmp_path / f"public{suffix}"
    if suffix == ".pth":
        torch.save({"epoch": 7, "state_dict": {f"module.{key}": value for key, value in tensors.items()}}, path)
    else:
        safetensors.torch.save_file({key: value.contiguous() for key, value in tensors.items()}, path)
    assert not same_body(source, model)
    loaded = load_weights(model, path)
    assert same_body(source, model)
    assert len(loaded.used) == len(source.body.state_dict())
    assert loaded.left_out == ()
    assert torch.equal(model.head.get_parameter("weight"), head)


def test_a_pointwise_convolution_fills_the_linear_embedding(tmp_path: Path) -> None:
    source, model = (build("mobilefacenet", IMAGE, 4, seed=seed, width=0.1) for seed in (1, 2))
    tensors = public_file(source, xiaoccer())
    tensors["linear1.conv.weight"] = tensors["linear1.conv.weight"][:, :, None, None]
    torch.save(tensors, tmp_path / "net.pt")
    load_weights(model, tmp_path / "net.pt")
    assert same_body(source, model)


@pytest.fixture
def model() -> RecognitionModel:
    return build("mobilefacenet-tiny", IMAGE, 4, seed=2, embedding=16)


def saved(path: Path, tensors: dict[str, Tensor]) -> Path:
    torch.save(tensors, path)
    return path


def test_our_own_files_bring_their_head_where_it_fits(model: RecognitionModel, tmp_path: Path) -> None:
    source = build("mobilefacenet-tiny", IMAGE, 4, seed=1, embedding=16)
    brought = {**source.state_dict(), "margin-softmax.vectors": torch.ones(4, 16)}
    loaded = load_weights(model, saved(tmp_path / "own.pt", brought))
    assert same_body(source, model)
    assert torch.equal(model.head.get_parameter("weight"), source.head.get_parameter("weight"))
    assert loaded.left_out == ()


def test_a_head_of_other_classes_is_left_out_whole(model: RecognitionModel, tmp_path: Path) -> None:
    source = build("mobilefacenet-tiny", IMAGE, 9, seed=1, embedding=16)
    head = {name: value.clone() for name, value in model.head.state_dict().items()}
    loaded = load_weights(model, saved(tmp_path / "own.pt", source.state_dict()))
    assert same_body(source, model)
    assert loaded.left_out == ("head.weight",)
    assert all(torch.equal(value, head[name]) for name, value in model.head.state_dict().items())


def test_a_key_map_renames_in_order_and_leaves_out(model: RecognitionModel, tmp_path: Path) -> None:
    source = build("mobilefacenet-tiny", IMAGE, 4, seed=1, embedding=16)
    theirs = {name.replace("body.", "net/"): value for name, value in source.body.state_dict(prefix="body.").items()}
    path = saved(tmp_path / "theirs.pt", {**theirs, "optimizer.step": torch.ones(1)})
    load_weights(model, path, {r"^net/": "body.", r"^optimizer\..*": ""})
    assert same_body(source, model)


@pytest.mark.parametrize(
    ("key_map", "words"),
    [
        ({"(": ""}, "must be regular expressions"),
        ({r"^.+$": "body.same"}, "must give every tensor its own name, got 'body.same'"),
    ],
)
def test_a_wrong_key_map(model: RecognitionModel, tmp_path: Path, key_map: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_weights(model, saved(tmp_path / "own.pt", model.state_dict()), key_map)


def without(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(name)


def test_counters_of_batches_may_be_missing(model: RecognitionModel, tmp_path: Path) -> None:
    old = {name: value for name, value in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    assert load_weights(model, saved(tmp_path / "old.pt", old)).left_out == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("body.embedding.weight"), r"missing: body\.embedding\.weight\)"),
        (lambda tensors: tensors.update({"body.more": torch.ones(1)}), r"unexpected: body\.more\)"),
        (
            lambda tensors: tensors.update({"body.embedding.weight": torch.ones(8, 128)}),
            r"other shapes: body\.embedding\.weight is \(8, 128\), not \(16, 128\)\): use the model settings",
        ),
        (
            lambda tensors: [tensors.pop(name) for name in list(tensors) if ".running_" in name],
            r"missing: body\.stem\.norm\.running_mean, .* and \d+ more\)",
        ),
    ],
    ids=["missing", "unexpected", "shape", "many"],
)
def test_a_body_that_does_not_fit_is_told_and_left_alone(
    model: RecognitionModel, tmp_path: Path, change: Callable[[dict[str, Tensor]], object], words: str
) -> None:
    tensors = dict(build("mobilefacenet-tiny", IMAGE, 4, seed=1, embedding=16).state_dict())
    change(tensors)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ConfigError, match=words):
        load_weights(model, saved(tmp_path / "net.pt", tensors))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_unknown_layout_is_named_so(model: RecognitionModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"named in an unknown layout\).*unexpected: conv\.weight"):
        load_weights(model, saved(tmp_path / "net.pt", {"conv.weight": torch.ones(3)}))


def test_numbers_that_are_not_finite_are_refused(model: RecognitionModel, tmp_path: Path) -> None:
    tensors = {**model.state_dict(), "body.embedding.weight": torch.full((16, 128), torch.nan)}
    with pytest.raises(DataError, match=r"must be finite, got inf or NaN in body\.embedding\.weight"):
        load_weights(model, saved(tmp_path / "net.pt", tensors))


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.folder,)


def test_a_hostile_pickle_is_refused_and_not_run(model: RecognitionModel, tmp_path: Path) -> None:
    path, trace = tmp_path / "net.pth", tmp_path / "trace"
    torch.save({"state_dict": model.state_dict(), "extra": Hostile(trace)}, path)
    with pytest.raises(DataError, match=r"must hold tensors only.*which could run code when read"):
        load_weights(model, path)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("net.safetensors", b"nothing", "must be a safetensors file"),
        ("net.pt", b"nothing of the kind", "must hold tensors only"),
        ("net.pt", b"", "must be readable, got an error"),
        ("net.pt", b"PK\x03\x04broken archive", "must be readable, got an error"),
    ],
)
def test_a_damaged_file_is_told(model: RecognitionModel, tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        load_weights(model, tmp_path / name)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (torch.ones(3), "must hold named tensors, got a Tensor"),
        ({"epoch": 3}, "must hold one set of named tensors, got none"),
        ({"a": {"x": torch.ones(1)}, "b": {"x": torch.ones(1)}}, r"one set of named tensors, got several \(a, b\)"),
    ],
)
def test_a_file_without_one_state_dict_is_told(
    model: RecognitionModel, tmp_path: Path, found: object, words: str
) -> None:
    torch.save(found, tmp_path / "net.pt")
    with pytest.raises(DataError, match=words):
        load_weights(model, tmp_path / "net.pt")


def test_a_missing_file_is_told(model: RecognitionModel, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the weight file must exist"):
        load_weights(model, tmp_path / "none.pt")
