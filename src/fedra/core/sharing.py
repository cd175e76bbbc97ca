"""The part that selects which parameters are averaged, private, frozen or owned by classes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedra.core.capabilities import ClientState, CollectsUploads
from fedra.core.model import Weights
from fedra.core.part import Part
from fedra.core.tree import Params, Tree
from fedra.core.view import Local, Population, Server, Upload
from fedra.errors import ConfigError, nearest

CLASSES = "classes"
"""Key under which the server adds the classes of returned rows to an upload; clients do not send them."""


@dataclass(frozen=True)
class Sharing(Part, ClientState, CollectsUploads):
    """Which parameters are private, frozen or owned, by prefix of their names; all others are averaged.

    Running statistics follow the prefix of their layer. Parameters that are both owned and private are received once
    and stay with the client.

    Args:
        private: Parameters that stay with the client between rounds and are never uploaded.
        frozen: Parameters that are neither trained nor uploaded.
        owned: Parameters whose rows belong to classes, such as the class vectors of a head. A client receives, trains
            and uploads only the rows of its own classes.

    Example:
        ```python
        algorithm = fedra.algorithms.fedavg().plus(Sharing(private=("head.",)))  # FedPer
        ```
    """

    private: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    owned: tuple[str, ...] = ()
    formula: ClassVar[str] = (
        "averaged: all parameters except those whose names start with a private, frozen or owned prefix"
    )

    @property
    def kept(self) -> tuple[str, ...]:
        """Private and owned prefixes."""
        return self.private + self.owned

    @property
    def has_state(self) -> bool:
        return bool(self.kept)

    @property
    def collects(self) -> bool:
        return bool(self.owned)

    def is_private(self, name: str) -> bool:
        """Whether the parameter or buffer stays with the client."""
        return name.startswith(self.private) if self.private else False

    def is_frozen(self, name: str) -> bool:
        """Whether the parameter is never trained."""
        return name.startswith(self.frozen) if self.frozen else False

    def is_owned(self, name: str) -> bool:
        """Whether the parameter's rows belong to classes."""
        return name.startswith(self.owned) if self.owned else False

    def is_returned(self, name: str) -> bool:
        """Whether its rows are sent to their owners in every round, and uploaded unless they are frozen."""
        return self.is_owned(name) and not self.is_private(name)

    def is_averaged(self, name: str) -> bool:
        """Whether the parameter or buffer is averaged over clients."""
        return not (self.is_private(name) or self.is_frozen(name) or self.is_owned(name))

    def trained(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names of trained parameters among `names`."""
        return tuple(name for name in names if not self.is_frozen(name))

    def averaged(self, values: Params) -> Params:
        """The averaged entries of `values`."""
        return {name: value for name, value in values.items() if self.is_averaged(name)}

    def common(self, weights: Weights) -> Weights:
        """What all clients receive: everything except rows that belong to classes."""
        return Weights({n: value for n, value in weights.params.items() if not self.is_owned(n)}, weights.buffers)

    def traveling(self, weights: Weights) -> Weights:
        """What is sent to every client in a round: without private and frozen values, which clients already have."""
        return Weights(self.averaged(weights.params), self.averaged(weights.buffers))

    def rows_for(self, weights: Weights, classes: Tensor) -> Params:
        """The rows of these classes, which the server sends to their owner alone."""
        return {n: value[classes.to(value.device)] for n, value in weights.params.items() if self.is_owned(n)}

    def put_in(self, origin: Weights, rows: Params, memory: Tree) -> Tree:
        """A client's state with the rows that it received; what it keeps private stays as it is."""
        stored = {n: value for n, value in memory.get(self.name, {}).items() if self.is_private(n)}
        return {**memory, self.name: {**self._private(origin), **rows, **stored}}

    def received(self, origin: Weights, memory: Tree) -> Weights:
        """The model that a client starts from: the common model with the client's own values."""
        return with_client_values(origin, memory[self.name] if self.name in memory else self._private(origin))

    def init_client(self, origin: Weights) -> Tree:
        return self._private(origin)

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        sent = {n: local.weights.params[n] for n in local.client.trained if self.is_returned(n)}
        return self._private(local.weights), sent

    def collect(self, total: Tree, upload: Upload) -> Tree:
        sent = upload.extras.get(self.name)
        return {**total, str(len(total)): sent} if sent else total

    def finish_round(self, before: Server, server: Server, total: Tree, population: Population) -> Server:
        """Store the returned rows; a class with several owners gets the unweighted mean."""
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

    def fitting(self, names: Iterable[str]) -> Sharing:
        """The same sharing without prefixes that match none of `names`, which may themselves be prefixes."""
        names = tuple(names)

        def present(prefixes: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(p for p in prefixes if any(name.startswith(p) or p.startswith(name) for name in names))

        return replace(self, private=present(self.private), frozen=present(self.frozen), owned=present(self.owned))

    def check_parameters(self, params: Params, model: Iterable[str], classes: int | None) -> None:
        """Raise if a prefix matches nothing, all parameters are frozen, or owned rows do not match the classes.

        `model` are the names of the model's parameters; `classes` is None if clients do not own classes.
        """
        for prefix in (*self.private, *self.frozen, *self.owned):
            if not any(name.startswith(prefix) for name in params):
                layers = {name.rpartition(".")[0] + "." for name in params} | {"body.", "head."}
                raise ConfigError(
                    f"sharing prefixes must match a parameter of the model, got '{prefix}': {nearest(prefix, layers)}"
                )
        if all(map(self.is_frozen, model)):
            raise ConfigError("at least one parameter of the model must be trained, got all frozen: freeze fewer")
        for name, value in params.items():
            if self.is_owned(name) and len(value) != classes:
                raise ConfigError(
                    f"owned parameters must have one row per class, got '{name}' of shape {tuple(value.shape)}: own "
                    "only 'head.'"
                )

    def _private(self, weights: Weights) -> Tree:
        return {name: value for group in weights for name, value in group.items() if self.is_private(name)}


def with_client_values(weights: Weights, own: Params) -> Weights:
    """The weights with the client's own values: private parameters, and the rows of its classes."""
    buffers = {name: own.get(name, value) for name, value in weights.buffers.items()}
    params = {name: value for name, value in own.items() if name not in buffers}
    return Weights({**weights.params, **params}, buffers)
