"""What a plan has every client send, known before the first round: names, shapes and types of all tensors.

The coordinator refuses everything else, and so does the site itself; `fedra site check` shows this very list.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedra.config.imports import imported_names
from fedra.config.names import build_algorithm
from fedra.core.job import ServerJob
from fedra.core.model import Model
from fedra.core.ownership import Owners
from fedra.core.round import init_server
from fedra.experiment.build import build_module, local_training
from fedra.experiment.cohort import Expected, Forms
from fedra.experiment.privacy_budget import planned_epsilon
from fedra.experiment.secure_run import is_secure
from fedra.federation.federation_plan import FederationPlan, sends_class_embeddings
from fedra.federation.policy import Demands


@dataclass(frozen=True)
class _OneClient:
    """A stand-in for the clients, where only their uploads' shapes are asked."""

    def __len__(self) -> int:
        return 1

    def size(self, client: int) -> int:
        return 1


def declare_uploads(plan: FederationPlan, classes: int | None = None) -> Expected:
    """Return what a client sends in a round.

    Args:
        plan: The plan.
        classes: Number of the client's people, where sites have their own.

    Returns:
        The forms of the change of parameters, of running statistics, and of what parts send in addition.
    """
    algorithm = build_algorithm(plan.config.algorithm)
    dataset = plan.blank_dataset(classes)
    count = len(dataset.classes)
    job = ServerJob(
        algorithm=algorithm,
        model=Model(build_module(plan.config, dataset), torch.device("cpu"), None),
        clients=_OneClient(),
        local=local_training(plan.config.local, plan.config.rounds),
        classes=count,
        seed=plan.config.seed,
        shape=plan.schema.shape,
        owners=Owners([torch.arange(count)], count) if algorithm.owns_classes else None,
    )
    return Expected.of(job, init_server(algorithm, job.initial())).holding(count)


def count_bytes(forms: Forms) -> int:
    """Return the bytes of tensors of these forms."""
    return sum(form.shape.numel() * form.dtype.itemsize for form in forms.values())


def upload_bytes(uploads: Expected) -> int:
    """Return the bytes of one client's upload."""
    return sum(map(count_bytes, (uploads.delta, uploads.buffers, uploads.extras)))


def imported_code(plan: FederationPlan) -> tuple[str, ...]:
    """Return the `module:function` names in a plan, without importing anything."""
    return tuple(dict.fromkeys(imported_names(plan.config).values()))


def demands_of(plan: FederationPlan, uploads: Expected | None = None) -> Demands:
    """Return what a plan asks of a site, in the terms of its policy.

    Args:
        plan: The plan.
        uploads: What a client sends; without it nothing is built or imported, and only names and numbers are known.
    """
    section = plan.config.algorithm
    added = tuple(extra if isinstance(extra, str) else str(extra.get("name", "")) for extra in section.plus)
    code = imported_code(plan)
    embeddings = uploads is not None and sends_class_embeddings(build_algorithm(section))
    return Demands(
        algorithms=(section.name, *added),
        model=plan.config.model.name,
        code=code,
        class_embeddings=embeddings,
        match_identities=plan.schema.match == "secret",
        epochs=plan.config.local.epochs,
        rounds=plan.config.rounds,
        upload_bytes=0 if uploads is None else upload_bytes(uploads),
        least_sites=plan.federation.least,
        weighting=plan.federation.weighting,
        epsilon=planned_epsilon(plan.config),
        secure_aggregation=is_secure(plan.config),
    )
