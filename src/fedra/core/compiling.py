"""Passes through torch.compile: made when first used, in each process its own."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedra.errors import ConfigError

Pass = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""A module's forward pass as a function of its weights and its inputs."""

RECOMPILE_LIMIT = 64
"""Kinds of passes that torch may compile: body and head, training or not, frozen teachers, a batch of one."""


class PlainPass:
    """The pass as it is."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self, state: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        result: Tensor = functional_call(self._module, dict(state), (inputs,))
        return result


class CompiledPass(PlainPass):
    """The pass compiled, for batches of any size: an epoch's short last batch does not compile it again."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._compiled: Pass | None = None

    def __call__(self, state: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        if self._compiled is None:
            self._compiled = compiled(super().__call__)
        torch._dynamo.maybe_mark_dynamic(inputs, 0)
        return self._compiled(state, inputs)

    def __getstate__(self) -> dict[str, Any]:
        """Machine code stays in its process."""
        return {**self.__dict__, "_compiled": None}


def compiled(function: Pass) -> Pass:
    """The function through torch.compile; layers that draw at random draw what they would draw without it."""
    # The tracer looks at every tensor's gradient, and torch warns of it where features go into the head.
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf", module="torch")
    # Python 3.13.0 has a fault that torch works around, at some cost, and warns of in the midst of compiling, where a
    # filter that makes errors of warnings would fail the pass. (Torch's own switch ends the workaround as well.)
    warnings.filterwarnings("ignore", message="Guards may run slower on Python 3.13.0", category=RuntimeWarning)
    # A pool of compiling processes would not outlive the fork that makes a worker, which then waits for it for ever.
    importlib.import_module("torch._inductor.config").compile_threads = 1  # type: ignore[attr-defined]
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
    result: Pass = torch.compile(function, options={"fallback_random": True})
    return result


def refuse_without_compiler(device: torch.device) -> None:
    """Compile a line, which shows before any training whether torch.compile can work here."""
    try:
        compiled(lambda _, inputs: inputs.sin() + 1)({}, torch.ones(8, device=device))
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"models cannot be compiled here ({reason}): install a C++ compiler (such as g++) for torch, or do not "
            "compile"
        ) from None
