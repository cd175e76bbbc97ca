"""Plots of training dynamics: knowledge preservation, accuracy by class and forgetting, update norms, participation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedra.pictures import (
    COLORS,
    SHADES,
    add_colorbar,
    line_style,
    make_panels,
    place_legend_below,
    save_picture,
    set_title,
    style_axes,
    style_heat_map,
    use_counts,
)
from fedra.reports.run_groups import Groups, plot_mean, read_client_series, read_series, require, series_rows
from fedra.storage.run_folder import RunFolder

Values = NDArray[np.float64]
Row = dict[str, Any]
COLUMNS = 3
"""Largest number of heat maps side by side."""
PRESENCE = (COLORS[6], "#eef1f4", COLORS[0])
"""Colors of dropped, absent and used clients."""
MOST_CLIENTS = 60
"""Largest number of clients with a row of their own in the plot of participation."""


def draw_preservation(groups: Groups, path: Path) -> None:
    """Plot what local training does to the accuracy on the global test set.

    Left: the accuracy of the global model before the round, and dashed that of the local models after it, with a band
    of one standard deviation over the clients. Middle: the difference. Right: the accuracy of the local models on the
    classes of their clients, weighted by their shares, and dashed on the other classes.

    Args:
        groups: Runs by label, trained with `diagnostics.preservation`; seeds of a group are averaged.
        path: The file to write; its ending selects the format.
    """
    require(groups, "local_accuracy_mean", "diagnostics.preservation=true")
    figure, (left, middle, right) = make_panels(1, 3, width=4.0, height=3.6)
    rows: list[Row] = []
    for number, (name, runs) in enumerate(groups.items()):
        rounds, before = read_series(runs, "accuracy_before", 100.0)
        local, over_clients, change = (
            read_series(runs, key, 100.0)[1] for key in ("local_accuracy_mean", "local_accuracy_std", "preservation")
        )
        inside, outside = (read_client_series(runs, f"{kind}_local_accuracy", 100.0)[1] for kind in ("in", "out"))
        solid = line_style(number, len(rounds)) | {"linestyle": "solid"}
        dashed = solid | {"linestyle": (0, (4, 2))}
        left.plot(rounds, before.mean(axis=0), label=name, **solid)
        mean, band = local.mean(axis=0), over_clients.mean(axis=0)
        left.plot(rounds, mean, **dashed)
        left.fill_between(rounds, mean - band, mean + band, color=solid["color"], alpha=0.12, linewidth=0)
        plot_mean(middle, rounds, change, number, linestyle="solid")
        plot_mean(right, rounds, inside, number, linestyle="solid")
        plot_mean(right, rounds, outside, number, linestyle=dashed["linestyle"])
        columns = {
            "before": before,
            "local": local,
            "local_std": over_clients,
            "in_local": inside,
            "out_local": outside,
        }
        rows += series_rows(name, rounds, columns)
    set_title(left, "global before (solid), local after (dashed)")
    set_title(middle, "change by local training")
    set_title(right, "own classes (solid), others (dashed)")
    left.set(ylabel="accuracy on the global test set (%)")
    middle.set(ylabel="local minus global before (points)")
    middle.axhline(0, color="black", linewidth=0.8)
    right.set(ylabel="local accuracy by class (%)")
    for axes in (left, middle, right):
        use_counts(axes)
    place_legend_below(figure, left.get_legend_handles_labels()[0])
    save_picture(figure, path, rows)


def draw_classes(groups: Groups, path: Path) -> None:
    """Plot the accuracy of the global model by class as a heat map over the rounds, and forgetting below.

    Forgetting is the mean over classes of the best accuracy so far minus the current one. A heat map shows the first
    run of a group, the lines the mean over its seeds with a band of one standard deviation.

    Args:
        groups: Runs by label, trained with `diagnostics.classes`.
        path: The file to write; its ending selects the format.
    """
    require(groups, "class_accuracy", "diagnostics.classes=true")
    columns = min(len(groups), COLUMNS)
    maps = -(-len(groups) // columns)
    figure, panels = make_panels(maps + 1, columns, width=4.4, height=3.2)
    grid = panels[0].get_gridspec()
    for axes in panels[maps * columns :]:
        axes.remove()
    lower = figure.add_subplot(grid[maps, :])  # type: ignore[index]
    style_axes(lower)
    rows: list[Row] = []
    image = None
    for number, (axes, (name, runs)) in enumerate(zip(panels, groups.items(), strict=False)):
        rounds, table = class_table(runs[0])
        style_heat_map(axes)
        # Cells are centered at their rounds, which need not be consecutive.
        edges = _edges(rounds)
        image = axes.pcolormesh(edges, np.arange(table.shape[1] + 1) - 0.5, table.T, cmap=SHADES, vmin=0, vmax=100)
        axes.invert_yaxis()
        axes.yaxis.set_major_locator(MaxNLocator(10, integer=True))
        axes.set(ylabel="class")
        set_title(axes, name if len(runs) == 1 else f"{name} (first of {len(runs)} seeds)")
        use_counts(axes)
        measured, lost = read_series(runs, "forgetting", 100.0)
        plot_mean(lower, measured, lost, number, label=name)
        for round, accuracies in zip(rounds, table.tolist(), strict=True):
            rows += [
                {"run": name, "round": round, "class": one, "accuracy": value} for one, value in enumerate(accuracies)
            ]
    for axes in panels[len(groups) : maps * columns]:
        axes.remove()
    add_colorbar(figure, image, panels[: len(groups)], "accuracy of the class (%)")
    lower.set(ylabel="forgetting (points)")
    use_counts(lower)
    place_legend_below(figure, lower.get_legend_handles_labels()[0])
    save_picture(figure, path, rows)


def class_table(run: RunFolder) -> tuple[list[int], Values]:
    """Return the tested rounds of a run, and the accuracies in percent (rounds, classes); NaN for unknown."""
    lines = [line for line in run.metrics() if line.get("class_accuracy")]
    table = [[np.nan if value is None else 100.0 * value for value in line["class_accuracy"]] for line in lines]
    return [line["round"] for line in lines], np.array(table, dtype=np.float64)


def _edges(rounds: Sequence[int]) -> Values:
    """Return the borders between rounds, for cells that are centered at them."""
    if len(rounds) == 1:
        return np.array([rounds[0] - 0.5, rounds[0] + 0.5])
    middles = (np.array(rounds[1:]) + np.array(rounds[:-1])) / 2
    return np.concatenate([[2 * rounds[0] - middles[0]], middles, [2 * rounds[-1] - middles[-1]]])


def draw_updates(groups: Groups, path: Path) -> None:
    """Plot the norms of the clients' updates over the rounds: means with the range over clients, and the spread.

    Left: the mean over clients, with a band from the smallest to the largest. Right: the standard deviation over
    clients relative to the mean, which shows how unequal the updates are.

    Args:
        groups: Runs by label; seeds of a group are averaged.
        path: The file to write; its ending selects the format.
    """
    require(groups, "update_norm", "a folder", clients=True)
    figure, (left, right) = make_panels(1, 2)
    rows: list[Row] = []
    for number, (name, runs) in enumerate(groups.items()):
        rounds, statistics = _norms(runs)
        style = line_style(number, len(rounds))
        left.plot(rounds, statistics["mean"].mean(axis=0), label=name, **style)
        low, high = (statistics[key].mean(axis=0) for key in ("smallest", "largest"))
        left.fill_between(rounds, low, high, color=style["color"], alpha=0.12, linewidth=0)
        plot_mean(right, rounds, statistics["std"] / np.maximum(statistics["mean"], 1e-12), number)
        rows += series_rows(name, rounds, statistics)
    left.set(ylabel="norm of a client's update", ylim=(0, None))
    right.set(ylabel="standard deviation / mean", ylim=(0, None))
    for axes in (left, right):
        use_counts(axes)
    place_legend_below(figure, left.get_legend_handles_labels()[0])
    save_picture(figure, path, rows)


def _norms(runs: Sequence[RunFolder]) -> tuple[list[int], dict[str, Values]]:
    """Return the rounds that all runs have, and statistics over clients (runs, rounds)."""
    found: list[dict[int, list[float]]] = []
    for run in runs:
        values: dict[int, list[float]] = {}
        for line in run.clients():
            if isinstance(line.get("update_norm"), int | float) and not line.get("dropped"):
                values.setdefault(line["round"], []).append(line["update_norm"])
        found.append(values)
    rounds = sorted(set.intersection(*(set(values) for values in found)))
    rules: dict[str, Callable[[list[float]], Any]] = {"mean": np.mean, "std": np.std, "smallest": min, "largest": max}
    return rounds, {
        key: np.array([[float(rule(values[round])) for round in rounds] for values in found])
        for key, rule in rules.items()
    }


def draw_participation(groups: Groups, path: Path) -> None:
    """Plot which clients took part in which round: used uploads dark, dropped ones light, and the number per client.

    With more than 60 clients, the clients are sorted by their number of rounds instead, one line per group. A group
    is shown by its first run.

    Args:
        groups: Runs by label.
        path: The file to write; its ending selects the format.
    """
    tables = {name: participation(runs[0]) for name, runs in groups.items()}
    rows: list[Row] = []
    for name, table in tables.items():
        for client, states in enumerate(table.T.tolist()):
            used, dropped = states.count(1), states.count(-1)
            rows.append({"run": name, "client": client, "rounds_used": used, "rounds_dropped": dropped})
    if max(table.shape[1] for table in tables.values()) > MOST_CLIENTS:
        figure, (axes,) = make_panels(width=6.0)
        for number, (name, table) in enumerate(tables.items()):
            counts = np.sort((table == 1).sum(axis=0))[::-1]
            axes.step(range(1, len(counts) + 1), counts, where="mid", label=name, **line_style(number))
        axes.set(ylabel="rounds with a used upload", ylim=(0, None))
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        use_counts(axes, "clients, most frequent first")
        place_legend_below(figure, axes.get_legend_handles_labels()[0])
    else:
        columns = min(len(tables), COLUMNS)
        figure, panels = make_panels(-(-len(tables) // columns), columns, width=4.4, height=3.4)
        for axes, (name, table) in zip(panels, tables.items(), strict=False):
            _draw_presence(axes, table)
            set_title(axes, name)
        for axes in panels[len(tables) :]:
            axes.remove()
        patches = [Patch(color=PRESENCE[1 + state], label=text) for state, text in ((1, "used"), (-1, "dropped"))]
        place_legend_below(figure, patches)
    save_picture(figure, path, rows)


def participation(run: RunFolder) -> NDArray[np.int64]:
    """Return (rounds, clients): 1 where an upload was used, -1 where it was dropped, 0 for clients not sampled."""
    lines = run.clients()
    rounds = max((line["round"] for line in lines), default=0)
    known = run.config().partition.clients or 0
    clients = max([known, *(line["client"] + 1 for line in lines)])
    table = np.zeros((rounds, clients), dtype=np.int64)
    for line in lines:
        spot = line["round"] - 1, line["client"]
        if line.get("dropped"):
            table[spot] = min(table[spot], -1) if table[spot] != 1 else 1
        else:
            table[spot] = 1
    return table


def _draw_presence(axes: Axes, table: NDArray[np.int64]) -> None:
    style_heat_map(axes)
    shades = ListedColormap(PRESENCE)
    edges = np.arange(len(table) + 1) + 0.5
    axes.pcolormesh(edges, np.arange(table.shape[1] + 1) - 0.5, table.T, cmap=shades, vmin=-1, vmax=1)
    axes.set(ylabel="client")
    axes.invert_yaxis()
    axes.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    use_counts(axes)
