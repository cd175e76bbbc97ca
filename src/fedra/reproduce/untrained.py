"""Entries that train nothing: pictures of losses and partitions, tables of settings, and texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedra.config import reading as configuration
from fedra.errors import ConfigError
from fedra.reproduce.cell_values import format_printed
from fedra.reproduce.entries import PaperEntry, config_path

FIGURE1 = ("adaptive-margin",)
"""The loss of the adaptive margin's figure 1."""


def show_entry(entry: PaperEntry, out: Path) -> list[str]:
    """Draw a picture, compare settings with the paper's, or return what there is instead.

    Args:
        entry: An entry that does not train.
        out: Output folder of pictures.

    Returns:
        Lines to print.

    Example:
        >>> show_entry(find_entry("fedsol", "table2"), Path("runs"))[0]
        'fedsol table2: Notation'
    """
    lines = [f"{entry.label}: {entry.title}"]
    if entry.kind == "settings":
        lines += compare_settings(entry)
    elif entry.kind == "picture":
        lines += [f"plot saved to {path}" for path in _draw(entry, out)]
    return [*lines, *([entry.note] if entry.note else []), *([f"see: {entry.command}"] if entry.command else [])]


def compare_settings(entry: PaperEntry) -> list[str]:
    """Compare the settings of the shipped configurations with the printed ones.

    Args:
        entry: An entry of kind "settings", whose rows name configurations and whose columns name keys.

    Returns:
        One line per row; a difference is marked.
    """
    lines = []
    for row in entry.rows:
        table: Mapping[str, Any] = configuration.read(config_path(row.config)).model_dump()
        cells = []
        for column in entry.columns:
            found: Any = table
            for step in column.metric.split("."):
                found = found[step]
            printed = entry.printed[row.name, column.name][0]
            mark = "" if float(found) == printed else " (DIFFERS)"
            cells.append(f"{column.name} {found:g}, paper {format_printed((printed, None))}{mark}")
        lines.append(f"{row.name}: {'; '.join(cells)}")
    return lines


def _draw(entry: PaperEntry, out: Path) -> list[Path]:
    path = out / f"{entry.paper}-{entry.name}.svg"
    if entry.draw == "margins":
        from fedra.config.names import read_loss
        from fedra.losses.boundaries import COMPARED, draw_margins

        names = FIGURE1 if entry.name == "figure1" else COMPARED
        draw_margins({name: read_loss(name) for name in names}, path)
        return [path]
    if entry.draw == "partitions":
        return _draw_partitions(entry, out)
    raise ConfigError(f"'{entry.label}' must name a known picture, got '{entry.draw}'")


def _draw_partitions(entry: PaperEntry, out: Path) -> list[Path]:
    """Draw CIFAR-10 over ten clients by shards and by Dirichlet shares."""
    from fedra.data.partition.split_plot import draw
    from fedra.experiment.build import build_dataset, split_dataset

    drawn = []
    for kind, fields in (("class-shards", {"shards": 2}), ("dirichlet", {"alpha": 0.1})):
        config = configuration.read(
            {"data": {"name": "cifar10"}, "partition": {"name": kind, "clients": 10, "legacy": True, **fields}}
        )
        dataset = build_dataset(config)
        parts = split_dataset(config, dataset)
        path = out / f"{entry.paper}-{entry.name}-{kind}.svg"
        drawn.append(draw(parts, dataset.train.targets.numpy(), dataset.classes, path))
    return drawn
