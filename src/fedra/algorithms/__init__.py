"""The built-in algorithms: one file each, and a registry of their names.

`Entry.neutral` holds the arguments at which an algorithm equals FedAvg; None if no arguments do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedra.core.algorithm import Algorithm
from fedra.lazy import lazy_names
from fedra.registry import Registry

if TYPE_CHECKING:
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

_HOMES = {
    "fedra.algorithms.apfl": "apfl",
    "fedra.algorithms.ditto": "ditto",
    "fedra.algorithms.fedarc": "fedarc",
    "fedra.algorithms.fedavg": "fedavg",
    "fedra.algorithms.fedaws": "fedaws",
    "fedra.algorithms.fedbabu": "fedbabu",
    "fedra.algorithms.feddecorr": "feddecorr",
    "fedra.algorithms.feddyn": "feddyn",
    "fedra.algorithms.fedface": "fedface",
    "fedra.algorithms.fedfr": "fedfr",
    "fedra.algorithms.fedfs": "fedfs",
    "fedra.algorithms.fedgc": "fedcos fedgc",
    "fedra.algorithms.fedlc": "fedlc",
    "fedra.algorithms.fednova": "fednova",
    "fedra.algorithms.fedntd": "fedntd",
    "fedra.algorithms.fedopt": "fedadagrad fedadam fedavgm fedyogi",
    "fedra.algorithms.fedpe": "fedpe",
    "fedra.algorithms.fedper": "fedper",
    "fedra.algorithms.fedprox": "fedprox",
    "fedra.algorithms.fedrep": "fedrep",
    "fedra.algorithms.fedrs": "fedrs",
    "fedra.algorithms.fedsam": "fedasam fedsam",
    "fedra.algorithms.fedsmoo": "fedsmoo",
    "fedra.algorithms.fedsol": "fedsol fedsol_ablation",
    "fedra.algorithms.fedspeed": "fedspeed",
    "fedra.algorithms.knn_per": "knn_per",
    "fedra.algorithms.lg_fedavg": "lg_fedavg",
    "fedra.algorithms.local_only": "local_only",
    "fedra.algorithms.moon": "moon",
    "fedra.algorithms.per_fedavg": "per_fedavg",
    "fedra.algorithms.scaffold": "scaffold",
}

ALGORITHMS = Registry("algorithm", {home: names.replace("_", "-") for home, names in _HOMES.items()}, imports=True)
"""The functions that build algorithms, by the name that a configuration uses: `ALGORITHMS["fedprox"](mu=0.1)`."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)


@dataclass(frozen=True)
class Entry:
    """A registered algorithm.

    Args:
        name: The name in `ALGORITHMS`; `recipe` is the function there that builds the algorithm.
        neutral: The arguments at which the algorithm equals FedAvg, which the contract tests check. {} means that its
            global model always does, None (the default) that no arguments do.

    Example:
        >>> ENTRIES["fedprox"].neutral
        {'mu': 0.0}
    """

    name: str
    neutral: dict[str, Any] | None = None

    @property
    def recipe(self) -> Callable[..., Algorithm]:
        """The function that builds the algorithm from keyword arguments."""
        return ALGORITHMS[self.name]


_NEUTRAL: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"mu": 0.0},
    "fedavgm": {"momentum": 0.0},
    "moon": {"mu": 0.0},
    "fedntd": {"beta": 0.0},
    "fedsam": {"rho": 0.0},
    "fedasam": {"rho": 0.0},
    "fedsol": {"rho": 0.0},
    "fedsol-ablation": {"variant": "A0"},
    "feddecorr": {"beta": 0.0},
    "fedlc": {"tau": 0.0},
    "fedrs": {"alpha": 1.0},
    "fedarc": {"weight": 0.0},
    "fedper": {"private": ()},
    "lg-fedavg": {"private": ()},
    "knn-per": {},
    "ditto": {},
    "apfl": {},
}

ENTRIES: dict[str, Entry] = {name: Entry(name, _NEUTRAL.get(name)) for name in ALGORITHMS}
"""Every registered algorithm by name."""


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
    ENTRIES[name] = Entry(name, neutral)


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
