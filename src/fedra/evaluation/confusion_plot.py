"""Plot of a confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedra.writing import save_figure

MAX_LABELED_CLASSES = 20
"""Maximum number of classes for which cells show counts and axes show class names."""


def draw_confusion(matrix: Sequence[Sequence[int]], classes: Sequence[str], path: Path) -> None:
    """Plot a confusion matrix with true classes as rows, shaded by the fraction of the row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import and only needed here
    from matplotlib.figure import Figure

    classes = [str(name) for name in classes]
    counts = np.asarray(matrix, dtype=np.int64)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(max(0.55 * len(counts) + 1.6, 3.4), 9.0)
    figure = Figure(figsize=(side, side), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(counts) <= MAX_LABELED_CLASSES:
        for row, column in np.ndindex(counts.shape):
            shade = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=8, color=shade)
        names = [name if len(name) <= 18 else f"{name[:17]}…" for name in classes]
        axes.set_xticks(range(len(names)), names, fontsize=8, rotation=45, ha="right")
        axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set(xlabel="predicted class", ylabel="true class")
    save_figure(figure, path)
