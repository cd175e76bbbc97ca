"""Who calls the round, and where. A runner imports the core alone, so that no algorithm can know its runner."""

from __future__ import annotations

from fedra.registry import Registry
from fedra.runners.base import Result, Runner
from fedra.runners.processes import processes
from fedra.runners.sequential import sequential
from fedra.runners.stacked import stacked

RUNNERS = Registry("runner")
RUNNERS.add("sequential")(sequential)
RUNNERS.add("processes")(processes)
RUNNERS.add("stacked")(stacked)

__all__ = ["RUNNERS", "Result", "Runner"]
