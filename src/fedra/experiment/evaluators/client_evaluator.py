"""The test of a federation of recognisers: every client among strangers, by one model or by each client's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedra.config.schema import EvaluationSection
from fedra.core.batches import Examples, Transform
from fedra.core.evaluate import embed
from fedra.core.job import Job
from fedra.core.model import Model, Weights
from fedra.data import Dataset
from fedra.errors import DataError, RunFailed
from fedra.experiment.evaluators.evaluator import Verdict
from fedra.faces.benchmarks.protocols import directed
from fedra.faces.metrics.client_recognition import Device, Found, Recognition, draw_devices, search
from fedra.runners.base import Runner


class ClientsJudge:
    """Some held-out images of every person enrol it at its client, the others probe it, and so do strangers'.

    Nothing of either is trained on. Images are embedded in this process: those of the tested clients once for a shared
    model; for a model of the client's own its enrolled images, its probes and its impostors.
    """

    def __init__(
        self, dataset: Dataset, transform: Transform, owned: Sequence[Tensor], settings: EvaluationSection, seed: int
    ) -> None:
        known = dataset.known_test
        self.fpir = settings.fpir
        self.devices = draw_devices(
            known.targets,
            dict(enumerate(owned)),
            enrol=settings.enrol,
            clients=settings.tested,
            impostors=settings.impostors,
            seed=seed,
        )
        self._people = known.targets
        self._held_out = Examples(known.inputs, known.targets, transform)
        shown = torch.unique(torch.cat([device.rows for device in self.devices]))
        self._place = torch.full((len(known),), -1).scatter(0, shown, torch.arange(len(shown)))
        self._shown = Examples(known.inputs[shown], known.targets[shown], transform).kept()

    def __call__(self, job: Job, runner: Runner, weights: Weights) -> Verdict:
        figures = self.figures(self.shared(job.model, weights))
        return Verdict({"accuracy": 1 - figures["eer"], "loss": None, **figures})

    def figures(self, found: Recognition) -> dict[str, float]:
        """The figures of what was found."""
        return found.figures(self.fpir)

    def shared(self, model: Model, weights: Weights) -> Recognition:
        """What the clients find if all use one model."""
        features = _embedded(model, weights, self._shown)
        return Recognition.of(
            (device.client, self._search(device, features[self._place[device.rows]])) for device in self.devices
        )

    def own(self, model: Model, weights: Weights, device: Device) -> Found | None:
        """What one client finds by a model of its own; None where that embeds no numbers."""
        inputs, people = self._held_out.inputs[device.rows], self._people[device.rows]
        features = _embedded(model, weights, Examples(inputs, people, self._held_out.transform))
        return self._search(device, features) if bool(features.isfinite().all()) else None

    def _search(self, device: Device, features: Tensor) -> Found:
        try:
            return search(device, self._people, features)
        except DataError as error:
            raise RunFailed(f"client {device.client} cannot be tested: {error}") from None


def _embedded(model: Model, weights: Weights, images: Examples) -> Tensor:
    arranged = Weights(*(model.arrange(values) for values in weights))
    return directed(embed(model, arranged, images))[0]
