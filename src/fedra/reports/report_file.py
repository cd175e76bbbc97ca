"""`fedra.report`: one file about one or several runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console

from fedra.console import choose_console, steps
from fedra.errors import ConfigError
from fedra.reports.page_view import STEPS, build_page, render_file
from fedra.reports.run_record import RunRecord, load_record
from fedra.reports.run_search import find_folders
from fedra.writing import write_atomically


def report(
    runs: Sequence[Path | str] | Path | str,
    *,
    out: Path | str = "report.html",
    title: str | None = None,
    photos: bool = True,
    console: Console | None = None,
) -> Path:
    """Write a report about runs: one HTML file that needs no other file and no network.

    It holds what was trained on what, final metrics with mean and spread over seeds, curves, diagnostics, evaluations,
    traffic, time, the configuration with differences marked, versions and the commands that repeat the runs. Nothing is
    trained or imported. Runs that are not finished, failed or are damaged are shown as such.

    Args:
        runs: Folders of runs or sweeps, or folders that contain them.
        out: The file, ending in .html.
        title: Title of the report. Defaults to the name of the folder.
        photos: Whether to include pictures with images of the evaluated data, such as the worst errors on faces.
        console: Where progress is shown; standard error if it is a terminal, by default.

    Returns:
        The path of the file.

    Example:
        >>> fedra.report(["runs/fedavg", "runs/fedprox"], out="report.html")
    """
    path, given = Path(out), [runs] if isinstance(runs, str | Path) else list(runs)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"the name of a report must end in .html, got '{path}'")
    folders, shown = find_folders(given), choose_console(console)
    records: list[RunRecord] = []
    with steps(shown, "report", len(folders) + 4 * STEPS) as done:
        for name, folder in folders.items():
            records.append(load_record(folder, name))
            done(1)
        page = build_page(records, title or _title(given, records), photos=photos, done=lambda count: done(4 * count))
    written = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, render_file(page, written).encode(), durable=False)
    return path


def _title(given: Sequence[Path | str], records: Sequence[RunRecord]) -> str:
    if len(records) == 1:
        return records[0].headline
    return Path(given[0]).resolve().name if len(given) == 1 else f"{len(records)} runs"
