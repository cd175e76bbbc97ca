"""fedra: federated recognition with angular margins.

An algorithm is a choice of parts in named slots:

    fedra.algorithms.NAME(...)          an Algorithm; `.plus(...)` joins parts and algorithms
    fedra.run(config)                   a run from a configuration
    fedra.simulate(algorithm, model, clients, ...)   the same with your own module and tensors
    fedra.evaluate(model, on="lfw")                  a run, a module or a function by the field's protocols
    fedra.losses.ArcFace(scale=64, margin=0.5)       every margin loss, for any training loop
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedra import algorithms, data, losses, models
    from fedra.core.algorithm import Algorithm
    from fedra.errors import ConfigError, DataError, FedraError, RunError
    from fedra.experiment.evaluating import evaluate
    from fedra.experiment.run import RunResult, resume, run
    from fedra.experiment.simulate import simulate

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "ConfigError",
    "DataError",
    "FedraError",
    "RunError",
    "RunResult",
    "algorithms",
    "data",
    "evaluate",
    "losses",
    "models",
    "resume",
    "run",
    "simulate",
]

_HOMES = {
    "Algorithm": "fedra.core.part",
    "ConfigError": "fedra.errors",
    "DataError": "fedra.errors",
    "FedraError": "fedra.errors",
    "RunError": "fedra.errors",
    "RunResult": "fedra.experiment.run",
    "evaluate": "fedra.experiment.evaluating",
    "resume": "fedra.experiment.run",
    "run": "fedra.experiment.run",
    "simulate": "fedra.experiment.simulate",
}


def _imported(module: str) -> Any:
    """The module. Its import makes many objects that stay: a search for garbage among torch's would be in vain."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collecting:
            gc.enable()


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import fedra` and `fedra --help` do not wait for torch."""
    if name in _HOMES:
        return getattr(_imported(_HOMES[name]), name)
    if name in __all__:
        return _imported(f"fedra.{name}")
    raise AttributeError(f"module 'fedra' has no attribute '{name}'")
