"""What a client does in a round, written once: `init`, `step`, `finish`.

A plain loop runs it client by client (`core/round.py`); the stacked runner maps the same `step` over many clients at
once by `vmap`. All state is nested dicts of tensors: a stack's have one more dimension in front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ClientState, StepState, TrainsBeside
from fedra.core.model import Model, Weights
from fedra.core.optimizer import Optimizer
from fedra.core.part import GradientFunction, GradientRule
from fedra.core.teachers import Outputs
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Batch, Client, Local, Population, View
from fedra.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ClientProgram:
    """A client's round as functions of what is its own; the fields are what all clients of the round share.

    `origin` is the model that all received, arranged, without the rows of classes; `trained` names the parameters that
    move. `functional` takes gradients by function transform, which nests inside vmap.
    """

    algorithm: Algorithm
    model: Model
    optimizer: Optimizer
    origin: Weights
    received: Tree
    trained: tuple[str, ...]
    population: Population
    functional: bool = False

    def memory(self, kept: Tree) -> Tree:
        """What a client's parts remember; those that remember nothing yet begin with their first memory."""
        missing = {name: part for name, part in self.algorithm.able(ClientState).items() if name not in kept}
        if not missing:
            return kept
        origin = self.algorithm.sharing.received(self.origin, kept)
        first = {name: part.init_client(origin) for name, part in missing.items()}
        for name, values in first.items():
            tree.refuse_other_values(f"the memory that init_client of the part '{name}' returns", values)
        return first | kept

    def client(self, memory: Tree, examples: int, label_counts: Tensor) -> Client:
        """One client: outside of vmap, or as seen from inside."""
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
        """What moves during the local steps, before the first: to be copied, because it is what the client received."""
        carried = {name: part.init_steps(client) for name, part in self.algorithm.able(StepState).items()}
        return {
            "params": tree.select(client.origin.params, self.trained),
            "buffers": client.origin.buffers,
            "carried": {name: values for name, values in carried.items() if values},
        }

    def step(self, client: Client, state: Tree, batch: Batch, teachers: Outputs) -> Tree:
        """One step's gradient through all gradient rules, and all that it leaves behind; nothing is changed."""
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
        """The optimizer's update, in place; it is elementwise, so a stack's is the same.

        What a client holds stays as it is, the optimizer's state included.
        """
        held: Mapping[str, bool | Tensor] = result["held"]
        stacks = {name: when for name, when in held.items() if isinstance(when, Tensor)}
        moving = {name: slope for name, slope in result["gradient"].items() if name in stacks or not held.get(name)}
        before = tree.flatten(tree.each(_moved(state), torch.clone)) if stacks else {}
        state["optimizer"] = self.optimizer.step(state["params"], moving, state["optimizer"])
        for path, value in tree.flatten(_moved(state)).items() if stacks else ():
            name = path.rpartition("|")[2]
            if name in stacks:
                still = stacks[name].view(-1, *[1] * (value.dim() - 1))
                value.copy_(torch.where(still, before[path], value))

    def finish(self, local: Local) -> tuple[Tree, Tree]:
        """What the client's parts remember, and what they send beside the model."""
        memory: Tree = {}
        extras: Tree = {}
        for name, part in self.algorithm.able(ClientState).items():
            if part.remembers:
                remembered, sent = _checked(name, part.finish_client(local))
                memory |= {name: remembered} if remembered else {}
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
        figures: Figures,
    ) -> Uploads:
        """What a stack of clients sends: nothing private or frozen is in it."""
        sharing = self.algorithm.sharing
        sent = sharing.averaged(delta)
        means, broken = figures.summary(steps)
        means["update_norm"] = _norms(sent, len(steps))
        effective = self.optimizer.effective_steps if self.algorithm.counts_steps else float
        lengths = {count: effective(count) for count in set(steps)}
        return Uploads(
            delta=sent,
            buffers=sharing.averaged(buffers),
            examples=examples,
            steps=steps,
            effective_steps=[lengths[count] for count in steps],
            extras=extras,
            figures=means,
            broken_step=broken,
        )


def nest(algorithm: Algorithm, view: View) -> GradientFunction:
    """The gradient function of the objective inside all gradient rules, the first listed outermost.

    What parts train beside the model has its turn when the step's gradient is known.
    """

    def objective(params: Params) -> Params:
        return view.gradient(algorithm.objective, params, record=True)

    def wrap(rule: GradientRule, inner: GradientFunction) -> GradientFunction:
        return lambda params: rule.gradient(inner, params, view)

    function: GradientFunction = objective
    for rule in reversed(algorithm.gradient):
        function = wrap(rule, function)
    beside = algorithm.able(TrainsBeside).values()
    if not beside:
        return function

    def and_beside(params: Params) -> Params:
        gradient = function(params)
        for part in beside:
            part.beside(algorithm, params, view)
        return gradient

    return and_beside


@dataclass(frozen=True)
class Figures:
    """Losses and logged numbers, (clients, steps) in double precision; NaN where a client had no such step."""

    losses: Tensor
    logs: dict[str, Tensor]

    @classmethod
    def empty(cls, clients: int, steps: int, device: torch.device) -> Figures:
        """No step yet."""
        return cls(torch.full((clients, steps), torch.nan, dtype=torch.float64, device=device), {})

    @classmethod
    def of(cls, losses: Sequence[Tensor], logs: Sequence[Params]) -> Figures:
        """Those of one client, from its steps."""
        names = sorted({name for logged in logs for name in logged})
        nothing = losses[0].new_tensor(torch.nan)
        columns = {name: torch.stack([logged.get(name, nothing) for logged in logs]) for name in names}
        return cls(
            torch.stack(list(losses)).double()[None], {name: value.double()[None] for name, value in columns.items()}
        )

    def record(self, step: int, loss: Tensor, logged: Params) -> None:
        """Note a step of the clients still at work."""
        self.losses[: len(loss), step] = loss
        for name, value in logged.items():
            kept = self.logs.setdefault(name, torch.full_like(self.losses, torch.nan))
            kept[: len(value), step] = value

    def summary(self, steps: Sequence[int]) -> tuple[dict[str, list[float]], list[int | None]]:
        """Means over each client's steps, and the first step whose loss was not finite."""
        count = torch.tensor(steps, device=self.losses.device)
        own = torch.arange(self.losses.shape[1], device=count.device) < count[:, None]
        means = {"train_loss": (torch.where(own, self.losses, 0.0).sum(dim=1) / count).tolist()}
        means |= {name: self.logs[name].nanmean(dim=1).tolist() for name in sorted(self.logs)}
        broken = own & ~self.losses.isfinite()
        first = torch.where(broken.any(dim=1), broken.int().argmax(dim=1), -1).tolist()
        return means, [step if step >= 0 else None for step in first]


def _moved(state: Tree) -> Tree:
    return {"params": state["params"], "optimizer": state["optimizer"]}


def _norms(delta: Params, count: int) -> list[float]:
    """The Euclidean norm of each client's change."""
    if not delta:
        return [0.0] * count
    lengths = [torch.linalg.vector_norm(value.reshape(count, -1), dim=1) for value in delta.values()]
    norms: list[float] = torch.linalg.vector_norm(torch.stack(lengths), dim=0).tolist()
    return norms


def _checked(part: str, said: Any) -> tuple[Tree, Tree]:
    """What a part's finish_client returned, or a sentence about what it should have."""
    if not isinstance(said, tuple) or len(said) != 2:
        raise ConfigError(
            f"finish_client of the part '{part}' must return (memory, extras), two dicts of tensors, got "
            f"{type(said).__name__}"
        )
    for values, what in zip(said, ("memory", "extras"), strict=True):
        tree.refuse_other_values(f"the {what} that finish_client of the part '{part}' returns", values)
    return said
