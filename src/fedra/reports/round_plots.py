"""Plots over the rounds of what diagnostics record: local models, proximal loss, distances, layers, smoothed curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedra.pictures import (
    COLORS,
    QUIET,
    line_style,
    make_panels,
    name_ticks,
    place_legend,
    place_legend_below,
    save_picture,
    set_title,
    use_counts,
)
from fedra.reports.run_groups import (
    Groups,
    plot_mean,
    read_client_series,
    read_series,
    require,
    series_rows,
    smooth,
    spread,
)

DASHED = (0, (4, 2))


def draw_smoothed(groups: Groups, path: Path, weight: float = 0.0) -> None:
    """Plot test accuracy and training loss over the rounds, smoothed.

    Args:
        groups: Runs by label; seeds of a group are averaged.
        path: The file to write; its ending selects the format.
        weight: Weight of the past in the exponential moving average; 0 does not smooth.
    """
    figure, (left, right) = make_panels(1, 2, width=4.75, height=3.8)
    rows = []
    for number, (name, runs) in enumerate(groups.items()):
        for axes, key, factor in ((left, "accuracy", 100.0), (right, "train_loss", 1.0)):
            rounds, values = read_series(runs, key, factor)
            smoothed = smooth(values, weight)
            plot_mean(axes, rounds, smoothed, number, label=name if axes is left else None)
            rows += [{"metric": key} | row for row in series_rows(name, rounds, {"value": smoothed})]
    note = f", smoothed with weight {weight:g}" if weight else ""
    left.set(ylabel=f"test accuracy (%){note}")
    right.set(ylabel=f"training loss{note}")
    for axes in (left, right):
        use_counts(axes)
    place_legend_below(figure, left.get_legend_handles_labels()[0])
    save_picture(figure, path, rows)


def draw_local_models(groups: Groups, path: Path) -> None:
    """Plot what local training does to the global test accuracy, and the accuracy by class of the global model.

    Left: the accuracy of the global model, and dashed the mean of the local models with a band of one standard
    deviation over the clients. Right: one panel per group with a line per class.

    Args:
        groups: Runs by label, trained with `diagnostics.preservation` and `diagnostics.classes`.
        path: The file to write; its ending selects the format.
    """
    require(groups, "local_accuracy_mean", "diagnostics.preservation=true")
    require(groups, "class_accuracy", "diagnostics.classes=true")
    figure, (first, *others) = make_panels(1, 1 + len(groups), width=4.2, height=3.8)
    rows = []
    for number, (name, runs) in enumerate(groups.items()):
        style = line_style(number) | {"linestyle": DASHED}
        color = style["color"]
        rounds, values = read_series(runs, "accuracy", 100.0)
        plot_mean(first, rounds, values, number, label=f"{name}, global", linestyle="solid")
        rows += [{"metric": "accuracy"} | row for row in series_rows(name, rounds, {"value": values})]
        rounds, local = read_series(runs, "local_accuracy_mean", 100.0)
        _, over_clients = read_series(runs, "local_accuracy_std", 100.0)
        mean, band = local.mean(axis=0), over_clients.mean(axis=0)
        first.plot(rounds, mean, label=f"{name}, local", **style)
        rows += [{"metric": "local_accuracy_mean"} | row for row in series_rows(name, rounds, {"value": local})]
        first.fill_between(rounds, mean - band, mean + band, color=color, alpha=0.12, linewidth=0)
        lines = [line for line in runs[0].metrics() if line.get("class_accuracy")]
        table = np.array(
            [[np.nan if value is None else 100.0 * value for value in line["class_accuracy"]] for line in lines]
        )
        for label in range(table.shape[1]):
            tested = [line["round"] for line in lines]
            others[number].plot(tested, table[:, label], **line_style(label) | {"linewidth": 1.0})
        set_title(others[number], f"{name}, by class (one seed)")
        others[number].set(ylabel="class accuracy (%)", ylim=(-3, 103))
    first.set(ylabel="accuracy on the global test set (%)")
    for axes in (first, *others):
        use_counts(axes)
    place_legend_below(figure, first.get_legend_handles_labels()[0])
    save_picture(figure, path, rows)


def draw_proximal(groups: Groups, path: Path) -> None:
    """Plot the proximal loss of local models and the cosine of their updates with the proximal gradient.

    Args:
        groups: Runs by label, trained with `diagnostics.proximal`.
        path: The file to write; its ending selects the format.
    """
    require(groups, "proximal_loss", "diagnostics.proximal=true", clients=True)
    wanted = {
        "proximal_loss": "proximal loss of local models",
        "proximal_cosine": "cosine of update and proximal gradient",
    }
    figure, (_, right), rows = _two_series(groups, read_client_series, wanted)
    right.axhline(0.0, color=QUIET, linewidth=0.8)
    save_picture(figure, path, rows)


def draw_divergence(groups: Groups, path: Path) -> None:
    """Plot the distances of local models from the global model and from each other.

    Args:
        groups: Runs by label, trained with `diagnostics.divergence`.
        path: The file to write; its ending selects the format.
    """
    require(groups, "global_local_distance", "diagnostics.divergence=true")
    wanted = {
        "global_local_distance": "distance of global and local weights",
        "local_local_distance": "distance between local weights",
    }
    figure, _, rows = _two_series(groups, read_series, wanted)
    save_picture(figure, path, rows)


def _two_series(
    groups: Groups, read: Callable[..., tuple[list[int], np.ndarray]], wanted: Mapping[str, str]
) -> tuple[Figure, list[Axes], list[dict[str, Any]]]:
    """Plot two keys with their axis labels side by side; return the figure, its panels and the numbers."""
    figure, panels = make_panels(1, 2, width=4.75, height=3.8)
    rows = []
    for number, (name, runs) in enumerate(groups.items()):
        for axes, key in zip(panels, wanted, strict=True):
            rounds, values = read(runs, key)
            plot_mean(axes, rounds, values, number, label=name)
            rows += [{"metric": key} | row for row in series_rows(name, rounds, {"value": values})]
    for axes, label in zip(panels, wanted.values(), strict=True):
        axes.set(ylabel=label)
        use_counts(axes)
    place_legend_below(figure, panels[0].get_legend_handles_labels()[0])
    return figure, panels, rows


def draw_layers(groups: Groups, path: Path) -> None:
    """Plot the mean drift of each layer, relative to its norm, as bars with the standard deviation over runs.

    Args:
        groups: Runs by label, trained with `diagnostics.proximal`.
        path: The file to write; its ending selects the format.
    """
    layers = layer_names(groups)
    figure, (axes,) = make_panels(width=max(5.0, 1.2 * len(layers) + 2), height=3.8)
    rows = []
    width = 0.8 / len(groups)
    for number, (name, runs) in enumerate(groups.items()):
        series = [read_client_series(runs, f"drift/{layer}")[1].mean(axis=1) for layer in layers]
        values = np.stack(series, axis=1)
        at = np.arange(len(layers)) + width * (number - (len(groups) - 1) / 2)
        color = COLORS[number % len(COLORS)]
        axes.bar(at, values.mean(axis=0), width, yerr=spread(values), color=color, alpha=0.85, label=name)
        means = zip(layers, values.mean(axis=0).tolist(), strict=True)
        rows += [{"run": name, "layer": layer, "drift": mean} for layer, mean in means]
    name_ticks(axes, layers)
    axes.set(xlabel="layer", ylabel="mean drift relative to its norm")
    place_legend(axes)
    save_picture(figure, path, rows)


def layer_names(groups: Groups) -> list[str]:
    """Return the layers whose drift was recorded, in the network's order.

    Args:
        groups: Runs by label, trained with `diagnostics.proximal`.

    Returns:
        Names of layers.
    """
    require(groups, "proximal_loss", "diagnostics.proximal=true", clients=True)
    first = next(iter(groups.values()))[0].clients()
    return [key.removeprefix("drift/") for key in first[0] if key.startswith("drift/")]


def draw_softmax_agreement(groups: Groups, path: Path) -> None:
    """Plot the cosine of the class vectors' update with the step of a softmax over all classes.

    Solid with the server's correction, dashed before it: the clients' own steps.

    Args:
        groups: Runs by label, trained with `diagnostics.softmax_agreement`.
        path: The file to write; its ending selects the format.
    """
    require(groups, "softmax_cosine", "diagnostics.softmax_agreement=true")
    figure, (left, right) = make_panels(1, 2, width=4.75, height=3.8)
    rows = []
    for number, (name, runs) in enumerate(groups.items()):
        for axes, key, label, dashes in (
            (left, "softmax_cosine", "corrected", "solid"),
            (left, "softmax_cosine_local", "local", DASHED),
            (right, "correction_cosine", "corrected", "solid"),
        ):
            rounds, values = read_series(runs, key)
            plot_mean(axes, rounds, values, number, label=f"{name}, {label}", linestyle=dashes)
            rows += [{"metric": key} | row for row in series_rows(name, rounds, {"value": values})]
    left.set(ylabel="cosine with the softmax over all classes")
    right.set(ylabel="cosine of the correction with the missing part")
    for axes in (left, right):
        use_counts(axes)
    place_legend_below(figure, left.get_legend_handles_labels()[0])
    save_picture(figure, path, rows)
