"""The figure of an entry, drawn from its runs by the kinds of `fedra plot`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedra.reports import round_plots
from fedra.reports.factor_plot import draw_factors
from fedra.reproduce.entries import PaperEntry
from fedra.reproduce.paper_points import Grid
from fedra.storage.run_folder import RunFolder

CellValues = Mapping[tuple[str, str], Sequence[float | None]]
SMOOTHING = 0.6
"""Weight of the past in smoothed learning curves."""

ROUND_PLOTS: dict[str, Callable[[dict[str, list[RunFolder]], Path], None]] = {
    "curves": lambda groups, path: round_plots.draw_smoothed(groups, path, SMOOTHING),
    "local-models": round_plots.draw_local_models,
    "proximal": round_plots.draw_proximal,
    "divergence": round_plots.draw_divergence,
    "drift": round_plots.draw_layers,
    "softmax-agreement": round_plots.draw_softmax_agreement,
}
"""Kinds of `fedra plot` that show groups of runs."""


def draw_entry(entry: PaperEntry, grid: Grid, values: CellValues, out: Path, stem: str) -> list[Path]:
    """Draw the figure of an entry.

    Args:
        entry: The entry; `draw` names kinds separated by spaces.
        grid: Its runs.
        values: The values of its cells.
        out: Output folder.
        stem: Beginning of the file names.

    Returns:
        The files; none for a table.
    """
    kinds = entry.draw.split()
    drawn = []
    for kind in kinds:
        name = stem if len(kinds) == 1 else f"{stem}-{kind}"
        path = out / f"{name}{'.svg' if kind == 'factors' else '.png'}"  # curves with bands are large as .svg
        if kind == "factors":
            draw_factors(factor_panels(grid, values), path, f"{entry.metric.replace('_', ' ')} ({entry.unit})")
        elif kind in ("tsne", "angles"):
            _draw_embeddings(kind, first_seeds(grid), path)
        else:
            ROUND_PLOTS[kind](run_groups(grid), path)
        drawn.append(path)
    return drawn


def run_groups(grid: Grid) -> dict[str, list[RunFolder]]:
    """Return the runs of each row, at the first column that it has; with several distinct runs, of each column."""
    found: dict[str, list[RunFolder]] = {}
    seen: set[Path] = set()
    rows = {row: len({runs[0][2] for (own, _), runs in grid.cells.items() if own == row}) for row, _ in grid.cells}
    for (row, column), runs in grid.cells.items():
        if runs[0][2] not in seen:
            seen.add(runs[0][2])
            label = row if rows[row] == 1 else f"{row}, {column}"
            found[label] = [RunFolder(folder) for _, _, folder in runs]
    return found


def factor_panels(grid: Grid, values: CellValues) -> dict[str, dict[str, list[tuple[float, list[float]]]]]:
    """Return the points of each panel and row; columns without a position are left out."""
    panels: dict[str, dict[str, list[tuple[float, list[float]]]]] = {}
    for column in grid.columns:
        if column.at is None:
            continue
        for row in grid.rows:
            known = [value for value in values.get((row.name, column.name), ()) if value is not None]
            if known:
                lines = panels.setdefault(column.panel or "setting", {})
                lines.setdefault(row.name, []).append((column.at, known))
    return panels


def first_seeds(grid: Grid) -> dict[str, Path]:
    """Return the first seed's run of each row."""
    found: dict[str, Path] = {}
    for (row, _), runs in grid.cells.items():
        found.setdefault(row, runs[0][2])
    return found


def _draw_embeddings(kind: str, runs: Mapping[str, Path], path: Path) -> None:
    from fedra.analysis import angles, tsne
    from fedra.experiment.embed_run import gather_embeddings
    from fedra.reports.embedding_plots import draw_angles, draw_maps

    found = {name: next(iter(gather_embeddings([run], "test", None, None).values())) for name, run in runs.items()}
    if kind == "angles":
        draw_angles({name: angles.angles(one) for name, one in found.items()}, path)
        return
    samples = {name: one.sample(1000, 0) for name, one in found.items()}
    draw_maps({name: (one, tsne.tsne(one)) for name, one in samples.items()}, path)
