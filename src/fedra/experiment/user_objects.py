"""Build jobs from a user's algorithm, module and data."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedra.config.schema import Config
from fedra.core.algorithm import Algorithm
from fedra.core.batches import AsIs, Examples
from fedra.core.compiling import check_compiler
from fedra.core.data_rule import Public
from fedra.core.precision import build_precision
from fedra.data import Dataset, Split
from fedra.data.clients import SeparateClients
from fedra.data.pairs import draw_pairs
from fedra.errors import ConfigError
from fedra.evaluation.metrics import MetricChoice
from fedra.experiment.build import Built, Ingredients, assemble, check_settings
from fedra.experiment.user_data import Client, examples_of, prepared
from fedra.models.find_head import HeadAlone, like_weights, split_at_head, unwrap_model
from fedra.models.recognition_model import RecognitionModel
from fedra.models.user_model import NamedHead, check_same_output

OWN = "your data"
"""The name of a data set of user tensors."""


@dataclass(frozen=True)
class UserObjects:
    """The objects given to `Experiment`, which are never changed."""

    algorithm: Algorithm
    model: nn.Module
    clients: Sequence[Client]
    test: Client | None
    public: Client | None
    precise: bool  # whether a precision is set; otherwise that of the module is used
    metrics: MetricChoice = ()

    def build(self, config: Config) -> Built:
        """Build the job of these objects with the settings of the configuration."""
        check_settings(config, self.algorithm)
        if self.public is not None:
            self.algorithm.data.check_public(self.algorithm)
        clients = SeparateClients([examples_of(one, f"client {number}") for number, one in enumerate(self.clients)])
        test = None if self.test is None else examples_of(self.test, "the test set")
        device = next(self.model.parameters()).device
        if config.compile:
            check_compiler(device)
        sample = prepared(clients.examples[0], 2).to(device)
        module = split_at_head(copy.deepcopy(self.model), sample)
        classes = _classes(module, sample)
        if type(self.model).forward is not nn.Module.forward:  # otherwise only `body` and `head` say what it computes
            check_same_output(cast(RecognitionModel, module), like_weights(module, sample))
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
        """Return the trained module with the user's parameter names."""
        return module if isinstance(self.model, NamedHead | HeadAlone) else unwrap_model(module)

    def _public(self) -> Public | None:
        if self.public is None:
            return None
        examples = examples_of(self.public, "the public data")
        return Public(examples, int(examples.targets.max()) + 1)

    def _dataset(
        self, config: Config, clients: SeparateClients, test: Examples | None, sample: Tensor, classes: int
    ) -> Dataset:
        """Return the data set for the evaluators; its training examples stay with the clients."""
        every = [*clients.examples, *(() if test is None else (test,))]
        verified = config.evaluation.protocol == "verification"
        for number, examples in enumerate(every):
            where = f"client {number}" if number < len(clients) else "the test set"
            shape = tuple(prepared(examples, 1).shape[1:])
            if shape != tuple(sample.shape[1:]):
                raise ConfigError(
                    f"all inputs must have the shape of client 0, {tuple(sample.shape[1:])}, got {shape} in {where}"
                )
            low, high = int(examples.targets.min()), int(examples.targets.max())
            unseen = verified and number == len(clients)  # unseen identities have other labels
            if low < 0 or (high >= classes and not unseen):
                raise ConfigError(
                    f"labels must be between 0 and {classes - 1} (the classes of the model's head), got "
                    f"{low if low < 0 else high} in {where}"
                )
        empty = Split(sample[:0].cpu(), torch.empty(0, dtype=torch.int64))
        found = Dataset(name=OWN, train=empty, test=empty, classes=tuple(map(str, range(classes))))
        if test is None:
            return found
        pairs = draw_pairs(test.targets, None, seed=config.partition.seed) if verified else None
        return replace(found, test=Split(test.inputs, test.targets), pairs=pairs)


@torch.no_grad()
def _classes(module: nn.Module, sample: Tensor) -> int:
    """Return the number of classes, the width of the logits for inputs of the first client."""
    kind, shape = sample.dtype, tuple(sample.shape[1:])
    try:
        whole = copy.deepcopy(module).eval()
        return int(whole.head(whole.body(like_weights(whole, sample))).shape[1])  # type: ignore[operator]
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"the model must accept the inputs of client 0, {kind} of shape {shape} each, got an error "
            f"({reason}): give "
            "inputs that its body accepts, and a head whose logits are (batch, classes)"
        ) from error


def describe_parts(algorithm: Algorithm) -> dict[str, Any]:
    """Describe an algorithm made in Python for config.toml."""
    return {
        "label": " + ".join(part.name for part in algorithm.objective),
        "parts": [repr(p) for p in algorithm.parts().values()],
    }
