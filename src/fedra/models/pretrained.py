"""Loading weights from a file: a fedra run or a public checkpoint, by a key map; only tensors are read."""

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
from fedra.file_reading import read_file
from fedra.models.key_maps import WRAPPERS, key_map_for, rename_key
from fedra.models.user_model import NamedHead

RUN_MODEL = "model.safetensors"
"""Name of the model file in a finished run's folder."""

LARGEST = 64 * 2**30
"""Largest weight file that is read, in bytes."""

HUGE = 1e30
"""Weights above this overflow in the first product."""

SHOWN = 3
"""Number of names that a message lists."""


@dataclass(frozen=True)
class Loaded:
    """What `load_weights` did with a file.

    Args:
        layout: How the file names its tensors.
        used: Names of the model's tensors that were set.
        left_out: Names of the file's tensors that were not used, such as a head for other classes.

    Example:
        >>> Loaded("as in fedra's files", used=("body.0.weight",), left_out=()).used
        ('body.0.weight',)
    """

    layout: str
    used: tuple[str, ...]
    left_out: tuple[str, ...]


def load_weights(module: nn.Module, path: Path | str, key_map: Mapping[str, str] | None = None) -> Loaded:
    """Load the weights of a file into a model. The body must fit exactly.

    Args:
        module: A model with a `body` and a `head`; it is changed in place.
        path: A .safetensors or torch file, or the folder of a finished run. The module's own tensor names, those of the
            network inside `named_head`, and those of common public checkpoints are recognized.
        key_map: For any other file: regular expressions and their replacements, applied in order, which turn the file's
            names into the module's; an empty result leaves a tensor out. None (the default) for files that are
            recognized.

    Returns:
        What was set. The head is set if it fits and stays as it is otherwise, because its classes depend on the data.

    Example:
        >>> import safetensors.torch
        >>> from fedra.models import build
        >>> model = build("mlp", (64,), 10, seed=1)
        >>> safetensors.torch.save_file(model.state_dict(), "weights.safetensors")
        >>> load_weights(build("mlp", (64,), 10, seed=2), "weights.safetensors").left_out
        ()
    """
    path = _file(Path(path))
    return set_weights(module, read_tensors(path), path, key_map)


def set_weights(
    module: nn.Module, tensors: Mapping[str, Tensor], path: Path, key_map: Mapping[str, str] | None = None
) -> Loaded:
    """Set a model's weights to tensors that were read from the file `path`; see `load_weights`."""
    tensors = {WRAPPERS.sub("", name): value for name, value in tensors.items()}
    if isinstance(module, NamedHead) and key_map is None and not module.state_dict().keys() <= tensors.keys():
        own = {module.split_name(name): value for name, value in tensors.items()}
        if {f"body.{name}" for name in module.body.state_dict()} <= own.keys():
            tensors = own
    layout, given = _rename_tensors(tensors, key_map)
    state = module.state_dict()
    given = {name: _squeeze_kernel(value, state.get(name)) for name, value in given.items()}
    head = {name for name in {*given, *state} if name.startswith("head.")}
    fits = {name for name in given if name in state and given[name].shape == state[name].shape}
    _check_fit(path, layout, state, given, fits, head)
    _check_values(path, state, given)
    # A head that fits only in part would be a mixture of two.
    used = fits if head <= fits else fits - head
    with torch.no_grad():
        for name in used:
            state[name].copy_(given[name])
    return Loaded(layout, tuple(sorted(used)), tuple(sorted(given.keys() - used)))


def hash_weights(path: Path | str) -> str:
    """Return a digest of a weight file, which changes when the file does.

    Args:
        path: A weight file, or the folder of a finished run.

    Returns:
        32 hexadecimal digits.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("w.bin").write_bytes(b"weights")
        >>> len(hash_weights("w.bin"))
        32
    """
    file = _file(Path(path))
    if not file.is_file():
        raise DataError(f"the weight file must exist, got '{file}': check the path")
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:32]


def _file(path: Path) -> Path:
    """Return the file itself, or the model file of a run's folder."""
    if not path.is_dir():
        return path
    if not (path / RUN_MODEL).is_file():
        raise DataError(
            f"the folder of weights must hold a {RUN_MODEL}, got '{path}': pass the folder of a finished run, or a file"
        )
    return path / RUN_MODEL


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the named tensors of a file, on the CPU; no code in the file is executed."""
    if not path.is_file():
        raise DataError(f"the weight file must exist, got '{path}': check the path")
    if path.suffix == ".safetensors":
        try:
            return dict(sorted(safetensors.torch.load(read_file(path, LARGEST)).items()))
        except (OSError, safetensors.SafetensorError) as error:
            raise DataError(f"the weight file '{path}' must be a safetensors file, got an error ({error})") from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise DataError(
            f"the weight file '{path}' must hold tensors only, got a damaged file or other objects, which could run "
            "code when read: save its state_dict() alone, preferably as .safetensors"
        ) from None
    except Exception as error:  # a damaged archive fails in any way
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"the weight file '{path}' must be readable, got an error ({reason}): pass a .safetensors file or a "
            "state_dict"
        ) from None
    return _state_dict(found, path)


def _state_dict(found: Any, path: Path) -> dict[str, Tensor]:
    """Return the state dict that a training script saved: the object itself, or its only entry with named tensors."""
    if not isinstance(found, Mapping):
        raise DataError(f"the weight file '{path}' must hold named tensors, got a {type(found).__name__}")
    if found and all(isinstance(value, Tensor) for value in found.values()):
        return {str(name): value for name, value in found.items()}
    inside = {
        str(name): value
        for name, value in found.items()
        if isinstance(value, Mapping) and value and all(isinstance(item, Tensor) for item in value.values())
    }
    if len(inside) != 1:
        what = f"several ({', '.join(inside)})" if inside else "none"
        raise DataError(
            f"the weight file '{path}' must hold one set of named tensors, got {what}: save the network's state_dict() "
            "alone"
        )
    (only,) = inside.values()
    return {str(name): value for name, value in only.items()}


def _rename_tensors(tensors: Mapping[str, Tensor], key_map: Mapping[str, str] | None) -> tuple[str, dict[str, Tensor]]:
    known = key_map_for(tensors)
    if key_map is not None:
        layout, ours = "by your key map", _apply_patterns(tensors, key_map)
    elif known is not None:
        layout, ours = f"as in {known.layout}", known.names(tensors)
    else:
        # A run's file also holds the parameters of the algorithm's parts, such as FedArc's class vectors.
        own = any(name.startswith("body.") for name in tensors)
        layout = "as in fedra's files" if own else "in an unknown layout"
        ours = {name: name for name in tensors if not own or name.startswith(("body.", "head."))}
    return layout, {ours[name]: value for name, value in tensors.items() if ours.get(name)}


def _apply_patterns(names: Iterable[str], key_map: Mapping[str, str]) -> dict[str, str]:
    try:
        ours = {name: rename_key(name, key_map.items()) for name in names}
    except re.error as error:
        raise ConfigError(f"patterns of the key map must be regular expressions, got an error ({error})") from None
    used = [name for name in ours.values() if name]
    duplicate = next((name for name in used if used.count(name) > 1), None)
    if duplicate is not None:
        raise ConfigError(
            f"the key map must give every tensor its own name, got '{duplicate}' for several: make its patterns "
            "narrower"
        )
    return ours


def _squeeze_kernel(value: Tensor, wanted: Tensor | None) -> Tensor:
    """Drop the last two dimensions of a 1x1 convolution where the model has a linear layer."""
    if wanted is not None and value.dim() == 4 and (*wanted.shape, 1, 1) == value.shape:
        return value.flatten(1)
    return value


def _check_fit(
    path: Path | str,
    layout: str,
    state: Mapping[str, Tensor],
    given: Mapping[str, Tensor],
    fits: set[str],
    head: set[str],
) -> None:
    # Files older than torch 0.4.1 lack batch counters, which are not used in any computation.
    missing = [name for name in state if name not in {*given, *head} and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in given if name not in {*state, *head}]
    shapes = [
        f"{name} is {tuple(given[name].shape)}, not {tuple(state[name].shape)}"
        for name in given
        if name in state and name not in {*fits, *head}
    ]
    faults = {"missing:": missing, "unexpected:": unexpected, "other shapes:": shapes}
    problems = "; ".join(f"{what} {_shorten(names)}" for what, names in faults.items() if names)
    if problems:
        raise ConfigError(
            f"the weights in '{path}' (named {layout}) must fit the model, got differences ({problems}): use the "
            "model settings (embedding, width, norm) and the image size of the file's training, or another file"
        )


def _check_values(path: Path | str, state: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Raise on weights that no training leaves behind: of another kind, not finite, huge, or zero throughout."""
    kinds = [name for name, value in given.items() if name in state and _kind(value) != _kind(state[name])]
    if kinds:
        wanted, got = state[kinds[0]].dtype, given[kinds[0]].dtype
        raise DataError(f"the weights in '{path}' must have the type {wanted}, got {got} in {_shorten(kinds)}")
    broken = [name for name, value in given.items() if not bool(value.isfinite().all())]
    if broken:
        raise DataError(
            f"the weights in '{path}' must be finite, got inf or NaN in {_shorten(broken)}: use another file"
        )
    huge = [name for name, value in given.items() if value.numel() and float(value.double().abs().max()) > HUGE]
    if huge:
        raise DataError(
            f"the weights in '{path}' must be below {HUGE:g}, got more in {_shorten(huge)}: use another file"
        )
    body = [value for name, value in given.items() if name.startswith("body.") and value.is_floating_point()]
    if body and not any(bool(value.any()) for value in body):
        raise DataError(f"the weights in '{path}' must not all be zero, got zeros alone: use another file")


def _kind(value: Tensor) -> str:
    """Return what a type counts: complex or real numbers, or integers and truth values."""
    return "complex" if value.is_complex() else "real" if value.is_floating_point() else "integer"


def _shorten(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
