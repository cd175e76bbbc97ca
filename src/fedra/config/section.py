"""The two kinds of sections in a configuration: with fixed keys, and with a name whose fields it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A section of the configuration that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NamedSection(BaseModel):
    """A section that names something and sets its fields."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="before")
    @classmethod
    def _expand_name(cls, table: Any) -> Any:
        """Turn a bare name into a table with that name."""
        if isinstance(table, str):
            return {"name": table}
        if not isinstance(table, Mapping | NamedSection):
            raise PydanticCustomError("named_section", "Input should be a name, or a table with a name and its fields")
        return table

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of what the section names."""
        return dict(self.model_extra or {})
