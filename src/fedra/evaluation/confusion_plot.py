"""Plot of a confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

MAX_LABELED_CLASSES = 20
"""Maximum number of classes for which cells show counts and axes show class names."""


def draw_confusion(matrix: Sequence[Sequence[int]], classes: Sequence[str], path: Path) -> None:
    """Plot a confusion matrix with true classes as rows, shaded by the fraction of the row."""
    from fedra.pictures import SMALL, make_panels, name_ticks, save_picture, style_heat_map  # slow to import

    classes = [str(name) for name in classes]
    counts = np.asarray(matrix, dtype=np.int64)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(max(0.55 * len(counts) + 1.6, 3.4), 9.0)
    figure, (axes,) = make_panels(width=side, height=side)
    style_heat_map(axes)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(counts) <= MAX_LABELED_CLASSES:
        for row, column in np.ndindex(counts.shape):
            shade = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=SMALL, color=shade)
        name_ticks(axes, classes)
        name_ticks(axes, classes, axis="y")
    axes.set(xlabel="predicted class", ylabel="true class")
    rows = [
        {"true": classes[row], "predicted": classes[column], "examples": int(counts[row, column])}
        for row, column in np.ndindex(counts.shape)
    ]
    save_picture(figure, path, rows)
