"""FedArc's invariants: its class vectors F travel with the model, and its splits are as its paper describes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedra
import tiny
import toy
from fedra.algorithms import fedarc
from fedra.data.partition import split
from fedra.losses import ArcFace
from fedra.storage.checkpoint import load_model

VECTORS = "margin-softmax.vectors"


def test_the_class_vectors_are_saved_with_the_model(tmp_path: Path) -> None:
    result = fedra.run(tiny.table(algorithm={"name": "fedarc"}, rounds=1), out=tmp_path)
    saved, _ = load_model(tmp_path / "model.safetensors")
    assert saved[VECTORS].shape == (4, 8)
    assert saved.keys() - {VECTORS} == dict(result.model.named_parameters()).keys()


def test_the_servers_class_vectors_are_the_weighted_mean_of_the_clients() -> None:
    work = toy.job(fedarc(margin=ArcFace(scale=4.0)))
    start = toy.start(work).params[VECTORS]
    after = toy.run(work, cohorts=[(0, 2)])  # n is the sum over the active clients, so that weights add up to one
    own = [start + upload.delta[VECTORS] for upload in after.uploads]
    first, last = toy.SIZES[0], toy.SIZES[2]
    torch.testing.assert_close(after.params[VECTORS], (first * own[0] + last * own[1]) / (first + last))
    assert all(float((vectors - start).abs().max()) > 1e-4 for vectors in own)
    assert not torch.allclose(own[0], own[1])


def test_class_vectors_of_absent_classes_move_too() -> None:
    """The last client lacks the last class, whose row still gets the softmax's gradient as a rival."""
    work = toy.job(fedarc(margin=ArcFace(scale=4.0)))
    (upload,) = toy.run(work, cohorts=[(2,)]).uploads
    assert 3 not in work.clients[2].targets
    assert float(upload.delta[VECTORS][3].abs().max()) > 1e-4


@pytest.mark.parametrize(("clients", "shards", "size", "most"), [(125, 2, 400, 4), (50, 4, 1000, 4)])
def test_shards_of_cifar100_are_equal_and_hold_few_classes(clients: int, shards: int, size: int, most: int) -> None:
    """The paper's 125 clients and its code's 50; MNIST's shards and the IID folds are tested with their partitions."""
    targets = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 500))
    parts = split("shards", targets, clients, 0, shards=shards)
    assert [len(part) for part in parts] == [size] * clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(targets)))
    held = [len(np.unique(targets[part])) for part in parts]
    assert max(held) == most  # a shard of 200 straddles one border at most, a shard of 250 none


def test_the_margin_alone_leaves_the_classifier_as_it_was_drawn() -> None:
    local = replace(toy.LOCAL, weight_decay=0.0)
    (upload,) = toy.run(toy.job(fedarc(objective="margin", weight=1.0), local=local), cohorts=[(0,)]).uploads
    for name, change in upload.delta.items():
        assert (float(change.abs().max()) > 1e-4) is not name.startswith("head."), name
