"""Runners execute the clients of a round. They import only the core, so algorithms do not depend on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.lazy import lazy_names
from fedra.registry import Registry

if TYPE_CHECKING:
    from fedra.runners.auto import Choice, choose, choose_stack
    from fedra.runners.base import Result, Results, Runner, iterate_results

_HOMES = {
    "fedra.runners.auto": "Choice choose choose_stack",
    "fedra.runners.base": "Result Results Runner iterate_results",
}

RUNNERS = Registry(
    "runner",
    {
        "fedra.runners.auto": "auto",
        "fedra.runners.centralized": "centralized",
        "fedra.runners.processes": "processes",
        "fedra.runners.ray": "ray",
        "fedra.runners.sequential": "sequential",
        "fedra.runners.stacked": "stacked",
    },
)

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = ["RUNNERS", "Choice", "Result", "Results", "Runner", "choose", "choose_stack", "iterate_results"]
