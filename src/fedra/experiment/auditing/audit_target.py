"""The run under audit: its model, its data, the model that it started from, and the settings of the attacks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from fedra.config.schema import OBJECT, Config
from fedra.core.batches import InputTransform
from fedra.core.job import Job
from fedra.core.model import Model, Weights
from fedra.data import Dataset
from fedra.errors import ConfigError, FedraError, RunError
from fedra.experiment.build import Built, build_module
from fedra.experiment.data_digests import PARTS, digest_data
from fedra.experiment.trained_run import open_trained_run
from fedra.storage.run_folder import RunFolder
from fedra.trust import allow_imports

OWN = "fedra audit attacks your own runs, with their data"


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """How much each attack does; see `fedra.audit`."""

    examples: int = 1000
    shadows: int = 0
    minutes: float = 15.0
    people: int = 10
    images: int = 4
    steps: int = 200
    seed: int = 0


class UnfitAttack(FedraError):
    """An attack does not fit the run; the message says why."""


@dataclass(frozen=True, kw_only=True)
class AuditTarget:
    """A finished run with its data. `start` is the model before training, None if its file is gone."""

    folder: RunFolder
    config: Config
    built: Built
    weights: Weights
    start: Weights | None
    out: Path
    settings: AuditSettings
    console: Console | None = None

    @property
    def job(self) -> Job:
        return self.built.job

    @property
    def model(self) -> Model:
        return self.built.job.model

    @property
    def dataset(self) -> Dataset:
        return self.built.dataset

    @property
    def transform(self) -> InputTransform:
        """How raw inputs become network inputs, without augmentation."""
        return self.job.clients[0].transform

    @property
    def shows_people(self) -> bool:
        """Whether a class is a person."""
        return self.job.algorithm.owns_classes or self.dataset.pairs is not None

    @property
    def has_images(self) -> bool:
        return len(self.dataset.shape) == 3

    @property
    def guarantee(self) -> dict[str, Any]:
        """The run's privacy statement; empty without differential privacy."""
        found = self.folder.summary().get("privacy", {})
        return dict(found) if isinstance(found, dict) else {}

    @property
    def photograph_bound(self) -> tuple[float, float] | None:
        """The epsilon and delta that the run's guarantee implies for one photograph.

        A client's data with and without one photograph are two steps from no data at all, so at the level of clients
        epsilon counts twice.
        """
        stated = self.guarantee
        epsilon, delta = stated.get("epsilon", stated.get("epsilon_if_secret")), stated.get("delta")
        if epsilon is None or delta is None:
            return None
        if stated.get("level", "client") == "example":
            return float(epsilon), float(delta)
        return 2 * epsilon, min(delta * (1 + 2.718281828459045 ** min(epsilon, 700.0)), 1.0)

    def pixels(self, raw: Tensor) -> Tensor:
        """Raw inputs on the 0..1 scale."""
        return raw.float() if raw.is_floating_point() else raw.float() / 255

    def embed(self, pixels: Tensor, weights: Weights | None = None) -> Tensor:
        """Embeddings of pictures in 0..1, differentiable."""
        ready = self.model.ready(self.transform.prepare(pixels.to(self.model.device)))
        return self.model.features(weights or self.weights, ready, train=False).flatten(1)


def open_target(
    run: Path | str, out: Path | str | None, settings: AuditSettings, device: str | None, trust: bool, console: Any
) -> AuditTarget:
    """Open a run for an audit, and refuse what is not the user's own run."""
    path = Path(run)
    if path.is_file():
        raise ConfigError(f"{OWN}, so it needs the folder of a run, got the file '{path}': give the run's folder")
    folder = RunFolder(path)
    config = folder.config()
    if OBJECT in (config.algorithm.name, config.model.name, config.data.name):
        raise ConfigError(
            f"{OWN}, which must be described by its config.toml, got a run of Python objects in '{path}': name the "
            "model and data as module:function"
        )
    if (path.parent / "federation.toml").exists() or (path / "sites.jsonl").exists():
        raise ConfigError(
            f"{OWN}, got the run of a federation in '{path}', whose data are at its sites: audit a simulation of it "
            "(fedra run)"
        )
    opened = open_trained_run(path, device=device, trust=trust)
    _check_data(folder, opened.built.job)
    with allow_imports(trust):
        start = _start_weights(config, opened.built)
    return AuditTarget(
        folder=folder,
        config=config,
        built=opened.built,
        weights=opened.weights,
        start=start,
        out=folder.path / "audit" if out is None else Path(out),
        settings=settings,
        console=console,
    )


def _check_data(folder: RunFolder, job: Job) -> None:
    """Raise unless the data are those that the run was trained on."""
    before = folder.data_digests()
    if before is None:
        raise RunError(f"{OWN}, got '{folder.path}' without data.json, the record of its data: train it again")
    changed = [PARTS[name] for name, found in digest_data(job).items() if before.get(name) != found]
    if changed:
        raise RunError(
            f"{OWN}, and the data must be those that the run in '{folder.path}' was trained on, but "
            f"{' and '.join(changed)} differ: restore the data"
        )


def _start_weights(config: Config, built: Built) -> Weights | None:
    """The model before training; None if its file is gone or another."""
    if config.model.weights is not None and not Path(config.model.weights).exists():
        return None
    try:
        module = build_module(config, built.dataset)
    except ConfigError:
        return None
    model = Model(module, built.job.model.device, built.job.model.precision)
    weights = replace(built.job, model=model).initial()
    return Weights(*(model.arrange(values) for values in weights))


def keyed_choice(total: int, count: int, draw: torch.Generator) -> Tensor:
    """At most `count` of `total` numbers, in ascending order."""
    return torch.randperm(total, generator=draw)[:count].sort().values
