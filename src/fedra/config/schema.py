"""The sections of a configuration, with all keys, defaults and bounds.

A section with a `name` also takes the fields of what it names (a data set, a partition, a model, an algorithm, a
runner). Everything else is listed here.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from fedra.config.bounds import (
    LARGEST_RATE,
    LONGEST,
    Amount,
    Count,
    Decay,
    Rate,
    Repetitions,
    Seed,
    Share,
    Times,
    derive_rounds,
)
from fedra.config.privacy_sections import AttackSection, PrivacySection, SecureSection
from fedra.config.section import NamedSection as NamedSection
from fedra.config.section import Section as Section
from fedra.core.precision import Wanted
from fedra.registry import LARGEST_COUNT

RAM = 2048.0
"""Default RAM for client state, in MB."""

StoredPrecision = Literal["float32", "float16", "bfloat16"]
"""Precision of stored client state."""

OBJECT = "python"
"""The name of an algorithm, a model, data or a partition that was passed as a Python object."""

Protocol = Literal["auto", "classification", "verification", "clients"]


class DataSection(NamedSection):
    """The data set and how its batches are augmented. Other keys are fields of the data set."""

    name: str = Field("digits", description="a name from `fedra list datasets`, or module:function for your own")
    augment: Literal["none", "paper"] | tuple[str, ...] = Field(
        "none",
        description="'paper' for the usual choice for this data set, or a list of crop, flip, cutout, reflect-crop",
    )
    cache: bool | None = Field(
        None,
        description="whether decoded images are kept in the folder .cache of the data root: true for all, false for "
        "none; by default only for data under the data root, not for your own folders elsewhere",
    )
    fraction: float = Field(
        1.0, gt=0, le=1, description="fraction of each class's training examples to use, sampled with partition.seed"
    )


class PublicSection(NamedSection):
    """Public data that every client uses in addition to its own, such as fedfr's identities that no client holds.

    Its training split is used, prepared like the clients' data. Other keys are fields of the data set.
    """

    name: str = Field(description="a name from `fedra list datasets`, or module:function for your own")


class PartitionSection(NamedSection):
    """How the training examples are assigned to clients. Other keys are fields of the partition."""

    name: str = Field("iid", description="a name from `fedra list partitions`")
    clients: Count | None = Field(
        10,
        description="number of clients; 0 for as many as the data contain (one-class, identity, natural); "
        "natural defaults to 0",
    )
    seed: Seed = Field(0, description="seed of the partition only; training has its own")

    @model_validator(mode="before")
    @classmethod
    def _keep_natural_clients(cls, table: Any) -> Any:
        """Default to one client per group of the data for `natural`, because ten clients would merge groups."""
        if table == "natural":
            return {"name": table, "clients": None}
        natural = isinstance(table, dict) and table.get("name") == "natural"
        return {"clients": None, **table} if natural else table


class ModelSection(NamedSection):
    """The network. Other keys are fields of the model."""

    name: str = Field("fedavg-cnn", description="a name from `fedra list models`, or module:function for your own")
    head: str | None = Field(
        None,
        description="for your own network: dotted name of the layer that computes the logits, such as 'fc'; by default "
        "the layer whose output is the network's output; see docs/own-data.md",
    )
    projection: Times | None = Field(
        None, description="width of a two-layer projection between body and head, as in the MOON paper"
    )
    weights: str | None = Field(
        None, description="initial weights: the folder of a finished run, or a checkpoint file of the same network"
    )
    weights_digest: str | None = Field(
        None, description="set by fedra: digest of the weights, to detect a changed file"
    )


class AlgorithmSection(NamedSection):
    """The algorithm. Other keys are its fields, and `plus` adds parts or algorithms to it."""

    name: str = Field("fedavg", description="a name from `fedra list methods`, or module:function for your own")
    plus: tuple[str | dict[str, Any], ...] = Field(
        (), description="parts or algorithms to add, such as ['fedsam', { name = 'server-adam', lr = 0.1 }]"
    )


class LocalSection(Section):
    """Local training of a client."""

    epochs: Times = Field(1, description="passes over the client's data per round")
    batch: Count | None = Field(50, description="batch size; 0 or 'all' for all examples of the client")
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="local optimizer")
    lr: Rate = Field(0.01, description="learning rate, before lr_decay and schedule")
    lr_of: dict[str, Rate] = Field(
        {},
        description="learning rates of parameters by prefix of their names, in place of lr, such as { 'head.' = 0.5 }; "
        "lr_decay and schedule apply to them too, and the longest matching prefix counts",
    )
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor applied to the learning rate after every round")
    schedule: str | dict[str, Any] = Field(
        "constant",
        description="learning rate over the rounds: a name from `fedra list schedules`, or a table with its fields",
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="SGD momentum; reset every round unless centralized")
    weight_decay: Decay = Field(0.0, description="added to the gradient at the unperturbed weights")
    drop_last: bool = Field(False, description="drop the incomplete last batch of an epoch")
    sampling: Literal["shuffle", "poisson"] = Field(
        "shuffle",
        description="'shuffle' uses every example once per epoch; 'poisson' draws each example into each batch with "
        "probability batch / examples, independently, as privacy.level = 'example' needs",
    )


class CohortSection(Section):
    """Which clients take part in a round."""

    fraction: float = Field(
        1.0, gt=0, le=1, description="fraction of the clients per round; at least one client takes part"
    )
    sampling: Literal["keyed", "legacy", "poisson", "rotation"] = Field(
        "keyed",
        description="'keyed' draws a fixed number of clients; 'poisson' draws each client with probability fraction, "
        "independently, as privacy needs; 'rotation' lets all clients take turns, in an order drawn by seed; 'legacy' "
        "samples like FedSoL's code: NumPy's legacy generator, seeded with the round number",
    )
    rounds_per_client: float | None = Field(
        None,
        gt=0,
        le=LONGEST,
        allow_inf_nan=False,
        description="instead of rounds: expected number of rounds per client; rounds is this number divided by "
        "fraction, rounded up",
    )


class RunnerSection(NamedSection):
    """How clients are executed. Other keys are fields of the runner."""

    name: str = Field("auto", description="a name from `fedra list runners`; 'auto' chooses one")
    auto: str | None = Field(None, description="set by fedra: why 'auto' chose this runner")


class EvaluationSection(Section):
    """When and how the global model is evaluated."""

    every: Times = Field(1, description="rounds between evaluations; the last round is always evaluated")
    protocol: Protocol = Field(
        "auto",
        description="'classification' measures accuracy on held-out images; 'verification' decides in ten folds if "
        "pairs of images show the same person; 'clients' measures how well every client identifies its own people "
        "among unseen identities; 'auto' is 'verification' if the data set has pairs of unseen identities, otherwise "
        "'classification'",
    )
    enroll: Count = Field(2, description="'clients': held-out images per person to enroll; the rest are probes")
    tested: int | None = Field(
        200, ge=2, le=LARGEST_COUNT, description="'clients': number of clients to evaluate, sampled; 0 for all"
    )
    impostors: Count | None = Field(
        100, description="'clients': images of other clients' people per client, sampled; 0 for all"
    )
    fpir: float = Field(0.001, gt=0, lt=1, description="'clients': false positive rate at which TPIR is reported")
    metrics: tuple[str, ...] = Field(
        ("accuracy",),
        description="'classification': any of accuracy, balanced-accuracy, precision, recall, f1, "
        "f1-macro, auroc, average-precision, log-loss, mcc, per-class, confusion",
    )
    best: str = Field("accuracy", description="the metric that selects the best round of the summary")
    validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="'classification': fraction of every client's examples to hold out, stratified by class and "
        "sampled with partition.seed; rounds are then evaluated on it, and the test set only once, at the end",
    )
    per_client: bool = Field(
        False, description="'classification': also evaluate the final model on every client's own class distribution"
    )


class FaultsSection(Section):
    """Client failures, simulated or real."""

    dropout: Share = Field(0.0, description="probability that a sampled client does not respond")
    straggler: Share = Field(0.0, description="probability that a sampled client is slow in this round")
    slowdown: float = Field(5.0, ge=1, le=LARGEST_RATE, description="factor by which a slow client is slower")
    deadline: Rate | None = Field(None, description="maximum time per client, in units of the median client's time")
    quorum: Share = Field(0.5, description="fraction of the sampled clients that must respond")
    retries: Repetitions = Field(3, description="how often a round below quorum is repeated before the run stops")


class CheckpointSection(Section):
    """When checkpoints are saved."""

    seconds: Amount = Field(10.0, description="minimum time between two checkpoints; 0 saves every round")


class MemorySection(Section):
    """Where client state is stored between rounds: private layers, control variates, personal models."""

    ram: Amount = Field(RAM, description="MB of client state in RAM; the rest is stored on disk")
    precision: StoredPrecision = Field(
        "float32", description="'float16' and 'bfloat16' round stored client state; 'float32' does not change it"
    )


class DiagnosticsSection(Section):
    """Additional measurements per round. Each one takes time."""

    classes: bool = Field(False, description="accuracy per class of the global model, and forgetting")
    preservation: bool = Field(
        False, description="accuracy of local models on the global test set, for classes the client has and has not"
    )
    divergence: bool = Field(False, description="distances between global and local weights")
    proximal: bool = Field(
        False, description="proximal loss, cosine between update and proximal gradient, mean drift per layer"
    )
    class_vectors: bool = Field(
        False,
        description="class vectors that clients own: lengths, the server rules' step relative to them, and the nearest "
        "cosine across clients; draw them with `fedra plot class-vectors`",
    )
    softmax_agreement: bool = Field(
        False,
        description="class vectors that clients own: cosine of their change with the step of a softmax over all "
        "classes, before and after the server rules; draw it with `fedra plot softmax-agreement`",
    )


class LogSection(Section):
    """Where metrics are logged in addition to the run's folder."""

    tensorboard: bool = Field(False, description="write TensorBoard events (needs the extra 'tensorboard')")


class SweepSection(BaseModel):
    """A grid for `fedra sweep`: dotted keys with lists of values, and seeds. `fedra run` ignores it."""

    model_config = ConfigDict(extra="allow", frozen=True)
    seeds: int = Field(
        1, ge=1, le=10**4, description="number of seeds per grid point, starting with the configuration's seed"
    )
    metric: str = Field(
        "final_accuracy",
        description="key of summary.json to compare, such as final_auroc; fractions are shown in percent",
    )

    @property
    def grid(self) -> dict[str, Any]:
        """Swept keys with their lists of values."""
        return dict(self.model_extra or {})


class Config(Section):
    """The complete configuration of a run. Every key has a default."""

    seed: Seed = Field(0, description="seed of initial weights, cohorts, batches and augmentation")
    rounds: Times = Field(10, description="communication rounds; epochs if centralized")
    mode: Literal["federated", "centralized"] = Field(
        "federated", description="'centralized' trains one model on the pooled examples of all clients, as a baseline"
    )
    device: str = Field("cpu", description="torch device: cpu, cuda, cuda:1, mps")
    precision: Wanted = Field(
        "float32",
        description="data type of forward and backward passes; 'auto' takes the faster of float32 and bfloat16; "
        "see docs/speed.md",
    )
    compile: bool = Field(
        False, description="compile forward and backward passes with torch.compile; see docs/speed.md"
    )
    data: DataSection = DataSection()
    public: PublicSection | None = Field(
        None, description="public data that all clients use; see docs/federated-faces.md"
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
    privacy: PrivacySection = PrivacySection()
    secure: SecureSection = SecureSection()
    attack: AttackSection = AttackSection()
    sweep: SweepSection | None = None

    @property
    def is_protected(self) -> bool:
        """Whether differential privacy or secure sums protect the clients."""
        return self.privacy.level != "none" or self.secure.aggregation != "none"

    @model_validator(mode="after")
    def _derive_rounds(self) -> Self:
        """Set `rounds` from `cohort.rounds_per_client`; all clients take part in a round of centralized training."""
        each = self.cohort.rounds_per_client
        if each is None:
            return self
        if "rounds" in self.model_fields_set:
            raise PydanticCustomError(
                "two_rounds",
                "rounds must not be set along with cohort.rounds_per_client, from which it follows, "
                "got {rounds} and {each}",
                {"rounds": self.rounds, "each": f"{each:g}"},
            )
        participation = 1.0 if self.mode == "centralized" else self.cohort.fraction
        self.__dict__["rounds"] = derive_rounds(each, participation)
        return self

    @model_serializer(mode="wrap")
    def _omit_derived_rounds(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit `rounds` where it follows from another key, so a table with a changed key derives it again."""
        table: dict[str, Any] = serialize(self)
        if self.cohort.rounds_per_client is not None:
            table.pop("rounds", None)
        return table


SECTION_TYPES: dict[str, type[NamedSection]] = {
    "data": DataSection,
    "public": PublicSection,
    "partition": PartitionSection,
    "model": ModelSection,
    "algorithm": AlgorithmSection,
    "runner": RunnerSection,
}
"""Sections that have a name."""
