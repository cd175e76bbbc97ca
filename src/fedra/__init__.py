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
    "fedra.algorithms": "algorithms",
    "fedra.analysis": "analysis",
    "fedra.callbacks": "callbacks",
    "fedra.core.algorithm": "Algorithm",
    "fedra.core.local_training": "LocalTraining",
    "fedra.dashboard": "dashboard",
    "fedra.data": "data",
    "fedra.errors": "ConfigError DataError FedraError RunError RunFailed",
    "fedra.evaluation": "evaluation",
    "fedra.experiment.auditing.audit_run": "audit",
    "fedra.experiment.evaluating": "evaluate",
    "fedra.experiment.experiment": "Experiment",
    "fedra.experiment.export": "export",
    "fedra.experiment.predict": "predict",
    "fedra.experiment.result": "RunResult",
    "fedra.experiment.run": "resume run",
    "fedra.experiment.simulate": "simulate",
    "fedra.experiment.sweep": "sweep",
    "fedra.faces": "faces",
    "fedra.losses": "losses",
    "fedra.models": "models",
    "fedra.parts": "parts",
    "fedra.reports.comparison": "compare",
    "fedra.reports.report_file": "report",
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
