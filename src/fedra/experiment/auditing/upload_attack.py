"""Gradient inversion of a run: what the upload of one step shows of its examples, to the server and to others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedra.console import steps
from fedra.core.draws import Draws
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.private_steps import private_steps
from fedra.core.random import generator
from fedra.core.round import broadcast, init_server
from fedra.core.tree import Params
from fedra.core.view import Batch, View
from fedra.experiment.auditing.audit_target import AuditTarget, UnfitAttack
from fedra.parts.private import PrivateMean
from fedra.parts.private_gradient import PrivateGradient
from fedra.privacy.audit.findings import AuditFigure, Finding
from fedra.privacy.audit.gradient_inversion import (
    clip_and_noise,
    invert_gradient,
    match_pictures,
    psnr,
    read_off_dense_layer,
)
from fedra.privacy.audit.membership import clopper_pearson, mean_interval
from fedra.privacy.audit.row_inversion import rank_of, share_beaten

SentView = Callable[[Params, torch.Generator], Params]
"""From the gradient of a step to what an attacker sees of it."""
OTHERS = 100
"""Other examples among which the right one is searched."""
FIRST = "right image first, by pixels"
EXACT = 0.999
"""Cosine of gradients from which a picture that was read off needs no search."""
READING = (
    "A reconstruction leaks if it is more similar to the true image than to all of a hundred others; from a PSNR of "
    "about 20 dB on it is recognizable. One step on few images is the worst case: more images and steps hide more."
)


@dataclass(frozen=True)
class UploadPictures:
    """True and reconstructed pictures (n, c, h, w) in 0..1, by what was attacked."""

    truth: dict[str, Tensor]
    found: dict[str, Tensor]
    quality: dict[str, np.ndarray]


class ClientStep:
    """The gradient of one step of a client, as a differentiable function of its images."""

    def __init__(self, job: Job, weights: Weights, client: int, targets: Tensor) -> None:
        self._job, self._targets = job, targets.to(job.model.device)
        received = broadcast(job.algorithm, init_server(job.algorithm, weights))
        memory = job.model.arrange_tree(job.client_state(client, weights, {}))
        common = job.common(weights)
        names = job.algorithm.sharing.received(common, memory).params
        program = job.program(0, common, received, names)
        counts = torch.bincount(self._targets, minlength=job.labels_of(client))
        self._client = program.client(program.memory(memory), job.clients.size(client), counts)
        self._state = program.init(self._client)
        self._drawn = Draws(job.algorithm, job.model, job.seed, 0, client).step(len(targets))
        sharing = job.algorithm.sharing
        sent = (name for name in program.trained if sharing.is_averaged(name) or sharing.is_returned(name))
        self._sent = tuple(sent)

    def gradient(self, pixels: Tensor) -> Params:
        """The gradient of the label loss with respect to what the client sends."""
        job, client = self._job, self._client
        inputs = job.model.ready(job.clients[0].transform.prepare(pixels))
        batch = Batch(inputs, self._targets, drawn=self._drawn)
        view = View(
            model=job.model,
            client=client,
            batch=batch,
            buffers=client.origin.buffers,
            teachers={},
            carried=self._state["carried"],
        )
        params = {name: value.detach().requires_grad_() for name, value in client.origin.params.items()}
        buffers = {name: value.clone() for name, value in client.origin.buffers.items()}
        output = job.model.output(Weights(params, buffers), inputs, train=True)
        loss = job.algorithm.label_loss.scalar_loss(output, params, view)
        if not loss.requires_grad:
            return {name: torch.zeros_like(params[name]) for name in self._sent}
        found = torch.autograd.grad(
            loss, [params[name] for name in self._sent], create_graph=True, materialize_grads=True
        )
        return dict(zip(self._sent, found, strict=True))


def attack_uploads(target: AuditTarget) -> tuple[list[Finding], UploadPictures]:
    """Reconstruct images from single uploads: of one image, of a small batch, and with the run's noise."""
    if not target.has_images:
        raise UnfitAttack("it needs images")
    if target.start is None:
        raise UnfitAttack("it needs the initial weights, and their file is gone or was changed")
    settings, findings = target.settings, []
    batch = min(4, target.config.local.batch or 4)
    raw = _server_view(target)
    views = [("upload of one image, as the server sees it", 1, raw)]
    if batch > 1:
        views.append((f"upload of {batch} images, as the server sees it", batch, raw))
    noised = _private_view(target)
    if noised is not None:
        views.append(("upload of one image, as all others see it", 1, noised))
    pictures = UploadPictures({}, {}, {})
    with steps(target.console, "inverting uploads", settings.steps * settings.images * len(views)) as done:
        for name, size, view in views:
            findings.append(_attack(target, name, size, view, pictures, done))
    return findings, pictures


def _server_view(target: AuditTarget) -> SentView:
    """What the server gets: the gradient itself, or with private steps the clipped and noised one.

    A batch is clipped as a whole here, which hides less than example by example.
    """
    rule = private_steps(target.job.algorithm)
    if not isinstance(rule, PrivateGradient):
        return lambda sent, draw: sent
    return lambda sent, draw: clip_and_noise(sent, rule.clip, rule.noise, draw)


def _private_view(target: AuditTarget) -> SentView | None:
    """What the private mean releases of an upload, at best for an attacker who knows all other uploads."""
    part = target.job.algorithm.combine
    if not isinstance(part, PrivateMean):
        return None
    rate = target.config.local.lr

    def release(sent: Params, draw: torch.Generator) -> Params:
        return clip_and_noise({name: rate * value for name, value in sent.items()}, part.clip, part.sum_noise, draw)

    return release


def _attack(
    target: AuditTarget,
    name: str,
    size: int,
    view: SentView,
    pictures: UploadPictures,
    done: Callable[[int], None],
) -> Finding:
    assert target.start is not None
    draw = generator(target.settings.seed, "audit uploads", size)
    truth, found, beaten = [], [], []
    for client, rows in _batches(target, size, draw):
        examples = target.job.clients[client]
        true = target.pixels(examples.inputs[rows]).to(target.model.device)
        step = ClientStep(target.job, target.start, client, examples.targets[rows])
        sent = {n: value.detach() for n, value in step.gradient(true).items()}
        result = _invert(target, step, view(sent, draw), true.shape, draw, done)
        result = match_pictures(result, true)
        truth.append(true.cpu())
        found.append(result.cpu())
        beaten.append(_beaten(target, result.cpu(), true.cpu(), draw))
    all_true, all_found = torch.cat(truth), torch.cat(found)
    quality, flat = psnr(all_found, all_true), psnr(_flat(all_true), all_true)
    pictures.truth[name], pictures.found[name], pictures.quality[name] = all_true, all_found, quality
    gain, shares = quality - flat, np.concatenate(beaten)
    first, count = shares > 1 - 0.5 / OTHERS, len(quality)
    return Finding(
        "uploads",
        name,
        (
            AuditFigure(FIRST, float(first.mean()), *clopper_pearson(int(first.sum()), count), 1 / (OTHERS + 1), count),
            AuditFigure("PSNR above the flat picture (dB)", float(gain.mean()), *mean_interval(gain), 0.0, count),
            AuditFigure("PSNR (dB)", float(quality.mean()), *mean_interval(quality), float(flat.mean()), count),
            AuditFigure("others beaten, by pixels", float(shares.mean()), *mean_interval(shares), 0.5, count),
        ),
        reading=READING,
        decisive=FIRST,
        notes=_notes(target, name),
    )


def _notes(target: AuditTarget, name: str) -> tuple[str, ...]:
    if target.config.secure.aggregation != "none" and "server" in name:
        return ("secure aggregation hides single uploads from the server: it sees only sums over a round's clients",)
    return ()


def _batches(target: AuditTarget, size: int, draw: torch.Generator) -> list[tuple[int, Tensor]]:
    """Clients and rows of the attacked steps; about `images` pictures in total."""
    job, found = target.job, []
    fitting = [client for client in range(len(job.clients)) if job.clients.size(client) >= size]
    if not fitting:
        raise UnfitAttack(f"it needs a client with at least {size} images")
    for _ in range(max(target.settings.images // size, 1)):
        client = fitting[int(torch.randint(len(fitting), (1,), generator=draw))]
        found.append((client, torch.randperm(job.clients.size(client), generator=draw)[:size]))
    return found


def _invert(
    target: AuditTarget,
    step: ClientStep,
    sent: Params,
    shape: torch.Size,
    draw: torch.Generator,
    done: Callable[[int], None],
) -> Tensor:
    """Read the picture off a dense first layer if that explains the upload, and search it otherwise."""
    count = target.settings.steps
    if len(shape) and shape[0] == 1:
        read = read_off_dense_layer(sent, int(torch.Size(shape[1:]).numel()))
        if read is not None:
            picture = _unprepared(target, read.view(shape)).clamp(0, 1)
            if _explains(step.gradient(picture), sent) > EXACT:
                done(count)
                return picture
    return invert_gradient(step.gradient, sent, tuple(shape), draw, count, done)


def _explains(found: Params, sent: Params) -> float:
    ours, theirs = (torch.cat([value.detach().flatten() for value in some.values()]) for some in (found, sent))
    return float(torch.nn.functional.cosine_similarity(ours, theirs, dim=0))


def _unprepared(target: AuditTarget, prepared: Tensor) -> Tensor:
    """Network inputs as pixels in 0..1."""
    if target.dataset.mean is None or target.dataset.std is None:
        return prepared
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1).to(prepared) for values in (target.dataset.mean, target.dataset.std)
    )
    return prepared * std + mean


def _flat(pictures: Tensor) -> Tensor:
    """Each picture as one color, its mean."""
    return pictures.mean(dim=(2, 3), keepdim=True).expand_as(pictures)


def _beaten(target: AuditTarget, found: Tensor, true: Tensor, draw: torch.Generator) -> np.ndarray:
    """The share of other training images that are less similar to a reconstruction than the true one."""
    inputs = target.dataset.train.inputs
    some = target.pixels(inputs[torch.randperm(len(inputs), generator=draw)[:OTHERS]])
    flat = found.flatten(1), true.flatten(1), some.flatten(1)
    others = torch.cdist(flat[0], flat[2])
    others[torch.cdist(flat[1], flat[2]) < 1e-6] = torch.inf  # the image itself may be among them
    alone = torch.cat([(flat[0] - flat[1]).norm(dim=1)[:, None], others], dim=1)
    return share_beaten(rank_of(-alone, torch.zeros(len(true), dtype=torch.int64)), alone.shape[1])
