"""SCAFFOLD: local gradients corrected by control variates (option II).

Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning", ICML 2020.

The correction c - c_i is the gradient of the linear term <c - c_i, w>, so it is a term like any other: it can be
added to the objective (SCAFFOLD) or give the direction of a perturbation (FedSoL + SCAFFOLD).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from fedra.algorithms.fedavg import fedavg
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ReleaseTerms, SumsUploads
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Client, Local, Population, Server, Upload
from fedra.parts.gradient import Clip
from fedra.parts.objective import ControlTerm
from fedra.parts.private import clip_as_released


@dataclass(frozen=True)
class ControlVariates(ControlTerm, SumsUploads):
    """The linear term whose gradient replaces the client's own drift c_i by the mean drift c.

    K is the number of local steps. The server computes every client's c_i+ - c_i from its uploaded model, so nothing
    but the model and one number is uploaded.

    Args:
        momentum_aware: Let K be the number of plain steps with the same total length. Without it, momentum 0.9 makes
            c_i up to ten times too long.
        size_aware: Weight clients by r_i = n_i N / n, as the public code of FedDyn does.
    """

    momentum_aware: bool = True
    size_aware: bool = False
    formula: ClassVar[str] = "<c - c_i, w>;  c_i <- c_i - c + (w_g - w_i) / (K lr);  c <- c + 1/N sum_S (c_i+ - c_i)"

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        steps = local.client.optimizer.effective_steps(local.steps) if self.momentum_aware else local.steps
        scale = -1 / (steps * local.client.optimizer.lr)
        mean, own = local.client.received[self.name]["mean"], local.client.memory[self.name]["own"]
        shared = {name: value for name, value in local.drift.items() if name in mean}
        drift = local.client.optimizer.apply_factors({**local.drift, **clip_as_released(shared, local.client)}, -1)
        own = tree.add(tree.add(own, mean, -1 / self.ratio(local.client)), drift, scale)
        rate = next(iter(own.values())).new_tensor([scale * self.ratio(local.client)])
        return {"own": own}, {"rate": rate, **self.upload_factors(local.client)}

    def collect(self, total: Tree, upload: Upload) -> Tree:
        return self.collect_stack(total, Uploads.of(upload))

    def collect_stack(self, total: Tree, uploads: Uploads) -> Tree:
        rates = uploads.extras[self.name]["rate"].flatten().tolist()
        drift = tree.accumulate_rows(total.get("drift", {}), self.divided_updates(uploads), rates)
        return {"drift": drift, "clients": total.get("clients", 0) + len(uploads)}

    def summands(self, uploads: Uploads, terms: ReleaseTerms) -> Tree:
        if terms.equal_steps and not self.size_aware:
            return {}  # the drift is a public multiple of the update
        optimizer = terms.optimizer
        rates = uploads.extras[self.name]["rate"].flatten() * self._length(terms)
        drift = optimizer.apply_factors(uploads.delta, -1)
        return {"drift": {n: value * rates.view(-1, *[1] * (value.dim() - 1)) for n, value in drift.items()}}

    def released_total(self, update: Params, sums: Tree, clients: float, terms: ReleaseTerms) -> Tree:
        drift = sums.get("drift") or tree.scale(terms.optimizer.apply_factors(update, -1), -1)
        return {"drift": tree.scale(drift, 1 / self._length(terms)), "clients": clients}

    def _length(self, terms: ReleaseTerms) -> float:
        """The length of the mean client's path: drifts are multiplied by it, so they are as long as updates."""
        steps = max(round(terms.steps), 1)
        return (terms.optimizer.effective_steps(steps) if self.momentum_aware else steps) * terms.optimizer.lr

    def finish_round(self, before: Server, server: Server, total: Tree, population: Population) -> Server:
        mean = before.memory[self.name]["mean"]
        change = tree.add(total["drift"], tree.select(mean, total["drift"]), -float(total["clients"]))
        return server.with_memory(self.name, {"mean": tree.add(mean, change, 1 / population.clients)})

    def ratio(self, client: Client) -> float:
        return client.examples * client.population.clients / client.population.examples if self.size_aware else 1.0


def scaffold(
    *, momentum_aware: bool = True, size_aware: bool = False, clip: Annotated[float, Field(gt=0)] | None = None
) -> Algorithm:
    """Adds the control variate c - c_i to every local gradient.

    Args:
        momentum_aware: Account for momentum in the number of local steps. Without it, momentum 0.9 makes c_i up to ten
            times too long.
        size_aware: Weight clients by their number of examples, as the public code of FedDyn does.
        clip: Clip the corrected gradient to this norm; None (the default) does not clip.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> [rule.name for rule in scaffold(clip=10.0).gradient]
        ['clip']
    """
    algorithm = fedavg().plus(ControlVariates(momentum_aware, size_aware))
    return algorithm if clip is None else algorithm.plus(Clip(clip))
