"""The messages between coordinator and site: for each kind the words it may hold, checked, and its tensors.

The coordinator asks and a site answers. Words are JSON of fixed models that refuse unknown keys; tensors are
safetensors whose entries are numbered, because sums must keep their order. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, StringConstraints, ValidationError

from fedra.core.tree import Tree
from fedra.errors import RunError
from fedra.storage.client_state.packed_tree import decode, encode, pack

WIRE = 1
"""Version of the messages."""
MAX_WORDS = 8 * 2**20
"""Most bytes of a message's words."""
TRANSIENT = "durable"
"""The word that does not belong to a message's identity: the same question may be asked again after a restart."""

Sentence = Annotated[str, StringConstraints(max_length=500)]
MetricName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_./@ -]{1,80}$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Metrics = Annotated[dict[MetricName, float | None], Field(max_length=100)]
Token = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Version = tuple[NonNegativeInt, NonNegativeInt]
"""The round and the attempt after which client state was stored."""


class WireError(RunError):
    """A message cannot be used."""


class Words(BaseModel):
    """The words of a message; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DescribeAsk(Words):
    """Asks a site what it has, and tells it the plan."""

    fedra: Annotated[str, StringConstraints(max_length=40)]
    wire: int
    plan: dict[str, Any]


class ClientWords(Words):
    """A client as its site describes it: numbers of training examples, own classes and held-out examples.

    `people` are the tokens of its people in the order of their numbers, in a plan that matches people across sites.
    """

    examples: NonNegativeInt | None
    classes: NonNegativeInt
    tests: NonNegativeInt = 0
    people: Annotated[list[Token], Field(max_length=100_000)] | None = None


class SiteWords(Words):
    """A site as it describes itself; `secret` is the mark of the sites' secret, the same at all of them."""

    fedra: Annotated[str, StringConstraints(max_length=40)]
    torch: Annotated[str, StringConstraints(max_length=40)]
    device: Annotated[str, StringConstraints(max_length=40)] = "cpu"
    clients: Annotated[list[ClientWords], Field(max_length=100_000)]
    shape: tuple[NonNegativeInt, ...]
    start: Annotated[str, StringConstraints(max_length=64)] | None = None
    secret: Token | None = None
    mean: Finite | None = None
    std: Finite | None = None


class StartAsk(Words):
    """Gives a site's clients their numbers, and the digest of the model that the run starts from."""

    plan: str
    numbers: list[NonNegativeInt]
    start: str


class Acknowledged(Words):
    """An answer without words."""


class RoundZeroAsk(Words):
    """Asks for the first rows of these clients' classes."""

    plan: str
    cohort: list[NonNegativeInt]


class TrainAsk(Words):
    """Asks for a round of these clients; `memory` names the stored state that each begins with.

    `durable` is the round of the coordinator's last checkpoint: state before it will not be named again.
    """

    plan: str
    round: NonNegativeInt
    attempt: NonNegativeInt
    cohort: list[NonNegativeInt]
    clients: NonNegativeInt
    examples: NonNegativeInt
    memory: dict[int, Version]
    durable: NonNegativeInt = 0


class TrainedWords(Words):
    """The words of one client's upload."""

    client: NonNegativeInt
    examples: int
    steps: int
    effective_steps: float
    metrics: Metrics
    broken_step: int | None = None
    restarted: Sentence | None = None
    remembers: bool = False


class TrainAnswer(Words):
    """The words of several clients' uploads; `changed` asks to be described anew before the next round."""

    trained: list[TrainedWords]
    changed: bool = False


class EvaluateAsk(Words):
    """Asks for a test of the model on these clients' held-out examples; `final` after the last round."""

    plan: str
    round: NonNegativeInt
    cohort: list[NonNegativeInt]
    memory: dict[int, Version]
    final: bool = False
    durable: NonNegativeInt = 0


class EvaluatedWords(Words):
    """One client's test: counts that add up, and the histograms of genuine and impostor similarities."""

    client: NonNegativeInt
    examples: NonNegativeInt
    correct: NonNegativeInt = 0
    loss: Finite = 0.0
    genuine: list[NonNegativeInt] = []
    impostor: list[NonNegativeInt] = []
    own_correct: NonNegativeInt | None = None


class EvaluateAnswer(Words):
    """The tests that a site's policy lets leave; `changed` as in a `TrainAnswer`."""

    tested: list[EvaluatedWords]
    changed: bool = False


class Refusal(Words):
    """The answer of a site that does not do what was asked, with the reason."""

    reason: Sentence
    final: bool = False


ASKS: Mapping[str, type[Words]] = {
    "describe": DescribeAsk,
    "start": StartAsk,
    "round-zero": RoundZeroAsk,
    "train": TrainAsk,
    "evaluate": EvaluateAsk,
}
"""The kinds of question."""
ANSWERS: Mapping[str, type[Words]] = {
    "describe": SiteWords,
    "start": Acknowledged,
    "round-zero": Acknowledged,
    "train": TrainAnswer,
    "evaluate": EvaluateAnswer,
}
"""The kinds of answer; instead of any of them a site may refuse."""
REFUSED = "refused"

AnyWords = TypeVar("AnyWords", bound=Words)


@dataclass(frozen=True)
class Packet:
    """A message: its kind, its words as JSON, and its tensors as named blobs."""

    kind: str
    words: str
    blobs: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The message's identity: 32 hexadecimal digits."""
        found = hashlib.sha256(json.dumps([self.kind, self._lasting_words()], sort_keys=True).encode())
        for name in sorted(self.blobs):
            found.update(f"|{name}|{len(self.blobs[name])}|".encode(errors="surrogatepass"))
            found.update(hashlib.sha256(self.blobs[name]).digest())
        return found.hexdigest()[:32]

    def _lasting_words(self) -> Any:
        """Return the words without the transient one; anything but a table is returned as it is."""
        try:
            words = json.loads(self.words)
        except (ValueError, RecursionError):
            return self.words
        return {key: value for key, value in words.items() if key != TRANSIENT} if isinstance(words, dict) else words

    @property
    def nbytes(self) -> int:
        """The size of the message without the link's own overhead."""
        return len(self.words) + sum(map(len, self.blobs.values()))

    def read(self, kind: type[AnyWords]) -> AnyWords:
        """Return the words, checked; raises a `WireError` with a sentence."""
        if len(self.words) > MAX_WORDS:
            raise WireError(f"the words of a message must have at most {MAX_WORDS:,} bytes, got {len(self.words):,}")
        try:
            return kind.model_validate_json(self.words)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"]))[:100]
            raise WireError(
                f"a message of kind '{self.kind[:20]}' is wrong at '{where}': {first['msg'][:200]}"
            ) from None

    def tree(self, name: str) -> Tree:
        """Return the tensors of a blob; raises a `WireError` if it cannot be read."""
        return decode_tree(self.blobs.get(name, b""))


def plan_of(ask: Packet) -> str:
    """Return the digest of the plan that a question belongs to."""
    if len(ask.words) > MAX_WORDS:
        raise WireError(f"the words of a message must have at most {MAX_WORDS:,} bytes, got {len(ask.words):,}")
    try:
        return str(json.loads(ask.words)["plan"])
    except (ValueError, KeyError, TypeError):
        raise WireError(f"a message of kind '{ask.kind[:20]}' must name its plan") from None


def packet(kind: str, words: Words, blobs: Mapping[str, bytes] | None = None) -> Packet:
    """Return a message."""
    return Packet(kind, words.model_dump_json(), {name: blob for name, blob in (blobs or {}).items() if blob})


def encode_tree(tree: Tree) -> bytes:
    """Encode a tree of tensors; an empty one as nothing."""
    packed = pack(tree)
    return encode(packed) if packed.values else b""


def decode_tree(blob: bytes) -> Tree:
    """Decode a tree of tensors that came from elsewhere."""
    if not blob:
        return {}
    try:
        return decode(blob).tree()
    except Exception as error:  # a hostile blob may fail in any way
        raise WireError(f"the tensors of a message cannot be read ({type(error).__name__})") from None


def read_answer(answer: Packet, kind: str) -> Any:
    """Return the words of an answer to a question of this kind, or its refusal."""
    if answer.kind == REFUSED:
        return answer.read(Refusal)
    if answer.kind != kind:
        raise WireError(f"the answer to '{kind}' must be of that kind, got '{answer.kind[:20]}'")
    return answer.read(ANSWERS[kind])
