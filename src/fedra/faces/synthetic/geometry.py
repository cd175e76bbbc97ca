"""Where things of a made-up face are: on the head, in view when the head turns, and in the pixels of an image.

A pixel is brought into the head's own plane by undoing the similarity that placed the face, then the turn of the
head, which is taken for an ellipsoid: (X, Y) in view and depth Z = D sqrt(1 - X^2 / a^2 - Y^2 / b^2) give
x = X cos(yaw) - Z sin(yaw). Features are painted as a frontal face has them, and so wrap around the head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedra.faces.synthetic.traits import TraitDraws

DEPTH = 0.8
"""How deep a head is, in its units."""
CROWN = 1.08
"""How far the top of a head is above its middle."""
NOSE_RISE = 0.14
"""How far the tip of the nose stands out of the face."""


@dataclass(frozen=True)
class HeadView:
    """Where the pixels of n images lie: `x`, `y` in units of the face with the head upright, (n, H, W)."""

    x: Tensor
    y: Tensor
    pixel: Tensor
    """The side of a pixel in these units, (n, 1, 1): the softness of an edge."""


@dataclass(frozen=True)
class Placement:
    """A similarity from the face's units to pixels: p = center + scale R(angle) u, each (n, 1, 1)."""

    center_x: Tensor
    center_y: Tensor
    scale: Tensor
    angle: Tensor

    def view(self, height: int, width: int) -> HeadView:
        """Every pixel's place in the face's units."""
        rows, columns = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
        across, down = (columns - self.center_x) / self.scale, (rows - self.center_y) / self.scale
        cosine, sine = self.angle.cos(), self.angle.sin()
        return HeadView(cosine * across + sine * down, cosine * down - sine * across, 1 / self.scale)

    def to_pixels(self, x: Tensor, y: Tensor) -> Tensor:
        """Places (n, k) in the face's units as points (n, k, 2), x first; the first pixel's center is (0, 0)."""
        cosine, sine, scale = (value.squeeze(-1) for value in (self.angle.cos(), self.angle.sin(), self.scale))
        across = self.center_x.squeeze(-1) + scale * (cosine * x - sine * y)
        down = self.center_y.squeeze(-1) + scale * (sine * x + cosine * y)
        return torch.stack([across, down], dim=-1) - 0.5


def aligned(shot: TraitDraws, size: int) -> Placement:
    """The face fills a square image, but for the shot's imperfect alignment."""
    unit = size / 2
    return Placement(unit + unit * shot.shift_x, unit + unit * shot.shift_y, unit * (1 + shot.zoom), shot.roll)


def landmarks(person: TraitDraws, shot: TraitDraws, placement: Placement) -> Tensor:
    """Five points (n, 5, 2) in pixels, x first: the eyes, the tip of the nose, the corners of the mouth.

    Those at the image's left come first. A point is found where its place on the frontal face maps back to itself.
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
    """Where a place in view lies on the face seen from the front; the face's middle stays at the image's."""
    z = DEPTH * bulge(person, x, y)
    yaw, pitch = shot.yaw, shot.pitch
    across = x * yaw.cos() - (z - 0.75 * DEPTH) * yaw.sin()
    ahead = x * yaw.sin() + z * yaw.cos()
    return across, y * pitch.cos() - (ahead - 0.75 * DEPTH) * pitch.sin()


def bulge(person: TraitDraws, x: Tensor, y: Tensor) -> Tensor:
    """sqrt(1 - X^2 / a^2 - Y^2 / b^2), nothing outside of the head."""
    return (1 - (x / (1.1 * person.head_width)).square() - (y / (1.1 * CROWN)).square()).clamp(min=1e-4).sqrt()


def nose_x(shot: TraitDraws) -> Tensor:
    """The tip stands out, so that it moves against the face when the head turns."""
    return NOSE_RISE * shot.yaw.sin()


def mouth_half(person: TraitDraws, shot: TraitDraws) -> Tensor:
    """Half the width of the mouth."""
    return person.mouth_width * (1 + 0.12 * shot.smile)


def mouth_bend(shot: TraitDraws) -> Tensor:
    """How far the corners of the mouth are below its middle."""
    return -0.06 * shot.smile
