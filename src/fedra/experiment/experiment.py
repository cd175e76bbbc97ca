"""One experiment: an algorithm, a model, clients and settings, run as often as you like."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from torch import nn

from fedra.callbacks.callback import Callback
from fedra.config import reading as configuration
from fedra.config.mode import notice
from fedra.config.resolve import mark_weights, resolve_defaults
from fedra.config.schema import OBJECT, Config, LocalSection
from fedra.console import console_for, tell
from fedra.core.algorithm import Algorithm
from fedra.core.local_training import LocalTraining
from fedra.core.precision import PrecisionName
from fedra.core.rates import SCHEDULES
from fedra.core.round import init_server
from fedra.errors import ConfigError
from fedra.evaluation.metrics import MetricChoice, split_metrics
from fedra.experiment.build import Built, alignment_note, build, settle_runner
from fedra.experiment.execution import diagnosed, execute, fresh_state, standing_callbacks
from fedra.experiment.result import RunResult
from fedra.experiment.user_data import Client
from fedra.experiment.user_objects import UserObjects, describe_parts
from fedra.storage.run_folder import RunFolder
from fedra.trust import importing

Table = Mapping[str, Any]
Protocol = Literal["auto", "classification", "verification", "clients"]


class Experiment:
    """An algorithm, a model, clients, and how they train; `run` trains it.

    Your objects are copied, never changed. The result depends on the seed alone, not on the runner, the number of
    workers or an interruption.

    Args:
        algorithm: An `Algorithm`, such as `fedra.algorithms.fedprox(mu=0.1)`.
        model: Any `nn.Module` from a batch of inputs to logits. The head, which some algorithms treat apart, is the
            module's `head` where it also has a `body`, else the last layer it calls; `fedra.models.named_head` names
            another. Training runs on the module's device.
        clients: For every client a pair (inputs, targets) of tensors or arrays, a triple with a function that
            transforms its training batches, a map-style `Dataset`, which is read anew every epoch, or a `DataLoader`
            of one (its batches are not used).
        test: The test set in the same form, or None.
        rounds: Communication rounds; in centralized training epochs.
        local: All settings of local training as one object, in place of epochs, batch, lr and so on.
        epochs: Passes over a client's data in a round.
        batch: Examples in a step; None takes the whole client.
        lr: Learning rate of the local optimizer.
        momentum: Momentum of SGD.
        weight_decay: Added to the gradient at the unperturbed weights.
        lr_decay: Factor on the rate after every round.
        schedule: Learning-rate schedule by its name, or a table with its fields.
        optimizer: "sgd" or "adam".
        drop_last: Whether an epoch's incomplete last batch is left out.
        fraction: Share of the clients that take part in a round.
        seed: Seed of every random draw.
        precision: Numbers of the model's passes; by default the module's own type.
        compile: Whether passes go through torch.compile.
        runner: A runner by its name, or a table with its fields.
        memory: Table with the fields `ram` and `precision` of what clients remember.
        evaluate_every: Rounds between two tests; the last round is always tested.
        protocol: "classification" counts right answers; "verification" compares pairs drawn from the test set;
            "clients" lets every client recognize its own people.
        evaluation: Table with further fields of the section [evaluation], such as {"validation": 0.1, "best": "auroc"}.
        metrics: What is measured of a classifier: names such as "auroc", functions (targets, probabilities) -> number
            on NumPy arrays, `fedra.evaluation.Metric`s, or a mapping from names to functions.
        faults: Table with the fields of the section [faults], such as {"dropout": 0.2}.
        diagnostics: Names of what else is measured each round: "classes", "preservation", "divergence", "proximal".
        public: Public examples in the form of a client, for algorithms that train on them.
        checkpoint: Least seconds between two checkpoints of a run with a folder.

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
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        lr_decay: float = 1.0,
        schedule: str | Table = "constant",
        optimizer: Literal["sgd", "adam"] = "sgd",
        drop_last: bool = False,
        fraction: float = 1.0,
        seed: int = 0,
        precision: PrecisionName | None = None,
        compile: bool = False,
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
        if not clients:
            raise ConfigError("clients must hold at least one client, got none: give a list of (inputs, targets) pairs")
        names, own = split_metrics(metrics)
        named = {"metrics": names} if names else {}
        section: dict[str, Any] = {"epochs": epochs, "batch": batch, "lr": lr, "lr_decay": lr_decay}
        section |= {"momentum": momentum, "weight_decay": weight_decay, "schedule": schedule}
        section |= {"optimizer": optimizer, "drop_last": drop_last}
        if local is not None:
            section = _section_of(local, section)
        table: dict[str, Any] = {
            "rounds": rounds,
            "seed": seed,
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
    @importing()
    def from_config(
        cls, config: Config | Table | str | Path, overrides: Iterable[str] = (), metrics: MetricChoice = ()
    ) -> Experiment:
        """The experiment that a configuration describes.

        Args:
            config: A checked `Config`, a dict, or the path of a TOML file.
            overrides: Words `key.sub=value` that replace settings.
            metrics: Measured in addition to those of the configuration; see the class.

        Returns:
            An experiment whose `config` has every default written out. Functions of your own that it names
            (`module:function`) are imported.

        Example:
            >>> fedra.Experiment.from_config("configs/quickstart.toml", ["rounds=5"]).run(out="runs/a")
        """
        experiment = cls.__new__(cls)
        given = config if isinstance(config, Config) else configuration.read(config, overrides)
        names, own = split_metrics(metrics)
        section = given.evaluation.model_copy(update={"metrics": (*given.evaluation.metrics, *names)})
        experiment._given = given.model_copy(update={"evaluation": section}) if names else given
        _refuse_objects(experiment._given, "this configuration")
        experiment.config = mark_weights(resolve_defaults(experiment._given))
        experiment._build = partial(build, metrics=own)
        return experiment

    @importing()
    def run(
        self,
        out: Path | str | None = None,
        callbacks: Sequence[Callback] = (),
        *,
        force: bool = False,
        resume: bool = False,
        console: Console | None = None,
    ) -> RunResult:
        """Train it.

        Args:
            out: Folder for the record, which must be empty or hold a run; None keeps no record.
            callbacks: What happens alongside, after fedra's own: see `fedra.callbacks`.
            force: Whether a run that is in the folder is replaced.
            resume: Whether an interrupted run in the folder is continued; where there is none, it starts.
            console: Where progress is shown; by default the standard error, where that is a terminal.

        Returns:
            The trained model, the metrics of every round, the summary, and the folder.

        Example:
            >>> result = experiment.run(out="runs/a")
        """
        console = console_for(console)
        folder = None if out is None else RunFolder(out)
        if resume:
            if folder is None:
                raise ConfigError("resume needs the folder of the run: give out")
            if folder.begun_before:
                return self._resume(folder, callbacks, console)
        if folder and not force:
            folder.refuse()
        built = self._build(self.config)
        config = choose_runner(self.config, built, console)
        standing = standing_callbacks(config, folder)
        with folder.begun(config, force) if folder else nullcontext():
            tell(console, notice(self._given))
            tell(console, alignment_note(built.dataset))
            state = fresh_state(config, built.job, folder, console)
            return execute(config, built, folder, state, standing, callbacks, console)

    def _resume(self, folder: RunFolder, callbacks: Sequence[Callback], console: Console | None) -> RunResult:
        with folder.resumed() as config:
            if comparable(config) != comparable(self.config):
                raise ConfigError(f"the run in '{folder.path}' has other settings: resume it with its own")
            built = self._build(config)
            standing = standing_callbacks(config, folder)
            if folder.checkpoint.exists():
                server = init_server(built.job.algorithm, built.job.initial())
                state = folder.checkpoint.load(server, **config.memory.model_dump())
            else:
                state = fresh_state(config, built.job, folder, console)
            folder.truncate(state.round)
            return execute(config, built, folder, state, standing, callbacks, console)


def choose_runner(config: Config, built: Built, console: Console | None) -> Config:
    """The configuration with its runner settled; what auto chose is printed."""
    if config.runner.name != "auto":
        return config
    chosen = settle_runner(config, diagnosed(config, built.job))
    tell(console, f"auto: {chosen.runner.auto}")
    return chosen


def comparable(config: Config) -> str:
    """What a run's result depends on, to compare: not where it ran, nor how often it was saved."""
    kept = config.model_dump(exclude={"runner", "device", "checkpoint", "log", "sweep"})
    return configuration.write(configuration.read(kept))


def _section_of(local: LocalTraining, given: Table) -> dict[str, Any]:
    """Local training as the configuration writes it; `given` are the same settings one by one, which must be unset."""
    usual = LocalSection().model_dump()
    doubled = [name for name, value in given.items() if value != usual[name]]
    if doubled:
        raise ConfigError(f"give either local or its settings one by one, got local and {', '.join(doubled)}")
    section = {name: getattr(local, name) for name in given}
    schedule: Any = local.schedule
    if callable(schedule):
        own = getattr(schedule, "func", schedule)
        names = [name for name in SCHEDULES if SCHEDULES[name] is own]
        if not names:
            raise ConfigError(
                "local.schedule must be one of fedra's, so that the run's record can name it: "
                f"choose one of {', '.join(SCHEDULES)}"
            )
        section["schedule"] = {"name": names[0], **getattr(schedule, "keywords", {})}
    return section


def _refuse_objects(config: Config, what: str) -> None:
    """A run of objects that were given in Python can only go on in Python."""
    for name in ("algorithm", "model", "data"):
        if getattr(config, name).name == OBJECT:
            raise ConfigError(
                f"{what} has its {name} from Python: run it there, with fedra.Experiment(...).run(out=..., resume=True)"
            )
