"""Street View House Numbers, cropped digits, in MATLAB files.

Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, 2011.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedra.data.cache import cached
from fedra.data.dataset import Dataset, Split
from fedra.data.decoding import as_split, splits, tensors
from fedra.data.download import RemoteFile, locate
from fedra.data.loading import DATASETS
from fedra.data.matlab import DamagedMatlab, read_matlab
from fedra.errors import DataError

SITES = ("https://ufldl.stanford.edu/housenumbers/", "http://ufldl.stanford.edu/housenumbers/")
"""The authors' server, with TLS first."""
TRAIN = RemoteFile(
    "train_32x32.mat",
    tuple(site + "train_32x32.mat" for site in SITES),
    md5="e26dedcc434d2e4c54c9b2d4a06d8373",
    size=182040794,
)
TEST = RemoteFile(
    "test_32x32.mat",
    tuple(site + "test_32x32.mat" for site in SITES),
    md5="eb5a983be6a315427106f1b164d9cef3",
    size=64275384,
)


@DATASETS.add("svhn")
def svhn(root: Path, *, official_quirk: bool = False) -> Dataset:
    """73,257 + 26,032 color images of digits from house numbers, 32 x 32 pixels.

    `official_quirk` reproduces the pixels of FedSoL's published code, where an overflow turns x into -x mod 256: an
    inverted image, normalized with the mean and standard deviation of the original.
    """
    paths = [locate(file, (root / "svhn", root)) for file in (TRAIN, TEST)]
    train, test = splits(cached(root, "svhn", paths, lambda: tensors(_read(paths[0]), _read(paths[1]))))
    if official_quirk:
        train, test = _invert(train), _invert(test)
    return Dataset(
        "svhn",
        train,
        test,
        tuple("0123456789"),
        mean=(0.4376821, 0.4437697, 0.47280442),
        std=(0.19803012, 0.20101562, 0.19703614),
        augment=("crop", "flip"),
        notes={"pixels": "inverted as in FedSoL's published code"} if official_quirk else {},
    )


def _invert(split: Split) -> Split:
    return Split(torch.zeros_like(split.inputs) - split.inputs, split.targets)


def _read(path: Path) -> Split:
    try:
        content = read_matlab(path)
    except DamagedMatlab as error:
        raise DataError(f"{path} is not a readable MATLAB file ({error}): delete it and download it again") from None
    images, labels = content.get("X"), content.get("y")
    if images is None or labels is None or images.dtype != "uint8" or images.shape[:3] != (32, 32, 3):
        raise DataError(f"{path} must contain X (32 x 32 x 3 x N bytes) and y (N labels): download it again")
    # The files use the label 10 for the digit 0.
    return as_split(images.transpose(3, 2, 0, 1), np.where(labels == 10, 0, labels).ravel(), 10, path)
