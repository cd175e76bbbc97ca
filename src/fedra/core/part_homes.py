"""Where every built-in part is defined, so a part is imported when its name is used; a test compares."""

from __future__ import annotations

_NAMES = {
    "fedra.algorithms.apfl": "mixed-twin",
    "fedra.algorithms.ditto": "tethered-twin",
    "fedra.algorithms.fedarc": "blended-margin",
    "fedra.algorithms.feddecorr": "decorrelation",
    "fedra.algorithms.fedfr": "personal-branch public-margin similar-public",
    "fedra.algorithms.fedfs": "feature-tie intra-subject keep-last",
    "fedra.algorithms.fedgc": "cross-client-cosine push-apart",
    "fedra.algorithms.fedlc": "calibrated-cross-entropy",
    "fedra.algorithms.fednova": "normalized-mean nova-direction",
    "fedra.algorithms.fedntd": "not-true-distillation",
    "fedra.algorithms.fedopt": "server-adagrad server-adam server-sgd server-yogi",
    "fedra.algorithms.fedpe": "unit-rows",
    "fedra.algorithms.fedprox": "proximal",
    "fedra.algorithms.fedrep": "head-then-body",
    "fedra.algorithms.fedrs": "restricted-cross-entropy",
    "fedra.algorithms.fedsam": "weight-radius",
    "fedra.algorithms.fedsmoo": "shared-perturb",
    "fedra.algorithms.fedsol": "distillation drift-radius",
    "fedra.algorithms.knn_per": "nearest-neighbors",
    "fedra.algorithms.per_fedavg": "meta-step",
    "fedra.algorithms.scaffold": "control-variates",
    "fedra.core.data_rule": "own-data",
    "fedra.core.sharing": "sharing",
    "fedra.parts.combine": "median plain-mean trimmed-mean weighted-mean",
    "fedra.parts.gradient": "accumulate also-descend clip fixed-radius perturb",
    "fedra.parts.margin": "margin-head margin-softmax positive-hinge",
    "fedra.parts.objective": "balanced-cross-entropy cross-entropy dynamic-regularizer model-contrast",
    "fedra.parts.personalize": "fine-tune keep-private",
    "fedra.parts.private": "private-mean",
    "fedra.parts.private_gradient": "private-gradient",
    "fedra.parts.robust": "bulyan centered-clip geometric-median multi-krum norm-bound root-trust",
    "fedra.parts.spread": "cross-client-softmax hinge spread-out",
    "fedra.parts.start": "mean-rows",
    "fedra.parts.upload": "byte-upload half-upload top-upload",
}

PART_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""The module of every built-in part by the part's name."""
