"""The parts of `fedra demo --quick`: the same steps at a size that takes seconds, to check an installation."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from fedra.console import tell
from fedra.demo.digits_demo import SETTING, compare_methods
from fedra.demo.face_demo import FaceDemoResult, Scale, recognize_faces
from fedra.reports.sweep_table import Cell, Point

NOTICE = (
    "This is a smoke run: it checks that every step works. Its numbers are not those of the full demo and do not "
    "compare methods or models; run `fedra demo` for those."
)
QUICK_SETTING = {**SETTING, "rounds": 3}
QUICK_SEEDS = 1
QUICK_SCALE = Scale(
    clients=2,
    people=12,
    images=4,
    unseen=10,
    unseen_images=4,
    enrolled=3,
    enrolled_images=3,
    unknown=2,
    rounds=1,
)


def compare_methods_quickly(out: Path, console: Console) -> list[tuple[Point, Cell]]:
    """Run the comparison on digits with one seed and a few rounds; see `compare_methods`."""
    tell(console, f"{NOTICE}\n")
    return compare_methods(out, console, setting=QUICK_SETTING, seeds=QUICK_SEEDS)


def recognize_faces_quickly(out: Path, console: Console) -> FaceDemoResult:
    """Run the face demo with a few people and one round; see `recognize_faces`."""
    tell(console, f"\n{NOTICE}")
    return recognize_faces(out, console, scale=QUICK_SCALE)
