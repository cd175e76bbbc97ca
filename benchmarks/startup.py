"""How long one waits: imports, `fedra --help`, and a run from its configuration to the first local step.

Everything is timed in fresh processes, after one that fills the disk cache and writes bytecode, which an installed
package has. All that a run uses are the modules of fedra that are loaded when a run takes its first local step.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from measure import Row, Timings, main, parser

IMPORT = """
import time, torch
started = time.perf_counter()
import fedra
{then}
print(time.perf_counter() - started)
"""

FIRST_STEP = """
import os, sys, time
import torch
started = time.perf_counter()
import fedra
run = fedra.run
from fedra.core.program import ClientProgram

def stop(*_, **__):
    print(time.perf_counter() - started, *(name for name in sys.modules if name.startswith("fedra")), flush=True)
    os._exit(0)

ClientProgram.step = stop
run({"data": {"name": "digits"}, "model": {"name": "mlp"}, "rounds": 1})
"""


def measure(quick: bool) -> list[Row]:
    """Seconds of each way to begin, best of several."""
    help_command = Path(sysconfig.get_path("scripts")) / "fedra"
    found: dict[str, list[float]] = {name: [] for name in ("import", "use", "help", "step", "whole")}
    for repeat in range(2 if quick else 8):
        told, whole = _timed([sys.executable, "-c", FIRST_STEP])
        step, *loaded = told.split()
        use = f"import importlib; fedra.run; all(map(importlib.import_module, {loaded}))"
        seconds = {
            "import": float(_timed([sys.executable, "-c", IMPORT.format(then="")])[0]),
            "use": float(_timed([sys.executable, "-c", IMPORT.format(then=use)])[0]),
            "help": _timed([str(help_command), "--help"])[1],
            "step": float(step),
            "whole": whole,
        }
        if repeat:
            for name, value in seconds.items():
                found[name].append(value)
    best = Timings(found).best
    return [
        Row("import fedra, beyond torch's own import", best("import"), "s", 0.3),
        Row("import fedra and all that a run uses, beyond torch", best("use"), "s", 0.3),
        Row("fedra --help", best("help"), "s", 0.5),
        Row("configuration to first local step, digits, fedra's imports included", best("step"), "s", 2.0),
        Row("the same with the start of Python and torch's import", best("whole"), "s"),
    ]


def _timed(command: list[str]) -> tuple[str, float]:
    """What the command printed, and its seconds from start to end."""
    started = time.perf_counter()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return done.stdout, time.perf_counter() - started


if __name__ == "__main__":
    main(measure, parser(__doc__))
