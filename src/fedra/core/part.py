"""The parts an algorithm is made of: what each kind may do, and when it is asked."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedra.core.model import Output, Weights
from fedra.core.optimizer import Optimizer
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Client, Local, Population, Server, Upload, View
from fedra.registry import checked_value, class_fields

if TYPE_CHECKING:
    from fedra.core.algorithm import Algorithm

GradientFunction = Callable[[Params], Params]

CLASSES = "classes"
"""Under this name the server adds to an upload which classes its rows belong to: no client says so itself."""

KNOWN: dict[str, type[Part]] = {}
"""Every part class by its name, so that a configuration can name it; a class joins by being defined."""


@dataclass(frozen=True)
class Part:
    """One choice. Hyper-parameters are its fields; every hook is optional and pure; state lives under `name`."""

    name: ClassVar[str] = "part"
    formula: ClassVar[str] = ""
    counts_steps: ClassVar[bool] = False  # whether it divides by the client's effective number of steps
    suits_pool: ClassVar[bool] = False  # whether what it remembers of a client makes sense for all examples in one
    looks_back: ClassVar[bool] = False  # whether it compares the weights with those the round began with

    def __init_subclass__(cls, abstract: bool = False) -> None:
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()
        if not abstract:
            KNOWN[cls.name] = cls

    def __post_init__(self) -> None:
        """Every field is checked against its annotation, whoever makes the part."""
        for name, known in class_fields(type(self)).items():
            checked_value(f"the part '{self.name}'", known, getattr(self, name))

    def nested(self) -> tuple[Part, ...]:
        """The parts this part owns: those among its fields."""
        values = (getattr(self, item.name) for item in fields(self))
        return tuple(value for value in values if isinstance(value, Part))

    def init_params(self, features: int, classes: int, draw: torch.Generator) -> Params:
        """Parameters of this part's own: trained and shared like the model's, under the names `<part>.<name>`."""
        return {}

    def init_weights(self, params: Params, draw: torch.Generator) -> Params:
        """The model's first parameters as this part wants them."""
        return params

    def init_public(self, features: int, classes: int, draw: torch.Generator) -> Params:
        """The same as `init_params` for parameters that belong to the classes of public examples."""
        return {}

    def first_rows(self, features: Tensor, targets: Tensor, classes: int) -> Params:
        """What a client tells before the first round: rows for its classes, by the names of the model's parameters.

        `features` are those of its examples under the start model, `targets` its own numbers of their classes.
        """
        return {}

    def first_public(self, features: Tensor, targets: Tensor, classes: int) -> Params:
        """The same of the public examples, which the server looks at itself."""
        return {}

    def choose_public(self, own: Tensor, public: Tensor) -> Tensor:
        """Which public examples (a truth value each) a client trains on in a round beside its own.

        Both are looked at through the received body: `own` (n, d) and `public` (N, d) are features.
        """
        return public.new_zeros(len(public), dtype=torch.bool)

    def init_client(self, origin: Weights) -> Tree:
        """The memory of a client that takes part for the first time."""
        return {}

    def init_server(self, weights: Weights) -> Tree:
        """What the server keeps for this part before the first round."""
        return {}

    def broadcast(self, memory: Tree) -> Tree:
        """What of the server's memory every client receives beside the model."""
        return {}

    def teachers(self, client: Client) -> dict[str, Weights]:
        """Frozen models whose outputs this part wants on every batch, in `view.teachers[self.name]`."""
        return {}

    def init_steps(self, client: Client) -> Tree:
        """What this part carries from one local step to the next, before the first; `view.carry` hands it on."""
        return {}

    def draw(self, examples: int, generator: torch.Generator) -> Tree:
        """Random numbers for one local step, a row for each of the batch's examples, in `view.batch.drawn[self.name]`.

        The generator is this part's own for the client and the round. All runners draw alike, outside of vmap.
        """
        return {}

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        """The client's new memory, and what to upload beside the model: the same names and shapes from all clients."""
        return local.client.memory.get(self.name, {}), {}

    def collect(self, total: Tree, upload: Upload) -> Tree:
        """Fold one upload into what `finish_round` will need; memory must not grow with the cohort."""
        return total

    def finish_round(self, before: Server, server: Server, total: Tree, population: Population) -> Server:
        """The server after the average: `before` is the round's start, `server` what the parts so far made."""
        return server

    def check(self, algorithm: Algorithm) -> None:
        """Refuse, with a sentence, an algorithm in which this part makes no sense."""

    def check_training(self, optimizer: Optimizer, epochs: int) -> None:
        """Refuse, with a sentence, a local optimiser or a number of local epochs with which it makes no sense."""
        if self.counts_steps:
            optimizer.effective_steps(1)

    @property
    def stateful(self) -> bool:
        """Whether the part keeps anything between rounds or steps, so that two of its class would share a key."""
        hooks = ("init_params", "init_client", "init_server", "init_steps", "draw")
        return any(getattr(type(self), hook) is not getattr(Part, hook) for hook in hooks)


class Term(Part, abstract=True):
    """A summand of the local objective. A `closed_form` term depends on the parameters alone and adds its
    gradient itself, which costs no graph.

    `fits_labels` marks a loss of the labels, such as a margin softmax; `is_plain` marks FedAvg's own, the
    cross-entropy, which yields to any other when algorithms are joined.
    """

    fits_labels: ClassVar[bool] = False
    is_plain: ClassVar[bool] = False
    closed_form: ClassVar[bool] = False
    moves_head: ClassVar[bool] = True  # whether its gradient with respect to the head can differ from zero

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        """The mean loss on the batch (of a closed-form term: its value at `params`)."""
        raise TypeError(f"{type(self).__name__} must define loss")

    def add_gradient(self, gradient: Params, params: Params, view: View) -> None:
        """Add this term's gradient to `gradient`, in place and for the names it holds."""
        raise TypeError(f"{type(self).__name__} is not a closed-form term")


class GradientRule(Part, abstract=True):
    """A transformation of the gradient function: where the gradient is taken and how it is corrected."""

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        """The gradient to step along; `inner` is the gradient function of everything inside this rule."""
        raise TypeError(f"{type(self).__name__} must define gradient")


class Combine(Part, abstract=True):
    """How uploads become one change of the model: a running fold over them.

    `is_plain` marks FedAvg's own rule, which yields to any other when algorithms are joined.
    """

    is_plain: ClassVar[bool] = False

    def start(self) -> Tree:
        """The empty fold."""
        return {}

    def add(self, total: Tree, upload: Upload) -> Tree:
        """Fold in one upload."""
        raise TypeError(f"{type(self).__name__} must define add")

    def add_stack(self, total: Tree, uploads: Uploads) -> Tree:
        """Fold in a stack of uploads: one after the other, unless the rule knows a quicker way."""
        for upload in uploads:
            total = self.add(total, upload)
        return total

    def finish(self, total: Tree) -> Weights:
        """The combined change of the parameters, and the combined buffers."""
        raise TypeError(f"{type(self).__name__} must define finish")


class ServerRule(Part, abstract=True):
    """What the server does after the average, in `finish_round`."""


@dataclass(frozen=True)
class Sharing(Part):
    """Which parameters are averaged, private, frozen or owned, by prefix of their names; the rest is averaged.

    `private` stay with the client between rounds and are never sent; `frozen` are never trained nor sent. Running
    statistics go with the layer they belong to. The rows of `owned` ones belong to classes, such as a head's class
    embeddings: a client receives, trains and returns the rows of its own classes and no other. What is owned and
    private it receives once and keeps.
    """

    private: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    owned: tuple[str, ...] = ()
    formula: ClassVar[str] = (
        "averaged: all parameters but those whose names begin with a private, frozen or owned prefix"
    )

    def common(self, weights: Weights) -> Weights:
        """What all clients receive: everything but the rows that belong to classes."""
        return Weights({n: value for n, value in weights.params.items() if not self.is_owned(n)}, weights.buffers)

    def travelling(self, weights: Weights) -> Weights:
        """What of it every client is sent in a round: not what is private or frozen, which clients have already."""
        return Weights(*({n: value for n, value in group.items() if self.is_averaged(n)} for group in weights))

    def delivered(self, weights: Weights, memory: Tree, classes: Tensor) -> Tree:
        """What one client remembers, with the rows of its classes put in: nothing else of theirs ever reaches it."""
        rows = {n: value[classes.to(value.device)] for n, value in weights.params.items() if self.is_owned(n)}
        first = {**self._private(weights), **rows}
        kept = {n: value for n, value in memory.get(self.name, {}).items() if self.is_private(n)}
        return {**memory, self.name: {**first, **kept}}

    def init_client(self, origin: Weights) -> Tree:
        return self._private(origin)

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        sent = {n: local.weights.params[n] for n in local.client.trained if self.is_returned(n)}
        return self._private(local.weights), sent

    def collect(self, total: Tree, upload: Upload) -> Tree:
        sent = upload.extras.get(self.name)
        return {**total, str(len(total)): sent} if sent else total

    def finish_round(self, before: Server, server: Server, total: Tree, population: Population) -> Server:
        """Returned rows take their places; of a class that several clients hold, their plain mean."""
        if not total:
            return server
        params, sent = dict(server.weights.params), list(total.values())
        for name in sent[0].keys() - {CLASSES}:
            classes = torch.cat([one[CLASSES] for one in sent]).to(params[name].device)
            rows = torch.cat([one[name] for one in sent]).to(params[name])
            sums = torch.zeros_like(params[name]).index_add_(0, classes, rows)
            owners = classes.bincount(minlength=len(sums)).view(-1, *[1] * (sums.dim() - 1))
            params[name] = torch.where(owners > 0, sums / owners.clamp(min=1), params[name])
        return server.with_params(params)

    def _private(self, weights: Weights) -> Tree:
        return {name: value for group in weights for name, value in group.items() if self.is_private(name)}

    def is_private(self, name: str) -> bool:
        return name.startswith(self.private) if self.private else False

    def is_frozen(self, name: str) -> bool:
        return name.startswith(self.frozen) if self.frozen else False

    def is_owned(self, name: str) -> bool:
        return name.startswith(self.owned) if self.owned else False

    def is_returned(self, name: str) -> bool:
        """Whether its rows travel: received by their owners in every round, and sent back unless they are frozen."""
        return self.is_owned(name) and not self.is_private(name)

    def is_averaged(self, name: str) -> bool:
        return not (self.is_private(name) or self.is_frozen(name) or self.is_owned(name))
