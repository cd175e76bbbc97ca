"""`python -m peer_jobs NAME --job cnn --rounds 6 --workers 2` prints the seconds of each round as JSON.

With `--quick` the job is tiny and its learning rate small, and its weights are compared with those of the bare loop.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from dataclasses import replace

from bare import SMALL, Work

from peer_jobs.timing import CHECKED_LR, must_agree, must_move

if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("name")
    options.add_argument("--job", choices=["cnn", "mlp"], required=True)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--rounds", type=int, required=True)
    options.add_argument("--workers", type=int, required=True)
    given = options.parse_args()
    work = Work() if given.job == "cnn" else SMALL
    if given.quick:
        tiny = Work.sized(quick=True) if given.job == "cnn" else replace(SMALL, clients=30)
        work = replace(tiny, lr=CHECKED_LR)
    trained = importlib.import_module(f"peer_jobs.{given.name}").job(work, given.rounds, given.workers)
    if os.environ.get("RANK", "0") == "0":  # of the processes that torchrun starts, one answers
        must_move(trained)
        if given.quick:
            must_agree(trained, work)
        print("\n" + json.dumps(trained.seconds), flush=True)
