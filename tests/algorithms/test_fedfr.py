"""FedFR against a plain loop, what it sends and keeps, and what it says of configurations that cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from naive import Setting
from naive_public import Everybody, train_fedfr

import toy
from fedra import algorithms as ours
from fedra.algorithms.fedfr import PersonalBranch, SimilarPublic
from fedra.core.algorithm import Algorithm
from fedra.core.batches import Examples
from fedra.core.data_rule import Public
from fedra.core.job import Job
from fedra.core.tree import flatten
from fedra.errors import ConfigError
from fedra.losses import CosFace
from fedra.runners import RUNNERS
from fedra.runners.auto import choose

NAME = "fedfr"
"""What `test_fedfr_is_a_plain_loop` is the plain counterpart of."""

COHORTS = ((0, 1), (1, 2), (0, 2))
THRESHOLD = 0.93
"""Between the cosines of toy features: some public images are chosen and some are not."""


def public() -> Public:
    draw = torch.Generator().manual_seed(5)
    targets = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    inputs = torch.randn(7, 5, generator=draw, dtype=torch.float64) + targets[:, None] / 2
    return Public(Examples(inputs, targets), 3)


def job(threshold: float = THRESHOLD) -> Job:
    method = ours.fedfr(margin=CosFace(scale=3.0, margin=0.2), threshold=threshold, contrast=2.0, branch=1.5)
    return replace(toy.job(method), public=public())


def test_fedfr_is_a_plain_loop() -> None:
    work = job()
    first = toy.start(work).params
    net = toy.mlp()
    net.load_state_dict({name: value for name, value in first.items() if name in net.state_dict()})
    local, data = toy.LOCAL, toy.sharers()
    setting = Setting(
        [(own.inputs, own.targets) for own in data.examples], toy.SEED, local.epochs,
        local.batch or 0, local.lr, local.lr_decay, local.momentum, local.weight_decay,
    )  # fmt: skip
    found, shown = public().examples, first["personal-branch.class_rows"]
    naive = Everybody(
        net, first["public-margin.vectors"], (found.inputs, found.targets), shown, 3.0, 0.2, THRESHOLD, 2.0, 1.5
    )
    last = train_fedfr(naive, COHORTS, setting)
    assert 0 < min(naive.chosen) <= max(naive.chosen) < 7, f"the threshold parts nothing: {naive.chosen}"
    history = toy.run(work, COHORTS)
    shared = {**net.state_dict(), "public-margin.vectors": naive.public_rows}
    assert toy.distance({name: history.params[name] for name in shared}, shared) < 1e-9
    for client, model in last.items():
        own = history.memory[client]["sharing"]
        wanted = (model.converter.weight, model.converter.bias, model.own, model.own_bias)
        for name, value in zip(("map", "shift", "class_rows", "class_bias"), wanted, strict=True):
            assert torch.allclose(own[f"personal-branch.{name}"], value, rtol=0, atol=1e-7), (client, name)
    examples = [
        upload.examples - work.clients.size(c) for upload, c in zip(history.uploads, sum(COHORTS, ()), strict=True)
    ]
    assert examples == naive.chosen


def test_public_rows_begin_at_mean_features() -> None:
    first, found = toy.start(job()).params, public().examples
    features = toy.mlp().body(found.inputs).detach()
    for label in range(3):
        wanted = features[found.targets == label].mean(dim=0)
        assert torch.allclose(first["public-margin.vectors"][label], wanted, rtol=0, atol=1e-12)


def test_a_worker_process_gives_the_same_bits_and_a_stack_is_refused_in_a_sentence() -> None:
    work = job()
    there = toy.run(work, COHORTS, "processes", workers=2)
    here = toy.run(work, COHORTS)
    assert toy.same_bits(there.params, here.params)
    assert all(toy.same_bits(flatten(there.memory[c]), flatten(here.memory[c])) for c in range(3))
    with pytest.raises(ConfigError, match=r"select public examples .* cannot be stacked: use the runner 'processes'"):
        RUNNERS["stacked"](work)
    assert choose(work, 3).runner != "stacked"


def test_without_public_examples_a_stack_is_a_loop() -> None:
    work = toy.job(ours.fedfr())
    assert toy.distance(toy.run(work, COHORTS, "stacked").params, toy.run(work, COHORTS).params) < 1e-9


def test_the_branch_stays_at_home_and_everybody_has_rows_for_their_own_classes_alone() -> None:
    work = job()
    history = toy.run(work, COHORTS)
    for upload in history.uploads:
        assert not [path for path in (*upload.delta, *flatten(upload.extras)) if "personal-branch" in path]
        assert upload.extras["sharing"]["head.weight"].shape[0] == 2
    first = toy.start(work).params
    for name in ("map", "shift", "class_rows", "class_bias"):
        assert torch.equal(history.params[f"personal-branch.{name}"], first[f"personal-branch.{name}"])
    assert history.memory[0]["sharing"]["personal-branch.class_rows"].shape[0] == 2
    assert not torch.equal(*(history.memory[c]["sharing"]["personal-branch.map"] for c in (0, 1)))


def test_a_higher_threshold_chooses_fewer() -> None:
    part, draw = SimilarPublic(0.2), torch.Generator().manual_seed(0)
    own, others = torch.randn(30, 8, generator=draw), torch.randn(2500, 8, generator=draw)
    cosines = torch.nn.functional.cosine_similarity(others[:, None], own[None], dim=2).amax(dim=1)
    assert torch.equal(part.select_similar(own, others), cosines > 0.2)
    counts = [int(replace(part, threshold=t).select_similar(own, others).sum()) for t in (-1.0, 0.6, 0.8, 1.0)]
    assert counts[0] == 2500
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0


def test_public_features_are_made_anew_for_another_body_only() -> None:
    work, other = job(), toy.mlp()
    assert work.public is not None
    weights = work.initial()
    kept = work.public.features(work.model, weights)
    assert work.public.features(work.model, weights) is kept
    with torch.no_grad():
        other.body[0].weight.add_(0.1)
    moved = weights._replace(params={**weights.params, "body.0.weight": other.body[0].weight.detach()})
    assert not torch.equal(work.public.features(work.model, moved), kept)


def check_public(algorithm: Algorithm) -> None:
    algorithm.data.check_public(algorithm)


def test_public_examples_need_a_part_that_knows_them() -> None:
    with pytest.raises(ConfigError, match="public data must be used by the algorithm"):
        check_public(ours.fedgc())
    with pytest.raises(ConfigError, match="must cover their classes, got"):
        check_public(ours.fedfr().plus(ours.fedlc()))
    check_public(ours.fedfr().plus(ours.fedprox()))


def test_a_branch_whose_rows_would_belong_to_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="the rows of personal-branch must be owned"):
        ours.fedpe().plus(PersonalBranch())
