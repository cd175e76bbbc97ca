"""The tested set of dependencies: releases alone, and all that fedra asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def test_every_dependency_is_pinned_to_a_release() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    odd = [line for line in lines if not re.match(r"[A-Za-z0-9._-]+==\d+(\.\d+)*(\.post\d+)?(\s*;.*)?$", line)]
    assert odd == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {_name(one) for group in project["optional-dependencies"].values() for one in group}
    wanted |= {_name(one) for one in project["dependencies"]}
    assert wanted - {_name(line) for line in lines} - {"fedra"} == set()
