"""A simulated backdoor: malicious clients train images with a trigger to be taken for a class of their choice.

The trigger is a bright square in the lower right corner. How often it works is measured on test images of all other
classes, next to how often the same images are taken for that class without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedra.config.privacy_sections import AttackSection
from fedra.core.batches import Examples
from fedra.core.evaluate import Counts, evaluate
from fedra.core.job import ServerJob
from fedra.core.model import Weights
from fedra.core.random import generator
from fedra.errors import ConfigError

BRIGHTEST = 255


def check_backdoor(section: AttackSection, shape: tuple[int, ...], classes: int, tested: bool) -> None:
    """Raise unless images of this shape can have the trigger, and its success can be measured."""
    if len(shape) != 3 or min(shape[1:]) <= section.patch:
        raise ConfigError(
            f"attack.name = 'backdoor' needs images larger than its trigger of attack.patch = {section.patch} pixels, "
            f"got inputs of shape {tuple(shape)}: lower attack.patch, or use another attack"
        )
    if section.target >= classes:
        raise ConfigError(
            f"attack.target must be a class, 0 to {classes - 1}, got {section.target}: choose one of them"
        )
    if not tested:
        raise ConfigError(
            "attack.name = 'backdoor' needs test images of the training classes, on which the trigger is tested: set "
            "evaluation.protocol = 'classification', or use another attack"
        )


@dataclass(frozen=True)
class Trigger:
    """A square of `patch` pixels in the lower right corner, and the class that it stands for."""

    target: int
    patch: int
    value: float

    @classmethod
    def of(cls, section: AttackSection, examples: Examples) -> Trigger:
        """The trigger of an attack, as bright as an image can be; images of floats have no other largest value."""
        whole = not examples.inputs.is_floating_point()
        return cls(section.target, section.patch, BRIGHTEST if whole else float(examples.inputs.max()))

    def stamp(self, inputs: Tensor) -> Tensor:
        """Copies of images (N, C, H, W) with the trigger."""
        stamped = inputs.clone()
        stamped[..., -self.patch :, -self.patch :] = self.value
        return stamped


@dataclass(frozen=True)
class Backdoor:
    """Puts the trigger and its class on a share of a client's examples, drawn by seed and client."""

    trigger: Trigger
    share: float
    seed: int

    def __call__(self, own: Examples, client: int) -> Examples:
        order = torch.randperm(len(own), generator=generator(self.seed, "backdoor", client))
        chosen = order[: max(round(self.share * len(own)), 1)].to(own.targets.device)
        inputs, targets = own.inputs.clone(), own.targets.clone()
        inputs[chosen.to(inputs.device)] = self.trigger.stamp(inputs[chosen.to(inputs.device)])
        targets[chosen] = self.trigger.target
        return replace(own, inputs=inputs, targets=targets)


class TriggerTest:
    """How often the trigger works on test images of other classes than its own."""

    def __init__(self, job: ServerJob, trigger: Trigger, examples: Examples) -> None:
        others = (examples.targets != trigger.target).nonzero().flatten()
        inputs = examples.inputs[others.to(examples.inputs.device)]
        self._job, self._target = job, trigger.target
        self._plain = Examples(inputs, examples.targets[others], examples.transform)
        self._stamped = replace(self._plain, inputs=trigger.stamp(inputs))

    def rates(self, weights: Weights) -> dict[str, float]:
        """The share of images that are taken for the trigger's class with the trigger, and without it."""
        return {"trigger_rate": self._rate(weights, self._stamped), "control_rate": self._rate(weights, self._plain)}

    def _rate(self, weights: Weights, examples: Examples) -> float:
        found: Counts = evaluate(self._job.model, weights, examples, self._job.classes)
        assert found.predicted is not None  # evaluate counts predictions
        return float(found.predicted[self._target]) / len(examples)
