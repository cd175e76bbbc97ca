"""The handwritten digits of scikit-learn, which need no download."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from fedra.data.dataset import Dataset, Split
from fedra.data.decoding import stratified_split
from fedra.data.loading import DATASETS


@DATASETS.add("digits")
def digits(root: Path, *, test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2) -> Dataset:
    """1,797 gray 8 x 8 digits from scikit-learn, without a download."""
    values, labels = _read_digits()
    # Values are 0 to 16, and 16 must map to exactly 255.
    pixels = np.rint(values.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    inputs = torch.from_numpy(pixels).unsqueeze(1)
    targets = torch.from_numpy(labels.astype(np.int64))
    train, test = stratified_split(targets, test_fraction)
    return Dataset(
        name="digits",
        train=Split(inputs[train], targets[train]),
        test=Split(inputs[test], targets[test]),
        classes=tuple("0123456789"),
        mean=(0.3053,),
        std=(0.3759,),
    )


def _read_digits() -> tuple[Any, Any]:
    """Return the values and labels that scikit-learn comes with.

    Its file is read without importing scikit-learn and SciPy, which takes longer than everything else before training.
    """
    spec = find_spec("sklearn")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            with gzip.open(file, "rt", encoding="ascii") as lines:
                table = np.loadtxt(lines, delimiter=",")
            return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits  # a version that keeps the file elsewhere

    values, labels = load_digits(return_X_y=True)
    return values, labels
