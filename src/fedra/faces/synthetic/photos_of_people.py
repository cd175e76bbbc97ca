"""Unaligned photos of synthetic people, in one folder per person, to try the complete face pipeline."""

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
"""Photos rendered at a time: each has as many pixels as dozens of aligned faces."""


@dataclass(frozen=True)
class PhotoSettings:
    """Size of photos, and size and rotation of the faces in them.

    Args:
        height: Height of a photo in pixels.
        width: Width of a photo in pixels.
        smallest: Minimum of half a face's width, as a share of the photo's shorter side.
        largest: Maximum of half a face's width, as a share of the photo's shorter side.
        turn: Maximum rotation of a face in the image plane, in radians.

    Example:
        >>> photos(SyntheticFaces(), [(0, 0)], PhotoSettings(height=480, width=640))[0].shape
        torch.Size([1, 3, 480, 640])
    """

    height: int = 240
    width: int = 320
    smallest: float = 0.16
    largest: float = 0.3
    turn: float = 0.4


def photographs(
    world: SyntheticFaces, which: Sequence[tuple[int, int]], settings: PhotoSettings | None = None
) -> tuple[Tensor, Tensor]:
    """Render photos with one complete face each, at a random position.

    Args:
        world: The people.
        which: Pairs (person, image) of numbers.
        settings: Size of photos, and size and rotation of the faces.

    Returns:
        Images, `uint8` (N, 3, height, width), and five landmarks of each face (N, 5, 2), x first.

    Example:
        >>> images, points = photos(SyntheticFaces(), [(0, 0), (1, 0)])
    """
    settings = settings or PhotoSettings()
    return world.render(which, (settings.height, settings.width), partial(_place_faces, world, settings))


def _place_faces(
    world: SyntheticFaces, settings: PhotoSettings, shot: TraitDraws, which: Sequence[tuple[int, int]]
) -> Placement:
    """Draw a position, size and rotation for each face, with all of the face inside the photo."""
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


def write_photos(
    folder: Path | str,
    world: SyntheticFaces,
    *,
    identities: int,
    images: int,
    first_identity: int = 0,
    first_image: int = 0,
    clients: int = 0,
    settings: PhotoSettings | None = None,
) -> Path:
    """Write photos of synthetic people, folder/person_00000/0000.jpg and so on, and points.json.

    Args:
        folder: A new folder. An existing one raises `DataError`, so synthetic photos are never mixed with real ones.
        world: The people.
        identities: Number of people.
        images: Number of photos of each.
        first_identity: Number of the first person.
        first_image: Number of the first photo of each person.
        clients: Distribute the people over this many folders, client_000/person_00000/0000.jpg; 0 for none.
        settings: Size of photos, and size and rotation of the faces.

    Returns:
        The folder. Its points.json has the five landmarks of each photo by path, in the format of `KnownPoints`.

    Example:
        >>> write_photos("photos", SyntheticFaces(), identities=3, images=4)
        PosixPath('photos')
    """
    base = Path(folder)
    settings = settings or PhotoSettings()
    if base.exists():
        raise DataError(f"the folder for the photos must be new, but '{base}' exists: give another name")
    if clients > identities:
        raise ConfigError(f"clients must be at most {identities} (the number of people), got {clients}")
    people = range(first_identity, first_identity + identities)
    which = [(person, number) for person in people for number in range(first_image, first_image + images)]
    pixels, place = (settings.height, settings.width), partial(_place_faces, world, settings)

    def write_batch(batch: Sequence[tuple[int, int]]) -> dict[str, list[list[float]]]:
        points = {}
        for (person, number), picture, landmarks in zip(batch, *world.render_batch(batch, pixels, place), strict=True):
            client = f"client_{(person - first_identity) * clients // identities:03d}/" if clients else ""
            name = f"{client}person_{person:05d}/{number:04d}.jpg"
            _write(base / name, picture)
            points[name] = [[round(value, 2) for value in point] for point in landmarks.tolist()]
        return points

    points: dict[str, list[list[float]]] = {}
    batches = [which[start : start + BATCH] for start in range(0, len(which), BATCH)]
    # One thread per core with a batch each: torch's own threads synchronize at every operation, slow on busy cores.
    with (
        CountProgress("rendering photos", len(which)) as bar,
        threads(1),
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        try:
            for batch, found in zip(batches, pool.map(write_batch, batches), strict=True):
                points |= found
                bar.advance(len(batch))
        except BaseException:
            pool.shutdown(cancel_futures=True)  # Ctrl-C does not wait for the remaining photos
            raise
    write_atomically(base / "points.json", json.dumps(points, indent=1).encode())
    return base


def _write(path: Path, picture: Tensor) -> None:
    from PIL import Image

    packed = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(packed, "JPEG", quality=92)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(
        path, packed.getvalue(), durable=False
    )  # not synced: thousands of files that are easily rendered again
