"""Analysis of models: the curvature of their loss, loss landscapes, and classes that lie close in their embeddings.

The diagnostics of a run during training, t-SNE and angles are in this package too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.lazy import lazy_names

if TYPE_CHECKING:
    from fedra.analysis.curvature import Curvature, measure_curvature
    from fedra.analysis.embeddings import Embeddings
    from fedra.analysis.global_loss import GlobalLoss
    from fedra.analysis.landscape import Landscape, measure_landscape, random_directions
    from fedra.analysis.similar_classes import PairCosines, find_similar_classes, measure_pairs

_HOMES = {
    "Curvature": "fedra.analysis.curvature",
    "Embeddings": "fedra.analysis.embeddings",
    "GlobalLoss": "fedra.analysis.global_loss",
    "Landscape": "fedra.analysis.landscape",
    "PairCosines": "fedra.analysis.similar_classes",
    "find_similar_classes": "fedra.analysis.similar_classes",
    "measure_curvature": "fedra.analysis.curvature",
    "measure_landscape": "fedra.analysis.landscape",
    "measure_pairs": "fedra.analysis.similar_classes",
    "random_directions": "fedra.analysis.landscape",
}

__all__ = [
    "Curvature",
    "Embeddings",
    "GlobalLoss",
    "Landscape",
    "PairCosines",
    "find_similar_classes",
    "measure_curvature",
    "measure_landscape",
    "measure_pairs",
    "random_directions",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
