"""The tables of a configuration, each with all its keys, defaults and bounds.

Tables with a `name` take the fields of whatever that name stands for (a data set, a partition, a model, an algorithm, a
runner); everything else is listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from fedra.core.precision import PrecisionName

RAM = 2048.0
"""MB of RAM for what clients remember, unless configured otherwise."""

StoredPrecision = Literal["float32", "float16", "bfloat16"]
"""How what clients remember is stored."""

OBJECT = "python"
"""The name of an algorithm, a model, data or a partition that was given as an object in Python."""

Share = Annotated[float, Field(ge=0, le=1)]

Protocol = Literal["auto", "classification", "verification", "clients"]


class Section(BaseModel):
    """A table of the configuration; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NamedSection(BaseModel):
    """A table that names something and sets its fields."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_a_name(cls, table: Any) -> Any:
        """A bare name stands for a table with that name."""
        if isinstance(table, str):
            return {"name": table}
        if not isinstance(table, Mapping | NamedSection):
            raise PydanticCustomError("named_section", "give a name, or a table with a name and its fields")
        return table

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of what is named."""
        return dict(self.model_extra or {})


class DataSection(NamedSection):
    """Which data set, and how its batches are augmented; other keys are the loader's own fields."""

    name: str = Field("digits", description="a name of `fedra list datasets`, or module:function for your own")
    augment: Literal["none", "paper"] | tuple[str, ...] = Field(
        "none", description="'paper' for what the set's papers use, or a list of crop, flip, cutout, reflect-crop"
    )
    fraction: float = Field(
        1.0, gt=0, le=1, description="the share of each class's training examples that is used, drawn by partition.seed"
    )


class PublicSection(NamedSection):
    """Public examples that every client has beside its own, of people whom no client holds: for fedfr.

    Their training split is used, prepared as the clients' data are; other keys are the loader's own fields.
    """

    name: str = Field(description="a name of `fedra list datasets`, or module:function for your own")


class PartitionSection(NamedSection):
    """How the training examples are given to clients; other keys are the partition's own fields."""

    name: str = Field("iid", description="a name of `fedra list partitions`")
    clients: int | None = Field(
        10,
        ge=1,
        description="how many; 0 for as many as the data have (one-class, identity; natural unless told)",
    )
    seed: int = Field(0, ge=0, description="seeds the split alone, apart from training")

    @model_validator(mode="before")
    @classmethod
    def _owners_stay_apart(cls, table: Any) -> Any:
        """Whoever asks for the owners that the data name must not get ten that were put together from them."""
        if table == "natural":
            return {"name": table, "clients": None}
        natural = isinstance(table, dict) and table.get("name") == "natural"
        return {"clients": None, **table} if natural else table


class ModelSection(NamedSection):
    """Which network; other keys are its own fields."""

    name: str = Field("fedavg-cnn", description="a name of `fedra list models`, or module:function for your own")
    head: str | None = Field(
        None,
        description="of your own network: the dotted name of the layer that makes the logits, such as 'fc'; without it "
        "the layer whose output is the network's is taken; see docs/own-data.md",
    )
    projection: int | None = Field(
        None, ge=1, description="width of a two-layer projection between body and head, as MOON's paper has it"
    )
    weights: str | None = Field(
        None, description="what to start from: a finished run's folder, or a public checkpoint file of the same network"
    )
    weights_digest: str | None = Field(None, description="in a run's record: by which a changed weight file is known")


class AlgorithmSection(NamedSection):
    """Which algorithm; other keys are its fields, and `plus` joins more parts or algorithms to it."""

    name: str = Field("fedavg", description="a name of `fedra list methods`, or module:function for your own")
    plus: tuple[str | dict[str, Any], ...] = Field(
        (), description="parts or algorithms to add, such as ['fedsam', { name = 'server-adam', lr = 0.1 }]"
    )


class LocalSection(Section):
    """How a client trains."""

    epochs: int = Field(1, ge=1, description="passes over the client's data in a round")
    batch: int | None = Field(50, ge=1, description="examples per step; 0 or 'all' for the whole client")
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="the local optimizer")
    lr: float = Field(0.01, gt=0, description="its learning rate, before lr_decay and schedule")
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor on the rate after every round")
    schedule: str | dict[str, Any] = Field(
        "constant", description="the rate over the rounds: a name of `fedra list schedules`, or a table with its fields"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD; fresh each round unless centralized")
    weight_decay: float = Field(0.0, ge=0, description="added to the gradient at the unperturbed weights")
    drop_last: bool = Field(False, description="leave out an epoch's incomplete last batch")


class CohortSection(Section):
    """Which clients take part in a round."""

    fraction: float = Field(1.0, gt=0, le=1, description="share of the clients; at least one takes part")
    sampling: Literal["keyed", "legacy"] = Field(
        "keyed", description="'legacy' draws as FedSoL's code does: NumPy's old generator seeded with the round"
    )


class RunnerSection(NamedSection):
    """Where clients are trained; other keys are the runner's own fields."""

    name: str = Field("auto", description="auto, sequential, processes or another of `fedra list runners`")
    auto: str | None = Field(None, description="in a run's record: why auto chose this runner")


class EvaluationSection(Section):
    """When and how the server's model is tested."""

    every: int = Field(1, ge=1, description="rounds between tests; the last round is always tested")
    protocol: Protocol = Field(
        "auto",
        description="'classification' counts right answers on held-out images, 'verification' tells pairs of faces "
        "apart in ten folds, 'clients' lets every client recognize its own people among strangers; 'auto' verifies "
        "where the data set pairs people who are not trained on",
    )
    enroll: int = Field(2, ge=1, description="'clients': held-out images of a person that enroll it; others are probes")
    tested: int | None = Field(200, ge=2, description="'clients': how many clients are tested, drawn; 0 for all")
    impostors: int | None = Field(
        100, ge=1, description="'clients': images of other clients' people that a client meets, drawn; 0 for all"
    )
    fpir: float = Field(0.001, gt=0, lt=1, description="'clients': the false positive rate at which TPIR is read")
    metrics: tuple[str, ...] = Field(
        ("accuracy",),
        description="'classification': what is measured, of accuracy, balanced-accuracy, precision, recall, f1, "
        "f1-macro, auroc, average-precision, log-loss, mcc, per-class, confusion",
    )
    best: str = Field("accuracy", description="the metric by which the summary's best round is chosen")
    validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="'classification': share of every client's examples that is held out, stratified by class and "
        "drawn by partition.seed; rounds are then tested on it, and the test set is used once, at the end",
    )
    per_client: bool = Field(
        False, description="'classification': also test the final model on every client's own mixture of classes"
    )


class FaultsSection(Section):
    """Clients that fail, simulated or real."""

    dropout: Share = Field(0.0, description="chance that a sampled client does not answer")
    straggler: Share = Field(0.0, description="chance that a sampled client is slow this round")
    slowdown: float = Field(5.0, ge=1, description="how many times slower a slow client is")
    deadline: float | None = Field(
        None, gt=0, description="longest time a client may take, in units of the median client's time"
    )
    quorum: Share = Field(0.5, description="share of the sampled clients that must answer")
    retries: int = Field(3, ge=0, description="how often a round under quorum is repeated before the run stops")


class CheckpointSection(Section):
    """When the state is saved."""

    seconds: float = Field(10.0, ge=0, description="least time between two checkpoints; 0 saves every round")


class MemorySection(Section):
    """Where clients' memories are kept between rounds: private layers, control variates, models of their own."""

    ram: float = Field(RAM, ge=0, description="MB of them in RAM; what is more lies on the disk until it is needed")
    precision: StoredPrecision = Field(
        "float32", description="'float16' and 'bfloat16' round what clients remember; 'float32' leaves it as it is"
    )


class DiagnosticsSection(Section):
    """What else is measured each round; each costs time."""

    classes: bool = Field(False, description="class-wise accuracy of the server and how much it has forgotten")
    preservation: bool = Field(
        False, description="accuracy of local models on the global test set, in and out of their own classes"
    )
    divergence: bool = Field(False, description="distances between the global and the local weights")
    proximal: bool = Field(
        False, description="proximal loss, cosine of update and proximal gradient, mean drift per layer"
    )


class LogSection(Section):
    """Where figures go beside the run's folder."""

    tensorboard: bool = Field(False, description="write TensorBoard events (needs the extra 'tensorboard')")


class SweepSection(BaseModel):
    """A grid for `fedra sweep`: dotted keys with lists of values, and the seeds. `fedra run` ignores it."""

    model_config = ConfigDict(extra="allow", frozen=True)
    seeds: int = Field(1, ge=1, description="how many seeds per point, from the configuration's own on")
    metric: str = Field(
        "final_accuracy",
        description="the figure in summary.json that is compared, such as final_auroc; shares are shown in percent",
    )

    @property
    def grid(self) -> dict[str, Any]:
        """The keys and their values."""
        return dict(self.model_extra or {})


class Config(Section):
    """Everything a run depends on; every key has a default."""

    seed: int = Field(0, ge=0, description="seeds initial weights, cohorts, batches and augmentation")
    rounds: int = Field(10, ge=1, description="communication rounds; in centralized training epochs")
    mode: Literal["federated", "centralized"] = Field(
        "federated", description="'centralized' trains one model on all clients' examples: the baseline of a federation"
    )
    device: str = Field("cpu", description="where torch computes: cpu, cuda, cuda:1, mps")
    precision: PrecisionName = Field("float32", description="numbers of the model's passes; see docs/speed.md")
    compile: bool = Field(False, description="run the model's passes through torch.compile; see docs/speed.md")
    data: DataSection = DataSection()
    public: PublicSection | None = Field(
        None, description="a second data set that all clients have; see docs/federated-faces.md"
    )
    partition: PartitionSection = PartitionSection()
    model: ModelSection = ModelSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    local: LocalSection = LocalSection()
    cohort: CohortSection = CohortSection()
    runner: RunnerSection = RunnerSection()
    evaluation: EvaluationSection = EvaluationSection()
    faults: FaultsSection = FaultsSection()
    checkpoint: CheckpointSection = CheckpointSection()
    memory: MemorySection = MemorySection()
    diagnostics: DiagnosticsSection = DiagnosticsSection()
    log: LogSection = LogSection()
    sweep: SweepSection | None = None


SECTION_TYPES: dict[str, type[NamedSection]] = {
    "data": DataSection,
    "public": PublicSection,
    "partition": PartitionSection,
    "model": ModelSection,
    "algorithm": AlgorithmSection,
    "runner": RunnerSection,
}
"""The sections that have a name."""
