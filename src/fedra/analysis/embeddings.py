"""Embeddings: what a model's body makes of examples, with their labels and owners."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedra.core.random import generator
from fedra.errors import DataError
from fedra.losses.angle import normalize


@dataclass(frozen=True)
class Embeddings:
    """Features (N, d), labels (N,), the clients (N,) that hold the examples where that is known, and class names."""

    features: Tensor
    labels: Tensor
    clients: Tensor | None = None
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def check(self, where: str) -> None:
        """Refuse features, labels and clients that do not fit together; `where` starts the sentence."""
        if self.features.dim() != 2 or not self.features.is_floating_point() or not self.features.numel():
            found = f"{self.features.dtype} of shape {tuple(self.features.shape)}"
            raise DataError(f"{where} holds features {found}: they must be floats (N, d)")
        for name, values in (("labels", self.labels), ("clients", self.clients)):
            if values is not None and (values.shape != (len(self.features),) or values.is_floating_point()):
                found = f"{values.dtype} of shape {tuple(values.shape)}"
                raise DataError(f"{where} holds {name} {found}: they must be {len(self.features)} integers")
        if not torch.isfinite(self.features).all():
            raise DataError(f"{where} holds features that are not finite: the model has diverged")
        if int(self.labels.min()) < 0 or (self.classes and int(self.labels.max()) >= len(self.classes)):
            wanted = f"0 to {len(self.classes) - 1}" if self.classes else "0 or above"
            raise DataError(f"{where} holds labels outside the classes: they must be {wanted}")

    def normalized(self) -> Embeddings:
        """The same with features of unit length; a zero feature has no direction and stays zero."""
        return replace(self, features=normalize(self.features))

    def rows(self, chosen: Tensor) -> Embeddings:
        """Some of the examples."""
        clients = None if self.clients is None else self.clients[chosen]
        return replace(self, features=self.features[chosen], labels=self.labels[chosen], clients=clients)

    def sample(self, most: int, seed: int) -> Embeddings:
        """At most that many examples, drawn by the seed and kept in order; equal numbers give equal rows."""
        if len(self) <= most:
            return self
        return self.rows(torch.randperm(len(self), generator=generator(seed, "sample"))[:most].sort().values)
