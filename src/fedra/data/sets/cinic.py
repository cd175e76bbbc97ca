"""CINIC-10: the classes of CIFAR-10 with images from CIFAR-10 and ImageNet, as folders of images.

Darlow et al., CINIC-10 Is Not ImageNet or CIFAR-10, 2018.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch

from fedra.data.cache import cached
from fedra.data.dataset import Dataset, Split
from fedra.data.download import RemoteFile, locate
from fedra.data.images import indices, list_images, read_images
from fedra.data.loading import DATASETS
from fedra.data.sets.cifar_names import CIFAR10_CLASSES
from fedra.data.unpacking import unpack_tar
from fedra.errors import DataError

ARCHIVE = RemoteFile(
    "CINIC-10.tar.gz",
    (
        "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
        "https://datashare.is.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
    ),
    md5="6ee4d0c996905fe93221de577967a372",
    size=687544992,
)

UNPACKED_LIMIT = 4 * 2**30
"""Maximum size in bytes; the 270,000 PNG files take about one gigabyte."""


@DATASETS.add("cinic10")
def cinic10(root: Path, *, use_valid: bool = False) -> Dataset:
    """90,000 + 90,000 color images of 32 x 32 pixels in CIFAR-10's classes; 90,000 more with `use_valid`."""
    base = _find_folder(root)
    train = _read(root, base / "train")
    if use_valid:
        valid = _read(root, base / "valid")
        train = Split(torch.cat([train.inputs, valid.inputs]), torch.cat([train.targets, valid.targets]))
    return Dataset(
        "cinic10",
        train,
        _read(root, base / "test"),
        CIFAR10_CLASSES,
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
        augment=("reflect-crop", "flip"),
    )


def _find_folder(root: Path) -> Path:
    for name in ("cinic-10", "CINIC-10"):
        if (root / name).is_dir():
            return root / name
    archive = locate(ARCHIVE, (root,))
    unpacking = Path(tempfile.mkdtemp(dir=root, prefix="cinic-10.unpacking."))
    try:
        unpack_tar(archive, unpacking, limit=UNPACKED_LIMIT)
        # Renamed after unpacking, so a folder named cinic-10 is always complete.
        return unpacking.rename(root / "cinic-10")
    finally:
        shutil.rmtree(unpacking, ignore_errors=True)


def _read(root: Path, folder: Path) -> Split:
    listing = list_images(folder)
    if set(listing.classes) != set(CIFAR10_CLASSES):
        raise DataError(f"{folder} must contain the ten classes of CINIC-10: unpack {ARCHIVE.name} again")
    stored = cached(
        root,
        f"cinic10-{folder.name}",
        listing.paths,
        lambda: {"inputs": read_images(listing.paths, size=(32, 32))},
    )
    return Split(stored["inputs"], indices(listing.classes, CIFAR10_CLASSES))
