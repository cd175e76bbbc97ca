"""fedra: federated learning of recognition models with angular margins.

An algorithm is a choice of parts in named slots, and every entry point accepts the same object:

    fedra.run("config.toml", out="runs/a")                      train from a configuration
    fedra.simulate(algorithm, model, clients, test, rounds=20)  train your own model on your own data
    fedra.evaluate(model, on="lfw")                             evaluate a model with the field's protocols
    fedra.algorithms.NAME(...)                                  an Algorithm; `.plus(...)` adds parts and algorithms
    fedra.losses.MarginHead(fedra.losses.ArcFace(), ...)        any margin loss, for any training loop
    fedra.faces.FaceRecognizer("runs/faces")                    recognize faces in photos
"""

from __future__ import annotations

from fedra.lazy import lazy_names

TYPE_CHECKING = False  # type checkers take it for true; importing typing would take most of the time of this import
if TYPE_CHECKING:
    from fedra import algorithms, analysis, callbacks, dashboard, data, evaluation, faces, losses, models, parts
    from fedra.core.algorithm import Algorithm
    from fedra.core.local_training import LocalTraining
    from fedra.errors import ConfigError, DataError, FedraError, RunError, RunFailed
    from fedra.experiment.auditing.audit_run import audit
    from fedra.experiment.evaluating import evaluate
    from fedra.experiment.experiment import Experiment
    from fedra.experiment.export import export
    from fedra.experiment.predict import predict
    from fedra.experiment.result import RunResult
    from fedra.experiment.run import resume, run
    from fedra.experiment.simulate import simulate
    from fedra.experiment.sweep import sweep
    from fedra.reports.comparison import compare
    from fedra.reports.report_file import report

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
    "analysis": "fedra.analysis",
    "audit": "fedra.experiment.auditing.audit_run",
    "callbacks": "fedra.callbacks",
    "compare": "fedra.reports.comparison",
    "dashboard": "fedra.dashboard",
    "data": "fedra.data",
    "evaluate": "fedra.experiment.evaluating",
    "evaluation": "fedra.evaluation",
    "export": "fedra.experiment.export",
    "faces": "fedra.faces",
    "losses": "fedra.losses",
    "models": "fedra.models",
    "parts": "fedra.parts",
    "predict": "fedra.experiment.predict",
    "report": "fedra.reports.report_file",
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
    "analysis",
    "audit",
    "callbacks",
    "compare",
    "dashboard",
    "data",
    "evaluate",
    "evaluation",
    "export",
    "faces",
    "losses",
    "models",
    "parts",
    "predict",
    "report",
    "resume",
    "run",
    "simulate",
    "sweep",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
