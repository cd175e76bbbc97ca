"""Made-up faces as photographs that nobody has aligned, in a folder for each person: to try the whole road."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fedra.console import CountProgress
from fedra.core.random import generator
from fedra.errors import ConfigError, DataError
from fedra.faces.synthetic.geometry import Placement
from fedra.faces.synthetic.people import SyntheticFaces
from fedra.faces.synthetic.traits import TraitDraws
from fedra.runners.base import threads
from fedra.writing import write_atomically

BATCH = 8
"""Photographs painted at once: each has as many pixels as dozens of aligned faces."""


@dataclass(frozen=True)
class PhotographSettings:
    """How large photographs are, and how faces lie in them: half a face's width as shares of the shorter side."""

    height: int = 240
    width: int = 320
    smallest: float = 0.16
    largest: float = 0.3
    turn: float = 0.4
    """The largest turn of a face in the picture, in radians."""


def photographs(
    world: SyntheticFaces, which: Sequence[tuple[int, int]], settings: PhotographSettings | None = None
) -> tuple[Tensor, Tensor]:
    """Photographs with one whole face each, somewhere in the picture.

    Args:
        world: The people.
        which: Pairs (person, image) of numbers.
        settings: How large photographs are, and how faces lie in them.

    Returns:
        `uint8` images (N, 3, height, width), and five points of each face (N, 5, 2), x first.

    Example:
        >>> images, points = photographs(SyntheticFaces(), [(0, 0), (1, 0)])
    """
    settings = settings or PhotographSettings()
    return world.painted(which, (settings.height, settings.width), partial(_placed, world, settings))


def _placed(
    world: SyntheticFaces, settings: PhotographSettings, shot: TraitDraws, which: Sequence[tuple[int, int]]
) -> Placement:
    """A place, a size and a turn for every face, so that all of it is in the picture."""
    draws = torch.stack([torch.rand(4, generator=generator(world.seed, f"{world.kind} place", *one)) for one in which])
    size, turn, across, down = (column[:, None, None] for column in draws.unbind(dim=1))
    scale = min(settings.height, settings.width) * torch.lerp(
        torch.tensor(settings.smallest), torch.tensor(settings.largest), size
    )
    margin = 1.15 * scale
    return Placement(
        margin + across * (settings.width - 2 * margin),
        margin + down * (settings.height - 2 * margin),
        scale,
        settings.turn * (2 * turn - 1) + shot.roll,
    )


def write_photographs(
    folder: Path | str,
    world: SyntheticFaces,
    *,
    identities: int,
    images: int,
    first_identity: int = 0,
    first_image: int = 0,
    clients: int = 0,
    settings: PhotographSettings | None = None,
) -> Path:
    """Write photographs of synthetic people, folder/person_00000/0000.jpg and so on, and points.json.

    Args:
        folder: A new folder; one that exists is refused, so real photographs are never mixed with synthetic ones.
        world: The people.
        identities: How many people.
        images: Photographs of each.
        first_identity: Number of the first person.
        first_image: Number of the first photograph of each.
        clients: Put the people into as many folders, client_000/person_00000/0000.jpg; 0 for none.
        settings: How large photographs are, and how faces lie in them.

    Returns:
        The folder; its points.json has the five points of every photograph by its path, as `KnownPoints` reads them.

    Example:
        >>> write_photographs("photos", SyntheticFaces(), identities=3, images=4)
        PosixPath('photos')
    """
    base = Path(folder)
    settings = settings or PhotographSettings()
    if base.exists():
        raise DataError(f"'{base}' is there already: name a new folder for the photographs")
    if clients > identities:
        raise ConfigError(f"{identities} people cannot be dealt to {clients} clients: paint more people")
    everybody = range(first_identity, first_identity + identities)
    which = [(person, number) for person in everybody for number in range(first_image, first_image + images)]
    pixels, place = (settings.height, settings.width), partial(_placed, world, settings)

    def paint(some: Sequence[tuple[int, int]]) -> dict[str, list[list[float]]]:
        points = {}
        for one, picture, five in zip(some, *world.batch(some, pixels, place), strict=True):
            client = f"client_{(one[0] - first_identity) * clients // identities:03d}/" if clients else ""
            name = f"{client}person_{one[0]:05d}/{one[1]:04d}.jpg"
            _write(base / name, picture)
            points[name] = [[round(value, 2) for value in point] for point in five.tolist()]
        return points

    points: dict[str, list[list[float]]] = {}
    batches = [which[start : start + BATCH] for start in range(0, len(which), BATCH)]
    # A thread for each core and batch: torch's own threads wait for each other at every stroke, for ever on busy cores.
    with (
        CountProgress("painting photographs", len(which)) as bar,
        threads(1),
        ThreadPoolExecutor(os.cpu_count()) as painters,
    ):
        try:
            for some, found in zip(batches, painters.map(paint, batches), strict=True):
                points |= found
                bar.advance(len(some))
        except BaseException:
            painters.shutdown(cancel_futures=True)  # Ctrl-C does not wait for the photographs that are left
            raise
    write_atomically(base / "points.json", json.dumps(points, indent=1).encode())
    return base


def _write(path: Path, picture: Tensor) -> None:
    from PIL import Image

    packed = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(packed, "JPEG", quality=92)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, packed.getvalue(), lasting=False)  # thousands, and easily painted again
