"""Compute the embeddings of a finished run, and read and write them as safetensors or .npz without pickle."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from rich.console import Console
from torch import Tensor

from fedra.analysis.embeddings import Embeddings
from fedra.console import steps
from fedra.core.evaluate import embed
from fedra.data.npz_files import names_in, read_arrays
from fedra.errors import ConfigError, DataError
from fedra.experiment.trained_run import check_split, open_trained_run, split_examples
from fedra.reports.comparison import titles
from fedra.storage.claims import claim
from fedra.storage.run_folder import RunFolder
from fedra.writing import write_atomically

FORMATS = (".safetensors", ".npz")


def embed_run(
    run: Path | str,
    *,
    split: str = "test",
    normalize: bool = False,
    device: str | None = None,
    trust: bool = False,
    console: Console | None = None,
) -> Embeddings:
    """Embed the examples of a split with the global model of a run.

    Args:
        run: Folder of a finished run.
        split: "test", or "train" for the training examples, client by client and without augmentation.
        normalize: Whether to scale embeddings to unit length.
        device: Device to run the model on; that of the run's configuration if None.
        trust: Whether to import the functions that the run names as `module:function`.
        console: Where progress is shown.

    Returns:
        The embeddings with their labels, and with client numbers for "train".

    Example:
        >>> embed_run("runs/a", split="train").features.shape  # doctest: +SKIP
    """
    check_split(split)
    opened = open_trained_run(run, device=device, trust=trust)
    folder, built, model = opened.folder, opened.built, opened.built.job.model
    total, sources = split_examples(built.job, split)
    features, labels, clients = [], [], []
    with steps(console, f"embedding {folder.path}", total) as done:
        for client, examples in sources:
            features.append(embed(model, opened.weights, examples, done))
            labels.append(examples.targets.cpu())
            clients.append(torch.full((len(examples),), client))
    owners = torch.cat(clients) if split == "train" else None
    found = Embeddings(torch.cat(features), torch.cat(labels), owners, tuple(built.dataset.classes))
    found.check(f"the run in '{folder.path}'")
    return found.normalized() if normalize else found


def check_name(path: Path) -> None:
    """Raise if the file name does not end in a known format."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"the name of an embedding file must end in {' or '.join(FORMATS)}, got '{path}'")


def save_embeddings(embeddings: Embeddings, path: Path | str) -> None:
    """Write `features`, `labels`, `clients` if known, and the class names."""
    path = Path(path)
    check_name(path)
    tensors = {"features": embeddings.features, "labels": embeddings.labels}
    if embeddings.clients is not None:
        tensors["clients"] = embeddings.clients
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    claim(path.parent, path.name)
    if path.suffix == ".safetensors":
        about = {"fedra": json.dumps({"classes": embeddings.classes})}
        write_atomically(path, safetensors.torch.save(plain, about), private=True)
        return
    packed = io.BytesIO()
    arrays: dict[str, Any] = {name: value.numpy() for name, value in plain.items()}
    np.savez(packed, classes=np.array(embeddings.classes, dtype=np.str_), **arrays)
    write_atomically(path, packed.getvalue(), private=True)


def read_embeddings(path: Path | str) -> Embeddings:
    """Read embeddings from a file with `features` and `labels`, and optionally `clients` and class names."""
    path = Path(path)
    check_name(path)
    try:
        tensors, classes = _read_safetensors(path) if path.suffix == ".safetensors" else _read_npz(path)
    except (OSError, ValueError, TypeError, DataError, safetensors.SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise DataError(
            f"the embeddings in '{path}' cannot be read ({reason}): write them with `fedra embed`"
        ) from None
    for name in ("features", "labels"):
        if name not in tensors:
            raise DataError(
                f"'{path}' must contain '{name}', got {', '.join(sorted(tensors)) or 'nothing'}: use a file "
                "written by `fedra embed`"
            )
    found = Embeddings(tensors["features"], tensors["labels"], tensors.get("clients"), classes)
    found.check(f"'{path}'")
    return found


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    with safetensors.safe_open(str(path), framework="pt") as file:
        about = json.loads((file.metadata() or {}).get("fedra", "{}"))
        classes = about.get("classes", ()) if isinstance(about, dict) else ()
        return {name: file.get_tensor(name) for name in file.keys()}, tuple(map(str, classes))  # noqa: SIM118


def _read_npz(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    known = names_in(path)
    arrays = read_arrays(path, [name for name in ("features", "labels", "clients", "classes") if name in known])
    classes = tuple(map(str, arrays.pop("classes", np.empty(0)).ravel()))
    return {name: torch.from_numpy(array) for name, array in arrays.items()}, classes


def gather_embeddings(
    sources: Sequence[Path],
    split: str = "test",
    device: str | None = None,
    console: Console | None = None,
    *,
    trust: bool = False,
) -> dict[str, Embeddings]:
    """Return the embeddings of run folders and of files, by the name that a plot shows."""
    for source in sources:
        if not source.exists():
            raise ConfigError(f"'{source}' does not exist: give folders of runs, or files written by `fedra embed`")
    runs = iter(titles([RunFolder(source) for source in sources if source.is_dir()]))
    files = [source.name for source in sources if not source.is_dir()]
    found = {}
    for source in sources:
        if source.is_dir():
            found[next(runs)] = embed_run(source, split=split, device=device, trust=trust, console=console)
        else:
            name = source.name if files.count(source.name) == 1 else str(source)
            found[name] = read_embeddings(source)
    return found
