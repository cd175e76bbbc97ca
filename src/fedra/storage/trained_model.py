"""Trained networks and embedders, from a run's folder or a weight file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedra.core.device import build_device
from fedra.data import Dataset, Transform
from fedra.errors import RunError
from fedra.models import Embedder, build, load_weights, with_projection
from fedra.models.embedder import Fit, Flip
from fedra.models.pretrained import set_weights
from fedra.models.zoo import describe_size
from fedra.storage.model_file import read_model_file
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
    file = read_model_file(path)
    given, section = file.about.input, file.about.model
    shape, name = tuple(given.shape), str(section["name"])
    if is_import(name) and not trust:
        raise import_error([name], f"the run in '{folder}'")
    with allow_imports(trust):
        _compare_sizes(path, section, shape, len(file.about.classes), file.tensors)
        module = _untrained(section, shape, len(file.about.classes))
    set_weights(module, file.tensors, path)
    mean, std = tuple(given.mean or ()), tuple(given.std or ())
    return TrainedModel(module, shape, given.bytes, mean, std, tuple(file.about.classes))


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
    found = load_network(weights, name, shape=shape, mean=mean, std=std, **settings)
    prepare = found.transform.prepare
    return Embedder(found.module, prepare, shape, fit=fit, flip=flip, batch=batch, device=build_device(device))


def load_network(
    weights: Path | str,
    name: str,
    *,
    shape: tuple[int, int, int] = (3, 112, 112),
    mean: Sequence[float] = FACES,
    std: Sequence[float] = FACES,
    **settings: Any,
) -> TrainedModel:
    """The network of a weight file, without classes; its head is not trained.

    Args:
        weights: The weight file.
        name: Name of the registered network.
        shape: Shape of one image, channels first.
        mean: Mean per channel on the 0..1 scale; the default is InsightFace's (x / 255 - 0.5) / 0.5.
        std: Standard deviation per channel on the 0..1 scale.
        **settings: Settings of the network.

    Returns:
        The network and the format of its inputs.

    Example:
        ```python
        body = load_network("mobilefacenet.pt", "mobilefacenet").module.body
        ```
    """
    module = build(name, shape, 1, seed=0, **settings)
    load_weights(module, weights)
    return TrainedModel(module, shape, True, tuple(mean), tuple(std), ())


COMMON = ("name", "head", "projection", "weights", "weights_digest")
"""Keys of [model] that are not fields of the network."""


def _compare_sizes(
    path: Path, section: dict[str, Any], shape: tuple[int, ...], classes: int, tensors: Mapping[str, Tensor]
) -> None:
    """Raise if metadata describe a network far larger than the file, before its memory is allocated."""
    own = {key: value for key, value in section.items() if key not in COMMON}
    described = describe_size(section["name"], shape, classes, own)
    found = sum(value.numel() * value.element_size() for value in tensors.values())
    if described is not None and described > 4 * found + 2**20:
        raise RunError(
            f"the model file '{path}' must hold the network that its metadata describe, got {found:,} of {described:,} "
            "bytes: give another file"
        )


def _untrained(section: dict[str, Any], shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network of a run, before its trained weights are loaded."""
    own = {key: value for key, value in section.items() if key not in COMMON}
    module = build(section["name"], shape, classes, seed=0, head=section.get("head"), **own)
    if section.get("projection") is None:
        return module
    return with_projection(module, section["projection"], shape, classes, seed=0)
