"""FedNova: updates are normalized by the number of local steps before they are averaged.

Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization", NeurIPS 2020.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedra.algorithms.fedavg import fedavg
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import CountsSteps, ReleaseTerms, SumsUploads
from fedra.core.model import Weights
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Local, Population, Server, Upload
from fedra.parts.combine import RunningMean
from fedra.parts.objective import ControlTerm


@dataclass(frozen=True)
class NormalizedMean(RunningMean, CountsSteps):
    """FedNova's mean: each update divided by its effective number of steps, the mean scaled back by their average.

    a_k is the effective number of local steps, which includes momentum, and p_k = n_k / sum n (Wang et al., NeurIPS
    2020).
    """

    formula: ClassVar[str] = "w_g + (sum_k p_k a_k) sum_k p_k (w_k - w_g) / a_k"

    def weight(self, examples: int) -> float:
        return examples

    def factor(self, examples: int, effective_steps: float) -> float:
        return examples / effective_steps

    def add_stack(self, total: Tree, uploads: Uploads) -> Tree:
        steps = sum(map(operator.mul, uploads.examples, uploads.effective_steps))
        return super().add_stack(total, uploads) | {"steps": total.get("steps", 0.0) + steps}

    def update_summands(self, uploads: Uploads) -> Params:
        def divided(value: Tensor) -> Tensor:
            steps = torch.as_tensor(uploads.effective_steps, dtype=value.dtype, device=value.device)
            return value / steps.view(-1, *[1] * (value.dim() - 1))

        return {name: divided(value) for name, value in uploads.delta.items()}

    def released_change(self, total: Params, clients: float, terms: ReleaseTerms) -> Params:
        steps = terms.optimizer.effective_steps(max(round(terms.steps), 1))  # public, in place of the cohort's mean
        return tree.scale(total, steps / clients)

    def finish(self, total: Tree) -> Weights:
        mean = super().finish(total)
        return Weights(tree.scale(mean.params, total["steps"] / total["weight"]), mean.buffers)


@dataclass(frozen=True)
class NovaDirection(ControlTerm, SumsUploads):
    """The control variate D - d_i of the public code of FedNTD and FedSoL, as a linear term.

    d_i is the client's last mean direction.

    Args:
        refresh: Let the server update D, as that code intended. False reproduces the code as it runs: D stays zero.
    """

    refresh: bool = True
    formula: ClassVar[str] = "<D - d_i, w>;  d_i = (w_g - w_i) / (lr a_i);  D <- (1 - n_S/n) D + sum_S n_i/n d_i"

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        optimizer = local.client.optimizer
        scale = -1 / (optimizer.lr * optimizer.effective_steps(local.steps))
        own = tree.add(tree.zeros_like(local.weights.params), optimizer.apply_factors(local.drift, -1), scale)
        sent = next(iter(own.values())).new_tensor([scale])
        return {"own": own}, {"scale": sent, **self.upload_factors(local.client)}

    def collect(self, total: Tree, upload: Upload) -> Tree:
        return self.collect_stack(total, Uploads.of(upload))

    def collect_stack(self, total: Tree, uploads: Uploads) -> Tree:
        scales = uploads.extras[self.name]["scale"].flatten().tolist()
        weights = list(map(operator.mul, uploads.examples, scales))
        direction = tree.accumulate_rows(total.get("direction", {}), self.divided_updates(uploads), weights)
        return {"direction": direction, "examples": total.get("examples", 0) + sum(uploads.examples)}

    def summands(self, uploads: Uploads, terms: ReleaseTerms) -> Tree:
        if not self.refresh:
            return {}
        scales = uploads.extras[self.name]["scale"].flatten() * self._length(terms)
        updates = terms.optimizer.apply_factors(uploads.delta, -1)
        return {"direction": {n: value * scales.view(-1, *[1] * (value.dim() - 1)) for n, value in updates.items()}}

    def released_total(self, update: Params, sums: Tree, clients: float, terms: ReleaseTerms) -> Tree:
        return {"direction": tree.scale(sums.get("direction", {}), 1 / self._length(terms)), "clients": clients}

    def _length(self, terms: ReleaseTerms) -> float:
        """The length of the mean client's path: directions are multiplied by it, so they are as long as updates."""
        return terms.optimizer.effective_steps(max(round(terms.steps), 1)) * terms.optimizer.lr

    def finish_round(self, before: Server, server: Server, total: Tree, population: Population) -> Server:
        if not self.refresh:
            return server
        # Of sums over clients the server knows how many they are, and not how many examples they have.
        count, everyone = ("clients", population.clients) if "clients" in total else ("examples", population.examples)
        decayed = tree.scale(before.memory[self.name]["mean"], 1 - total[count] / everyone)
        return server.with_memory(self.name, {"mean": tree.add(decayed, total["direction"], 1 / everyone)})


def fednova(*, control: Literal["off", "official", "correct"] = "off") -> Algorithm:
    """Averages the clients' updates per effective local step.

    Args:
        control: Whether to add the control variate of the public code: "off" (the default), "official" as that code
            runs (D stays zero), or "correct" as it was meant.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fednova().combine.name
        'normalized-mean'
    """
    algorithm = fedavg().plus(NormalizedMean())
    return algorithm if control == "off" else algorithm.plus(NovaDirection(refresh=control == "correct"))
