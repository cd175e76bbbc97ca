"""A local, read-only page over a folder of runs, live while they train (needs the dashboard extra)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.lazy import lazy_names

if TYPE_CHECKING:
    from fedra.dashboard.dashboard_app import build_app
    from fedra.dashboard.dashboard_server import serve

__all__ = ["build_app", "serve"]

_HOMES = {
    "fedra.dashboard.dashboard_app": "build_app",
    "fedra.dashboard.dashboard_server": "serve",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
