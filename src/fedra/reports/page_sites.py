"""The section about the sites of a federation: what each does now, and its metrics by round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from fedra.console import format_duration
from fedra.reports.page_blocks import DataTable, FigureGrid, PageBlock, PageSection, Paragraph, TableCell
from fedra.reports.page_charts import Charts
from fedra.reports.page_extras import write_plain
from fedra.reports.page_numbers import title_of, unit_of, write_size, write_time
from fedra.reports.run_files import number, table_of
from fedra.reports.run_record import RunRecord

FORMATS: dict[str, tuple[str, Callable[[float], str]]] = {
    "last_seen": ("last seen", lambda value: f"{format_duration(value)} ago"),
    "seconds": ("time", write_time),
    "accuracy": ("own test", lambda value: f"{100 * value:.2f} %"),
    "train_loss": ("training loss", lambda value: f"{value:.4f}"),
    "bytes_up": ("up", write_size),
    "bytes_down": ("down", write_size),
}
"""How a column is called, and how its numbers are written; others are written as they are."""


def build_federation(charts: Charts, runs: Sequence[RunRecord]) -> PageSection | None:
    """Return the sites of federations, or None if no run was one."""
    blocks: list[PageBlock] = []
    for run in runs:
        status = run.files.read_status()
        sites = {str(name): table_of(site) for name, site in table_of(status.get("sites")).items()}
        lines = [line for line in run.files.read_lines("sites.jsonl") if "site" in line]
        last = {str(line["site"]): line for line in lines}
        rows = [{**last.get(name, {}), **sites.get(name, {}), "site": name} for name in dict.fromkeys([*sites, *last])]
        if rows:
            blocks += _describe(run.name if len(runs) > 1 else "", status)
            blocks.append(_site_table(run.name if len(runs) > 1 else "", rows))
            blocks += _site_figures(charts, lines)
    lead = "The state of each site when it was last heard of."
    return PageSection("federation", "Federation", blocks, lead) if blocks else None


def _describe(run: str, status: dict[str, Any]) -> list[PageBlock]:
    """Return a sentence about what the coordinator does, if it says so."""
    if not status.get("phase"):
        return []
    who, left = f"{run}, " if run else "", number(status.get("seconds_left"))
    place = f"round {write_plain(status.get('round'))} of {write_plain(status.get('rounds'))}"
    rest = f", about {format_duration(left)} left" if left else ""
    return [Paragraph(f"{who}{status['phase']}: {place}{rest}, at {write_plain(status.get('time'))}.")]


def _site_table(run: str, rows: Sequence[dict[str, Any]]) -> DataTable:
    keys = dict.fromkeys(key for row in rows for key, value in row.items() if not isinstance(value, dict | list))
    first = [key for key in ("site", "state") if key in keys]
    names = [*first, *(key for key in keys if key not in (*first, "name"))]
    cells = [[_site_cell(key, row.get(key)) for key in names] for row in rows]
    headings = [FORMATS[key][0] if key in FORMATS else key.replace("_", " ") for key in names]
    caption = f"Sites of {run}." if run else ""
    return DataTable(headings, cells, caption, numbers=len(first), name=f"sites-{run}")


def _site_cell(key: str, value: Any) -> TableCell:
    found = number(value)
    if found is None or key not in FORMATS:
        return TableCell(write_plain(value), found)
    return TableCell(FORMATS[key][1](found), found)


def _site_figures(charts: Charts, lines: Sequence[dict[str, Any]]) -> list[PageBlock]:
    figures = []
    for key in ("accuracy", "train_loss"):
        factor = 100.0 if key == "accuracy" else 1.0
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for line in lines:
            round, value = number(line.get("round")), number(line.get(key))
            if round is not None and value is not None:
                found[str(line["site"])].append((round, factor * value))
        if found:
            ylabel = f"{title_of(key)}{unit_of(key)}"
            figures.append(charts.named_lines(f"{title_of(key)} by site", ylabel, found))
    return [FigureGrid(figures)] if figures else []
