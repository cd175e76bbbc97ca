"""The end of a federation: personal models are made, kept and tested at the sites, as the simulator would make them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rehearsing import Rehearsed

import fedra
import tiny
from fedra.core.round import init_server
from fedra.evaluation.personal_models import train_personal_models
from fedra.faces.metrics import Scores
from fedra.federation.site_tests import rates_of
from fedra.runners import RUNNERS
from fedra.storage.checkpoint import load_model
from fedra.storage.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("without_curves")


@pytest.mark.parametrize("name", ["fedper", "fedbabu", "ditto", "per-fedavg", "apfl"])
def test_personal_models_at_the_sites_are_the_simulators(name: str, tmp_path: Path) -> None:
    table = tiny.table(algorithm={"name": name}, rounds=2)
    rehearsed = Rehearsed(tmp_path, table)
    found = rehearsed.run()
    fedra.run(table, out=tmp_path / "simulator")
    job = rehearsed.built.job
    state = RunFolder(tmp_path / "simulator").checkpoint.load(init_server(job.algorithm, job.initial()))
    own = dict(
        train_personal_models(
            job, lambda one: RUNNERS["sequential"](one), state.server, state.memory.get, state.round, [0, 1, 2, 3]
        )
    )
    for site, clients in rehearsed.places.items():
        assert 0 <= found.summary["sites"][site]["personal_accuracy"] <= 1
        for client in clients:
            kept = "own-model.safetensors" if len(clients) == 1 else f"own-model-{client}.safetensors"
            mine, _ = load_model(tmp_path / site / kept)
            theirs = own[client]
            assert theirs is not None
            assert all(torch.equal(value, {**theirs.params, **theirs.buffers}[key]) for key, value in mine.items())


def test_personal_models_never_leave(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(algorithm={"name": "fedper"}, rounds=2))
    rehearsed.run()
    crossed = b"".join(blob for _, _, a in rehearsed.link.passed if not isinstance(a, str) for blob in a.blobs.values())
    for path in tmp_path.glob("site-*/own-model*.safetensors"):
        head = load_model(path)[0]["head.weight"]
        assert all(row.contiguous().numpy().tobytes() not in crossed for row in head)


def test_rates_of_histograms_are_those_of_the_scores() -> None:
    draw = np.random.default_rng(3)
    genuine, impostor = draw.normal(0.5, 0.2, 400).clip(-1, 1), draw.normal(0.0, 0.2, 900).clip(-1, 1)
    bins = np.linspace(-1, 1, 201)
    eer, auroc = rates_of(np.histogram(genuine, bins)[0], np.histogram(impostor, bins)[0])
    scores = torch.from_numpy(np.concatenate([genuine, impostor]))
    same = torch.arange(1300) < 400
    exact = Scores.of_pairs(scores, same)
    assert auroc == pytest.approx(exact.auroc(), abs=0.005)
    assert eer == pytest.approx(exact.eer(), abs=0.02)
