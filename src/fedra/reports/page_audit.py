"""The section of a page about audits: what attacks on the runs found. Pictures of people stay in the run's folder."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from fedra.reports.page_blocks import (
    DataTable,
    PageBlock,
    PageSection,
    Paragraph,
    PictureGrid,
    StoredPicture,
    TableCell,
)
from fedra.reports.run_files import RunFiles, number, table_of
from fedra.reports.run_record import RunRecord

FOLDER, RECORD = "audit", "audit.json"
LARGEST_PICTURE = 2**20
MOST_RUNS = 4
"""Number of runs whose curves are shown."""


def build_audits(runs: Sequence[RunRecord]) -> PageSection | None:
    """Return what attacks found in the runs that have an audit."""
    records = {run.name: (files, _read(files)) for run in runs if (files := _files(run)) is not None}
    found = {name: (files, record) for name, (files, record) in records.items() if record.get("findings")}
    if not found:
        return None
    rows = [row for name, (_, record) in found.items() for row in _rows(name, record)]
    headings = ["run", "attack", "figure", "value", "95 % interval", "chance", "control", "verdict"]
    blocks: list[PageBlock] = [
        Paragraph(
            "An attack that succeeds proves a leak; one that fails proves nothing. Only a guarantee is an upper bound."
        ),
        *(
            Paragraph(f"{name}: the guarantee does not hold: {sentence}")
            for name, (_, record) in found.items()
            for sentence in _list(record.get("violations"))
        ),
        DataTable(headings, rows, "Controls cannot leak.", numbers=3, sortable=False, name="audit"),
    ]
    pictures = [p for name, (files, record) in list(found.items())[:MOST_RUNS] for p in _pictures(name, files, record)]
    blocks += [PictureGrid(pictures)] if pictures else []
    blocks.append(Paragraph("Pictures that show people are in the runs' folders only, in audit/."))
    return PageSection("audit", "Audit", blocks)


def _files(run: RunRecord) -> RunFiles | None:
    folder = run.folder / FOLDER
    return RunFiles(folder, run.files.problems) if folder.is_dir() and not folder.is_symlink() else None


def _read(files: RunFiles) -> dict[str, Any]:
    return files.read_table(RECORD) or {}


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list) else []


def _rows(name: str, record: dict[str, Any]) -> list[list[TableCell]]:
    rows = []
    for found in map(table_of, _list(record.get("findings"))):
        controls = {str(one.get("name")): one.get("value") for one in map(table_of, _list(found.get("controls")))}
        for place, one in enumerate(map(table_of, _list(found.get("figures")))):
            low, high = (_write(one.get(key)) for key in ("low", "high"))
            verdict = "" if place else str(found.get("verdict", ""))
            rows.append(
                [
                    TableCell(name),
                    TableCell(f"{found.get('attack')}: {found.get('title')}"),
                    TableCell(str(one.get("name"))),
                    TableCell(_write(one.get("value")), number(one.get("value"))),
                    TableCell(f"{low} to {high}"),
                    TableCell(_write(one.get("chance"))),
                    TableCell(_write(controls.get(str(one.get("name"))))),
                    TableCell(verdict),
                ]
            )
    return rows


def _write(value: object) -> str:
    found = number(value)
    return "–" if found is None else f"{found:.3g}"


def _pictures(name: str, files: RunFiles, record: dict[str, Any]) -> list[StoredPicture]:
    shown = []
    for found in map(table_of, _list(record.get("findings"))):
        for file in map(str, _list(found.get("pictures"))):
            data = files.read_bytes(file, LARGEST_PICTURE) if file.endswith(".svg") else None
            if data is not None:
                source = f"data:image/svg+xml;base64,{base64.b64encode(data).decode()}"
                shown.append(StoredPicture(source, f"{found.get('attack')}", name))
    return shown
