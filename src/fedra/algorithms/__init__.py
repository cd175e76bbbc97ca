"""Named algorithms: one file each, one line each in the registry below.

`neutral` are the fields at which an algorithm is exactly FedAvg; None where it has no such point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedra.algorithms.fedarc import fedarc
from fedra.algorithms.fedavg import fedavg
from fedra.algorithms.fedaws import fedaws
from fedra.algorithms.fedbabu import fedbabu
from fedra.algorithms.feddecorr import feddecorr
from fedra.algorithms.feddyn import feddyn
from fedra.algorithms.fedgc import fedcos, fedgc
from fedra.algorithms.fedlc import fedlc
from fedra.algorithms.fednova import fednova
from fedra.algorithms.fedntd import fedntd
from fedra.algorithms.fedopt import fedadagrad, fedadam, fedavgm, fedyogi
from fedra.algorithms.fedpe import fedpe
from fedra.algorithms.fedprox import fedprox
from fedra.algorithms.fedrs import fedrs
from fedra.algorithms.fedsam import fedasam, fedsam
from fedra.algorithms.fedsol import fedsol, fedsol_ablation
from fedra.algorithms.fedspeed import fedspeed
from fedra.algorithms.moon import moon
from fedra.algorithms.scaffold import scaffold
from fedra.core.algorithm import Algorithm
from fedra.registry import Registry


@dataclass(frozen=True)
class Entry:
    """An algorithm's recipe, and where it is FedAvg."""

    recipe: Callable[..., Algorithm]
    neutral: dict[str, Any] | None = None


ENTRIES: dict[str, Entry] = {
    "fedavg": Entry(fedavg, {}),
    "fedprox": Entry(fedprox, {"mu": 0.0}),
    "fedavgm": Entry(fedavgm, {"momentum": 0.0}),
    "fedadam": Entry(fedadam),
    "fedyogi": Entry(fedyogi),
    "fedadagrad": Entry(fedadagrad),
    "scaffold": Entry(scaffold),
    "fednova": Entry(fednova),
    "feddyn": Entry(feddyn),
    "moon": Entry(moon, {"mu": 0.0}),
    "fedntd": Entry(fedntd, {"beta": 0.0}),
    "fedsam": Entry(fedsam, {"rho": 0.0}),
    "fedasam": Entry(fedasam, {"rho": 0.0}),
    "fedsol": Entry(fedsol, {"rho": 0.0}),
    "fedsol-ablation": Entry(fedsol_ablation, {"variant": "A0"}),
    "feddecorr": Entry(feddecorr, {"beta": 0.0}),
    "fedlc": Entry(fedlc, {"tau": 0.0}),
    "fedrs": Entry(fedrs, {"alpha": 1.0}),
    "fedspeed": Entry(fedspeed),
    "fedarc": Entry(fedarc, {"weight": 0.0}),
    "fedbabu": Entry(fedbabu),
    "fedpe": Entry(fedpe),
    "fedcos": Entry(fedcos),
    "fedgc": Entry(fedgc),
    "fedaws": Entry(fedaws),
}

ALGORITHMS = Registry("algorithm")
for _name, _entry in ENTRIES.items():
    ALGORITHMS.add(_name)(_entry.recipe)


def register(name: str, recipe: Callable[..., Algorithm], neutral: dict[str, Any] | None = None) -> None:
    """Make your own algorithm known by name, to configurations and to the contract tests alike."""
    ALGORITHMS.add(name)(recipe)
    ENTRIES[name] = Entry(recipe, neutral)


__all__ = [
    "ALGORITHMS",
    "ENTRIES",
    "Entry",
    "fedadagrad",
    "fedadam",
    "fedarc",
    "fedasam",
    "fedavg",
    "fedavgm",
    "fedaws",
    "fedbabu",
    "fedcos",
    "feddecorr",
    "feddyn",
    "fedgc",
    "fedlc",
    "fednova",
    "fedntd",
    "fedpe",
    "fedprox",
    "fedrs",
    "fedsam",
    "fedsol",
    "fedsol_ablation",
    "fedspeed",
    "fedyogi",
    "moon",
    "register",
    "scaffold",
]
