"""What sites say of themselves before round one, as a table; sites whose images differ from the others' are marked."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from fedra.federation.local_data.data_schema import DataSchema
from fedra.federation.roster import FederationRoster
from fedra.federation.wire import SiteWords

SIGMAS = 3.0
"""Standard deviations from the other sites from which a site is marked."""
LEAST_SIGMA = 0.02
"""The least standard deviation that is assumed, of pixels from 0 to 1: close agreement of the others marks no site."""
TO_SIGMA = 1.4826
"""What turns the median distance from the median into the standard deviation of a normal distribution."""


def find_outliers(words: Mapping[str, SiteWords], schema: DataSchema) -> dict[str, str]:
    """Find sites whose pixels have another mean or deviation than the others': inverted, scaled wrongly, another thing.

    A site is compared with the median of the others, so that one wrong site does not hide another. With fewer than two
    others that tell theirs, it is compared with the plan's mean and deviation.

    Args:
        words: How sites describe themselves; those whose policy lets no pixel statistics leave are not compared.
        schema: What the plan says of the images.

    Returns:
        A sentence for each site that is marked.
    """
    found: dict[str, str] = {}
    for key, title, planned in (("mean", "mean", schema.mean), ("std", "deviation", schema.std)):
        told = {site: value for site, one in words.items() if (value := getattr(one, key)) is not None}
        for site, value in told.items():
            others = [other for name, other in told.items() if name != site]
            sentence = _compare(value, others, planned)
            if sentence:
                before = f"{found[site]}; " if site in found else ""
                found[site] = f"{before}the {title} of its pixels is {value:.2f}, {sentence}"
    return found


def _compare(value: float, others: list[float], planned: tuple[float, ...] | None) -> str:
    """Return how a value differs from the others', or "" if it does not."""
    if len(others) >= 2:
        middle = statistics.median(others)
        spread = TO_SIGMA * statistics.median(abs(other - middle) for other in others)
        limit, whose = SIGMAS * max(spread, LEAST_SIGMA), "that of the other sites"
    elif planned is not None:
        middle, limit, whose = sum(planned) / len(planned), 10 * LEAST_SIGMA, "the plan's"
    else:
        return ""
    return f"{whose} {middle:.2f}" if abs(value - middle) > limit else ""


def describe_sites(
    words: Mapping[str, SiteWords], roster: FederationRoster, refused: Mapping[str, str], schema: DataSchema
) -> dict[str, dict[str, Any]]:
    """Return what is known of each site before the rounds, as plain data for `status.json`.

    Args:
        words: How sites describe themselves.
        roster: The clients, whose numbers of examples are those that weights come from.
        refused: Why other sites do not take part.
        schema: What the plan says of the images.
    """
    marks, found = find_outliers(words, schema), {}
    for site, one in words.items():
        numbers = [roster.clients[number] for number in roster.numbers(site)]
        found[site] = {
            "clients": len(numbers),
            "examples": sum(client.examples for client in numbers),
            "classes": max((one_client.classes for one_client in one.clients), default=0),
            "tests": sum(client.tests for client in numbers),
            "torch": one.torch,
            "device": one.device,
            "mean": one.mean,
            "std": one.std,
            "mark": marks.get(site),
        }
    return found | {site: {"refused": reason} for site, reason in refused.items()}


def description_table(sites: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the table of what sites said, one line per site; `description_notes` explains its marks."""
    table = Table(box=None, pad_edge=False)
    for title in ("site", "clients", "examples", "classes", "held out", "torch", "mean", "std", ""):
        table.add_column(title, justify="left" if title in ("site", "torch", "") else "right", no_wrap=True)
    for name, site in sites.items():
        if "refused" in site:
            table.add_row(Text(name), *[""] * 7, "not in")
            continue
        numbers = [f"{site[key]:,}" for key in ("clients", "examples", "classes", "tests")]
        pixels = ["-" if site[key] is None else f"{site[key]:.2f}" for key in ("mean", "std")]
        table.add_row(Text(name), *numbers, Text(site["torch"]), *pixels, "OUTLIER" if site["mark"] else "")
    return table


def description_notes(sites: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for every site that is marked or does not take part."""
    marked = [
        f"warning: {site}: {known['mark']}; is its data inverted, or scaled wrongly?"
        for site, known in sites.items()
        if known.get("mark")
    ]
    return marked + [
        f"{site} does not take part: {known['refused']}" for site, known in sites.items() if "refused" in known
    ]


def describe_changes(before: FederationRoster, after: FederationRoster, sites: Iterable[str], round: int) -> list[str]:
    """Describe what changed between two rounds: sites that joined, and data that were read anew."""
    joined = [site for site in sites if not before.numbers(site)]
    lines = [f"joined before round {round}: {', '.join(joined)}"] if joined else []
    for site in sites:
        old, new = ([roster.clients[n] for n in before.numbers(site)] for roster in (before, after))
        if old == new:
            continue
        counts = [f"{sum(client.examples for client in clients):,}" for clients in (old, new)]
        grown = sum(one.holds != other.holds for one, other in zip(old, new, strict=True))
        people = f"; clients with more people, which begin again from the global model: {grown}" if grown else ""
        lines.append(f"{site}: data read anew before round {round}, examples {counts[0]} -> {counts[1]}{people}")
    return lines
