"""The CNN of `engine.py` and the MLP of `stacked.py` on other libraries, each in an environment of its own in .bench/.

`make peers` makes the environments (4 GB, from PyPI), with fedra's version of torch. Each job uses all cores in the
way its library offers; the libraries take turns, and the quickest round after the warm-up counts. With `--quick` the
weights that each library reaches are compared with those of the bare loop.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from measure import FOLDER, Row, Timings, cores, main, parser

HOME = FOLDER.parent / ".bench"


@dataclass(frozen=True)
class Peer:
    """A library: what pip installs, and whether torchrun starts its processes."""

    requirement: str
    torchrun: bool = False


PEERS = {
    "flwr": Peer("flwr[simulation]==1.41.0"),
    "pfl": Peer("pfl[pytorch]==0.6.0", torchrun=True),
    "fluke": Peer("fluke-fl==0.8.1"),
}
US = "fedra"
JOBS = {"cnn": 6, "mlp": 3}
"""The jobs, and how many rounds of each are run at a time, the warm-up included."""
TARGETS = {"cnn": 1.25, "mlp": 10.0}
"""How many times longer the round of any peer should be than fedra's."""
LIMIT = 900
"""Seconds after which a job is given up."""


def install() -> None:
    """Make an environment for every peer that has none."""
    HOME.mkdir(exist_ok=True)
    (HOME / ".gitignore").write_text("*\n")
    torch = f"torch=={version('torch').partition('+')[0]}"
    for name, peer in PEERS.items():
        if python_of(name).exists():
            print(f"{name}: there already")
            continue
        print(f"{name}: installing {peer.requirement}", flush=True)
        venv.create(HOME / name, with_pip=True)
        if subprocess.run([python_of(name), "-m", "pip", "install", "--quiet", peer.requirement, torch]).returncode:
            sys.exit(f"{name} could not be installed: remove {HOME / name} and try again")


def python_of(name: str) -> Path:
    return Path(sys.executable) if name == US else HOME / name / "bin" / "python"


def _seconds(name: str, job: str, quick: bool) -> list[float] | None:
    """Seconds of each round after the first, or None if the job failed."""
    peer = PEERS.get(name)
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cores())]
        if peer and peer.torchrun
        else []
    )
    sizes = [
        "--job",
        job,
        "--rounds",
        "2" if quick else str(JOBS[job]),
        "--workers",
        str(cores()),
        *(["--quick"] if quick else []),
    ]
    command = [str(python_of(name)), *launcher, "-m", "peer_jobs", name, *sizes]
    # Ray's workers find the job's modules by PYTHONPATH; no library should report home during a benchmark.
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    settings = {**os.environ, **quiet, "PYTHONPATH": str(FOLDER)}
    try:
        done = subprocess.run(command, cwd=FOLDER, env=settings, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        print(f"{name} failed on the {job} job: it was not done after {LIMIT} s")
        return None
    if done.returncode:
        print(f"{name} failed on the {job} job: {_reason(done.stderr)}")
        return None
    seconds: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return seconds[1:]


def _reason(log: str) -> str:
    """The last error that a job's log tells: torchrun writes more after it."""
    lines = [line for line in log.splitlines() if "Error: " in line] or log.strip().splitlines() or ["it said nothing"]
    return lines[-1]


def measure(quick: bool) -> list[Row]:
    """Each peer's round time against fedra's."""
    there = [name for name in PEERS if python_of(name).exists()]
    for name in PEERS.keys() - set(there):
        print(f"{name} is not installed: make its environment with `make peers`")
    return [row for job in JOBS for row in _rows(job, there, quick)] if there else []


def _rows(job: str, there: list[str], quick: bool) -> list[Row]:
    found: dict[str, list[float]] = {name: [] for name in (US, *there)}
    for repeat in range(1 if quick else 3):
        for name in list(found) if repeat % 2 else list(reversed(found)):
            seconds = _seconds(name, job, quick)
            if seconds is None:
                found.pop(name)
            else:
                found[name] += seconds
    if US not in found:
        sys.exit(f"{US}'s own job failed, so that there is nothing to compare with")
    timings = Timings(found)
    return [
        Row(
            f"{job.upper()}: {name} against {US}, round time",
            timings.ratio(name, US),
            target=TARGETS[job],
            at_least=True,
            note=timings.note(name, US),
        )
        for name in found
        if name != US
    ]


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--install", action="store_true", help="make the peers' environments, and measure nothing")
    if options.parse_args().install:
        install()
    else:
        main(measure, options)
