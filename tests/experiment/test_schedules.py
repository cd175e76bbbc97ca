"""`local.schedule`: a name or a table, written out with its defaults, and followed round by round."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import fedra
import tiny
from fedra.config.reading import read, write
from fedra.config.resolve import resolve_defaults
from fedra.config.schema import Config
from fedra.errors import ConfigError
from fedra.evaluation.personal_models import personal_job
from fedra.experiment.build import build, local_training
from fedra.parts.personalize import FineTune
from tiny import mistake


def rates(local: dict[str, Any], rounds: int = 4) -> list[float]:
    config = read({"rounds": rounds, "local": local})
    course = local_training(config.local, rounds)
    return [course.at(round).lr for round in range(rounds)]


@pytest.mark.parametrize("given", ["cosine", {"name": "cosine"}, {"name": "cosine", "warmup": 0, "floor": 0.0}])
def test_a_name_or_a_table(given: Any) -> None:
    expected = [0.2 * (1 + math.cos(math.pi * t / 4)) / 2 for t in range(4)]
    assert rates({"lr": 0.2, "schedule": given}) == pytest.approx(expected, rel=1e-14)


def test_lr_decay_stays_as_it_was() -> None:
    assert rates({"lr": 0.01, "lr_decay": 0.99}) == [0.01 * 0.99**t for t in range(4)]
    assert rates({"lr": 0.01, "schedule": {"name": "exponential", "decay": 0.99}}) == pytest.approx(
        [0.01 * 0.99**t for t in range(4)], rel=1e-15
    )


def test_the_resolved_configuration_holds_every_default_and_reads_back() -> None:
    config = resolve_defaults(read({"local": {"schedule": "step"}}))
    assert config.local.schedule == {"name": "step", "milestones": [0.5, 0.75], "gamma": 0.1}
    assert resolve_defaults(Config()).local.schedule == {"name": "constant"}
    path = read(tiny_toml(write(config)))
    assert write(resolve_defaults(path)) == write(config)


def tiny_toml(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)


def test_training_follows_the_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate that falls to a thousandth in round 2 leaves hardly a change there."""
    local = {"batch": 10, "lr": 0.1, "schedule": {"name": "step", "milestones": [1], "gamma": 1e-3}}
    result = fedra.run(tiny.table(local=local), out=tmp_path)
    norms = {line["round"]: line["update_norm"] for line in tiny.lines(tmp_path / "clients.jsonl")}
    assert norms[2] < 0.01 * norms[1]
    assert result.summary["rounds"] == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["local.schedule=cosin"], "there is no schedule 'cosin': did you mean 'cosine'?"),
        (["local.schedule={warmup=1}"], "local.schedule must have a name, such as"),
        (
            ["local.schedule={name='cosine', warm=1}"],
            "the schedule 'cosine' has no field 'warm': did you mean 'warmup'?",
        ),
        (["local.schedule={name='cosine', warmup=9}"], "warmup must be less than 3 (the number of rounds), got 9"),
        (
            ["local.schedule=cosine", "local.lr_decay=0.9"],
            "only one of local.lr_decay and local.schedule may be set, got lr_decay = 0.9",
        ),
        (["local.schedule=3"], "local.schedule must be a string, got 3"),
    ],
)
def test_mistakes_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], sentence: str) -> None:
    (tmp_path / "c.toml").write_text("")
    assert sentence in mistake(capsys, "run", tmp_path / "c.toml", *tiny.WORDS, *words, "--out", tmp_path / "run")


def test_a_personalizer_needs_a_last_rate() -> None:
    table = tiny.table(algorithm={"name": "fedbabu"}, local={"schedule": "cosine"})
    with pytest.raises(ConfigError, match=r"local\.schedule must not be 0 for the part 'fine-tune'"):
        build(read(table))
    table["local"]["schedule"] = {"name": "cosine", "floor": 0.25}
    job = build(read(table)).job
    assert personal_job(job, FineTune(), 3).local.at(0).lr == pytest.approx(0.1 * 0.25)
    assert personal_job(job, FineTune(initial_rate=True), 3).local.at(2).lr == pytest.approx(0.1)


def test_simulate_takes_a_schedule() -> None:
    import toy
    from fedra.algorithms import fedavg

    pairs = [(own.inputs, own.targets) for own in toy.clients().examples]
    decay, named = (
        fedra.simulate(fedavg(), toy.mlp(), pairs, rounds=3, lr=0.1, **how)
        for how in ({"lr_decay": 0.5}, {"schedule": {"name": "exponential", "decay": 0.5}})
    )
    assert toy.distance(decay.model.state_dict(), named.model.state_dict()) < 1e-14
