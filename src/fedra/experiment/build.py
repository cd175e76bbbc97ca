"""From a configuration to the things it names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from dataclasses import fields as dataclass_fields
from typing import Any, get_args, get_type_hints

import torch
from torch import nn

from fedra.algorithms import ALGORITHMS
from fedra.core.batches import Examples, Schedule
from fedra.core.job import Job, LocalTraining
from fedra.core.model import Model
from fedra.core.part import KNOWN, Algorithm, Part
from fedra.core.random import key
from fedra.data import DATASETS, Dataset, load, transform_for
from fedra.data.clients import PooledClients
from fedra.data.partition import PARTITIONS, split
from fedra.errors import ConfigError, nearest
from fedra.experiment import config as configuration
from fedra.experiment.config import Config
from fedra.losses import LOSSES
from fedra.losses.base import AngularLoss
from fedra.models import MODELS, with_projection
from fedra.models import build as build_model
from fedra.registry import Field, checked, fields
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


def build_algorithm(section: configuration.Algorithm) -> Algorithm:
    """The algorithm with all its parts."""
    algorithm = _algorithm(section.name, section.settings)
    for extra in section.plus:
        algorithm = algorithm.plus(_named(extra, "algorithm.plus"))
    return algorithm


def _algorithm(name: str, settings: Mapping[str, Any]) -> Algorithm:
    owner = f"the algorithm '{name}'"
    recipe = _recipe(name)
    result = recipe(**checked(owner, fields(recipe), settings, _to_part))
    if not isinstance(result, Algorithm):
        raise ConfigError(f"{owner} returned a {type(result).__name__}: it must return a fedra Algorithm")
    return result


def _recipe(name: str) -> Callable[..., Any]:
    return _import(name) if ":" in name else ALGORITHMS[name]


def _import(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"the algorithm '{path}' cannot be imported ({error}): put its folder on PYTHONPATH"
        ) from None
    if not callable(found):
        raise ConfigError(f"'{path}' is no function: name a function that returns an Algorithm")
    return found  # type: ignore[no-any-return]


def _to_part(field: Field, value: Any) -> Any:
    """A field that wants a part may be given the part's name, or a table with its name and fields."""
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if inspect.isclass(kind)]
    if any(issubclass(kind, AngularLoss) for kind in kinds) and isinstance(value, str | Mapping):
        return _loss(value, field.name)
    wanted = [kind for kind in kinds if issubclass(kind, Part)]
    if not wanted or not isinstance(value, str | Mapping):
        return value
    part = _named(value, field.name)
    if not isinstance(part, tuple(wanted)):
        kind = wanted[0].__name__
        raise ConfigError(f"'{_name(value, field.name)}' is no {kind} and cannot be the field '{field.name}'")
    return part


def _named(value: str | Mapping[str, Any], where: str) -> Part | Algorithm:
    """The part or algorithm of that name."""
    name = _name(value, where)
    settings = {} if isinstance(value, str) else {k: v for k, v in value.items() if k != "name"}
    if name in ALGORITHMS or ":" in name:
        return _algorithm(name, settings)
    if name not in KNOWN:
        raise ConfigError(f"{where}: there is no part '{name}': {nearest(name, [*KNOWN, *ALGORITHMS])}")
    kind = KNOWN[name]
    return kind(**checked(f"the part '{name}'", part_fields(kind), settings, _to_part))


def _loss(value: str | Mapping[str, Any], where: str) -> AngularLoss:
    """The margin loss of that name."""
    name = _name(value, where)
    settings = {} if isinstance(value, str) else {k: v for k, v in value.items() if k != "name"}
    kind = LOSSES[name]
    loss: AngularLoss = kind(**checked(f"the loss '{name}'", part_fields(kind), settings))
    return loss


def _name(value: str | Mapping[str, Any], where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value.get("name"), str):
        raise ConfigError(f"{where}: a part is given by its name, such as {{ name = 'proximal', mu = 0.1 }}")
    return str(value["name"])


def part_fields(kind: Any) -> dict[str, Field]:
    """The fields of a part's or a loss's class."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        item.name: Field(
            item.name, hints[item.name], inspect.Parameter.empty if item.default is MISSING else item.default
        )
        for item in dataclass_fields(kind)
    }


def resolved(config: Config) -> Config:
    """The configuration with the defaults of everything it names written out, after a check of every name and field."""
    build_algorithm(config.algorithm)
    sections = {"algorithm": _filled(config.algorithm, _recipe(config.algorithm.name))}
    registries = {"data": DATASETS, "partition": PARTITIONS, "model": MODELS, "runner": RUNNERS}
    for name, registry in registries.items():
        section: configuration.Named = getattr(config, name)
        registry.settings(section.name, section.settings)
        sections[name] = _filled(section, registry[section.name])
    return Config.model_validate({**config.model_dump(), **sections})


def _filled(section: configuration.Named, function: Callable[..., Any]) -> dict[str, Any]:
    defaults = {
        name: field.default
        for name, field in fields(function).items()
        if not field.required and field.default is not None and not isinstance(field.default, Part)
    }
    return {**section.model_dump(), **defaults, **section.settings}
