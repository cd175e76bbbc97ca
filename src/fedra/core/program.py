"""What a client does in a round: `init`, `step`, `finish`.

A plain loop runs it client by client (`core/round.py`); the stacked runner maps the same `step` over many clients with
`vmap`. All state is nested dicts of tensors; in a stack they have a leading client dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ClientState, StepState, TrainsAlongside
from fedra.core.model import Model, Weights
from fedra.core.optimizer import Optimizer
from fedra.core.part import GradientFunction, GradientRule, Term
from fedra.core.private_steps import private_steps
from fedra.core.teachers import Outputs
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Batch, Client, Local, Population, View
from fedra.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ClientProgram:
    """A client's round as functions of the client's own state; the fields are common to all clients of the round.

    `origin` is the received model without rows of owned classes; `trained` names the parameters to train.
    `functional` computes gradients with torch.func, which works inside vmap.
    """

    algorithm: Algorithm
    model: Model
    optimizer: Optimizer
    origin: Weights
    received: Tree
    trained: tuple[str, ...]
    population: Population
    functional: bool = False

    def memory(self, stored: Tree) -> Tree:
        """A client's state, with the initial state of parts that have none yet."""
        missing = {
            name: part for name, part in self.algorithm.with_capability(ClientState).items() if name not in stored
        }
        if not missing:
            return stored
        origin = self.algorithm.sharing.received(self.origin, stored)
        initial = {name: part.init_client(origin) for name, part in missing.items()}
        for name, values in initial.items():
            tree.check_tensors(f"the client state that init_client of the part '{name}' returns", values)
        return initial | stored

    def client(self, memory: Tree, examples: int, label_counts: Tensor) -> Client:
        """One client, inside or outside of vmap."""
        return Client(
            origin=self.algorithm.sharing.received(self.origin, memory),
            received=self.received,
            memory=memory,
            examples=examples,
            trained=self.trained,
            label_counts=label_counts,
            optimizer=self.optimizer,
            population=self.population,
            start=self.model.start,
        )

    def init(self, client: Client) -> Tree:
        """What local steps change, before the first step; the caller must copy it, because it is shared."""
        carried = {name: part.init_steps(client) for name, part in self.algorithm.with_capability(StepState).items()}
        return {
            "params": tree.select(client.origin.params, self.trained),
            "buffers": client.origin.buffers,
            "carried": {name: values for name, values in carried.items() if values},
        }

    def step(self, client: Client, state: Tree, batch: Batch, teachers: Outputs) -> Tree:
        """One step's gradient through all gradient rules, and its trace; nothing is modified."""
        view = View(
            model=self.model,
            client=client,
            batch=batch,
            buffers=state["buffers"],
            teachers=teachers,
            functional=self.functional,
            carried=state["carried"],
        )
        gradient = nest(self.algorithm, view)({**client.origin.params, **state["params"]})
        trace = view.trace
        return {
            "gradient": gradient,
            "buffers": trace.buffers or {},
            "carried": trace.carried,
            "loss": trace.loss,
            "logs": trace.logs,
            "held": trace.held,
        }

    def advance(self, state: Tree, result: Tree) -> None:
        """The optimizer's update, in place; it is elementwise, so it applies to a stack as well.

        Held parameters and their optimizer state do not change.
        """
        held: Mapping[str, bool | Tensor] = result["held"]
        masks = {name: when for name, when in held.items() if isinstance(when, Tensor)}
        gradient = {name: value for name, value in result["gradient"].items() if name in masks or not held.get(name)}
        before = tree.flatten(tree.each(_updated(state), torch.clone)) if masks else {}
        state["optimizer"] = self.optimizer.step(state["params"], gradient, state["optimizer"])
        for path, value in tree.flatten(_updated(state)).items() if masks else ():
            name = path.rpartition("|")[2]
            if name in masks:
                mask = masks[name].view(-1, *[1] * (value.dim() - 1))
                value.copy_(torch.where(mask, before[path], value))

    def finish(self, local: Local) -> tuple[Tree, Tree]:
        """The client's new state, and the extras that its parts upload."""
        memory: Tree = {}
        extras: Tree = {}
        for name, part in self.algorithm.with_capability(ClientState).items():
            if part.has_state:
                kept, sent = _check_finished(name, part.finish_client(local))
                memory |= {name: kept} if kept else {}
                extras |= {name: sent} if sent else {}
        return memory, extras

    def uploads(
        self,
        *,
        delta: Params,
        buffers: Params,
        examples: Sequence[int],
        steps: Sequence[int],
        extras: Tree,
        metrics: StepMetrics,
    ) -> Uploads:
        """The uploads of a stack of clients, without private or frozen parameters."""
        sharing, rule = self.algorithm.sharing, self.algorithm.upload
        if rule is not None:
            delta = extras[rule.name]
            extras = {name: values for name, values in extras.items() if name != rule.name}
        sent = sharing.averaged(delta)
        means, broken = metrics.summary(steps)
        effective = self.optimizer.effective_steps if self.algorithm.counts_steps else float
        lengths = {count: effective(count) for count in set(steps)}
        uploads = Uploads(
            delta=sent,
            buffers=sharing.averaged(buffers),
            examples=examples,
            steps=steps,
            effective_steps=[lengths[count] for count in steps],
            extras=extras,
            metrics=means,
            broken_step=broken,
        )
        means["update_norm"] = uploads.update_norms
        return uploads


def nest(algorithm: Algorithm, view: View) -> GradientFunction:
    """The gradient function of the objective inside all gradient rules, the first one listed outermost.

    If local steps are private, terms that read no data stay outside of the rules. Parts that train something alongside
    the model run after the step's gradient is computed.
    """

    outside = [term for term in algorithm.objective if term.closed_form] if private_steps(algorithm) else []
    inside = [term for term in algorithm.objective if term not in outside]

    def objective(params: Params) -> Params:
        return view.gradient(inside, params, record=True)

    def wrap(rule: GradientRule, inner: GradientFunction) -> GradientFunction:
        return lambda params: rule.gradient(inner, params, view)

    function: GradientFunction = objective
    for rule in reversed(algorithm.gradient):
        function = wrap(rule, function)
    if outside:
        function = _add_terms(function, outside, view)
    extra = algorithm.with_capability(TrainsAlongside).values()
    if not extra:
        return function

    def with_extra(params: Params) -> Params:
        gradient = function(params)
        for part in extra:
            part.train_alongside(algorithm, params, view)
        return gradient

    return with_extra


def _add_terms(function: GradientFunction, terms: Sequence[Term], view: View) -> GradientFunction:
    """The gradient function with closed-form terms added at the weights themselves."""

    def with_terms(params: Params) -> Params:
        gradient = function(params)
        for term in terms:
            term.add_gradient(gradient, params, view)
        return gradient

    return with_terms


@dataclass(frozen=True)
class StepMetrics:
    """Losses and logged values, (clients, steps) in double precision; NaN where a client has no such step."""

    losses: Tensor
    logs: dict[str, Tensor]

    @classmethod
    def empty(cls, clients: int, steps: int, device: torch.device) -> StepMetrics:
        """Metrics without any step."""
        return cls(torch.full((clients, steps), torch.nan, dtype=torch.float64, device=device), {})

    @classmethod
    def of(cls, losses: Sequence[Tensor], logs: Sequence[Params]) -> StepMetrics:
        """The metrics of one client, from its steps."""
        names = sorted({name for logged in logs for name in logged})
        missing = losses[0].new_tensor(torch.nan)
        columns = {name: torch.stack([logged.get(name, missing) for logged in logs]) for name in names}
        return cls(
            torch.stack(list(losses)).double()[None], {name: value.double()[None] for name, value in columns.items()}
        )

    def record(self, step: int, loss: Tensor, logged: Params) -> None:
        """Record a step of the first clients, those that still train."""
        self.losses[: len(loss), step] = loss
        for name, value in logged.items():
            log = self.logs.setdefault(name, torch.full_like(self.losses, torch.nan))
            log[: len(value), step] = value

    def summary(self, steps: Sequence[int]) -> tuple[dict[str, list[float]], list[int | None]]:
        """Means over each client's steps, and the first step with a loss that is not finite."""
        count = torch.from_numpy(np.array(steps)).to(self.losses.device)
        own = torch.arange(self.losses.shape[1], device=count.device) < count[:, None]
        losses = torch.where(own, self.losses, 0.0)
        means = {"train_loss": (losses.sum(dim=1) / count).tolist()}
        means |= {name: self.logs[name].nanmean(dim=1).tolist() for name in sorted(self.logs)}
        broken = ~losses.isfinite()
        if not broken.any():
            return means, [None] * len(steps)
        first = torch.where(broken.any(dim=1), broken.int().argmax(dim=1), -1).tolist()
        return means, [step if step >= 0 else None for step in first]


def _updated(state: Tree) -> Tree:
    return {"params": state["params"], "optimizer": state["optimizer"]}


def _check_finished(part: str, result: Any) -> tuple[Tree, Tree]:
    """The result of a part's finish_client, checked to be two dicts of tensors."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise ConfigError(
            f"finish_client of the part '{part}' must return (state, extras), two dicts of tensors, got "
            f"{type(result).__name__}"
        )
    for values, what in zip(result, ("state", "extras"), strict=True):
        tree.check_tensors(f"the {what} that finish_client of the part '{part}' returns", values)
    return result
