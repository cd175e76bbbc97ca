"""Federated averaging in plain PyTorch, written without fedra: the baseline of `engine.py` and the peers' model.

McMahan et al.'s CNN on random 1 x 28 x 28 images, or an MLP on many small clients (`SMALL`). This file imports torch
alone, so that it runs in the peers' own environments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.multiprocessing
import torch.nn.functional as F
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]
CLASSES = 10
WIDTH = 64
"""Inputs and hidden units of the MLP."""


@dataclass(frozen=True)
class Work:
    """One round: every client goes over its images once, by plain SGD."""

    clients: int = 10
    images: int = 600
    batch: int = 50
    lr: float = 0.01
    shape: tuple[int, ...] = (1, 28, 28)

    @classmethod
    def sized(cls, quick: bool) -> Work:
        """The benchmark's size, or a tiny one."""
        return cls(clients=4, images=20, batch=10) if quick else cls()

    def data(self) -> list[Pair]:
        """The clients' images and labels, the same at every call."""
        draw = torch.Generator().manual_seed(0)
        return [
            (
                torch.randn(self.images, *self.shape, generator=draw),
                torch.randint(CLASSES, (self.images,), generator=draw),
            )
            for _ in range(self.clients)
        ]

    def network(self) -> nn.Module:
        """The CNN for images, the MLP for vectors."""
        return cnn() if len(self.shape) == 3 else mlp()


SMALL = Work(clients=1000, images=20, batch=10, shape=(WIDTH,))
"""Many clients with few examples each."""


class Cnn(nn.Module):
    """Two 5 x 5 convolutions and a layer of 512: 1,663,370 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 32, 5, padding=2)
        self.second = nn.Conv2d(32, 64, 5, padding=2)
        self.wide = nn.Linear(64 * 7 * 7, 512)
        self.last = nn.Linear(512, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        maps = F.relu(F.max_pool2d(self.first(images), 2))
        maps = F.relu(F.max_pool2d(self.second(maps), 2))
        logits: Tensor = self.last(F.relu(self.wide(maps.flatten(1))))
        return logits


def cnn() -> Cnn:
    """The model in channels-last memory format, as fedra arranges it."""
    return Cnn().to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def mlp() -> nn.Module:
    """64-64-10: 4,810 weights."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


def train_client(model: nn.Module, data: Pair, work: Work) -> None:
    """One epoch of SGD in shuffled batches."""
    images, labels = data
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
    for rows in torch.split(torch.randperm(len(labels)), work.batch):
        optimizer.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@torch.no_grad()
def load(model: nn.Module, weights: Sequence[Tensor]) -> None:
    """Put the global weights into the model."""
    for parameter, value in zip(model.parameters(), weights, strict=True):
        parameter.copy_(value)


class OneProcess:
    """A plain loop over the clients; calling it trains one round."""

    def __init__(self, work: Work) -> None:
        self._work, self._data, self._model = work, work.data(), work.network()
        self.weights = [value.detach().clone() for value in self._model.parameters()]

    def __call__(self) -> None:
        total = [torch.zeros_like(value) for value in self.weights]
        for data in self._data:
            load(self._model, self.weights)
            train_client(self._model, data, self._work)
            for kept, value in zip(total, self._model.parameters(), strict=True):
                kept.add_(value.detach(), alpha=1 / len(self._data))
        self.weights = total


class ManyProcesses:
    """Persistent workers of one thread each that take clients from a queue; the parent averages their weights.

    Global weights and every client's result lie in shared memory, so nothing but client numbers is sent.
    """

    def __init__(self, work: Work, workers: int, start_method: str) -> None:
        context: Any = torch.multiprocessing.get_context(start_method)
        data = work.data()
        self._clients = work.clients
        self._weights = [value.detach().clone().share_memory_() for value in cnn().parameters()]  # type: ignore[no-untyped-call]
        self._results = [torch.empty(work.clients, *value.shape).share_memory_() for value in self._weights]  # type: ignore[no-untyped-call]
        self._waiting, self._done = context.SimpleQueue(), context.SimpleQueue()
        told = (self._waiting, self._done, self._weights, self._results, data, work)
        self._workers = [context.Process(target=_work, args=told, daemon=True) for _ in range(workers)]
        for process in self._workers:
            process.start()

    def __call__(self) -> None:
        for client in range(self._clients):
            self._waiting.put(client)
        for _ in range(self._clients):
            self._done.get()
        for value, results in zip(self._weights, self._results, strict=True):
            torch.mean(results, dim=0, out=value)

    def close(self) -> None:
        for _ in self._workers:
            self._waiting.put(None)
        for process in self._workers:
            process.join()


def _work(waiting: Any, done: Any, weights: list[Tensor], results: list[Tensor], data: list[Pair], work: Work) -> None:
    torch.set_num_threads(1)
    model = cnn()
    while (client := waiting.get()) is not None:
        load(model, weights)
        train_client(model, data[client], work)
        for slot, value in zip(results, model.parameters(), strict=True):
            slot[client].copy_(value.detach())
        done.put(client)
