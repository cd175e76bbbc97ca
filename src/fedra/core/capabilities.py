"""What a part can do beyond its slot: small classes to inherit from, which the engine asks for by `isinstance`.

A part that keeps nothing, brings nothing and asks for nothing inherits from its slot's class alone. All methods are
pure; what a part keeps lives under its name.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedra.core.tree import Params, Tree

if TYPE_CHECKING:
    from fedra.core.algorithm import Algorithm
    from fedra.core.model import Weights
    from fedra.core.optimizer import Optimizer
    from fedra.core.view import Client, Local, Population, Server, Upload, View


class Sizes(NamedTuple):
    """The length of a feature vector, the number of classes, and that of public classes."""

    features: int
    classes: int
    public: int = 0


class OwnParams:
    """Parameters of the part's own: trained and shared like the model's, under the names `<part>.<name>`."""

    def init_params(self, sizes: Sizes, draw: torch.Generator) -> Params:
        """The parameters before the first round."""
        raise TypeError(f"{type(self).__name__} must define init_params")


class AsksClients:
    """A start rule that asks every client for the first rows of its classes."""

    def first_rows(self, features: Tensor, targets: Tensor, classes: int) -> Params:
        """Rows for a client's classes, by the names of the model's parameters.

        `features` are those of its examples under the start model, `targets` its own numbers of their classes.
        """
        raise TypeError(f"{type(self).__name__} must define first_rows")


class ClientState:
    """A memory that a client keeps from round to round, and extras that it sends."""

    name: ClassVar[str]
    suits_pool: ClassVar[bool] = False  # whether the memory makes sense for all examples in one

    @property
    def remembers(self) -> bool:
        """Whether there is anything to remember or to send with these fields."""
        return True

    def init_client(self, origin: Weights) -> Tree:
        """The memory of a client that takes part for the first time."""
        return {}

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        """The client's new memory, and what to upload beside the model: the same names and shapes from all clients."""
        return local.client.memory.get(self.name, {}), {}


class ServerState:
    """A memory that the server keeps from round to round, and what it sends of it."""

    def init_server(self, weights: Weights) -> Tree:
        """The memory before the first round."""
        return {}

    def broadcast(self, memory: Tree) -> Tree:
        """What of the memory every client receives beside the model."""
        return {}


class CollectsUploads:
    """Something that the server makes of the uploads beside their average."""

    @property
    def collects(self) -> bool:
        """Whether there is anything to collect with these fields."""
        return True

    def collect(self, total: Tree, upload: Upload) -> Tree:
        """Fold one upload into what `finish_round` will need; memory must not grow with the cohort."""
        return total

    def finish_round(self, before: Server, server: Server, total: Tree, population: Population) -> Server:
        """The server after the average: `before` is the round's start, `server` what the parts so far made."""
        return server


class StepState:
    """What the part carries from one local step to the next; `view.carry` hands it on."""

    def init_steps(self, client: Client) -> Tree:
        """What it carries into the first step."""
        raise TypeError(f"{type(self).__name__} must define init_steps")


class StepDraws:
    """Random numbers for every local step, drawn by all runners alike, outside of vmap."""

    def draw(self, examples: int, generator: torch.Generator) -> Tree:
        """One row for each of the batch's examples, found in `view.batch.drawn[self.name]`.

        The generator is this part's own for the client and the round.
        """
        raise TypeError(f"{type(self).__name__} must define draw")


class LooksBack:
    """The part compares the weights with those the round began with, which centralized training has not."""


class Teachers(LooksBack):
    """Frozen models whose outputs the part wants on every batch."""

    def teachers(self, client: Client) -> dict[str, Weights]:
        """The models by name; what they say is found in `view.teachers[self.name]`."""
        raise TypeError(f"{type(self).__name__} must define teachers")


class TrainsBeside:
    """Something of the client's own that is trained beside the model, in every local step of the rounds."""

    def beside(self, algorithm: Algorithm, params: Params, view: View) -> None:
        """Train it: asked after the step's gradient at `params` is known.

        It reads `view.carried`, hands on by `view.carry`, and can change nothing of the model's course.
        """
        raise TypeError(f"{type(self).__name__} must define beside")


class ChecksTraining:
    """Some ways of local training make no sense with the part."""

    def check_training(self, optimizer: Optimizer, epochs: int) -> None:
        """Refuse, with a sentence, an optimizer or a number of local epochs."""
        raise TypeError(f"{type(self).__name__} must define check_training")


class CountsSteps(ChecksTraining):
    """The part divides by the client's effective number of local steps."""

    def check_training(self, optimizer: Optimizer, epochs: int) -> None:
        optimizer.effective_steps(1)


KEEPS_STATE = (OwnParams, ClientState, ServerState, StepState, StepDraws)
"""Capabilities whose values are kept under the part's name, which two different parts of one name would share."""

_ALL = (*KEEPS_STATE, AsksClients, CollectsUploads, Teachers, TrainsBeside, ChecksTraining)
HOOKS = {name: kind for kind in _ALL for name, value in vars(kind).items() if inspect.isfunction(value)}
"""The methods by which a capability is used, and whose they are."""
