"""Commands for pages in a browser: report and dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedra.cli.app import INSPECT, app, examples, print_line


@app.command(
    rich_help_panel=INSPECT,
    epilog=examples("fedra report runs/fedavg runs/fedprox --out both.html", "fedra report runs/sweep"),
)
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of runs or sweeps, or folders that contain them.", metavar="RUN|SWEEP|DIR..."),
    ],
    out: Annotated[Path, typer.Option(help="File to write (.html).", metavar="FILE")] = Path("report.html"),
    title: Annotated[
        str | None, typer.Option(help="Title of the report.", metavar="TEXT", show_default="the folder's name")
    ] = None,
    photos: Annotated[
        bool, typer.Option(help="Include pictures with images of the data, such as the worst errors on faces.")
    ] = True,
) -> None:
    """Write a report about runs as one HTML file that needs no network."""
    from rich.console import Console

    from fedra.reports.report_file import report as write_report

    path = write_report(runs, out=out, title=title, photos=photos, console=Console(stderr=True))
    print_line(Console(), f"report saved to {path}")


@app.command(rich_help_panel=INSPECT, epilog=examples("fedra dashboard runs", "fedra dashboard runs --port 0"))
def dashboard(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.", metavar="DIR")] = Path("."),
    port: Annotated[int, typer.Option(help="Port on this machine; 0 for any free one.", min=0, max=65535)] = 8765,
) -> None:
    """Serve a live page over a folder of runs, on this machine only.

    It lists all runs, draws their curves while they train, and only reads. Needs the dashboard extra.
    """
    from fedra.dashboard.dashboard_server import serve

    serve(folder, port=port)
