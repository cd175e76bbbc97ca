"""Random numbers for local steps, drawn outside of vmap from streams keyed by (seed, part, round, client)."""

from __future__ import annotations

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import StepDraws
from fedra.core.model import Model
from fedra.core.random import generator
from fedra.core.tree import Tree
from fedra.errors import ConfigError


class Draws:
    """The random numbers of one client's parts in one round, step by step."""

    def __init__(self, algorithm: Algorithm, model: Model, seed: int, round: int, client: int) -> None:
        self._model = model
        self._streams = [
            (name, part, generator(seed, f"draw {name}", round, client))
            for name, part in algorithm.with_capability(StepDraws).items()
        ]

    def step(self, examples: int) -> Tree:
        """The next step's numbers for a batch of this size, in the model's device and dtype."""
        drawn = {name: part.draw(examples, stream) for name, part, stream in self._streams}
        for path, value in tree.flatten(drawn).items():
            if not value.dim() or len(value) != examples:
                raise ConfigError(
                    f"draw of the part '{path.partition('|')[0]}' must return one row per example ({examples}), got "
                    f"shape {tuple(value.shape)}"
                )
        model = self._model
        return {
            name: tree.each(values, lambda v: v.to(model.device, model.dtype if v.is_floating_point() else None))
            for name, values in drawn.items()
            if values
        }
