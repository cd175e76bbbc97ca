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
    "fedra.analysis.curvature": "Curvature measure_curvature",
    "fedra.analysis.embeddings": "Embeddings",
    "fedra.analysis.global_loss": "GlobalLoss",
    "fedra.analysis.landscape": "Landscape measure_landscape random_directions",
    "fedra.analysis.similar_classes": "PairCosines find_similar_classes measure_pairs",
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
