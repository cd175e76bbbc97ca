"""What a federation asks of every site's data: image size, channels, classes. It is part of the plan."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedra.config.schema import Section
from fedra.data.dataset import Dataset

Count = Annotated[int, Field(ge=1)]


class DataSchema(Section):
    """What the data of every site must be."""

    shape: tuple[Count, ...] = Field(
        description="shape of one example: channels, height, width; images are resized", min_length=1, max_length=4
    )
    classes: tuple[str, ...] = Field((), description="agreed names of the classes; none if identities = 'own'")
    identities: Literal["agreed", "own"] = Field(
        "agreed",
        description="'own': every site numbers its own people and tells how many it has, and no name leaves it",
    )
    match: Literal["none", "secret"] = Field(
        "none",
        description="for identities 'own': 'secret' matches people across sites by tokens with a secret of the sites",
    )
    mean: tuple[float, ...] | None = Field(None, description="value to subtract per channel, on a scale of 0 to 1")
    std: tuple[float, ...] | None = Field(None, description="value to divide by per channel after that")
    augment: tuple[str, ...] = Field((), description="augmentations of training batches, such as crop and flip")
    held_out: float = Field(0.2, ge=0, lt=1, description="share of each class that a site keeps for its own test")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.identities == "own") == bool(self.classes):
            raise ValueError("must have names of classes or identities = 'own', and not both")
        if self.match == "secret" and self.identities != "own":
            raise ValueError("must have identities = 'own' for match = 'secret': agreed classes are the same anyway")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("must have different names for its classes")
        for values in (self.mean, self.std):
            if values is not None and len(values) not in (1, self.shape[0]):
                raise ValueError(f"must have one mean and std per channel ({self.shape[0]})")
        if (self.mean is None) != (self.std is None) or (self.std is not None and min(self.std) <= 0):
            raise ValueError("must have both mean and std, with std above 0, or neither")
        return self

    @property
    def gray(self) -> bool:
        """Whether images have one channel."""
        return len(self.shape) == 3 and self.shape[0] == 1

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width, if examples are images."""
        return (self.shape[1], self.shape[2]) if len(self.shape) == 3 else None

    def __str__(self) -> str:
        if self.size is None or self.shape[0] not in (1, 3):
            return " x ".join(map(str, self.shape))
        return f"{'gray' if self.gray else 'color'} {self.size[0]} x {self.size[1]}"


def schema_of(dataset: Dataset, *, own_identities: bool, augment: tuple[str, ...] = ()) -> DataSchema:
    """Return the schema that the examples of a data set have."""
    return DataSchema(
        shape=dataset.shape,
        classes=() if own_identities else dataset.classes,
        identities="own" if own_identities else "agreed",
        mean=dataset.mean,
        std=dataset.std,
        augment=augment,
    )
