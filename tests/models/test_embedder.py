"""From uint8 images to features: layout, size, flip, batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedra.errors import ConfigError
from fedra.models import Embedder, RecognitionModel, build

SHAPE = (3, 20, 16)
IMAGES = torch.randint(0, 256, (5, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def prepare(images: Tensor) -> Tensor:
    return images.float() / 127.5 - 1


@pytest.fixture(scope="module")
def model() -> RecognitionModel:
    return build("mobilefacenet-tiny", SHAPE, 4, seed=1, embedding=8)


def embedder(model: RecognitionModel, **options: Any) -> Embedder:
    return Embedder(model, prepare, SHAPE, **options)


@torch.no_grad()
def features(model: RecognitionModel, images: Tensor = IMAGES) -> Tensor:
    found: Tensor = model.eval().body(prepare(images))
    return found


def test_an_embedding_is_the_feature_of_the_prepared_image(model: RecognitionModel) -> None:
    found = embedder(model)(IMAGES)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, features(model))


@pytest.mark.parametrize("images", [IMAGES.permute(0, 2, 3, 1), IMAGES.permute(0, 2, 3, 1).numpy(), IMAGES.numpy()])
def test_channels_may_come_last_and_arrays_may_come_from_numpy(
    model: RecognitionModel, images: Tensor | np.ndarray[Any, Any]
) -> None:
    torch.testing.assert_close(embedder(model)(images), features(model))


def test_batches_change_nothing_and_are_told(model: RecognitionModel) -> None:
    told: list[int] = []
    torch.testing.assert_close(embedder(model, batch=2)(IMAGES, told.append), features(model))
    assert told == [2, 2, 1]


def test_flip(model: RecognitionModel) -> None:
    straight, mirrored = features(model), features(model, IMAGES.flip(-1))
    assert not torch.allclose(straight, mirrored)
    torch.testing.assert_close(embedder(model, flip="sum")(IMAGES), straight + mirrored)
    torch.testing.assert_close(embedder(model, flip="concatenate")(IMAGES), torch.cat([straight, mirrored], 1))


def test_larger_images_are_cropped_about_their_center(model: RecognitionModel) -> None:
    larger = torch.zeros(5, 3, 24, 32, dtype=torch.uint8)
    larger[:, :, 2:22, 8:24] = IMAGES
    torch.testing.assert_close(embedder(model, fit="crop")(larger), features(model))


def test_other_sizes_are_resized(model: RecognitionModel) -> None:
    twice = IMAGES[:, :, :1, :1].expand(-1, -1, 40, 32)  # one color stays itself at any size
    torch.testing.assert_close(
        embedder(model, fit="resize")(twice), features(model, IMAGES[:, :, :1, :1].expand(-1, -1, 20, 16))
    )


def test_a_training_model_and_its_statistics_do_not_matter(model: RecognitionModel) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = embedder(model)(IMAGES)
    torch.testing.assert_close(embedder(model.train())(IMAGES), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("images", "options", "words"),
    [
        (IMAGES.float(), {}, r"must be uint8 .* got torch\.float32 of shape \(5, 3, 20, 16\)"),
        (IMAGES[0], {}, r"got torch\.uint8 of shape \(3, 20, 16\)"),
        (IMAGES[:, :1], {}, "must have 3 channels"),
        (IMAGES[:0], {}, "at least one image, got none"),
        (IMAGES[:, :, :16], {}, r"must be 20x16 \(the model's input\), got 16x16"),
        (IMAGES[:, :, :16], {"fit": "crop"}, r"must be 20x16 \(the model's input\), got 16x16"),
        (IMAGES, {"batch": 0}, "must be at least 1, got 0"),
        (IMAGES, {"flip": "sun"}, "flip must be a known mode, got 'sun': did you mean 'sum'"),
        (IMAGES, {"fit": "pad"}, "fit must be a known mode, got 'pad': choose one of: crop, refuse, resize"),
    ],
)
def test_mistakes_are_told(model: RecognitionModel, images: Tensor, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        embedder(model, **options)(images)


def test_batch_statistics_are_refused() -> None:
    model = build("mobilefacenet-tiny", SHAPE, 4, seed=1, norm="batch")
    with pytest.raises(ConfigError, match="must not normalize by batch statistics"):
        embedder(model)


def test_vectors_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"examples of shape \(6,\)"):
        Embedder(build("mlp", (6,), 2, seed=0), prepare, (6,))
