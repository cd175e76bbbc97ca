"""Terms of the local objective. They add, in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedra.core import tree
from fedra.core.model import Output, Weights
from fedra.core.part import Term
from fedra.core.tree import Params, Tree
from fedra.core.view import Client, Local, View
from fedra.registry import Positive, Strength


@dataclass(frozen=True)
class CrossEntropy(Term):
    """The mean cross-entropy of the logits."""

    formula: ClassVar[str] = "CE(w) = mean_i -log softmax(z_i)[y_i]"
    fits_labels: ClassVar[bool] = True
    is_plain: ClassVar[bool] = True

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return view.batch.mean(F.cross_entropy(output.logits, view.batch.targets, reduction="none"))


@dataclass(frozen=True)
class Proximal(Term):
    """Half of mu times the squared distance to the received weights (FedProx, Li et al., MLSys 2020)."""

    mu: Strength = 1.0
    formula: ClassVar[str] = "mu/2 ||w - w_g||^2"
    closed_form: ClassVar[bool] = True
    looks_back: ClassVar[bool] = True

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        drift = tree.subtract(tree.select(params, view.client.trained), view.client.origin.params)
        return 0.5 * self.mu * tree.dot(drift, drift)

    def add_gradient(self, gradient: Params, params: Params, view: View) -> None:
        origin = view.client.origin.params
        for name, slope in gradient.items():
            slope.add_(params[name].detach(), alpha=self.mu).sub_(origin[name], alpha=self.mu)


@dataclass(frozen=True)
class Distillation(Term):
    """Knowledge distillation from the received model (FedSoL's proximal term, Lee et al., CVPR 2024)."""

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
class NotTrueDistillation(Term):
    """Distillation over the classes that are not the true one (FedNTD, Lee et al., NeurIPS 2022)."""

    beta: Strength = 1.0
    temperature: Positive = 1.0
    formula: ClassVar[str] = "beta T^2 KL(softmax(z_g[not y] / T) || softmax(z[not y] / T))"

    def teachers(self, client: Client) -> dict[str, Weights]:
        return {"origin": client.origin}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        others = torch.arange(output.logits.shape[1] - 1, device=output.logits.device)
        columns = others + (others >= view.batch.targets.unsqueeze(1))  # every column but the true class's
        teacher = view.teachers[self.name]["origin"].logits.gather(1, columns)
        divergence = kl_divergence(teacher, output.logits.gather(1, columns), self.temperature)
        return self.beta * self.temperature**2 * view.batch.mean(divergence)


@dataclass(frozen=True)
class ModelContrast(Term):
    """Pulls features toward the received model's and away from the client's previous model's (MOON, CVPR 2021).

    A client that takes part for the first time has no previous model; the received one stands in, which makes
    both similarities equal and the gradient zero.
    """

    mu: Strength = 0.1
    temperature: Positive = 0.5
    formula: ClassVar[str] = "mu * mean_i -log( e^{cos(f,f_g)/T} / (e^{cos(f,f_g)/T} + e^{cos(f,f_prev)/T}) )"
    moves_head: ClassVar[bool] = False

    def init_client(self, origin: Weights) -> Tree:
        return {"params": origin.params, "buffers": origin.buffers}

    def teachers(self, client: Client) -> dict[str, Weights]:
        previous = client.memory[self.name]
        return {"origin": client.origin, "previous": Weights(previous["params"], previous.get("buffers", {}))}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        toward = F.cosine_similarity(output.features, view.teachers[self.name]["origin"].features)
        away = F.cosine_similarity(output.features, view.teachers[self.name]["previous"].features)
        return self.mu * view.batch.mean(F.softplus((away - toward) / self.temperature))

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        return {"params": local.weights.params, "buffers": local.weights.buffers}, {}


class ControlTerm(Term, abstract=True):
    """A linear term whose gradient takes out a client's own direction and puts in the clients' mean direction.

    The client remembers its own, the server keeps the mean and sends it to all: SCAFFOLD's control variates and
    those of FedNova's public code. As a term it can be added to the objective or perturbed along.
    """

    closed_form: ClassVar[bool] = True
    counts_steps: ClassVar[bool] = True

    def init_client(self, origin: Weights) -> Tree:
        return {"own": tree.zeros_like(origin.params)}

    def init_server(self, weights: Weights) -> Tree:
        return {"mean": tree.zeros_like(weights.params)}

    def broadcast(self, memory: Tree) -> Tree:
        return memory

    def ratio(self, client: Client) -> float:
        """What the mean is divided by before it is put in."""
        return 1.0

    def correction(self, client: Client) -> Params:
        """Mean / ratio - own: the gradient."""
        mean, own = client.received[self.name]["mean"], client.memory[self.name]["own"]
        return {name: value / self.ratio(client) - own[name] for name, value in mean.items()}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return tree.dot(self.correction(view.client), params)

    def add_gradient(self, gradient: Params, params: Params, view: View) -> None:
        mean, own = view.client.received[self.name]["mean"], view.client.memory[self.name]["own"]
        ratio = self.ratio(view.client)
        for name, slope in gradient.items():
            if name not in mean:  # a row that belongs to a class has no mean direction
                continue
            slope.sub_(own[name])
            if isinstance(ratio, Tensor):  # a stack of clients, each with a ratio of its own
                slope.add_(mean[name] / ratio)
            else:
                slope.add_(mean[name], alpha=1 / ratio)


def kl_divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """KL(softmax(teacher / T) || softmax(student / T)), per example."""
    log_p = F.log_softmax(teacher / temperature, dim=1)
    log_q = F.log_softmax(student / temperature, dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=1)
