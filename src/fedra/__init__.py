"""fedra: federated recognition with angular margins.

An algorithm is a choice of parts in named slots, and the same object runs everywhere:

    fedra.run("config.toml", out="runs/a")                     a run from a configuration
    fedra.simulate(algorithm, model, clients, test, rounds=20) the same with your own module and data
    fedra.evaluate(model, on="lfw")                            a model by the field's protocols
    fedra.algorithms.NAME(...)                                 an Algorithm; `.plus(...)` joins parts and algorithms
    fedra.losses.MarginHead(fedra.losses.ArcFace(), ...)       every margin loss, for any training loop
    fedra.faces.FaceRecognizer("runs/faces")                   from photographs to names
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.lazy import lazy_names

if TYPE_CHECKING:
    from fedra import algorithms, callbacks, data, evaluation, faces, losses, models, parts
    from fedra.core.algorithm import Algorithm
    from fedra.core.local_training import LocalTraining
    from fedra.errors import ConfigError, DataError, FedraError, RunError, RunFailed
    from fedra.experiment.evaluating import evaluate
    from fedra.experiment.experiment import Experiment
    from fedra.experiment.export import export
    from fedra.experiment.result import RunResult
    from fedra.experiment.run import resume, run
    from fedra.experiment.simulate import simulate
    from fedra.experiment.sweep import sweep
    from fedra.reports.comparison import compare

__version__ = "0.2.0"

_HOMES = {
    "Algorithm": "fedra.core.algorithm",
    "ConfigError": "fedra.errors",
    "DataError": "fedra.errors",
    "Experiment": "fedra.experiment.experiment",
    "FedraError": "fedra.errors",
    "LocalTraining": "fedra.core.local_training",
    "RunError": "fedra.errors",
    "RunFailed": "fedra.errors",
    "RunResult": "fedra.experiment.result",
    "algorithms": "fedra.algorithms",
    "callbacks": "fedra.callbacks",
    "compare": "fedra.reports.comparison",
    "data": "fedra.data",
    "evaluate": "fedra.experiment.evaluating",
    "evaluation": "fedra.evaluation",
    "export": "fedra.experiment.export",
    "faces": "fedra.faces",
    "losses": "fedra.losses",
    "models": "fedra.models",
    "parts": "fedra.parts",
    "resume": "fedra.experiment.run",
    "run": "fedra.experiment.run",
    "simulate": "fedra.experiment.simulate",
    "sweep": "fedra.experiment.sweep",
}

__all__ = [
    "Algorithm",
    "ConfigError",
    "DataError",
    "Experiment",
    "FedraError",
    "LocalTraining",
    "RunError",
    "RunFailed",
    "RunResult",
    "algorithms",
    "callbacks",
    "compare",
    "data",
    "evaluate",
    "evaluation",
    "export",
    "faces",
    "losses",
    "models",
    "parts",
    "resume",
    "run",
    "simulate",
    "sweep",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
