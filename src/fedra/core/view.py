"""What parts receive: a batch, a local step, a client, an upload, the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

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
    """A training batch.

    Args:
        inputs: Inputs ready for the model.
        targets: Labels.
        index: Rows of the examples in the client's data; None if inputs are augmented, so nothing can be looked up.
        mask: 1 for examples and 0 for padding; None without padding.
        drawn: Random numbers of parts (`StepDraws`) for this step, by part name.
        epoch: The client's current epoch, from 0. It is a tensor in a stack of clients: do not branch on it.

    Example:
        ```python
        loss = view.batch.mean(F.cross_entropy(output.logits, view.batch.targets, reduction="none"))
        ```
    """

    inputs: Tensor
    targets: Tensor
    index: Tensor | None = None
    mask: Tensor | None = None
    drawn: Tree = field(default_factory=dict)
    epoch: int | Tensor = 0

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the batch's examples, without padding.

        Args:
            values: One value per example.

        Returns:
            A scalar tensor.
        """
        if self.mask is None:
            return values.mean()
        return (values * self.mask).sum() / self.mask.sum().clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class Population:
    """All clients of the federation, whether or not they take part in a round.

    Args:
        clients: Number of clients.
        examples: Number of all their examples.
        owners: Which client owns which classes; None on a client, and if clients do not own classes.
        seed: Seed of the run.

    Example:
        ```python
        mean_size = population.examples / population.clients
        ```
    """

    clients: int
    examples: int
    owners: Owners | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Client:
    """What is constant for a client during a round.

    Args:
        origin: The model that the client received.
        received: What parts broadcast, by part name.
        memory: The client's state, by part name.
        examples: Number of the client's examples. During local steps of a stack of clients it is a tensor: compute
            with it, but do not branch on it.
        trained: Names of the trained parameters.
        label_counts: Number of the client's examples per class.
        optimizer: The local optimizer of the round.
        population: All clients of the federation.
        start: The model that the run started from, such as a pre-trained one. Every client has it, so it is never
            sent.

    Example:
        ```python
        drift = tree.subtract(params, view.client.origin.params)
        ```
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
    """What a step produces in addition to the gradient."""

    loss: Tensor | None = None
    buffers: Params | None = None
    carried: Tree = field(default_factory=dict)
    logs: dict[str, Tensor] = field(default_factory=dict)
    held: dict[str, bool | Tensor] = field(default_factory=dict)


@dataclass(kw_only=True)
class View:
    """One local step: the batch, the client, the teachers' outputs, and gradients on demand.

    Args:
        model: The model.
        client: The client.
        batch: The batch of this step.
        buffers: Running statistics before the step.
        teachers: Outputs of frozen models, by part name and by the part's name for them.
        functional: Whether gradients are computed with torch.func, which works inside vmap.
        carried: What parts carried over from the previous step, by part name.
        trace: What the step produces.

    Example:
        ```python
        gradient = view.gradient(algorithm.objective, params)
        view.log("gradient_norm", tree.norm(gradient))
        ```
    """

    model: Model
    client: Client
    batch: Batch
    buffers: Params
    teachers: Mapping[str, Mapping[str, Output]]
    functional: bool = False
    carried: Tree = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace)
    _cached: tuple[list[Tensor], Tensor] | None = None

    def names(self, scope: str) -> tuple[str, ...]:
        """The names of trained parameters.

        Args:
            scope: "all", "head" or "body".

        Returns:
            The names in order.
        """
        if scope == "all":
            return self.client.trained
        return tuple(name for name in self.client.trained if name.startswith(f"{scope}."))

    def log(self, name: str, value: Tensor) -> None:
        """Log a value of this step; its mean over the client's steps is written to clients.jsonl.

        Args:
            name: Name of the value.
            value: A scalar tensor.
        """
        self.trace.logs[name] = value.detach()

    def hold(self, scope: str, when: bool | Tensor) -> None:
        """Do not update some parameters in this step, not even by momentum or weight decay.

        Args:
            scope: "all", "head" or "body".
            when: Whether to hold them.
        """
        self.trace.held |= dict.fromkeys(self.names(scope), when)

    def carry(self, part: str, values: Tree) -> None:
        """Pass values to the part's next local step.

        All passes of a step read the same `carried`, so a gradient depends only on the weights. If several passes
        carry values, the first ones count.

        Args:
            part: The part's name.
            values: Tensors with the names and shapes of `carried[part]`.
        """
        flat = tree.flatten(values)
        shapes = {path: value.shape for path, value in flat.items()}
        if shapes != {path: value.shape for path, value in tree.flatten(self.carried.get(part, {})).items()}:
            raise ConfigError(
                f"values carried by the part '{part}' must keep their names and shapes, got different ones: return "
                "the same from init_steps"
            )
        self.trace.carried.setdefault(part, tree.unflatten({path: value.detach() for path, value in flat.items()}))

    def gradient(self, terms: Sequence[Term], params: Params, scope: str = "all", record: bool = False) -> Params:
        """The gradient of the sum of terms.

        Args:
            terms: The terms to differentiate.
            params: The parameters at which the gradient is taken.
            scope: "all", "head" or "body".
            record: Whether to record the losses as the step's training loss; the first recorded ones count.

        Returns:
            Gradients of the trained parameters of `scope`, by name.
        """
        names = self.names(scope)
        batched = [term for term in terms if not term.closed_form]
        if batched:
            gradient, losses = self._differentiate(batched, params, names, scope)
            if record and self.trace.loss is None:
                self._record(batched, [loss.detach() for loss in losses])
        else:
            gradient = {name: torch.zeros_like(params[name]) for name in names}
        closed = [term for term in terms if term.closed_form]
        if closed and self.functional:
            gradient = dict(zip(gradient, tree.unalias(gradient.values()), strict=True))
        for term in closed:
            term.add_gradient(gradient, params, self)
        return gradient

    def value(self, term: Term, params: Params) -> Tensor:
        """The value of a term, without a gradient and without changing the trace.

        Args:
            term: The term.
            params: The parameters at which it is evaluated.

        Returns:
            A scalar tensor.
        """
        with torch.no_grad():
            before, self.trace = self.trace, Trace()
            (loss,) = self._losses([term], params)
            self.trace = before
            return loss

    def track(self, params: Params) -> None:
        """Compute the step's running statistics at `params`, unless a pass has done so already.

        Args:
            params: The parameters.
        """
        if self.trace.buffers is None and self.model.has_buffers:
            with torch.no_grad():
                self._output(params, head_only=False)

    def _differentiate(
        self, terms: Sequence[Term], params: Params, names: Sequence[str], scope: str
    ) -> tuple[Params, Sequence[Tensor]]:
        if self.functional:
            return self._transform(terms, params, names)
        fresh = {n: params[n].detach().requires_grad_() for n in names if not params[n].requires_grad}
        weights = {**params, **fresh}
        losses = self._losses(terms, weights, head_only=scope == "head")
        total = _add_up(losses)
        if not total.requires_grad:  # no term depends on trained parameters
            return {n: torch.zeros_like(params[n]) for n in names}, losses
        precision = self.model.precision
        gradients = torch.autograd.grad(precision.scaled(total), [weights[n] for n in names], materialize_grads=True)
        return precision.unscaled(dict(zip(names, tree.unalias(gradients), strict=True))), losses

    def _transform(
        self, terms: Sequence[Term], params: Params, names: Sequence[str]
    ) -> tuple[Params, Sequence[Tensor]]:
        """The same with torch.func, which works inside vmap; parameters not in `names` are constants."""

        def loss(trained: Sequence[Tensor]) -> tuple[Tensor, tuple[Any, ...]]:
            before, self.trace = self.trace, Trace()
            losses = self._losses(terms, {**params, **dict(zip(names, trained, strict=True))})
            trace, self.trace = self.trace, before
            return precision.scaled(_add_up(losses)), (losses, trace.buffers, trace.carried, trace.logs)

        precision = self.model.precision
        gradients, (losses, buffers, carried, logs) = torch.func.grad(loss, has_aux=True)([params[n] for n in names])
        if self.trace.buffers is None:
            self.trace.buffers = buffers
        self.trace.carried = carried | self.trace.carried
        self.trace.logs |= logs
        return precision.unscaled(dict(zip(names, gradients, strict=True))), losses

    def _losses(self, terms: Sequence[Term], params: Params, head_only: bool = False) -> list[Tensor]:
        """The values of the terms."""
        output = self._output(params, head_only)
        return [term.scalar_loss(output, params, self) for term in terms]

    def _record(self, terms: Sequence[Term], losses: Sequence[Tensor]) -> None:
        """Record the training loss and its terms; NaN counts as infinite, so it shows in the mean."""
        # A copy: the run keeps it, and the loss itself lies between the large blocks of the pass, which it would split.
        self.trace.loss = _add_up(losses).clone()
        for term, value in zip(terms, losses, strict=True) if len(terms) > 1 else ():
            self.log(f"train_loss/{term.name}", torch.where(value.isnan(), torch.inf, value))

    def _output(self, params: Params, head_only: bool) -> Output:
        """The training pass.

        A head-only gradient does not use the body's graph, so the features are cached for the next full gradient at
        the same body. Cached features are used once.
        """
        buffers = {name: value.clone() for name, value in self.buffers.items()}
        weights = Weights(params, buffers)
        body = [value for name, value in params.items() if name.startswith("body.")]
        if self._cached is not None and all(new is old for new, old in zip(body, self._cached[0], strict=True)):
            features = self._cached[1]
        else:
            features = self.model.features(weights, self.batch.inputs, train=True)
        cache = head_only and not self.functional
        self._cached = (body, features) if cache else None
        if cache:
            features = features.detach()
        logits = self.model.classify(weights, features, train=True)
        if self.trace.buffers is None:
            # The step's first pass is at the client's own weights (a rule that perturbs them calls `track` before);
            # later, perturbed passes do not change the buffers.
            self.trace.buffers = buffers
        return Output(features, logits)


def _add_up(losses: Sequence[Tensor]) -> Tensor:
    """The sum of scalars; a single one as it is, because every operation inside vmap costs time."""
    return losses[0] if len(losses) == 1 else torch.stack(list(losses)).sum()


@dataclass(frozen=True, kw_only=True)
class Local:
    """A client after its local steps.

    Args:
        client: The client.
        weights: The weights after training.
        steps: Number of local steps.
        carried: What parts carried over from the last step, by part name.

    Example:
        ```python
        norm = tree.norm(local.delta)
        ```
    """

    client: Client
    weights: Weights
    steps: int
    carried: Tree = field(default_factory=dict)

    @cached_property
    def delta(self) -> Params:
        """The change of each parameter."""
        return {name: value - self.client.origin.params[name] for name, value in self.weights.params.items()}

    @cached_property
    def drift(self) -> Params:
        """The change of each parameter that is not private."""
        private = self.client.memory.get("sharing", {})
        return {name: value for name, value in self.delta.items() if name not in private}


@dataclass(frozen=True, kw_only=True)
class Upload:
    """What a client returns after local training.

    Args:
        delta: Change of the shared parameters.
        buffers: Running statistics.
        examples: Number of the client's examples.
        steps: Number of local steps.
        effective_steps: Equivalent number of plain SGD steps, if a part needs it.
        extras: What parts upload in addition, by part name.
        metrics: Metrics of local training, such as "train_loss".
        broken_step: The first local step whose loss was not finite.

    Example:
        ```python
        total = tree.accumulate(total, upload.delta, upload.examples)
        ```
    """

    delta: Params
    buffers: Params
    examples: int
    steps: int
    effective_steps: float
    extras: Tree
    metrics: dict[str, float]
    broken_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Server:
    """The server between rounds.

    Args:
        weights: The global model.
        memory: State of parts on the server, by part name.

    Example:
        ```python
        server = server.with_params(tree.scale(server.weights.params, 0.99))
        ```
    """

    weights: Weights
    memory: Tree

    def with_params(self, params: Params) -> Server:
        """The server with other parameters.

        Args:
            params: The new parameters.

        Returns:
            A new server.
        """
        return replace(self, weights=Weights(params, self.weights.buffers))

    def with_memory(self, part: str, memory: Tree) -> Server:
        """The server with other state of one part.

        Args:
            part: The part's name.
            memory: The new state.

        Returns:
            A new server.
        """
        return replace(self, memory={**self.memory, part: memory})
