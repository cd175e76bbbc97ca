"""A plot and a table of the class vectors of runs with `diagnostics.class_vectors`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from rich.markup import escape
from rich.table import Table

from fedra.errors import ConfigError
from fedra.pictures import QUIET, line_style, make_panels, place_legend_below, save_numbers, use_counts
from fedra.reports.comparison import Metrics, titles
from fedra.storage.run_folder import RunFolder
from fedra.writing import save_figure

COLUMNS = (
    "vector_length_mean",
    "vector_length_min",
    "vector_length_max",
    "server_step_mean",
    "server_step_max",
    "server_turn_mean",
    "server_turn_max",
    "nearest_cosine_mean",
    "nearest_cosine_max",
)
"""Keys of metrics.jsonl that the diagnostic adds."""
DASHES = (0, (4, 2))


def read_class_vectors(runs: Sequence[Path | str]) -> dict[str, Metrics]:
    """Return the rounds of each run by its title.

    Args:
        runs: Folders of runs with `diagnostics.class_vectors`.

    Returns:
        The lines of each run's metrics.jsonl.
    """
    folders = [RunFolder(path) for path in runs]
    found: dict[str, Metrics] = {}
    for name, folder in zip(titles(folders), folders, strict=True):
        metrics = folder.metrics()
        if not any(COLUMNS[0] in line for line in metrics):
            raise ConfigError(
                f"runs must have rounds with diagnostics.class_vectors to plot class vectors, got '{folder.path}' "
                "without: run it again with diagnostics.class_vectors=true"
            )
        found[name] = [line for line in metrics if COLUMNS[0] in line]
    return found


def draw_class_vectors(runs: Mapping[str, Metrics], path: Path) -> None:
    """Plot lengths, the server's steps and turns, and the nearest cosines across clients over the rounds.

    Lines are means over classes; the band of the lengths spans minimum to maximum, dashed lines are maxima. Steps and
    turns of zero have no position on a logarithmic axis, so the legend names runs that have no others.

    Args:
        runs: The lines of each run's metrics.jsonl, by title.
        path: The .svg, .png or .pdf file; the numbers are written to a .csv file next to it.
    """
    figure, (lengths, cosines, steps, turns) = make_panels(2, 2, width=4.75, height=3.5)
    for number, (name, lines) in enumerate(runs.items()):
        style = line_style(number, len(lines)) | {"linestyle": "solid"}  # dashes mean maxima here
        color = style["color"]
        still = not any(line["server_step_max"] for line in lines)
        _plot(lengths, lines, "vector_length_mean", style, label=f"{name} (no server step)" if still else name)
        rounds = [line["round"] for line in lines]
        low, high = ([line[f"vector_length_{end}"] for line in lines] for end in ("min", "max"))
        lengths.fill_between(rounds, low, high, color=color, alpha=0.12, linewidth=0)
        for axes, key in ((cosines, "nearest_cosine"), (steps, "server_step"), (turns, "server_turn")):
            _plot(axes, lines, f"{key}_mean", style, positive=axes is not cosines)
            _plot(axes, lines, f"{key}_max", style | {"linestyle": DASHES}, positive=axes is not cosines)
    lengths.set(ylabel="length of class vectors")
    cosines.set(ylabel="nearest cosine across clients")
    steps.set(ylabel="server step / length")
    turns.set(ylabel="server turn (degrees)")
    for axes in (steps, turns):
        if axes.lines:
            axes.set_yscale("log")
    for axes in (lengths, cosines, steps, turns):
        use_counts(axes)
    largest = Line2D([], [], color=QUIET, linewidth=1.6, linestyle=DASHES, label="largest of all classes")
    handles = [*lengths.get_legend_handles_labels()[0], largest]
    place_legend_below(figure, handles)
    save_figure(figure, path)
    keys = ("round", *COLUMNS)
    save_numbers(path, ({"run": name} | {key: line[key] for key in keys} for name in runs for line in runs[name]))


def _plot(
    axes: Axes, lines: Metrics, key: str, style: dict[str, Any], *, positive: bool = False, label: str = ""
) -> None:
    points = [(line["round"], line[key]) for line in lines if line[key] is not None]
    points = [point for point in points if point[1] > 0] if positive else points
    if points:
        axes.plot(*zip(*points, strict=True), label=label or None, **style)


def class_vectors_table(runs: Mapping[str, Metrics]) -> Table:
    """Build a table of the last round, with one column per run."""
    table = Table(header_style="bold")
    table.add_column("last round")
    for name in runs:
        table.add_column(escape(name), justify="right")
    for key in COLUMNS:
        values = [lines[-1][key] for lines in runs.values()]
        table.add_row(key.replace("_", " "), *("-" if value is None else f"{value:.3g}" for value in values))
    return table
