"""A user's own algorithm, module and data as the ingredients of a job."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedra.config.schema import Config
from fedra.core.algorithm import Algorithm
from fedra.core.batches import AsIs, Examples
from fedra.core.compiling import refuse_without_compiler
from fedra.core.data_rule import Public
from fedra.core.precision import build_precision
from fedra.data import Dataset, Split
from fedra.data.clients import OwnClients
from fedra.data.pairs import draw_pairs
from fedra.errors import ConfigError
from fedra.evaluation.metrics import MetricChoice
from fedra.experiment.build import Built, Ingredients, assemble, check_settings
from fedra.experiment.user_data import Client, examples_of, prepared
from fedra.models.find_head import HeadAlone, split_at_head, unwrapped
from fedra.models.user_model import NamedHead

OWN = "your data"
"""What the data set of a user's own tensors is called."""


@dataclass(frozen=True)
class UserObjects:
    """What a user gives to `Experiment`: nothing of it is changed."""

    algorithm: Algorithm
    model: nn.Module
    clients: Sequence[Client]
    test: Client | None
    public: Client | None
    precise: bool  # whether a precision was asked for; else the module's own is used
    metrics: MetricChoice = ()

    def build(self, config: Config) -> Built:
        """The job of these objects with the configuration's settings."""
        check_settings(config, self.algorithm)
        if self.public is not None:
            self.algorithm.data.check_public(self.algorithm)
        clients = OwnClients([examples_of(one, f"client {number}") for number, one in enumerate(self.clients)])
        test = None if self.test is None else examples_of(self.test, "the test set")
        device = next(self.model.parameters()).device
        if config.compile:
            refuse_without_compiler(device)
        sample = prepared(clients.examples[0], 2).to(device)
        module = split_at_head(copy.deepcopy(self.model), sample)
        classes = _classes(module, sample)
        dataset = self._dataset(config, clients, test, sample, classes)
        return assemble(
            config,
            Ingredients(
                algorithm=self.algorithm,
                module=module,
                clients=clients,
                dataset=dataset,
                transform=AsIs() if test is None else test.transform,
                device=device,
                precision=build_precision(config.precision, device) if self.precise else None,
                public=self._public(),
                unwrap=self._unwrap,
                metrics=self.metrics,
            ),
        )

    def _unwrap(self, module: nn.Module) -> nn.Module:
        """The trained module under the names of the user's own."""
        return module if isinstance(self.model, NamedHead | HeadAlone) else unwrapped(module)

    def _public(self) -> Public | None:
        if self.public is None:
            return None
        examples = examples_of(self.public, "the public data")
        return Public(examples, int(examples.targets.max()) + 1)

    def _dataset(
        self, config: Config, clients: OwnClients, test: Examples | None, sample: Tensor, classes: int
    ) -> Dataset:
        """What the evaluators need to know, as a data set whose training examples stay with the clients."""
        every = [*clients.examples, *(() if test is None else (test,))]
        verified = config.evaluation.protocol == "verification"
        for number, examples in enumerate(every):
            where = f"client {number}" if number < len(clients) else "the test set"
            shape = tuple(prepared(examples, 1).shape[1:])
            if shape != tuple(sample.shape[1:]):
                raise ConfigError(
                    f"all inputs must have one shape: {where} has {shape}, client 0 {tuple(sample.shape[1:])}"
                )
            low, high = int(examples.targets.min()), int(examples.targets.max())
            unseen = verified and number == len(clients)  # people whom training never sees have labels of their own
            if low < 0 or (high >= classes and not unseen):
                raise ConfigError(
                    f"labels must be 0 to {classes - 1}, the classes of the model's head, and {where} has "
                    f"{low if low < 0 else high}"
                )
        empty = Split(sample[:0].cpu(), torch.empty(0, dtype=torch.int64))
        found = Dataset(name=OWN, train=empty, test=empty, classes=tuple(map(str, range(classes))))
        if test is None:
            return found
        pairs = draw_pairs(test.targets, None, seed=config.partition.seed) if verified else None
        return replace(found, test=Split(test.inputs, test.targets), pairs=pairs)


@torch.no_grad()
def _classes(module: nn.Module, sample: Tensor) -> int:
    """The number of classes: the width of the logits on some of the first client's inputs."""
    kind, shape = sample.dtype, tuple(sample.shape[1:])
    try:
        own = next(module.parameters()).dtype
        whole = copy.deepcopy(module).eval()
        return int(whole.head(whole.body(sample.to(own) if sample.is_floating_point() else sample)).shape[1])  # type: ignore[operator]
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"the model cannot read client 0's inputs, {kind} of shape {shape} each ({reason}): give inputs that its "
            "body accepts and a head whose logits are (batch, classes)"
        ) from error


def describe_parts(algorithm: Algorithm) -> dict[str, Any]:
    """An algorithm made in Python as the run's record names it."""
    return {
        "label": " + ".join(part.name for part in algorithm.objective),
        "parts": [repr(p) for p in algorithm.parts().values()],
    }
