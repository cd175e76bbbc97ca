"""Evaluation of models: metrics of classifiers, and the results of evaluation protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.lazy import lazy_names

if TYPE_CHECKING:
    from fedra.evaluation.classifier_metrics import METRICS, Metric
    from fedra.evaluation.results import ModelEvaluation, ProtocolResult

__all__ = ["METRICS", "Metric", "ModelEvaluation", "ProtocolResult"]

_HOMES = {
    "fedra.evaluation.classifier_metrics": "METRICS Metric",
    "fedra.evaluation.results": "ModelEvaluation ProtocolResult",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
