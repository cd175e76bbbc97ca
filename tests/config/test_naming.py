"""Algorithms by name: what is written out builds the same algorithm again."""

from __future__ import annotations

import pytest

from fedra.algorithms import ENTRIES
from fedra.config import reading as configuration
from fedra.config.names import build_algorithm
from fedra.config.resolve import resolve_defaults
from fedra.errors import ConfigError
from fedra.trust import allow_imports

COMPOSED = [
    {"name": "fedsol", "proximal": {"name": "model-contrast", "mu": 0.3}, "plus": ["clip", {"name": "fedadam"}]},
    {"name": "fedarc", "margin": {"name": "cosface", "margin": 0.2}, "objective": "repo"},
    {"name": "fedavg", "plus": [{"name": "perturb", "along": "proximal", "radius": {"name": "weight-radius"}}]},
    {"name": "fedavg", "plus": [{"name": "sharing", "private": ["head."]}, {"name": "fine-tune", "scope": "head"}]},
]


@pytest.mark.parametrize("section", [{"name": name} for name in ENTRIES] + COMPOSED, ids=str)
def test_a_written_configuration_builds_the_same_algorithm(section: dict[str, object]) -> None:
    config = configuration.read({"algorithm": section})
    full = resolve_defaults(config)
    again = configuration.read(configuration.tomllib.loads(configuration.write(full)))
    assert build_algorithm(again.algorithm) == build_algorithm(config.algorithm)
    assert resolve_defaults(again) == full


def test_every_default_of_every_part_is_written_out() -> None:
    full = resolve_defaults(configuration.read({"algorithm": {"name": "fedsol", "plus": ["clip"]}}))
    assert full.algorithm.settings["proximal"]["temperature"] == 3.0
    assert full.algorithm.plus == ({"name": "clip", "norm": 10.0},)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"name": "fedsam", "rho": -1.0}, "the field 'rho' of .* must be at least 0, got -1.0"),
        ({"name": "fedprox", "mu": float("nan")}, "the field 'mu' of .* must be a finite number, got nan"),
        ({"name": "os:system"}, r"must take nothing by position, got \(command\)"),
        ({"name": "nowhere:nothing"}, "cannot be imported"),
        ({"name": "fedsol", "proximal": "server-adam"}, "must be a Term, got 'server-adam'"),
        ({"name": "fedarc", "margin": "arcfase"}, "did you mean 'arcface'"),
    ],
)
def test_mistakes_are_one_sentence(section: dict[str, object], words: str) -> None:
    with allow_imports(), pytest.raises(ConfigError, match=words):
        build_algorithm(configuration.read({"algorithm": section}).algorithm)
