"""FedSoL: local gradients taken at weights perturbed along a proximal gradient.

Lee et al., "FedSOL: Stabilized orthogonal learning with proximal restrictions in federated learning", CVPR 2024
(arXiv 2308.12532).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from fedra.algorithms.fedavg import fedavg
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ComparesWithOrigin, Teachers
from fedra.core.model import Output, Weights
from fedra.core.part import GradientRule, Term
from fedra.core.tree import Params
from fedra.core.view import Client, View
from fedra.parts.combine import PlainMean
from fedra.parts.gradient import TINY, AlsoDescend, FixedRadius, Perturb, Radius, Scope
from fedra.parts.objective import kl_divergence
from fedra.registry import Positive, Strength


@dataclass(frozen=True)
class Distillation(Term, Teachers):
    """Knowledge distillation from the received model (FedSoL's proximal term, Lee et al., CVPR 2024).

    Args:
        weight: Weight of the term.
        temperature: Temperature T of both softmaxes.
        squared_temperature: Multiply by T^2; the authors' code does not (the default).
    """

    weight: Strength = 1.0
    temperature: Positive = 3.0
    squared_temperature: bool = False
    formula: ClassVar[str] = "weight * KL(softmax(z_g / T) || softmax(z / T))  [* T^2 with squared_temperature]"

    def teachers(self, client: Client) -> dict[str, Weights]:
        return {"origin": client.origin}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        divergence = kl_divergence(view.teachers[self.name]["origin"].logits, output.logits, self.temperature)
        factor = self.weight * (self.temperature**2 if self.squared_temperature else 1.0)
        return factor * view.batch.mean(divergence)


@dataclass(frozen=True)
class DriftRadius(Radius, ComparesWithOrigin):
    """FedSoL's adaptive radius: larger for weights that have drifted further from the received ones.

    Args:
        over: What the drift is normalized over: the first dimension of each tensor ("dim0", as in the authors' code),
            each "tensor", or each "layer", its weight and bias together (the paper's equation 11). The same rho does
            not mean the same: "layer" perturbs about ten times less.
    """

    over: Literal["dim0", "tensor", "layer"] = "dim0"
    formula: ClassVar[str] = "eps = rho Lambda g / ||g||,  Lambda = |w - w_g| / ||w - w_g||_over"

    def direction(self, gradient: Params, params: Params, view: View) -> tuple[Params, Tensor]:
        drift = self.drift(params, view, tuple(gradient))
        return {name: drift[name] * grad for name, grad in gradient.items()}, tree.norm(gradient)

    def drift(self, params: Params, view: View, names: tuple[str, ...]) -> Params:
        """Return Lambda for each parameter."""
        distances = {name: (params[name].detach() - view.client.origin.params[name]).abs() for name in names}
        if self.over == "dim0":
            return {name: F.normalize(value, dim=0, eps=TINY) for name, value in distances.items()}
        if self.over == "tensor":
            return {name: value / value.norm().clamp(min=TINY) for name, value in distances.items()}
        layers = {name: name.rpartition(".")[0] for name in names}
        sizes = {
            layer: tree.norm({name: distances[name] for name in names if layers[name] == layer}).clamp(min=TINY)
            for layer in set(layers.values())
        }
        return {name: value / sizes[layers[name]] for name, value in distances.items()}


def fedsol(
    *,
    rho: Strength = 2.0,
    proximal: Term = Distillation(),  # noqa: B008  (frozen)
    radius: Literal["fixed", "adaptive"] = "fixed",
    over: Literal["dim0", "tensor", "layer"] = "dim0",
    scope: Scope = "all",
    floor: Strength = 1e-6,
    mean: Literal["weighted", "uniform"] = "weighted",
) -> Algorithm:
    """Takes every local gradient at w + rho g_p / ||g_p||, where g_p is the gradient of any proximal term.

    Args:
        rho: Radius of the perturbation; 0 is FedAvg. The paper's 2.0 was too far for the narrow networks tried
            here, which then learn little: try 0.5, an adaptive radius, or the head alone.
        proximal: The term whose gradient gives the direction.
        radius: "fixed", or "adaptive" to scale the perturbation by how far each weight has drifted.
        over: What an adaptive radius normalizes the drift over: a tensor's first dimension ("dim0"), a "tensor" or a
            "layer".
        scope: Perturb "all" weights, only the "head" or only the "body".
        floor: Norm of g_p at or below which nothing is perturbed: at the first local step g_p is rounding noise. 0
            always perturbs, as the authors' code does.
        mean: The server's mean: "weighted" by the clients' numbers of examples, or "uniform", the 1/|S| of the paper's
            algorithm 1.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> from fedra.parts import ModelContrast
        >>> fedsol(rho=1.0, proximal=ModelContrast(mu=1.0)).gradient[0].along.name
        'model-contrast'
    """
    ball = FixedRadius() if radius == "fixed" else DriftRadius(over)
    algorithm = fedavg().plus(Perturb(rho, proximal, ball, scope, floor))
    return algorithm if mean == "weighted" else algorithm.plus(PlainMean())


def fedsol_ablation(
    *,
    variant: Literal["A0", "A1", "A2", "A3", "A4", "A5", "A6"] = "A1",
    rho: Strength = 2.0,
    beta: Strength = 1.0,
    proximal: Term = Distillation(),  # noqa: B008  (frozen)
    floor: Strength = 1e-6,
) -> Algorithm:
    """The seven variants of the paper's table 6: where L and P are evaluated, and the direction of the perturbation.

    L is the local loss, P the proximal loss, p a perturbation along grad P and c one along grad (L + beta P).

    Args:
        variant: "A0" L(w);  "A1" L(w+p) = FedSoL;  "A2" L(w) + beta P(w+p);  "A3" L(w+p) + beta P(w+p);
            "A4" (L + beta P)(w+c), SAM on both;  "A5" L(w) + beta P(w);  "A6" L(w+p) + beta P(w).
        rho: Radius of the perturbation.
        beta: Weight of P in the objective.
        proximal: The term P.
        floor: Norm of the direction at or below which nothing is perturbed.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> [rule.name for rule in fedsol_ablation(variant="A3").gradient]
        ['perturb', 'also-descend']
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
