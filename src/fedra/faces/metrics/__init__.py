"""Metrics of face verification and identification, computed from embeddings.

Embeddings are tensors (N, d) and need not be normalized; scores are cosines; a comparison is accepted if its score is
at least the threshold. Plots are in `fedra.faces.metrics.plots`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.lazy import lazy_names

if TYPE_CHECKING:
    from fedra.faces.metrics.client_scores import ClientScores, enrolled_scores
    from fedra.faces.metrics.error_rates import Curve, OperatingPoint, Scores, Threshold, calibrate
    from fedra.faces.metrics.feature_files import read_feature, read_features, write_feature
    from fedra.faces.metrics.identification import (
        ClosedSet,
        OpenSet,
        Subjects,
        closed_set,
        insightface_1n,
        open_set,
        open_set_over_galleries,
    )
    from fedra.faces.metrics.megaface_rates import MegaFace, clean_probes, mark_distractors, megaface
    from fedra.faces.metrics.search import Matches, pair_cosines, top_k
    from fedra.faces.metrics.templates import Templates, fuse_flip, pool_templates, verify_templates
    from fedra.faces.metrics.verification import FoldRates, Verification, verify, verify_at_far

_HOMES = {
    "fedra.faces.metrics.client_scores": "ClientScores enrolled_scores",
    "fedra.faces.metrics.error_rates": "Curve OperatingPoint Scores Threshold calibrate",
    "fedra.faces.metrics.feature_files": "read_feature read_features write_feature",
    "fedra.faces.metrics.identification": "ClosedSet OpenSet Subjects closed_set insightface_1n open_set "
    "open_set_over_galleries",
    "fedra.faces.metrics.megaface_rates": "MegaFace clean_probes mark_distractors megaface",
    "fedra.faces.metrics.search": "Matches pair_cosines top_k",
    "fedra.faces.metrics.templates": "Templates fuse_flip pool_templates verify_templates",
    "fedra.faces.metrics.verification": "FoldRates Verification verify verify_at_far",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "ClientScores",
    "ClosedSet",
    "Curve",
    "FoldRates",
    "Matches",
    "MegaFace",
    "OpenSet",
    "OperatingPoint",
    "Scores",
    "Subjects",
    "Templates",
    "Threshold",
    "Verification",
    "calibrate",
    "clean_probes",
    "closed_set",
    "enrolled_scores",
    "fuse_flip",
    "insightface_1n",
    "mark_distractors",
    "megaface",
    "open_set",
    "open_set_over_galleries",
    "pair_cosines",
    "pool_templates",
    "read_feature",
    "read_features",
    "top_k",
    "verify",
    "verify_at_far",
    "verify_templates",
    "write_feature",
]
