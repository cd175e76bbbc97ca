"""Many small clients at once: the stacked runner against bare `torch.func.vmap` loops, and against sequential.

1,000 clients x 20 examples, an MLP of 64-64-10, batch 10, one epoch, plain SGD. The stacked runner and the bare loops
use all cores; sequential runs as it does by default, on one. Methods whose clients remember something (SCAFFOLD,
FedDyn, MOON, Ditto) are compared with FedAvg, and with bare loops of their own, which show what is arithmetic;
and with five epochs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from bare import CLASSES, SMALL, WIDTH
from measure import Row, cores, in_turns, main, parser
from torch import Tensor
from torch.func import grad, vmap

from federation import Federation
from fedra.algorithms import ditto, fedavg, feddyn, moon, scaffold
from fedra.core.algorithm import Algorithm
from fedra.core.batches import Examples
from fedra.core.job import Job
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model
from fedra.data.clients import SeparateClients
from fedra.models import build

CLIENTS, EXAMPLES, BATCH, LR = SMALL.clients, SMALL.images, SMALL.batch, SMALL.lr
ALPHA, MU, TEMPERATURE, STRENGTH = 0.1, 0.1, 0.5, 0.1
"""FedDyn's, MOON's and Ditto's fields, the defaults of fedra."""

EPOCHS = 5

Values = tuple[Tensor, ...]


class BareStack:
    """Federated averaging with every client's weights in one stack; calling it trains one round."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self._inputs, self._targets = inputs, targets
        draw = torch.Generator().manual_seed(0)
        shapes = ((WIDTH, WIDTH), (WIDTH,), (CLASSES, WIDTH), (CLASSES,))
        self.weights: Values = tuple(torch.randn(shape, generator=draw) / WIDTH**0.5 for shape in shapes)
        self._gradients = vmap(grad(_loss))
        self.begin()

    def __call__(self) -> None:
        clients, examples = self._targets.shape
        stack = self.stacked(self.weights)
        order = torch.rand(clients, examples).argsort(dim=1)
        owner = torch.arange(clients)[:, None]
        for rows in torch.split(order, BATCH, dim=1):
            inputs, targets = self._inputs[owner, rows], self._targets[owner, rows]
            for value, gradient in zip(stack, self.gradients(stack, inputs, targets), strict=True):
                value.sub_(gradient, alpha=LR)
        self.finish(stack)

    def stacked(self, values: Values) -> Values:
        """A copy of the values for every client."""
        return tuple(value.expand(len(self._targets), *value.shape).clone() for value in values)

    def begin(self) -> None:
        """Set up what clients remember."""

    def gradients(self, stack: Values, inputs: Tensor, targets: Tensor) -> Values:
        """The gradients of one step."""
        return self._gradients(stack, inputs, targets)

    def finish(self, stack: Values) -> None:
        """Average the clients' weights."""
        self.weights = tuple(value.mean(dim=0) for value in stack)


class BareScaffold(BareStack):
    """The same with control variates."""

    def begin(self) -> None:
        self._mean = tuple(map(torch.zeros_like, self.weights))
        self._own = self.stacked(self._mean)

    def gradients(self, stack: Values, inputs: Tensor, targets: Tensor) -> Values:
        gradients = super().gradients(stack, inputs, targets)
        for gradient, mean, own in zip(gradients, self._mean, self._own, strict=True):
            gradient.add_(mean).sub_(own)
        return gradients

    def finish(self, stack: Values) -> None:
        scale = -1 / (EXAMPLES // BATCH * LR)
        for value, start, mean, own in zip(stack, self.weights, self._mean, self._own, strict=True):
            change = (value - start).mul_(scale).sub_(mean)
            own.add_(change)
            mean.add_(change.mean(dim=0))
        super().finish(stack)


class BareFedDyn(BareStack):
    """The same with a dynamic regularizer."""

    def begin(self) -> None:
        self._linear = tuple(map(torch.zeros_like, self.weights))
        self._own = self.stacked(self._linear)

    def gradients(self, stack: Values, inputs: Tensor, targets: Tensor) -> Values:
        gradients = super().gradients(stack, inputs, targets)
        for gradient, value, start, own in zip(gradients, stack, self.weights, self._own, strict=True):
            gradient.add_(value, alpha=ALPHA).sub_(start, alpha=ALPHA).sub_(own)
        return gradients

    def finish(self, stack: Values) -> None:
        for value, start, linear, own in zip(stack, self.weights, self._linear, self._own, strict=True):
            drift = value - start
            own.sub_(drift, alpha=ALPHA)
            linear.sub_(drift.mean(dim=0), alpha=ALPHA)
        super().finish(stack)
        self.weights = tuple(w - h / ALPHA for w, h in zip(self.weights, self._linear, strict=True))


class BareMoon(BareStack):
    """The same with a contrastive term between the features of three models."""

    def begin(self) -> None:
        self._previous = self.stacked(self.weights)
        self._contrast = vmap(grad(_contrastive_loss), in_dims=(0, 0, 0, None, 0))

    def gradients(self, stack: Values, inputs: Tensor, targets: Tensor) -> Values:
        return self._contrast(stack, inputs, targets, self.weights, self._previous)

    def finish(self, stack: Values) -> None:
        super().finish(stack)
        self._previous = stack


class BareDitto(BareStack):
    """The same with a personal model for every client."""

    def begin(self) -> None:
        self._personal = self.stacked(self.weights)

    def gradients(self, stack: Values, inputs: Tensor, targets: Tensor) -> Values:
        personal = super().gradients(self._personal, inputs, targets)
        for value, gradient, start in zip(self._personal, personal, self.weights, strict=True):
            value.sub_(gradient.add_(value - start, alpha=STRENGTH), alpha=LR)
        return super().gradients(stack, inputs, targets)


def _features(weights: Values, inputs: Tensor) -> Tensor:
    return F.relu(F.linear(inputs, weights[0], weights[1]))


def _loss(weights: Values, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(_features(weights, inputs), weights[2], weights[3]), targets)


def _contrastive_loss(weights: Values, inputs: Tensor, targets: Tensor, start: Values, previous: Values) -> Tensor:
    features = _features(weights, inputs)
    toward = F.cosine_similarity(features, _features(start, inputs))
    away = F.cosine_similarity(features, _features(previous, inputs))
    contrast = MU * F.softplus((away - toward) / TEMPERATURE).mean()
    return F.cross_entropy(F.linear(features, weights[2], weights[3]), targets) + contrast


REMEMBERING: dict[str, tuple[Callable[[], Algorithm], type[BareStack], bool]] = {
    "scaffold": (scaffold, BareScaffold, False),
    "feddyn": (feddyn, BareFedDyn, False),
    "moon": (moon, BareMoon, True),
    "ditto": (ditto, BareDitto, True),
}
"""Methods whose clients remember something, their bare loops, and whether they run further models.

MOON runs two more and Ditto trains a second one, which takes longer whatever the engine.
"""


def job_of(inputs: Tensor, targets: Tensor, lr: float = LR, algorithm: Algorithm | None = None, epochs: int = 1) -> Job:
    """One client for each row."""
    model = Model(build("mlp", (WIDTH,), CLASSES, seed=0, hidden=(WIDTH,)))
    clients = SeparateClients([Examples(*pair) for pair in zip(inputs, targets, strict=True)])
    return Job(
        algorithm=algorithm or fedavg(),
        model=model,
        clients=clients,
        local=LocalTraining(epochs=epochs, batch=BATCH, lr=lr),
        classes=CLASSES,
        seed=0,
    )


def measure(quick: bool) -> list[Row]:
    """Throughput of the stacked runner against the bare loop and sequential, and round times of other methods."""
    clients, repeats = (30, 2) if quick else (CLIENTS, 9)
    torch.set_num_threads(cores())
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(clients, EXAMPLES, WIDTH, generator=draw)
    targets = torch.randint(CLASSES, (clients, EXAMPLES), generator=draw)
    job = job_of(inputs, targets)
    fedavg_stack, bare_stack = Federation(job, "stacked"), BareStack(inputs, targets)
    timings = in_turns(
        {"stacked": fedavg_stack, "bare": bare_stack, "sequential": Federation(job, "sequential")}, repeats
    )
    rows = [
        Row(
            "stacked against a bare vmap loop, throughput",
            timings.ratio("bare", "stacked"),
            target=0.8,
            at_least=True,
            note=timings.note("stacked", "bare"),
        ),
        Row(
            "stacked against sequential, throughput",
            timings.ratio("sequential", "stacked"),
            note=timings.note("sequential"),
        ),
    ]
    for name, (recipe, bare, further_models) in REMEMBERING.items():
        own = f"bare {name}"
        rivals: dict[str, Callable[[], None]] = {
            "fedavg": fedavg_stack,
            "bare fedavg": bare_stack,
            name: Federation(job_of(inputs, targets, algorithm=recipe()), "stacked"),
            own: bare(inputs, targets),
        }
        timings = in_turns(rivals, repeats, warm_up=2)
        limits = (None, 1.25) if further_models else (1.5, None)
        rows += [
            Row(
                f"{name} against fedavg, both stacked, round time",
                timings.ratio(name, "fedavg"),
                target=limits[0],
                note=f"{timings.note(name)}, the bare loops {timings.ratio(own, 'bare fedavg'):.2f} x",
            ),
            Row(
                f"{name} stacked against its bare vmap loop, round time",
                timings.ratio(name, own),
                target=limits[1],
                note=timings.note(own),
            ),
        ]
    return rows + _rows_of_several_epochs(inputs, targets, repeats)


def _rows_of_several_epochs(inputs: Tensor, targets: Tensor, repeats: int) -> list[Row]:
    """The same methods with several local epochs, as papers have them: frozen models run once a round."""
    recipes: dict[str, Callable[[], Algorithm]] = {name: recipe for name, (recipe, _, _) in REMEMBERING.items()}
    rivals = {
        name: Federation(job_of(inputs, targets, algorithm=recipe(), epochs=EPOCHS), "stacked")
        for name, recipe in {"fedavg": fedavg, **recipes}.items()
    }
    timings = in_turns(rivals, repeats, warm_up=2)
    return [
        Row(
            f"{name} against fedavg, both stacked, {EPOCHS} epochs, round time",
            timings.ratio(name, "fedavg"),
            target=1.5,
            note=timings.note(name),
        )
        for name in recipes
    ]


if __name__ == "__main__":
    main(measure, parser(__doc__))
