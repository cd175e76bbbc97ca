"""Faces of people who do not exist, painted from a seed: for trials, tests and teaching, with nobody's photograph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedra.data.cache import cached
from fedra.data.dataset import Dataset
from fedra.data.loading import DATASETS
from fedra.faces.datasets.assembly import People, check_test, closed_set, with_drawn_pairs
from fedra.faces.datasets.face_folders import Count, Fraction, Seed, Side
from fedra.faces.synthetic.people import SyntheticFaces
from fedra.faces.synthetic.traits import KNOBS
from fedra.registry import Strength

PAINTING = 1
"""Raised whenever the painter changes, so that images kept from before are not believed."""


@DATASETS.add("synthetic-faces")
def synthetic_faces(
    root: Path,
    *,
    identities: Annotated[int, Field(gt=1)] = 100,
    images: Count = 20,
    size: Side = 64,
    test_fraction: Fraction = 0.1,
    test_identities: Annotated[int, Field(ge=0)] = 50,
    pairs: Count | None = None,
    seed: Seed = 0,
    pose: Strength = 1.0,
    light: Strength = 1.0,
    expression: Strength = 1.0,
    occlusion: Strength = 1.0,
    background: Strength = 1.0,
    noise: Strength = 1.0,
) -> Dataset:
    """Painted faces of made-up people, with strangers to verify: needs no download and shows nobody.

    A person has fixed features and colors; `pose`, `light`, `expression`, `occlusion`, `background` and `noise` (blur
    and grain) change from image to image, each as strongly as its field says, 0 for not at all. An image depends on the
    seed, the person and its number alone, so that a smaller set is part of a larger one. Of every identity
    `test_fraction` of the images are held out to count accuracy on; `test_identities` others are never trained on and
    compared in balanced `pairs`.
    """
    knobs = dict(zip(KNOBS, (pose, light, expression, occlusion, background, noise), strict=True))

    def kept(kind: str, people: int) -> Tensor:
        which = [(person, number) for person in range(people) for number in range(images)]
        world = SyntheticFaces(seed, kind, size, knobs)
        fields = {"painting": PAINTING, "seed": seed, "size": size, "people": people, "images": images, **knobs}
        return cached(root, f"synthetic-faces-{kind}", [], lambda: {"inputs": world.images(which)}, fields)["inputs"]

    strangers = [f"stranger {person}" for person in range(test_identities)]
    everybody = [f"person {person:05d}" for person in range(identities)] + strangers
    painted = [kept("person", identities), *([kept("stranger", test_identities)] if strangers else [])]
    people = People(torch.cat(painted), [name for name in everybody for _ in range(images)])
    dataset, _ = closed_set("synthetic-faces", people, test_fraction, strangers)
    return check_test(with_drawn_pairs(dataset, pairs, seed) if strangers else dataset)
