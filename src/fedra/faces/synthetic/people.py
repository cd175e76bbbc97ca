"""Synthetic faces by person and image number; the same numbers always give the same image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedra.console import CountProgress
from fedra.faces.synthetic.geometry import Placement, aligned, landmarks
from fedra.faces.synthetic.renderer import render_faces
from fedra.faces.synthetic.traits import KNOBS, TraitDraws, circumstances, people, shot_draws

BATCH = 64
"""Images rendered at a time: large enough for speed, small enough for the processor's cache."""

Place = Callable[[TraitDraws, Sequence[tuple[int, int]]], Placement]


@dataclass(frozen=True)
class SyntheticFaces:
    """Synthetic identities. Image (person, image) depends only on these fields.

    Args:
        seed: Random seed; each seed gives different people.
        kind: "person", or "stranger" for people who differ from all of the first kind.
        size: Side of an aligned image in pixels.
        knobs: Strength of the variation of "pose", "light", "expression", "occlusion", "background" and "noise";
            default 1.

    Example:
        >>> SyntheticFaces(seed=1, size=64).images([(0, 0), (0, 1), (7, 3)]).shape  # (person, image)
        torch.Size([3, 3, 64, 64])
    """

    seed: int = 0
    kind: str = "person"
    size: int = 64
    knobs: Mapping[str, float] = field(default_factory=dict)

    def images(self, which: Sequence[tuple[int, int]]) -> Tensor:
        """Render aligned images.

        Args:
            which: Pairs (person, image) of numbers.

        Returns:
            Images, uint8 (N, 3, size, size).

        Example:
            >>> SyntheticFaces().images([(0, 0)]).shape
            torch.Size([1, 3, 64, 64])
        """
        return self.images_and_points(which)[0]

    def images_and_points(self, which: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """Render aligned images with landmarks.

        Args:
            which: Pairs (person, image) of numbers.

        Returns:
            Images, uint8 (N, 3, size, size), and five landmarks (N, 5, 2) in pixels, x first, left in the image first.

        Example:
            >>> SyntheticFaces().images_and_points([(0, 0)])[1].shape
            torch.Size([1, 5, 2])
        """
        return self.render(which, (self.size, self.size), lambda shot, _: aligned(shot, self.size))

    def render(self, which: Sequence[tuple[int, int]], pixels: tuple[int, int], place: Place) -> tuple[Tensor, Tensor]:
        """Render images of any shape with freely placed faces.

        Args:
            which: Pairs (person, image) of numbers.
            pixels: Height and width of the images.
            place: Returns the placement of the faces, given their circumstances and numbers.

        Returns:
            Images, uint8 (N, 3, height, width), and five landmarks (N, 5, 2).

        Example:
            >>> images, points = world.render([(0, 0)], (240, 320), place)
        """
        images = torch.empty(len(which), 3, *pixels, dtype=torch.uint8)
        points = torch.empty(len(which), 5, 2)
        with CountProgress("rendering faces", len(which)) as bar:
            for start in range(0, len(which), BATCH):
                batch = which[start : start + BATCH]
                end = start + len(batch)
                images[start:end], points[start:end] = self.render_batch(batch, pixels, place)
                bar.advance(len(batch))
        return images, points

    def render_batch(
        self, which: Sequence[tuple[int, int]], pixels: tuple[int, int], place: Place
    ) -> tuple[Tensor, Tensor]:
        """Render one batch, as `render` does.

        Args:
            which: Pairs (person, image) of numbers.
            pixels: Height and width of the images.
            place: Returns the placement of the faces, given their circumstances and numbers.

        Returns:
            Images, uint8 (N, 3, height, width), and five landmarks (N, 5, 2).

        Example:
            >>> images, points = world.render_batch([(0, 0)], (240, 320), place)
        """
        draws = [shot_draws(self.seed, self.kind, *one, pixels) for one in which]
        numbers, background, grain = (torch.stack(part) for part in zip(*draws, strict=True))
        knobs = {name: self.knobs.get(name, 1.0) for name in KNOBS}
        person = people(self.seed, self.kind, [identity for identity, _ in which])
        shot = circumstances(numbers, knobs)
        placement = place(shot, which)
        busy = 0.5 + 0.8 * knobs["background"] * (background - 0.5)
        return render_faces(person, shot, busy, grain, placement), landmarks(person, shot, placement)
