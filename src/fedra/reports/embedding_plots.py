"""Plots of the embeddings of several runs side by side: t-SNE maps and histograms of angles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from fedra.analysis.angles import (
    BINS,
    OTHER_CLASS_CROSS_CLIENT,
    OTHER_CLASS_SAME_CLIENT,
    SAME_CLASS_CROSS_CLIENT,
    SAME_CLASS_SAME_CLIENT,
    Angles,
)
from fedra.analysis.embeddings import Embeddings
from fedra.analysis.similar_classes import BINS as COSINE_BINS
from fedra.analysis.similar_classes import PairCosines
from fedra.pictures import (
    COLORS,
    GRID,
    SMALL,
    make_panels,
    place_legend_below,
    save_numbers,
    save_picture,
    set_title,
    shorten,
    style_axes,
)

COLUMNS = 4
NAMED_CLASSES = 20
"""Maximum number of classes with their own color and a legend; more classes use a color wheel."""

Curves = tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...]
CURVES: Curves = (
    ("within classes", (SAME_CLASS_CROSS_CLIENT, SAME_CLASS_SAME_CLIENT), {"color": COLORS[0]}),
    ("between classes", (OTHER_CLASS_CROSS_CLIENT, OTHER_CLASS_SAME_CLIENT), {"color": COLORS[1]}),
)
CLIENT_CURVES: Curves = (
    ("within classes, one client", (SAME_CLASS_SAME_CLIENT,), {"color": COLORS[0]}),
    ("within classes, across clients", (SAME_CLASS_CROSS_CLIENT,), {"color": COLORS[5], "linestyle": (0, (4, 2))}),
    ("between classes, one client", (OTHER_CLASS_SAME_CLIENT,), {"color": COLORS[1]}),
    ("between classes, across clients", (OTHER_CLASS_CROSS_CLIENT,), {"color": COLORS[7], "linestyle": (0, (4, 2))}),
)


def draw_maps(maps: Mapping[str, tuple[Embeddings, NDArray[np.float64]]], path: Path) -> None:
    """Plot the points of every run in its own panel, colored by class, like figure 2 of the FedArc paper."""
    figure, panels = _panels(len(maps), 3.6, 3.6)
    names: tuple[str, ...] = ()
    for axes, (title, (embeddings, points)) in zip(panels, maps.items(), strict=True):
        labels = embeddings.labels.cpu().numpy()
        names = max(names, embeddings.classes or tuple(map(str, range(int(labels.max()) + 1))), key=len)
        colors = np.array(_colors(max(len(embeddings.classes), int(labels.max()) + 1)))
        # Rasterized, because thousands of vector points make a file of megabytes.
        axes.scatter(points[:, 0], points[:, 1], c=colors[labels], s=5, linewidths=0, rasterized=True)
        set_title(axes, title)
        style_map(axes)
    if len(names) <= NAMED_CLASSES:
        dots = [panels[0].scatter([], [], s=18, color=color, label=name) for name, color in _legend_entries(names)]
        place_legend_below(figure, dots)
    save_picture(figure, path, _map_rows(maps))


def _map_rows(maps: Mapping[str, tuple[Embeddings, NDArray[np.float64]]]) -> Iterator[dict[str, Any]]:
    for source, (embeddings, points) in maps.items():
        for label, (x, y) in zip(embeddings.labels.tolist(), points.tolist(), strict=True):
            yield {"source": source, "class": label, "x": x, "y": y}


def draw_angles(measured: Mapping[str, Angles], path: Path) -> None:
    """Plot histograms of the angles within and between classes, also by client if clients are known."""
    rows: list[dict[str, Any]] = []
    figure, panels = _panels(len(measured), 4.4, 3.4, same_scale=True)
    for axes, (title, angles) in zip(panels, measured.items(), strict=True):
        for label, kinds, style in CURVES if angles.clients is None else CLIENT_CURVES:
            if int(angles.histogram(*kinds).sum()):
                _draw_histogram(axes, angles.histogram(*kinds), label, style)
                counts = enumerate(angles.histogram(*kinds).tolist())
                rows += [
                    {"source": title, "pairs": label, "degree": degree, "count": count} for degree, count in counts
                ]
        set_title(axes, title)
        axes.set(xlabel="angle (degrees)", xlim=(0, BINS), xticks=range(0, BINS + 1, 30))
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("pairs per degree (%)")
    handles = max((axes.get_legend_handles_labels()[0] for axes in panels), key=len)
    place_legend_below(figure, handles)
    save_picture(figure, path, rows)


def draw_pairs(
    maps: Mapping[str, tuple[Embeddings, NDArray[np.float64]]],
    cosines: Mapping[str, PairCosines],
    pairs: Sequence[tuple[int, int]],
    path: Path,
) -> None:
    """Plot the most similar classes of different clients: maps above, histograms of cosines below.

    The two classes of a pair have one color and two markers. Like figure 3 of the FedGC paper.

    Args:
        maps: Embeddings of the classes with their positions, by source.
        cosines: The histograms by source.
        pairs: Pairs of class indices.
        path: The file to write; its ending selects the format.
    """
    figure, panels = make_panels(2, len(maps), width=3.7, height=3.4)
    names = next(iter(maps.values()))[0].classes
    handles: list[Artist] = []
    for axes, (title, (embeddings, points)) in zip(panels, maps.items(), strict=False):
        labels = embeddings.labels.cpu().numpy()
        for number, pair in enumerate(pairs):
            for marker, label in zip(("o", "^"), pair, strict=True):
                chosen = points[labels == label]
                look: dict[str, Any] = {"s": 16, "marker": marker, "color": COLORS[number % len(COLORS)]}
                look |= {"facecolors": "none"} if marker == "^" else {"linewidths": 0}
                dots = axes.scatter(chosen[:, 0], chosen[:, 1], rasterized=True, **look)
                dots.set_label(shorten(names[label]) if names else f"class {label}")
                handles += [dots] if axes is panels[0] else []
        set_title(axes, title)
        style_map(axes)
    edges = np.linspace(-1, 1, COSINE_BINS + 1)
    lower = panels[len(maps) :]
    for axes, found in zip(lower, cosines.values(), strict=True):
        for kind, counts, mean, color in (
            ("within classes", found.within, found.within_mean, COLORS[0]),
            ("across a pair", found.across, found.across_mean, COLORS[1]),
        ):
            shares = 100 * counts / max(counts.sum(), 1)
            axes.stairs(shares, edges, fill=True, alpha=0.35, color=color, label=f"{kind}, mean {mean:.3f}")
            axes.stairs(shares, edges, color=color, linewidth=1.2)
        axes.set(xlabel="cosine of two examples", ylabel="pairs (%)", xlim=(-1, 1), xticks=(-1, -0.5, 0, 0.5, 1))
    highest = max(axes.get_ylim()[1] for axes in lower)
    for axes in lower:
        axes.set_ylim(0, 1.35 * highest)  # room for the legend
        axes.legend(loc="upper left", frameon=False, fontsize=SMALL)
    place_legend_below(figure, handles)
    save_picture(figure, path, _pair_rows(cosines, edges))
    save_numbers(path.with_name(f"{path.stem}-map.csv"), _map_rows(maps))


def _pair_rows(cosines: Mapping[str, PairCosines], edges: NDArray[np.float64]) -> Iterator[dict[str, Any]]:
    for source, found in cosines.items():
        for number in range(COSINE_BINS):
            low, high = float(edges[number]), float(edges[number + 1])
            counts = {"within": int(found.within[number]), "across": int(found.across[number])}
            yield {"source": source, "from_cosine": low, "to_cosine": high} | counts


def style_map(axes: Axes) -> None:
    """Style the panel of a map, whose positions have no unit."""
    axes.grid(False)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color=GRID)


def _draw_histogram(axes: Axes, counts: Tensor, label: str, style: dict[str, Any]) -> None:
    shares = 100 * counts.double().numpy() / int(counts.sum())
    axes.stairs(shares, np.arange(BINS + 1), linewidth=1.6, label=label, **style)
    axes.stairs(shares, np.arange(BINS + 1), fill=True, alpha=0.08, color=style["color"])


def _panels(count: int, width: float, height: float, same_scale: bool = False) -> tuple[Figure, list[Axes]]:
    """Create a figure with `count` panels, four per row."""
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows + 0.4), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, sharey=same_scale).flat)
    for axes in grid[count:]:
        axes.remove()
    for axes in grid[:count]:
        style_axes(axes)
    return figure, grid[:count]


def _colors(classes: int) -> list[Any]:
    if classes <= 10:
        return [colormaps["tab10"](number) for number in range(classes)]
    if classes <= NAMED_CLASSES:
        return [colormaps["tab20"](number) for number in range(classes)]
    return [colormaps["hsv"](number / classes) for number in range(classes)]


def _legend_entries(names: tuple[str, ...]) -> list[tuple[str, Any]]:
    return list(zip(names, _colors(len(names)), strict=True))


def angles_table(measured: Mapping[str, Angles]) -> Table:
    """Build a table of the metrics, with one column per run."""
    table = Table(header_style="bold")
    table.add_column("metric")
    for name in measured:
        table.add_column(escape(name), justify="right")
    columns = [angles.metrics() for angles in measured.values()]
    for key in dict.fromkeys(key for found in columns for key in found):
        table.add_row(key.replace("_", " "), *(_format(found.get(key)) for found in columns))
    return table


def _format(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
