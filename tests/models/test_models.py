"""What holds for every registered model, and what is special to one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from fedra.errors import ConfigError
from fedra.models import MODELS, RecognitionModel, build
from fedra.models.recognition_model import has_body_and_head
from fedra.models.swin import WindowAttention
from fedra.models.vit import LocalityAttention, ShiftedPatches
from fedra.registry import fields

SMALL: dict[str, dict[str, Any]] = {
    "resnet18": {"width": 4},
    "resnet34": {"width": 4, "norm": "batch"},
    "swin": {"patch": 1, "window": 4, "width": 6, "depths": (2, 2), "heads": (2, 3)},
    "swin-mini": {"width": 12},
    "fedarc-resnet18": {"width": 4, "norm": "batch"},
    "sl-vit": {"depth": 2, "width": 24, "heads": 2},
    "ghostfacenet": {"width": 0.3, "norm": "batch"},
    "mbf": {"scale": 1, "blocks": (1, 1, 1, 1), "norm": "batch"},
    "mbf-large": {"norm": "group"},
    "mobilefacenet": {"width": 0.2, "norm": "group"},
    "mobilefacenet-tiny": {"norm": "batch"},
    **{f"iresnet{depth}": {"width": 4, "norm": "group"} for depth in (18, 34, 50, 100)},
    "iresnet-tiny": {"width": 4, "norm": "batch"},
    "sphere20": {"width": 4},
    "sphere64": {"width": 4},
}
VARIANTS = [
    *((name, (3, 32, 32), SMALL.get(name, {})) for name in MODELS),
    ("fedavg-cnn", (1, 28, 28), {"repeat_gray": True}),
    ("fedavg-cnn", (1, 8, 8), {}),
    ("fedarc-cnn", (1, 16, 16), {"activation": "relu"}),
    ("vgg11", (1, 28, 28), {"repeat_gray": True}),
    ("resnet18", (1, 28, 28), {"width": 4, "norm": "group"}),
    ("sl-vit", (1, 28, 28), SMALL["sl-vit"]),
    ("sl-vit", (1, 28, 28), {**SMALL["sl-vit"], "resize": False, "repeat_gray": True}),
    ("resnet34", (1, 16, 16), {"width": 4, "norm": "group", "stem": "small"}),
    ("swin-mini", (1, 28, 28), {"width": 6, "window": 7, "patch": 2}),
    ("mlp", (64,), {"hidden": (16,)}),
    ("logistic", (64,), {}),
]
each_variant = pytest.mark.parametrize(
    ("name", "shape", "settings"),
    VARIANTS,
    ids=[f"{name}-{shape}-{'-'.join(s)}" for name, shape, s in VARIANTS],
)


def example(shape: tuple[int, ...], batch: int = 3) -> Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(7))


@each_variant
def test_contract(name: str, shape: tuple[int, ...], settings: dict[str, Any]) -> None:
    model, inputs = build(name, shape, 5, seed=1, **settings), example(shape)
    features = model.body(inputs)
    assert features.ndim == 2
    assert len(features) == 3
    assert model(inputs).shape == (3, 5)
    assert torch.equal(model(inputs), model.head(features))
    assert has_body_and_head(model)


@each_variant
def test_every_weight_learns(name: str, shape: tuple[int, ...], settings: dict[str, Any]) -> None:
    model = build(name, shape, 5, seed=1, **settings)
    model(example(shape)).logsumexp(1).sum().backward()
    still = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert still == []


@each_variant
def test_precision_and_memory_order_do_not_matter(name: str, shape: tuple[int, ...], settings: dict[str, Any]) -> None:
    model, inputs = build(name, shape, 5, seed=1, **settings), example(shape)
    single = model(inputs)
    double = model.double()(inputs.double())
    assert double.dtype == torch.float64
    torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-3)
    if len(shape) == 3:
        last = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        turned = last(inputs.double().contiguous(memory_format=torch.channels_last))
        torch.testing.assert_close(turned, double)


@each_variant
def test_vmap_over_stacked_parameters_is_the_loop(name: str, shape: tuple[int, ...], settings: dict[str, Any]) -> None:
    models = [build(name, shape, 5, seed=seed, **settings).double() for seed in range(3)]
    inputs = torch.stack([example(shape).double() * (1 + k) for k in range(3)])
    together = stacked_forward(models, inputs)
    torch.testing.assert_close(together, torch.stack([m(x) for m, x in zip(models, inputs, strict=True)]))


def stacked_forward(models: list[RecognitionModel], inputs: Tensor) -> Tensor:
    parameters, buffers = stack_module_state(models)

    def forward(weights: dict[str, Tensor], statistics: dict[str, Tensor], batch: Tensor) -> Tensor:
        logits: Tensor = functional_call(models[0], (weights, statistics), (batch,))
        return logits

    together: Tensor = vmap(forward, randomness="error")(parameters, buffers, inputs)
    return together


@pytest.mark.parametrize("name", ["resnet18", "fedarc-resnet18"])
def test_running_statistics_vmap_in_evaluation(name: str) -> None:
    models = [build(name, (3, 32, 32), 5, seed=s, width=4, norm="running").double().eval() for s in range(2)]
    inputs = torch.stack([example((3, 32, 32)).double()] * 2)
    expected = torch.stack([m(x) for m, x in zip(models, inputs, strict=True)])
    torch.testing.assert_close(stacked_forward(models, inputs), expected)


@pytest.mark.parametrize("name", MODELS)
def test_build_is_seeded_and_leaves_the_global_generator(name: str) -> None:
    before = torch.random.get_rng_state()
    settings = SMALL.get(name, {})
    first, again, other = (build(name, (3, 32, 32), 5, seed=seed, **settings) for seed in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_every_setting_has_an_annotation_a_default_and_the_model_a_summary(name: str) -> None:
    assert MODELS.summary(name)
    assert not any(field.required or field.annotation is Any for field in fields(MODELS[name]).values())


def test_fedavg_cnn_starts_at_the_published_norm() -> None:
    model = build("fedavg-cnn", (3, 32, 32), 10, seed=0)
    norm = math.sqrt(sum(float(weight.detach().square().sum()) for weight in model.parameters()))
    assert norm == pytest.approx(14.35, abs=0.1)


def test_fedavg_cnn_feature_is_rectified_and_512_wide() -> None:
    features = build("fedavg-cnn", (3, 32, 32), 10, seed=0).body(example((3, 32, 32)))
    assert features.shape == (3, 512)
    assert features.min() == 0


def test_vgg11_convolutions_start_at_the_published_scale() -> None:
    model = build("vgg11", (3, 32, 32), 10, seed=0)
    last = [layer for layer in model.body.modules() if isinstance(layer, nn.Conv2d)][-1]
    assert float(last.weight.detach().std()) == pytest.approx(math.sqrt(2 / (9 * 512)), rel=0.01)
    assert last.bias is not None
    assert not last.bias.any()


@pytest.mark.parametrize("name", ["fedavg-cnn", "vgg11"])
def test_repeated_gray_is_the_color_model_on_three_equal_channels(name: str) -> None:
    gray = build(name, (1, 28, 28), 10, seed=0, repeat_gray=True)
    color = build(name, (3, 28, 28), 10, seed=0)
    images = example((1, 28, 28))
    torch.testing.assert_close(gray(images), color(images.repeat(1, 3, 1, 1)))


def test_fedarc_cnn_embeds_in_512_and_is_rectified_on_request() -> None:
    images = example((1, 28, 28))
    plain, rectified = (build("fedarc-cnn", (1, 28, 28), 10, seed=0, activation=a) for a in ("none", "relu"))
    assert plain.body(images).shape == (3, 512)
    assert not any(isinstance(layer, nn.ReLU) for layer in plain.modules())
    assert not torch.allclose(plain(images), rectified(images))


def test_fedarc_resnet18_embeds_in_512() -> None:
    model = build("fedarc-resnet18", (3, 32, 32), 100, seed=0, width=8).eval()
    assert model.body(example((3, 32, 32))).shape == (3, 512)
    assert any(name.endswith("running_mean") for name, _ in model.named_buffers())


@pytest.mark.parametrize(("norm", "buffers"), [("batch", False), ("group", False), ("running", True)])
def test_resnet18_norm_decides_the_buffers(norm: str, buffers: bool) -> None:
    model = build("resnet18", (3, 32, 32), 10, seed=0, width=4, norm=norm)
    assert bool(list(model.buffers())) is buffers


def test_resnet18_group_norm_does_not_look_at_the_batch() -> None:
    model = build("resnet18", (3, 32, 32), 10, seed=0, width=4, norm="group")
    images = example((3, 32, 32))
    torch.testing.assert_close(model(images)[:1], model(images[:1]))


def test_shifted_patches_hold_the_image_and_its_four_shifts() -> None:
    image = torch.arange(1.0, 65.0).reshape(1, 1, 8, 8)
    tokens = ShiftedPatches(4)(image)
    assert tokens.shape == (1, 4, 4 * 4 * 5)
    pixel = tokens[0, 3].reshape(4, 4, 5)[0, 0]  # row 4, column 4 of the image
    here, left, right, above, below = image[0, 0, [4, 4, 4, 3, 5], [4, 3, 5, 4, 4]]
    assert pixel.tolist() == [here, left, right, above, below]
    corner = tokens[0, 0].reshape(4, 4, 5)[0, 0]
    assert corner.tolist() == [1.0, 0.0, 2.0, 0.0, 9.0]


def test_locality_attention_ignores_the_token_itself() -> None:
    attention = LocalityAttention(8, 2)
    tokens = example((2, 8))
    swapped = attention.out(attention.query_key_value(tokens.flip(1))[..., 2 * 128 :])
    torch.testing.assert_close(attention(tokens), swapped)  # of two tokens each can see only the other


@pytest.mark.parametrize(
    ("name", "shape", "settings", "words"),
    [
        ("fedarc-cnn", (1, 8, 8), {}, "must be at least 16x16 for the model 'fedarc-cnn', got 8x8"),
        ("fedarc-cnn", (1, 28, 15), {}, "16x16"),
        ("fedavg-cnn", (1, 7, 7), {}, "8x8"),
        ("vgg11", (64,), {}, r"for the model 'vgg11', got \(64,\)"),
        ("fedavg-cnn", (3, 32, 32), {"repeat_gray": True}, "must have 1 channel with repeat_gray .* got 3"),
        (
            "resnet18",
            (3, 32, 32),
            {"width": 6, "norm": "group", "groups": 4},
            "must divide .* channels, 6, got 4",
        ),
        ("sl-vit", (3, 33, 33), {}, "multiple of 8 .* got 33x33"),
        ("sl-vit", (3, 32, 40), {}, "square"),
        ("fedavg_cnn", (3, 32, 32), {}, "did you mean 'fedavg-cnn'"),
        ("resnet18", (3, 32, 32), {"widht": 8}, "no field 'widht': did you mean 'width'"),
        ("logistic", (3, 32, 32), {"width": 8}, "no field 'width': it has none"),
        ("resnet18", (3, 32, 32), {"norm": "layer"}, "must be 'batch'"),
        (
            "fedarc-cnn",
            (1, 28, 28),
            {"activation": "gelu"},
            "'activation' of the model 'fedarc-cnn' must be 'none' or 'relu', got 'gelu'",
        ),
        ("mlp", (64,), {"hidden": (16, 0)}, r"'hidden' of the model 'mlp' must be greater than 0, got \(16, 0\)"),
        ("mlp", (), {}, r"sizes of at least 1, got \(\)"),
        ("mlp", (0,), {}, r"sizes of at least 1, got \(0,\)"),
    ],
)
def test_mistakes_are_told(name: str, shape: tuple[int, ...], settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(name, shape, 10, seed=0, **settings)


def test_no_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be at least 1, got 0"):
        build("mlp", (4,), 0, seed=0)


def test_a_registered_model_without_body_and_head_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS._functions, "bare", lambda shape, classes: nn.Linear(4, classes))
    model = build("bare", (4,), 2, seed=0)
    assert isinstance(model.body, nn.Identity)
    assert isinstance(model.head, nn.Linear)


def naive_window_attention(layer: WindowAttention, tokens: Tensor) -> Tensor:
    """Token by token: who is in my window after the shift, and was next to me before it?"""
    batch, side, _, width = tokens.shape
    window, shift, heads = layer.window, layer.shift, layer.heads
    each = width // heads
    found = torch.zeros_like(tokens)

    def window_of(place: int) -> tuple[int, bool]:
        moved = (place - shift) % side
        return moved // window, place < shift  # wrapped around: from the other border

    for image in range(batch):
        query, key, value = layer.query_key_value(tokens[image]).unflatten(2, (3, heads, each)).unbind(2)
        for row in range(side):
            for column in range(side):
                near = [
                    (r, c)
                    for r in range(side)
                    for c in range(side)
                    if window_of(r) == window_of(row) and window_of(c) == window_of(column)
                ]
                mixed = []
                for head in range(heads):
                    scores = []
                    for r, c in near:
                        offset = (row - r + window - 1) * (2 * window - 1) + column - c + window - 1
                        score = query[row, column, head] @ key[r, c, head] / each**0.5
                        scores.append(score + layer.offset_bias[offset, head])
                    weights = torch.stack(scores).softmax(dim=0)
                    mixed.append(sum(w * value[r, c, head] for w, (r, c) in zip(weights, near, strict=True)))
                found[image, row, column] = layer.out(torch.cat(mixed))
    return found


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_window_attention_against_loops(shift: int) -> None:
    torch.manual_seed(0)
    layer = WindowAttention(6, 2, 4, shift).double()
    tokens = torch.randn(2, 8, 8, 6, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(layer(tokens), naive_window_attention(layer, tokens), rtol=0, atol=1e-12)


def test_swin_layers_take_turns_in_shifting() -> None:
    body = build("swin", (3, 224, 224), 2, width=6, heads=(1, 2, 3, 4)).body
    attention = [module for module in body.modules() if isinstance(module, WindowAttention)]
    assert [module.shift for module in attention] == [0, 3] * 5 + [0, 0]
    assert [module.window for module in attention] == [7] * 12


@pytest.mark.parametrize(
    ("shape", "settings", "told"),
    [
        ((3, 112, 112), {}, "images must be square, and tiled by windows of 7 tokens of 4 pixels in each of 4 stages"),
        ((3, 224, 192), {}, "must be square"),
        ((3, 224, 224), {"heads": (3, 6, 12)}, "must have one number for each of 4 stages"),
        ((3, 224, 224), {"heads": (5, 6, 12, 24)}, "that divides its width, got"),
    ],
)
def test_what_swin_cannot_tile_is_told(shape: tuple[int, ...], settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        build("swin", shape, 10, **settings)
