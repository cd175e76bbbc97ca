"""`python -m peer_jobs NAME --rounds 6 --workers 2` prints the seconds of each round of that job as JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import os

from bare import Work

if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("name")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--rounds", type=int, required=True)
    options.add_argument("--workers", type=int, required=True)
    given = options.parse_args()
    job = importlib.import_module(f"peer_jobs.{given.name}").job
    seconds = job(Work.sized(given.quick), given.rounds, given.workers)
    if os.environ.get("RANK", "0") == "0":  # of the processes that torchrun starts, one answers
        print("\n" + json.dumps(seconds), flush=True)
