"""A page about runs: its sections, in order, and the templates that render them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedra.reports.page_attack import build_attacks
from fedra.reports.page_audit import build_audits
from fedra.reports.page_blocks import Notice, PageBlock, PageSection
from fedra.reports.page_charts import Charts
from fedra.reports.page_extras import (
    build_classes,
    build_clients,
    build_dynamics,
    build_evaluations,
    build_privacy,
)
from fedra.reports.page_numbers import metric_keys, rank_groups
from fedra.reports.page_sections import (
    build_configuration,
    build_costs,
    build_curves,
    build_reproduction,
    build_results,
    describe_setting,
    list_problems,
    summarize_page,
)
from fedra.reports.page_sites import build_federation
from fedra.reports.record_groups import RunGroup, group_records
from fedra.reports.run_record import RunRecord

MOST_CURVES = 24
"""Largest number of settings in one figure."""
STEPS = 13
"""Number of sections that are built, for progress."""


@dataclass(frozen=True)
class Page:
    """What the templates render: a title, a lead, blocks at the top, and sections."""

    title: str
    lead: str
    top: Sequence[PageBlock]
    sections: Sequence[PageSection]


def build_page(
    runs: Sequence[RunRecord], title: str, *, photos: bool = True, done: Callable[[int], None] = lambda count: None
) -> Page:
    """Build the page of one or several runs.

    Args:
        runs: The records of the runs.
        title: The title of the page.
        photos: Whether to show pictures with images of the evaluated data.
        done: Called with the number of finished sections, of `STEPS`.

    Returns:
        The page, without sections for which the runs have no records.
    """
    groups = group_records(runs)
    drawn, note = _drawn(groups, runs)
    charts = Charts(drawn)
    builders: list[Callable[[], PageSection | None]] = [
        lambda: build_results(groups, runs),
        lambda: build_curves(charts, runs),
        lambda: build_federation(charts, runs),
        lambda: build_privacy(charts, runs),
        lambda: build_audits(runs),
        lambda: build_attacks(charts, runs),
        lambda: build_evaluations(runs, photos),
        lambda: build_classes(charts),
        lambda: build_dynamics(charts),
        lambda: build_clients(charts),
        lambda: build_costs(charts, groups),
        lambda: build_configuration(groups),
        lambda: build_reproduction(groups, runs),
    ]
    sections = []
    for build in builders:
        section = build()
        sections += [section] if section is not None else []
        done(1)
    top = [summarize_page(groups, runs), *list_problems(runs), *note, *_warnings(runs)]
    return Page(title, describe_setting(groups, runs), top, sections)


def _drawn(groups: Sequence[RunGroup], runs: Sequence[RunRecord]) -> tuple[Sequence[RunGroup], list[PageBlock]]:
    """Return the settings that fit into figures: the best ones."""
    if len(groups) <= MOST_CURVES:
        return groups, []
    key = next(iter(metric_keys(runs)), "accuracy")
    chosen = rank_groups(groups, key)[:MOST_CURVES]
    text = f"Figures show {MOST_CURVES} of {len(groups)} settings, the best by {key}; tables have all."
    return sorted(chosen, key=lambda group: group.number), [Notice("info", "Many settings", [text])]


def _warnings(runs: Sequence[RunRecord]) -> list[PageBlock]:
    """Return the warnings of a single run; those of many would bury the page."""
    if len(runs) > 1 or runs[0].status == "damaged":
        return []
    lines = runs[0].warnings()
    return [Notice("warn", "Warnings", lines)] if lines else []


@cache
def templates() -> Environment:
    """Return the environment of all templates, which escapes everything."""
    return Environment(
        loader=PackageLoader("fedra.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> str:
    """Render a template."""
    return templates().get_template(template).render(**values)


@cache
def read_asset(name: str) -> str:
    """Return the text of a style sheet or script of the pages."""
    return (files("fedra.reports") / "templates" / name).read_text(encoding="utf-8")


def render_file(page: Page, written: str) -> str:
    """Render a page as one file that needs no other; its content security policy allows its own style and script."""
    style, script = read_asset("page.css"), read_asset("page.js")
    return render(
        "report.html",
        page=page,
        written=written,
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
