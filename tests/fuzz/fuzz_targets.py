"""All fuzzing targets by name."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent.parent
for folder in (TESTS, TESTS / "federation", TESTS / "privacy"):  # their helpers make the seeds
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

from fuzz_target import Target  # noqa: E402


@cache
def all_targets() -> dict[str, Target]:
    """The targets, in the order of the files that define them."""
    import targets_of_data
    import targets_of_faces
    import targets_of_federation
    import targets_of_messages
    import targets_of_runs

    modules = (targets_of_runs, targets_of_data, targets_of_faces, targets_of_federation, targets_of_messages)
    return {target.name: target for module in modules for target in module.targets()}
