"""Random numbers for local steps: drawn outside of vmap, from streams keyed by (seed, part, round, client)."""

from __future__ import annotations

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import StepDraws
from fedra.core.model import Model
from fedra.core.random import generator
from fedra.core.tree import Tree
from fedra.errors import ConfigError


class Draws:
    """What the parts of one client draw in one round, step by step."""

    def __init__(self, algorithm: Algorithm, model: Model, seed: int, round: int, client: int) -> None:
        self._model = model
        self._streams = [
            (name, part, generator(seed, f"draw {name}", round, client))
            for name, part in algorithm.able(StepDraws).items()
        ]

    def step(self, examples: int) -> Tree:
        """The next step's numbers for a batch of so many examples, on the model's device and of its type."""
        found = {name: part.draw(examples, stream) for name, part, stream in self._streams}
        for path, value in tree.flatten(found).items():
            if not value.dim() or len(value) != examples:
                raise ConfigError(
                    f"the part '{path.partition('|')[0]}' drew {tuple(value.shape)} for {examples} examples: let its "
                    "draw give one row for each"
                )
        ready = self._model
        return {
            name: tree.each(values, lambda v: v.to(ready.device, ready.dtype if v.is_floating_point() else None))
            for name, values in found.items()
            if values
        }
