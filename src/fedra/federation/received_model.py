"""What a question brings to a site: the model on top of the kept start, and the rows of its clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedra.core.model import Weights
from fedra.core.tree import Params, Tree
from fedra.core.view import Population, Upload
from fedra.errors import FedraError
from fedra.federation import wire
from fedra.federation.site_job import SiteJob
from fedra.federation.wire import Packet


class Refused(FedraError):
    """The site does not do what was asked; the sentence may leave the site. `final` ends its part in the federation."""

    def __init__(self, reason: str, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


def check_cohort(cohort: Sequence[int], job: SiteJob) -> None:
    """Raise unless all these clients are at this site."""
    known = job.clients.examples if hasattr(job.clients, "examples") else range(len(job.clients))
    if foreign := [client for client in cohort if client not in known]:
        raise Refused(f"client {foreign[0]} is not at this site")


def receive_model(job: SiteJob, ask: Packet, words: wire.TrainAsk | wire.EvaluateAsk) -> tuple[SiteJob, Weights, Tree]:
    """Return the job with the rows of its clients, the received model on top of the start, and the broadcast."""
    shared, own = ask.tree("shared"), ask.tree("own")
    start = job.kept
    assert start is not None
    params, buffers = (
        _on_top(kept, shared.get(kind, {})) for kept, kind in zip(start, ("params", "buffers"), strict=True)
    )
    rows: dict[int, Params] = {int(client): values for client, values in own.items()}
    check_cohort(list(rows), job)
    everyone = job.everyone
    if isinstance(words, wire.TrainAsk):
        everyone = Population(clients=words.clients, examples=words.examples, seed=job.seed)
    return replace(job, rows=rows, everyone=everyone), Weights(params, buffers), shared.get("received", {})


def _on_top(kept: Params, received: Params) -> Params:
    """Return the kept start with what was received in its place; the order is that of the start."""
    for name, value in received.items():
        if name not in kept or kept[name].shape != value.shape or kept[name].dtype != value.dtype:
            raise Refused(f"the received parameter '{name[:80]}' does not fit the start model")
    return {name: received.get(name, value) for name, value in kept.items()}


def upload_tree(job: SiteJob, upload: Upload) -> Tree:
    """Return an upload as it travels: its change plain, or packed by the algorithm's upload rule."""
    rest = {"buffers": upload.buffers, "extras": upload.extras}
    rule = job.algorithm.upload
    if rule is None:
        return {"delta": upload.delta, **rest}
    return {"packed": {name: rule.pack(value) for name, value in upload.delta.items()}, **rest}
