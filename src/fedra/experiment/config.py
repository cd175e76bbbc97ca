"""The configuration of a run: TOML files and overrides, checked, with every default filled in.

Sections with a `name` take the fields of whatever that name stands for (a data set, a partition, a model, an
algorithm, a runner); everything else is listed here.
"""

from __future__ import annotations

import copy
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedra.core.precision import PrecisionName
from fedra.errors import ConfigError, nearest
from fedra.experiment.memory import RAM, StoredPrecision
from fedra.experiment.overrides import override

Share = Annotated[float, Field(ge=0, le=1)]

Protocol = Literal["auto", "classification", "verification", "clients"]


class Section(BaseModel):
    """A table of the configuration; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Named(BaseModel):
    """A table that names something and sets its fields."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of what is named."""
        return dict(self.model_extra or {})


class Data(Named):
    """Which data set, and how its batches are augmented; other keys are the loader's own fields."""

    name: str = Field("digits", description="a name of `fedra list datasets`")
    augment: Literal["none", "paper"] | tuple[str, ...] = Field(
        "none", description="'paper' for what the set's papers use, or a list of crop, flip, cutout, reflect-crop"
    )
    fraction: float = Field(
        1.0, gt=0, le=1, description="the share of each class's training examples that is used, drawn by partition.seed"
    )


class Public(Named):
    """Public examples that every client has beside its own, of people whom no client holds: for fedfr.

    Their training split is used, prepared as the clients' data are; other keys are the loader's own fields.
    """

    name: str = Field(description="a name of `fedra list datasets`")


class Partition(Named):
    """How the training examples are given to clients; other keys are the partition's own fields."""

    name: str = Field("iid", description="a name of `fedra list partitions`")
    clients: int | None = Field(
        10, ge=1, description="how many; 0 for as many as the data have (natural, one-class, identity)"
    )
    seed: int = Field(0, ge=0, description="seeds the split alone, apart from training")


class Model(Named):
    """Which network; other keys are its own fields."""

    name: str = Field("fedavg-cnn", description="a name of `fedra list models`")
    projection: int | None = Field(
        None, ge=1, description="width of a two-layer projection between body and head, as MOON's paper has it"
    )
    weights: str | None = Field(
        None, description="what to start from: a finished run's folder, or a public checkpoint file of the same network"
    )
    weights_digest: str | None = Field(None, description="in a run's record: by which a changed weight file is known")


class Algorithm(Named):
    """Which algorithm; other keys are its fields, and `plus` joins more parts or algorithms to it."""

    name: str = Field("fedavg", description="a name of `fedra list methods`, or module:function for your own")
    plus: tuple[str | dict[str, Any], ...] = Field(
        (), description="parts or algorithms to add, such as ['fedsam', { name = 'server-adam', lr = 0.1 }]"
    )


class Local(Section):
    """How a client trains."""

    epochs: int = Field(1, ge=1, description="passes over the client's data in a round")
    batch: int | None = Field(50, ge=1, description="examples per step; 0 or 'all' for the whole client")
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="the local optimiser")
    lr: float = Field(0.01, gt=0, description="its learning rate, before lr_decay and schedule")
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor on the rate after every round")
    schedule: str | dict[str, Any] = Field(
        "constant", description="the rate over the rounds: a name of `fedra list schedules`, or a table with its fields"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD; fresh each round unless centralised")
    weight_decay: float = Field(0.0, ge=0, description="added to the gradient at the unperturbed weights")
    drop_last: bool = Field(False, description="leave out an epoch's incomplete last batch")


class Cohort(Section):
    """Which clients take part in a round."""

    fraction: float = Field(1.0, gt=0, le=1, description="share of the clients; at least one takes part")
    sampling: Literal["keyed", "legacy"] = Field(
        "keyed", description="'legacy' draws as FedSoL's code does: NumPy's old generator seeded with the round"
    )


class Runner(Named):
    """Where clients are trained; other keys are the runner's own fields."""

    name: str = Field("auto", description="auto, sequential, processes or another of `fedra list runners`")
    auto: str | None = Field(None, description="in a run's record: why auto chose this runner")


class Evaluation(Section):
    """When and how the server's model is tested."""

    every: int = Field(1, ge=1, description="rounds between tests; the last round is always tested")
    protocol: Protocol = Field(
        "auto",
        description="'classification' counts right answers on held-out images, 'verification' tells pairs of faces "
        "apart in ten folds, 'clients' lets every client recognise its own people among strangers; 'auto' verifies "
        "where the data set pairs people who are not trained on",
    )
    enrol: int = Field(2, ge=1, description="'clients': held-out images of a person that enrol it; others are probes")
    tested: int | None = Field(200, ge=2, description="'clients': how many clients are tested, drawn; 0 for all")
    impostors: int | None = Field(
        100, ge=1, description="'clients': images of other clients' people that a client meets, drawn; 0 for all"
    )
    fpir: float = Field(0.001, gt=0, lt=1, description="'clients': the false positive rate at which TPIR is read")


class Faults(Section):
    """Clients that fail, simulated or real."""

    dropout: Share = Field(0.0, description="chance that a sampled client does not answer")
    straggler: Share = Field(0.0, description="chance that a sampled client is slow this round")
    slowdown: float = Field(5.0, ge=1, description="how many times slower a slow client is")
    deadline: float | None = Field(
        None, gt=0, description="longest time a client may take, in units of the median client's time"
    )
    quorum: Share = Field(0.5, description="share of the sampled clients that must answer")
    retries: int = Field(3, ge=0, description="how often a round under quorum is repeated before the run stops")


class Checkpoint(Section):
    """When the state is saved."""

    seconds: float = Field(10.0, ge=0, description="least time between two checkpoints; 0 saves every round")


class Memory(Section):
    """Where clients' memories are kept between rounds: private layers, control variates, models of their own."""

    ram: float = Field(RAM, ge=0, description="MB of them in RAM; what is more lies on the disk until it is needed")
    precision: StoredPrecision = Field(
        "float32", description="'float16' and 'bfloat16' round what clients remember; 'float32' leaves it as it is"
    )


class Diagnostics(Section):
    """What else is measured each round; each costs time."""

    classes: bool = Field(False, description="class-wise accuracy of the server and how much it has forgotten")
    preservation: bool = Field(
        False, description="accuracy of local models on the global test set, in and out of their own classes"
    )
    divergence: bool = Field(False, description="distances between the global and the local weights")
    proximal: bool = Field(
        False, description="proximal loss, cosine of update and proximal gradient, mean drift per layer"
    )


class Log(Section):
    """Where figures go beside the run's folder."""

    tensorboard: bool = Field(False, description="write TensorBoard events (needs the extra 'tensorboard')")


class Sweep(BaseModel):
    """A grid for `fedra sweep`: dotted keys with lists of values, and the seeds. `fedra run` ignores it."""

    model_config = ConfigDict(extra="allow", frozen=True)
    seeds: int = Field(1, ge=1, description="how many seeds per point, from the configuration's own on")
    metric: str = Field("final_accuracy", description="the share in summary.json that the table shows, in percent")

    @property
    def grid(self) -> dict[str, Any]:
        """The keys and their values."""
        return dict(self.model_extra or {})


class Config(Section):
    """Everything a run depends on; every key has a default."""

    seed: int = Field(0, ge=0, description="seeds initial weights, cohorts, batches and augmentation")
    rounds: int = Field(10, ge=1, description="communication rounds; in centralised training epochs")
    device: str = Field("cpu", description="cpu, cuda, cuda:1, mps")
    precision: PrecisionName = Field("float32", description="numbers of the model's passes; see docs/speed.md")
    compile: bool = Field(False, description="run the model's passes through torch.compile; see docs/speed.md")
    data: Data = Data()
    public: Public | None = Field(
        None, description="a second data set that all clients have; see docs/federated-faces.md"
    )
    partition: Partition = Partition()
    model: Model = Model()
    algorithm: Algorithm = Algorithm()
    local: Local = Local()
    cohort: Cohort = Cohort()
    runner: Runner = Runner()
    evaluation: Evaluation = Evaluation()
    faults: Faults = Faults()
    checkpoint: Checkpoint = Checkpoint()
    memory: Memory = Memory()
    diagnostics: Diagnostics = Diagnostics()
    log: Log = Log()
    sweep: Sweep | None = None


ALL = (("local", "batch"), ("partition", "clients"), ("evaluation", "tested"), ("evaluation", "impostors"))
"""Where None means all there is and is not the default: TOML, which has no null, says 0 there."""


def read(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> Config:
    """The configuration in a TOML file (`-` reads standard input) or a dict, with `key.sub=value` overrides."""
    if isinstance(source, Mapping):
        table, where = copy.deepcopy(dict(source)), "the configuration"
    else:
        table, where = _load(source)
    for word in overrides:
        override(table, word)
    return _checked(table, where)


def write(config: Config) -> str:
    """The configuration as TOML, complete: reading it again gives the same run."""
    table = config.model_dump()
    for section, key in ALL:
        table[section][key] = table[section][key] or 0
    return tomli_w.dumps(_without_none(table))


def _load(source: str | Path) -> tuple[dict[str, Any], str]:
    if str(source) == "-":
        text, where = sys.stdin.read(), "standard input"
    else:
        path = Path(source)
        where = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(f"there is no configuration file '{path}': check the path, or write one") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the configuration file '{path}' cannot be read: {error}") from None
    try:
        return tomllib.loads(text), where
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {str(error)[:1].lower()}{str(error)[1:]}") from None


def _checked(table: dict[str, Any], where: str) -> Config:
    for section, key in ALL:
        found = table.get(section)
        if isinstance(found, dict) and found.get(key) in (0, "all"):
            table = {**table, section: {**found, key: None}}
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise ConfigError(_sentence(error, where)) from None


def _sentence(error: ValidationError, where: str) -> str:
    first = error.errors()[0]
    steps = _place(first["loc"])
    key = ".".join(steps)
    if first["type"] == "extra_forbidden":
        return f"{where} has no key '{key}': {nearest(steps[-1], _keys(steps[:-1]))}"
    reason = first["msg"]
    return f"{where} cannot use {key} = {first['input']!r}: {reason[:1].lower()}{reason[1:]}"


def _place(location: Sequence[str | int]) -> list[str]:
    """The key a mistake is at: pydantic's place without the numbers of items and the kinds it tried."""
    return [str(step) for step in location[:2]]


def _keys(section: list[str]) -> list[str]:
    """The keys of a section, or of the whole configuration."""
    model: Any = Config
    for step in section:
        model = model.model_fields[step].annotation
    return list(model.model_fields)


def _without_none(value: Any) -> Any:
    """TOML has no null: a key that is None is left out, which reads back as None."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value
