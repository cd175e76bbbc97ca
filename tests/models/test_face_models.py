"""Face backbones: published sizes, any image size, and what batch statistics do to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedra.errors import ConfigError
from fedra.models import build, count_parameters
from fedra.models.mobilefacenet import Bottleneck
from fedra.models.normalization import Normalizer

FACE = (3, 112, 112)
FIXED_SCALE = 512
"""IResNet's last normalization has a scale that never moves: no parameter here, but counted in print."""


def multiplications(body: nn.Module, images: Tensor) -> int:
    """Those of convolutions and linear layers: every output takes one per weight of its own channel."""
    found = []

    def count(layer: nn.Module, _: object, output: Tensor) -> None:
        weight = layer.get_parameter("weight")
        found.append(output.numel() * weight[0].numel())

    for layer in body.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    body(images)
    return sum(found)


@pytest.mark.parametrize(
    ("name", "settings", "count", "millions"),
    [
        ("iresnet18", {}, 24_025_600 - FIXED_SCALE, 2610),
        ("iresnet34", {}, 34_139_328 - FIXED_SCALE, 4460),
        ("iresnet50", {}, 43_590_848 - FIXED_SCALE, 6309),
        ("iresnet100", {}, 65_156_160 - FIXED_SCALE, 12_090),
        ("mobilefacenet", {}, 1_003_136, 221.0),
        ("mobilefacenet", {"embedding": 512}, 1_200_512, 221.2),
        ("mobilefacenet-tiny", {}, 91_232, None),
        ("mbf", {}, 2_059_520, 437.5),
        ("mbf-large", {}, 6_314_880, 1817),
        ("ghostfacenet", {"width": 0.5, "stride": 2, "activation": "relu"}, 706_860, 10.7),
        ("ghostfacenet", {"width": 0.5, "activation": "relu"}, 715_308, 38.7),
        ("ghostfacenet", {"width": 1.0, "stride": 2, "activation": "relu"}, 2_466_356, 36.7),
        ("ghostfacenet", {"width": 1.0, "activation": "relu"}, 2_483_252, 131.5),
        ("ghostfacenet", {"stride": 2, "activation": "relu"}, 4_027_760, 59.3),
        ("ghostfacenet", {"activation": "relu"}, 4_049_672, 211.9),
        ("sphere20", {}, 24_501_952, None),
        ("sphere64", {}, 49_726_656, None),
    ],
)
def test_published_size(name: str, settings: dict[str, Any], count: int, millions: float | None) -> None:
    with torch.device("meta"):
        body = build(name, FACE, 10, seed=0, **settings).body.eval()
        products = multiplications(body, torch.zeros(1, *FACE))
    assert count_parameters(body) == count
    if millions is not None:
        assert products / 1e6 == pytest.approx(millions, rel=0.005)


def test_prelu_adds_one_weight_per_activated_channel() -> None:
    with torch.device("meta"):
        plain, learned = (build("ghostfacenet", FACE, 2, seed=0, activation=a) for a in ("relu", "prelu"))
    slopes = sum(layer.num_parameters for layer in learned.modules() if isinstance(layer, nn.PReLU))
    assert slopes > 0
    assert count_parameters(learned) - count_parameters(plain) == slopes


@pytest.mark.parametrize("shape", [(3, 112, 96), (1, 28, 28), (3, 56, 56), (3, 33, 47), (3, 16, 16)])
@pytest.mark.parametrize(
    ("name", "settings", "width"),
    [
        ("mobilefacenet-tiny", {}, 128),
        ("mbf", {"scale": 1, "blocks": (2, 1, 1, 1), "embedding": 24}, 24),
        ("iresnet-tiny", {"width": 4, "embedding": 32}, 32),
        ("ghostfacenet", {"width": 0.25, "stride": 2}, 512),
        ("sphere20", {"width": 4}, 512),
    ],
)
def test_any_image_size(name: str, settings: dict[str, Any], width: int, shape: tuple[int, int, int]) -> None:
    model = build(name, shape, 3, seed=0, **settings).eval()
    images = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    assert model.body(images).shape == (2, width)
    assert model(images).shape == (2, 3)


@pytest.mark.parametrize("name", ["mobilefacenet", "mbf", "iresnet18", "ghostfacenet", "sphere64"])
def test_too_small_an_image_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"must be at least 16x16 for the model '{name}', got 15x32"):
        build(name, (3, 15, 32), 3, seed=0)


@pytest.mark.parametrize("norm", ["running", "batch", "group"])
def test_the_last_scale_of_iresnet_is_no_parameter(norm: str) -> None:
    features = build("iresnet-tiny", (3, 32, 32), 3, seed=0, width=4, norm=norm).body.get_submodule("features")
    assert set(dict(features.named_parameters())) == {"bias"}
    assert torch.equal(features.get_buffer("weight"), torch.ones(128))


def test_dropout_acts_in_training_alone_and_is_absent_at_zero() -> None:
    none = build("iresnet-tiny", (3, 32, 32), 3, seed=0, width=4)
    some = build("iresnet-tiny", (3, 32, 32), 3, seed=0, width=4, dropout=0.4, norm="group")
    assert not any(isinstance(layer, nn.Dropout) for layer in none.modules())
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(some(images), some(images))
    some.eval()
    assert torch.equal(some(images), some(images))


def test_a_bottleneck_adds_its_input_only_where_the_shape_stays() -> None:
    maps = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(1))
    normalizer = Normalizer("running", 2)
    kept = Bottleneck(8, 16, 8, 1, normalizer).eval()
    torch.testing.assert_close(kept(maps) - maps, kept.project(kept.depthwise(kept.expand(maps))))
    assert not Bottleneck(8, 16, 8, 2, normalizer).residual
    assert not Bottleneck(8, 16, 12, 1, normalizer).residual


def test_iresnet_convolutions_start_at_a_tenth() -> None:
    model = build("iresnet-tiny", (3, 32, 32), 3, seed=0)
    last = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3)][-1]
    assert float(last.weight.detach().std()) == pytest.approx(0.1, rel=0.02)


def test_blocks_of_sphere20_start_near_the_identity() -> None:
    block = build("sphere20", (3, 32, 32), 3, seed=0, width=8).body.get_submodule("stage1.2")
    maps = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(1))
    assert float((block(maps) - maps).abs().max()) < 0.05 * float(maps.abs().max())


def test_a_batch_of_one_trains_on_the_running_statistics_and_leaves_no_trace() -> None:
    model = build("mobilefacenet-tiny", (3, 16, 16), 3, seed=0).train()
    image = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    last = model.body.get_submodule("features")
    before = {name: value.clone() for name, value in last.named_buffers()}
    model(image).logsumexp(1).sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in last.named_buffers())
    assert last.get_parameter("weight").grad is not None
    slope = model.body.get_parameter("embedding.weight").grad
    assert slope is not None
    assert slope.any()


@pytest.mark.parametrize("training", [True, False])
def test_a_batch_of_one_is_refused_where_only_batch_statistics_exist(training: bool) -> None:
    model = build("mobilefacenet-tiny", (3, 16, 16), 3, seed=0, norm="batch").train(training)
    with pytest.raises(ConfigError, match=r"a batch must have at least 2 examples .* set local\.drop_last"):
        model(torch.zeros(1, 3, 16, 16))


def test_fixed_statistics_are_read_in_training_and_never_moved() -> None:
    model = build("mobilefacenet-tiny", (3, 16, 16), 3, seed=0, norm="fixed")
    draw = torch.Generator().manual_seed(0)
    for name, value in model.named_buffers():
        if "running" in name:
            value.copy_(torch.rand(value.shape, generator=draw) + 0.5)
    before = {name: value.clone() for name, value in model.named_buffers()}
    images = torch.randn(4, 3, 16, 16, generator=draw)
    assert torch.equal(model.train()(images), model.eval()(images))
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    usual = build("mobilefacenet-tiny", (3, 16, 16), 3, seed=0, norm="running")
    usual.load_state_dict(model.state_dict())
    assert torch.equal(usual.eval()(images), model(images))
