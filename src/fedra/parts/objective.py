"""Terms of the local objective that several algorithms use. They are added, in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedra.core import tree
from fedra.core.capabilities import (
    ClientState,
    CollectsUploads,
    CountsSteps,
    ReleaseTerms,
    ServerState,
    SumsUploads,
    Teachers,
)
from fedra.core.model import Output, Weights
from fedra.core.part import Term
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Client, Local, Population, Server, Upload, View
from fedra.registry import Positive, Strength


@dataclass(frozen=True)
class CrossEntropy(Term):
    """The mean cross-entropy of the logits.

    Example:
        >>> from fedra.parts import Algorithm, WeightedMean
        >>> Algorithm(objective=(CrossEntropy(),), combine=WeightedMean()).objective[0].name
        'cross-entropy'
    """

    formula: ClassVar[str] = "CE(w) = mean_i -log softmax(z_i)[y_i]"
    fits_labels: ClassVar[bool] = True
    is_plain: ClassVar[bool] = True

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return view.batch.mean(F.cross_entropy(output.logits, view.batch.targets, reduction="none"))


@dataclass(frozen=True)
class BalancedCrossEntropy(Term):
    """Cross-entropy with a weight for each class, larger for classes of which the client has few examples.

    The weights have mean 1 over the client's examples, so the learning rate keeps its meaning.

    Args:
        power: 1 gives every class of the client the same total weight; 0 is plain cross-entropy.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(BalancedCrossEntropy(0.5)).label_loss.power
        0.5
    """

    power: Strength = 1.0
    formula: ClassVar[str] = "mean_i v_{y_i} (-log softmax(z_i)[y_i]),  v_c ~ n_c^(-power), mean over examples 1"
    fits_labels: ClassVar[bool] = True

    @property
    def uses_label_counts(self) -> bool:
        return True

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        counts = view.client.label_counts.to(output.logits.dtype)
        weights = counts.clamp(min=1) ** -self.power  # a class without examples is never asked for
        weights = weights * counts.sum() / (weights * counts).sum()
        losses = F.cross_entropy(output.logits, view.batch.targets, reduction="none")
        return view.batch.mean(weights[view.batch.targets] * losses)


SHORTEST = 1e-8
"""Features shorter than this count as this long when they are divided by their length."""


@dataclass(frozen=True)
class ModelContrast(Term, ClientState, Teachers):
    """Pulls features toward the received model's and away from the client's previous model's (MOON, CVPR 2021).

    A client that takes part for the first time has no previous model. The received one is used instead, which makes
    both similarities equal and the gradient zero.

    Args:
        mu: Weight of the term.
        temperature: Temperature of the similarities.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(ModelContrast(mu=1.0)).objective[1].mu
        1.0
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
        # cos(f, a) - cos(f, b) = f (a/|a| - b/|b|) / |f|: one product to differentiate instead of two cosines
        origin, previous = (view.teachers[self.name][name].features for name in ("origin", "previous"))
        axis = F.normalize(previous, dim=-1, eps=SHORTEST) - F.normalize(origin, dim=-1, eps=SHORTEST)
        lengths = torch.linalg.vector_norm(output.features, dim=-1).clamp_min(SHORTEST)
        difference = (output.features * axis).sum(dim=-1) / lengths
        return self.mu * view.batch.mean(F.softplus(difference / self.temperature))

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        return {"params": local.weights.params, "buffers": local.weights.buffers}, {}


class ControlTerm(Term, ClientState, ServerState, CollectsUploads, CountsSteps, abstract=True):
    """Base class of control variates: a linear term with the gradient mean direction - client's direction.

    The client stores its direction ("own"), the server the mean, which it sends to all clients: SCAFFOLD and the public
    code of FedNova. As a term it can be added to the objective or give the direction of a perturbation. A subclass
    defines `finish_client`, `collect` and `finish_round`.

    Example:
        >>> from fedra.algorithms.scaffold import ControlVariates
        >>> issubclass(ControlVariates, ControlTerm)
        True
    """

    closed_form: ClassVar[bool] = True

    def init_client(self, origin: Weights) -> Tree:
        return {"own": tree.zeros_like(origin.params)}

    def init_server(self, weights: Weights) -> Tree:
        return {"mean": tree.zeros_like(weights.params)}

    def broadcast(self, memory: Tree) -> Tree:
        return memory

    def ratio(self, client: Client) -> float:
        """Return what the mean direction is divided by for this client.

        Args:
            client: The client.

        Returns:
            1.0 unless a subclass weights clients.
        """
        return 1.0

    def upload_factors(self, client: Client) -> Tree:
        """Return what the server needs to divide an update by learning rates that differ between parameters.

        Args:
            client: The client.

        Returns:
            "inverse" with 1 / factor for each parameter with its own learning rate; empty if there are none.
        """
        optimizer, values = client.optimizer, client.origin.params
        factors = {name: optimizer.factor_of(name) for name in client.trained} if optimizer.factors else {}
        inverse = {name: values[name].new_tensor([1 / factor]) for name, factor in factors.items() if factor != 1}
        return {"inverse": inverse} if inverse else {}

    def divided_updates(self, uploads: Uploads) -> Params:
        """Return the clients' updates as if all parameters had the same learning rate.

        Args:
            uploads: The uploads, with the extras of `upload_factors`.

        Returns:
            The stacked updates by parameter name.
        """
        inverse: Params = uploads.extras[self.name].get("inverse", {})
        factors = {name: value.view(-1, *[1] * (uploads.delta[name].dim() - 1)) for name, value in inverse.items()}
        return {name: value * factors[name] if name in factors else value for name, value in uploads.delta.items()}

    def correction(self, client: Client) -> Params:
        """Return mean / ratio - own: the term's gradient.

        Args:
            client: The client.

        Returns:
            The gradient by parameter name.
        """
        mean, own = client.received[self.name]["mean"], client.memory[self.name]["own"]
        return {name: value / self.ratio(client) - own[name] for name, value in mean.items()}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return tree.dot(self.correction(view.client), params)

    def add_gradient(self, gradient: Params, params: Params, view: View) -> None:
        mean, own = view.client.received[self.name]["mean"], view.client.memory[self.name]["own"]
        ratio = self.ratio(view.client)
        for name, grad in gradient.items():
            if name not in mean:  # rows owned by classes have no mean direction
                continue
            grad.sub_(own[name])
            if isinstance(ratio, Tensor):  # one ratio for each client of a stack
                grad.add_(mean[name] / ratio)
            else:
                grad.add_(mean[name], alpha=1 / ratio)


@dataclass(frozen=True)
class DynamicRegularizer(Term, ClientState, ServerState, SumsUploads):
    """FedDyn's regularizer: a learned linear term and a quadratic one; the server corrects the mean by h / alpha.

    The correction runs after any combine rule: it moves the server's parameters and averages nothing itself.

    Args:
        alpha: Weight of the quadratic term.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(DynamicRegularizer(alpha=0.01)).objective[1].alpha
        0.01
    """

    alpha: Positive = 0.1
    formula: ClassVar[str] = (
        "-<l_k, w> + alpha/2 ||w - w_g||^2;  l_k <- l_k - alpha (w_k - w_g);  "
        "h <- h - alpha/N sum_S (w_k - w_g);  w_g <- mean - h / alpha"
    )
    closed_form: ClassVar[bool] = True

    def init_client(self, origin: Weights) -> Tree:
        return {"linear": tree.zeros_like(origin.params)}

    def init_server(self, weights: Weights) -> Tree:
        return {"linear": tree.zeros_like(weights.params)}

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        drift = tree.subtract(params, view.client.origin.params)
        return 0.5 * self.alpha * tree.dot(drift, drift) - tree.dot(view.client.memory[self.name]["linear"], params)

    def add_gradient(self, gradient: Params, params: Params, view: View) -> None:
        origin, own = view.client.origin.params, view.client.memory[self.name]["linear"]
        for name, grad in gradient.items():
            grad.add_(params[name].detach(), alpha=self.alpha).sub_(origin[name], alpha=self.alpha).sub_(own[name])

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        return {"linear": tree.add(local.client.memory[self.name]["linear"], local.drift, -self.alpha)}, {}

    def collect(self, total: Tree, upload: Upload) -> Tree:
        return self.collect_stack(total, Uploads.of(upload))

    def collect_stack(self, total: Tree, uploads: Uploads) -> Tree:
        return {"drift": tree.accumulate_rows(total.get("drift", {}), uploads.delta, [1.0] * len(uploads))}

    def released_total(self, update: Params, sums: Tree, clients: float, terms: ReleaseTerms) -> Tree:
        return {"drift": update}

    def finish_round(self, before: Server, server: Server, total: Tree, population: Population) -> Server:
        linear = tree.add(before.memory[self.name]["linear"], total["drift"], -self.alpha / population.clients)
        corrected = tree.add(server.weights.params, linear, -1 / self.alpha)
        return server.with_params(corrected).with_memory(self.name, {"linear": linear})


def kl_divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Return KL(softmax(teacher / T) || softmax(student / T)) of each example.

    Args:
        teacher: Logits (B, C) of the reference distribution.
        student: Logits (B, C) of the compared distribution.
        temperature: The temperature T of both.

    Returns:
        The divergences (B,).

    Example:
        >>> import torch
        >>> kl_divergence(torch.zeros(2, 3), torch.zeros(2, 3), temperature=1.0)
        tensor([0., 0.])
    """
    log_p = F.log_softmax(teacher / temperature, dim=1)
    log_q = F.log_softmax(student / temperature, dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=1)
