"""Whether a run's objective means the same on single examples as on a batch, seen on the first examples."""

from __future__ import annotations

import copy
from dataclasses import replace

from torch import nn

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.batches import Examples, LocalData
from fedra.core.draws import Draws
from fedra.core.job import Job
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model
from fedra.core.random import key, scoped_seed
from fedra.core.round import begin, broadcast, init_server
from fedra.core.teachers import teacher_outputs, teacher_weights
from fedra.core.tree import Params
from fedra.errors import ConfigError
from fedra.parts.private_gradient import PrivateGradient

TOLERANCE = 1e-3
"""Relative difference of gradients that rounding may cause."""
EXAMPLES = 8
"""Examples that are compared."""
ENDLESS = 1e20


def vet_examples(job: Job, client: int = 0) -> None:
    """Raise if a term looks at a batch as a whole: clipping single examples would change what is trained.

    The gradient of a few examples must be the mean of the gradients of each alone. Gradient rules are left out: inside
    a private rule each example has its own perturbation, by design.

    Args:
        job: The job.
        client: The client whose examples are used.

    Raises:
        ConfigError: Names the terms that differ.
    """
    bare = replace(job.algorithm, gradient=(), personalize=None)
    if _differs(job, bare, client):
        batched = [term for term in bare.objective if not term.closed_form]
        names = [term.name for term in batched if _differs(job, replace(bare, objective=(term,)), client)]
        raise ConfigError(
            f"the objective ({', '.join(names) or 'a sum of terms'}) looks at several examples of a batch at once, so "
            "one example cannot be clipped by itself: leave it out, or protect clients instead (privacy.level = "
            "'client')"
        )


def _differs(job: Job, algorithm: Algorithm, client: int) -> bool:
    alone = replace(algorithm, gradient=(PrivateGradient(clip=ENDLESS, noise=0.0, chunk=1),))
    together, apart = (_gradient(replace(job, algorithm=one), client) for one in (algorithm, alone))
    difference = tree.norm(tree.subtract(together, apart))
    return bool(difference > TOLERANCE * tree.norm(together) + 1e-12)


def _gradient(job: Job, number: int) -> Params:
    """The gradient of the first step of a client on a few examples, with dropout turned off."""
    own = job.clients[number]
    few = Examples(own.inputs[:EXAMPLES], own.targets[:EXAMPLES], own.transform)
    module = copy.deepcopy(job.model.module)
    for layer in module.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.p = 0.0
    model = Model(module, job.model.device, job.model.precision)
    work = replace(job, model=model, local=LocalTraining(batch=None))
    server = init_server(work.algorithm, work.initial())
    origin = work.common(server.weights)
    memory = model.arrange_tree(work.client_state(number, server.weights, {}))
    names = work.algorithm.sharing.received(origin, memory).params
    program = work.program(0, origin, broadcast(work.algorithm, server), names)
    data = LocalData(few, model, work.local, work.labels_of(number), work.seed, 0, number)
    with scoped_seed(key(work.seed, "vetting")):
        client, state = begin(program, memory, data)
        batch = next(iter(data))
        batch = replace(batch, drawn=Draws(work.algorithm, model, *data.where).step(len(batch.targets)))
        outputs = teacher_outputs(model, teacher_weights(work.algorithm, client), {}, batch)
        gradient: Params = program.step(client, state, batch, outputs)["gradient"]
    return {name: value.detach() for name, value in gradient.items()}
