"""Angular-margin losses for any training loop: `ArcFace(scale=64, margin=0.5)(features, weight, labels)`."""

from __future__ import annotations

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
from fedra.registry import Registry

LOSSES = Registry("loss")
"""The losses by the name that a configuration uses: `LOSSES["arcface"](margin=0.5)`."""

LOSSES.add("softmax")(Softmax)
LOSSES.add("normalized-softmax")(NormalizedSoftmax)
LOSSES.add("sphereface")(SphereFace)
LOSSES.add("sphereface-r")(SphereFaceR)
LOSSES.add("sphereface2")(SphereFace2)
LOSSES.add("cosface")(CosFace)
LOSSES.add("arcface")(ArcFace)
LOSSES.add("combined")(Combined)
LOSSES.add("elastic-arcface")(ElasticArcFace)
LOSSES.add("elastic-arcface-plus")(ElasticArcFacePlus)
LOSSES.add("elastic-cosface")(ElasticCosFace)
LOSSES.add("elastic-cosface-plus")(ElasticCosFacePlus)
LOSSES.add("cvm")(CVM)
LOSSES.add("adaptive-margin")(AdaptiveMargin)
LOSSES.add("x2-softmax")(X2Softmax)
LOSSES.add("jamsface")(JAMsFace)
LOSSES.add("magface")(MagFace)
LOSSES.add("adaface")(AdaFace)
LOSSES.add("curricularface")(CurricularFace)
LOSSES.add("adacos")(AdaCos)
LOSSES.add("adacos-dynamic")(DynamicAdaCos)
LOSSES.add("circle")(CircleLoss)
LOSSES.add("uniface")(UniFace)
LOSSES.add("unitsface")(UniTSFace)
LOSSES.add("triplet")(Triplet)
LOSSES.add("coco")(CoCo)
LOSSES.add("uniformface")(UniformFace)
LOSSES.add("adaptiveface")(AdaptiveFace)
LOSSES.add("broadface")(BroadFace)

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
