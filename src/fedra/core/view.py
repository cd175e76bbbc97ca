"""What a part may look at: a batch, one local step, a finished client, an upload, the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.model import Model, Output, Weights
from fedra.core.optimizer import Optimizer
from fedra.core.ownership import Owners
from fedra.core.tree import Params, Tree
from fedra.errors import ConfigError

if TYPE_CHECKING:
    from fedra.core.part import Term


@dataclass(frozen=True)
class Batch:
    """Inputs ready for the model, their labels, their rows in the client's data, and which are padding.

    `index` is None when the inputs were drawn at random (augmented), so that nothing may be looked up by row.
    `mask` is 1 for an example and 0 for padding; None where there is no padding. `drawn` holds what parts drew at
    random for this step (`StepDraws`), under their names. `epoch` counts the client's passes over its data, from 0;
    it is a tensor in a stack of clients: do not branch on it.
    """

    inputs: Tensor
    targets: Tensor
    index: Tensor | None = None
    mask: Tensor | None = None
    drawn: Tree = field(default_factory=dict)
    epoch: int | Tensor = 0

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the batch's examples, padding left out."""
        if self.mask is None:
            return values.mean()
        return (values * self.mask).sum() / self.mask.sum().clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class Population:
    """All clients of the federation, sampled or not; `owners` where classes belong to clients, `seed` the server's."""

    clients: int
    examples: int
    owners: Owners | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Client:
    """What stays the same for a client during a round.

    `origin` is the model it received; `received` and `memory` hold one entry per part that has any, under the
    part's name; `trained` names the parameters that move; `label_counts` says how often it holds each class. During
    the local steps of a stack of clients `examples` is a tensor: reckon with it, but do not branch on it. `start` is
    the model the run began with, such as a pre-trained one: every client has it, so that it never travels.
    """

    origin: Weights
    received: Tree
    memory: Tree
    examples: int
    trained: tuple[str, ...]
    label_counts: Tensor
    optimizer: Optimizer
    population: Population
    start: Weights


@dataclass
class Trace:
    """What one step leaves behind beside the new weights."""

    loss: Tensor | None = None
    buffers: Params | None = None
    carried: Tree = field(default_factory=dict)
    logs: dict[str, Tensor] = field(default_factory=dict)
    held: dict[str, bool | Tensor] = field(default_factory=dict)


@dataclass(kw_only=True)
class View:
    """One local step as its parts see it: the batch, the client, the teachers' outputs, and gradients on demand.

    `teachers` and `carried` have one entry per part that has any, under the part's name: the outputs of the frozen
    models it asked for, and what it handed on at the step before.
    """

    model: Model
    client: Client
    batch: Batch
    buffers: Params
    teachers: Mapping[str, Mapping[str, Output]]
    functional: bool = False
    carried: Tree = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace)
    _kept: tuple[list[Tensor], Tensor] | None = None

    def names(self, scope: str) -> tuple[str, ...]:
        """The trained parameters of "all", of the "head" or of the "body"."""
        if scope == "all":
            return self.client.trained
        return tuple(name for name in self.client.trained if name.startswith(f"{scope}."))

    def log(self, name: str, value: Tensor) -> None:
        """Record a number of this step; its mean over the steps goes into clients.jsonl."""
        self.trace.logs[name] = value.detach()

    def hold(self, scope: str, when: bool | Tensor) -> None:
        """Keep the parameters of `scope` where they are in this step if `when`: no momentum or decay moves them."""
        self.trace.held |= dict.fromkeys(self.names(scope), when)

    def carry(self, part: str, values: Tree) -> None:
        """Hand `values`, of the shapes of `carried[part]`, to the part's next local step.

        Every pass of a step reads the same `carried`, so that a gradient is a function of the weights alone; of
        what several passes hand on, the first counts.
        """
        flat = tree.flatten(values)
        shapes = {path: value.shape for path, value in flat.items()}
        if shapes != {path: value.shape for path, value in tree.flatten(self.carried.get(part, {})).items()}:
            raise ConfigError(
                f"the part '{part}' carries other names or shapes from a step than it began with: let its init_steps "
                "give the same"
            )
        self.trace.carried.setdefault(part, tree.unflatten({path: value.detach() for path, value in flat.items()}))

    def gradient(self, terms: Sequence[Term], params: Params, scope: str = "all", record: bool = False) -> Params:
        """The gradient of the sum of `terms` at `params` with respect to the trained parameters of `scope`.

        `record` marks the objective's own gradient: its first values are the step's training loss and its terms.
        """
        names = self.names(scope)
        batched = [term for term in terms if not term.closed_form]
        if batched:
            gradient, losses = self._differentiate(batched, params, names, scope)
            if record and self.trace.loss is None:
                self._record(batched, losses.detach())
        else:
            gradient = {name: torch.zeros_like(params[name]) for name in names}
        closed = [term for term in terms if term.closed_form]
        if closed and self.functional:  # in-place sums need each entry its own, as in `tree.unaliased`
            gradient = {name: slope.clone() for name, slope in gradient.items()}
        for term in closed:
            term.add_gradient(gradient, params, self)
        return gradient

    def value(self, term: Term, params: Params) -> Tensor:
        """The term's value at `params`, without a gradient and without a trace."""
        with torch.no_grad():
            kept, self.trace = self.trace, Trace()
            loss = self._losses([term], params).sum()
            self.trace = kept
            return loss

    def track(self, params: Params) -> None:
        """Take the step's running statistics at `params`, unless a pass has left them already."""
        if self.trace.buffers is None and self.model.has_buffers:
            with torch.no_grad():
                self._output(params, head_only=False)

    def _differentiate(
        self, terms: Sequence[Term], params: Params, names: Sequence[str], scope: str
    ) -> tuple[Params, Tensor]:
        if self.functional:
            return self._transform(terms, params, names)
        fresh = {n: params[n].detach().requires_grad_() for n in names if not params[n].requires_grad}
        weights = {**params, **fresh}
        losses = self._losses(terms, weights, head_only=scope == "head")
        if not losses.requires_grad:  # no term depends on what may move
            return {n: torch.zeros_like(params[n]) for n in names}, losses
        precision = self.model.precision
        slopes = torch.autograd.grad(
            precision.scaled(losses.sum()), [weights[n] for n in names], materialize_grads=True
        )
        return precision.unscaled(dict(zip(names, tree.unaliased(slopes), strict=True))), losses

    def _transform(self, terms: Sequence[Term], params: Params, names: Sequence[str]) -> tuple[Params, Tensor]:
        """The same by function transform, which nests inside vmap; frozen outside names are constants."""

        def loss(moved: Params) -> tuple[Tensor, tuple[Tensor, Params | None, Tree, Params]]:
            kept, self.trace = self.trace, Trace()
            losses = self._losses(terms, {**params, **moved})
            left, self.trace = self.trace, kept
            return precision.scaled(losses.sum()), (losses, left.buffers, left.carried, left.logs)

        precision = self.model.precision
        found, left = torch.func.grad(loss, has_aux=True)({n: params[n] for n in names})
        losses, buffers, carried, logs = left
        if self.trace.buffers is None:
            self.trace.buffers = buffers
        self.trace.carried = carried | self.trace.carried
        self.trace.logs |= logs
        return precision.unscaled(found), losses

    def _losses(self, terms: Sequence[Term], params: Params, head_only: bool = False) -> Tensor:
        """The value of every term."""
        output = self._output(params, head_only)
        return torch.stack([term.scalar_loss(output, params, self) for term in terms])

    def _record(self, terms: Sequence[Term], losses: Tensor) -> None:
        """The training loss, and each term's share of it: what is no number counts as infinite, so that a mean shows
        it.
        """
        self.trace.loss = losses.sum()
        if len(terms) > 1:
            for term, value in zip(terms, torch.where(losses.isnan(), torch.inf, losses), strict=True):
                self.log(f"train_loss/{term.name}", value)

    def _output(self, params: Params, head_only: bool) -> Output:
        """The training pass.

        A head-only gradient leaves the body's graph untouched, so its features are kept for the next full
        gradient at the same body: one body pass serves both, exactly. Kept features are used once.
        """
        buffers = {name: value.clone() for name, value in self.buffers.items()}
        weights = Weights(params, buffers)
        body = [value for name, value in params.items() if name.startswith("body.")]
        if self._kept is not None and all(new is old for new, old in zip(body, self._kept[0], strict=True)):
            features = self._kept[1]
        else:
            features = self.model.features(weights, self.batch.inputs, train=True)
        keep = head_only and not self.functional
        self._kept = (body, features) if keep else None
        if keep:
            features = features.detach()
        logits = self.model.classify(weights, features, train=True)
        if self.trace.buffers is None:
            # The step's first pass is at the client's own weights (a rule that moves them calls `track` before);
            # perturbed passes leave no trace in the buffers.
            self.trace.buffers = buffers
        return Output(features, logits)


@dataclass(frozen=True, kw_only=True)
class Local:
    """A client after its local steps; `carried` is what parts handed on at the last one, under their names."""

    client: Client
    weights: Weights
    steps: int
    carried: Tree = field(default_factory=dict)

    @property
    def delta(self) -> Params:
        """How far each parameter moved."""
        return {name: value - self.client.origin.params[name] for name, value in self.weights.params.items()}

    @property
    def drift(self) -> Params:
        """The same without private parameters, which have no global course to drift from."""
        private = self.client.memory.get("sharing", {})
        return {name: value for name, value in self.delta.items() if name not in private}


@dataclass(frozen=True, kw_only=True)
class Upload:
    """What a client sends: the change of the shared parameters, its buffers, extras of parts, and figures.

    `extras` has one entry per part that sends any, under the part's name; `broken_step` is the first local step
    whose loss was not finite.
    """

    delta: Params
    buffers: Params
    examples: int
    steps: int
    effective_steps: float
    extras: Tree
    figures: dict[str, float]
    broken_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Server:
    """The global model and what parts keep on the server, under their names."""

    weights: Weights
    memory: Tree

    def with_params(self, params: Params) -> Server:
        """The server with these parameters."""
        return replace(self, weights=Weights(params, self.weights.buffers))

    def with_memory(self, part: str, memory: Tree) -> Server:
        """The server with this memory for one part."""
        return replace(self, memory={**self.memory, part: memory})
