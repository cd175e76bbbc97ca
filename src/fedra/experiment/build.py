"""From a configuration to the things it names."""

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
from fedra.core.compiling import refuse_without_compiler
from fedra.core.data_rule import Public
from fedra.core.device import build_device
from fedra.core.job import Job
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model, Weights
from fedra.core.personalizer import Personalizer
from fedra.core.precision import Precision, build_precision
from fedra.core.random import generator, key
from fedra.data import Dataset, Split, Transform, load, transform_for
from fedra.data.clients import LocalLabels, OwnClients, PooledClients
from fedra.data.image_sizes import UNALIGNED
from fedra.data.partition import split
from fedra.data.validation import hold_out
from fedra.errors import ConfigError
from fedra.evaluation.metrics import MetricChoice, check_classes, choose_metrics, needs_scores
from fedra.evaluation.personal_models import personal_job, refuse_untestable
from fedra.experiment.cohort import CohortRule
from fedra.experiment.evaluators.client_evaluator import ClientsJudge
from fedra.experiment.evaluators.evaluator import Classification, Judge, VerificationJudge, choose_protocol
from fedra.experiment.evaluators.round_summary import Measures, choose_measures
from fedra.experiment.pooling import pool_clients
from fedra.models import build as build_model
from fedra.models import digest_of_weights, load_weights, with_projection
from fedra.models.find_head import unwrapped
from fedra.runners import RUNNERS, Runner, choose
from fedra.runners.centralized import refuse_federated_parts
from fedra.storage.trained_model import describe_input


@dataclass(frozen=True, kw_only=True)
class Ingredients:
    """What a job is made of, whether a configuration named it or a user gave it as objects.

    `dataset` has the classes, the test examples and the constants of the inputs; `transform` prepares its test
    examples. The training examples are the clients'.
    """

    algorithm: Algorithm
    module: nn.Module
    clients: PooledClients | OwnClients
    dataset: Dataset
    transform: InputTransform
    device: torch.device
    precision: Precision | None
    public: Public | None = None
    unwrap: Callable[[nn.Module], nn.Module] = lambda module: module
    metrics: MetricChoice = ()  # of the user's own, in addition to those that the configuration names


@dataclass(frozen=True, kw_only=True)
class Built:
    """A job, the data set behind it, and how its model is tested; `unwrap` gives the user's own module back."""

    job: Job
    dataset: Dataset
    protocol: sections.Protocol
    judge: Judge
    measures: Measures
    unwrap: Callable[[nn.Module], nn.Module]

    def module_with(self, weights: Weights) -> nn.Module:
        """The trained module as its user knows it."""
        return self.unwrap(self.job.model.module_with(weights))

    def about(self, config: Config) -> dict[str, Any]:
        """What a model's file says of the model: its network, its classes and its inputs."""
        classes, inputs = list(self.dataset.classes), describe_input(self.dataset)
        return {"model": config.model.model_dump(), "classes": classes, "input": inputs}


def build(config: Config, metrics: MetricChoice = ()) -> Built:
    """The job a configuration describes, tested by its metrics and by `metrics` of the user's own.

    Mistakes are found before any data are read where that is possible.
    """
    algorithm = build_algorithm(config.algorithm)
    check_settings(config, algorithm)
    device = build_device(config.device)
    precision = build_precision(config.precision, device)
    if config.compile:
        refuse_without_compiler(device)
    dataset = build_dataset(config)
    transform = transform_for(dataset, config.data.augment)
    # Before the examples are divided and the network is made.
    choose_measures(config.evaluation, choose_protocol(config.evaluation.protocol, dataset), metrics)
    parts = split_dataset(config, dataset)
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
            public=None if config.public is None else build_public(config.public, dataset, transform),
            metrics=metrics,
            unwrap=unwrapped,
        ),
    )


def check_settings(config: Config, algorithm: Algorithm) -> None:
    """Refuse settings that do not go together; no data are needed for it."""
    choose_metrics(config.evaluation.metrics)
    if config.faults.straggler and config.faults.deadline is None:
        raise ConfigError("faults.straggler only slows clients down: set faults.deadline to say how late is too late")
    local = local_training(config.local, config.rounds)
    _check_last_rate(algorithm, local, config.rounds)
    RUNNERS.settings(config.runner.name, config.runner.settings)
    if is_centralized(config):
        refuse_federated_parts(algorithm)
    algorithm.check_training(local.at(0), local.epochs)
    if config.public is not None:
        algorithm.data.check_public(algorithm)


def assemble(config: Config, given: Ingredients) -> Built:
    """The job of these ingredients, and how its model is tested."""
    algorithm, dataset, clients = given.algorithm, given.dataset, given.clients
    protocol = choose_protocol(config.evaluation.protocol, dataset)
    _check_counted(config, algorithm, dataset, protocol)
    measures = choose_measures(config.evaluation, protocol, given.metrics)
    check_classes(measures.metrics, len(dataset.classes))
    judge = build_judge(config, protocol, dataset, given.transform, clients, measures)
    validation: Examples | None = None
    if config.evaluation.validation:
        clients, held_out = hold_out(clients, config.evaluation.validation, config.partition.seed)
        validation = held_out.kept()
    known = dataset.known_test
    job = Job(
        algorithm=algorithm,
        model=Model(given.module, given.device, given.precision, config.compile),
        clients=clients,
        local=local_training(config.local, config.rounds),
        classes=len(dataset.classes),
        seed=config.seed,
        test=Examples(known.inputs, known.targets, given.transform).kept() if len(known) else None,
        public=given.public,
        validation=validation,
        keep_scores=needs_scores(measures.single),
    )
    job = pool_clients(job, clients) if is_centralized(config) else with_owners(job, clients)
    if algorithm.personalize is not None:
        check_own_models(job, algorithm.personalize, config.rounds, protocol)
    return Built(job=job, dataset=dataset, protocol=protocol, judge=judge, measures=measures, unwrap=given.unwrap)


def build_judge(
    config: Config,
    protocol: sections.Protocol,
    dataset: Dataset,
    transform: InputTransform,
    clients: PooledClients | OwnClients,
    measures: Measures,
) -> Judge:
    """The judge of a chosen protocol."""
    if protocol == "verification":
        return VerificationJudge(dataset, transform)
    if protocol == "classification":
        return Classification(measures.single)
    owned = [torch.unique(clients.labels(client)) for client in range(len(clients))]
    return ClientsJudge(dataset, transform, owned, config.evaluation, config.partition.seed)


def _check_counted(config: Config, algorithm: Algorithm, dataset: Dataset, protocol: sections.Protocol) -> None:
    """Figures that count right answers need somebody to count them, and images of the classes to count them on."""
    if config.diagnostics.classes and protocol != "classification":
        raise ConfigError(
            "diagnostics.classes counts right answers, and the run verifies pairs or people: set "
            "evaluation.protocol = 'classification', or leave it out"
        )
    if algorithm.personalize is not None and len(dataset.test) and not len(dataset.known_test):
        raise ConfigError(
            f"the part '{algorithm.personalize.name}' is tested on images of the classes that are trained, and the "
            f"data set '{dataset.name}' has none: raise data.test_fraction"
        )


def check_own_models(
    job: Job, personalizer: Personalizer, rounds: int, protocol: sections.Protocol = "classification"
) -> None:
    """What would end the run after its last round, told before the first: clients that cannot train or be tested."""
    if protocol != "clients":  # verification judges the global model alone: clients' own ones still count answers
        refuse_untestable(job)
    if personalizer.stages[-1]:
        try:
            personal_job(job, personalizer, rounds).initial()
        except ConfigError as error:
            raise ConfigError(f"clients cannot train by the part '{personalizer.name}': {error}") from None


def with_owners(job: Job, clients: PooledClients | OwnClients) -> Job:
    """The job with every client's classes numbered for itself, where classes belong to clients."""
    if not job.algorithm.owns_classes:
        return job
    local = LocalLabels.of(clients, job.classes)
    return replace(job, clients=local, owners=local.owners)


def build_public(section: sections.PublicSection, dataset: Dataset, transform: Transform) -> Public:
    """The public examples, which show nobody of the clients' people."""
    public = load(section.name, **section.settings)
    if public.shape != dataset.shape or public.train.inputs.dtype != dataset.train.inputs.dtype:
        raise ConfigError(
            f"public examples are {public.train.inputs.dtype} of shape {public.shape}, the clients' "
            f"{dataset.train.inputs.dtype} of shape {dataset.shape}: set public.size, or take another set"
        )
    theirs = set(_first_images(public).values())
    for name, image in _first_images(dataset).items():
        if image in theirs:
            raise ConfigError(
                f"'{name}' of the clients' data is among the public examples too: public people must be others, so "
                "take another set, or another seed"
            )
    return Public(Examples(public.train.inputs, public.train.targets, transform), len(public.classes))


def _first_images(dataset: Dataset) -> dict[str, bytes]:
    """A digest of every class's first training example."""
    classes, rows = np.unique(dataset.train.targets.numpy(), return_index=True)
    images = dataset.train.inputs[torch.from_numpy(rows)].contiguous().numpy()
    return {
        dataset.classes[number]: hashlib.blake2b(image.tobytes()).digest()
        for number, image in zip(classes, images, strict=True)
    }


def local_training(section: sections.LocalSection, rounds: int) -> LocalTraining:
    """How a client trains in a run of so many rounds."""
    if section.lr_decay != 1 and section.schedule not in ("constant", {"name": "constant"}):
        raise ConfigError(
            f"local.lr_decay = {section.lr_decay:g} and local.schedule = {section.schedule!r} both say how the rate "
            "moves: keep one (schedule = { name = 'exponential' } is what lr_decay does)"
        )
    local = LocalTraining(**{**section.model_dump(), "schedule": build_schedule(section.schedule)}, rounds=rounds)
    local.at(0)  # a warm-up longer than the run is refused before any data are read
    return local


def _check_last_rate(algorithm: Algorithm, local: LocalTraining, rounds: int) -> None:
    """A personalizer goes on at the last rate, which must not be nothing."""
    personalizer = algorithm.personalize
    if personalizer is not None and personalizer.stages[-1] and personalizer.training(local, rounds).lr == 0:
        raise ConfigError(
            f"local.schedule ends at the rate 0, at which the part '{personalizer.name}' would change nothing: "
            "give the schedule a floor, or the part initial_rate = true"
        )


def build_dataset(config: Config) -> Dataset:
    """The data set, or of its training examples a share of each class: one at least."""
    dataset = load(config.data.name, **config.data.settings)
    if config.data.fraction == 1:
        return dataset
    targets = dataset.train.targets
    order = torch.randperm(len(targets), generator=generator(config.partition.seed, "share of the examples"))
    order = order[targets[order].argsort(stable=True)]
    sizes = targets.bincount()
    wanted = (sizes * config.data.fraction).round().clamp(min=1)
    place = torch.arange(len(targets)) - (sizes.cumsum(0) - sizes)[targets[order]]
    rows = order[place < wanted[targets[order]]].sort().values
    groups = None if dataset.groups is None else dataset.groups[rows]
    return replace(dataset, train=Split(dataset.train.inputs[rows], targets[rows]), groups=groups)


def alignment_note(dataset: Dataset) -> str | None:
    """The warning that a set of faces holds images which are no aligned crops of its size, if it does."""
    notes = [note for name, note in dataset.notes.items() if name.startswith(UNALIGNED)]
    return "\n".join(f"warning: {note}" for note in notes) or None


def split_dataset(config: Config, dataset: Dataset) -> list[Any]:
    """The rows of each client."""
    section = config.partition
    groups = None if dataset.groups is None else dataset.groups.numpy()
    targets = dataset.train.targets.numpy()
    return list(split(section.name, targets, section.clients, section.seed, groups, **section.settings))


def build_module(config: Config, dataset: Dataset) -> nn.Module:
    """The network with its initial weights: drawn, or from a file."""
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
        if section.weights_digest not in (None, digest_of_weights(section.weights)):
            raise ConfigError(
                f"the weights in '{section.weights}' are not those that the run began with: put the old ones back, or "
                "begin another run"
            )
        load_weights(module, section.weights)
    if section.projection is None:
        return module
    seed = key(config.seed, "projection")
    return with_projection(module, section.projection, dataset.shape, len(dataset.classes), seed=seed)


def build_runner(config: Config, job: Job) -> Runner:
    """The runner, ready to train."""
    settings = RUNNERS.settings(config.runner.name, config.runner.settings)
    runner: Runner = RUNNERS[config.runner.name](job, **settings)
    return runner


def settle_runner(config: Config, job: Job) -> Config:
    """The configuration with the runner that auto chooses for the job in auto's place."""
    personalizer = job.algorithm.personalize
    trains = personalizer is not None and personalizer.stages[-1] > 0
    also = () if personalizer is None or not trains else (personal_job(job, personalizer, config.rounds),)
    cohort = CohortRule(config.cohort.fraction).size(len(job.clients))
    choice = choose(job, cohort, **config.runner.settings, also=also)
    settings = with_defaults(RUNNERS[choice.runner], choice.settings)
    return config.model_copy(
        update={"runner": sections.RunnerSection(name=choice.runner, auto=str(choice), **settings)}
    )
