"""Face data sets in the formats of their authors: CelebA by identity, and InsightFace's record files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedra.core.deferred import DeferredInputs
from fedra.data.cache import cached
from fedra.data.dataset import Dataset
from fedra.data.images import read_images
from fedra.data.loading import DATASETS
from fedra.data.streaming import choose_stream
from fedra.errors import DataError
from fedra.faces.datasets.assembly import People
from fedra.faces.datasets.celeba import list_celeba
from fedra.faces.datasets.face_folders import Count, Fraction, Seed, Side, face_dataset, gather_people
from fedra.faces.datasets.gathering import Faults, select_people, with_enough_images
from fedra.faces.datasets.recordio import (
    EncodedImages,
    RecordFile,
    RecordImages,
    RecordPeople,
    check_record_files,
    read_property,
    record_people,
)

UnseenCount = Annotated[int, Field(ge=0)]


@DATASETS.add("celeba-identities")
def celeba_identities(
    root: Path,
    *,
    folder: str = "celeba",
    size: Side = 112,
    least: Count = 1,
    identities: Count | None = None,
    test_fraction: Fraction = 0.1,
    test_identities: UnseenCount = 0,
    verify: str | None = None,
    pairs: Count | None = None,
    seed: Seed = 0,
    faults: Faults = "refuse",
    stream: bool | None = None,
) -> Dataset:
    """CelebA by identity: img_align_celeba and identity_CelebA.txt in `folder`.

    The square at the center of each image is resized to `size`. The other fields are those of the data set 'faces'.
    """
    base = root / Path(folder).expanduser()
    listing = list_celeba(base / "identity_CelebA.txt", base / "img_align_celeba")
    wanted = sorted(with_enough_images(listing.classes, least))[:identities]
    if not wanted:
        raise DataError(f"no identity has {least} images (`least`) in {base}: lower `least`")
    people = gather_people(root, "celeba-identities", select_people(listing, wanted), size, least, faults, stream)
    return face_dataset("celeba-identities", root, people, size, test_fraction, test_identities, verify, pairs, seed)


@DATASETS.add("record-faces")
def record_faces(
    root: Path,
    *,
    path: str,
    size: Side = 112,
    least: Count = 1,
    identities: Count | None = None,
    test_fraction: Fraction = 0.1,
    test_identities: UnseenCount = 0,
    verify: str | None = None,
    pairs: Count | None = None,
    seed: Seed = 0,
    stream: bool | None = None,
) -> Dataset:
    """InsightFace's record sets (CASIA-WebFace, MS1M, Glint): `path` is train.rec, with train.idx next to it.

    The set is read without MXNet. `identities` limits the number of identities; with `stream`, images are decoded batch
    by batch, so the set may be larger than memory. `verify` may name one of the .bin files that come with such a set.
    The other fields are those of the data set 'faces'.
    """
    file = root / Path(path).expanduser()
    file = file / "train.rec" if file.is_dir() else file
    check_record_files(file)
    index = file.with_suffix(".idx")
    fields = {"path": str(file), "least": least, "identities": identities}

    def listing() -> dict[str, Tensor]:
        return vars(record_people(RecordFile(file), least=least, most_identities=identities))

    found = RecordPeople(**cached(root, f"record-index-{file.parent.name}", [file, index], listing, fields))
    if not len(found.keys):
        raise DataError(f"no identity has {least} images (`least`) in {file}: lower `least`")
    most = int(found.identities.max())
    declared = read_property(file.with_name("property"))
    if declared and most >= declared[0]:
        raise DataError(
            f"identities in {file} must be below {declared[0]} (its property file), got {most}: download the set again"
        )
    images = RecordImages.of(file, found, size)

    def decode() -> dict[str, Tensor]:
        try:
            with images.open() as content:
                return {"inputs": read_images(EncodedImages(content, len(images)), size=(size, size), square=True)}
        except DataError as error:
            raise DataError(f"{file}: {error}") from None

    streams, notes = choose_stream(stream, len(images), size)
    inputs: Tensor = DeferredInputs(images)
    if not streams:
        inputs = cached(root, f"record-faces-{file.parent.name}", [file, index], decode, fields | {"size": size})[
            "inputs"
        ]
    digits = len(str(most))
    name_of = {identity: f"{identity:0{digits}d}" for identity in set(found.identities.tolist())}
    people = People(inputs, [name_of[identity] for identity in found.identities.tolist()], notes=notes)
    return face_dataset("record-faces", root, people, size, test_fraction, test_identities, verify, pairs, seed)
