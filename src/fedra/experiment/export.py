"""Export a run's model to one ONNX file with its preprocessing, after comparing it with PyTorch."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

import fedra
from fedra.config.imports import allow_trusted_imports
from fedra.config.names import build_algorithm, read_word
from fedra.console import steps, tell
from fedra.core.model import Model
from fedra.core.random import generator
from fedra.core.sharing import Sharing
from fedra.errors import ConfigError, FedraError
from fedra.reports.model_card import model_card, weights_card
from fedra.storage.run_folder import RunFolder
from fedra.storage.trained_model import TrainedModel, load_network, load_trained_model
from fedra.writing import write_atomically

OPSET = 17
"""The oldest operator set with layer normalization, so old runtimes can read the file."""
TOLERANCE = 1e-4
"""Largest accepted difference from PyTorch, of unit embeddings and of logits relative to the largest."""
BATCH_SIZES = (1, 5)
"""Batch sizes of the comparison with PyTorch."""


@dataclass(frozen=True)
class ExportResult:
    """The result of `fedra.export`.

    Attributes:
        file: The ONNX file.
        card: The model card.
        embedding: The length of an embedding.
        difference: The largest difference from PyTorch.
    """

    file: Path
    card: Path
    embedding: int
    difference: float


class ExportModule(nn.Module):
    """A module from raw inputs to embeddings: normalization, body, unit length, and optionally the head.

    Images are read as decoders return them, (N, H, W, C); other examples as (N, ...).
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
    network: str | None = None,
    size: tuple[int, int] = (112, 112),
    force: bool = False,
    trust: bool = False,
    console: Console | None = None,
) -> ExportResult:
    """Export an embedding network to one ONNX file with its preprocessing, and write a model card.

    Nothing is written if onnxruntime and PyTorch differ by more than 1e-4.

    Args:
        folder: The folder of a run (one that was interrupted has the model of its last round), or a weight file.
        file: The file to write, which must end in .onnx; the model card is written next to it.
        head: Whether to add a second output, the logits of the training classes.
        normalize: Whether to scale embeddings to unit length.
        license: License of the weights, for the model card.
        network: For a weight file: registered network with its fields, such as `mobilefacenet:embedding=128`.
        size: For a weight file: height and width of its images.
        force: Whether to overwrite existing files.
        trust: Whether to import the functions that the run names as `module:function`.
        console: Where progress is shown.

    Returns:
        The paths of the file and its card, the length of an embedding, and the largest difference from PyTorch.

    Example:
        >>> fedra.export("runs/faces", "face.onnx").difference
    """
    path = _check_name(Path(file), force)
    _require_onnx()
    is_file = Path(folder).is_file()
    source = _open_weights(Path(folder), network, size, head) if is_file else _open_run(folder, network, head, trust)
    trained, sharing, model = source.trained, source.sharing, Model(source.trained.module)
    if not model.per_example:
        raise ConfigError(
            "the model must normalize each example independently to be exported, got batch statistics: train it with "
            "norm = 'running' or 'group'"
        )
    if any(prefix.startswith("head") for prefix in sharing.private):
        raise ConfigError(
            "--head needs a shared head, and the clients of this run keep their heads private: leave --head out"
        )
    if sharing.is_owned("head.weight"):
        tell(
            console,
            f"warning: the head holds a class vector of each of {len(trained.classes)} people, from which a face can "
            "be drawn; the file also names them",
        )
    module = ExportModule(trained, normalize, head).eval()
    with steps(console, f"exporting {folder}", 1 + len(BATCH_SIZES)) as done:
        graph = _trace(module, _random_inputs(trained, 2, 0))
        done(1)
        difference = max(_differences(graph, trained, model, head, done))
    if not difference <= TOLERANCE:  # NaN too
        raise FedraError(
            f"the ONNX graph must be within {TOLERANCE:g} of PyTorch, got a difference of {difference:.2g}: the "
            "model cannot be "
            "exported, and nothing was written"
        )
    length = model.features(model.weights(), _prepare(trained, _random_inputs(trained, 1, 0)), train=False).shape[1]
    about = _about(trained, source.weights, module, length)
    text = source.write_card(about, path.name, license)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A head of class vectors shows people: then only the owner can read the file.
    write_atomically(path, _with_metadata(graph, about), private=sharing.is_owned("head.weight"))
    card = path.with_suffix(".md")
    write_atomically(card, text.encode())
    return ExportResult(path, card, length, difference)


class _Source(NamedTuple):
    """What is exported: the network, the file of its weights, who owns its head, and its card."""

    trained: TrainedModel
    weights: Path
    sharing: Sharing
    write_card: Callable[[dict[str, Any], str, str | None], str]


def _open_run(folder: Path | str, network: str | None, head: bool, trust: bool) -> _Source:
    if network is not None:
        raise ConfigError(f"network (--network) is only for a weight file, got the run in '{folder}': leave it out")
    run = RunFolder(folder)
    config, summary = run.config(), run.summary(interim=True)
    with allow_trusted_imports(config, trust, f"the run in '{folder}'", ("model", "algorithm") if head else ("model",)):
        trained = load_trained_model(folder, trust=trust)
        sharing = build_algorithm(config.algorithm).sharing if head else Sharing()
    return _Source(trained, run.path / "model.safetensors", sharing, partial(model_card, run, config, summary))


def _open_weights(file: Path, network: str | None, size: tuple[int, int], head: bool) -> _Source:
    if network is None:
        raise ConfigError(
            f"network (--network) must be set for the weight file '{file}': name it, such as "
            "mobilefacenet:embedding=128, or give the folder of a run"
        )
    if head:
        raise ConfigError(
            f"--head (head=True) needs a run with its classes, got the weight file '{file}': leave it out"
        )
    name, settings = read_word(network)
    trained = load_network(file, name, shape=(3, *size), **settings)
    count = sum(value.numel() for value in trained.module.get_submodule("body").parameters())
    return _Source(trained, file, Sharing(), partial(weights_card, file.name, network, count))


def _check_name(path: Path, force: bool) -> Path:
    if path.suffix != ".onnx":
        raise ConfigError(f"the name of an exported model must end in .onnx, got '{path}'")
    for target in (path, path.with_suffix(".md")):
        if target.exists() and not force:
            raise ConfigError(
                f"'{target}' already exists: choose another name, or overwrite it with --force (force=True)"
            )
    return path


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"export needs the package {error.name}, which is not installed: pip install 'fedra[onnx]'"
        ) from None


def _trace(module: ExportModule, example: Tensor) -> bytes:
    """Trace the ONNX graph, with a variable batch size.

    Uses the older exporter of torch, which handles all registered models, is ten times as fast as the newer one, writes
    smaller files and does not need onnxscript.
    """
    names = ["embedding"] if module.head is None else ["embedding", "logits"]
    packed = io.BytesIO()  # not a temporary file, which a killed process would leave
    with warnings.catch_warnings():
        # It warns about the newer exporter and about branches on shapes; the comparison below covers those.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (example,),
            packed,  # type: ignore[arg-type]  # the older exporter writes to any open file
            dynamo=False,
            opset_version=OPSET,
            input_names=["images" if module.image else "inputs"],
            output_names=names,
            dynamic_axes={name: {0: "batch"} for name in ("images" if module.image else "inputs", *names)},
        )
    return packed.getvalue()


@torch.no_grad()
def _differences(graph: bytes, trained: TrainedModel, model: Model, head: bool, done: Any) -> Iterator[float]:
    """Yield the largest difference for each batch size: of unit embeddings, and of logits relative to the largest."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    for size in BATCH_SIZES:
        raw = _random_inputs(trained, size, size)
        found = [torch.from_numpy(value) for value in session.run(None, {session.get_inputs()[0].name: raw.numpy()})]
        wanted = model.output(model.weights(), _prepare(trained, raw))
        units = F.normalize(found[0], dim=1) - F.normalize(wanted.features.flatten(1), dim=1)
        yield float(units.abs().max())
        if head:
            yield float((found[1] - wanted.logits).abs().max() / wanted.logits.abs().max().clamp(min=1))
        done(1)


def _random_inputs(trained: TrainedModel, size: int, seed: int) -> Tensor:
    """Return random inputs in the layout of the file."""
    channels, *sides = trained.shape
    shape = (size, *sides, channels) if len(trained.shape) == 3 else (size, *trained.shape)
    draw = generator(seed, "export")
    if trained.in_bytes:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)
    return torch.randn(shape, generator=draw)


def _prepare(trained: TrainedModel, raw: Tensor) -> Tensor:
    """Prepare the same inputs with the code of training."""
    return trained.transform.prepare(raw.permute(0, 3, 1, 2) if len(trained.shape) == 3 else raw)


def _about(trained: TrainedModel, weights: Path, module: ExportModule, length: int) -> dict[str, Any]:
    """Return the metadata of the file."""
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
    onnx.helper.set_model_props(model, {name: _format_property(value) for name, value in about.items()})
    model.producer_name, model.producer_version = "fedra", fedra.__version__
    onnx.checker.check_model(model)
    packed: bytes = model.SerializeToString()
    return packed


def _format_property(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
