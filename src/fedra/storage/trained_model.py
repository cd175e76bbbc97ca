"""Embedders from a run's folder, or from a weight file and the name of its network."""

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
from fedra.trust import importing, is_import, refusal

FACES = (0.5, 0.5, 0.5)
"""Mean and standard deviation that map bytes to -1..1, as face networks are trained."""


def describe_input(dataset: Dataset) -> dict[str, Any]:
    """What a model's file says of its inputs: their shape, whether they are bytes, and how they are normalized."""
    in_bytes = not dataset.train.inputs.is_floating_point()
    return {"shape": list(dataset.shape), "bytes": in_bytes, "mean": dataset.mean, "std": dataset.std}


@dataclass(frozen=True)
class TrainedModel:
    """The network of a finished run and what it reads: `mean` and `std` are per channel, empty where there are none."""

    module: nn.Module
    shape: tuple[int, ...]
    in_bytes: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]

    @property
    def transform(self) -> Transform:
        """From raw inputs to what the network reads."""
        return Transform(self.mean or None, self.std or None)


def trained_by_run(folder: Path | str, *, trust: bool = False) -> TrainedModel:
    """The network a finished run has trained; its data are not needed.

    A network of the user's own (`module:function`) is imported only with `trust`.
    """
    path = Path(folder) / "model.safetensors"
    if not path.exists():
        raise RunError(f"the run in '{folder}' has no model.safetensors: finish it, or give a run's folder")
    _, about = load_model(path)
    if "input" not in about:
        raise RunError(f"'{path}' does not say what its inputs look like: train it again with this version")
    given = about["input"]
    shape, mean, std = (tuple(given[key] or ()) for key in ("shape", "mean", "std"))
    name = str(about["model"]["name"])
    if is_import(name) and not trust:
        raise refusal([name], f"the run in '{folder}'")
    with importing(trust):
        module = _untrained(about["model"], shape, len(about["classes"]))
    load_weights(module, path)
    return TrainedModel(module, shape, given.get("bytes", True), mean, std, tuple(about["classes"]))


def embedder_of_run(
    folder: Path | str,
    *,
    fit: Fit = "refuse",
    flip: Flip = "none",
    batch: int = 64,
    device: str = "cpu",
    trust: bool = False,
) -> Embedder:
    """The embedder a finished run has trained, with the run's own pre-processing; its data are not needed.

    A network of the user's own (`module:function`) is imported only with `trust`.
    """
    found = trained_by_run(folder, trust=trust)
    prepare = found.transform.prepare
    return Embedder(found.module, prepare, found.shape, fit=fit, flip=flip, batch=batch, device=build_device(device))


def embedder_of_weights(
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
    """The embedder in a weight file of the registered network `name` with these settings; images are RGB.

    `mean` and `std` are per channel on the 0..1 scale; the default is InsightFace's, (x / 255 - 0.5) / 0.5.
    """
    module = build(name, shape, 1, seed=0, **settings)
    load_weights(module, weights)
    prepare = Transform(tuple(mean), tuple(std)).prepare
    return Embedder(module, prepare, shape, fit=fit, flip=flip, batch=batch, device=build_device(device))


def _untrained(section: dict[str, Any], shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network of a run, with weights that wait to be replaced."""
    common = ("name", "head", "projection", "weights", "weights_digest")
    own = {key: value for key, value in section.items() if key not in common}
    module = build(section["name"], shape, classes, seed=0, head=section.get("head"), **own)
    if section.get("projection") is None:
        return module
    return with_projection(module, section["projection"], shape, classes, seed=0)
