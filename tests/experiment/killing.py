"""Run by a test in a process of its own: runs are killed at random moments and resumed until they finish.

Torch is imported once and every run is a fork, so that many kills fit into seconds.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import fedra
import tiny
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.experiment import run

Curves.on_run_end = Callback.on_run_end  # type: ignore[method-assign]  # drawing is most of a tiny run's time


def config(algorithm: str) -> dict[str, Any]:
    return tiny.table(
        rounds=10,
        algorithm={"name": algorithm, "plus": ["fedsam"]},
        cohort={"fraction": 0.5},
        diagnostics={"classes": True, "divergence": True},
        faults={"dropout": 0.1, "quorum": 0.5},
    )


def attempt(folder: Path, algorithm: str, delay: float) -> bool:
    """Start or resume the run and kill it after `delay` seconds; whether it had ended before."""
    child = os.fork()
    if child == 0:
        try:
            if (folder / "config.toml").exists():
                run.resume(folder)
            else:
                fedra.run(config(algorithm), out=folder)
        except BaseException as error:
            print(f"failed: {error!r}", flush=True)
            os._exit(3)
        os._exit(0)
    end = time.monotonic() + delay
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, f"a resumed run failed with {status}"
            return True
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == 0 or (folder / "summary.json").exists()  # killed after it had finished


def main(out: Path, algorithm: str, trials: int) -> None:
    chance = random.Random(algorithm)
    started = time.monotonic()
    assert attempt(out / "whole", algorithm, 60)
    usual = time.monotonic() - started
    kills = 0
    for trial in range(trials):
        folder = out / f"trial-{trial}"
        while not attempt(folder, algorithm, chance.uniform(0.05, 0.9) * usual):
            kills += 1
    print(f"kills {kills}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
