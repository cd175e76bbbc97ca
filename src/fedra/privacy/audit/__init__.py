"""Attacks that measure what a trained model reveals: membership, class vectors, uploads, and canaries.

`fedra.audit` runs them on a run's folder; these functions work on scores, pictures and mechanisms of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.lazy import lazy_names

if TYPE_CHECKING:
    from fedra.privacy.audit.canaries import CanaryScores, judge_canaries, one_run_epsilon, run_canaries
    from fedra.privacy.audit.findings import Audit, AuditFigure, Finding
    from fedra.privacy.audit.gradient_inversion import invert_gradient, psnr, read_off_dense_layer
    from fedra.privacy.audit.membership import Membership, allowed_rate, clopper_pearson
    from fedra.privacy.audit.person_scores import score_people
    from fedra.privacy.audit.photo_scores import score_against_shadows
    from fedra.privacy.audit.row_inversion import invert_rows, rank_by_pixels

_HOMES = {
    "fedra.privacy.audit.canaries": "CanaryScores judge_canaries one_run_epsilon run_canaries",
    "fedra.privacy.audit.findings": "Audit AuditFigure Finding",
    "fedra.privacy.audit.gradient_inversion": "invert_gradient psnr read_off_dense_layer",
    "fedra.privacy.audit.membership": "Membership allowed_rate clopper_pearson",
    "fedra.privacy.audit.person_scores": "score_people",
    "fedra.privacy.audit.photo_scores": "score_against_shadows",
    "fedra.privacy.audit.row_inversion": "invert_rows rank_by_pixels",
}

__all__ = [
    "Audit",
    "AuditFigure",
    "CanaryScores",
    "Finding",
    "Membership",
    "allowed_rate",
    "clopper_pearson",
    "invert_gradient",
    "invert_rows",
    "judge_canaries",
    "one_run_epsilon",
    "psnr",
    "rank_by_pixels",
    "read_off_dense_layer",
    "run_canaries",
    "score_against_shadows",
    "score_people",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
