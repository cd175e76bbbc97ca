"""How a run grows with its clients when each remembers a model of its own: 1,000 of them against 10,000.

Every client is a made-up person with four images of 32 x 32 pixels; a cohort of 100 trains by FedFS, where each client
keeps its own model (100 kB) beside the frozen and the global one. 32 MB of RAM are for what clients remember, so that
most of it lies on the disk. Both sizes load the images of all 10,000 people; resident memory excludes them. Each size
runs in a process of its own; the sizes take turns. Last, a run of the larger size is killed (SIGKILL) between
two checkpoints, verified and resumed: it has to end with the bits of a run that was left alone.

The images are painted once, in some minutes, and kept under the data root (FEDRA_DATA).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import Row, main, parser

IMAGES = 4
COHORT = 100
RAM = 32.0
MIB = 2**20


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    people: int
    sizes: tuple[int, int]
    rounds: int
    timed: int
    repeats: int
    killed_at: int
    save_every: int


FULL = Size(10_000, (1000, 10_000), 150, 50, 2, killed_at=25, save_every=15)
QUICK = Size(200, (100, 200), 4, 2, 1, killed_at=3, save_every=1)


def measure(quick: bool, picture: Path | None = None) -> list[Row]:
    """Resident memory and round time of both sizes, and whether a killed run comes to the same end."""
    if not Path("/proc/self/statm").exists():
        print("skipped: resident memory is read from /proc/self/statm, which is Linux alone")
        return []
    size = QUICK if quick else FULL
    found: dict[int, list[list[dict[str, Any]]]] = {clients: [] for clients in size.sizes}
    for repeat in range(size.repeats):
        for clients in size.sizes if repeat % 2 else reversed(size.sizes):
            with tempfile.TemporaryDirectory() as folder:
                found[clients].append(_lines(_start(clients, Path(folder), quick)))
    resident = {clients: min(_resident(run, size) for run in runs) for clients, runs in found.items()}
    seconds = {clients: min(_seconds(run, size) for run in runs) for clients, runs in found.items()}
    if picture is not None:
        _draw({clients: runs[0] for clients, runs in found.items()}, picture)
    few, many = size.sizes
    files = found[many][0][-1]["files"]
    rows = [
        Row(f"{many:,} clients against {few:,}, resident memory", resident[many] / resident[few], target=1.10),
        Row(f"{many:,} clients against {few:,}, round time", seconds[many] / seconds[few], target=1.20),
        Row("a killed run resumed, bits that differ", _differing(many, size, quick), "files", target=0),
    ]
    for clients in size.sizes:
        rows += [
            Row(f"{clients:,} clients, resident memory without images", resident[clients], "MiB"),
            Row(f"{clients:,} clients, median round", seconds[clients], "s", note=f"the last {size.timed} rounds"),
        ]
    return [*rows, Row(f"{many:,} clients, on the disk", files / MIB, "MiB", note=f"{RAM:.0f} MB may be in RAM")]


def _resident(run: list[dict[str, Any]], size: Size) -> float:
    return max(line["resident"] - line["images"] for line in run[-size.timed :]) / MIB


def _seconds(run: list[dict[str, Any]], size: Size) -> float:
    return statistics.median(line["seconds"] for line in run[-size.timed :])


def _differing(clients: int, size: Size, quick: bool) -> int:
    """How many of the last checkpoint's files differ between a run left alone and one that was killed and resumed."""
    with tempfile.TemporaryDirectory() as place:
        alone, killed = Path(place) / "alone", Path(place) / "killed"
        rounds = size.killed_at * 2
        _lines(_start(clients, alone, quick, rounds))
        process = _start(clients, killed, quick, rounds)
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["round"] == size.killed_at:
                break
        process.kill()
        process.wait()
        process.stdout.close()
        _lines(_start(clients, killed, quick, rounds))
        left, right = _digests(alone), _digests(killed)
        return sum(left.get(name) != right.get(name) for name in left.keys() | right.keys())


def _digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _start(clients: int, folder: Path, quick: bool, rounds: int | None = None) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, "--clients", str(clients), "--folder", str(folder)]
    words += [*(["--quick"] if quick else []), *(["--rounds", str(rounds)] if rounds else [])]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def _lines(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    told, _ = process.communicate()
    if process.returncode:
        sys.exit(f"a run of the benchmark failed with exit code {process.returncode}")
    return [json.loads(line) for line in told.splitlines()]


def probe(clients: int, folder: Path, size: Size, last: int) -> None:
    """Train to the round `last`, from the folder's checkpoint if there is one, and print a line for every round."""
    from fedra.core.round import init_server
    from fedra.experiment.cohort import CohortRule
    from fedra.experiment.plan import Plan
    from fedra.experiment.rounds import rounds
    from fedra.runners import RUNNERS
    from fedra.storage.checkpoint import Checkpoint
    from fedra.storage.state import State

    job = _job(clients, size.people)
    checkpoint = Checkpoint(folder)
    if checkpoint.exists():
        state = checkpoint.load(init_server(job.algorithm, job.initial()), ram=RAM)
    else:
        state = State.fresh(job, memory=checkpoint.memories(ram=RAM))
    images = sum(tensor.nbytes for tensor in job.tensors())
    plan = Plan(last, CohortRule(min(COHORT / clients, 0.5)))
    runner = RUNNERS["sequential"](job)
    before = time.perf_counter()
    for report in rounds(job, runner, plan, state):
        if state.round % size.save_every == 0 or state.round == last:
            checkpoint.save(state)
        now = time.perf_counter()
        line = {"round": report.metrics["round"], "seconds": now - before, "resident": _resident_bytes()}
        line |= {"images": images, "files": 0}
        if state.round == last:
            checkpoint.wait()
            line["files"] = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
        print(json.dumps(line), flush=True)
        before = now
    state.memory.close()


def _job(clients: int, people: int) -> Any:
    import torch

    from fedra.algorithms import fedfs
    from fedra.core.job import Job
    from fedra.core.local_training import LocalTraining
    from fedra.core.model import Model
    from fedra.data import Transform, load
    from fedra.data.clients import PooledClients
    from fedra.experiment.build import add_class_owners
    from fedra.models import build

    faces = load("synthetic-faces", identities=people, images=IMAGES, size=32, test_identities=2)
    order = faces.train.targets.argsort(stable=True)
    owners = PooledClients.split(
        faces.train.inputs,
        faces.train.targets,
        Transform((0.5,) * 3, (0.5,) * 3),
        [own.numpy() for own in order.split(torch.bincount(faces.train.targets).tolist())[:clients]],
    )
    model = Model(build("mlp", (3, 32, 32), len(faces.classes), seed=0, hidden=(8,)))
    local = LocalTraining(epochs=2, batch=IMAGES, lr=0.05)
    return add_class_owners(
        Job(algorithm=fedfs(), model=model, clients=owners, local=local, classes=len(faces.classes), seed=0), owners
    )


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _draw(runs: dict[int, list[dict[str, Any]]], path: Path) -> None:
    """Resident memory over the rounds, a line for each number of clients."""
    from fedra.pictures import line_style, make_panels, place_legend, save_figure, use_counts

    figure, (axes,) = make_panels(width=6, height=3)
    for number, (clients, lines) in enumerate(sorted(runs.items())):
        memory = [(line["resident"] - line["images"]) / MIB for line in lines]
        style = line_style(number, len(lines))
        axes.plot([line["round"] for line in lines], memory, label=f"{clients:,} clients", **style)
    axes.set(ylabel="resident memory (MiB)", ylim=(0, None))
    use_counts(axes)
    place_legend(axes)
    save_figure(figure, path)


def _options() -> argparse.ArgumentParser:
    options = parser(__doc__)
    options.add_argument("--clients", type=int, help="train this number alone and print a JSON line for each round")
    options.add_argument("--folder", type=Path, help="with --clients: where the checkpoint is")
    options.add_argument("--rounds", type=int, help="with --clients: how many")
    options.add_argument("--picture", type=Path, help="draw resident memory over the rounds (.svg or .png)")
    return options


if __name__ == "__main__":
    given = _options().parse_args()
    if given.clients is None:
        main(lambda quick: measure(quick, given.picture), _options())
    else:
        chosen = QUICK if given.quick else FULL
        probe(given.clients, given.folder, chosen, given.rounds or chosen.rounds)
