"""Geometry of a synthetic face: coordinates on the head, in view, and in pixels.

A pixel is mapped to the frontal face by inverting the similarity transform that placed the face and then the rotation
of the head, which is modeled as an ellipsoid: (X, Y) in view and depth Z = D sqrt(1 - X^2 / a^2 - Y^2 / b^2) give
x = X cos(yaw) - Z sin(yaw). Features are drawn in frontal coordinates, so they wrap around the head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedra.faces.synthetic.traits import TraitDraws

DEPTH = 0.8
"""Depth of a head, in face units."""
CROWN = 1.08
"""Height of the top of a head above its center."""
NOSE_RISE = 0.14
"""How far the tip of the nose protrudes."""


@dataclass(frozen=True)
class HeadView:
    """Coordinates of the pixels of n images: `x`, `y` in face units with the head upright, (n, H, W)."""

    x: Tensor
    y: Tensor
    pixel: Tensor
    """Side of a pixel in face units, (n, 1, 1): the width of a soft edge."""


@dataclass(frozen=True)
class Placement:
    """A similarity transform from face units to pixels: p = center + scale R(angle) u, each (n, 1, 1)."""

    center_x: Tensor
    center_y: Tensor
    scale: Tensor
    angle: Tensor

    def view(self, height: int, width: int) -> HeadView:
        """Return the coordinates of all pixels in face units."""
        rows, columns = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
        across, down = (columns - self.center_x) / self.scale, (rows - self.center_y) / self.scale
        cosine, sine = self.angle.cos(), self.angle.sin()
        return HeadView(cosine * across + sine * down, cosine * down - sine * across, 1 / self.scale)

    def to_pixels(self, x: Tensor, y: Tensor) -> Tensor:
        """Convert coordinates (n, k) in face units to points (n, k, 2), x first; the first pixel's center is (0, 0)."""
        cosine, sine, scale = (value.squeeze(-1) for value in (self.angle.cos(), self.angle.sin(), self.scale))
        across = self.center_x.squeeze(-1) + scale * (cosine * x - sine * y)
        down = self.center_y.squeeze(-1) + scale * (sine * x + cosine * y)
        return torch.stack([across, down], dim=-1) - 0.5


def aligned(shot: TraitDraws, size: int) -> Placement:
    """Return the placement of a face that fills a square image, except for the shot's imperfect alignment."""
    unit = size / 2
    return Placement(unit + unit * shot.shift_x, unit + unit * shot.shift_y, unit * (1 + shot.zoom), shot.roll)


def landmarks(person: TraitDraws, shot: TraitDraws, placement: Placement) -> Tensor:
    """Return five points (n, 5, 2) in pixels, x first: eyes, tip of the nose, corners of the mouth.

    Points on the left of the image come first. `frontal` is inverted by fixed-point iteration.
    """
    corner_x, corner_y = mouth_half(person, shot), person.mouth_y + mouth_bend(shot)
    wanted_x = torch.cat([-person.eye_x, person.eye_x, nose_x(shot), -corner_x, corner_x], 1)
    wanted_y = torch.cat([person.eye_y, person.eye_y, person.nose_y, corner_y, corner_y], 1)
    x, y = wanted_x.clone(), wanted_y.clone()
    for _ in range(12):
        seen_x, seen_y = frontal(person, shot, x, y)
        x, y = x + 0.7 * (wanted_x - seen_x), y + 0.7 * (wanted_y - seen_y)
    return placement.to_pixels(x.squeeze(-1), y.squeeze(-1))


def frontal(person: TraitDraws, shot: TraitDraws, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Map coordinates in view to the frontal face; the center of the face stays at the center of the image."""
    z = DEPTH * bulge(person, x, y)
    yaw, pitch = shot.yaw, shot.pitch
    across = x * yaw.cos() - (z - 0.75 * DEPTH) * yaw.sin()
    ahead = x * yaw.sin() + z * yaw.cos()
    return across, y * pitch.cos() - (ahead - 0.75 * DEPTH) * pitch.sin()


def bulge(person: TraitDraws, x: Tensor, y: Tensor) -> Tensor:
    """Return sqrt(1 - X^2 / a^2 - Y^2 / b^2), almost zero outside the head."""
    return (1 - (x / (1.1 * person.head_width)).square() - (y / (1.1 * CROWN)).square()).clamp(min=1e-4).sqrt()


def nose_x(shot: TraitDraws) -> Tensor:
    """Return the x coordinate of the tip of the nose, which protrudes and so shifts when the head turns."""
    return NOSE_RISE * shot.yaw.sin()


def mouth_half(person: TraitDraws, shot: TraitDraws) -> Tensor:
    """Return half the width of the mouth."""
    return person.mouth_width * (1 + 0.12 * shot.smile)


def mouth_bend(shot: TraitDraws) -> Tensor:
    """Return how far the corners of the mouth are below its center."""
    return -0.06 * shot.smile
