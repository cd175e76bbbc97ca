"""What every benchmark shares: timing in turns, rows with targets, the machine, and the command line."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Row:
    """One measured number beside its target; `at_least` says that more is better."""

    what: str
    value: float
    unit: str = "x"
    target: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return "met" if (self.value >= self.target if self.at_least else self.value <= self.target) else "missed"

    def cells(self) -> list[str]:
        """What was measured, the value, the target, the verdict and the note, as text."""
        sign = ">=" if self.at_least else "<="
        wanted = "" if self.target is None else f"{sign} {self.target:g} {self.unit}"
        return [self.what, f"{self.value:{_digits(self.value)}} {self.unit}", wanted, self.verdict, self.note]


def _digits(value: float) -> str:
    """Three significant digits without an exponent."""
    return ".0f" if abs(value) >= 100 else ".1f" if abs(value) >= 10 else ".2f" if abs(value) >= 0.1 else ".4f"


class Timings:
    """The seconds of some rivals, measured side by side."""

    def __init__(self, seconds: Mapping[str, list[float]]) -> None:
        self.seconds = dict(seconds)

    def best(self, name: str) -> float:
        """The quickest repeat: noise only ever adds time."""
        return min(self.seconds[name])

    def ratio(self, name: str, other: str) -> float:
        """How many times longer `name` takes than `other`, best against best."""
        return self.best(name) / self.best(other)

    def spread(self, name: str) -> str:
        """Best and median as text, to judge the noise by."""
        best, median = self.best(name), statistics.median(self.seconds[name])
        return f"{name} {best:{_digits(best)}} s (median {median:{_digits(median)}})"

    def note(self, *names: str) -> str:
        return ", ".join(self.spread(name) for name in names)


def in_turns(rivals: Mapping[str, Callable[[], object]], repeats: int, warm_up: int = 1) -> Timings:
    """Time every rival `repeats` times: one after the other, then in reverse, so that drift hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for repeat in range(-warm_up, repeats):
        names = list(rivals)[:: 1 if repeat % 2 else -1]
        for name in names:
            started = time.perf_counter()
            rivals[name]()
            if repeat >= 0:
                seconds[name].append(time.perf_counter() - started)
    return Timings(seconds)


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> str:
    """Processor, cores, memory and versions on one line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("fedra", "torch", "numpy"))
    return (
        f"{_processor()}, {cores()} cores, {memory:.0f} GiB; {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, {packages}"
    )


def _processor() -> str:
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def parser(about: str | None) -> argparse.ArgumentParser:
    """The options of every benchmark."""
    options = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="tiny sizes: checks that it runs, measures nothing")
    options.add_argument("--json", type=Path, help="also write the rows to this file")
    return options


def report(rows: list[Row], to: Path | None = None) -> None:
    """Print the rows, and keep them in a file if asked to."""
    table = [["what", "measured", "target", "", ""], *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(5)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if to is not None:
        to.write_text(json.dumps([asdict(row) for row in rows]))


def announce() -> None:
    """The machine, and a warning when it has other work to do."""
    print(machine())
    load = os.getloadavg()[0]
    if load > cores() / 2:
        print(f"note: the machine is busy (load {load:.1f} on {cores()} cores), so the numbers are noisy")
    sys.stdout.flush()


def main(measure: Callable[[bool], list[Row]], options: argparse.ArgumentParser) -> None:
    """The command line of one benchmark; `measure` takes whether to be quick."""
    given = options.parse_args()
    announce()
    rows = measure(given.quick)
    # Tiny sizes say nothing about a target.
    report([replace(row, target=None) for row in rows] if given.quick else rows, given.json)
