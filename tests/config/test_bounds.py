"""Every number of a configuration has bounds that arithmetic can hold, every text a length, every file a size."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedra.config import reading
from fedra.config.names import REGISTRIES
from fedra.config.schema import Config, Section
from fedra.core.part import known_parts
from fedra.core.rates import SCHEDULES
from fedra.errors import ConfigError
from fedra.registry import Field, class_fields, fields, validate_value
from tiny import mistake

HUGE = (1e300, 1e29, 10**29, math.inf, -math.inf, math.nan, 10**31, -(10**31))


def _keys(model: Any = Config, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _keys(kind, (*path, name))
        elif any(word in str(kind) for word in ("int", "float")):
            yield (*path, name)


NUMERIC = [*_keys()]


@pytest.mark.parametrize("key", NUMERIC, ids=".".join)
def test_every_number_of_a_section_is_bounded(key: tuple[str, ...]) -> None:
    for value in HUGE:
        table: dict[str, Any] = {}
        node = table
        for step in key[:-1]:
            node = node.setdefault(step, {})
        node[key[-1]] = {"head.": value} if key[-1] == "lr_of" else value
        with pytest.raises(ConfigError, match=key[-1]):
            reading.read(table)


def test_the_walk_finds_the_keys() -> None:
    assert {("rounds",), ("local", "epochs"), ("memory", "ram"), ("faults", "deadline")} <= set(NUMERIC)
    for key in ("rounds", "local.epochs"):
        assert reading.read({}, [f"{key}=1000000"])
        with pytest.raises(ConfigError, match=f"{key} must be at most 1000000, got 1000001"):
            reading.read({}, [f"{key}=1000001"])


def _named_fields() -> Iterator[tuple[str, Field]]:
    for registry in (*REGISTRIES.values(), SCHEDULES):
        for name in registry:
            yield from ((f"{registry.kind} {name} {field.name}", field) for field in fields(registry[name]).values())
    for name, kind in known_parts().items():
        yield from ((f"part {name} {field.name}", field) for field in class_fields(kind).values())


def test_every_number_of_everything_that_has_a_name_is_bounded() -> None:
    tried = 0
    for where, field in _named_fields():
        if not any(word in str(field.annotation) for word in ("int", "float")):
            continue
        tried += 1
        for value in HUGE:
            for given in (value, [value], [value, value], (value, value, value)):
                with pytest.raises(ConfigError, match=r"^.{1,400}$"):
                    validate_value(where, field, given)
    assert tried > 100


@pytest.mark.parametrize(
    ("field", "value", "fits"),
    [
        ("temperature", 1e-31, False),
        ("temperature", 1e-30, True),
        ("temperature", 1e31, False),
        ("seed", 2**63 - 1, True),
        ("seed", 2**63, False),
        ("count", 10**9, True),
        ("count", 10**9 + 1, False),
        ("flag", True, True),
    ],
)
def test_the_bounds(field: str, value: Any, fits: bool) -> None:
    one = Field(field, type(value), None)
    if fits:
        assert validate_value("x", one, value) == value
    else:
        with pytest.raises(ConfigError, match=rf"the field '{field}' of x must be"):
            validate_value("x", one, value)


def test_rounds_that_follow_from_other_keys_are_bounded_too() -> None:
    with pytest.raises(ConfigError, match=r"rounds must be at most 1000000, got cohort.rounds_per_client = 5"):
        reading.read({"cohort": {"rounds_per_client": 5, "fraction": 1e-300}})


FILES = {
    "a number of many digits": "rounds = " + "9" * 4400,
    "nested arrays": "x = " + "[" * 3000 + "]" * 3000,
    "nested tables": "x = " + "{a = " * 1000 + "1" + "}" * 1000,
    "a deep table": "algorithm.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a = 1",
    "a long name": f"model = '{'m' * 5000}'",
    "a long key": f"{'m' * 5000} = 1",
    "too much": "#" * (2**20 + 1),
}


@pytest.mark.parametrize("name", FILES)
def test_odd_files_are_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.toml").write_text(FILES[name])
    for words in (["show", str(tmp_path / "odd.toml")], ["run", str(tmp_path / "odd.toml")], ["run", "-"]):
        monkeypatch.setattr("sys.stdin", io.StringIO(FILES[name]))
        assert len(mistake(capsys, *words)) < 400


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no file without an end")
def test_a_file_without_an_end_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert "a configuration must have at most 1 MB" in mistake(capsys, "run", "/dev/zero")


@pytest.mark.parametrize("value", ["9" * 4400, "[" * 3000 + "]" * 3000])
def test_odd_overrides_are_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path, value: str) -> None:
    (tmp_path / "c.toml").write_text("")
    assert len(mistake(capsys, "run", tmp_path / "c.toml", f"rounds={value}")) < 400


def test_standard_input_that_is_not_utf8_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = io.TextIOWrapper(io.BytesIO("# caf\xe9\nrounds = 1\n".encode("latin-1")), "utf-8", "surrogateescape")
    monkeypatch.setattr("sys.stdin", text)
    assert "cannot be read" in mistake(capsys, "show", "-")
