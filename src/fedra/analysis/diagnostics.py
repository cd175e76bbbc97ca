"""Per-round measurements of global and local models, each switched on under [diagnostics]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedra.algorithms.fedsol import Distillation, DriftRadius
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.evaluate import Counts, evaluate
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.ownership import Owners
from fedra.core.part import GradientFunction, GradientRule, Term
from fedra.core.random import preserve_rng
from fedra.core.tree import Params
from fedra.core.view import Server, Upload, View
from fedra.errors import ConfigError
from fedra.parts.gradient import AlsoDescend, Perturb
from fedra.parts.spread import SpreadOut, blocks

NOISE = 1e-6
"""A proximal gradient below this norm is rounding noise without a meaningful direction."""
TINY = 1e-12
"""Smallest length that a step is divided by."""


class Measurement:
    """Base class of an observer that measures nothing; a subclass overrides what it needs."""

    def begin(self) -> None:
        """Start an attempt at a round."""

    def upload(self, client: int, upload: Upload, before: Server) -> dict[str, float]:
        """Measure an accepted upload."""
        return {}

    def server_step(self, combined: Server, server: Server) -> None:
        """Measure what the server rules change."""

    def round(self, server: Server, counts: Counts | None) -> dict[str, Any]:
        """Measure the server after the round."""
        return {}


@dataclass
class ClassAccuracy(Measurement):
    """The server's accuracy by class, and forgetting: mean_c max_{t<T} (A_c^t - A_c^T), at least zero."""

    best: Tensor | None = None

    def round(self, server: Server, counts: Counts | None) -> dict[str, Any]:
        if counts is None:
            return {}
        now = counts.class_accuracy
        best = now if self.best is None else torch.fmax(self.best, now)
        self.best = best
        known = [None if value != value else value for value in now.tolist()]
        return {"class_accuracy": known, "forgetting": float((best - now).nanmean())}


@dataclass
class Preservation(Measurement):
    """Accuracy of locally trained models on the global test set.

    In-local accuracy weights each class by the client's share q_c of it, out-local accuracy by (1 - q_c) / (C - 1).
    `preservation` is the mean local accuracy minus the server's before the round.
    """

    job: Job
    _before: tuple[Server, float] | None = None
    _local: list[float] = field(default_factory=list)

    def begin(self) -> None:
        self._local = []

    def upload(self, client: int, upload: Upload, before: Server) -> dict[str, float]:
        if self._before is None or self._before[0] is not before:
            self._before = (before, self._count(before.weights.params, before.weights.buffers).accuracy)
        counts = self._count(
            tree.add(before.weights.params, upload.delta), {**before.weights.buffers, **upload.buffers}
        )
        labels = self.job.clients[client].targets
        share = torch.bincount(labels, minlength=self.job.classes).double() / len(labels)
        known = counts.class_accuracy.nan_to_num()
        self._local.append(counts.accuracy)
        return {
            "local_accuracy": counts.accuracy,
            "in_local_accuracy": float((share * known).sum()),
            "out_local_accuracy": float(((1 - share) / max(self.job.classes - 1, 1) * known).sum()),
        }

    def round(self, server: Server, counts: Counts | None) -> dict[str, Any]:
        local = torch.tensor(self._local, dtype=torch.float64)
        before = self._before[1] if self._before else float("nan")
        return {
            "accuracy_before": before,
            "local_accuracy_mean": float(local.mean()),
            "local_accuracy_std": float(local.std(correction=0)),
            "preservation": float(local.mean()) - before,
        }

    def _count(self, params: Params, buffers: Params) -> Counts:
        job = self.job
        assert job.evaluated_examples is not None, "checked when the observers are made"
        return evaluate(job.model, Weights(params, buffers), job.evaluated_examples, job.classes)


@dataclass
class Divergence(Measurement):
    """Distances of the local weights from the global weights that they started at, and from each other."""

    _deltas: list[Params] = field(default_factory=list)

    def begin(self) -> None:
        self._deltas = []

    def upload(self, client: int, upload: Upload, before: Server) -> dict[str, float]:
        self._deltas.append(upload.delta)
        return {}

    def round(self, server: Server, counts: Counts | None) -> dict[str, Any]:
        deltas = self._deltas
        pairs = [float(tree.norm(tree.subtract(a, b))) for a, b in combinations(deltas, 2)]
        return {
            "global_local_distance": sum(float(tree.norm(delta)) for delta in deltas) / len(deltas),
            "local_local_distance": sum(pairs) / len(pairs) if pairs else 0.0,
        }


@dataclass
class ClassVectors(Measurement):
    """Class vectors that clients own: their lengths, what the server rules change, and the nearest of other clients.

    For a class vector w before the server rules and w' after them, `server_step` is ||w' - w|| / ||w|| and
    `server_turn` the angle between w and w' in degrees, which a step that only changes lengths does not have.
    `nearest_cosine` is a class's largest cosine with a class that has no owner in common, after the round. Minimum,
    mean and maximum are over all classes.
    """

    owners: Owners
    rows: str = "head.weight"
    _step: dict[str, float] = field(default_factory=dict)

    def server_step(self, combined: Server, server: Server) -> None:
        before = combined.weights.params[self.rows].double()
        after = server.weights.params[self.rows].double()
        change = torch.linalg.vector_norm(after - before, dim=1)
        relative = change / torch.linalg.vector_norm(before, dim=1).clamp(min=TINY)
        first, second = F.normalize(before, dim=1), F.normalize(after, dim=1)
        # Unlike acos, this is accurate for small angles.
        halves = torch.atan2((first - second).norm(dim=1), (first + second).norm(dim=1))
        turn = torch.rad2deg(2 * halves)
        self._step = {
            "server_step_mean": float(relative.mean()),
            "server_step_max": float(relative.max()),
            "server_turn_mean": float(turn.mean()),
            "server_turn_max": float(turn.max()),
        }

    def round(self, server: Server, counts: Counts | None) -> dict[str, Any]:
        rows = server.weights.params[self.rows]
        lengths = torch.linalg.vector_norm(rows.double(), dim=1)
        nearest = nearest_cosines(rows, self.owners)
        return {
            "vector_length_mean": float(lengths.mean()),
            "vector_length_min": float(lengths.min()),
            "vector_length_max": float(lengths.max()),
            **self._step,
            "nearest_cosine_mean": float(nearest.mean()) if len(nearest) else None,
            "nearest_cosine_max": float(nearest.max()) if len(nearest) else None,
        }


@torch.no_grad()
def nearest_cosines(rows: Tensor, owners: Owners) -> Tensor:
    """Return each row's largest cosine with a row that has no owner in common, without rows for which there is none."""
    unit = F.normalize(rows, dim=1)
    found = []
    for block in blocks(unit, owners, torch.Generator(), None):
        cosines = (unit[block.anchors] @ unit.T).masked_fill_(block.related, -torch.inf)
        found.append(cosines.amax(dim=1))
    nearest = torch.cat(found).double()
    return nearest[nearest.isfinite()]


def class_vectors_of(algorithm: Algorithm, setting: str = "diagnostics.class_vectors") -> str:
    """Return the name of the parameter whose rows are class vectors that clients own and the server changes."""
    named = [rule.rows for rule in algorithm.server if isinstance(rule, SpreadOut)]
    rows = named[0] if named else "head.weight"
    if not algorithm.sharing.is_returned(rows):
        raise ConfigError(
            f"the class vectors '{rows}' must be owned by clients and held by the server for "
            f"{setting}, got a sharing that averages them or leaves them with the clients: switch it "
            "off, or use an algorithm such as fedpe, fedgc or fedaws"
        )
    return rows


@dataclass(frozen=True)
class ProximalDiagnosis(GradientRule):
    """Logs the proximal loss, the cosine of the update with the proximal gradient, and the mean drift of each layer.

    It runs at every local step and does not change the gradient.

    Args:
        term: The proximal term.
        radius: How drift is normalized.
    """

    term: Term = Distillation()  # noqa: RUF009  (frozen)
    radius: DriftRadius = DriftRadius()  # noqa: RUF009  (frozen)
    formula: ClassVar[str] = "g -> g;  logs P(w), cos(g, grad P(w)), mean Lambda per layer"

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        update = inner(params)
        with preserve_rng(view.batch.inputs.device):
            proximal = view.gradient([self.term], params)
            loss = view.value(self.term, params)
        with torch.no_grad():
            length = tree.norm(proximal)
            cosine = tree.dot(update, proximal) / (length * tree.norm(update)).clamp(min=NOISE**2)
            view.log("proximal_loss", loss)
            view.log("proximal_cosine", torch.where(length > NOISE, cosine, torch.nan))
            drift = self.radius.drift(params, view, tuple(update))
            for layer in dict.fromkeys(name.rpartition(".")[0] for name in drift):
                own = [value.flatten() for name, value in drift.items() if name.rpartition(".")[0] == layer]
                view.log(f"drift/{layer}", torch.cat(own).mean())
        return update


def add_proximal_diagnostics(job: Job) -> Job:
    """Return the job with the diagnosis around all its gradient rules.

    It measures the term that these rules perturb along or also descend (FedSoL's own if there is none), with drift
    normalized as theirs.
    """
    parts = list(job.algorithm.all_parts())
    along = [rule.along for rule in parts if isinstance(rule, Perturb) and rule.along is not None]
    along += [rule.term for rule in parts if isinstance(rule, AlsoDescend)]
    radii = [part for part in parts if isinstance(part, DriftRadius)]
    diagnosis = ProximalDiagnosis(along[0]) if along else ProximalDiagnosis()
    diagnosis = replace(diagnosis, radius=radii[0]) if radii else diagnosis
    return replace(job, algorithm=replace(job.algorithm, gradient=(diagnosis, *job.algorithm.gradient)))


def observers(
    classes: bool,
    preservation: bool,
    divergence: bool,
    job: Job,
    past: Sequence[Mapping[str, Any]] = (),
    *,
    class_vectors: bool = False,
) -> tuple[Measurement, ...]:
    """Return the observers that are switched on; `past` are the rounds of a resumed run."""
    if preservation and job.evaluated_examples is None:
        raise ConfigError("data must have a test set for diagnostics.preservation, got none: switch it off, or add one")
    not_averaged = job.algorithm.sharing.kept
    if preservation and not_averaged:
        layers = f"'{not_averaged[0]}'" if not_averaged[0] else "every layer"
        raise ConfigError(
            "all layers must be averaged for diagnostics.preservation, got an algorithm with private or owned layers "
            f"({layers}): switch it off, or use another algorithm"
        )
    best: Tensor | None = None
    for line in past:
        if line.get("class_accuracy"):
            now = torch.tensor([torch.nan if v is None else v for v in line["class_accuracy"]], dtype=torch.float64)
            best = now if best is None else torch.fmax(best, now)
    chosen: list[Measurement] = []
    chosen += [ClassAccuracy(best)] if classes else []
    chosen += [Preservation(job)] if preservation else []
    chosen += [Divergence()] if divergence else []
    if class_vectors:
        rows = class_vectors_of(job.algorithm)
        assert job.owners is not None, "owned rows have owners"
        chosen.append(ClassVectors(job.owners, rows))
    return tuple(chosen)
