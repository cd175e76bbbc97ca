"""Build jobs from configurations."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from fedra.config import schema as sections
from fedra.config.mode import is_centralized
from fedra.config.names import build_algorithm, build_schedule, with_defaults
from fedra.config.schema import Config
from fedra.core.algorithm import Algorithm
from fedra.core.batches import Examples, InputTransform
from fedra.core.compiling import check_compiler
from fedra.core.data_rule import Public
from fedra.core.device import build_device
from fedra.core.evaluate import EVALUATION_BATCH
from fedra.core.job import Job, ServerJob
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model, Weights
from fedra.core.personalizer import Personalizer
from fedra.core.precision import Precision, build_precision
from fedra.core.random import generator, key
from fedra.core.robust_fold import RootSelecting
from fedra.data import Dataset, Split, Transform, load, transform_for
from fedra.data.cache import caching
from fedra.data.clients import LocalLabels, PooledClients, SeparateClients
from fedra.data.image_sizes import LEFT_OUT, UNALIGNED
from fedra.data.partition import split
from fedra.data.streaming import STREAMED
from fedra.data.validation import hold_out
from fedra.errors import ConfigError, nearest
from fedra.evaluation.metrics import MetricChoice, check_classes, choose_metrics, needs_scores
from fedra.evaluation.personal_models import check_clients_testable, personal_job
from fedra.experiment import optional
from fedra.experiment.cohort import CohortRule
from fedra.experiment.evaluators.evaluator import Classification, Evaluator, choose_protocol
from fedra.experiment.evaluators.round_summary import Measures, choose_measures
from fedra.experiment.pooling import pool_clients
from fedra.models import build as build_model
from fedra.models import hash_weights, load_weights, with_projection
from fedra.models.find_head import unwrap_model
from fedra.runners import RUNNERS, Runner, choose, choose_stack
from fedra.runners.centralized import check_centralized
from fedra.storage.trained_model import describe_input


@dataclass(frozen=True, kw_only=True)
class Ingredients:
    """The objects that a job is assembled from, named by a configuration or given by a user.

    `dataset` provides the classes, the test examples and the normalization constants; `transform` prepares the test
    examples. The training examples come from `clients`.
    """

    algorithm: Algorithm
    module: nn.Module
    clients: PooledClients | SeparateClients
    dataset: Dataset
    transform: InputTransform
    device: torch.device
    precision: Precision | None
    public: Public | None = None
    unwrap: Callable[[nn.Module], nn.Module] = lambda module: module
    metrics: MetricChoice = ()  # user metrics, in addition to those of the configuration


@dataclass(frozen=True, kw_only=True)
class ServerBuilt:
    """What the server knows of a job, its data set and its evaluator; `unwrap` returns the user's own module."""

    job: ServerJob
    dataset: Dataset
    protocol: sections.Protocol
    evaluator: Evaluator
    measures: Measures
    unwrap: Callable[[nn.Module], nn.Module]

    def module_with(self, weights: Weights) -> nn.Module:
        """Return the trained module in its original form."""
        return self.unwrap(self.job.model.module_with(weights))

    def about(self, config: Config) -> dict[str, Any]:
        """Return the metadata of a model file: network, classes and inputs."""
        classes, inputs = list(self.dataset.classes), describe_input(self.dataset)
        return {"model": config.model.model_dump(), "classes": classes, "input": inputs}


@dataclass(frozen=True, kw_only=True)
class Built(ServerBuilt):
    """A job with its data, its data set and its evaluator."""

    job: Job


def build(config: Config, metrics: MetricChoice = ()) -> Built:
    """Build the job of a configuration, with its metrics and the user's `metrics`.

    Invalid settings are reported before any data are read, where possible.
    """
    algorithm = build_algorithm(config.algorithm)
    check_settings(config, algorithm)
    device = build_device(config.device)
    precision = build_precision(config.precision, device)
    if config.compile:
        check_compiler(device)
    dataset = build_dataset(config)
    transform = transform_for(dataset, config.data.augment)
    # Report invalid metrics before the slow steps: the partition and the network.
    choose_measures(config.evaluation, choose_protocol(config.evaluation.protocol, dataset), metrics)
    parts = split_dataset(config, dataset)
    with caching(config.data.cache):
        public = None if config.public is None else build_public(config.public, dataset, transform)
    return assemble(
        config,
        Ingredients(
            algorithm=algorithm,
            module=build_module(config, dataset),
            clients=PooledClients.split(dataset.train.inputs, dataset.train.targets, transform, parts),
            dataset=dataset,
            transform=transform,
            device=device,
            precision=precision,
            public=public,
            metrics=metrics,
            unwrap=unwrap_model,
        ),
    )


def check_settings(config: Config, algorithm: Algorithm) -> None:
    """Raise on settings that cannot be combined, before any data are read."""
    choose_metrics(config.evaluation.metrics)
    if config.faults.straggler and config.faults.deadline is None:
        raise ConfigError(
            f"faults.deadline must be set for stragglers, got faults.straggler = {config.faults.straggler:g} "
            "alone: set it"
        )
    local = local_training(config.local, config.rounds)
    _check_last_rate(algorithm, local, config.rounds)
    RUNNERS.settings(config.runner.name, config.runner.settings)
    if is_centralized(config):
        check_centralized(algorithm)
    elif config.diagnostics.class_vectors:
        optional.class_vectors_of(algorithm)
    algorithm.check_training(local.at(0), local.epochs)
    if config.public is not None:
        algorithm.data.check_public(algorithm)
    if config.privacy.level != "none":
        optional.check_privacy(config, algorithm)


def assemble(config: Config, given: Ingredients) -> Built:
    """Assemble the job and its evaluator."""
    algorithm, dataset, clients = given.algorithm, given.dataset, given.clients
    protocol = choose_protocol(config.evaluation.protocol, dataset)
    _check_counted(config, algorithm, dataset, protocol)
    measures = choose_measures(config.evaluation, protocol, given.metrics)
    check_classes(measures.metrics, len(dataset.classes))
    evaluator = build_evaluator(config, protocol, dataset, given.transform, clients, measures)
    validation: Examples | None = None
    if config.evaluation.validation:
        clients, held_out = hold_out(clients, config.evaluation.validation, config.partition.seed)
        validation = held_out.kept()
    root: Examples | None = None
    if isinstance(algorithm.combine, RootSelecting):
        what, seed = f"share of {algorithm.combine.name}", key(config.partition.seed, "root")
        clients, root = hold_out(clients, algorithm.combine.share, seed, what)
    known = dataset.known_test
    job = Job(
        algorithm=algorithm,
        model=Model(given.module, given.device, given.precision, config.compile),
        clients=clients,
        local=local_training(config.local, config.rounds),
        classes=len(dataset.classes),
        seed=config.seed,
        shape=dataset.shape,
        test=Examples(known.inputs, known.targets, given.transform).kept() if len(known) else None,
        public=given.public,
        validation=validation,
        root=root,
        keep_scores=needs_scores(measures.single),
    )
    job = pool_clients(job, clients) if is_centralized(config) else add_class_owners(job, clients)
    if config.is_protected:
        job = replace(job, algorithm=optional.add_privacy(config, job))
    if job.local.lr_of:
        _check_rates(job)
    if algorithm.personalize is not None:
        check_personal_models(job, algorithm.personalize, config.rounds, protocol)
    return Built(
        job=job, dataset=dataset, protocol=protocol, evaluator=evaluator, measures=measures, unwrap=given.unwrap
    )


def build_evaluator(
    config: Config,
    protocol: sections.Protocol,
    dataset: Dataset,
    transform: InputTransform,
    clients: PooledClients | SeparateClients,
    measures: Measures,
) -> Evaluator:
    """Build the evaluator of a protocol."""
    if protocol == "verification":
        return optional.VerificationEvaluator(dataset, transform)
    if protocol == "classification":
        return Classification(measures.single)
    owned = [torch.unique(clients.labels(client)) for client in range(len(clients))]
    return optional.ClientEvaluator(dataset, transform, owned, config.evaluation, config.partition.seed)


def _check_counted(config: Config, algorithm: Algorithm, dataset: Dataset, protocol: sections.Protocol) -> None:
    """Check that metrics of correct answers have a classifier and test images of its classes."""
    if config.diagnostics.classes and protocol != "classification":
        raise ConfigError(
            f"diagnostics.classes needs evaluation.protocol = 'classification', got '{protocol}': set the protocol, or "
            "leave the diagnostic out"
        )
    if algorithm.personalize is not None and len(dataset.test) and not len(dataset.known_test):
        raise ConfigError(
            f"the part '{algorithm.personalize.name}' needs test images of the training classes, got none in the data "
            f"set '{dataset.name}': raise data.test_fraction"
        )


def check_personal_models(
    job: Job, personalizer: Personalizer, rounds: int, protocol: sections.Protocol = "classification"
) -> None:
    """Check that personal models can be trained and tested, before the first round instead of after the last."""
    if (
        protocol != "clients"
    ):  # verification tests only the global model; personal models are still tested by classification
        check_clients_testable(job)
    if personalizer.stages[-1]:
        try:
            personal_job(job, personalizer, rounds).initial()
        except ConfigError as error:
            raise ConfigError(f"clients must be able to train with the part '{personalizer.name}': {error}") from None


def add_class_owners(job: Job, clients: PooledClients | SeparateClients) -> Job:
    """Number each client's classes locally if the algorithm lets clients own classes."""
    if not job.algorithm.owns_classes:
        return job
    local = LocalLabels.of(clients, job.classes)
    return replace(job, clients=local, owners=local.owners)


def build_public(section: sections.PublicSection, dataset: Dataset, transform: Transform) -> Public:
    """Load the public examples, whose identities must differ from those of the clients."""
    public = load(section.name, **section.settings)
    if public.shape != dataset.shape or public.train.inputs.dtype != dataset.train.inputs.dtype:
        raise ConfigError(
            f"public examples must be {dataset.train.inputs.dtype} of shape {dataset.shape}, as the clients' are, got "
            f"{public.train.inputs.dtype} of shape {public.shape}: set public.size, or use another data set"
        )
    public_images = set(_first_images(public).values())
    for name, image in _first_images(dataset).items():
        if image in public_images:
            raise ConfigError(
                f"public identities must differ from those of the clients, got '{name}' in both: use another data "
                "set or "
                "another seed"
            )
    return Public(Examples(public.train.inputs, public.train.targets, transform), len(public.classes))


def _first_images(dataset: Dataset) -> dict[str, bytes]:
    """Return a digest of the first training example of every class."""
    classes, rows = np.unique(dataset.train.targets.numpy(), return_index=True)
    chunks = torch.split(torch.from_numpy(rows), EVALUATION_BATCH)  # streamed images are read a few at a time
    images = (image for chunk in chunks for image in dataset.train.inputs[chunk].contiguous().numpy())
    return {
        dataset.classes[number]: hashlib.blake2b(image.tobytes()).digest()
        for number, image in zip(classes, images, strict=True)
    }


def local_training(section: sections.LocalSection, rounds: int) -> LocalTraining:
    """Build the settings of local training for a run of `rounds` rounds."""
    if section.lr_decay != 1 and section.schedule not in ("constant", {"name": "constant"}):
        raise ConfigError(
            "only one of local.lr_decay and local.schedule may be set, got "
            f"lr_decay = {section.lr_decay:g} and schedule = {section.schedule!r}: drop one (lr_decay is the same as "
            "schedule = { name = 'exponential' })"
        )
    if section.sampling == "poisson" and section.drop_last:
        raise ConfigError("local.drop_last needs shuffled batches, got local.sampling = 'poisson': remove one of them")
    local = LocalTraining(**{**section.model_dump(), "schedule": build_schedule(section.schedule)}, rounds=rounds)
    local.at(0)  # raises on a warm-up longer than the run, before any data are read
    return local


def _check_rates(job: Job) -> None:
    """Check that every prefix in local.lr_of matches a parameter that is trained."""
    names = tuple(job.initial().params)
    trained = job.algorithm.sharing.trained(names)
    for prefix in job.local.lr_of:
        if not any(name.startswith(prefix) for name in names):
            layers = {name.rpartition(".")[0] + "." for name in names} | {"body.", "head."}
            raise ConfigError(
                f"prefixes in local.lr_of must match a parameter of the model, got '{prefix}': "
                f"{nearest(prefix, layers)}"
            )
        # A personalizer may train what the rounds freeze, such as FedBABU's head.
        if job.algorithm.personalize is None and not any(name.startswith(prefix) for name in trained):
            raise ConfigError(
                f"parameters in local.lr_of must be trained, got '{prefix}', which the algorithm freezes: remove it"
            )


def _check_last_rate(algorithm: Algorithm, local: LocalTraining, rounds: int) -> None:
    """Check that the last learning rate, which a personalizer continues with, is not 0."""
    personalizer = algorithm.personalize
    if personalizer is not None and personalizer.stages[-1] and personalizer.training(local, rounds).lr == 0:
        raise ConfigError(
            f"the last learning rate of local.schedule must not be 0 for the part '{personalizer.name}', got 0: set a "
            "floor in the schedule, or initial_rate = true in the part"
        )


def build_dataset(config: Config) -> Dataset:
    """Load the data set, with a share of the training examples of each class (at least one) if one is set."""
    with caching(config.data.cache):
        dataset = load(config.data.name, **config.data.settings)
    if config.data.fraction == 1:
        return dataset
    targets = dataset.train.targets
    order = torch.randperm(len(targets), generator=generator(config.partition.seed, "share of the examples"))
    order = order[targets[order].argsort(stable=True)]
    sizes = targets.bincount()
    wanted = (sizes * config.data.fraction).round().clamp(min=1)
    index = torch.arange(len(targets)) - (sizes.cumsum(0) - sizes)[targets[order]]
    rows = order[index < wanted[targets[order]]].sort().values
    groups = None if dataset.groups is None else dataset.groups[rows]
    return replace(dataset, train=Split(dataset.train.inputs[rows], targets[rows]), groups=groups)


def data_notes(dataset: Dataset) -> str | None:
    """Return the warnings about images that are not aligned crops or were left out, and the note on streamed images."""
    notes = [f"warning: {note}" for name, note in dataset.notes.items() if name.startswith(UNALIGNED)]
    if skipped := dataset.notes.get(LEFT_OUT, "").splitlines():
        notes.append(f"warning: {len(skipped):,} images were left out, such as {skipped[0]}")
    return "\n".join([*notes, *(dataset.notes[name] for name in (STREAMED,) if name in dataset.notes)]) or None


def split_dataset(config: Config, dataset: Dataset) -> list[Any]:
    """Return the example indices of each client."""
    section = config.partition
    groups = None if dataset.groups is None else dataset.groups.numpy()
    targets = dataset.train.targets.numpy()
    return list(split(section.name, targets, section.clients, section.seed, groups, **section.settings))


def build_module(config: Config, dataset: Dataset) -> nn.Module:
    """Build the network with its initial weights, random or from a file."""
    section = config.model
    module = build_model(
        section.name,
        dataset.shape,
        len(dataset.classes),
        seed=key(config.seed, "model"),
        head=section.head,
        **section.settings,
    )
    if section.weights is not None:
        if section.weights_digest not in (None, hash_weights(section.weights)):
            raise ConfigError(
                f"the weights in '{section.weights}' must be those that the run started with, got other weights: "
                "restore "
                "the file, or start a new run"
            )
        load_weights(module, section.weights)
    if section.projection is None:
        return module
    seed = key(config.seed, "projection")
    return with_projection(module, section.projection, dataset.shape, len(dataset.classes), seed=seed)


def build_runner(config: Config, job: Job) -> Runner:
    """Build the runner of a job."""
    settings = RUNNERS.settings(config.runner.name, config.runner.settings)
    runner: Runner = RUNNERS[config.runner.name](job, **settings)
    return runner


def resolve_runner(config: Config, job: Job) -> Config:
    """Replace the runner `auto` in the configuration by the one it chooses for the job, and the stacks of `ray`."""
    personalizer = job.algorithm.personalize
    trains = personalizer is not None and personalizer.stages[-1] > 0
    also = () if personalizer is None or not trains else (personal_job(job, personalizer, config.rounds),)
    cohort, given = CohortRule(config.cohort.fraction).size(len(job.clients)), config.runner.settings
    if config.runner.name == "ray":
        runner = sections.RunnerSection(name="ray", **{**given, "stack": choose_stack(job, cohort, also)})
        return config.model_copy(update={"runner": runner})
    choice = choose(job, cohort, **given, also=also)
    settings = with_defaults(RUNNERS[choice.runner], choice.settings)
    return config.model_copy(
        update={"runner": sections.RunnerSection(name=choice.runner, auto=str(choice), **settings)}
    )
