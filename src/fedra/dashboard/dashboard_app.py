"""The pages of the dashboard: the list of runs, one run, several runs."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from fedra.console import format_duration
from fedra.dashboard.guard import Guard
from fedra.dashboard.run_index import IndexEntry, RunIndex
from fedra.errors import ConfigError
from fedra.reports.page_blocks import PageSection
from fedra.reports.page_numbers import title_of, unit_of, write_value
from fedra.reports.page_sections import STATUS_LEVELS
from fedra.reports.page_view import build_page, read_asset, render
from fedra.reports.run_record import load_record

ASSETS = {"page.css": "text/css", "page.js": "text/javascript", "live.js": "text/javascript"}
MOST_COMPARED = 60
KEPT_PAGES = 16
PAUSE = 4.0
"""A page is drawn again at the earliest after this many times the seconds that drawing it took."""
STATUSES = ("running", "finished", "stopped", "failed", "damaged")


def build_app(folder: Path | str) -> Starlette:
    """Build the web application of the dashboard, to be served on this machine only.

    Args:
        folder: The folder with runs; nothing outside of it is read.

    Returns:
        An ASGI application that refuses foreign hosts and origins, and every method but GET.

    Example:
        >>> app = fedra.dashboard.build_app("runs")
    """
    path = Path(folder)
    if not path.is_dir():
        raise ConfigError(f"the dashboard must have a folder of runs, got '{path}': check the path")
    pages = DashboardPages(RunIndex(path))
    routes = [
        Route("/", pages.show_list),
        Route("/run", pages.show_run),
        Route("/compare", pages.show_comparison),
        Route("/static/{name}", show_asset),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(Guard)])
    app.router.redirect_slashes = False  # a path is known or refused
    return app


def show_asset(request: Request) -> Response:
    """Return a style sheet or a script of the package."""
    name = request.path_params["name"]
    if name not in ASSETS:
        return _refuse("there is no such file")
    return Response(read_asset(name), media_type=ASSETS[name])


@dataclass
class DrawnPage:
    """A page with the version of the runs that it shows, when it was drawn, and how long that took."""

    version: str
    html: str
    sections: Sequence[PageSection]
    finished: float
    seconds: float


@dataclass
class DashboardPages:
    """Renders pages; a page that a browser already shows in its newest version is not sent again."""

    index: RunIndex
    _drawn: OrderedDict[tuple[str, ...], DrawnPage] = field(default_factory=OrderedDict)
    _drawing: threading.Lock = field(default_factory=threading.Lock)

    def show_list(self, request: Request) -> Response:
        entries = list(self.index.refresh().values())
        version = _hash(repr([(entry.name, entry.status, entry.signature) for entry in entries]))
        if request.query_params.get("version") == version:
            return Response(status_code=204)
        query, status = request.query_params.get("q", ""), request.query_params.get("status", "")
        shown = [e for e in entries if _matches(e, query) and status in ("", e.status)]
        values = {
            "rows": [self._row(entry) for entry in shown],
            "total": len(entries),
            "folder": self.index.root.name,
            "counts": {name: sum(e.status == name for e in entries) for name in STATUSES},
            "statuses": STATUSES,
            "query": query,
            "status": status,
        }
        return self._send(request, version, render("dashboard_rows.html", **values), "dashboard_list.html", values)

    def show_run(self, request: Request) -> Response:
        return self._show(request, [request.query_params.get("name", "")])

    def show_comparison(self, request: Request) -> Response:
        return self._show(request, request.query_params.getlist("run"))

    def _show(self, request: Request, names: Sequence[str]) -> Response:
        entries = self.index.refresh()
        unknown = [name for name in names if name not in entries]
        if unknown or not names:
            return _refuse(f"there is no run '{unknown[0]}' in the folder" if unknown else "no run was chosen")
        if len(names) > MOST_COMPARED:
            return _refuse(f"at most {MOST_COMPARED} runs can be compared, got {len(names)}")
        page = self._draw(tuple(dict.fromkeys(names)), [entries[name] for name in names])
        if request.query_params.get("version") == page.version:
            return Response(status_code=204)
        title = self.index.label(names[0]) if len(names) == 1 else f"{len(names)} runs"
        values: dict[str, object] = {"title": title, "sections": page.sections}
        return self._send(request, page.version, page.html, "dashboard_page.html", values)

    def _draw(self, names: tuple[str, ...], entries: Sequence[IndexEntry]) -> DrawnPage:
        """Draw a page, or return the last drawing if it is up to date or was too expensive to be repeated yet."""
        version = _hash(repr([(entry.name, entry.status, entry.signature) for entry in entries]))
        with self._drawing:  # matplotlib's settings belong to the whole process
            known = self._drawn.get(names)
            if known is not None and (
                known.version == version or time.monotonic() - known.finished < PAUSE * known.seconds
            ):
                return known
            started = time.monotonic()
            records = [
                load_record(self.index.root / name, self.index.label(name), enclosed=name == ".") for name in names
            ]
            title = records[0].headline if len(records) == 1 else f"{len(records)} runs"
            page = build_page(records, title)
            html = render("sections.html", page=page)
            finished = time.monotonic()
            self._drawn[names] = DrawnPage(version, html, page.sections, finished, finished - started)
            self._drawn.move_to_end(names)
            while len(self._drawn) > KEPT_PAGES:
                self._drawn.popitem(last=False)
            return self._drawn[names]

    def _send(
        self, request: Request, version: str, inner: str, template: str, values: dict[str, object]
    ) -> HTMLResponse:
        """Send the inside of a page that a browser already shows, or a whole page."""
        if "version" in request.query_params:
            return HTMLResponse(inner, headers={"x-version": version})
        rest = [(key, value) for key, value in request.query_params.multi_items() if key != "version"]
        live = f"{request.url.path}?{urlencode(rest)}"
        return HTMLResponse(render(template, inner=inner, version=version, live=live, **values))

    def _row(self, entry: IndexEntry) -> dict[str, object]:
        value = write_value(entry.metric, entry.value) + (" %" if unit_of(entry.metric) and entry.value else "")
        return {
            "name": entry.name,
            "label": self.index.label(entry.name),
            "about": " · ".join(filter(None, [entry.title, entry.data, entry.model, _seed(entry)])),
            "link": f"/run?{urlencode({'name': entry.name})}",
            "entry": entry,
            "level": STATUS_LEVELS.get(entry.status, "good"),
            "metric": title_of(entry.metric),
            "value": value,
            "share": entry.rounds / entry.planned if entry.planned else None,
            "time": _describe_time(entry),
            "changed": datetime.fromtimestamp(entry.changed).astimezone().strftime("%Y-%m-%d %H:%M"),
        }


def _describe_time(entry: IndexEntry) -> str:
    if entry.seconds_left is not None:
        return f"{format_duration(entry.seconds_left)} left"
    return format_duration(entry.seconds)


def _seed(entry: IndexEntry) -> str:
    return "" if entry.seed is None else f"seed {entry.seed}"


def _matches(entry: IndexEntry, query: str) -> bool:
    return all(word in entry.words for word in query.lower().split())


def _refuse(reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", 404)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
