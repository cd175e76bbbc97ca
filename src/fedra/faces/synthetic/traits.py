"""Parameters of a synthetic face: traits that are fixed for a person, and circumstances that vary between shots.

Each value is mean + spread * u with u uniform in [-1, 1]. Lengths are in units of half an aligned image, so the eyes of
the mean face are where the common 112 x 112 template has them. Append new rows at the end of a table, because the order
determines the random draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from fedra.core.random import generator
from fedra.errors import ConfigError, nearest

V = TypeVar("V")
Knobs = Mapping[str, float]
"""Strength of the variation of each kind of circumstance; 1 is the default."""

KNOBS = ("pose", "light", "expression", "occlusion", "background", "noise")

TRAITS: dict[str, tuple[float, float]] = {
    "eye_x": (0.315, 0.055),
    "eye_y": (-0.08, 0.04),
    "eye_width": (0.115, 0.03),
    "eye_height": (0.058, 0.02),
    "eye_tilt": (0.0, 0.25),
    "iris_size": (0.052, 0.01),
    "iris_tone": (0.45, 0.4),
    "iris_blue": (0.5, 0.5),
    "brow_gap": (0.15, 0.04),
    "brow_width": (0.17, 0.04),
    "brow_thickness": (0.032, 0.017),
    "brow_tilt": (0.0, 0.3),
    "nose_y": (0.28, 0.09),
    "nose_width": (0.11, 0.04),
    "nose_bridge": (0.5, 0.5),
    "mouth_y": (0.645, 0.06),
    "mouth_width": (0.26, 0.065),
    "lip_thickness": (0.055, 0.028),
    "lip_red": (0.5, 0.5),
    "head_width": (0.74, 0.08),
    "chin_y": (1.06, 0.1),
    "jaw": (2.4, 0.5),
    "hair_tone": (0.35, 0.3),
    "hair_red": (0.5, 0.5),
    "hairline": (-0.6, 0.16),
    "hair_length": (0.3, 0.9),
    "parting": (0.0, 0.35),
    "skin_tone": (0.68, 0.14),
    "skin_red": (0.5, 0.5),
    "mole_x": (0.0, 0.5),
    "mole_y": (0.45, 0.45),
    "mole_size": (0.02, 0.03),
    "beard": (-0.2, 0.8),
    "cheek": (0.0, 0.5),
}

CIRCUMSTANCES: dict[str, tuple[float, float, str]] = {
    "yaw": (0.0, 0.45, "pose"),
    "pitch": (0.0, 0.3, "pose"),
    "roll": (0.0, 0.12, "pose"),
    "zoom": (0.0, 0.1, "pose"),
    "shift_x": (0.0, 0.08, "pose"),
    "shift_y": (0.0, 0.08, "pose"),
    "light_x": (0.0, 1.2, "light"),
    "light_y": (-0.3, 0.8, "light"),
    "contrast": (0.5, 0.35, "light"),
    "exposure": (0.0, 0.5, "light"),
    "warmth": (0.0, 0.25, "light"),
    "tint": (0.0, 0.15, "light"),
    "smile": (0.3, 1.0, "expression"),
    "mouth_open": (-0.3, 1.0, "expression"),
    "brow_raise": (0.0, 0.05, "expression"),
    "blink": (0.3, 0.5, "expression"),
    "gaze": (0.0, 0.4, "expression"),
    "glasses": (0.0, 1.0, "occlusion"),
    "cover": (0.0, 1.0, "occlusion"),
    "cover_x": (0.0, 0.9, "occlusion"),
    "cover_y": (0.3, 0.8, "occlusion"),
    "cover_size": (0.4, 0.15, "occlusion"),
    "cover_tone": (0.5, 0.5, "occlusion"),
    "clothes_tone": (0.5, 0.5, "background"),
    "clothes_red": (0.5, 0.5, "background"),
    "hair_shade": (0.0, 0.35, "light"),
    "blur": (0.0, 1.0, "noise"),
    "grain": (0.0, 0.05, "noise"),
}
COARSE = 6
"""Cells per side of the background pattern."""


def read_strengths(words: Iterable[str]) -> dict[str, float]:
    """Parse strengths of variation such as "light=0.5"."""
    found = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in KNOBS:
            raise ConfigError(f"strength must name one of {', '.join(KNOBS)}, got '{word}': {nearest(name, KNOBS)}")
        try:
            found[name] = float(text)
        except ValueError:
            found[name] = math.nan
        if not 0 <= found[name] < math.inf:
            raise ConfigError(f"the strength of {name} must be a number of at least 0, got '{text}': write {name}=0.5")
    return found


class TraitDraws:
    """Named values of n faces, each (n, 1, 1) to broadcast over pixels."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> Tensor:
        return self._values[name]


def people(seed: int, kind: str, identities: Sequence[int]) -> TraitDraws:
    """Draw the traits of people by their numbers; repeated people are drawn once."""
    numbers = torch.tensor(identities)
    distinct, rows = torch.unique(numbers, return_inverse=True)
    draws = torch.stack([_signed(generator(seed, kind, int(person)), len(TRAITS)) for person in distinct])[rows]
    return TraitDraws(
        {name: (mean + spread * draws[:, column])[:, None, None] for column, (name, (mean, spread)) in _rows(TRAITS)}
    )


def circumstances(draws: Tensor, knobs: Knobs) -> TraitDraws:
    """Compute the circumstances of shots from draws (n, number of circumstances) in [-1, 1]."""
    return TraitDraws(
        {
            name: (mean + spread * knobs[knob] * draws[:, column])[:, None, None]
            for column, (name, (mean, spread, knob)) in _rows(CIRCUMSTANCES)
        }
    )


def shot_draws(seed: int, kind: str, identity: int, image: int, pixels: tuple[int, int]) -> tuple[Tensor, ...]:
    """Draw the random values of one image: circumstances, background (3, cells, cells) and grain (3, H, W)."""
    draw = generator(seed, f"{kind} shot", identity, image)
    background = torch.rand(3, COARSE, COARSE, generator=draw)
    return _signed(draw, len(CIRCUMSTANCES)), background, torch.randn(3, *pixels, generator=draw)


def _signed(draw: torch.Generator, count: int) -> Tensor:
    return torch.rand(count, generator=draw) * 2 - 1


def _rows(table: Mapping[str, V]) -> enumerate[tuple[str, V]]:
    return enumerate(table.items())
