"""A torch module as pure functions of its parameters and buffers, cut into a body and a head."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedra.core import tree
from fedra.core.compiling import CompiledPass, PlainPass
from fedra.core.precision import Precision
from fedra.core.tree import Params, Tree
from fedra.errors import ConfigError


class Output(NamedTuple):
    """What the model says of a batch: the body's features and the head's logits."""

    features: Tensor
    logits: Tensor


class Weights(NamedTuple):
    """Everything a model remembers: what is trained, and what is only tracked (running statistics)."""

    params: Params
    buffers: Params


class Model:
    """The module's layers with the weights taken out: every pass is given its parameters and buffers.

    `per_example` says that an example's output in evaluation mode does not depend on its neighbors in the
    batch (false with batch statistics), so that frozen outputs may be computed once and looked up.
    Convolutions run in channels-last memory format, which is faster on CPUs and GPUs alike. Without a `precision`
    the module's own type is used throughout; with `compiled` passes go through torch.compile.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device | str = "cpu",
        precision: Precision | None = None,
        compiled: bool = False,
    ) -> None:
        children = dict(module.named_children())
        if not {"body", "head"} <= children.keys():
            raise ConfigError(
                f"the model {type(module).__name__} has no 'body' and 'head': build it with both, or name its "
                "last layer with fedra.models.named_head(module, 'fc')"
            )
        self.device = torch.device(device)
        self.module = module.to(self.device) if precision is None else module.to(self.device, precision.weights)
        self.precision = precision or Precision.of(module)
        self.dtype = self.precision.weights
        strays = [n for n, _ in module.named_parameters() if n.partition(".")[0] not in ("body", "head")]
        if strays:
            raise ConfigError(f"the parameter '{strays[0]}' lies outside the model's body and head: move it into one")
        owners: dict[int, str] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if owners.setdefault(id(parameter), name[:4]) != name[:4]:
                raise ConfigError(f"body and head share the parameter '{name}': give each its own")
        self._names = {
            part: [name.partition(".")[2] for name in self.state_names() if name.startswith(f"{part}.")]
            for part in ("body", "head")
        }
        self.compiled = compiled
        kind = CompiledPass if compiled else PlainPass
        self._passes = {part: kind(children[part]) for part in ("body", "head")}
        self._training: bool | None = None
        self.has_buffers = any(True for _ in module.named_buffers())
        self.per_example = not any(
            isinstance(m, nn.modules.batchnorm._BatchNorm) and not m.track_running_stats for m in module.modules()
        )
        self.channels_last = any(isinstance(m, nn.Conv2d) for m in module.modules())

    def state_names(self) -> list[str]:
        """The names of all parameters and buffers."""
        return [n for n, _ in self.module.named_parameters()] + [n for n, _ in self.module.named_buffers()]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(name for name, _ in self.module.named_parameters())

    def weights(self) -> Weights:
        """A copy of the module's own weights: where training starts."""
        return Weights(tree.clone(dict(self.module.named_parameters())), tree.clone(dict(self.module.named_buffers())))

    @cached_property
    def start(self) -> Weights:
        """The module's own weights, arranged: the model a run begins with, which every client has from the outset."""
        return Weights(
            self.arrange(dict(self.module.named_parameters())), self.arrange(dict(self.module.named_buffers()))
        )

    def module_with(self, weights: Weights) -> nn.Module:
        """The module itself, carrying these weights."""
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(weights.params[name])
            for name, buffer in self.module.named_buffers():
                buffer.copy_(weights.buffers[name])
        return self.module

    def arrange(self, params: Params) -> Params:
        """Copies to train on: on the device, outside any graph, in the memory format that kernels like best.

        Kernels are chosen by strides, so that equal bits need equal formats: every client starts here.
        """
        return {name: self.format(value.detach().to(self.device, copy=True)) for name, value in params.items()}

    def arrange_tree(self, values: Tree) -> Tree:
        """The same for what parts received or remember, copied only where it lies elsewhere or otherwise."""
        return {
            name: self.arrange_tree(value) if isinstance(value, dict) else self.format(value.to(self.device))
            for name, value in values.items()
        }

    def format(self, value: Tensor) -> Tensor:
        """Images and convolution kernels in channels-last, all else as it is."""
        if self.channels_last and value.dim() == 4:
            # Not `contiguous`, which takes one channel for channels-last whatever its strides say.
            return value.to(memory_format=torch.channels_last)
        return value

    def ready(self, inputs: Tensor) -> Tensor:
        """Prepared inputs in the model's floating-point type and memory format; whole numbers stay whole."""
        return self.format(inputs.to(self.dtype) if inputs.is_floating_point() else inputs)

    def features(self, weights: Weights, inputs: Tensor, train: bool) -> Tensor:
        """The body's pass. In training mode running statistics in `weights.buffers` are updated in place."""
        return self._call("body", weights, inputs, train)

    def classify(self, weights: Weights, features: Tensor, train: bool) -> Tensor:
        """The head's pass."""
        return self._call("head", weights, features, train)

    def output(self, weights: Weights, inputs: Tensor, train: bool = False) -> Output:
        """Body and head."""
        features = self.features(weights, inputs, train)
        return Output(features, self.classify(weights, features, train))

    def _call(self, part: str, weights: Weights, inputs: Tensor, train: bool) -> Tensor:
        if self._training is not train or self.module.training is not train:  # a user may have switched it
            self.module.train(train)
            self._training = train
        state = {
            name: weights.params[full] if full in weights.params else weights.buffers[full]
            for name, full in ((name, f"{part}.{name}") for name in self._names[part])
        }
        if not self.precision.mixed:
            return self._passes[part](state, inputs)
        with self.precision.casting(self.device):
            return self._passes[part](state, inputs).to(self.dtype)
