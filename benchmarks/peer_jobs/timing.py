"""The command line of a peer's job: it prints the seconds of each round as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from bare import Work

Job = Callable[[Work, int, int], list[float]]
"""From the work, the number of rounds and of worker processes to the seconds of every round."""


def main(job: Job) -> None:
    """Run the job as asked; the answer is the last line printed."""
    options = argparse.ArgumentParser()
    options.add_argument("--quick", action="store_true")
    options.add_argument("--rounds", type=int, required=True)
    options.add_argument("--workers", type=int, required=True)
    given = options.parse_args()
    seconds = job(Work.sized(given.quick), given.rounds, given.workers)
    print("\n" + json.dumps(seconds), flush=True)


def gaps(moments: list[float]) -> list[float]:
    """The times between the moments at which rounds ended."""
    return [after - before for before, after in zip(moments, moments[1:], strict=False)]
