"""Figures of a page, drawn from the records of runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedra.pictures import (
    COLORS,
    DASHES,
    SHADES,
    add_colorbar,
    line_style,
    make_panels,
    place_legend,
    shorten,
    style_heat_map,
    use_counts,
)
from fedra.reports.inline_svg import SERIES, render_inline
from fedra.reports.page_blocks import LegendEntry, PageFigure, SeriesLegend
from fedra.reports.record_groups import RunGroup
from fedra.reports.run_files import number
from fedra.reports.run_record import RunRecord

WIDTH, WIDE, HEIGHT = 4.7, 9.6, 2.9
"""Sizes of figures in inches, at which text is readable in half of a page and on a phone, and in a whole page."""
MOST_POINTS = 400
"""Largest number of points of a curve; longer ones are thinned."""
MOST_CLASSES = 60

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
Read = Callable[[RunRecord], Curve]


class Charts:
    """Draws figures of one page; each gets identifiers of its own."""

    def __init__(self, groups: Sequence[RunGroup], prefix: str = "f") -> None:
        self.groups = groups
        self._names = (f"{prefix}{number}" for number in itertools.count())

    def legend(self) -> list[SeriesLegend]:
        """Return the legend that all curves share, or nothing if there is one series."""
        entries = [LegendEntry(g.number, g.label, g.number % len(COLORS), _dashes(g.number)) for g in self.groups]
        return [SeriesLegend(entries)] if len(entries) > 1 else []

    def curves(
        self, title: str, ylabel: str, read: Read, *, xlabel: str = "round", caption: str = "", wide: bool = False
    ) -> PageFigure | None:
        """Draw the mean of each group with a band of one sample standard deviation, or None without any value."""
        found = [(group, [read(run) for run in group.runs]) for group in self.groups]
        places = {place for _, curves in found for x, _ in curves for place in x.tolist()}
        if not places:
            return None

        def draw(width: float) -> Markup:
            figure, (axes,) = make_panels(width=width, height=HEIGHT)
            for group, curves in found:
                _draw_mean(axes, group, curves)
            axes.set(ylabel=ylabel)
            if len(places) == 1:  # a round has no fractions
                axes.set_xlim(min(places) - 1, max(places) + 1)
            if xlabel == "round":
                use_counts(axes)
            else:
                axes.set_xlabel(xlabel)
            return render_inline(figure, next(self._names), title)

        return PageFigure(title, draw(WIDE if wide else WIDTH), caption, draw(WIDTH) if wide else None)

    def heat_map(
        self, title: str, values: NDArray[np.float64], rounds: Sequence[float], label: str, ylabel: str
    ) -> PageFigure:
        """Draw values over rounds (columns) by row."""
        figure, (axes,) = make_panels(width=WIDTH, height=HEIGHT)
        bounds = (rounds[0] - 0.5, rounds[-1] + 0.5, len(values) - 0.5, -0.5)
        image = axes.imshow(values, cmap=SHADES, aspect="auto", interpolation="nearest", extent=bounds)
        style_heat_map(axes)
        axes.set(ylabel=ylabel)
        use_counts(axes)
        add_colorbar(figure, image, axes, label)
        return self.finish(figure, title)

    def matrix(self, title: str, values: NDArray[np.float64], names: Sequence[str], caption: str = "") -> PageFigure:
        """Draw a confusion matrix, each row as shares of its class."""
        figure, (axes,) = make_panels(width=WIDTH, height=WIDTH * 0.82)
        shares = values / np.maximum(values.sum(axis=1, keepdims=True), 1)
        image = axes.imshow(shares, cmap=SHADES, vmin=0, vmax=1, interpolation="nearest")
        style_heat_map(axes)
        step = max(1, -(-len(names) // 20))
        spots, shown = list(range(0, len(names), step)), [name[:10] for name in names[::step]]
        axes.set_xticks(spots, shown, rotation=0 if max(map(len, shown)) < 3 else 60)
        axes.set_yticks(spots, shown)
        axes.set(xlabel="predicted class", ylabel="class")
        add_colorbar(figure, image, axes, "share of the class")
        return self.finish(figure, title, caption)

    def ranked(self, title: str, ylabel: str, read: Callable[[RunRecord], list[float]]) -> PageFigure | None:
        """Draw the values of clients in order, from the lowest to the highest; seeds of a group are pooled."""
        figure, (axes,) = make_panels(width=WIDTH, height=HEIGHT)
        found = False
        for group in self.groups:
            values = np.sort([value for run in group.runs for value in read(run)])
            if len(values):
                share = 100 * (np.arange(len(values)) + 0.5) / len(values)
                style = line_style(group.number)
                marker = "o" if len(values) == 1 else None
                axes.plot(*_thin(share, values), marker=marker, gid=f"{SERIES}{group.number}", **style)
                found = True
        if not found:
            return None
        axes.set(xlabel="share of clients (%)", ylabel=ylabel, xlim=(0, 100))
        return self.finish(figure, title)

    def bars(
        self, title: str, xlabel: str, ylabel: str, heights: Sequence[float], caption: str = ""
    ) -> PageFigure | None:
        """Draw one bar per client."""
        if not len(heights):
            return None
        figure, (axes,) = make_panels(width=WIDTH, height=HEIGHT)
        values = np.asarray(heights, dtype=float)
        if len(values) > MOST_POINTS:
            axes.fill_between(np.arange(len(values)), values, step="mid", color=COLORS[0], linewidth=0)
        else:
            axes.bar(np.arange(len(values)), values, color=COLORS[0], width=0.8)
        use_counts(axes, xlabel)
        axes.set(ylabel=ylabel, ylim=(0, None))
        axes.grid(axis="x", visible=False)
        return self.finish(figure, title, caption)

    def named_lines(self, title: str, ylabel: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> PageFigure:
        """Draw one line per name, with a legend of its own."""
        figure, (axes,) = make_panels(width=WIDTH, height=HEIGHT)
        for place, (name, points) in enumerate(lines.items()):
            x, y = zip(*points, strict=True)
            axes.plot(x, y, marker="o" if len(x) == 1 else None, label=shorten(name), **line_style(place))
        use_counts(axes)
        axes.set(ylabel=ylabel)
        place_legend(axes)
        return self.finish(figure, title)

    def finish(self, figure: Figure, title: str, caption: str = "") -> PageFigure:
        """Turn a drawn figure into markup."""
        return PageFigure(title, render_inline(figure, next(self._names), title), caption)


def over_rounds(key: str, factor: float = 1.0) -> Read:
    """Return a function that reads a key of the rounds."""
    return lambda run: _points(run.metrics, "round", key, factor)


def over_total(key: str, totals: Sequence[str], factor: float, total_factor: float) -> Read:
    """Return a function that reads a key over the running sum of other keys, such as bytes or seconds."""

    def read(run: RunRecord) -> Curve:
        sums = np.cumsum([sum(number(line.get(name)) or 0.0 for name in totals) for line in run.metrics])
        lines = [{"x": total, key: line.get(key)} for total, line in zip(sums.tolist(), run.metrics, strict=True)]
        x, y = _points(lines, "x", key, factor)
        return x * total_factor, y

    return read


def over_rounds_total(totals: Sequence[str], factor: float) -> Read:
    """Return a function that reads the running sum of keys of the rounds."""

    def read(run: RunRecord) -> Curve:
        x = [number(line["round"]) or 0.0 for line in run.metrics]
        y = np.cumsum([factor * sum(number(line.get(name)) or 0.0 for name in totals) for line in run.metrics])
        return np.array(x, dtype=float), y

    return read


def over_clients(key: str, measure: Callable[[Sequence[float]], Any] = np.mean) -> Read:
    """Return a function that reads a key of the clients of each round, by default its mean."""

    def read(run: RunRecord) -> Curve:
        found: dict[float, list[float]] = {}
        for line in run.clients:
            round, value = number(line.get("round")), number(line.get(key))
            if round is not None and value is not None:
                found.setdefault(round, []).append(value)
        rounds = sorted(found)
        return np.array(rounds, dtype=float), np.array([measure(found[round]) for round in rounds], dtype=float)

    return read


def class_accuracies(run: RunRecord) -> tuple[list[float], NDArray[np.float64]] | None:
    """Return rounds and the accuracy of each class (rows) in them, in percent; None if it was not recorded."""
    lines = [line for line in run.metrics if isinstance(line.get("class_accuracy"), list)]
    sizes = {len(line["class_accuracy"]) for line in lines}
    if len(sizes) != 1 or not 1 <= sizes.pop() <= MOST_CLASSES:
        return None
    rows = [
        [100 * v if (v := number(item)) is not None else np.nan for item in line["class_accuracy"]] for line in lines
    ]
    return [line["round"] for line in lines], np.array(rows, dtype=float).T


def _points(lines: Sequence[Mapping[str, Any]], x: str, y: str, factor: float) -> Curve:
    pairs = [(number(line.get(x)), number(line.get(y))) for line in lines]
    # A dict, because a round that is recorded twice must count once.
    known = {first: factor * second for first, second in pairs if first is not None and second is not None}
    found = np.array(list(known.items()), dtype=float).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _draw_mean(axes: Axes, group: RunGroup, curves: Sequence[Curve]) -> None:
    """Draw the mean over the points that all runs with values have; the mean would jump where one run ended."""
    known = [(x, y) for x, y in curves if len(x)]
    if not known:
        return
    style, name = line_style(group.number), f"{SERIES}{group.number}"
    if len(known) > 1 and all(len(x) == len(known[0][0]) for x, _ in known):
        x, rows = np.mean([x for x, _ in known], axis=0), np.array([y for _, y in known])
    elif len(known) > 1 and (shared := _shared([x for x, _ in known])).size:
        x, rows = shared, np.array([y[np.isin(x, shared)] for x, y in known])
    else:
        x, rows = known[0][0], known[0][1][None]
    mean = rows.mean(axis=0)
    axes.plot(*_thin(x, mean), marker="o" if len(x) == 1 else None, gid=name, **style)
    if len(rows) > 1:
        spread = rows.std(axis=0, ddof=1)
        thin_x, low = _thin(x, mean - spread)
        high = _thin(x, mean + spread)[1]
        axes.fill_between(thin_x, low, high, color=style["color"], alpha=0.15, linewidth=0, gid=name)


def _shared(rounds: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    shared = rounds[0]
    for other in rounds[1:]:
        shared = np.intersect1d(shared, other)
    return shared


def _thin(x: NDArray[np.float64], y: NDArray[np.float64]) -> Curve:
    if len(x) <= MOST_POINTS:
        return x, y
    chosen = np.unique(np.linspace(0, len(x) - 1, MOST_POINTS).round().astype(int))
    return x[chosen], y[chosen]


def _dashes(number: int) -> str:
    """Return the dashes of a line as SVG writes them, so the legend equals the figures."""
    style = line_style(number)["linestyle"]
    return "" if style == DASHES[0] else " ".join(f"{1.7 * length:g}" for length in style[1])
