"""The page of all claims: what every reproduction in a folder decided, and what has not been tested yet."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from fedra.errors import DataError
from fedra.reproduce.entries import PAPERS, SIZES, PaperEntry, list_entries, read_paper
from fedra.reproduce.verdicts import Claim, Outcome
from fedra.writing import write_atomically

UNTESTED = "not yet tested"
OUTCOMES: tuple[str, ...] = (*get_args(Outcome), UNTESTED)
Records = Mapping[tuple[str, str], list[dict[str, Any]]]
"""Records of reproductions by paper and entry."""


def read_records(folder: Path) -> Records:
    """Read the numbers that `fedra reproduce` wrote to a folder.

    Args:
        folder: A folder with files such as fedsol-table1-small.json, also in folders below it; other JSON files are
            ignored.

    Returns:
        The records by paper and entry, the largest size last.
    """
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted(folder.rglob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"'{path}' must be JSON that `fedra reproduce` wrote, got damage ({error})") from None
        if isinstance(record, dict) and {"paper", "entry", "size", "claims"} <= record.keys():
            page = path.with_suffix(".md")
            record["page"] = page.relative_to(folder).as_posix() if page.exists() else ""
            found.setdefault((record["paper"], record["entry"]), []).append(record)
    for records in found.values():
        records.sort(key=lambda record: SIZES.index(record["size"]))
    return found


def claims_text(records: Records) -> str:
    """Write the page of all claims.

    Args:
        records: What `read_records` found.

    Returns:
        The page as Markdown.
    """
    parts = [
        "# Which claims of the papers hold here",
        "Every claim of the five papers that fedra can test, with what has been decided so far. A verdict is about the "
        "size at which it was run: *quick* and *small* are far from the papers' settings, so a claim that holds there "
        "holds for the method on small data, and one that does not may still hold at the paper's size. `fedra "
        "reproduce` runs each entry, its page has numbers, seeds and p-values, and `fedra reproduce --claims "
        "docs/results` writes this page from them. How a verdict is reached: [Reproduce a paper](../reproduce.md).",
        _totals(records),
    ]
    for paper in PAPERS:
        about = read_paper(paper)
        parts += [f"## {paper}", about["citation"]]
        parts += [f"**What decides:** {about['control']}", "**What came out here:**"]
        parts.append("\n".join(f"- {line}" for line in about["found"]))
        rows = [row for entry in list_entries(paper) for row in _rows(entry, records)]
        parts.append("\n".join(["| entry | claim | verdict | why |", "| --- | --- | --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def _rows(entry: PaperEntry, records: Records) -> list[str]:
    rows = []
    for claim in entry.claims:
        tested = _find_verdicts(entry, claim, records)
        text = claim.text if claim.where != "control" else f"*control:* {claim.text}"
        if not tested:
            rows.append(f"| {entry.name} | {_cell(text)} | {UNTESTED} | |")
        for record, verdict in tested:
            size = f"{record['size']}, {record['seeds']} seeds"
            link = f"[{size}]({record['page']})" if record["page"] else size
            rows.append(
                f"| {entry.name} | {_cell(text)} | **{verdict['outcome']}** ({link}) | {_cell(verdict['reason'])} |"
            )
    return rows


def _totals(records: Records) -> str:
    """Return a table that counts the verdicts of each paper, by the largest size that was run."""
    counts = {paper: Counter(_last_outcomes(paper, records)) for paper in PAPERS}
    lines = [
        f"{sum(count.total() for count in counts.values())} claims and controls, by the largest size that was run:",
        "",
        f"| paper | {' | '.join(OUTCOMES)} |",
        f"| --- |{' ---: |' * len(OUTCOMES)}",
    ]
    for paper, count in counts.items():
        lines.append(f"| [{paper}](#{paper}) | {' | '.join(str(count[outcome]) for outcome in OUTCOMES)} |")
    return "\n".join(lines)


def _last_outcomes(paper: str, records: Records) -> Iterator[str]:
    for entry in list_entries(paper):
        for claim in entry.claims:
            tested = _find_verdicts(entry, claim, records)
            yield tested[-1][1]["outcome"] if tested else UNTESTED


def _find_verdicts(entry: PaperEntry, claim: Claim, records: Records) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the records that decided a claim, each with its verdict, the largest size last."""
    return [
        (record, verdict)
        for record in records.get((entry.paper, entry.name), [])
        for verdict in record["claims"]
        if verdict["claim"] == claim.text
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def write_claims(folder: Path) -> Path:
    """Write claims.md from the records in a folder.

    Args:
        folder: A folder with pages and numbers of reproductions, also in folders below it.

    Returns:
        The page.
    """
    path = folder / "claims.md"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, claims_text(read_records(folder)).encode())
    return path
