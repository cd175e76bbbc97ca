"""The handwritten digits of scikit-learn, which need no download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from fedra.data.dataset import Dataset, Split
from fedra.data.decoding import stratified_split
from fedra.data.loading import DATASETS


@DATASETS.add("digits")
def digits(root: Path, *, test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2) -> Dataset:
    """1,797 gray 8 x 8 digits from scikit-learn, without a download."""
    from sklearn.datasets import load_digits

    source = load_digits()
    # Values are 0 to 16, and 16 must map to exactly 255.
    pixels = np.rint(source.images * (255 / 16)).astype(np.uint8)
    inputs = torch.from_numpy(pixels).unsqueeze(1)
    targets = torch.from_numpy(source.target.astype(np.int64))
    train, test = stratified_split(targets, test_fraction)
    return Dataset(
        name="digits",
        train=Split(inputs[train], targets[train]),
        test=Split(inputs[test], targets[test]),
        classes=tuple("0123456789"),
        mean=(0.3053,),
        std=(0.3759,),
    )
