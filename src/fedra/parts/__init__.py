"""Everything that a new algorithm needs: kinds of parts, capabilities, what parts read, and the shared parts.

    from fedra.parts import Term, tree
    import fedra

A part that only one algorithm uses is defined in that algorithm's file (`fedra.algorithms`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.batches import Examples
from fedra.core.capabilities import (
    ChecksTraining,
    ClientState,
    CollectsFirstRows,
    CollectsUploads,
    ComparesWithOrigin,
    CountsSteps,
    OwnParams,
    ReleaseTerms,
    ServerState,
    Sizes,
    StepDraws,
    StepState,
    SumsUploads,
    Teachers,
    TrainsAlongside,
)
from fedra.core.data_rule import DataRule, OwnData, Public, Supply
from fedra.core.model import Model, Output, Weights
from fedra.core.optimizer import Optimizer
from fedra.core.part import Combine, GradientFunction, GradientRule, Part, ServerRule, StartRule, Term, known_parts
from fedra.core.personalizer import Answers, Personalizer
from fedra.core.sharing import Sharing
from fedra.core.tree import Params, Tree
from fedra.core.upload_rule import UploadRule
from fedra.core.uploads import Uploads
from fedra.core.view import Batch, Client, Local, Population, Server, Upload, View
from fedra.lazy import lazy_names

if TYPE_CHECKING:
    from fedra.parts.combine import Median, PlainMean, RunningMean, TrimmedMean, WeightedMean
    from fedra.parts.gradient import Accumulate, AlsoDescend, Clip, FixedRadius, Perturb, Radius
    from fedra.parts.margin import HeadMargin, MarginSoftmax, PositiveHinge
    from fedra.parts.objective import (
        BalancedCrossEntropy,
        ControlTerm,
        CrossEntropy,
        DynamicRegularizer,
        ModelContrast,
        kl_divergence,
    )
    from fedra.parts.personalize import FineTune, KeepPrivate
    from fedra.parts.private import PrivateMean
    from fedra.parts.private_gradient import PrivateGradient
    from fedra.parts.robust import Bulyan, CenteredClip, GeometricMedian, MultiKrum, NormBound, RootTrust
    from fedra.parts.spread import CrossClientSoftmax, Hinge, Penalty, SpreadOut
    from fedra.parts.start import MeanRows, class_means
    from fedra.parts.twin import Twin
    from fedra.parts.upload import ByteUpload, HalfUpload, TopUpload

_HOMES = {
    "fedra.parts.combine": "Median PlainMean RunningMean TrimmedMean WeightedMean",
    "fedra.parts.gradient": "Accumulate AlsoDescend Clip FixedRadius Perturb Radius",
    "fedra.parts.margin": "HeadMargin MarginSoftmax PositiveHinge",
    "fedra.parts.objective": (
        "BalancedCrossEntropy ControlTerm CrossEntropy DynamicRegularizer ModelContrast kl_divergence"
    ),
    "fedra.parts.personalize": "FineTune KeepPrivate",
    "fedra.parts.private": "PrivateMean",
    "fedra.parts.private_gradient": "PrivateGradient",
    "fedra.parts.robust": "Bulyan CenteredClip GeometricMedian MultiKrum NormBound RootTrust",
    "fedra.parts.spread": "CrossClientSoftmax Hinge Penalty SpreadOut",
    "fedra.parts.start": "MeanRows class_means",
    "fedra.parts.twin": "Twin",
    "fedra.parts.upload": "ByteUpload HalfUpload TopUpload",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "Accumulate",
    "Algorithm",
    "AlsoDescend",
    "Answers",
    "BalancedCrossEntropy",
    "Batch",
    "Bulyan",
    "ByteUpload",
    "CenteredClip",
    "ChecksTraining",
    "Client",
    "ClientState",
    "Clip",
    "CollectsFirstRows",
    "CollectsUploads",
    "Combine",
    "ComparesWithOrigin",
    "ControlTerm",
    "CountsSteps",
    "CrossClientSoftmax",
    "CrossEntropy",
    "DataRule",
    "DynamicRegularizer",
    "Examples",
    "FineTune",
    "FixedRadius",
    "GeometricMedian",
    "GradientFunction",
    "GradientRule",
    "HalfUpload",
    "HeadMargin",
    "Hinge",
    "KeepPrivate",
    "Local",
    "MarginSoftmax",
    "MeanRows",
    "Median",
    "Model",
    "ModelContrast",
    "MultiKrum",
    "NormBound",
    "Optimizer",
    "Output",
    "OwnData",
    "OwnParams",
    "Params",
    "Part",
    "Penalty",
    "Personalizer",
    "Perturb",
    "PlainMean",
    "Population",
    "PositiveHinge",
    "PrivateGradient",
    "PrivateMean",
    "Public",
    "Radius",
    "ReleaseTerms",
    "RootTrust",
    "RunningMean",
    "Server",
    "ServerRule",
    "ServerState",
    "Sharing",
    "Sizes",
    "SpreadOut",
    "StartRule",
    "StepDraws",
    "StepState",
    "SumsUploads",
    "Supply",
    "Teachers",
    "Term",
    "TopUpload",
    "TrainsAlongside",
    "Tree",
    "TrimmedMean",
    "Twin",
    "Upload",
    "UploadRule",
    "Uploads",
    "View",
    "WeightedMean",
    "Weights",
    "class_means",
    "kl_divergence",
    "known_parts",
    "tree",
]
