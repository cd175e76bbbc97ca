"""The part that says which parameters are averaged, private, frozen or owned by classes."""

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
"""Under this name the server adds to an upload which classes its rows belong to: no client says so itself."""


@dataclass(frozen=True)
class Sharing(Part, ClientState, CollectsUploads):
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

    @property
    def kept(self) -> tuple[str, ...]:
        """What is not everybody's: private and owned prefixes."""
        return self.private + self.owned

    @property
    def remembers(self) -> bool:
        return bool(self.kept)

    @property
    def collects(self) -> bool:
        return bool(self.owned)

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

    def trained(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the names that move in local steps."""
        return tuple(name for name in names if not self.is_frozen(name))

    def averaged(self, values: Params) -> Params:
        """Those of the values that are averaged."""
        return {name: value for name, value in values.items() if self.is_averaged(name)}

    def common(self, weights: Weights) -> Weights:
        """What all clients receive: everything but the rows that belong to classes."""
        return Weights({n: value for n, value in weights.params.items() if not self.is_owned(n)}, weights.buffers)

    def traveling(self, weights: Weights) -> Weights:
        """What of it every client is sent in a round: not what is private or frozen, which clients have already."""
        return Weights(self.averaged(weights.params), self.averaged(weights.buffers))

    def delivered(self, weights: Weights, memory: Tree, classes: Tensor) -> Tree:
        """What one client remembers, with the rows of its classes put in: nothing else of theirs ever reaches it."""
        rows = {n: value[classes.to(value.device)] for n, value in weights.params.items() if self.is_owned(n)}
        first = {**self._private(weights), **rows}
        kept = {n: value for n, value in memory.get(self.name, {}).items() if self.is_private(n)}
        return {**memory, self.name: {**first, **kept}}

    def received(self, origin: Weights, memory: Tree) -> Weights:
        """The model that a client begins with: what all received, and what it remembers of it in its place."""
        return with_own(origin, memory[self.name] if self.name in memory else self._private(origin))

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

    def fitting(self, names: Iterable[str]) -> Sharing:
        """The same without what it says of parameters that are not there; a name may be a whole layer's beginning."""
        names = tuple(names)

        def there(prefixes: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(p for p in prefixes if any(name.startswith(p) or p.startswith(name) for name in names))

        return replace(self, private=there(self.private), frozen=there(self.frozen), owned=there(self.owned))

    def check_parameters(self, params: Params, model: Iterable[str], classes: int | None) -> None:
        """Refuse prefixes that name nothing, a model without a trained parameter, and rows that no class can own.

        `model` are the names of the model's own parameters; `classes` is None where no client owns any.
        """
        for prefix in (*self.private, *self.frozen, *self.owned):
            if not any(name.startswith(prefix) for name in params):
                layers = {name.rpartition(".")[0] + "." for name in params} | {"body.", "head."}
                raise ConfigError(f"no parameter of the model begins with '{prefix}': {nearest(prefix, layers)}")
        if all(map(self.is_frozen, model)):
            raise ConfigError("every parameter of the model is frozen, so nothing would be trained: freeze less")
        for name, value in params.items():
            if self.is_owned(name) and len(value) != classes:
                raise ConfigError(
                    f"the parameter '{name}' of shape {tuple(value.shape)} does not have one row per class, so its "
                    "rows cannot belong to clients: own 'head.' alone"
                )

    def _private(self, weights: Weights) -> Tree:
        return {name: value for group in weights for name, value in group.items() if self.is_private(name)}


def with_own(weights: Weights, own: Params) -> Weights:
    """The weights with what is the client's own in its place: private parameters, and the rows of its classes."""
    buffers = {name: own.get(name, value) for name, value in weights.buffers.items()}
    mine = {name: value for name, value in own.items() if name not in buffers}
    return Weights({**weights.params, **mine}, buffers)
