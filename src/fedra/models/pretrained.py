"""Weights from a file: a run of ours or a public checkpoint, put into a model by a key map, tensors only."""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from fedra.errors import ConfigError, DataError
from fedra.models.key_maps import WRAPPERS, key_map_for, renamed
from fedra.models.user_model import NamedHead

RUN_MODEL = "model.safetensors"
"""The file in a finished run's folder that holds its model."""

SHOWN = 3
"""How many names a sentence lists."""


@dataclass(frozen=True)
class Loaded:
    """What `load_weights` did with a file.

    `layout` says how the file names its tensors, `used` which of the model's were set, `left_out` which tensors of the
    file were not used (a head for other classes).
    """

    layout: str
    used: tuple[str, ...]
    left_out: tuple[str, ...]


def load_weights(module: nn.Module, path: Path | str, key_map: Mapping[str, str] | None = None) -> Loaded:
    """Put the weights of a file into a model. The body must fit exactly.

    Args:
        module: A model with a `body` and a `head`; it is changed in place.
        path: A .safetensors or torch file, or the folder of a finished run. Names like the module's own are taken as
            they are, those of the network inside `named_head` and of common public checkpoints are known.
        key_map: For any other file: patterns (regular expressions, replaced in order) to the module's names; "" leaves
            a tensor out.

    Returns:
        What was set. The head is taken where it fits and stays as it is otherwise: its classes are the data's own.

    Example:
        >>> import safetensors.torch
        >>> from fedra.models import build
        >>> model = build("mlp", (64,), 10, seed=1)
        >>> safetensors.torch.save_file(model.state_dict(), "weights.safetensors")
        >>> load_weights(build("mlp", (64,), 10, seed=2), "weights.safetensors").left_out
        ()
    """
    path = _file(Path(path))
    tensors = {WRAPPERS.sub("", name): value for name, value in read_tensors(path).items()}
    if isinstance(module, NamedHead) and key_map is None:
        own = {module.split_name(name): value for name, value in tensors.items()}
        if {f"body.{name}" for name in module.body.state_dict()} <= own.keys():
            tensors = own
    layout, given = _in_our_names(tensors, key_map)
    state = module.state_dict()
    given = {name: _shaped(value, state.get(name)) for name, value in given.items()}
    head = {name for name in {*given, *state} if name.startswith("head.")}
    fits = {name for name in given if name in state and given[name].shape == state[name].shape}
    _need_fit(path, layout, state, given, fits, head)
    _need_finite(path, given)
    # A head of which only a part fits would be a mixture of two.
    used = fits if head <= fits else fits - head
    with torch.no_grad():
        for name in used:
            state[name].copy_(given[name])
    return Loaded(layout, tuple(sorted(used)), tuple(sorted(given.keys() - used)))


def digest_of_weights(path: Path | str) -> str:
    """A mark of a weight file, by which a changed one is known.

    Args:
        path: A weight file, or the folder of a finished run.

    Returns:
        32 hexadecimal digits.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("w.bin").write_bytes(b"weights")
        >>> len(digest_of_weights("w.bin"))
        32
    """
    file = _file(Path(path))
    if not file.is_file():
        raise DataError(f"there is no weight file '{file}': check the path")
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:32]


def _file(path: Path) -> Path:
    """The file itself; of a run's folder the model it holds."""
    if not path.is_dir():
        return path
    if not (path / RUN_MODEL).is_file():
        raise DataError(f"the folder '{path}' has no {RUN_MODEL}: give a finished run's folder, or a weight file")
    return path / RUN_MODEL


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The named tensors of a file, on the CPU; nothing in it is run."""
    if not path.is_file():
        raise DataError(f"there is no weight file '{path}': check the path")
    if path.suffix == ".safetensors":
        try:
            return dict(safetensors.torch.load_file(path))
        except (OSError, safetensors.SafetensorError) as error:
            raise DataError(f"the weight file '{path}' is no readable safetensors file ({error})") from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise DataError(
            f"the weight file '{path}' is damaged or holds more than tensors, which could run code when read: "
            "save its state_dict() alone, best as .safetensors"
        ) from None
    except Exception as error:  # a damaged archive fails in any way
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"the weight file '{path}' cannot be read ({reason}): give a .safetensors file or a state_dict"
        ) from None
    return _state_dict(found, path)


def _state_dict(found: Any, path: Path) -> dict[str, Tensor]:
    """The state dict in what a training script saved: the thing itself, or its one entry with named tensors."""
    if not isinstance(found, Mapping):
        raise DataError(f"the weight file '{path}' holds a {type(found).__name__}, no named tensors")
    if found and all(isinstance(value, Tensor) for value in found.values()):
        return {str(name): value for name, value in found.items()}
    inside = {
        str(name): value
        for name, value in found.items()
        if isinstance(value, Mapping) and value and all(isinstance(item, Tensor) for item in value.values())
    }
    if len(inside) != 1:
        what = f"several sets of named tensors ({', '.join(inside)})" if inside else "no named tensors"
        raise DataError(f"the weight file '{path}' holds {what}: save the network's state_dict() alone")
    (only,) = inside.values()
    return {str(name): value for name, value in only.items()}


def _in_our_names(tensors: Mapping[str, Tensor], key_map: Mapping[str, str] | None) -> tuple[str, dict[str, Tensor]]:
    known = key_map_for(tensors)
    if key_map is not None:
        layout, ours = "your key map has them", _by_patterns(tensors, key_map)
    elif known is not None:
        layout, ours = f"in {known.layout}", known.names(tensors)
    else:
        # A run's file also has what the algorithm's parts brought along, such as FedArc's class vectors.
        own = any(name.startswith("body.") for name in tensors)
        layout = "in fedra's own files" if own else "in no layout that is known here"
        ours = {name: name for name in tensors if not own or name.startswith(("body.", "head."))}
    return layout, {ours[name]: value for name, value in tensors.items() if ours.get(name)}


def _by_patterns(names: Iterable[str], key_map: Mapping[str, str]) -> dict[str, str]:
    try:
        ours = {name: renamed(name, key_map.items()) for name in names}
    except re.error as error:
        raise ConfigError(f"the key map has a pattern that is no regular expression ({error}): mend it") from None
    kept = [name for name in ours.values() if name]
    twice = next((name for name in kept if kept.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"the key map gives several tensors the name '{twice}': make its patterns narrower")
    return ours


def _shaped(value: Tensor, wanted: Tensor | None) -> Tensor:
    """A 1x1 convolution is a linear layer: its last two sides may be left out."""
    if wanted is not None and value.dim() == 4 and (*wanted.shape, 1, 1) == value.shape:
        return value.flatten(1)
    return value


def _need_fit(
    path: Path | str,
    layout: str,
    state: Mapping[str, Tensor],
    given: Mapping[str, Tensor],
    fits: set[str],
    head: set[str],
) -> None:
    # Files older than torch 0.4.1 have no counters of batches; nothing is computed from them.
    missing = [name for name in state if name not in {*given, *head} and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in given if name not in {*state, *head}]
    shapes = [
        f"{name} is {tuple(given[name].shape)}, not {tuple(state[name].shape)}"
        for name in given
        if name in state and name not in {*fits, *head}
    ]
    faults = {"it lacks": missing, "it has also": unexpected, "other shapes:": shapes}
    told = "; ".join(f"{what} {_some(names)}" for what, names in faults.items() if names)
    if told:
        raise ConfigError(
            f"the weights in '{path}' (named as {layout}) do not fit the model ({told}): give the model the settings "
            "(embedding, width, norm) and the image size that the file was trained with, or another file"
        )


def _need_finite(path: Path | str, given: Mapping[str, Tensor]) -> None:
    broken = [name for name, value in given.items() if not bool(value.isfinite().all())]
    if broken:
        raise DataError(f"the weight file '{path}' has numbers that are not finite in {_some(broken)}: give another")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
