"""The parts an algorithm is made of: what each kind does in its slot. What more a part can do is in `capabilities`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedra.core.capabilities import HOOKS
from fedra.core.model import Output, Weights
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Population, Server, Upload, View
from fedra.errors import ConfigError
from fedra.registry import checked_value, class_fields

if TYPE_CHECKING:
    from fedra.core.algorithm import Algorithm

GradientFunction = Callable[[Params], Params]

_KNOWN: dict[str, type[Part]] = {}
"""Every part class by its name; a class joins by being defined."""


def known_parts() -> dict[str, type[Part]]:
    """Every part class by its name, so that a configuration can name it: fedra's own and those defined since."""
    importlib.import_module("fedra.algorithms")  # defines all of fedra's own, whatever was imported before
    return dict(_KNOWN)


@dataclass(frozen=True)
class Part:
    """One choice. Hyper-parameters are its fields; every method is pure; what it keeps lives under `name`."""

    name: ClassVar[str] = "part"
    formula: ClassVar[str] = ""

    def __init_subclass__(cls, abstract: bool = False, name: str | None = None) -> None:
        """Give the class its name, and make it known by it unless it is a kind of parts."""
        cls.name = name or re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()
        _refuse_unasked(cls)
        if not abstract:
            _register(cls)

    def __post_init__(self) -> None:
        """Every field is checked against its annotation, whoever makes the part."""
        for name, known in class_fields(type(self)).items():
            checked_value(f"the part '{self.name}'", known, getattr(self, name))

    def nested(self) -> tuple[Part, ...]:
        """The parts this part owns: those among its fields."""
        values = (getattr(self, item.name) for item in fields(self))
        return tuple(value for value in values if isinstance(value, Part))

    def check(self, algorithm: Algorithm) -> None:
        """Refuse, with a sentence, an algorithm in which this part makes no sense."""


def _refuse_unasked(kind: type[Part]) -> None:
    """Refuse a method of a capability that the class does not have: nobody would ever call it."""
    for name in vars(kind).keys() & HOOKS.keys():
        capability = HOOKS[name]
        if not issubclass(kind, capability):
            bases = ", ".join([*(base.__name__ for base in kind.__bases__), capability.__name__])
            raise ConfigError(
                f"the part {kind.__name__} defines {name} without {capability.__name__}, so it would never be called: "
                f"write class {kind.__name__}({bases}), or rename the method"
            )


def _register(kind: type[Part]) -> None:
    """Make a part known by its name. Defining the very same class again, as a notebook does, replaces it."""
    if not kind.__module__.startswith("fedra."):
        known_parts()  # a name is taken whether or not fedra's own part was imported before
    present = _KNOWN.get(kind.name)
    if present and (present.__module__, present.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ConfigError(
            f"the part '{kind.name}' ({kind.__module__}.{kind.__qualname__}) has the name of "
            f"{present.__module__}.{present.__qualname__}: rename the class, or give it a name by "
            f'class {kind.__name__}(..., name="...")'
        )
    _KNOWN[kind.name] = kind


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

    def scalar_loss(self, output: Output, params: Params, view: View) -> Tensor:
        """The loss, or a sentence about one that is not a number."""
        loss = self.loss(output, params, view)
        if isinstance(loss, Tensor) and not loss.dim():
            return loss
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ConfigError(
            f"loss of the part '{self.name}' must return one number, got {got}: take means by view.batch.mean"
        )

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
    """A step of the server after the average."""

    def update(self, before: Server, server: Server, population: Population) -> Server:
        """The server after the step: `before` is the round's start, `server` what the rules so far made."""
        raise TypeError(f"{type(self).__name__} must define update")


class StartRule(Part, abstract=True):
    """How weights begin."""

    def init_weights(self, params: Params, draw: torch.Generator) -> Params:
        """The model's first parameters as this rule wants them, before anybody looks at data."""
        return params
