"""Embeddings of examples, with their labels and clients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedra.core.random import generator
from fedra.errors import DataError
from fedra.losses.angle import normalize


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of examples, with their labels and clients.

    Args:
        features: Embeddings (N, d).
        labels: Class indices (N,).
        clients: Indices (N,) of the clients that hold the examples; None (the default) if they are not known.
        classes: Names of the classes; () (the default) if they have none.

    Example:
        >>> found = Embeddings(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([0, 1]))
        >>> found.normalized().features[0]
        tensor([0.6000, 0.8000])
    """

    features: Tensor
    labels: Tensor
    clients: Tensor | None = None
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def check(self, where: str) -> None:
        """Raise an error if features, labels and clients do not fit together.

        Args:
            where: What holds them, for the message.
        """
        if self.features.dim() != 2 or not self.features.is_floating_point() or not self.features.numel():
            found = f"{self.features.dtype} of shape {tuple(self.features.shape)}"
            raise DataError(f"features of {where} must be floats of shape (N, d), got {found}")
        for name, values in (("labels", self.labels), ("clients", self.clients)):
            if values is not None and (values.shape != (len(self.features),) or values.is_floating_point()):
                found = f"{values.dtype} of shape {tuple(values.shape)}"
                raise DataError(f"{name} of {where} must be {len(self.features)} integers, got {found}")
        if not torch.isfinite(self.features).all():
            raise DataError(f"features of {where} must be finite, got inf or NaN: the model has diverged")
        if int(self.labels.min()) < 0 or (self.classes and int(self.labels.max()) >= len(self.classes)):
            wanted = f"between 0 and {len(self.classes) - 1}" if self.classes else "0 or above"
            found = f"{int(self.labels.min())} to {int(self.labels.max())}"
            raise DataError(f"labels of {where} must be {wanted}, got {found}")

    def normalized(self) -> Embeddings:
        """Return the same examples with embeddings of unit length; a zero embedding has no direction and stays zero."""
        return replace(self, features=normalize(self.features))

    def rows(self, chosen: Tensor) -> Embeddings:
        """Return some of the examples.

        Args:
            chosen: Their indices, or a mask (N,).

        Returns:
            The selected examples.
        """
        clients = None if self.clients is None else self.clients[chosen]
        return replace(self, features=self.features[chosen], labels=self.labels[chosen], clients=clients)

    def sample(self, most: int, seed: int) -> Embeddings:
        """Return at most `most` examples, in their order; equal seeds and numbers of examples select equal rows.

        Args:
            most: Largest number of examples.
            seed: Seed of the draw.

        Returns:
            The selected examples; all of them if there are no more than `most`.
        """
        if len(self) <= most:
            return self
        return self.rows(torch.randperm(len(self), generator=generator(seed, "sample"))[:most].sort().values)
