"""Embeddings of a run: the body's features of the saved model, and the files they are kept in."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import fedra
import tiny
from fedra import console as progress
from fedra.analysis.embeddings import Embeddings
from fedra.console import steps
from fedra.errors import ConfigError, DataError, RunError
from fedra.experiment.embed_run import embed_run, read_embeddings, save_embeddings
from fedra.storage.checkpoint import load_model

ALGORITHMS: dict[str, dict[str, Any]] = {
    "plain": {"name": "fedavg"},
    "class vectors": {"name": "fedarc"},
    "personal models": {"name": "fedbabu", "epochs": 1},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp("runs") / name for name in ALGORITHMS}
    for name, folder in folders.items():
        fedra.run(tiny.table(algorithm=ALGORITHMS[name], rounds=2), out=folder)
    return folders


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_head_on_the_features_is_the_runs_model(runs: dict[str, Path], name: str) -> None:
    found = embed_run(runs[name])
    saved, about = load_model(runs[name] / "model.safetensors")
    logits = found.features @ saved["head.weight"].T + saved["head.bias"]
    accuracy = float((logits.argmax(dim=1) == found.labels).double().mean())
    assert accuracy == pytest.approx(tiny.metrics(runs[name])[-1]["accuracy"])
    assert found.clients is None
    assert list(found.classes) == about["classes"]
    assert found.features.shape == (40, 8)


def test_a_projection_head_is_part_of_the_body_and_what_the_run_started_from_may_be_gone(tmp_path: Path) -> None:
    start = tmp_path / "start"
    fedra.run(tiny.table(rounds=1), out=start)
    model = {"projection": 5, "weights": str(start / "model.safetensors")}
    fedra.run(tiny.table(model=model, rounds=1), out=tmp_path / "run")
    (start / "model.safetensors").unlink()
    found = embed_run(tmp_path / "run")
    saved, _ = load_model(tmp_path / "run" / "model.safetensors")
    logits = found.features @ saved["head.weight"].T + saved["head.bias"]
    accuracy = float((logits.argmax(dim=1) == found.labels).double().mean())
    assert accuracy == pytest.approx(tiny.metrics(tmp_path / "run")[-1]["accuracy"])
    assert found.features.shape == (40, 5)


def test_training_examples_know_their_clients(runs: dict[str, Path]) -> None:
    found = embed_run(runs["plain"], split="train", normalize=True)
    assert found.clients is not None
    sizes = {line["client"]: line["examples"] for line in tiny.lines(runs["plain"] / "clients.jsonl")}
    assert torch.bincount(found.clients).tolist() == [sizes[client] for client in range(4)]
    assert len(found) == 90
    torch.testing.assert_close(found.features.norm(dim=1), torch.ones(90))
    plain = embed_run(runs["plain"], split="train")
    torch.testing.assert_close(plain.normalized().features, found.features)
    assert float(plain.features.norm(dim=1).std()) > 0.1


def test_classes_that_belong_to_clients_keep_their_names(tmp_path: Path) -> None:
    """A client of FedPE counts its own classes from zero; what is embedded is labeled as the data set labels it."""
    partition = {"name": "shards", "clients": 2, "shards": 1}
    labels = []
    for name in ("fedavg", "fedpe"):
        fedra.run(tiny.table(algorithm={"name": name}, partition=partition, rounds=1), out=tmp_path / name)
        labels.append(embed_run(tmp_path / name, split="train").labels)
    assert torch.equal(*labels)
    assert len(labels[0].unique()) == 4


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
@pytest.mark.parametrize("clients", [True, False])
def test_files_keep_everything(tmp_path: Path, kind: str, clients: bool) -> None:
    owners = torch.tensor([0, 4, 4]) if clients else None
    given = Embeddings(torch.randn(3, 2), torch.tensor([1, 0, 1]), owners, ("é", "b"))
    path = tmp_path / "new" / f"some.{kind}"
    save_embeddings(given, path)
    assert os.listdir(path.parent) == [path.name]
    found = read_embeddings(path)
    assert torch.equal(found.features, given.features)
    assert torch.equal(found.labels, given.labels)
    assert found.classes == given.classes
    assert (found.clients is None) == (given.clients is None)
    if owners is not None:
        assert torch.equal(owners, found.clients)  # type: ignore[arg-type]


def test_a_sample_is_drawn_by_its_seed_and_keeps_the_order() -> None:
    data = Embeddings(torch.arange(50.0)[:, None], torch.arange(50), torch.arange(50))
    rows = data.sample(20, seed=1)
    assert len(rows) == 20
    assert torch.equal(rows.features[:, 0].long(), rows.labels)
    assert torch.equal(rows.clients, rows.labels)  # type: ignore[arg-type]
    assert bool((rows.labels.diff() > 0).all())
    assert torch.equal(rows.labels, data.sample(20, seed=1).labels)
    assert not torch.equal(rows.labels, data.sample(20, seed=2).labels)
    assert data.sample(50, seed=0) is data


def test_mistakes_about_runs(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must contain a run"):
        embed_run(tmp_path)
    with pytest.raises(ConfigError, match="split must be 'test' or 'train', got 'tset': did you mean 'test'"):
        embed_run(runs["plain"], split="tset")
    with pytest.raises(ConfigError, match=r"the device must be one that torch can use here .*, got 'cuda:77'"):
        embed_run(runs["plain"], device="cuda:77")
    text = (runs["plain"] / "config.toml").read_text()
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(RunError, match=r"must be finished, got no model\.safetensors: continue it with --resume"):
        embed_run(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((runs["plain"] / "model.safetensors").read_bytes())
    assert len(embed_run(tmp_path)) == 40
    assert "    8,\n" in text
    (tmp_path / "config.toml").write_text(text.replace("    8,\n", "    9,\n"))
    with pytest.raises(ConfigError, match=r"model\.safetensors.* must fit the model"):
        embed_run(tmp_path)


def test_mistakes_about_files(tmp_path: Path) -> None:
    def told(path: Path, content: dict[str, Any] | bytes) -> str:
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            np.savez(path, **content)
        with pytest.raises(DataError) as caught:
            read_embeddings(path)
        assert str(path) in str(caught.value)
        return str(caught.value)

    rows, labels = np.zeros((3, 2), np.float32), np.zeros(3, np.int64)
    path = tmp_path / "x.npz"
    assert "must contain 'labels', got features" in told(path, {"features": rows})
    assert "must be floats of shape (N, d), got torch.int64" in told(path, {"features": labels, "labels": labels})
    assert "must be 3 integers, got torch.int64 of shape (2,)" in told(path, {"features": rows, "labels": labels[:2]})
    assert "clients of" in told(path, {"features": rows, "labels": labels, "clients": rows[:, 0]})
    assert "must be finite" in told(path, {"features": rows + np.float32(np.inf), "labels": labels})
    assert "between 0 and 1, got 2" in told(path, {"features": rows, "labels": labels + 2, "classes": ["a", "b"]})
    assert "cannot be read" in told(path, {"features": np.array([None, {}], object), "labels": labels})
    assert "cannot be read" in told(path, b"no zip")
    assert "cannot be read" in told(tmp_path / "x.safetensors", b"no tensors")
    with pytest.raises(DataError, match="cannot be read"):
        read_embeddings(tmp_path / "nowhere.npz")
    for refuse in (read_embeddings, lambda p: save_embeddings(Embeddings(torch.ones(1, 1), torch.zeros(1)), p)):
        with pytest.raises(ConfigError, match=r"must end in \.safetensors or \.npz"):
            refuse(tmp_path / "x.pkl")


def test_work_is_told_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "PAUSE_SHARE", 0.0)
    out = io.StringIO()
    with steps(Console(file=out, width=200), "measuring [1]", 4) as done:
        for _ in range(4):
            done(1)
    lines = out.getvalue().splitlines()
    assert [line.rpartition("  ")[0] for line in lines] == [f"measuring [1]  {share}%" for share in (25, 50, 75)]
    assert all(line.endswith(" left") for line in lines)
    terminal = io.StringIO()
    with steps(Console(file=terminal, force_terminal=True, width=200), "measuring [1]", 4) as done:
        done(4)
    assert "measuring [1]" in terminal.getvalue()
    with steps(None, "silence", 1) as done:
        done(1)
