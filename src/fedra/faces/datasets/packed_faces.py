"""Face data sets in the formats of their authors: CelebA by identity, and InsightFace's record files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedra.data.cache import cached
from fedra.data.dataset import Dataset
from fedra.data.images import read_images
from fedra.data.loading import DATASETS
from fedra.errors import DataError
from fedra.faces.datasets.assembly import People
from fedra.faces.datasets.celeba import list_celeba
from fedra.faces.datasets.face_folders import Count, Fraction, Seed, Side, face_dataset, gather_people
from fedra.faces.datasets.gathering import Faults, select_people, with_enough_images
from fedra.faces.datasets.recordio import EncodedImages, RecordFile, read_property, record_people

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
) -> Dataset:
    """CelebA by identity: img_align_celeba and identity_CelebA.txt in `folder`.

    The square at the center of each image is resized to `size`. The other fields are those of the data set 'faces'.
    """
    base = root / Path(folder).expanduser()
    listing = list_celeba(base / "identity_CelebA.txt", base / "img_align_celeba")
    wanted = sorted(with_enough_images(listing.classes, least))[:identities]
    if not wanted:
        raise DataError(f"no identity has {least} images (`least`) in {base}: lower `least`")
    people = gather_people(root, "celeba-identities", select_people(listing, wanted), size, least, faults)
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
) -> Dataset:
    """InsightFace's record sets (CASIA-WebFace, MS1M, Glint): `path` is train.rec, with train.idx next to it.

    The set is read without MXNet and decoded, so its images must fit into memory; `identities` limits the number of
    identities. `verify` may name one of the .bin files that come with such a set. The other fields are those of the
    data set 'faces'.
    """
    file = root / Path(path).expanduser()
    file = file / "train.rec" if file.is_dir() else file
    records = RecordFile(file)
    found = record_people(records, least=least, most_identities=identities)
    if not found.keys:
        raise DataError(f"no identity has {least} images (`least`) in {file}: lower `least`")
    declared = read_property(file.with_name("property"))
    if declared and max(found.identities) >= declared[0]:
        raise DataError(
            f"identities in {file} must be below {declared[0]} (its property file), got {max(found.identities)}: "
            "download the set again"
        )

    def decode() -> dict[str, Tensor]:
        try:
            return {"inputs": read_images(EncodedImages(records, found.keys), size=(size, size), square=True)}
        except DataError as error:
            raise DataError(f"{file}: {error}") from None

    fields = {"path": str(file), "size": size, "least": least, "identities": identities}
    sources = [file, file.with_suffix(".idx")]
    inputs = cached(root, f"record-faces-{file.parent.name}", sources, decode, fields)["inputs"]
    digits = len(str(max(found.identities)))
    people = People(inputs, [f"{identity:0{digits}d}" for identity in found.identities])
    return face_dataset("record-faces", root, people, size, test_fraction, test_identities, verify, pairs, seed)
