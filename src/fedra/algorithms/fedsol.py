"""FedSoL: local gradients taken at proximally perturbed weights.

Lee et al., "FedSOL: Stabilized orthogonal learning with proximal restrictions in federated learning", CVPR 2024
(arXiv 2308.12532).
"""

from __future__ import annotations

from typing import Literal

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.part import GradientRule, Term
from fedra.parts.gradient import AlsoDescend, DriftRadius, FixedRadius, Perturb, Scope
from fedra.parts.objective import Distillation
from fedra.registry import Strength


def fedsol(
    *,
    rho: Strength = 2.0,
    proximal: Term = Distillation(),  # noqa: B008  (frozen)
    radius: Literal["fixed", "adaptive"] = "fixed",
    over: Literal["dim0", "tensor", "layer"] = "dim0",
    scope: Scope = "all",
    floor: Strength = 1e-6,
) -> Algorithm:
    """Takes every local gradient at w + rho g_p / ||g_p||, where g_p is the gradient of any proximal term.

    `radius` "adaptive" scales the perturbation by how far each weight has drifted, normalised `over` a tensor's
    first dimension, a tensor or a layer; `scope` perturbs all weights, the head or the body. At the first local
    step g_p is rounding noise: below `floor` nothing is perturbed (0 runs it as the authors' code does).
    """
    ball = FixedRadius() if radius == "fixed" else DriftRadius(over)
    return fedavg().plus(Perturb(rho, proximal, ball, scope, floor))


def fedsol_ablation(
    *,
    variant: Literal["A0", "A1", "A2", "A3", "A4", "A5", "A6"] = "A1",
    rho: Strength = 2.0,
    beta: Strength = 1.0,
    proximal: Term = Distillation(),  # noqa: B008  (frozen)
    floor: Strength = 1e-6,
) -> Algorithm:
    """The family of the paper's table 6: where the local loss L, where the proximal loss P, along what.

    A0 L(w);  A1 L(w+p) = FedSoL;  A2 L(w) + beta P(w+p);  A3 L(w+p) + beta P(w+p);  A4 (L + beta P)(w+c), SAM on
    both;  A5 L(w) + beta P(w);  A6 L(w+p) + beta P(w);  with p along grad P and c along grad (L + beta P).
    """
    perturb = Perturb(rho, proximal, floor=floor)
    descend = AlsoDescend(proximal, beta)
    rules: dict[str, tuple[GradientRule, ...]] = {
        "A0": (),
        "A1": (perturb,),
        "A2": (AlsoDescend(proximal, beta, through=perturb),),
        "A3": (perturb, descend),
        "A4": (Perturb(rho), descend),
        "A5": (descend,),
        "A6": (descend, perturb),
    }
    return fedavg().plus(*rules[variant])
