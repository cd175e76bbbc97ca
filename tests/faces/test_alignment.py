"""Similarities, the template and the warp."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image

from fedra.errors import ConfigError, DataError
from fedra.faces import align_face, five_points, similarity, template, warp

DRAW = np.random.default_rng(0)


def turned(angle: float, scale: float, shift: tuple[float, float]) -> np.ndarray:
    turn = scale * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    return np.column_stack([turn, shift])


def moved(points: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    return points @ matrix[:, :2].T + matrix[:, 2]


@pytest.mark.parametrize("angle", [-3.0, -0.4, 0.0, 1.5])
@pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
def test_a_known_similarity_is_found(angle: float, scale: float) -> None:
    known = turned(angle, scale, (-40.0, 7.0))
    points = DRAW.uniform(0, 100, (5, 2))
    np.testing.assert_allclose(similarity(points, moved(points, known)), known, atol=1e-8 * max(1, scale))


def test_it_is_the_best_of_all_similarities() -> None:
    points, goal = DRAW.uniform(0, 100, (5, 2)), DRAW.uniform(0, 100, (5, 2))
    best = similarity(points, goal)
    error = ((moved(points, best) - goal) ** 2).sum()
    for _ in range(200):
        other = best + np.array([[1, -1, 1], [1, 1, 1]]) * 0.01 * DRAW.normal()
        assert ((moved(points, other) - goal) ** 2).sum() >= error - 1e-9


def test_mirrored_points_are_not_reflected() -> None:
    found = similarity(template() * [-1, 1], template())
    assert np.linalg.det(found[:, :2]) > 0


def test_one_point_has_no_similarity() -> None:
    with pytest.raises(DataError, match="must differ, got one point"):
        similarity(np.full((5, 2), 3.0), template())


def test_the_template_follows_the_size() -> None:
    np.testing.assert_allclose(template(224), template(112) * 2)
    np.testing.assert_allclose(template(64), template(112) * 64 / 112)
    np.testing.assert_allclose(template(128), template(112) + [8, 0])
    np.testing.assert_allclose(template(256), (template(112) + [8, 0]) * 2)
    with pytest.raises(ConfigError, match="size must be at least 1 pixel"):
        template(0)


def test_a_face_that_is_aligned_stays_as_it_is() -> None:
    image = DRAW.integers(0, 256, (112, 112, 3), dtype=np.uint8)
    np.testing.assert_array_equal(align_face(image, template(112)), image)


def test_68_points_become_five() -> None:
    points = DRAW.uniform(0, 100, (68, 2))
    five = five_points(points)
    np.testing.assert_allclose(five[0], (points[36] + points[39]) / 2)
    np.testing.assert_allclose(five[1], (points[42] + points[45]) / 2)
    np.testing.assert_allclose(five[2:], points[[30, 48, 54]])
    with pytest.raises(DataError, match=r"must be 5 or 68 points \(x, y\), got shape \(6, 2\)"):
        five_points(points[:6])
    with pytest.raises(DataError, match="NaN or infinity"):
        five_points(np.full((5, 2), np.nan))


def naive_warp(image: np.ndarray, matrix: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Pixel by pixel."""
    back = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))
    result = np.zeros((*size, *image.shape[2:]))
    for row in range(size[0]):
        for column in range(size[1]):
            x, y, _ = back @ [column, row, 1]
            for near_y in (math.floor(y), math.floor(y) + 1):
                for near_x in (math.floor(x), math.floor(x) + 1):
                    if 0 <= near_y < image.shape[0] and 0 <= near_x < image.shape[1]:
                        result[row, column] += (1 - abs(y - near_y)) * (1 - abs(x - near_x)) * image[near_y, near_x]
    return result


@pytest.mark.parametrize("shape", [(20, 30, 3), (9, 4), (1, 1, 3)])
def test_the_warp_equals_a_loop_over_pixels(shape: tuple[int, ...]) -> None:
    image = DRAW.integers(0, 256, shape, dtype=np.uint8)
    matrix = turned(0.3, 1.3, (-3.2, 1.7))
    found = warp(image, matrix, (24, 17))
    expected = naive_warp(image, matrix, (24, 17))
    assert found.dtype == np.uint8
    assert np.abs(found - expected).max() <= 0.5 + 0.01  # positions have single precision


def test_beyond_the_picture_is_black() -> None:
    found = warp(np.full((5, 5, 3), 255, np.uint8), turned(0, 1, (10, 10)), (30, 30))
    assert found[10:15, 10:15].min() == 255
    assert found.sum() == 255 * 75


def test_a_large_face_is_averaged_and_stays_in_place() -> None:
    """Stripes finer than the crop's pixels give their mean, and the points go to the template."""
    stripes = np.zeros((1120, 1120, 3), np.uint8)
    stripes[:, ::2] = 200
    crop = align_face(stripes, template(112) * 10 + 4.5)
    assert np.abs(crop[5:-5, 5:-5].astype(int) - 100).max() <= 2
    dots = np.zeros((1120, 1120), np.uint8)
    for x, y in (template(112) * 10 + 4.5).astype(int):
        dots[y - 10 : y + 10, x - 10 : x + 10] = 255
    small = align_face(dots, template(112) * 10 + 4.5)
    for x, y in template(112).round().astype(int):
        assert small[y, x] > 100


@pytest.mark.parametrize("shape", [(500, 431, 3), (500, 431)])
@pytest.mark.parametrize("center", [(215, 250), (5, 490), (430, 0), (-900, 100)])
def test_only_the_blocks_around_a_large_face_are_averaged(shape: tuple[int, ...], center: tuple[int, int]) -> None:
    """The crop is the one of the whole photograph, averaged: also at its border, where blocks are smaller."""
    image = DRAW.integers(0, 256, shape, dtype=np.uint8)
    points = moved(template(32) - 16, turned(0.4, 3.7, center))
    reduced = np.array(Image.fromarray(image).reduce(3))
    expected = warp(reduced, similarity((points - 1) / 3, template(32)), (32, 32))
    assert np.abs(align_face(image, points, 32).astype(int) - expected).max() <= 1
