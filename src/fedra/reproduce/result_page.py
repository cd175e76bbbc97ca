"""The page of a reproduction: what was run, the numbers next to the paper's, and a verdict for each claim."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedra.console import format_duration
from fedra.reports.sweep_table import markdown
from fedra.reproduce.cell_values import format_cell, format_printed, split_metric
from fedra.reproduce.entries import PaperEntry
from fedra.reproduce.reproduction import Reproduction
from fedra.reproduce.verdicts import FEWEST, LEVEL, RANKED
from fedra.storage.run_folder import RunFolder
from fedra.writing import write_atomically

METRICS = {
    "final_accuracy": "test accuracy of the last round",
    "best_accuracy": "best test accuracy of all rounds",
    "final_auroc": "area under the ROC curve of the last round",
    "personal_auroc": "area under the ROC curve of the personal models",
    "global_auroc": "area under the ROC curve of the global model",
    "personal_tpir": "true positive identification rate of the personal models",
}
"""What a metric is called in a page."""


def table_texts(found: Reproduction) -> list[list[str]]:
    """Return the rows of the table: each cell as mean (standard deviation), and the paper's number next to it."""
    columns = [column.name for column in found.grid.columns]
    with_paper = [name for name in columns if any((row.name, name) in found.entry.printed for row in found.grid.rows)]
    heading = [""]
    for name in columns:
        heading += [name, "paper"] if name in with_paper else [name]
    rows = [heading]
    for row in found.grid.rows:
        texts = [row.name]
        for name in columns:
            values = found.values.get((row.name, name), ())
            texts.append(_cell(found, name, values))
            if name in with_paper:
                texts.append(format_printed(found.entry.printed.get((row.name, name))))
        rows.append(texts)
    return rows + _quoted(found, columns, with_paper)


def _quoted(found: Reproduction, columns: Sequence[str], with_paper: Sequence[str]) -> list[list[str]]:
    """Return the rows that the paper quotes from others, which are not run."""
    own = {row.name for row in found.entry.rows}
    rows = []
    for name in dict.fromkeys(row for row, _ in found.entry.printed if row not in own):
        texts = [name]
        for column in columns:
            printed = format_printed(found.entry.printed.get((name, column)))
            texts += ["", printed] if column in with_paper else [""]
        rows += [texts] if any(texts[1:]) else []
    return rows


def _cell(found: Reproduction, column: str, values: Sequence[float | None]) -> str:
    metric = found.metric(column)
    form, _ = split_metric(metric)
    lengths = [run[1].rounds for (_, own), runs in found.grid.cells.items() if own == column for run in runs]
    rounds = max(lengths, default=0)
    if form == "rounds" and values and all(value is not None and value > rounds for value in values):
        return f"not in {rounds}"
    return format_cell(values, metric)


def screen_table(found: Reproduction) -> Table:
    """Return the table for the screen."""
    rows = table_texts(found)
    table = Table(header_style="bold")
    for number, heading in enumerate(rows[0]):
        table.add_column(escape(heading), justify="left" if number == 0 else "right")
    for row in rows[1:]:
        table.add_row(*map(escape, row))
    return table


def verdict_table(found: Reproduction) -> Table:
    """Return the verdicts for the screen."""
    table = Table(header_style="bold")
    for heading in ("claim", "verdict", "why"):
        table.add_column(heading)
    for verdict in found.verdicts:
        table.add_row(escape(verdict.claim.text), verdict.outcome, escape(verdict.reason))
    return table


def command_of(entry: PaperEntry, size: str, seeds: int) -> str:
    """Return the command that repeats a reproduction."""
    return f"fedra reproduce {entry.paper} {entry.name} --size {size} --seeds {seeds}"


def page_text(found: Reproduction) -> str:
    """Write the page.

    Args:
        found: The reproduction.

    Returns:
        The page as Markdown; a generated page, to be repeated by its command rather than edited.
    """
    entry, size = found.entry, found.entry.sizes[found.size]
    parts = [
        f"# {_name(entry)}: {entry.title}",
        f"{entry.citation} Size **{found.size}**, {_count(found.seeds, 'seed')}. This page is written by the command "
        "below; it claims what its tests decide, and nothing else.",
        f"```sh\n{command_of(entry, found.size, found.seeds)}\n```",
    ]
    parts += [f"Data: {size.data}"] if size.data else []
    parts += [entry.note] if entry.note else []
    parts += [_caption(found), markdown(table_texts(found)).rstrip()]
    parts += [f"![{entry.title}]({path.name})" for path in found.pictures]
    parts += _claims(found)
    parts += ["## How it was run", _setting(found), _times(found)]
    return "\n\n".join(parts) + "\n"


def _name(entry: PaperEntry) -> str:
    kind = "table" if entry.name.startswith("table") else "figure" if entry.name.startswith("figure") else ""
    number = entry.name.removeprefix(kind)
    return f"{entry.paper}, {kind} {number}" if kind else f"{entry.paper}, {entry.name}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _caption(found: Reproduction) -> str:
    metric = found.entry.metric
    name = METRICS.get(metric, metric.replace("_", " "))
    unit = f" in {found.entry.unit}" if found.entry.unit else ""
    if ":" in metric or all(column.metric for column in found.grid.columns):
        name, unit = "each column names what it measures", ""
    deviation = "; in parentheses the sample standard deviation over seeds" if found.seeds > 1 else ""
    beside = '. "paper" is what the paper printed, at its own size' if found.entry.printed else ""
    return f"{name[:1].upper()}{name[1:]}{unit}{deviation}{beside}."


def _claims(found: Reproduction) -> list[str]:
    if not found.verdicts:
        return ["The paper makes no claim about these numbers that a test could decide."]
    rows = [["claim", "verdict", "why"]]
    for verdict in found.verdicts:
        where = f" ({verdict.claim.where})" if verdict.claim.where else ""
        rows.append([verdict.claim.text + where, f"**{verdict.outcome}**", verdict.reason])
    body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    table = "\n".join([body[0], "| --- | --- | --- |", *body[1:]])
    rule = (
        f"Paired over seeds, one-sided at {LEVEL:g}: a t-test for {FEWEST} to {RANKED - 1} seeds, the exact Wilcoxon "
        f"signed-rank test from {RANKED} on. A claim of several comparisons holds if each is significant (in part, if "
        "some were not run), and does not hold if one is significant in the opposite direction at the level divided by "
        "their number. With fewer than "
        f"{FEWEST} seeds no claim can be decided. A verdict is about this size, not about the paper's."
    )
    return ["## The paper's claims", table, rule]


def _setting(found: Reproduction) -> str:
    """Describe the settings that all runs have in common."""
    configs = [config for runs in found.grid.cells.values() for _, config, _ in runs]
    facts: dict[str, Any] = {
        "data": _common(configs, lambda c: _named(c.data.model_dump())),
        "clients": _common(configs, lambda c: c.partition.clients or "one per group of the data"),
        "partition": _common(configs, lambda c: _named(c.partition.model_dump(exclude={"clients"}))),
        "network": _common(configs, lambda c: c.model.name),
        "rounds": _common(configs, lambda c: c.rounds),
        "participation": _common(configs, lambda c: c.cohort.fraction),
        "local epochs": _common(configs, lambda c: c.local.epochs),
        "batch": _common(configs, lambda c: c.local.batch or "all"),
        "learning rate": _common(configs, lambda c: c.local.lr),
        "momentum": _common(configs, lambda c: c.local.momentum),
        "tested every": _common(configs, lambda c: f"{_count(c.evaluation.every, 'round')}"),
    }
    lines = [f"- {name}: {value if value is not None else 'varies'}" for name, value in facts.items()]
    return "\n".join(lines)


def _common(configs: Sequence[Any], read: Any) -> Any:
    values = {str(read(config)): read(config) for config in configs}
    return next(iter(values.values())) if len(values) == 1 else None


def _named(table: dict[str, Any]) -> str:
    fields = ", ".join(
        f"{key} {value}" for key, value in table.items() if key not in ("name", "seed") and value not in ((), None)
    )
    return f"{table['name']} ({fields})" if fields else str(table["name"])


def _times(found: Reproduction) -> str:
    folders = list(dict.fromkeys(found.grid.folders))
    failed = [RunFolder(folder).failure() for folder in folders]
    broken = [f"{folder.name} {how}" for folder, how in zip(folders, failed, strict=True) if how]
    seeds = sorted({seed for runs in found.grid.cells.values() for seed, _, _ in runs})
    known = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    text = (
        f"Seeds {', '.join(map(str, seeds))}; {_count(len(folders), 'run')}, {format_duration(found.seconds)} of "
        f"training in all as the runs recorded it, on a machine that may have had other work; {known}."
    )
    text += f" Failed runs, counted at chance level: {'; '.join(broken)}." if broken else ""
    collapsed = [folder for folder in folders if "collapsed" in RunFolder(folder).summary()]
    if collapsed:
        text += f" {len(collapsed)} of the runs have embeddings in one direction, and are counted at chance level."
    return text


def write_page(found: Reproduction, out: Path) -> tuple[Path, Path]:
    """Write the page and its numbers.

    Args:
        found: The reproduction.
        out: Output folder.

    Returns:
        The Markdown file and the JSON file.
    """
    stem = f"{found.entry.paper}-{found.entry.name}-{found.size}"
    out.mkdir(parents=True, exist_ok=True)
    page, numbers = out / f"{stem}.md", out / f"{stem}.json"
    write_atomically(page, page_text(found).encode())
    for picture in found.pictures:
        if picture.parent != out:
            write_atomically(out / picture.name, picture.read_bytes())
    write_atomically(numbers, (json.dumps(_finite(found.record()), indent=1, allow_nan=False) + "\n").encode())
    return page, numbers


def _finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, because JSON cannot store them."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
