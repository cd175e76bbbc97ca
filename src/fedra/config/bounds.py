"""Bounds of numbers in a configuration: far above any useful value, and safe in arithmetic."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field
from pydantic_core import PydanticCustomError

from fedra.registry import LARGEST_COUNT, LARGEST_SEED

LONGEST = 10**6
"""Largest number of rounds, of epochs, and of repetitions of a round."""

LARGEST_RATE = 1e28
"""Largest learning rate, weight decay or duration; a run with it may diverge, but its arithmetic works."""

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Times = Annotated[int, Field(ge=1, le=LONGEST)]
Repetitions = Annotated[int, Field(ge=0, le=LONGEST)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Rate = Annotated[float, Field(gt=0, le=LARGEST_RATE, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, le=LARGEST_RATE, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=1e9)]


def derive_rounds(each: float, participation: float) -> int:
    """Return the rounds in which a client that takes part in this share of them takes part `each` times."""
    if each > LONGEST * participation:
        raise PydanticCustomError(
            "many_rounds",
            "rounds must be at most {most}, got cohort.rounds_per_client = {each} with fraction = {fraction}",
            {"most": LONGEST, "each": f"{each:g}", "fraction": f"{participation:g}"},
        )
    return max(1, math.ceil(each / participation - 1e-9))  # 0.3 / 0.1 is just below 3
