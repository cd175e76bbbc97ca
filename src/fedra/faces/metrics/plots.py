"""Plots of verification and identification: ROC, score histograms, CMC, and the worst errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fedra.errors import ConfigError, DataError
from fedra.faces.metrics.embedding_checks import check_flags
from fedra.faces.metrics.error_rates import Scores
from fedra.faces.metrics.identification import ClosedSet
from fedra.pictures import (
    COLORS,
    DASHED,
    INK,
    SMALL,
    TITLE,
    line_style,
    make_panels,
    name_ticks,
    place_legend,
    save_picture,
    use_counts,
)
from fedra.writing import save_figure

GENUINE, IMPOSTOR = COLORS[0], COLORS[1]
BINS = 80
MOST_CORNERS = 2000
"""Largest number of points of a ROC curve in the file with its numbers."""

ImagesOf = Callable[[int], tuple[Tensor, Tensor]]
"""Returns the two images of a pair by its index: (C, H, W), uint8 or floats from 0 to 1."""


def draw_roc(curves: Mapping[str, Scores], path: Path | str) -> None:
    """Plot TAR over FAR on a logarithmic axis, from the smallest FAR that the impostors can measure."""
    figure, axes = _make_axes("curves", curves)
    smallest = min(1 / len(scores.impostor) for scores in curves.values())
    rows: list[dict[str, object]] = []
    for number, (name, scores) in enumerate(curves.items()):
        far, tar, thresholds = scores.curve()
        # Zero is not on a logarithmic axis: draw it at the rate of one impostor.
        shown = np.maximum(far, 1 / len(scores.impostor))
        label = f"{name} (AUROC {scores.auroc():.4f}, EER {scores.eer():.2%})"
        axes.plot(shown, tar, label=label, clip_on=False, **line_style(number))
        kept = np.unique(np.linspace(0, len(far) - 1, MOST_CORNERS).round().astype(int))
        points = zip(far[kept].tolist(), tar[kept].tolist(), thresholds[kept].tolist(), strict=True)
        rows += [{"run": name, "far": x, "tar": y, "threshold": at} for x, y, at in points]
    axes.set(xscale="log", xlim=(smallest, 1), ylim=(0, 1), xlabel="false accept rate", ylabel="true accept rate")
    place_legend(axes)
    save_picture(figure, path, rows)


def draw_scores(scores: Scores, path: Path | str, threshold: float | None = None) -> None:
    """Plot histograms of genuine and impostor scores, each of area one, with the threshold if given."""
    figure, axes = _make_axes("scores", {"scores": scores})
    low = min(scores.genuine[0], scores.impostor[0])
    high = max(scores.genuine[-1], scores.impostor[-1])
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    columns: dict[str, list[float]] = {"from": edges[:-1].tolist(), "to": edges[1:].tolist()}
    for name, values, color in (("genuine", scores.genuine, GENUINE), ("impostor", scores.impostor, IMPOSTOR)):
        density = np.histogram(values, edges)[0] / (len(values) * (edges[1] - edges[0]))
        label = f"{name}, {len(values):,} (mean {values.mean(dtype=np.float64):.3f})"
        axes.stairs(density, edges, fill=True, color=color, alpha=0.35, label=label)
        axes.stairs(density, edges, color=color, linewidth=1.2)
        columns[name] = density.tolist()
    if threshold is not None:
        axes.axvline(threshold, color=INK, linewidth=1, linestyle=DASHED, label=f"threshold {threshold:.3f}")
    axes.set(xlabel="score", ylabel="density")
    place_legend(axes)
    save_picture(figure, path, [dict(zip(columns, bin, strict=True)) for bin in zip(*columns.values(), strict=True)])


def draw_cmc(curves: Mapping[str, ClosedSet], path: Path | str) -> None:
    """Plot the share of probes identified up to each rank."""
    figure, axes = _make_axes("curves", curves)
    for number, (name, found) in enumerate(curves.items()):
        ranks = np.arange(1, len(found.cmc) + 1)
        label = f"{name} (rank 1: {found.rank(1):.2%})"
        axes.plot(ranks, found.cmc, label=label, clip_on=False, **line_style(number, len(ranks)))
    rows = [
        {"run": name, "rank": rank, "identification_rate": float(rate)}
        for name, found in curves.items()
        for rank, rate in enumerate(found.cmc, start=1)
    ]
    lowest = min(found.cmc[0] for found in curves.values())
    use_counts(axes, "rank")
    axes.set(ylabel="identification rate", ylim=(max(0.0, lowest - 0.05 - 0.1 * (1 - lowest)), 1))
    place_legend(axes)
    save_picture(figure, path, rows)


def draw_spread(aurocs: Mapping[str, Sequence[float]], path: Path | str) -> None:
    """Plot the distribution of AUROC over clients: a box per name, a dot per client."""
    figure, axes = _make_axes("aurocs", aurocs)
    jitter = np.random.default_rng(0)
    for number, (name, values) in enumerate(aurocs.items()):
        color = COLORS[number % len(COLORS)]
        axes.boxplot([list(values)], positions=[number], widths=0.5, showfliers=False, medianprops={"color": INK})
        across = number + jitter.uniform(-0.16, 0.16, len(values))
        axes.plot(across, values, "o", color=color, alpha=0.45, markersize=3.5, label=f"{name} ({np.mean(values):.4f})")
    name_ticks(axes, list(aurocs))
    axes.set(ylabel="AUROC of a client")
    place_legend(axes, title="mean over clients")
    save_figure(figure, path)


def _make_axes(name: str, curves: Mapping[str, object]) -> tuple[Figure, Axes]:
    if not curves:
        raise ConfigError(f"{name} must have at least one entry to plot, got none")
    figure, (axes,) = make_panels(width=6.4, height=4.4)
    return figure, axes


def worst_errors(scores: Tensor, same: Tensor, count: int = 8) -> tuple[Tensor, Tensor]:
    """Return the pairs with the highest impostor and the lowest genuine scores, worst first; ties in order."""
    check_flags("labels", same, len(scores), "scores")
    if count < 1:
        raise ConfigError(f"count must be at least 1, got {count}")
    scores, same = scores.detach().cpu(), same.cpu()
    if not bool(torch.isfinite(scores).all()):
        raise DataError("the scores must be finite, got NaN or infinity: check the embeddings")
    impostor, genuine = (~same).nonzero().squeeze(1), same.nonzero().squeeze(1)
    highest = scores[impostor].sort(descending=True, stable=True).indices[:count]
    lowest = scores[genuine].sort(stable=True).indices[:count]
    return impostor[highest], genuine[lowest]


def draw_worst(scores: Tensor, same: Tensor, images_of: ImagesOf, path: Path | str, count: int = 8) -> None:
    """Draw the worst errors: impostor pairs with the highest scores above, genuine pairs with the lowest below."""
    impostor, genuine = worst_errors(scores, same, count)
    columns = max(len(impostor), len(genuine))
    if not columns:
        raise DataError("there must be at least one pair to draw, got none")
    figure = Figure(figsize=(max(4.0, 1.15 * columns), 5.6), layout="constrained")
    halves = np.asarray(figure.subfigures(2, 1))
    titles = ("different people, highest scores", "same person, lowest scores")
    for half, title, rows, color in zip(halves, titles, (impostor, genuine), (IMPOSTOR, GENUINE), strict=True):
        half.suptitle(title, fontsize=TITLE, color=color, x=0.02, ha="left")
        grid = half.subplots(2, columns, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for column, row in enumerate(rows.tolist()):
            grid[0, column].set_title(f"{float(scores[row]):.3f}", fontsize=SMALL, color=INK)
            for axes, image in zip(grid[:, column], images_of(row), strict=True):
                axes.imshow(_pixels(image, row), interpolation="nearest")
    save_figure(figure, path)


def _pixels(image: Tensor, row: int) -> NDArray[np.uint8]:
    """Convert an image for matplotlib to uint8 (H, W, 3)."""
    if image.dim() != 3 or image.shape[0] not in (1, 3):
        raise DataError(f"an image of pair {row} must have shape (1 or 3, height, width), got {tuple(image.shape)}")
    image = image.detach().cpu()
    if image.is_floating_point():
        image = (image.clamp(0, 1) * 255).round()
    values: NDArray[np.uint8] = image.to(torch.uint8).permute(1, 2, 0).numpy()
    return values.repeat(3, axis=2) if values.shape[2] == 1 else values
