"""The MedMNIST data sets of 28 x 28 medical images with one label each, in .npz files.

Yang et al., MedMNIST v2: A Large-Scale Lightweight Benchmark for 2D and 3D Biomedical Image Classification,
2023. ChestMNIST has several labels per image and is not included; RetinaMNIST's grades are treated as classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedra.data.cache import cached
from fedra.data.dataset import Dataset, Split
from fedra.data.decoding import Bytes, as_split
from fedra.data.download import RemoteFile, locate
from fedra.data.loading import DATASETS
from fedra.data.npz_files import names_in, read_arrays
from fedra.errors import DataError

RECORD = "https://zenodo.org/records/10519652/files/"
PARTS = ("train", "val", "test")
ORGANS = (
    "bladder",
    "left femur",
    "right femur",
    "heart",
    "left kidney",
    "right kidney",
    "liver",
    "left lung",
    "right lung",
    "pancreas",
    "spleen",
)


@dataclass(frozen=True)
class MedicalSet:
    """A MedMNIST data set: its content, the checksum of its file, and its classes in label order."""

    name: str
    shows: str
    md5: str
    classes: tuple[str, ...]

    @property
    def file(self) -> RemoteFile:
        name = f"{self.name}.npz"
        return RemoteFile(name, (f"{RECORD}{name}?download=1",), md5=self.md5)


SETS = (
    MedicalSet(
        "pathmnist",
        "colon pathology, color",
        "a8b06965200029087d5bd730944a56c1",
        (
            "adipose",
            "background",
            "debris",
            "lymphocytes",
            "mucus",
            "smooth muscle",
            "normal colon mucosa",
            "cancer-associated stroma",
            "colorectal adenocarcinoma epithelium",
        ),
    ),
    MedicalSet(
        "tissuemnist",
        "kidney cortex cells, gray",
        "ebe78ee8b05294063de985d821c1c34b",
        (
            "collecting duct, connecting tubule",
            "distal convoluted tubule",
            "glomerular endothelial cells",
            "interstitial endothelial cells",
            "leukocytes",
            "podocytes",
            "proximal tubule segments",
            "thick ascending limb",
        ),
    ),
    MedicalSet(
        "dermamnist",
        "skin lesions, color",
        "0744692d530f8e62ec473284d019b0c7",
        (
            "actinic keratoses and intraepithelial carcinoma",
            "basal cell carcinoma",
            "benign keratosis-like lesions",
            "dermatofibroma",
            "melanoma",
            "melanocytic nevi",
            "vascular lesions",
        ),
    ),
    MedicalSet(
        "octmnist",
        "retinal OCT, gray",
        "c68d92d5b585d8d81f7112f81e2d0842",
        ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
    ),
    MedicalSet(
        "pneumoniamnist",
        "chest X-rays, gray",
        "28209eda62fecd6e6a2d98b1501bb15f",
        ("normal", "pneumonia"),
    ),
    MedicalSet(
        "retinamnist",
        "eye fundus, color",
        "bd4c0672f1bba3e3a89f0e4e876791e4",
        tuple(f"grade {grade}" for grade in range(5)),
    ),
    MedicalSet(
        "breastmnist",
        "breast ultrasound, gray",
        "750601b1f35ba3300ea97c75c52ff8f6",
        ("malignant", "normal or benign"),
    ),
    MedicalSet(
        "bloodmnist",
        "blood cells, color",
        "7053d0359d879ad8a5505303e11de1dc",
        (
            "basophil",
            "eosinophil",
            "erythroblast",
            "immature granulocytes",
            "lymphocyte",
            "monocyte",
            "neutrophil",
            "platelet",
        ),
    ),
    MedicalSet("organamnist", "abdominal CT, axial, gray", "68e3f8846a6bd62f0c9bf841c0d9eacc", ORGANS),
    MedicalSet("organcmnist", "abdominal CT, coronal, gray", "0afa5834fb105f7705a7d93372119a21", ORGANS),
    MedicalSet("organsmnist", "abdominal CT, sagittal, gray", "e5c39f1af030238290b9557d9503af9d", ORGANS),
)


def _register(medical: MedicalSet) -> None:
    def loader(root: Path, *, use_validation: bool = True, rgb: bool = False) -> Dataset:
        return _load(root, medical, use_validation, rgb)

    loader.__name__ = loader.__qualname__ = medical.name
    loader.__doc__ = (
        f"28 x 28 medical images: {medical.shows}, {len(medical.classes)} classes.\n\n"
        "`use_validation` adds the official validation split to the training split, as FedSoL's authors do;\n"
        "`rgb` repeats a gray channel three times, for models that expect color."
    )
    DATASETS.add(medical.name)(loader)


for _medical in SETS:
    _register(_medical)


def _load(root: Path, medical: MedicalSet, use_validation: bool, rgb: bool) -> Dataset:
    path = locate(medical.file, (root / "medmnist", root))
    stored = cached(root, medical.name, [path], lambda: _decode(path, len(medical.classes)))
    used = PARTS[:2] if use_validation else PARTS[:1]
    train = Split(*(torch.cat([stored[f"{part}_{kind}"] for part in used]) for kind in ("inputs", "targets")))
    test = Split(stored["test_inputs"], stored["test_targets"])
    if rgb:
        train, test = _to_rgb(train), _to_rgb(test)
    channels = train.inputs.shape[1]
    return Dataset(
        medical.name,
        train,
        test,
        medical.classes,
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
        augment=("flip",),
    )


def _to_rgb(split: Split) -> Split:
    # `expand` does not change a color image.
    return Split(split.inputs.expand(-1, 3, -1, -1).contiguous(), split.targets)


def _decode(path: Path, classes: int) -> dict[str, Tensor]:
    stored: dict[str, Tensor] = {}
    arrays = _arrays(path)
    for part in PARTS:
        labels = arrays[f"{part}_labels"]
        if labels.shape[1:] not in ((), (1,)) or labels.dtype.kind not in "ui":
            raise DataError(
                f"{path} must contain one integer label per image, got {labels.dtype} of shape {labels.shape}"
            )
        split = as_split(_images(arrays[f"{part}_images"], path), labels.reshape(-1), classes, path)
        stored[f"{part}_inputs"], stored[f"{part}_targets"] = split.inputs, split.targets
    return stored


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    names = [f"{part}_{kind}" for part in PARTS for kind in ("images", "labels")]
    if missing := set(names) - set(names_in(path)):
        raise DataError(f"{path} must contain the array {sorted(missing)[0]} of MedMNIST, got none: download it again")
    return read_arrays(path, names)


def _images(images: NDArray[Any], path: Path) -> Bytes:
    """Convert uint8 images (N, H, W) or (N, H, W, 3) to (N, C, H, W)."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (3,)):
        raise DataError(
            f"{path} must contain uint8 images, gray or color, got {images.dtype} of shape {images.shape}: download it "
            "again"
        )
    return images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
