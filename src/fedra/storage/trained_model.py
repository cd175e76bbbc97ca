"""Trained networks and embedders, from a run's folder or a weight file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedra.core.device import build_device
from fedra.data import Dataset, Transform
from fedra.errors import RunError
from fedra.models import Embedder, build, load_weights, with_projection
from fedra.models.embedder import Fit, Flip
from fedra.storage.checkpoint import load_model
from fedra.trust import allow_imports, import_error, is_import

FACES = (0.5, 0.5, 0.5)
"""Mean and standard deviation that map bytes to -1..1, the usual inputs of face networks."""


def describe_input(dataset: Dataset) -> dict[str, Any]:
    """The metadata of a model's inputs: shape, whether they are bytes, and normalization."""
    in_bytes = not dataset.train.inputs.is_floating_point()
    return {"shape": list(dataset.shape), "bytes": in_bytes, "mean": dataset.mean, "std": dataset.std}


@dataclass(frozen=True)
class TrainedModel:
    """The network of a finished run and the format of its inputs.

    Args:
        module: The trained network.
        shape: Shape of one input.
        in_bytes: Whether raw inputs are bytes.
        mean: Mean per channel; empty without normalization.
        std: Standard deviation per channel; empty without normalization.
        classes: Names of the classes.

    Example:
        ```python
        trained = load_trained_model("runs/a")
        features = trained.module.body(trained.transform.prepare(images))
        ```
    """

    module: nn.Module
    shape: tuple[int, ...]
    in_bytes: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]

    @property
    def transform(self) -> Transform:
        """The transform from raw inputs to network inputs."""
        return Transform(self.mean or None, self.std or None)


def load_trained_model(folder: Path | str, *, trust: bool = False) -> TrainedModel:
    """The network that a finished run has trained; its data are not needed.

    Args:
        folder: The run's folder.
        trust: Whether to import the user's own network (`module:function`).

    Returns:
        The network and the format of its inputs.

    Raises:
        RunError: If the folder has no trained model.

    Example:
        ```python
        network = load_trained_model("runs/a").module
        ```
    """
    path = Path(folder) / "model.safetensors"
    if not path.exists():
        raise RunError(
            f"the folder must contain a finished run, got '{folder}' without a model.safetensors: finish the run, or "
            "give another folder"
        )
    _, about = load_model(path)
    if "input" not in about:
        raise RunError(f"'{path}' must describe its inputs, got none: train the model again with this version")
    given = about["input"]
    shape, mean, std = (tuple(given[key] or ()) for key in ("shape", "mean", "std"))
    name = str(about["model"]["name"])
    if is_import(name) and not trust:
        raise import_error([name], f"the run in '{folder}'")
    with allow_imports(trust):
        module = _untrained(about["model"], shape, len(about["classes"]))
    load_weights(module, path)
    return TrainedModel(module, shape, given.get("bytes", True), mean, std, tuple(about["classes"]))


def load_embedder(
    folder: Path | str,
    *,
    fit: Fit = "refuse",
    flip: Flip = "none",
    batch: int = 64,
    device: str = "cpu",
    trust: bool = False,
) -> Embedder:
    """The embedder that a finished run has trained, with the run's preprocessing; its data are not needed.

    Args:
        folder: The run's folder.
        fit: What to do with images of another size: "refuse", "crop" or "resize".
        flip: How to add the embedding of the mirrored image: "none", "sum" or "concatenate".
        batch: Images per forward pass.
        device: Where to compute.
        trust: Whether to import the user's own network (`module:function`).

    Returns:
        The embedder.

    Raises:
        RunError: If the folder has no trained model.

    Example:
        ```python
        embeddings = load_embedder("runs/faces", flip="sum")(images)
        ```
    """
    found = load_trained_model(folder, trust=trust)
    prepare = found.transform.prepare
    return Embedder(found.module, prepare, found.shape, fit=fit, flip=flip, batch=batch, device=build_device(device))


def load_embedder_weights(
    weights: Path | str,
    name: str,
    *,
    shape: tuple[int, int, int] = (3, 112, 112),
    mean: Sequence[float] = FACES,
    std: Sequence[float] = FACES,
    fit: Fit = "refuse",
    flip: Flip = "none",
    batch: int = 64,
    device: str = "cpu",
    **settings: Any,
) -> Embedder:
    """An embedder from a weight file; images are RGB.

    Args:
        weights: The weight file.
        name: Name of the registered network.
        shape: Shape of one image, channels first.
        mean: Mean per channel on the 0..1 scale; the default is InsightFace's (x / 255 - 0.5) / 0.5.
        std: Standard deviation per channel on the 0..1 scale.
        fit: What to do with images of another size: "refuse", "crop" or "resize".
        flip: How to add the embedding of the mirrored image: "none", "sum" or "concatenate".
        batch: Images per forward pass.
        device: Where to compute.
        **settings: Settings of the network.

    Returns:
        The embedder.

    Example:
        ```python
        embedder = load_embedder_weights("mobilefacenet.pt", "mobilefacenet")
        ```
    """
    module = build(name, shape, 1, seed=0, **settings)
    load_weights(module, weights)
    prepare = Transform(tuple(mean), tuple(std)).prepare
    return Embedder(module, prepare, shape, fit=fit, flip=flip, batch=batch, device=build_device(device))


def _untrained(section: dict[str, Any], shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network of a run, before its trained weights are loaded."""
    common = ("name", "head", "projection", "weights", "weights_digest")
    own = {key: value for key, value in section.items() if key not in common}
    module = build(section["name"], shape, classes, seed=0, head=section.get("head"), **own)
    if section.get("projection") is None:
        return module
    return with_projection(module, section["projection"], shape, classes, seed=0)
