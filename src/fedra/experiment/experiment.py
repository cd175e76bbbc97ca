"""`fedra.Experiment`: an algorithm, a model, clients and settings, which can be run any number of times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from torch import nn

from fedra.callbacks.callback import Callback, check_callbacks
from fedra.config import reading as configuration
from fedra.config.mode import notice
from fedra.config.resolve import have_same_settings, record_weights_digest, resolve_defaults
from fedra.config.schema import OBJECT, Config, LocalSection
from fedra.console import choose_console, tell
from fedra.core.algorithm import Algorithm
from fedra.core.local_training import LocalTraining
from fedra.core.precision import Wanted, describe_instructions
from fedra.core.rates import SCHEDULES
from fedra.core.round import init_server
from fedra.data import data_root
from fedra.data.cache import CACHE
from fedra.data.loading import ALTERED
from fedra.errors import ConfigError
from fedra.evaluation.metrics import MetricChoice, split_metrics
from fedra.experiment.build import Built, build, data_notes, resolve_runner
from fedra.experiment.cohort import CohortRule
from fedra.experiment.data_digests import check_data, digest_data
from fedra.experiment.execution import LocalEngine, add_diagnostics, builtin_callbacks, create_state, execute
from fedra.experiment.memory_estimate import check_memory
from fedra.experiment.result import RunResult
from fedra.experiment.user_data import Client
from fedra.experiment.user_objects import UserObjects, describe_parts
from fedra.runners.fastest_precision import choose_precision, with_precision
from fedra.runners.worker_death import end_reimported_script
from fedra.storage.run_folder import RunFolder
from fedra.trust import allow_imports

Table = Mapping[str, Any]
Protocol = Literal["auto", "classification", "verification", "clients"]


class Experiment:
    """An algorithm, a model, clients and training settings; `run` trains the model.

    Your objects are copied and never changed. The result depends on the seed, not on the number of workers or
    interruptions; other runners agree to the bit or up to rounding.

    Args:
        algorithm: An `Algorithm`, such as `fedra.algorithms.fedprox(mu=0.1)`.
        model: Any `nn.Module` from a batch of inputs to logits. The head, which some algorithms treat separately, is
            the module's `head` if it also has a `body`, and the last layer it calls otherwise;
            `fedra.models.named_head` selects another. Training runs on the module's device.
        clients: For each client a pair (inputs, targets) of tensors or arrays, a triple that adds a transform of
            training batches, a map-style `Dataset`, which is read again in every epoch, or a `DataLoader` of one
            (its batches are not used).
        test: The test set in the same form, or None.
        rounds: Number of communication rounds; number of epochs in centralized training.
        local: All settings of local training in one object, instead of epochs, batch, lr and so on.
        epochs: Number of passes over a client's data in a round.
        batch: Batch size; None uses all examples of a client.
        lr: Learning rate of the local optimizer.
        momentum: Momentum of SGD.
        lr_of: Learning rates of parameters by prefix of their names, in place of `lr`, such as {"head.": 0.5}.
        weight_decay: Weight decay, added to the gradient at the unperturbed weights.
        lr_decay: Factor applied to the learning rate after every round.
        schedule: Name of the learning-rate schedule, or a table with its name and fields.
        optimizer: "sgd" or "adam".
        drop_last: Whether to drop the incomplete last batch of an epoch.
        fraction: Share of the clients that take part in a round.
        seed: Seed of every random draw.
        precision: Floating-point type of forward and backward passes; that of the module by default. "auto" takes the
            faster of float32 and bfloat16.
        compile: Whether to use torch.compile.
        mode: "federated", or "centralized" to train one model on the examples of all clients, one epoch per round, as
            a baseline.
        runner: Name of the runner, or a table with its name and fields.
        memory: Table with the fields `ram` and `precision` of the client states.
        evaluate_every: Number of rounds between two tests; the last round is always tested.
        protocol: "classification" measures correct answers; "verification" compares sampled pairs of the test set;
            "clients" tests how well each client recognizes its own people; "auto" chooses one of the first two.
        evaluation: Table with other fields of the section [evaluation], such as {"validation": 0.1, "best": "auroc"}.
        metrics: Metrics of a classifier: names such as "auroc", functions (targets, probabilities) -> number
            on NumPy arrays, `fedra.evaluation.Metric`s, or a mapping from names to functions.
        faults: Table with the fields of the section [faults], such as {"dropout": 0.2}.
        diagnostics: Names of additional measurements per round: "classes", "preservation", "divergence", "proximal",
            "class_vectors", "softmax_agreement".
        public: Public examples in the same form as a client, for algorithms that train on them.
        checkpoint: Minimum number of seconds between two checkpoints of a run with a folder.

    Returns:
        An experiment, whose `config` has every default written out.

    Example:
        >>> experiment = fedra.Experiment(fedra.algorithms.fedprox(mu=0.1), net, clients, test, rounds=20, lr=0.1)
        >>> result = experiment.run(out="runs/a", callbacks=[fedra.callbacks.EarlyStopping(patience=5)])
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module,
        clients: Sequence[Client],
        test: Client | None = None,
        *,
        rounds: int = 10,
        local: LocalTraining | None = None,
        epochs: int = 1,
        batch: int | None = 50,
        lr: float = 0.01,
        lr_of: Mapping[str, float] | None = None,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        lr_decay: float = 1.0,
        schedule: str | Table = "constant",
        optimizer: Literal["sgd", "adam"] = "sgd",
        drop_last: bool = False,
        fraction: float = 1.0,
        seed: int = 0,
        precision: Wanted | None = None,
        compile: bool = False,
        mode: Literal["federated", "centralized"] = "federated",
        runner: str | Table = "auto",
        memory: Table | None = None,
        evaluate_every: int = 1,
        protocol: Protocol = "auto",
        evaluation: Table | None = None,
        metrics: MetricChoice = (),
        faults: Table | None = None,
        diagnostics: Sequence[str] = (),
        public: Client | None = None,
        checkpoint: float = 10.0,
    ) -> None:
        if not isinstance(algorithm, Algorithm):
            raise ConfigError(
                f"algorithm must be an Algorithm, such as fedra.algorithms.fedavg(), got {type(algorithm).__name__}"
            )
        _check_objects(model, clients)
        names, own = split_metrics(metrics)
        named = {"metrics": names} if names else {}
        section: dict[str, Any] = {"epochs": epochs, "batch": batch, "lr": lr, "lr_decay": lr_decay}
        section |= {"momentum": momentum, "weight_decay": weight_decay, "schedule": schedule}
        section |= {"optimizer": optimizer, "drop_last": drop_last, "lr_of": dict(lr_of or {})}
        if local is not None:
            section = _section_of(local, section)
        table: dict[str, Any] = {
            "rounds": rounds,
            "seed": seed,
            "mode": mode,
            "compile": compile,
            "device": str(next(model.parameters()).device),
            "data": {"name": OBJECT},
            "partition": {"name": OBJECT, "clients": len(clients), "seed": seed},
            "model": {"name": OBJECT, "type": type(model).__name__},
            "algorithm": {"name": OBJECT, **describe_parts(algorithm)},
            "local": section,
            "cohort": {"fraction": fraction},
            "runner": {"name": runner} if isinstance(runner, str) else dict(runner),
            "memory": dict(memory or {}),
            "evaluation": {"every": evaluate_every, "protocol": protocol, **named, **(evaluation or {})},
            "faults": dict(faults or {}),
            "diagnostics": dict.fromkeys(diagnostics, True),
            "checkpoint": {"seconds": checkpoint},
        }
        table |= {} if precision is None else {"precision": precision}
        self._given = configuration.read(table)
        self.config = resolve_defaults(self._given)
        self._build: Callable[[Config], Built] = UserObjects(
            algorithm, model, clients, test, public, precise=precision is not None, metrics=own
        ).build

    @classmethod
    @allow_imports()
    def from_config(
        cls, config: Config | Table | str | Path, overrides: Iterable[str] = (), metrics: MetricChoice = ()
    ) -> Experiment:
        """Create the experiment that a configuration describes.

        Args:
            config: A validated `Config`, a dict, or the path of a TOML file.
            overrides: Strings `key.sub=value` that override settings.
            metrics: Metrics in addition to those of the configuration; see the class.

        Returns:
            An experiment whose `config` has every default written out. Functions that the configuration names as
            `module:function` are imported.

        Example:
            >>> fedra.Experiment.from_config("configs/quickstart.toml", ["rounds=5"]).run(out="runs/a")
        """
        experiment = cls.__new__(cls)
        given = config if isinstance(config, Config) else configuration.read(config, overrides)
        names, own = split_metrics(metrics)
        section = given.evaluation.model_copy(update={"metrics": (*given.evaluation.metrics, *names)})
        experiment._given = given.model_copy(update={"evaluation": section}) if names else given
        _refuse_objects(experiment._given, "this configuration")
        experiment.config = record_weights_digest(resolve_defaults(experiment._given))
        experiment._build = partial(build, metrics=own)
        return experiment

    @allow_imports()
    def run(
        self,
        out: Path | str | None = None,
        callbacks: Sequence[Callback] = (),
        *,
        force: bool = False,
        resume: bool = False,
        accept_data: bool = False,
        console: Console | None = None,
    ) -> RunResult:
        """Train the model.

        Args:
            out: Output folder, which must be new, empty or hold a run; None writes no files.
            callbacks: Callbacks that run after the built-in ones; see `fedra.callbacks`.
            force: Whether to replace an existing run in the folder.
            resume: Whether to continue an interrupted run in the folder, or start one if there is none.
            accept_data: Whether to resume although the data changed since the run was started.
            console: Where progress is shown; standard error if it is a terminal, by default.

        Returns:
            The trained model, the metrics of every round, the summary, and the folder.

        Example:
            >>> result = experiment.run(out="runs/a")
        """
        end_reimported_script()
        check_callbacks(callbacks)
        console = choose_console(console)
        folder = None if out is None else RunFolder(out)
        if resume:
            if folder is None:
                raise ConfigError("out must be set to resume a run, got None")
            if folder.has_run:
                return self._resume(folder, callbacks, console, accept_data)
        if folder and not force:
            folder.check_available()
        built = self._build(self.config)
        check_memory(self.config, built.job)
        config, built = resolve_precision(self.config, built, console)
        config = choose_runner(config, built, console)
        standing = builtin_callbacks(config, folder)
        with folder.create(config, force) if folder else nullcontext():
            if folder:
                folder.write_data_digests(digest_data(built.job))
            tell(console, notice(self._given))
            tell(console, data_notes(built.dataset))
            tell(console, built.dataset.notes.get(ALTERED))
            tell(console, cache_note(config))
            cohort = CohortRule(config.cohort.fraction).size(len(built.job.clients))
            tell(console, built.job.algorithm.combine.caution(cohort))
            state = create_state(config, built.job, folder, console)
            return execute(config, built, LocalEngine(config, built), folder, state, standing, callbacks, console)

    def _resume(
        self, folder: RunFolder, callbacks: Sequence[Callback], console: Console | None, accept_data: bool
    ) -> RunResult:
        with folder.open_to_resume() as config:
            if not have_same_settings(config, self.config):
                raise ConfigError(
                    f"the run in '{folder.path}' must have the same settings to be resumed, got others: use those "
                    "of its config.toml"
                )
            built = self._build(config)
            check_memory(config, built.job)
            check_data(folder, built.job, accept_data)
            standing = builtin_callbacks(config, folder)
            if folder.checkpoint.exists():
                server = init_server(built.job.algorithm, built.job.initial())
                state = folder.checkpoint.load(server, **config.memory.model_dump())
            else:
                state = create_state(config, built.job, folder, console)
            tell(console, folder.truncate(state.round))
            return execute(config, built, LocalEngine(config, built), folder, state, standing, callbacks, console)


def resolve_precision(config: Config, built: Built, console: Console | None) -> tuple[Config, Built]:
    """Replace the precision `auto` by the one it chooses, and print it and a reduced instruction set."""
    if config.precision == "auto":
        choice = choose_precision(built.job)
        tell(console, f"precision: {choice}")
        config = config.model_copy(update={"precision": choice.name})
        built = replace(built, job=with_precision(built.job, choice.name))
    tell(console, describe_instructions(built.job.model.precision, built.job.model.device))
    return config, built


def choose_runner(config: Config, built: Built, console: Console | None) -> Config:
    """Replace the runner `auto` by the one it chooses, and print it; record the stacks that `ray` trains."""
    name, settings = config.runner.name, config.runner.settings
    if name != "auto" and (name != "ray" or settings.get("stack") is not None):
        return config
    chosen = resolve_runner(config, add_diagnostics(config, built.job))
    if name == "auto":
        tell(console, f"auto: {chosen.runner.auto}")
    return chosen


def cache_note(config: Config) -> str | None:
    """Say where decoded images of the user's own folders are kept, if they are."""
    if not config.data.cache:
        return None
    return f"decoded images are kept in '{data_root() / CACHE}', readable by you alone; remove them: fedra cache clear"


def _check_objects(model: Any, clients: Any) -> None:
    """Raise unless the model can be trained and the clients are a list."""
    if not isinstance(model, nn.Module) or next(model.parameters(), None) is None:
        got = "one without" if isinstance(model, nn.Module) else type(model).__name__
        raise ConfigError(f"model must be a torch.nn.Module with parameters, got {got}")
    if not isinstance(clients, Sequence) or isinstance(clients, str) or not clients:
        got = "none" if isinstance(clients, Sequence) and not clients else type(clients).__name__
        raise ConfigError(f"clients must be a list of at least one client, got {got}: give [(inputs, targets), ...]")


def _section_of(local: LocalTraining, given: Table) -> dict[str, Any]:
    """Convert `local` to a configuration section; the single settings `given` must have their defaults."""
    defaults = LocalSection().model_dump()
    doubled = [name for name, value in given.items() if value != defaults[name]]
    if doubled:
        raise ConfigError(f"only one of local and its single settings may be given, got local and {', '.join(doubled)}")
    section = {name: getattr(local, name) for name in given} | {"lr_of": dict(local.lr_of)}
    schedule: Any = local.schedule
    if callable(schedule):
        own = getattr(schedule, "func", schedule)
        names = [name for name in SCHEDULES if SCHEDULES[name] is own]
        if not names:
            raise ConfigError(
                "local.schedule must be a registered schedule, so config.toml can name it, got another function: "
                f"choose one of {', '.join(SCHEDULES)}"
            )
        section["schedule"] = {"name": names[0], **getattr(schedule, "keywords", {})}
    return section


def _refuse_objects(config: Config, what: str) -> None:
    """Raise if the run was made from Python objects, which only Python can provide again."""
    for name in ("algorithm", "model", "data"):
        if getattr(config, name).name == OBJECT:
            raise ConfigError(
                f"{what} must not refer to Python objects, got one for {name}: run it from Python, with "
                "fedra.Experiment(...).run(out=..., resume=True)"
            )
