"""What a part can do beyond its slot: mixin classes that the engine checks for with `isinstance`.

A part without state, parameters or requests of its own inherits from its slot's class only. All methods are pure; a
part's state is stored under its name.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedra.core.tree import Params, Tree

if TYPE_CHECKING:
    from fedra.core.algorithm import Algorithm
    from fedra.core.model import Weights
    from fedra.core.optimizer import Optimizer
    from fedra.core.uploads import Uploads
    from fedra.core.view import Client, Local, Population, Server, Upload, View


class Sizes(NamedTuple):
    """Sizes that a part's own parameters may depend on.

    Args:
        features: Length of a feature vector.
        classes: Number of classes.
        public: Number of classes of the public data, 0 without public data.

    Example:
        ```python
        weight = torch.zeros(sizes.classes, sizes.features)
        ```
    """

    features: int
    classes: int
    public: int = 0


class OwnParams:
    """The part has parameters of its own, trained and shared like the model's, named `<part>.<name>`.

    Example:
        ```python
        @dataclass(frozen=True)
        class LearnedScale(Term, OwnParams):
            def init_params(self, sizes, draw):
                return {"scale": torch.ones(())}

            def loss(self, output, params, view):
                logits = params["learned-scale.scale"] * output.logits
                return view.batch.mean(F.cross_entropy(logits, view.batch.targets, reduction="none"))
        ```
    """

    def init_params(self, sizes: Sizes, draw: torch.Generator) -> Params:
        """The parameters before the first round.

        Args:
            sizes: Feature length and numbers of classes.
            draw: Random generator of this part.

        Returns:
            Initial values by name.
        """
        raise TypeError(f"{type(self).__name__} must define init_params")


class CollectsFirstRows:
    """A start rule that has every client compute the initial rows of its classes, before the first round.

    Example:
        ```python
        class MeanFeatures(StartRule, CollectsFirstRows):
            def first_rows(self, features, targets, classes):
                sums = torch.zeros(classes, features.shape[1]).index_add_(0, targets, features)
                return {"head.weight": F.normalize(sums)}
        ```
    """

    def first_rows(self, features: Tensor, targets: Tensor, classes: int) -> Params:
        """Initial rows of a client's classes.

        Args:
            features: Features (n, d) of the client's examples under the initial model.
            targets: Labels (n,), numbered within the client's classes.
            classes: Number of the client's classes.

        Returns:
            Rows (classes, ...) by parameter name.
        """
        raise TypeError(f"{type(self).__name__} must define first_rows")


class ClientState:
    """The part keeps client state from round to round, and may upload extras.

    Example:
        ```python
        class Momentum(GradientRule, ClientState):
            def init_client(self, origin):
                return {"last": tree.zeros_like(origin.params)}

            def gradient(self, inner, params, view):
                last = view.client.memory[self.name]["last"]
                return tree.add(inner(params), last, -0.01)

            def finish_client(self, local):
                return {"last": local.drift}, {}
        ```
    """

    name: ClassVar[str]
    works_centralized: ClassVar[bool] = False  # whether the state is meaningful in centralized training

    @property
    def has_state(self) -> bool:
        """Whether the part, with its current fields, has state or extras at all."""
        return True

    def init_client(self, origin: Weights) -> Tree:
        """The state of a client that takes part for the first time.

        Args:
            origin: The model that the client received.

        Returns:
            A nested dict of tensors.
        """
        return {}

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        """The client's state and extras after its local steps.

        Args:
            local: The client after training.

        Returns:
            The new state, and what to upload in addition to the model. Extras must have the same names and shapes
            for all clients.
        """
        return local.client.memory.get(self.name, {}), {}


class ServerState:
    """The part keeps state on the server from round to round, and may broadcast some of it.

    Example:
        ```python
        class Average(ServerRule, ServerState):  # a running average of the global model
            def init_server(self, weights):
                return {"average": tree.clone(weights.params)}

            def broadcast(self, memory):
                return {"average": memory["average"]}

            def update(self, before, server, population):
                average = tree.scale(server.memory[self.name]["average"], 0.9)
                average = tree.add(average, server.weights.params, 0.1)
                return server.with_memory(self.name, {"average": average})
        ```
    """

    sees_rows: ClassVar[bool] = False  # whether init_server gets rows owned by classes too

    def init_server(self, weights: Weights) -> Tree:
        """The state before the first round.

        Args:
            weights: The initial global model.

        Returns:
            A nested dict of tensors.
        """
        return {}

    def broadcast(self, memory: Tree) -> Tree:
        """What every client receives in addition to the model.

        Args:
            memory: The part's state on the server.

        Returns:
            A nested dict of tensors, found in `client.received[self.name]`.
        """
        return {}


class CollectsUploads:
    """The part computes something from the uploads in addition to their average.

    Example:
        ```python
        class CountClients(ServerRule, CollectsUploads):
            def collect(self, total, upload):
                return {"clients": total.get("clients", torch.zeros(())) + 1}

            def finish_round(self, before, server, total, population):
                return server.with_memory(self.name, total)

            def update(self, before, server, population):
                return server
        ```
    """

    @property
    def collects(self) -> bool:
        """Whether the part, with its current fields, collects anything."""
        return True

    def collect(self, total: Tree, upload: Upload) -> Tree:
        """Fold one upload into a running total, whose size must not grow with the cohort.

        Args:
            total: The total so far; empty before the first upload.
            upload: One client's upload.

        Returns:
            The new total.
        """
        return total

    def collect_stack(self, total: Tree, uploads: Uploads) -> Tree:
        """Fold several uploads; override it if a few large operations give what `collect` gives one after another.

        Args:
            total: The total so far; empty before the first upload.
            uploads: The uploads of several clients.

        Returns:
            The new total.
        """
        for upload in uploads:
            total = self.collect(total, upload)
        return total

    def finish_round(self, before: Server, server: Server, total: Tree, population: Population) -> Server:
        """The server after the uploads are combined.

        Args:
            before: The server at the start of the round.
            server: The server after the combine rule and the previous parts.
            total: What `collect` accumulated.
            population: All clients of the federation.

        Returns:
            The new server.
        """
        return server


class ReleaseTerms(NamedTuple):
    """What is public about a round of which the server sees sums alone.

    Args:
        optimizer: The local optimizer of the round.
        steps: The mean number of local steps over all clients.
        equal_steps: Whether all clients take the same number of steps.

    Example:
        ```python
        length = terms.optimizer.effective_steps(round(terms.steps)) * terms.optimizer.lr
        ```
    """

    optimizer: Optimizer
    steps: float
    equal_steps: bool


class SumsUploads(CollectsUploads):
    """The part can compute what it collects from sums over clients, so privacy and secure aggregation fit it.

    Example:
        ```python
        class CountClients(ServerRule, SumsUploads):
            def released_total(self, update, sums, clients, terms):
                return {"clients": torch.tensor(clients)}

            def update(self, before, server, population):
                return server
        ```
    """

    def summands(self, uploads: Uploads, terms: ReleaseTerms) -> Tree:
        """What the server must know in addition to the sum of the updates.

        Args:
            uploads: The uploads of several clients.
            terms: What is public about the round.

        Returns:
            Tensors with a leading client dimension; empty if the sum of the updates is enough.
        """
        return {}

    def released_total(self, update: Params, sums: Tree, clients: float, terms: ReleaseTerms) -> Tree:
        """What `collect` would have accumulated, computed from released sums.

        Args:
            update: The released sum of the clients' updates.
            sums: The released sums of `summands`.
            clients: The number of clients, or the sum of their weights.
            terms: What is public about the round.

        Returns:
            The total for `finish_round`.
        """
        raise TypeError(f"{type(self).__name__} must define released_total")


class StepState:
    """The part carries state from one local step to the next, by `view.carry`.

    Example:
        ```python
        class Previous(GradientRule, StepState):
            def init_steps(self, client):
                return {"gradient": tree.zeros_like(client.origin.params)}

            def gradient(self, inner, params, view):
                gradient = inner(params)
                view.carry(self.name, {"gradient": gradient})
                return tree.add(gradient, view.carried[self.name]["gradient"], 0.5)
        ```
    """

    @property
    def has_step_state(self) -> bool:
        """Whether the part, with its current fields, carries anything."""
        return True

    def init_steps(self, client: Client) -> Tree:
        """The state at the first local step.

        Args:
            client: The client at the start of the round.

        Returns:
            A nested dict of tensors, found in `view.carried[self.name]`.
        """
        raise TypeError(f"{type(self).__name__} must define init_steps")


class StepDraws:
    """The part uses random numbers in every local step. They are drawn outside of vmap, equally in all runners.

    Example:
        ```python
        class Noise(Term, StepDraws):
            def draw(self, examples, generator):
                return {"noise": torch.randn(examples, generator=generator)}

            def loss(self, output, params, view):
                noise = view.batch.drawn[self.name]["noise"]
                return view.batch.mean(noise * output.logits.mean(dim=1))
        ```
    """

    def draw(self, examples: int, generator: torch.Generator) -> Tree:
        """The random numbers of one step.

        Args:
            examples: Number of examples in the batch.
            generator: Generator of this part, client and round.

        Returns:
            Tensors with one row per example, found in `view.batch.drawn[self.name]`.
        """
        raise TypeError(f"{type(self).__name__} must define draw")


class ComparesWithOrigin:
    """The part compares the weights with those at the start of the round, which centralized training does not have.

    Example:
        ```python
        class Distance(Term, ComparesWithOrigin):
            closed_form = True
        ```
    """


class Teachers(ComparesWithOrigin):
    """The part uses the outputs of frozen models on every batch.

    Example:
        ```python
        class Distill(Term, Teachers):
            def teachers(self, client):
                return {"global": client.origin}

            def loss(self, output, params, view):
                return view.batch.mean(kl_divergence(view.teachers[self.name]["global"].logits, output.logits, 1.0))
        ```
    """

    def teachers(self, client: Client) -> dict[str, Weights]:
        """The frozen models.

        Args:
            client: The client at the start of the round.

        Returns:
            Weights by name; their outputs are found in `view.teachers[self.name]` under the same names.
        """
        raise TypeError(f"{type(self).__name__} must define teachers")


class TrainsAlongside:
    """The part trains something of its own alongside the model, such as a personal model, in every local step.

    Example:
        ```python
        class Personal(Personalizer, StepState, TrainsAlongside):
            def init_steps(self, client):
                return tree.clone(client.origin.params)

            def train_alongside(self, algorithm, params, view):
                own = view.carried[self.name]
                view.carry(self.name, tree.add(own, tree.subtract(params, own), 0.1))
        ```
    """

    def train_alongside(self, algorithm: Algorithm, params: Params, view: View) -> None:
        """One training step, called after the model's gradient is computed; it cannot affect the model.

        Args:
            algorithm: The algorithm of the run.
            params: The model's parameters before the step.
            view: The local step; read `view.carried` and write by `view.carry`.
        """
        raise TypeError(f"{type(self).__name__} must define train_alongside")


class ChecksTraining:
    """The part does not work with every optimizer or number of local epochs.

    Example:
        ```python
        class OneEpoch(GradientRule, ChecksTraining):
            def check_training(self, optimizer, epochs):
                if epochs != 1:
                    raise fedra.ConfigError(f"local.epochs must be 1 with one-epoch, got {epochs}")
        ```
    """

    def check_training(self, optimizer: Optimizer, epochs: int) -> None:
        """Raise `ConfigError` for local training that the part does not support.

        Args:
            optimizer: The optimizer of the first round.
            epochs: Number of local epochs.
        """
        raise TypeError(f"{type(self).__name__} must define check_training")


class CountsSteps(ChecksTraining):
    """The part divides by the client's effective number of local steps, which not every optimizer defines.

    Example:
        ```python
        class Normalized(RunningMean, CountsSteps):
            def weight(self, examples):
                return examples
        ```
    """

    def check_training(self, optimizer: Optimizer, epochs: int) -> None:
        optimizer.effective_steps(1)


KEEPS_STATE = (OwnParams, ClientState, ServerState, StepState, StepDraws)
"""Capabilities whose values are stored under the part's name, so two different parts of one name would collide."""

_ALL = (*KEEPS_STATE, CollectsFirstRows, CollectsUploads, SumsUploads, Teachers, TrainsAlongside, ChecksTraining)
HOOKS = {name: kind for kind in _ALL for name, value in vars(kind).items() if inspect.isfunction(value)}
"""The capability that each method belongs to."""
