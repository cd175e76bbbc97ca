"""A data set of synthetic identities, drawn from a seed: for experiments, tests and teaching without real photos."""

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
from fedra.machine import require_memory
from fedra.registry import Strength

PAINTING = 1
"""Version of the renderer; increased when its images change, so cached images are not used."""


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
    """Rendered faces of synthetic identities, with unseen identities to verify; needs no download.

    A person has fixed features and colors; `pose`, `light`, `expression`, `occlusion`, `background` and `noise` (blur
    and grain) vary from image to image, each by the strength of its field, 0 for no variation. An image depends only on
    the seed, the person and the image number, so a smaller set is part of a larger one. Of each identity,
    `test_fraction` of the images are held out to measure accuracy; `test_identities` further people are excluded from
    training and compared in balanced `pairs`.
    """
    require_memory(
        "the synthetic faces",
        2 * 3 * (identities + test_identities) * images * size * size,
        "lower data.identities, data.test_identities, data.images or data.size",
    )
    knobs = dict(zip(KNOBS, (pose, light, expression, occlusion, background, noise), strict=True))

    def render(kind: str, people: int) -> Tensor:
        which = [(person, number) for person in range(people) for number in range(images)]
        world = SyntheticFaces(seed, kind, size, knobs)
        fields = {"painting": PAINTING, "seed": seed, "size": size, "people": people, "images": images, **knobs}
        return cached(root, f"synthetic-faces-{kind}", [], lambda: {"inputs": world.images(which)}, fields)["inputs"]

    unseen = [f"stranger {person}" for person in range(test_identities)]
    names = [f"person {person:05d}" for person in range(identities)] + unseen
    rendered = [render("person", identities), *([render("stranger", test_identities)] if unseen else [])]
    people = People(torch.cat(rendered), [name for name in names for _ in range(images)])
    dataset, _ = closed_set("synthetic-faces", people, test_fraction, unseen)
    return check_test(with_drawn_pairs(dataset, pairs, seed) if unseen else dataset)
