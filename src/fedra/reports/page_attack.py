"""The section of a page about simulated attacks: who was malicious, what they did, and what became of their uploads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedra.reports.page_blocks import DataTable, FigureGrid, PageSection, Paragraph, TableCell
from fedra.reports.page_charts import Charts, over_rounds
from fedra.reports.run_files import number, table_of
from fedra.reports.run_record import RunRecord

ROWS = (
    "attack",
    "malicious clients",
    "settings",
    "their uploads",
    "rejected as invalid",
    "left out by the rule",
    "weight by the rule, mean",
    "images with the trigger taken for its class",
    "the same images without it",
)


def is_attacked(run: RunRecord) -> bool:
    """Return whether a run simulates an attack."""
    return bool(run.section("attack").get("name", "none") != "none")


def build_attacks(charts: Charts, runs: Sequence[RunRecord]) -> PageSection | None:
    """Return the simulated attacks of the runs, if there are any."""
    attacked = [run for run in runs if is_attacked(run)]
    if not attacked:
        return None
    tables = [_table(run) for run in attacked]
    rows = [
        [TableCell(name), *(TableCell(table.get(name, "–")) for table in tables)]
        for name in ROWS
        if any(name in table for table in tables)
    ]
    sentence = "Some clients were malicious, as a simulation: these models are for the study of attacks, not for use."
    if without := [run.name for run in runs if not is_attacked(run)]:
        sentence += f" Without an attack: {', '.join(without)}."
    drawn = [
        charts.curves("backdoor", "images with the trigger (%)", over_rounds("trigger_rate", 100.0)),
        charts.curves("weight of malicious uploads", "share (%)", over_rounds("malicious_weight", 100.0)),
    ]
    known = [figure for figure in drawn if figure is not None]
    table = DataTable(["", *(run.name for run in attacked)], rows, numbers=99, sortable=False, name="attacks")
    figures = [*charts.legend(), FigureGrid(known)] if known else []
    return PageSection("attacks", "Simulated attacks", [Paragraph(sentence), table, *figures])


def _table(run: RunRecord) -> dict[str, str]:
    """Return what is known about a run's attack, by row; a run that is not finished has no summary."""
    stated = {**run.section("attack"), **table_of(run.summary.get("attack"))}
    found = {"attack": str(stated.get("name")), "settings": _settings(stated)}
    members = stated.get("clients")
    if isinstance(members, list):
        of = number(run.summary.get("clients"))
        found["malicious clients"] = f"{len(members)}" + (f" of {of:,.0f}" if of else "")
        if run.clients:
            rejected = sum(line.get("client") in members and "dropped" in line for line in run.clients)
            found["rejected as invalid"] = f"{rejected:,}"
    if any("malicious" in line for line in run.metrics):
        found["their uploads"] = f"{run.total('malicious'):,.0f}"
    weights = [value for line in run.metrics if (value := number(line.get("malicious_weight"))) is not None]
    if weights:
        found["left out by the rule"] = f"{run.total('malicious_left_out'):,.0f}"
        found["weight by the rule, mean"] = f"{sum(weights) / len(weights):.1%}"
    for name, key in zip(ROWS[-2:], ("trigger_rate", "control_rate"), strict=True):
        value = number(stated.get(key))
        value = run.last(key) if value is None else value
        if value is not None:
            found[name] = f"{value:.1%}"
    return found


def _settings(stated: dict[str, Any]) -> str:
    keys = ("scale", *(("target", "patch", "poisoned") if stated.get("name") == "backdoor" else ()))
    return ", ".join(f"{key} {stated[key]:g}" for key in keys if number(stated.get(key)) is not None)
