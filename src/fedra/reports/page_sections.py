"""The sections that every page has: what was trained, results, curves, configuration, traffic, how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import tomli_w

from fedra.console import format_duration
from fedra.reports.page_attack import is_attacked
from fedra.reports.page_blocks import (
    CodeBlock,
    DataTable,
    Disclosure,
    FigureGrid,
    Notice,
    PageBlock,
    PageSection,
    Paragraph,
    SummaryCard,
    SummaryCards,
    TableCell,
    Tabs,
)
from fedra.reports.page_charts import Charts, over_rounds, over_rounds_total, over_total
from fedra.reports.page_numbers import (
    best_group,
    factor_of,
    metric_keys,
    rank_groups,
    title_of,
    unit_of,
    write_size,
    write_spread,
    write_time,
    write_value,
)
from fedra.reports.record_groups import RunGroup
from fedra.reports.run_files import number, shorten_paths, table_of
from fedra.reports.run_record import RunRecord
from fedra.reports.seed_groups import NEUTRAL, flatten
from fedra.reports.sweep_table import short

STATUS_LEVELS = {"damaged": "bad", "failed": "bad", "stopped": "warn", "running": "info"}
MOST_NOTICES = 12


def split_of(runs: Sequence[RunRecord]) -> str:
    """Return the examples that rounds were evaluated on, or "" if runs differ."""
    splits = {"validation" if run.section("evaluation").get("validation") else "test" for run in runs if run.config}
    return splits.pop() if len(splits) == 1 else ""


def summarize_page(groups: Sequence[RunGroup], runs: Sequence[RunRecord]) -> SummaryCards:
    """Return the cards at the top."""
    cards = [_progress_card(runs)]
    keys = metric_keys(runs)
    key = keys[0] if keys else "accuracy"
    if (best := best_group(groups, key)) is not None:
        group, spread = best
        unit = " %" if unit_of(key) else ""
        title = f"{'Best' if len(groups) > 1 else 'Final'} {title_of(key, split_of(runs))}"
        details = [group.label] if len(groups) > 1 else []
        if spread.deviation is not None:
            details.append(f"± {write_value(key, spread.deviation)} over {spread.count} seeds")
        cards.append(SummaryCard(title, f"{write_value(key, spread.mean)}{unit}", ", ".join(details or ["one seed"])))
    elif (last := next((v for run in runs if (v := run.last(key)) is not None), None)) is not None:
        value = write_value(key, last) + (" %" if unit_of(key) else "")
        cards.append(SummaryCard(f"Last {title_of(key, split_of(runs))}", value, "no finished run"))
    if clients := _client_counts(runs):
        shares = {100 * (number(run.section("cohort").get("fraction")) or 1.0) for run in runs if run.config}
        cards.append(SummaryCard("Clients", _range(clients), f"{_range(shares)} % of them per round" if shares else ""))
    up, down = sum(run.total("bytes_up") for run in runs), sum(run.total("bytes_down") for run in runs)
    cards.append(SummaryCard("Traffic", write_size(up + down), f"{write_size(up)} up, {write_size(down)} down"))
    seconds, several = sum(run.seconds for run in runs), len(runs) > 1
    mean = seconds / (len(runs) if several else max(runs[0].rounds, 1))
    cards.append(
        SummaryCard("Training time", write_time(seconds), f"{write_time(mean)} per {'run' if several else 'round'}")
    )
    return SummaryCards(cards)


def _progress_card(runs: Sequence[RunRecord]) -> SummaryCard:
    """Return how many runs are finished, or how many rounds of a single run."""
    if len(runs) == 1:
        run, left = runs[0], runs[0].seconds_left
        detail = run.status if left is None else f"{run.status}, about {format_duration(left)} left"
        share = run.rounds / run.planned if run.planned else None
        return SummaryCard("Rounds", f"{run.rounds:,}" + (f" of {run.planned:,}" if run.planned else ""), detail, share)
    finished = sum(run.status == "finished" for run in runs)
    return SummaryCard("Runs", f"{len(runs):,}", _count_statuses(runs), finished / len(runs))


def _count_statuses(runs: Sequence[RunRecord]) -> str:
    names = [run.status for run in runs]
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))


def _range(values: set[float] | set[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,.0f}" if low == high else f"{low:,.0f}–{high:,.0f}"


def _client_counts(runs: Sequence[RunRecord]) -> set[float]:
    """Return the numbers of clients of the runs; before the end of a run that of its configuration."""
    found = (number(run.summary.get("clients") or run.section("partition").get("clients")) for run in runs)
    return {count for count in found if count}


def describe_setting(groups: Sequence[RunGroup], runs: Sequence[RunRecord]) -> str:
    """Return sentences: what was trained on what, by whom, how long."""
    readable = [run for run in runs if run.config]
    if not readable:
        return "No configuration can be read."

    def names(section: str) -> str:
        return _join(dict.fromkeys(str(run.section(section).get("name", "unknown")) for run in readable))

    algorithms = _join(dict.fromkeys(run.title for run in readable))
    planned = {run.planned for run in readable if run.planned}
    text = f"{algorithms} trained {names('model')} on {names('data')}"
    if any(run.config.get("mode") != "centralized" for run in readable):
        clients = _client_counts(readable)
        shares = {number(run.section("cohort").get("fraction")) or 1.0 for run in readable}
        text += f", partitioned over {_range(clients)} clients" if clients else ", partitioned over clients"
        text += f" by {names('partition')}; {_range({100 * share for share in shares})} % of the clients per round"
    attacks = dict.fromkeys(str(run.section("attack")["name"]) for run in readable if is_attacked(run))
    text += f", {_range(planned)} rounds" if planned else ""
    text += f", under the simulated attack {_join(attacks)}" if attacks else ""
    seeds = {len({run.seed for run in group.runs}) for group in groups}
    return text + (f", {_range(seeds)} seeds per setting." if max(seeds) > 1 else ", one seed.")


def _join(words: Any) -> str:
    found = list(words)
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"


def list_problems(runs: Sequence[RunRecord]) -> Iterator[PageBlock]:
    """Yield a notice for runs that are not finished, failed, or are damaged."""
    for level, title in (("bad", "Failed or damaged"), ("warn", "Not finished"), ("info", "Running")):
        found = [run for run in runs if STATUS_LEVELS.get(run.status) == level]
        lines = [f"{run.name}: {run.describe()}" for run in found[:MOST_NOTICES]]
        if len(found) > MOST_NOTICES:
            lines.append(f"and {len(found) - MOST_NOTICES} more; see the table of all runs.")
        if lines:
            yield Notice(level, title, lines)


def build_results(groups: Sequence[RunGroup], runs: Sequence[RunRecord]) -> PageSection:
    """Return the table of settings with mean and spread, and the table of runs."""
    tested = [key for key in metric_keys(runs) if key != "train_loss"]
    keys = [key for key in tested if any(run.last(key) is not None for run in runs)] or ["accuracy"]
    split = split_of(runs)
    headings = ["setting", *(title_of(key, split) + unit_of(key) for key in keys), "n", "up", "down", "time"]
    several = [key for key in keys if sum(group.spread(key) is not None for group in groups) > 1]
    best = {key: found[0] for key in several if (found := best_group(groups, key)) is not None}
    rows = [_group_row(group, keys, best) for group in rank_groups(groups, keys[0])]
    spread = any(len(group.counted) > 1 for group in groups)
    caption = "Final values of finished runs" + (
        ": mean ± sample standard deviation over n seeds." if spread else ", one seed each."
    )
    if any(run.status != "finished" for run in runs):
        caption += " Runs that failed or are not finished are not in the mean."
    every = DataTable(
        ["run", "status", *(title_of(key, split) + unit_of(key) for key in keys), "rounds", "up", "down", "time"],
        [_run_row(run, keys) for run in runs],
        numbers=2,
        name="runs",
    )
    shown: PageBlock = every if len(runs) == 1 else Disclosure(f"All {len(runs)} runs", [every], "all-runs")
    tables = [DataTable(headings, rows, caption, name="results")] if len(runs) > 1 else []
    return PageSection("results", "Results", [*tables, shown])


def _group_row(group: RunGroup, keys: Sequence[str], best: dict[str, RunGroup]) -> list[TableCell]:
    cells = [TableCell(group.label, series=group.number, detail=group.note())]
    for key in keys:
        spread = group.spread(key)
        mark = "best" if best.get(key) is group else ""
        cells.append(TableCell(write_spread(key, spread), None if spread is None else spread.mean, mark))
    counted = group.counted
    means = [_mean([run.total(key) for run in counted]) for key in ("bytes_up", "bytes_down")]
    seconds = _mean([run.seconds for run in counted])
    cells.append(TableCell(str(len(counted)), len(counted)))
    cells += [TableCell("–" if value is None else write_size(value), value) for value in means]
    return [*cells, TableCell("–" if seconds is None else write_time(seconds), seconds)]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _run_row(run: RunRecord, keys: Sequence[str]) -> list[TableCell]:
    cells = [TableCell(run.name), TableCell(run.status, mark=STATUS_LEVELS.get(run.status, "good"))]
    for key in keys:
        value = run.final(key) if run.status == "finished" else run.last(key)
        cells.append(TableCell(write_value(key, value), value))
    cells.append(TableCell(f"{run.rounds:,}", run.rounds))
    cells += [TableCell(write_size(run.total(key)), run.total(key)) for key in ("bytes_up", "bytes_down")]
    return [*cells, TableCell(write_time(run.seconds), run.seconds)]


def build_curves(charts: Charts, runs: Sequence[RunRecord]) -> PageSection | None:
    """Return the metrics over rounds, over traffic and over time."""
    keys, split = metric_keys(runs), split_of(runs)
    shown = [key for key in keys if any(run.last(key) is not None for run in runs)]
    found = [
        charts.curves(
            title_of(key, split),
            f"{title_of(key, split)}{unit_of(key)}",
            over_rounds(key, factor_of(key)),
            wide=len(shown) % 2 == 1 and key == shown[0],
        )
        for key in shown
    ]
    figures = [figure for figure in found if figure is not None]
    if not figures:
        return None
    panels: list[tuple[str, Sequence[PageBlock]]] = [("by round", [FigureGrid(figures)])]
    main = [key for key in shown if key != "train_loss"][:2]
    for name, totals, xlabel, factor in (
        ("by traffic", ("bytes_up", "bytes_down"), "traffic, up and down (MB)", 1e-6),
        ("by time", ("seconds",), "training time (s)", 1.0),
    ):
        drawn = [
            charts.curves(
                f"{title_of(key, split)} {name}",
                f"{title_of(key, split)}{unit_of(key)}",
                over_total(key, totals, factor_of(key), factor),
                xlabel=xlabel,
                wide=len(main) == 1,
            )
            for key in main
        ]
        panels.append((name, [FigureGrid([figure for figure in drawn if figure is not None])]))
    several = any(len(group.counted) > 1 for group in charts.groups)
    lead = "Mean over seeds with a band of one sample standard deviation." if several else ""
    return PageSection("curves", "Curves", [*charts.legend(), Tabs("curves", panels)], lead)


def build_configuration(groups: Sequence[RunGroup]) -> PageSection:
    """Return the resolved configuration, with the keys in which settings differ marked."""
    tables = [dict(flatten(shorten_paths(group.runs[0].config))) for group in groups]
    for table, group in zip(tables, groups, strict=True):
        table["seed"] = ", ".join(str(run.seed) for run in group.runs)
    keys = list(dict.fromkeys(key for table in tables for key in table))
    raw = [dict(flatten(group.runs[0].config)) for group in groups]
    settings = [key for key in keys if key.partition(".")[0] not in NEUTRAL]
    differing = [key for key in settings if len({repr(table.get(key)) for table in raw}) > 1]
    headings = ["key", *(group.label for group in groups)] if len(groups) > 1 else ["key", "value"]

    def rows(chosen: Sequence[str]) -> list[list[TableCell]]:
        return [
            [TableCell(key), *(_setting_cell(table.get(key), key in differing) for table in tables)] for key in chosen
        ]

    whole = DataTable(headings, rows(keys), numbers=99, sortable=False, name="configuration")
    if len(groups) == 1:
        return PageSection(
            "configuration", "Configuration", [Disclosure(f"All {len(keys)} settings", [whole], "all-settings")]
        )
    blocks: list[PageBlock] = [Paragraph("The settings are the same.")]
    if differing:
        caption = f"The {len(differing)} settings that differ."
        blocks = [DataTable(headings, rows(differing), caption, numbers=99, sortable=False, name="differences")]
    return PageSection(
        "configuration", "Configuration", [*blocks, Disclosure(f"All {len(keys)} settings", [whole], "all-settings")]
    )


def _setting_cell(value: Any, differs: bool) -> TableCell:
    if value is None:
        return TableCell("–", mark="none")
    text = str(value).lower() if isinstance(value, bool) else short(value) or "none"
    return TableCell(text, mark="differs" if differs else "")


def build_costs(charts: Charts, groups: Sequence[RunGroup]) -> PageSection:
    """Return traffic and time per setting."""
    headings = ["setting", "parameters", "rounds", "up per round", "down per round", "total", "time per round", "time"]
    rows = []
    for group in groups:
        runs = [run for run in group.runs if run.rounds]
        cells = [TableCell(group.label, series=group.number if len(groups) > 1 else None)]
        size = next((value for run in runs if (value := number(run.summary.get("parameters"))) is not None), None)
        cells.append(TableCell("–" if size is None else f"{size:,.0f}", size))
        rounds = sum(run.rounds for run in runs)
        up, down = (sum(run.total(key) for run in runs) for key in ("bytes_up", "bytes_down"))
        seconds = sum(run.seconds for run in runs)
        cells.append(TableCell(f"{rounds:,}", rounds))
        sizes = (up / max(rounds, 1), down / max(rounds, 1), up + down)
        cells += [TableCell(write_size(value), value) for value in sizes]
        cells += [TableCell(write_time(value), value) for value in (seconds / max(rounds, 1), seconds)]
        rows.append(cells)
    drawn = [
        charts.curves("time per round", "seconds", over_rounds("seconds")),
        charts.curves(
            "traffic since the start", "up and down (MB)", over_rounds_total(("bytes_up", "bytes_down"), 1e-6)
        ),
    ]
    known = [figure for figure in drawn if figure is not None]
    figures: list[PageBlock] = [*charts.legend(), FigureGrid(known)] if known else []
    caption = "Rounds, total and time are sums over the runs of a setting."
    return PageSection("costs", "Traffic and time", [DataTable(headings, rows, caption, name="costs"), *figures])


def build_reproduction(groups: Sequence[RunGroup], runs: Sequence[RunRecord]) -> PageSection:
    """Return the versions and the commands that repeat the runs."""
    versions = [table_of(run.summary.get("versions")) for run in runs]
    names = list(dict.fromkeys(name for table in versions for name in table))
    known = {name: list(dict.fromkeys(str(t[name]) for t in versions if name in t)) for name in names}
    blocks: list[PageBlock] = []
    if names:
        rows = [
            [TableCell(name), TableCell(", ".join(found), mark="differs" if len(found) > 1 else "")]
            for name, found in known.items()
        ]
        blocks.append(
            DataTable(["software", "version"], rows, numbers=99, sortable=False, name="versions", narrow=True)
        )
        if any(len(found) > 1 for found in known.values()):
            blocks.append(Paragraph("The runs were made with different versions; compare their results with care."))
    commands = [
        shlex.join(["fedra", "run", f"{run.folder}/config.toml", "--out", f"repeated/{run.name}"])
        for group in groups
        for run in group.runs
    ]
    blocks += [
        Paragraph("The folder of a run holds its complete configuration. Running it again repeats the run."),
        CodeBlock("\n".join(commands[:MOST_NOTICES])),
    ]
    if len(commands) > MOST_NOTICES:
        blocks.append(Disclosure("The other runs", [CodeBlock("\n".join(commands[MOST_NOTICES:]))], "commands"))
    files: list[PageBlock] = [
        CodeBlock(tomli_w.dumps(shorten_paths(group.runs[0].config)), group.label)
        for group in groups
        if group.runs[0].config
    ]
    if files:
        blocks.append(Disclosure("config.toml of each setting (first seed, paths shortened)", files, "files"))
    return PageSection("reproduce", "How to reproduce", blocks)
