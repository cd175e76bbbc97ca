"""A torch module as pure functions of its parameters and buffers, split into a body and a head."""

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
    """The model's output on a batch.

    Args:
        features: The body's output (B, d).
        logits: The head's output (B, C).

    Example:
        ```python
        loss = F.cross_entropy(output.logits, view.batch.targets)
        ```
    """

    features: Tensor
    logits: Tensor


class Weights(NamedTuple):
    """A model's parameters and buffers.

    Args:
        params: Parameters by name.
        buffers: Running statistics by name.

    Example:
        ```python
        weights = model.weights()
        zeros = Weights(tree.zeros_like(weights.params), weights.buffers)
        ```
    """

    params: Params
    buffers: Params


class Model:
    """A module as functions of its weights: every pass receives parameters and buffers.

    `per_example` is true if an example's output in evaluation mode does not depend on the rest of its batch, so
    outputs of frozen models can be computed once and looked up. Convolutions use the channels-last memory format,
    which is faster on CPUs and GPUs.

    Args:
        module: A module with the children `body` and `head`.
        device: Where to compute.
        precision: Number formats; by default the module's own dtype.
        compiled: Whether to use torch.compile.

    Raises:
        ConfigError: If the module has no body or head, or parameters outside of them.

    Example:
        ```python
        module = nn.Sequential(OrderedDict(body=nn.Linear(784, 32), head=nn.Linear(32, 10)))
        model = Model(module)
        output = model.output(model.weights(), inputs)
        ```
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
                f"the model must have the children 'body' and 'head', got {type(module).__name__} without them: build "
                "it with both, or name its last layer with fedra.models.named_head(module, 'fc')"
            )
        self.device = torch.device(device)
        self.module = module.to(self.device) if precision is None else module.to(self.device, precision.weights)
        self.precision = precision or Precision.of(module)
        self.dtype = self.precision.weights
        outside = [n for n, _ in module.named_parameters() if n.partition(".")[0] not in ("body", "head")]
        if outside:
            raise ConfigError(
                f"parameters must be in the model's body or head, got '{outside[0]}' outside of both: move it into one"
            )
        owners: dict[int, str] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if owners.setdefault(id(parameter), name[:4]) != name[:4]:
                raise ConfigError(f"body and head must not share parameters, got '{name}' in both: give each its own")
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
        """A copy of the module's weights."""
        return Weights(tree.clone(dict(self.module.named_parameters())), tree.clone(dict(self.module.named_buffers())))

    @cached_property
    def start(self) -> Weights:
        """The module's weights on the device: the model that a run starts from, which every client has."""
        return Weights(
            self.arrange(dict(self.module.named_parameters())), self.arrange(dict(self.module.named_buffers()))
        )

    def module_with(self, weights: Weights) -> nn.Module:
        """Load weights into the module.

        Args:
            weights: The weights to copy in.

        Returns:
            The module itself.
        """
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(weights.params[name])
            for name, buffer in self.module.named_buffers():
                buffer.copy_(weights.buffers[name])
        return self.module

    def arrange(self, params: Params) -> Params:
        """Detached copies on the device in the model's memory format.

        Kernels are selected by strides, so equal results need equal formats.

        Args:
            params: Tensors by name.

        Returns:
            The copies.
        """
        return {name: self.format(value.detach().to(self.device, copy=True)) for name, value in params.items()}

    def arrange_tree(self, values: Tree) -> Tree:
        """A nested dict of tensors on the device in the model's memory format, copied only if needed.

        Args:
            values: A nested dict of tensors.

        Returns:
            A dict of the same structure.
        """
        return {
            name: self.arrange_tree(value) if isinstance(value, dict) else self.format(value.to(self.device))
            for name, value in values.items()
        }

    def format(self, value: Tensor) -> Tensor:
        """Convert images and convolution kernels to channels-last; return other tensors unchanged.

        Args:
            value: Any tensor.

        Returns:
            The tensor in the model's memory format.
        """
        if self.channels_last and value.dim() == 4:
            # Not `contiguous`, which treats a single channel as channels-last whatever its strides.
            return value.to(memory_format=torch.channels_last)
        return value

    def ready(self, inputs: Tensor) -> Tensor:
        """Convert prepared inputs to the model's floating-point type and memory format.

        Args:
            inputs: Prepared inputs; integers keep their type.

        Returns:
            Inputs for `features` and `output`.
        """
        return self.format(inputs.to(self.dtype) if inputs.is_floating_point() else inputs)

    def features(self, weights: Weights, inputs: Tensor, train: bool) -> Tensor:
        """The forward pass of the body. Training mode updates running statistics in `weights.buffers` in place.

        Args:
            weights: Parameters and buffers.
            inputs: Inputs on the device, as `ready` returns them.
            train: Whether to use training mode.

        Returns:
            Features (B, d).
        """
        return self._call("body", weights, inputs, train)

    def classify(self, weights: Weights, features: Tensor, train: bool) -> Tensor:
        """The forward pass of the head.

        Args:
            weights: Parameters and buffers.
            features: Features (B, d).
            train: Whether to use training mode.

        Returns:
            Logits (B, C).
        """
        return self._call("head", weights, features, train)

    def output(self, weights: Weights, inputs: Tensor, train: bool = False) -> Output:
        """The forward pass of body and head.

        Args:
            weights: Parameters and buffers.
            inputs: Inputs on the device, as `ready` returns them.
            train: Whether to use training mode.

        Returns:
            Features and logits.
        """
        features = self.features(weights, inputs, train)
        return Output(features, self.classify(weights, features, train))

    def _call(self, part: str, weights: Weights, inputs: Tensor, train: bool) -> Tensor:
        if self._training is not train or self.module.training is not train:  # user code may have changed the mode
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
