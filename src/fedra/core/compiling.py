"""Forward passes with torch.compile, compiled in each process on first use."""

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
"""Variants of a pass that torch may compile: body and head, training or not, frozen teachers, a batch of one."""


class PlainPass:
    """The forward pass without compilation."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        # Otherwise torch looks for tensors with several names in every call, which small models notice.
        self._tied = _count_tensors(module, once=True) < _count_tensors(module, once=False)

    def __call__(self, state: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        result: Tensor = functional_call(self._module, dict(state), (inputs,), tie_weights=self._tied)
        return result


def _count_tensors(module: nn.Module, once: bool) -> int:
    """The number of parameters and buffers; those with several names count `once`, or by each name."""
    named = (*module.named_parameters(remove_duplicate=once), *module.named_buffers(remove_duplicate=once))
    return len(named)


class CompiledPass(PlainPass):
    """The forward pass compiled for any batch size, so an epoch's short last batch does not recompile it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._compiled: Pass | None = None

    def __call__(self, state: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        if self._compiled is None:
            self._compiled = compile_pass(super().__call__)
        torch._dynamo.maybe_mark_dynamic(inputs, 0)
        return self._compiled(state, inputs)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the compiled code, which cannot be pickled."""
        return {**self.__dict__, "_compiled": None}


def compile_pass(function: Pass) -> Pass:
    """Compile a pass; random layers draw the same numbers as without compilation."""
    # The tracer reads .grad of every tensor, and torch warns about the features, which are not leaves.
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf", module="torch")
    # Torch works around a bug of Python 3.13.0 and warns about it while compiling, where a filter that turns warnings
    # into errors would fail the pass. (Torch's own switch disables the workaround as well.)
    warnings.filterwarnings("ignore", message="Guards may run slower on Python 3.13.0", category=RuntimeWarning)
    # A forked worker does not inherit torch's pool of compiler processes and would wait for it forever.
    importlib.import_module("torch._inductor.config").compile_threads = 1  # type: ignore[attr-defined]
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
    result: Pass = torch.compile(function, options={"fallback_random": True})
    return result


def check_compiler(device: torch.device) -> None:
    """Compile a trivial function, to fail before training if torch.compile does not work on this machine."""
    try:
        compile_pass(lambda _, inputs: inputs.sin() + 1)({}, torch.ones(8, device=device))
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"torch.compile must work on this machine to compile models, got '{reason}': install a C++ compiler (such "
            "as g++), or do not compile"
        ) from None
