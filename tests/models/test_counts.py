"""The papers' parameter counts, built without memory on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedra.models import build, count_parameters

COLOR, SMALL_COLOR, GRAY = (3, 32, 32), (3, 28, 28), (1, 28, 28)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "settings", "count"),
    [
        ("fedavg-cnn", COLOR, 10, {}, 2_156_490),
        ("fedavg-cnn", GRAY, 10, {"repeat_gray": True}, 1_664_970),
        ("fedavg-cnn", SMALL_COLOR, 9, {}, 1_664_457),
        ("fedavg-cnn", GRAY, 8, {"repeat_gray": True}, 1_663_944),
        ("fedavg-cnn", GRAY, 10, {}, 1_663_370),
        ("fedavg-cnn", COLOR, 10, {"width": 8}, 608 + 3_216 + 16 * 64 * 128 + 128 + 1_290),
        ("fedarc-cnn", GRAY, 10, {}, 832 + 51_264 + 2_048 + 262_144 + 5_130),
        ("fedarc-cnn", GRAY, 10, {"activation": "relu"}, 321_418),
        ("fedarc-resnet18", COLOR, 100, {}, 11_176_512 + 2 * (512 * 512 + 1024) + 51_300),
        ("vgg11", COLOR, 10, {}, 9_750_922),
        ("vgg11", SMALL_COLOR, 9, {}, 9_750_409),
        ("vgg11", GRAY, 8, {"repeat_gray": True}, 9_749_896),
        ("resnet18", COLOR, 10, {}, 11_173_962),
        ("resnet18", COLOR, 10, {"norm": "running"}, 11_173_962),
        ("resnet18", COLOR, 10, {"norm": "group"}, 11_173_962),
        ("resnet18", SMALL_COLOR, 9, {}, 11_173_449),
        ("resnet18", GRAY, 8, {"repeat_gray": True}, 11_172_936),
        ("sl-vit", COLOR, 10, {}, 6_176_275),
        ("sl-vit", SMALL_COLOR, 10, {}, 6_176_275),
        ("sl-vit", SMALL_COLOR, 9, {"resize": False}, 6_132_432),
        ("sl-vit", GRAY, 8, {"resize": False, "repeat_gray": True}, 6_132_239),
        ("resnet34", (3, 224, 224), 1000, {}, 21_797_672),
        ("resnet34", COLOR, 10, {"stem": "small"}, 21_282_122),
        ("swin", (3, 224, 224), 1000, {}, 28_288_354),
        ("mlp", GRAY, 10, {}, 199_210),
        ("logistic", (64,), 10, {}, 650),
    ],
)
def test_count(name: str, shape: tuple[int, ...], classes: int, settings: dict[str, Any], count: int) -> None:
    with torch.device("meta"):
        assert count_parameters(build(name, shape, classes, seed=0, **settings)) == count


def test_fedarc_counts_in_print_include_the_class_vectors() -> None:
    with torch.device("meta"):
        assert count_parameters(build("fedarc-cnn", GRAY, 10, seed=0)) + 10 * 512 == 326_538
        assert count_parameters(build("fedarc-resnet18", COLOR, 100, seed=0)) + 100 * 512 == 11_805_348
