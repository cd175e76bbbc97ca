"""From a configuration to the things it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedra.core.batches import Examples, Schedule
from fedra.core.job import Job, LocalTraining
from fedra.core.model import Model
from fedra.core.random import key
from fedra.data import DATASETS, Dataset, load, transform_for
from fedra.data.clients import PooledClients
from fedra.data.partition import PARTITIONS, split
from fedra.errors import ConfigError
from fedra.experiment import config as configuration
from fedra.experiment.config import Config
from fedra.experiment.naming import build_algorithm, with_defaults, written_out
from fedra.models import MODELS, with_projection
from fedra.models import build as build_model
from fedra.runners import RUNNERS, Runner


@dataclass(frozen=True)
class Built:
    """A job and the data set behind it."""

    job: Job
    dataset: Dataset


def build(config: Config) -> Built:
    """The job a configuration describes. Mistakes are found before any data are read where that is possible."""
    algorithm = build_algorithm(config.algorithm)
    if config.faults.straggler and config.faults.deadline is None:
        raise ConfigError("faults.straggler only slows clients down: set faults.deadline to say how late is too late")
    local = local_training(config.local)
    if algorithm.counts_steps:
        local.at(0).effective_steps(1)  # an optimiser without it is refused before any client trains
    RUNNERS.settings(config.runner.name, config.runner.settings)
    device = build_device(config.device)
    dataset = load(config.data.name, **config.data.settings)
    transform = transform_for(dataset, config.data.augment)
    parts = split_dataset(config, dataset)
    module = build_module(config, dataset)
    clients = PooledClients.split(dataset.train.inputs, dataset.train.targets, transform, parts)
    test = Examples(dataset.test.inputs, dataset.test.targets, transform)
    job = Job(algorithm, Model(module, device), clients, local, len(dataset.classes), config.seed, test)
    return Built(job, dataset)


def local_training(section: configuration.Local) -> LocalTraining:
    """How a client trains."""
    schedule = Schedule(section.epochs, section.batch, section.drop_last)
    rate = (section.lr, section.lr_decay)
    return LocalTraining(schedule, section.optimizer, *rate, section.momentum, section.weight_decay)


def split_dataset(config: Config, dataset: Dataset) -> list[Any]:
    """The rows of each client."""
    section = config.partition
    groups = None if dataset.groups is None else dataset.groups.numpy()
    targets = dataset.train.targets.numpy()
    return list(split(section.name, targets, section.clients, section.seed, groups, **section.settings))


def build_module(config: Config, dataset: Dataset) -> nn.Module:
    """The network with its initial weights."""
    section = config.model
    module = build_model(
        section.name, dataset.shape, len(dataset.classes), seed=key(config.seed, "model"), **section.settings
    )
    if section.projection is None:
        return module
    seed = key(config.seed, "projection")
    return with_projection(module, section.projection, dataset.shape, len(dataset.classes), seed=seed)


def build_device(name: str) -> torch.device:
    """The device of that name, if it is there."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"the device '{name}' cannot be used here ({reason}): set device = 'cpu'") from None
    return device


def build_runner(config: Config, job: Job) -> Runner:
    """The runner, ready to train."""
    settings = RUNNERS.settings(config.runner.name, config.runner.settings)
    runner: Runner = RUNNERS[config.runner.name](job, **settings)
    return runner


def resolved(config: Config) -> Config:
    """The configuration with the defaults of everything it names written out, after a check of every name and field."""
    build_algorithm(config.algorithm)
    sections = {"algorithm": written_out(config.algorithm)}
    registries = {"data": DATASETS, "partition": PARTITIONS, "model": MODELS, "runner": RUNNERS}
    for name, registry in registries.items():
        section: configuration.Named = getattr(config, name)
        registry.settings(section.name, section.settings)
        sections[name] = {**section.model_dump(), **with_defaults(registry[section.name], section.settings)}
    return Config.model_validate({**config.model_dump(), **sections})
