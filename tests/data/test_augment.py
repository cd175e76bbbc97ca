from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from fedra.data import AUGMENTATIONS, load, transform_for
from fedra.data.augment import Crop, Cutout, Flip, Transform
from fedra.errors import ConfigError

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(size: int = 40, shape: tuple[int, ...] = (3, 10, 13)) -> Tensor:
    return torch.randint(1, 256, (size, *shape), generator=seeded(9), dtype=torch.uint8)


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_equals_the_loop_over_images(mode: str, dtype: torch.dtype) -> None:
    inputs, padding = batch().to(dtype), 3
    outputs = Crop(padding, mode)(inputs, seeded(5))  # type: ignore[arg-type]
    assert outputs.dtype == dtype
    shifts = torch.randint(-padding, padding + 1, (2, len(inputs), 1), generator=seeded(5))
    how = {"zeros": "constant", "reflect": "reflect"}[mode]
    for image, output, row, column in zip(inputs, outputs, *shifts.squeeze(-1).tolist(), strict=True):
        padded = np.pad(image.numpy(), ((0, 0), (padding, padding), (padding, padding)), mode=how)  # type: ignore[call-overload]
        window = padded[:, padding + row :, padding + column :][:, :10, :13]
        assert np.array_equal(output.numpy(), window)
    assert len({tuple(pair) for pair in shifts.squeeze(-1).T.tolist()}) > 10


def test_crop_reaches_every_place_alike() -> None:
    image = torch.zeros(9000, 1, 3, 3, dtype=torch.uint8)
    image[:, :, 1, 1] = 1
    seen = Crop(1)(image, seeded()).sum(0).view(-1)
    assert seen.sum() == 9000
    assert ((seen - 1000).abs() < 120).all()


def test_flip_turns_about_half() -> None:
    inputs = batch(1000)
    outputs = Flip()(inputs, seeded())
    same = (outputs == inputs).flatten(1).all(1)
    turned = (outputs == inputs.flip(-1)).flatten(1).all(1)
    assert (same ^ turned).all()
    assert 440 < int(turned.sum()) < 560


def test_cutout_is_one_clipped_square_anywhere() -> None:
    size, height, width = 6, 10, 13
    outputs = Cutout(size)(torch.ones(4000, 3, height, width), seeded(3))
    rows = torch.randint(height, (4000, 1), generator=(draw := seeded(3))).view(-1).tolist()
    columns = torch.randint(width, (4000, 1), generator=draw).view(-1).tolist()
    for image, row, column in zip(outputs[:200], rows, columns, strict=False):
        expected = torch.ones(3, height, width)
        expected[:, max(row - 3, 0) : row + 3, max(column - 3, 0) : column + 3] = 0
        assert torch.equal(image, expected)
    assert set(rows) == set(range(height))
    assert set(columns) == set(range(width))


def test_prepare_scales_and_normalizes() -> None:
    inputs = batch()
    expected = (inputs.double() / 255 - torch.tensor(MEAN).double().view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    outputs = Transform(MEAN, STD).prepare(inputs)
    assert outputs.dtype == torch.float32
    assert torch.allclose(outputs, expected.float(), atol=1e-6)
    assert torch.equal(Transform().prepare(inputs), inputs / 255)


def test_floats_pass_and_are_never_changed_in_place() -> None:
    inputs = torch.randn(4, 3, 5, 5, generator=seeded())
    kept = inputs.clone()
    assert torch.equal(Transform().prepare(inputs), inputs)
    Transform(MEAN, STD, (Crop(2), Flip(), Cutout(2))).batch(inputs, seeded())
    assert torch.equal(inputs, kept)
    pixels = batch()
    kept = pixels.clone()
    Transform(MEAN, STD, (Crop(2), Flip(), Cutout(2))).batch(pixels, seeded())
    assert torch.equal(pixels, kept)


def test_padding_is_black_and_cutout_is_the_mean() -> None:
    white = torch.full((50, 3, 8, 8), 255, dtype=torch.uint8)
    black = (0 - torch.tensor(MEAN)) / torch.tensor(STD)
    cropped = Transform(MEAN, STD, (Crop(4),)).batch(white, seeded())
    corners = cropped[:, :, 0, 0]
    padded = corners[:, 0] < 0
    assert padded.any()
    assert torch.allclose(corners[padded], black.expand(int(padded.sum()), 3))
    cut = Transform(MEAN, STD, (Cutout(4), Flip())).batch(white, seeded())
    assert (cut == 0).any(dim=3).any(dim=2).all()


def test_same_seed_same_batch_and_no_global_draw() -> None:
    transform = Transform(MEAN, STD, (Crop(2), Flip(), Cutout(4)))
    before = torch.random.get_rng_state()
    first, second, other = (transform.batch(batch(), seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_deterministic_means_batch_equals_prepare() -> None:
    plain = Transform(MEAN, STD)
    assert plain.deterministic
    assert torch.equal(plain.batch(batch(), seeded()), plain.prepare(batch()))
    assert not Transform(MEAN, STD, (Flip(),)).deterministic


def test_a_transform_survives_pickling() -> None:
    transform = Transform(MEAN, STD, (Crop(2, "reflect"), Flip(), Cutout(4)))
    copy = pickle.loads(pickle.dumps(transform))
    assert copy == transform
    assert torch.equal(copy.batch(batch(), seeded()), transform.batch(batch(), seeded()))


def test_transform_for_reads_the_names() -> None:
    dataset = load("synthetic", shape=(3, 12, 12))
    assert transform_for(dataset).augment == ()
    assert transform_for(dataset, "none").deterministic
    named = transform_for(dataset, ("flip", "reflect-crop", "cutout"))
    assert named.augment == (Flip(), Crop(4, "reflect"), Cutout(16))
    assert named.mean == dataset.mean
    assert set(AUGMENTATIONS) == {"crop", "reflect-crop", "flip", "cutout"}


@pytest.mark.parametrize(
    ("shape", "augment", "message"),
    [
        ((3, 12, 12), ("crp",), "no augmentation 'crp': did you mean 'crop'"),
        ((3, 12, 12), "flip", "augment must be 'none', 'paper' or a list of names, got 'flip'"),
        ((12,), ("flip",), "must be used with images"),
        ((1, 4, 12), ("flip", "reflect-crop"), "larger than 4 pixels for the augmentation 'reflect-crop', got 4 x 12"),
    ],
)
def test_what_cannot_be_used_is_told(shape: tuple[int, ...], augment: str | Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        transform_for(load("synthetic", shape=shape, examples=10), augment)
