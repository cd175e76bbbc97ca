"""The configuration: defaults, overrides, and TOML that reads back as it was."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedra
import tiny
from fedra.config.overrides import parse_value
from fedra.config.reading import read, write
from fedra.config.resolve import resolve_defaults
from fedra.config.schema import Config
from fedra.errors import ConfigError
from fedra.experiment.build import build_dataset
from fedra.experiment.sweep import expand, read_grid

SINGLE = ("seed", "rounds", "mode", "device", "precision", "compile", "sweep")
SECTIONS = [name for name, field in Config.model_fields.items() if name not in (*SINGLE, "public")]


def test_an_empty_file_is_a_whole_configuration(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("")
    found = read(tmp_path / "empty.toml")
    assert found == Config()
    assert (found.data.name, found.algorithm.name, found.runner.name) == ("digits", "fedavg", "auto")
    assert (found.rounds, found.partition.clients, found.local.batch) == (10, 10, 50)


def test_a_public_set_is_written_if_there_is_one() -> None:
    assert "public" not in tomllib.loads(write(Config()))
    given = read({"public": {"name": "synthetic-faces", "identities": 5}})
    assert read(tomllib.loads(write(given))) == given
    assert given.public is not None
    assert all(field.description for field in type(given.public).model_fields.values())


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_every_section_is_described_and_written(section: str) -> None:
    model = type(getattr(Config(), section))
    assert all(field.description for field in model.model_fields.values())
    written = tomllib.loads(write(Config()))[section]
    unset = {name for name, value in getattr(Config(), section).model_dump().items() if value is None}
    assert written.keys() == model.model_fields.keys() - unset


@pytest.mark.parametrize(
    ("word", "place", "expected"),
    [
        ("rounds=5", "rounds", 5),
        ("local.lr=1e-3", "local.lr", 0.001),
        ("local.optimizer=adam", "local.optimizer", "adam"),
        ("local.optimizer='adam'", "local.optimizer", "adam"),
        ("local.drop_last=true", "local.drop_last", True),
        ("local.batch=0", "local.batch", None),
        ("local.batch=all", "local.batch", None),
        ("partition.clients=0", "partition.clients", None),
        ("data.augment=['crop', 'flip']", "data.augment", ("crop", "flip")),
        ("model.hidden=[5, 6]", "model.settings", {"hidden": [5, 6]}),
        (" faults.deadline = 2.5", "faults.deadline", 2.5),
        ("algorithm={name='fedprox', mu=0.1}", "algorithm.settings", {"mu": 0.1}),
        (
            "algorithm.plus=['fedsam', {name='clip', norm=1.0}]",
            "algorithm.plus",
            ("fedsam", {"name": "clip", "norm": 1}),
        ),
        ("local.epochs=2 # twice", "local.epochs", 2),
    ],
)
def test_overrides(word: str, place: str, expected: Any) -> None:
    found: Any = read({}, [word])
    for step in place.split("."):
        found = getattr(found, step)
    assert found == expected


def test_later_overrides_win_and_an_inline_table_replaces_a_section() -> None:
    found = read({"local": {"epochs": 7, "lr": 0.5}}, ["local={lr=0.2}", "local.momentum=0.5", "local.momentum=0.9"])
    assert (found.local.epochs, found.local.lr, found.local.momentum) == (1, 0.2, 0.9)


FILE = {
    "partition": {"name": "dirichlet", "alpha": 0.1, "clients": 100},
    "model": {"name": "mlp", "hidden": [64], "projection": 32},
    "algorithm": {"name": "fedsol", "rho": 1.0, "scope": "head", "plus": ["clip"]},
}


@pytest.mark.parametrize("word", ["algorithm=fedavg", "algorithm.name=fedavg", "algorithm='fedavg'"])
def test_another_name_drops_the_fields_of_the_old_one(word: str) -> None:
    found = resolve_defaults(read(FILE, [word])).algorithm
    assert (found.name, found.settings) == ("fedavg", {})
    assert found.plus == ({"name": "clip", "norm": 10.0},)


def test_another_name_keeps_what_it_has_too_and_the_keys_of_the_section() -> None:
    found = read(FILE, ["algorithm=fedsam", "partition=iid", "model=logistic"])
    assert found.algorithm.settings == {"rho": 1.0}
    assert (found.partition.clients, found.partition.settings) == (100, {})
    assert (found.model.projection, found.model.settings) == (32, {})


def test_the_same_name_keeps_everything() -> None:
    assert read(FILE, ["algorithm=fedsol", "model.name=mlp"]) == read(FILE)


def test_fields_that_the_words_set_are_not_dropped() -> None:
    for words in (["algorithm.rho=2.0", "algorithm=fedavg"], ["algorithm=fedavg", "algorithm.rho=2.0"]):
        with pytest.raises(ConfigError, match="the algorithm 'fedavg' has no field 'rho'"):
            resolve_defaults(read(FILE, words))
    assert read(FILE, ["algorithm=fedprox", "algorithm.mu=2.0"]).algorithm.settings == {"mu": 2.0}
    assert read(FILE, ["algorithm=mine:own", "algorithm.rho=2.0"]).algorithm.settings == {"rho": 2.0}


def test_a_name_stands_for_its_section() -> None:
    names = {"data": "mnist", "public": "lfw", "partition": "natural", "model": "mlp", "algorithm": "fedprox"}
    found = read({**names, "runner": "stacked"})
    assert found == read({key: {"name": name} for key, name in {**names, "runner": "stacked"}.items()})
    assert found.partition.clients is None
    assert read({"algorithm": "fedprox"}, ["algorithm.mu=0.5"]).algorithm.settings == {"mu": 0.5}
    assert read({}, ["public=lfw"]).public == read({"public": {"name": "lfw"}}).public


def test_overrides_leave_the_given_table_alone() -> None:
    table = {"local": {"epochs": 7}}
    assert read(table, ["local.epochs=2"]).local.epochs == 2
    assert table == {"local": {"epochs": 7}}


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("rounds = 4\n[local]\nepochs = 2"))
    found = read("-", ["local.lr=0.5"])
    assert (found.rounds, found.local.epochs, found.local.lr) == (4, 2, 0.5)


@pytest.mark.parametrize(
    ("each", "fraction", "rounds"),
    [(5, 0.1, 50), (5, 0.5, 10), (5, 0.9, 6), (5, 1.0, 5), (0.5, 1.0, 1), (0.3, 0.1, 3), (0.7, 0.1, 7), (2.5, 0.3, 9)],
)
def test_rounds_follow_from_the_rounds_per_client(each: float, fraction: float, rounds: int) -> None:
    config = read({"cohort": {"rounds_per_client": each, "fraction": fraction}})
    assert config.rounds == rounds
    again = read(tomllib.loads(write(config)))
    assert (again.cohort, again.rounds) == (config.cohort, rounds)
    assert resolve_defaults(config).rounds == rounds


def test_centralized_epochs_are_the_rounds_of_a_client() -> None:
    config = read({"mode": "centralized", "cohort": {"rounds_per_client": 5, "fraction": 0.1}})
    assert (config.rounds, resolve_defaults(config).rounds) == (5, 5)


def test_rounds_and_rounds_per_client_cannot_both_be_set() -> None:
    table = {"rounds": 10, "cohort": {"rounds_per_client": 5}}
    wanted = (
        "rounds must not be set along with cohort.rounds_per_client, from which it follows, got 10 and 5 in the "
        "configuration: remove one of them"
    )
    for source, words in ((table, []), ({}, ["rounds=10", "cohort.rounds_per_client=5"])):
        with pytest.raises(ConfigError) as caught:
            read(source, words)
        assert str(caught.value) == wanted


def test_an_override_chooses_between_rounds_and_rounds_per_client() -> None:
    each = {"cohort": {"rounds_per_client": 5, "fraction": 0.5}}
    found = read(each, ["rounds=3"])
    assert (found.rounds, found.cohort.rounds_per_client, found.cohort.fraction) == (3, None, 0.5)
    assert read(each, ["cohort.fraction=0.1"]).rounds == 50
    assert read({"rounds": 3}, ["cohort.rounds_per_client=5", "cohort.fraction=0.1"]).rounds == 50
    assert read({"rounds": 3}, ["cohort={rounds_per_client=5, fraction=0.5}"]).rounds == 10


@pytest.mark.parametrize("each", [0, -1, "inf", "nan"])
def test_rounds_per_client_must_be_positive_and_finite(each: float | str) -> None:
    with pytest.raises(ConfigError, match=r"cohort\.rounds_per_client must be"):
        read({"cohort": {"rounds_per_client": float(each)}})


def test_a_sweep_over_participation_adapts_the_rounds(tmp_path: Path) -> None:
    table = {"cohort": {"rounds_per_client": 5}, "sweep": {"cohort.fraction": [0.1, 0.5]}}
    config, grid = read_grid(table, [])
    points = expand(config, grid, 1, tmp_path)
    assert [run.rounds for point in points for _, run, _ in point.runs] == [50, 10]
    config, grid = read_grid({}, ["cohort.rounds_per_client=2,4", "cohort.fraction=0.5"])
    assert [run.rounds for point in expand(config, grid, 1, tmp_path) for _, run, _ in point.runs] == [4, 8]


positive = st.floats(1e-6, 1e3)
words = st.text(max_size=12)
configs = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**63 - 1),
        "rounds": st.integers(1, 10**6),
        "cohort": st.fixed_dictionaries({}, optional={"fraction": st.floats(0.01, 1)}),
        "data": st.fixed_dictionaries(
            {"name": words},
            optional={
                "augment": st.sampled_from(["none", "paper"]) | st.lists(words, max_size=3),
                "shape": st.lists(st.integers()),
            },
        ),
        "partition": st.fixed_dictionaries(
            {"name": words}, optional={"clients": st.none() | st.integers(1, 10**6), "alpha": positive}
        ),
        "model": st.fixed_dictionaries({"name": words}, optional={"projection": st.none() | st.integers(1, 512)}),
        "algorithm": st.fixed_dictionaries(
            {"name": words},
            optional={
                "plus": st.lists(words | st.fixed_dictionaries({"name": words, "norm": positive}), max_size=3),
                "proximal": st.fixed_dictionaries({"name": words, "mu": positive}),
            },
        ),
        "local": st.fixed_dictionaries(
            {},
            optional={
                "batch": st.none() | st.just(0) | st.integers(1, 512),
                "lr": positive,
                "drop_last": st.booleans(),
            },
        ),
        "runner": st.fixed_dictionaries({"name": words}, optional={"chunk": st.integers(1, 9)}),
        "faults": st.fixed_dictionaries({}, optional={"deadline": st.none() | positive, "dropout": st.floats(0, 1)}),
        "sweep": st.dictionaries(words.filter(lambda key: key != "seeds"), st.lists(positive, max_size=3), max_size=2),
    },
)


@given(configs)
def test_what_is_written_reads_back_as_it_was(table: dict[str, Any]) -> None:
    config = read(table)
    again = read(tomllib.loads(write(config)))
    assert _plain(again.model_dump()) == _plain(config.model_dump())
    assert write(again) == write(config)


def _plain(value: Any) -> Any:
    """Tuples as lists: TOML has one kind."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def test_resolving_writes_every_default_out_and_changes_nothing() -> None:
    config = resolve_defaults(read({"algorithm": {"name": "fedsol", "rho": 0.5}, "runner": {"name": "stacked"}}))
    assert config.algorithm.settings["rho"] == 0.5
    assert config.algorithm.settings["scope"] == "all"
    assert config.data.settings == {"test_fraction": 0.2}
    assert config.runner.settings["memory"] > 0
    assert write(resolve_defaults(config)) == write(config)


@pytest.mark.usefixtures("without_curves")
@pytest.mark.parametrize(
    "sections",
    [
        {"algorithm": {"name": "fedsol", "proximal": {"name": "proximal", "mu": 0.1}}},
        {
            "local": {"batch": 0},
            "algorithm": {"name": "fedavg", "plus": ["fedsam", {"name": "server-adam", "lr": 0.1}]},
        },
        {
            "data": {**tiny.TINY["data"], "groups": 3},
            "partition": {"name": "natural", "clients": 0},
            "faults": {"dropout": 0.3, "deadline": 3.0, "straggler": 0.2, "quorum": 0.1},
        },
    ],
)
def test_the_resolved_file_runs_to_the_same_bits(tmp_path: Path, sections: dict[str, Any]) -> None:
    fedra.run(tiny.table(**sections), out=tmp_path / "first")
    fedra.run(tmp_path / "first" / "config.toml", out=tmp_path / "again")
    assert tiny.record(tmp_path / "first") == tiny.record(tmp_path / "again")
    assert (tmp_path / "first" / "config.toml").read_text() == (tmp_path / "again" / "config.toml").read_text()


def test_owners_that_the_data_name_are_not_put_together_unless_asked() -> None:
    data = {**tiny.TINY["data"], "groups": 13}
    by_default = read(tiny.table(data=data, partition={"name": "natural"}))
    merged = read(tiny.table(data=data, partition={"name": "natural", "clients": 4}))
    assert by_default.partition.clients is None
    assert merged.partition.clients == 4


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"roundz": 3}, "unknown key 'roundz' in the configuration: did you mean 'rounds'?"),
        ({"local": {"epoch": 1}}, "unknown key 'local.epoch' in the configuration: did you mean 'epochs'?"),
        ({"local": {"epochs": "many"}}, "local.epochs must be an integer, got 'many' in the configuration"),
        ({"local": {"epochs": 0}}, "local.epochs must be at least 1, got 0"),
        ({"local": 5}, "local must be a table, got 5"),
        ({"algorithm": 5}, "algorithm must be a name, or a table with a name and its fields, got 5"),
        ({"data": {"augment": "strong"}}, "data.augment must be 'none' or 'paper', got 'strong'"),
        ({"algorithm": {"plus": [3]}}, "algorithm.plus must be a string, got 3"),
        ({"cohort": {"fraction": 1.5}}, "cohort.fraction must be at most 1, got 1.5"),
        (
            {"cohort": {"sampling": "random"}},
            "cohort.sampling must be 'keyed', 'legacy', 'poisson' or 'rotation', got 'random'",
        ),
        ({"sweep": {"seeds": 0}}, "sweep.seeds must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"public": {"clients": 3}}, "public.name must be set in the configuration"),
    ],
)
def test_mistakes_name_the_key_and_the_value(table: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(table)
    assert told in str(caught.value)


def test_an_override_into_a_single_value() -> None:
    with pytest.raises(ConfigError, match="must name a key of a section, but 'rounds' is a single value"):
        read({"rounds": 3}, ["rounds.more=1"])


def test_parsed_values() -> None:
    parsed = {text: parse_value(text) for text in ("1", "1.5", "true", "[1, 'a']", "fedavg", "'1'", "")}
    assert list(parsed.values()) == [1, 1.5, True, [1, "a"], "fedavg", "1", ""]


def test_a_share_of_the_examples_keeps_every_class() -> None:
    """Of each class the same share, drawn by the partition's seed; the test split stays whole."""
    whole = build_dataset(read({}))
    some, again, other = (
        build_dataset(read({"data": {"name": "digits", "fraction": 0.3}, "partition": {"seed": seed}}))
        for seed in (0, 0, 1)
    )
    sizes, all_sizes = (set_.train.targets.bincount() for set_ in (some, whole))
    assert (sizes - 0.3 * all_sizes).abs().max() <= 0.5
    assert torch.equal(some.train.inputs, again.train.inputs)
    assert not torch.equal(some.train.inputs, other.train.inputs)
    assert len(some.test) == len(whole.test)
    rows = {tuple(image.flatten().tolist()) for image in whole.train.inputs}
    assert all(tuple(image.flatten().tolist()) in rows for image in some.train.inputs)
    least = build_dataset(read({"data": {"name": "digits", "fraction": 1e-6}}))
    assert sorted(least.train.targets.tolist()) == list(range(10))
