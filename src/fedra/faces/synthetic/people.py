"""Made-up faces by their numbers: any image of any person, always the same one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedra.console import CountProgress
from fedra.faces.synthetic.geometry import Placement, aligned, landmarks
from fedra.faces.synthetic.renderer import paint
from fedra.faces.synthetic.traits import KNOBS, TraitDraws, circumstances, people, shot_draws

BATCH = 64
"""Images painted at once: large enough for speed, small enough for the processor's cache."""

Place = Callable[[TraitDraws, Sequence[tuple[int, int]]], Placement]


@dataclass(frozen=True)
class SyntheticFaces:
    """A world of people who do not exist. Image (identity, number) depends on these fields and on nothing else.

    Attributes:
        seed: Random seed; each seed gives different people.
        kind: "person", or "stranger" for people who differ from all of the first kind.
        size: Side of an aligned image in pixels.
        knobs: How strongly "pose", "light", "expression", "occlusion", "background" and "noise" vary, 1 unless given.

    Example:
        >>> SyntheticFaces(seed=1, size=64).images([(0, 0), (0, 1), (7, 3)]).shape  # (person, image)
        torch.Size([3, 3, 64, 64])
    """

    seed: int = 0
    kind: str = "person"
    size: int = 64
    knobs: Mapping[str, float] = field(default_factory=dict)

    def images(self, which: Sequence[tuple[int, int]]) -> Tensor:
        """uint8 (N, 3, size, size) of (identity, number) pairs."""
        return self.images_and_points(which)[0]

    def images_and_points(self, which: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """The images, and five landmark points (N, 5, 2) of each in pixels, x first, the image's left first."""
        return self.painted(which, (self.size, self.size), lambda shot, _: aligned(shot, self.size))

    def painted(self, which: Sequence[tuple[int, int]], pixels: tuple[int, int], place: Place) -> tuple[Tensor, Tensor]:
        """Images of another shape (height, width), their faces where `place` puts them, and their points."""
        images = torch.empty(len(which), 3, *pixels, dtype=torch.uint8)
        points = torch.empty(len(which), 5, 2)
        with CountProgress("painting faces", len(which)) as bar:
            for start in range(0, len(which), BATCH):
                some = which[start : start + BATCH]
                end = start + len(some)
                images[start:end], points[start:end] = self.batch(some, pixels, place)
                bar.advance(len(some))
        return images, points

    def batch(self, which: Sequence[tuple[int, int]], pixels: tuple[int, int], place: Place) -> tuple[Tensor, Tensor]:
        """The same for a few images, all at once."""
        draws = [shot_draws(self.seed, self.kind, *one, pixels) for one in which]
        numbers, background, grain = (torch.stack(part) for part in zip(*draws, strict=True))
        knobs = {name: self.knobs.get(name, 1.0) for name in KNOBS}
        person = people(self.seed, self.kind, [identity for identity, _ in which])
        shot = circumstances(numbers, knobs)
        placement = place(shot, which)
        busy = 0.5 + 0.8 * knobs["background"] * (background - 0.5)
        return paint(person, shot, busy, grain, placement), landmarks(person, shot, placement)
