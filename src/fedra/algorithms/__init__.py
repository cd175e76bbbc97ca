"""The built-in algorithms: one file each, and a registry of their names.

`Entry.neutral` holds the arguments at which an algorithm equals FedAvg; None if no arguments do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedra.algorithms.apfl import apfl
from fedra.algorithms.ditto import ditto
from fedra.algorithms.fedarc import fedarc
from fedra.algorithms.fedavg import fedavg
from fedra.algorithms.fedaws import fedaws
from fedra.algorithms.fedbabu import fedbabu
from fedra.algorithms.feddecorr import feddecorr
from fedra.algorithms.feddyn import feddyn
from fedra.algorithms.fedface import fedface
from fedra.algorithms.fedfr import fedfr
from fedra.algorithms.fedfs import fedfs
from fedra.algorithms.fedgc import fedcos, fedgc
from fedra.algorithms.fedlc import fedlc
from fedra.algorithms.fednova import fednova
from fedra.algorithms.fedntd import fedntd
from fedra.algorithms.fedopt import fedadagrad, fedadam, fedavgm, fedyogi
from fedra.algorithms.fedpe import fedpe
from fedra.algorithms.fedper import fedper
from fedra.algorithms.fedprox import fedprox
from fedra.algorithms.fedrep import fedrep
from fedra.algorithms.fedrs import fedrs
from fedra.algorithms.fedsam import fedasam, fedsam
from fedra.algorithms.fedsmoo import fedsmoo
from fedra.algorithms.fedsol import fedsol, fedsol_ablation
from fedra.algorithms.fedspeed import fedspeed
from fedra.algorithms.knn_per import knn_per
from fedra.algorithms.lg_fedavg import lg_fedavg
from fedra.algorithms.local_only import local_only
from fedra.algorithms.moon import moon
from fedra.algorithms.per_fedavg import per_fedavg
from fedra.algorithms.scaffold import scaffold
from fedra.core.algorithm import Algorithm
from fedra.registry import Registry


@dataclass(frozen=True)
class Entry:
    """A registered algorithm.

    Args:
        recipe: The function that builds the algorithm from keyword arguments.
        neutral: The arguments at which the algorithm equals FedAvg, which the contract tests check. {} means that its
            global model always does, None (the default) that no arguments do.

    Example:
        >>> ENTRIES["fedprox"].neutral
        {'mu': 0.0}
    """

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
    "fedsmoo": Entry(fedsmoo),
    "fedarc": Entry(fedarc, {"weight": 0.0}),
    "fedbabu": Entry(fedbabu),
    "local-only": Entry(local_only),
    "fedper": Entry(fedper, {"private": ()}),
    "lg-fedavg": Entry(lg_fedavg, {"private": ()}),
    "fedrep": Entry(fedrep),
    "per-fedavg": Entry(per_fedavg),
    "knn-per": Entry(knn_per, {}),
    "ditto": Entry(ditto, {}),
    "apfl": Entry(apfl, {}),
    "fedpe": Entry(fedpe),
    "fedcos": Entry(fedcos),
    "fedgc": Entry(fedgc),
    "fedaws": Entry(fedaws),
    "fedface": Entry(fedface),
    "fedfr": Entry(fedfr),
    "fedfs": Entry(fedfs),
}
"""Every registered algorithm by name."""

ALGORITHMS = Registry("algorithm", imports=True)
"""The functions that build algorithms, by the name that a configuration uses: `ALGORITHMS["fedprox"](mu=0.1)`."""

for _name, _entry in ENTRIES.items():
    ALGORITHMS.add(_name)(_entry.recipe)


def register(name: str, recipe: Callable[..., Algorithm], neutral: dict[str, Any] | None = None) -> None:
    """Register your own algorithm by name, for configurations and for the contract tests.

    Args:
        name: The name, without a colon. A name that is already registered is an error.
        recipe: A function of keyword-only arguments that returns an `Algorithm`. Its arguments become the fields that
            a configuration can set.
        neutral: The arguments at which the algorithm equals FedAvg; None (the default) if no arguments do.

    Example:
        >>> def fedprox_sam(*, mu: float = 0.1, rho: float = 0.1) -> Algorithm:
        ...     return fedprox(mu=mu).plus(fedsam(rho=rho))
        >>> register("fedprox-sam", fedprox_sam, neutral={"mu": 0.0, "rho": 0.0})
    """
    ALGORITHMS.add(name)(recipe)
    ENTRIES[name] = Entry(recipe, neutral)


__all__ = [
    "ALGORITHMS",
    "ENTRIES",
    "Entry",
    "apfl",
    "ditto",
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
    "fedface",
    "fedfr",
    "fedfs",
    "fedgc",
    "fedlc",
    "fednova",
    "fedntd",
    "fedpe",
    "fedper",
    "fedprox",
    "fedrep",
    "fedrs",
    "fedsam",
    "fedsmoo",
    "fedsol",
    "fedsol_ablation",
    "fedspeed",
    "fedyogi",
    "knn_per",
    "lg_fedavg",
    "local_only",
    "moon",
    "per_fedavg",
    "register",
    "scaffold",
]
