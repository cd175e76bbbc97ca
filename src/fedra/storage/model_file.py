"""The file of a trained model: its bytes, read once, and its metadata, checked before a network is built from it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import safetensors
import safetensors.torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from torch import Tensor

from fedra.config.schema import ModelSection
from fedra.errors import RunError, shorten_requirement
from fedra.file_reading import SMALL, read_file
from fedra.storage.run_records import SummaryRecord, parse_record

LARGEST = 64 * 2**30
"""Largest model file that is read, in bytes."""

MODEL = "model.safetensors"
"""Name of the model file in a run's folder."""

Side = Annotated[int, Field(ge=1, le=10**7)]
Text = Annotated[str, Field(max_length=4096)]
Mean = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
Deviation = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class InputMetadata(BaseModel):
    """The inputs of a network: shape of one example, whether it is bytes, and normalization constants."""

    model_config = ConfigDict(strict=True)
    shape: Annotated[list[Side], Field(min_length=1, max_length=8)]
    bytes: bool = True
    mean: Annotated[list[Mean], Field(max_length=10**4)] | None = None
    std: Annotated[list[Deviation], Field(max_length=10**4)] | None = None

    @model_validator(mode="after")
    def _fit(self) -> InputMetadata:
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values and len(values) not in (1, self.shape[0]):
                raise ValueError(f"{name} has {len(values)} numbers for {self.shape[0]} channels")
        return self


class ModelMetadata(BaseModel):
    """What a model file says of itself: the section [model] of its configuration, its classes and its inputs."""

    model_config = ConfigDict(strict=True, extra="allow")
    model: dict[str, Any]
    classes: Annotated[list[Text], Field(min_length=1, max_length=10**8)]
    input: InputMetadata

    @field_validator("model")
    @classmethod
    def _check_name(cls, section: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(section.get("name"), str):
            raise ValueError("a model needs a name")
        ModelSection.model_validate(section)
        return section


@dataclass(frozen=True)
class ModelFile:
    """The tensors and the metadata of a model file."""

    tensors: dict[str, Tensor]
    about: ModelMetadata


def read_model_file(path: Path) -> ModelFile:
    """Read a model file whose metadata describe its network; raise RunError if anything is not as it must be."""
    data = read_run_model(path)
    try:
        tensors = dict(sorted(safetensors.torch.load(data).items()))
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        found = json.loads(header.get("__metadata__", {})["fedra"])
        about = ModelMetadata.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        what = "must describe its inputs" if key == "input" else f"must have valid metadata ({key})"
        raise RunError(
            f"'{path}' {what}, got {shorten_requirement(first['msg'])}: train the model again with this version"
        ) from None
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError, safetensors.SafetensorError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise RunError(f"the model file '{path}' cannot be read ({reason}): give another file") from None
    return ModelFile(tensors, about)


def read_run_model(path: Path) -> bytes:
    """Return the bytes of a run's model; raise RunError if they are not those that the finished run wrote."""
    try:
        data = read_file(path, LARGEST)
    except OSError as error:
        raise RunError(f"the model file '{path}' cannot be read ({error.strerror}): give another file") from None
    summary = path.with_name("summary.json")
    if path.name == MODEL and summary.is_file():
        try:
            written = parse_record(SummaryRecord, read_file(summary, SMALL)).get("model_digest")
        except (ValueError, OSError) as error:
            raise RunError(f"'{summary}' is damaged ({error}): start a new run") from None
        if written not in (None, digest_model(data)):
            raise RunError(
                f"the model file '{path}' must be the one that the run wrote, got another (its digest is not that of "
                "summary.json): restore it, or train it again"
            )
    return data


def digest_model(data: bytes) -> str:
    """Return the digest of a model file that a run's summary records."""
    return hashlib.sha256(data).hexdigest()[:32]
