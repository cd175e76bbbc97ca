"""Angular-margin losses for any training loop: `ArcFace(scale=64, margin=0.5)(features, weight, labels)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.lazy import lazy_names
from fedra.registry import Registry

if TYPE_CHECKING:
    from fedra.losses.adaptive import CVM, AdaptiveFace, AdaptiveMargin, JAMsFace, X2Softmax
    from fedra.losses.angular_loss import AngularLoss
    from fedra.losses.broadface import BroadFace
    from fedra.losses.centers import CoCo, UniformFace
    from fedra.losses.curriculum import AdaCos, CurricularFace, DynamicAdaCos, SphereFace
    from fedra.losses.elastic import ElasticArcFace, ElasticArcFacePlus, ElasticCosFace, ElasticCosFacePlus
    from fedra.losses.fixed import ArcFace, Combined, CosFace, NormalizedSoftmax, Softmax, SphereFaceR
    from fedra.losses.margin_head import MarginHead
    from fedra.losses.norm import AdaFace, MagFace
    from fedra.losses.pairwise import CircleLoss, SphereFace2, UniFace, UniTSFace
    from fedra.losses.sampling import ClassSample, PartialFC
    from fedra.losses.stateful import Stateful
    from fedra.losses.triplet import Triplet

_HOMES = {
    "fedra.losses.adaptive": "AdaptiveFace AdaptiveMargin CVM JAMsFace X2Softmax",
    "fedra.losses.angular_loss": "AngularLoss",
    "fedra.losses.broadface": "BroadFace",
    "fedra.losses.centers": "CoCo UniformFace",
    "fedra.losses.curriculum": "AdaCos CurricularFace DynamicAdaCos SphereFace",
    "fedra.losses.elastic": "ElasticArcFace ElasticArcFacePlus ElasticCosFace ElasticCosFacePlus",
    "fedra.losses.fixed": "ArcFace Combined CosFace NormalizedSoftmax Softmax SphereFaceR",
    "fedra.losses.margin_head": "MarginHead",
    "fedra.losses.norm": "AdaFace MagFace",
    "fedra.losses.pairwise": "CircleLoss SphereFace2 UniFace UniTSFace",
    "fedra.losses.sampling": "ClassSample PartialFC",
    "fedra.losses.stateful": "Stateful",
    "fedra.losses.triplet": "Triplet",
}

LOSSES = Registry(
    "loss",
    {
        "fedra.losses.adaptive": "adaptive-margin adaptiveface cvm jamsface x2-softmax",
        "fedra.losses.broadface": "broadface",
        "fedra.losses.centers": "coco uniformface",
        "fedra.losses.curriculum": "adacos adacos-dynamic curricularface sphereface",
        "fedra.losses.elastic": "elastic-arcface elastic-arcface-plus elastic-cosface elastic-cosface-plus",
        "fedra.losses.fixed": "arcface combined cosface normalized-softmax softmax sphereface-r",
        "fedra.losses.norm": "adaface magface",
        "fedra.losses.pairwise": "circle sphereface2 uniface unitsface",
        "fedra.losses.triplet": "triplet",
    },
)
"""The losses by the name that a configuration uses: `LOSSES["arcface"](margin=0.5)`."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "CVM",
    "LOSSES",
    "AdaCos",
    "AdaFace",
    "AdaptiveFace",
    "AdaptiveMargin",
    "AngularLoss",
    "ArcFace",
    "BroadFace",
    "CircleLoss",
    "ClassSample",
    "CoCo",
    "Combined",
    "CosFace",
    "CurricularFace",
    "DynamicAdaCos",
    "ElasticArcFace",
    "ElasticArcFacePlus",
    "ElasticCosFace",
    "ElasticCosFacePlus",
    "JAMsFace",
    "MagFace",
    "MarginHead",
    "NormalizedSoftmax",
    "PartialFC",
    "Softmax",
    "SphereFace",
    "SphereFace2",
    "SphereFaceR",
    "Stateful",
    "Triplet",
    "UniFace",
    "UniTSFace",
    "UniformFace",
    "X2Softmax",
]
