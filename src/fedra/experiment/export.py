"""A run's model as one ONNX file with its pre-processing inside, compared with PyTorch before it is written."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

import fedra
from fedra.config.imports import trusting
from fedra.config.names import build_algorithm
from fedra.console import steps
from fedra.core.model import Model
from fedra.core.random import generator
from fedra.errors import ConfigError, FedraError
from fedra.reports.model_card import model_card
from fedra.storage.run_folder import RunFolder
from fedra.storage.trained_model import TrainedModel, trained_by_run
from fedra.writing import write_atomically

OPSET = 17
"""The oldest set of operators that has layer normalization: old runtimes can read the file too."""
TOLERANCE = 1e-4
"""The largest difference to PyTorch that is let through, of unit embeddings and of logits by their size."""
TRIED = (1, 5)
"""Batch sizes that are compared."""


@dataclass(frozen=True)
class Exported:
    """What was written, and how far it is from PyTorch."""

    file: Path
    card: Path
    embedding: int
    difference: float


class Deployed(nn.Module):
    """Raw inputs to embeddings: the scaling, mean and std of training, the body, unit length, and perhaps the head.

    Bytes are read as decoders give them, (N, H, W, C), or (N, ...) where examples are no images.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, trained: TrainedModel, normalize: bool, head: bool) -> None:
        super().__init__()
        self.body = trained.module.get_submodule("body")
        self.head = trained.module.get_submodule("head") if head else None
        self.normalize, self.in_bytes = normalize, trained.in_bytes
        self.image = len(trained.shape) == 3
        channels = (-1, *(1 for _ in trained.shape[1:]))
        self.register_buffer("mean", torch.tensor(trained.mean or (0.0,)).view(channels))
        self.register_buffer("std", torch.tensor(trained.std or (1.0,)).view(channels))

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        if self.image:
            inputs = inputs.permute(0, 3, 1, 2)
        scaled = inputs.to(torch.float32) / 255 if self.in_bytes else inputs
        features = self.body((scaled - self.mean) / self.std).flatten(1)
        embedding = F.normalize(features, dim=1) if self.normalize else features
        return (embedding,) if self.head is None else (embedding, self.head(features))


def export(
    folder: Path | str,
    file: Path | str,
    *,
    head: bool = False,
    normalize: bool = True,
    license: str | None = None,
    force: bool = False,
    trust: bool = False,
    console: Console | None = None,
) -> Exported:
    """Write a finished run's embedder as one ONNX file with its pre-processing inside, and a model card next to it.

    Nothing is written if onnxruntime differs from PyTorch by more than 1e-4.

    Args:
        folder: The folder of a finished run.
        file: The file to write, ending in .onnx.
        head: Whether there is a second output, the logits of the training classes.
        normalize: Whether embeddings have unit length.
        license: License of the weights, for the card.
        force: Whether files that are there are replaced.
        trust: Whether functions of your own that the run names (`module:function`) are imported.
        console: Where progress is shown.

    Returns:
        The file, its card, the length of an embedding, and the largest difference from PyTorch.

    Example:
        >>> fedra.export("runs/faces", "face.onnx").difference
    """
    path = _checked_name(Path(file), force)
    _require_onnx()
    run = RunFolder(folder)
    config, summary = run.config(), run.summary()
    with trusting(config, trust, f"the run in '{folder}'", ("model", "algorithm") if head else ("model",)):
        trained = trained_by_run(folder, trust=trust)
        private = build_algorithm(config.algorithm).sharing.private if head else ()
    model = Model(trained.module)
    if not model.per_example:
        raise ConfigError(
            "the model normalizes by the batch's own statistics, so that an answer would depend on its neighbors: "
            "train it with norm = 'running' or 'group'"
        )
    if any(prefix.startswith("head") for prefix in private):
        raise ConfigError("the heads of this run stay with its clients, so that there are no logits: leave out --head")
    module = Deployed(trained, normalize, head).eval()
    with steps(console, f"exporting {folder}", 1 + len(TRIED)) as done:
        graph = _graph(module, _raw(trained, 2, 0))
        done(1)
        difference = max(_differences(graph, trained, model, head, done))
    if not difference <= TOLERANCE:  # NaN too
        raise FedraError(
            f"the ONNX graph differs from PyTorch by {difference:.2g}, more than {TOLERANCE:g}, so nothing was written:"
            " the model cannot be exported"
        )
    length = model.features(model.weights(), _prepared(trained, _raw(trained, 1, 0)), train=False).shape[1]
    about = _about(trained, run.path / "model.safetensors", module, length)
    told = model_card(run, config, summary, about, path.name, license)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _with_metadata(graph, about))
    card = path.with_suffix(".md")
    write_atomically(card, told.encode())
    return Exported(path, card, length, difference)


def _checked_name(path: Path, force: bool) -> Path:
    if path.suffix != ".onnx":
        raise ConfigError(f"a model cannot be exported to '{path}': end its name with .onnx")
    for there in (path, path.with_suffix(".md")):
        if there.exists() and not force:
            raise ConfigError(f"'{there}' is there already: choose another name, or replace it with --force")
    return path


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"export needs {error.name}: pip install 'fedra[onnx]'") from None


def _graph(module: Deployed, example: Tensor) -> bytes:
    """The traced graph, its batch size free.

    The older, tracing exporter of torch: it takes every model that is registered, ten times as fast as the newer one,
    in smaller files and without onnxscript.
    """
    names = ["embedding"] if module.head is None else ["embedding", "logits"]
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        file = Path(folder) / "model.onnx"
        # It warns that a newer one exists, and of branches that depend on shapes: those are compared below.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (example,),
            file,
            dynamo=False,
            opset_version=OPSET,
            input_names=["images" if module.image else "inputs"],
            output_names=names,
            dynamic_axes={name: {0: "batch"} for name in ("images" if module.image else "inputs", *names)},
        )
        return file.read_bytes()


@torch.no_grad()
def _differences(graph: bytes, trained: TrainedModel, model: Model, head: bool, done: Any) -> Iterator[float]:
    """The largest difference of each batch size: of unit embeddings, and of logits in units of the largest."""
    import onnxruntime

    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph, quiet, providers=["CPUExecutionProvider"])
    for size in TRIED:
        raw = _raw(trained, size, size)
        found = [torch.from_numpy(value) for value in session.run(None, {session.get_inputs()[0].name: raw.numpy()})]
        wanted = model.output(model.weights(), _prepared(trained, raw))
        units = F.normalize(found[0], dim=1) - F.normalize(wanted.features.flatten(1), dim=1)
        yield float(units.abs().max())
        if head:
            yield float((found[1] - wanted.logits).abs().max() / wanted.logits.abs().max().clamp(min=1))
        done(1)


def _raw(trained: TrainedModel, size: int, seed: int) -> Tensor:
    """Inputs drawn at random, as the file reads them."""
    channels, *sides = trained.shape
    shape = (size, *sides, channels) if len(trained.shape) == 3 else (size, *trained.shape)
    draw = generator(seed, "export")
    if trained.in_bytes:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)
    return torch.randn(shape, generator=draw)


def _prepared(trained: TrainedModel, raw: Tensor) -> Tensor:
    """The same by the code of training."""
    return trained.transform.prepare(raw.permute(0, 3, 1, 2) if len(trained.shape) == 3 else raw)


def _about(trained: TrainedModel, weights: Path, module: Deployed, length: int) -> dict[str, Any]:
    """What the file says of itself."""
    with weights.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    layout = "N,H,W,C" if module.image else ",".join(("N", *map(str, trained.shape)))
    return {
        "fedra_version": fedra.__version__,
        "run_fingerprint": digest,
        "input": "images" if module.image else "inputs",
        "input_layout": layout,
        "input_type": "uint8" if trained.in_bytes else "float32",
        "input_shape": list(trained.shape),
        "mean": list(trained.mean),
        "std": list(trained.std),
        "embedding": length,
        "unit_length": module.normalize,
        "classes": list(trained.classes) if module.head is not None else [],
    }


def _with_metadata(graph: bytes, about: dict[str, Any]) -> bytes:
    import onnx

    model = onnx.load_from_string(graph)
    onnx.helper.set_model_props(model, {name: _word(value) for name, value in about.items()})
    model.producer_name, model.producer_version = "fedra", fedra.__version__
    onnx.checker.check_model(model)
    packed: bytes = model.SerializeToString()
    return packed


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
