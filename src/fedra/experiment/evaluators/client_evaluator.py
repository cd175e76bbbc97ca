"""The protocol "clients": each client recognizes its own people among unseen identities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedra.config.schema import EvaluationSection
from fedra.core.batches import Examples, InputTransform
from fedra.core.evaluate import embed
from fedra.core.job import ServerJob
from fedra.core.model import Model, Weights
from fedra.data import Dataset
from fedra.errors import DataError, RunFailed
from fedra.experiment.evaluators.evaluator import EvaluationOutcome
from fedra.faces.metrics.client_recognition import Device, Found, Recognition, draw_devices, search
from fedra.faces.metrics.collapse import Directed, separate_zero_embeddings
from fedra.runners.base import Runner


class ClientEvaluator:
    """Enrolls each person at their client with some held-out images, and probes with the others and with impostors.

    None of these images is used in training. They are embedded in this process: once for a model that all clients
    share, and per client for a personal model.
    """

    def __init__(
        self,
        dataset: Dataset,
        transform: InputTransform,
        owned: Sequence[Tensor],
        settings: EvaluationSection,
        seed: int,
    ) -> None:
        known = dataset.known_test
        self.fpir = settings.fpir
        self.devices = draw_devices(
            known.targets,
            dict(enumerate(owned)),
            enroll=settings.enroll,
            clients=settings.tested,
            impostors=settings.impostors,
            seed=seed,
        )
        self._people = known.targets
        self._held_out = Examples(known.inputs, known.targets, transform)
        shown = torch.unique(torch.cat([device.rows for device in self.devices]))
        self._place = torch.full((len(known),), -1).scatter(0, shown, torch.arange(len(shown)))
        self._shown = Examples(known.inputs[shown], known.targets[shown], transform).kept()

    def __call__(self, job: ServerJob, runner: Runner, weights: Weights) -> EvaluationOutcome:
        found = self.shared(job.model, weights)
        figures = self.metrics(found)
        collapse = {"collapsed": reason} if (reason := found.collapse_of_all()) else {}
        return EvaluationOutcome({"accuracy": accuracy_of(figures), "loss": None, **figures, **collapse})

    def metrics(self, found: Recognition) -> dict[str, float | None]:
        """Return the metrics, each None if no client has scores."""
        return found.metrics(self.fpir)

    def comparisons(self) -> dict[str, int]:
        """Return the numbers of genuine and impostor comparisons of a model that has not collapsed."""
        templates = [len(torch.unique(self._people[device.enrolled])) for device in self.devices]
        met = [len(device.impostors) for device in self.devices]
        return {
            "genuine": sum(len(device.probes) for device in self.devices),
            "impostors": sum(own * other for own, other in zip(templates, met, strict=True)),
        }

    def shared(self, model: Model, weights: Weights) -> Recognition:
        """Test all clients with one shared model."""
        features, _, collapsed = _embed(model, weights, self._shown)
        return Recognition.of(
            (device.client, collapsed or self._search(device, features[self._place[device.rows]]))
            for device in self.devices
        )

    def own(self, model: Model, weights: Weights, device: Device) -> Found | str | None:
        """Test one client with its personal model; returns the reason if it collapsed, None if it is not finite."""
        inputs, people = self._held_out.inputs[device.rows], self._people[device.rows]
        features, _, collapsed = _embed(model, weights, Examples(inputs, people, self._held_out.transform))
        if not bool(features.isfinite().all()):
            return None
        return collapsed or self._search(device, features)

    def _search(self, device: Device, features: Tensor) -> Found:
        try:
            return search(device, self._people, features)
        except DataError as error:
            raise RunFailed(f"client {device.client} cannot be tested: {error}") from None


def accuracy_of(figures: Mapping[str, float | None]) -> float | None:
    """Return the share of correct decisions at the equal error rate."""
    eer = figures["eer"]
    return None if eer is None else 1 - eer


def _embed(model: Model, weights: Weights, images: Examples) -> Directed:
    arranged = Weights(*(model.arrange(values) for values in weights))
    return separate_zero_embeddings(embed(model, arranged, images), model.precision.passes)
