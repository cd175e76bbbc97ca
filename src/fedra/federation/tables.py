"""TOML files of a federation: read and checked with a sentence for each mistake, written with a comment per key."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from fedra.errors import ConfigError, nearest, shorten_requirement
from fedra.file_reading import read_text_file

M = TypeVar("M", bound=BaseModel)
WIDTH = 118
LARGEST = 16 * 1024 * 1024
"""Bytes of the largest file from elsewhere that is parsed."""


def read_table(path: Path, what: str, remedy: str) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: The file.
        what: What it is, such as "the invitation".
        remedy: What to do if it does not exist.

    Returns:
        Its content.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise ConfigError(f"{what} '{path}' must be smaller than {LARGEST:,} bytes, got {size:,}: ask for it again")
        return parse_table(read_text_file(path, LARGEST), f"{what} '{path}'")
    except FileNotFoundError:
        raise ConfigError(f"{what} '{path}' must exist, got no such file: {remedy}") from None
    except (IsADirectoryError, UnicodeDecodeError):
        raise ConfigError(f"{what} '{path}' must be a text file, got something else: check the path") from None


def parse_table(text: str, where: str) -> dict[str, Any]:
    """Parse TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} must be TOML: {str(error)[:1].lower()}{str(error)[1:]}") from None


def checked_table(model: type[M], table: dict[str, Any], where: str) -> M:
    """Check a table against its keys; a mistake is one sentence with the key, what must hold, and what was given."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        steps = [str(step) for step in first["loc"]]
        key = ".".join(steps) or "the table"
        if first["type"] == "extra_forbidden":
            raise ConfigError(f"unknown key '{key}' in {where}: {nearest(steps[-1], _keys(model, steps))}") from None
        if first["type"] == "missing":
            raise ConfigError(f"{key} must be set in {where}") from None
        message = first["msg"].removeprefix("Value error, ")
        requirement = message if first["type"] == "value_error" else f"must be {shorten_requirement(message)}"
        raise ConfigError(f"{key} {requirement}, got {first['input']!r} in {where}") from None


def commented(section: BaseModel, title: str = "") -> str:
    """Return a section as TOML, each key with its description as a comment; tables inside follow it."""
    lines, tables = ([f"[{title}]"] if title else []), []
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if isinstance(value, BaseModel):
            tables.append(commented(value, f"{title}.{key}".lstrip(".")))
            continue
        if isinstance(value, dict):
            tables.append(_dictionary(f"{title}.{key}".lstrip("."), value, field.description or ""))
            continue
        comment = f"  # {field.description}" if field.description else ""
        line = f"# {key} =" if value is None else f"{key} = {_literal(value)}"
        if comment and len(line) + len(comment) > WIDTH:
            lines.append(comment.strip())
            comment = ""
        lines.append(line + comment)
    return "\n".join([*lines, *(f"\n{table.strip()}" for table in tables)]).strip("\n") + "\n"


def _dictionary(title: str, table: dict[str, Any], description: str) -> str:
    comment = f"  # {description}" if description else ""
    head = f"[{title}]"
    head = f"{comment.strip()}\n{head}" if len(head + comment) > WIDTH else head + comment
    return f"{head}\n{tomli_w.dumps(table)}"


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_literal, value))}]"
    return tomli_w.dumps({"key": value}).removeprefix("key = ").strip()


def _keys(model: type[BaseModel], steps: list[str]) -> list[str]:
    found: Any = model
    for step in steps[:-1]:
        inner = found.model_fields[step].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        found = inner
    return list(found.model_fields)
