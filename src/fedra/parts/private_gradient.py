"""Example-level differential privacy: a gradient rule that bounds what one example contributes to a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ServerState
from fedra.core.example_gradients import iterate_examples
from fedra.core.model import Weights
from fedra.core.part import GradientFunction
from fedra.core.private_steps import PrivateSteps
from fedra.core.tree import Params, Tree
from fedra.core.view import View
from fedra.errors import ConfigError
from fedra.registry import Positive, Strength

ROOM = 2**29
"""Bytes of gradients that are in memory at once if a chunk of examples is differentiated by one pass."""
TINY = 1e-12
ROUNDS = "rounds"
"""Name of the number of rounds in which each client took part, in the server's state."""


@dataclass(frozen=True)
class PrivateGradient(PrivateSteps, ServerState):
    """Clips the gradient of every example, adds them up, and has the sum noised (DP-SGD, Abadi et al., CCS 2016).

    Every example goes alone through all inner rules and terms: perturbations, margins, teachers. So removing one
    example moves the sum by at most `clip`. It must be the first gradient rule, because a rule around it would use
    the data once more. Terms that read no data (proximal terms, control variates) are added after the noise.
    `[privacy] level = "example"` puts this rule around the algorithm's own ones, and provides the secret that noise
    and batches come from.

    Args:
        clip: The norm to which an example's gradient is clipped.
        noise: Standard deviation of the noise on the sum over the clip norm.
        batch: Expected batch size, by which the sum is divided; None for all examples of the client.
        clients: Number of clients; the server counts in how many rounds each took part.
        chunk: Examples that one pass differentiates; None (the default) is 1 for convolutions on a CPU and in stacks
            of clients, and otherwise as many as fit into 512 MB.

    Example:
        >>> from fedra.algorithms import fedsol
        >>> from dataclasses import replace
        >>> algorithm = replace(fedsol(), gradient=(PrivateGradient(clip=1.0), *fedsol().gradient))
        >>> [rule.name for rule in algorithm.gradient]
        ['private-gradient', 'perturb']
    """

    clip: Positive = 1.0
    noise: Strength = 1.0
    batch: Annotated[int, Field(ge=1)] | None = None
    clients: Annotated[int, Field(ge=1)] = 1
    chunk: Annotated[int, Field(ge=1)] | None = None
    formula: ClassVar[str] = "g -> ( sum_i g_i min(1, clip / ||g_i||) + N(0, (noise clip)^2) ) / batch"

    def check(self, algorithm: Algorithm) -> None:
        if algorithm.gradient[:1] != (self,):
            outer = f"list it before '{algorithm.gradient[0].name}'" if algorithm.gradient else "add it to the slot"
            raise ConfigError(
                f"the part '{self.name}' must be the first gradient rule, because a rule around it would use the data "
                f"once more: {outer}"
            )

    def init_server(self, weights: Weights) -> Tree:
        return {ROUNDS: torch.zeros(self.clients, dtype=torch.int64)}

    def noise_deviation(self, examples: int) -> float:
        return self.noise * self.clip / self._divisor(examples)

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        total = {name: torch.zeros_like(params[name], requires_grad=False) for name in view.client.trained}
        for gradients, real in iterate_examples(inner, params, view, self._chunk(view)):
            with torch.no_grad():
                total = self._add(total, gradients, real, view.functional)
        # One example must not decide whether the client counts, so a loss that is not finite is left out.
        assert view.trace.loss is not None, "the objective records its loss"
        view.trace.loss = torch.nan_to_num(view.trace.loss, nan=0.0, posinf=0.0, neginf=0.0)
        examples = view.client.examples
        if isinstance(examples, Tensor):  # in a stack of clients
            divisor = examples if self.batch is None else examples.clamp(max=self.batch)
            return {name: value / divisor for name, value in total.items()}
        return {name: value.div_(self._divisor(examples)) for name, value in total.items()}

    def _divisor(self, examples: int) -> int:
        return examples if self.batch is None else min(self.batch, examples)

    def _chunk(self, view: View) -> int:
        if view.functional:
            return 1  # vmap over clients already takes one example of each at once
        if self.chunk is not None:
            return self.chunk
        trained = [view.client.origin.params[name] for name in view.client.trained]
        if view.model.channels_last and trained[0].device.type == "cpu":
            return 1
        return max(1, ROOM // max(2 * sum(value.nbytes for value in trained), 1))

    def _add(self, total: Params, gradients: Params, real: Tensor | None, functional: bool) -> Params:
        """The sum with clipped gradients added; one that is not finite, and padding, count as zero."""
        squares = [value.flatten(1).square().sum(dim=1, dtype=_wide(value)) for value in gradients.values()]
        lengths = torch.stack(squares).sum(dim=0).sqrt()
        counts = lengths.isfinite() if real is None else lengths.isfinite() & real
        factors = torch.where(counts, (self.clip / lengths.clamp(min=TINY)).clamp(max=1.0), 0.0)
        if not functional and len(factors) == 1:
            factor = float(factors[0])
            for name, value in gradients.items() if factor else ():
                total[name].add_(value[0], alpha=factor)
            return total
        added = {}
        for name, value in gradients.items():
            weights = factors.to(value.dtype)
            kept = torch.where(counts.view(-1, *[1] * (value.dim() - 1)), value, 0.0)
            added[name] = total[name] + torch.tensordot(weights, kept, dims=1)
        return added


def _wide(value: Tensor) -> torch.dtype:
    """The type in which squares are summed: at least single precision."""
    return value.dtype if value.dtype in (torch.float32, torch.float64) else torch.float32
