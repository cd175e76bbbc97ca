"""Targets: configurations, overrides, and the files of a run's folder."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
from fuzz_formats import JSON, LINES, TENSORS, TOML, WORDS, ZIP, Format
from fuzz_target import Target

import fake_runs
import fedra
import tiny
from fedra.catalog import algorithm_tree
from fedra.config import reading as configuration
from fedra.config.imports import imported_names
from fedra.config.names import build_algorithm
from fedra.config.resolve import resolve_defaults
from fedra.core.round import init_server
from fedra.dashboard.run_index import RunIndex
from fedra.experiment.build import build
from fedra.experiment.embed_run import read_embeddings
from fedra.models import build as build_network
from fedra.models import load_weights
from fedra.reports.comparison import compare
from fedra.reports.page_view import build_page, render_file
from fedra.reports.run_record import load_record
from fedra.storage.checkpoint import Checkpoint
from fedra.storage.client_state.client_files import digest_of
from fedra.storage.evaluation_record import RecordSubject, locate_record
from fedra.storage.run_folder import RunFolder
from fedra.storage.trained_model import load_embedder

CONFIGURATION = {
    **tiny.TINY,
    "algorithm": {"name": "fedsol", "rho": 0.1, "plus": ["fedprox", {"name": "fedadam", "lr": 0.02}]},
    "cohort": {"fraction": 0.5},
    "evaluation": {"every": 2},
}


@cache
def trained() -> Mapping[str, bytes]:
    """The folder of a tiny run, stopped after its second round and finished: with a checkpoint and a model."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        fedra.run(tiny.table(rounds=2, algorithm={"name": "scaffold"}), out=folder)
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@cache
def recorded() -> Mapping[str, bytes]:
    """The records of a run, and of one more to compare it with."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fake_runs.write_run(folder / "one", (0.2, None, 0.6), extra={"personal_accuracy": 0.5})
        fake_runs.write_run(folder / "two", (0.3, 0.5), algorithm={"name": "fedprox"})
        evaluation = {
            "data": {"name": "digits", "images": 40},
            "source": "test",
            "model": "model.safetensors",
            "fingerprint": "0" * 64,
            "protocols": {
                "classification": {
                    "table": [["accuracy", "0.5"]],
                    "metrics": {"accuracy": 0.5},
                    "pictures": ["roc.svg"],
                    "settings": {},
                }
            },
        }
        (folder / "one" / "eval-test.json").write_text(json.dumps(evaluation))
        (folder / "one" / "data.json").write_text(json.dumps({"digests": {"client 0": "ab" * 16, "test": "cd" * 16}}))
        (folder / "one" / ".fedra").write_text("config.toml\nmetrics.jsonl\nclients.jsonl\nsummary.json\n")
        found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    checkpoint = {f"one/{name}": content for name, content in trained().items() if name.startswith("checkpoint/")}
    return {**found, **checkpoint}


def show(folder: Path) -> None:
    """What `fedra show` does, and what it writes must be read as the same configuration."""
    found = configuration.read(folder / "config.toml")
    checked = resolve_defaults(found, skip_imports=True)
    assert configuration.read(_reparse(folder, configuration.write(found))) == found
    if not imported_names(checked, ["algorithm"]):
        algorithm_tree(build_algorithm(checked.algorithm))


def _reparse(folder: Path, text: str) -> Path:
    (folder / "again.toml").write_text(text, encoding="utf-8")
    return folder / "again.toml"


def override(folder: Path) -> None:
    words = (folder / "words").read_bytes().decode("utf-8", errors="replace").splitlines()
    configuration.read(CONFIGURATION, words)


def describe(folder: Path) -> None:
    """What every report says of a stranger's run."""
    record = load_record(folder / "one")
    record.describe()
    record.warnings()
    record.final("accuracy")
    str((record.headline, record.seed, record.planned, record.seconds_left))


def report(folder: Path) -> None:
    """The page of `fedra report` about a stranger's run, drawings included."""
    render_file(build_page([load_record(folder / "one")], "title", photos=False), "now")


def index(folder: Path) -> None:
    RunIndex(folder).refresh()


def resume(folder: Path) -> None:
    """What a resumed run reads before it trains."""
    run = RunFolder(folder / "one")
    run.config()
    run.data_digests()
    run.clients()
    run.truncate(2)
    run.failure()
    run.how_to_resume()


def compare_runs(folder: Path) -> None:
    compare([folder / "one", folder / "two"], out=folder / "curves.svg")


def locate(folder: Path) -> None:
    for name in ("test", "other"):
        locate_record(folder / "one", name, RecordSubject("test", "model.safetensors", "0" * 64))


@cache
def _server() -> object:
    job = build(configuration.read(tiny.table(rounds=2, algorithm={"name": "scaffold"}))).job
    return init_server(job.algorithm, job.initial())


def load_checkpoint(folder: Path) -> None:
    checkpoint = Checkpoint(folder / "checkpoint")
    checkpoint.examine()
    state = checkpoint.load(_server())  # type: ignore[arg-type]
    for client in range(4):
        state.memory.get(client)


def load_sealed(folder: Path) -> None:
    """As `load_checkpoint`, with the mutated server file's checksum in the manifest."""
    (server,) = (folder / "checkpoint").glob("server-*.safetensors")
    manifest = json.loads((folder / "checkpoint" / "manifest.json").read_bytes())
    manifest["server"][1] = digest_of(server.read_bytes())
    (folder / "checkpoint" / "manifest.json").write_text(json.dumps(manifest))
    load_checkpoint(folder)


def open_model(folder: Path) -> None:
    embedder = load_embedder(folder)
    embedder(torch.zeros(2, *embedder.shape))


@cache
def weights() -> Mapping[str, bytes]:
    """A weight file of torch."""
    packed = io.BytesIO()
    torch.save(build_network("mlp", (6,), 4, seed=0, hidden=(8,)).state_dict(), packed)
    return {"weights.pt": packed.getvalue()}


def load_torch_file(folder: Path) -> None:
    load_weights(build_network("mlp", (6,), 4, seed=0, hidden=(8,)), folder / "weights.pt")


@cache
def embedded() -> Mapping[str, bytes]:
    """The embeddings of `fedra embed` as .npz."""
    packed = io.BytesIO()
    features, labels = np.eye(4, 3, dtype=np.float32) + 1, np.arange(4)
    np.savez(packed, features=features, labels=labels, clients=labels, classes=np.array(["a", "b", "c", "d"]))
    return {"embeddings.npz": packed.getvalue()}


@cache
def embedded_tensors() -> Mapping[str, bytes]:
    """The embeddings of `fedra embed` as safetensors."""
    from safetensors.torch import save

    tensors = {"features": torch.eye(4, 3) + 1, "labels": torch.arange(4)}
    return {"embeddings.safetensors": save(tensors, {"fedra": json.dumps({"classes": ["a", "b", "c", "d"]})})}


def read_projections(folder: Path) -> None:
    (path,) = folder.glob("embeddings.*")
    read_embeddings(path).normalized()


def _server_file() -> str:
    (name,) = (name for name in trained() if name.startswith("checkpoint/server-"))
    return name


def _client_file() -> str:
    return next(name for name in sorted(trained()) if name.startswith("checkpoint/clients/"))


def targets() -> list[Target]:
    """The targets of this file."""
    configured = lambda: {"config.toml": TOML.build(CONFIGURATION)}  # noqa: E731
    words = "\n".join(("rounds=3", "algorithm.rho=0.2", "local={lr=0.1}", "model=mlp", "partition.name=iid"))
    found = [
        Target("configuration", "config.toml", TOML, configured, show),
        Target("overrides", "words", WORDS, lambda: {"words": words.encode()}, override),
        Target("data-digests", "one/data.json", JSON, recorded, resume),
        Target("manifest", "checkpoint/manifest.json", JSON, trained, load_checkpoint),
        Target("checkpoint-server", _server_file(), TENSORS, trained, load_sealed),
        Target("checkpoint-client", _client_file(), TENSORS, trained, load_checkpoint),
        Target("model", "model.safetensors", TENSORS, trained, open_model),
        Target("weights", "weights.pt", ZIP, weights, load_torch_file),
        Target("embeddings-npz", "embeddings.npz", ZIP, embedded, read_projections),
        Target("embeddings-safetensors", "embeddings.safetensors", TENSORS, embedded_tensors, read_projections),
    ]
    files: dict[str, tuple[str, Format, tuple[Callable[[Path], object], ...]]] = {
        "metrics": ("one/metrics.jsonl", LINES, (describe, index, resume, report, compare_runs)),
        "summary": ("one/summary.json", JSON, (describe, index, resume, report, compare_runs)),
        "run-config": ("one/config.toml", TOML, (describe, index, resume, report)),
        "clients": ("one/clients.jsonl", LINES, (describe, resume, report)),
        "evaluation-record": ("one/eval-test.json", JSON, (locate, report)),
    }
    for name, (file, form, readers) in files.items():
        for read in readers:
            slow = read in (report, compare_runs)
            found.append(Target(f"{name}-{read.__name__.partition('_')[0]}", file, form, recorded, read, slow=slow))
    return found
