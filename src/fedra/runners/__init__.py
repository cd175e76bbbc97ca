"""Runners execute the clients of a round. They import only the core, so algorithms do not depend on them."""

from __future__ import annotations

from fedra.registry import Registry
from fedra.runners.auto import Choice, automatic, choose, choose_stack
from fedra.runners.base import Result, Results, Runner, iterate_results
from fedra.runners.centralized import centralized
from fedra.runners.processes import processes
from fedra.runners.ray import on_ray
from fedra.runners.sequential import sequential
from fedra.runners.stacked import stacked

RUNNERS = Registry("runner")
RUNNERS.add("auto")(automatic)
RUNNERS.add("sequential")(sequential)
RUNNERS.add("processes")(processes)
RUNNERS.add("stacked")(stacked)
RUNNERS.add("ray")(on_ray)
RUNNERS.add("centralized")(centralized)

__all__ = ["RUNNERS", "Choice", "Result", "Results", "Runner", "choose", "choose_stack", "iterate_results"]
