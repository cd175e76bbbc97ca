"""A site's policy: each key refuses what it should, with its name in the sentence, and allows the rest."""

from __future__ import annotations

from dataclasses import replace
from datetime import time
from pathlib import Path
from typing import Any

import pytest

from fedra.errors import ConfigError
from fedra.federation.policy import Demands, Policy, refuse, round_to_two_digits
from fedra.federation.site_config import SiteConfig, read_site, require_name, site_file, write_site

MODEST = Demands(algorithms=("fedprox",), model="resnet18", epochs=1, rounds=50, upload_bytes=44_700_000)

REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "algorithms": ({"algorithms": ("fedavg", "fedsol*")}, {}, "does not name 'fedprox'"),
    "algorithms added": ({"algorithms": ("fedprox",)}, {"algorithms": ("fedprox", "fedadam")}, "'fedadam'"),
    "models": ({"models": ("vit*",)}, {}, "'resnet18'"),
    "code": ({}, {"model": "evil:build", "code": ("evil:build",)}, "'evil:build'"),
    "class_embeddings": ({}, {"algorithms": ("fedgc",), "class_embeddings": True}, "fedgc sends a vector per person"),
    "epochs": ({}, {"epochs": 6}, "the plan has 6"),
    "rounds": ({"rounds": 49}, {}, "the plan has 50"),
    "upload_mb": ({"upload_mb": 44.0}, {}, "the plan has 44.7"),
    "other_sites": ({"other_sites": 2}, {}, "federation.least = 2"),
    "counts": ({"counts": "none"}, {}, "federation.weighting = 'equal'"),
    "secure_aggregation": ({"secure_aggregation": "required"}, {}, "sees each update"),
    "privacy": ({"privacy": {"epsilon": 8.0}}, {}, "no differential privacy"),
    "privacy too weak": ({"privacy": {"epsilon": 8.0}}, {"epsilon": 9.0}, "the plan has 9"),
}


@pytest.mark.parametrize(("key", "case"), REFUSED.items(), ids=REFUSED)
def test_each_key_refuses(key: str, case: tuple[dict[str, Any], dict[str, Any], str]) -> None:
    policy, asked, sentence = case
    (reason,) = refuse(replace(MODEST, **asked), Policy(**policy))
    assert f"policy.{key.split()[0]}" in reason
    assert sentence in reason


ALLOWED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({}, {}),
    "named code": ({"code": ("mine:build",)}, {"model": "mine:build", "code": ("mine:build",)}),
    "class embeddings": ({"class_embeddings": True}, {"class_embeddings": True}),
    "equal weights": ({"counts": "none"}, {"weighting": "equal"}),
    "more sites": ({"other_sites": 2}, {"least_sites": 3}),
    "privacy": ({"privacy": {"epsilon": 8.0}}, {"epsilon": 8.0}),
    "secure": ({"secure_aggregation": "required"}, {"secure_aggregation": True}),
}


@pytest.mark.parametrize("case", ALLOWED.values(), ids=ALLOWED)
def test_what_holds_is_allowed(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
    policy, asked = case
    assert refuse(replace(MODEST, **asked), Policy(**policy)) == []


def test_several_reasons_are_all_given() -> None:
    assert len(refuse(replace(MODEST, epochs=9, rounds=999), Policy())) == 2


@pytest.mark.parametrize(
    ("hours", "now", "allowed"),
    [
        ("", time(3), True),
        ("19:00-07:00", time(23), True),
        ("19:00-07:00", time(6, 59), True),
        ("19:00-07:00", time(7), False),
        ("19:00-07:00", time(12), False),
        ("08:00-12:00", time(8), True),
        ("08:00-12:00", time(12), False),
    ],
)
def test_hours(hours: str, now: time, allowed: bool) -> None:
    assert Policy(hours=hours).may_train_at(now) is allowed


def test_counts_are_rounded_to_two_digits() -> None:
    assert [round_to_two_digits(count) for count in (0, 7, 94, 95, 104, 105, 1204, 1250, 99_600)] == [
        0, 7, 94, 95, 100, 110, 1200, 1300, 100_000,
    ]  # fmt: skip
    assert Policy().shown_count(1204) == 1200
    assert Policy(counts="exact").shown_count(1204) == 1204
    assert Policy(counts="none").shown_count(1204) is None


def test_metrics_of_small_tests_and_others_stay() -> None:
    policy = Policy(metrics=("train_loss", "accuracy"), test_examples=20)
    assert policy.may_leave("train_loss")
    assert policy.may_leave("accuracy", 20)
    assert not policy.may_leave("accuracy", 19)
    assert not policy.may_leave("auroc", 500)


def test_a_written_site_is_read_back_and_explains_every_key(tmp_path: Path) -> None:
    table = {
        "name": "st-mary",
        "data": {"path": "/data/xray", "labels": {"Pneumonie": "pneumonia", "un clear": ""}},
        "policy": {"hours": "19:00-07:00", "privacy": {"epsilon": 8.0}},
    }
    site = SiteConfig.model_validate(table)
    write_site(tmp_path, site)
    assert read_site(tmp_path) == site
    text = site_file(tmp_path).read_text()
    for key, field in Policy.model_fields.items():
        assert key in text
        assert field.description is None or field.description in text
    assert max(map(len, text.splitlines())) <= 130


def test_the_fields_of_a_data_set_are_kept(tmp_path: Path) -> None:
    site = SiteConfig.model_validate({"name": "a", "data": {"name": "synthetic", "examples": 30, "flag": True}})
    write_site(tmp_path, site)
    assert read_site(tmp_path).data.settings == {"examples": 30, "flag": True}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("[policy]\nepoch = 3", "did you mean 'epochs'"),
        ("[policy]\nepochs = 0", "policy.epochs must be at least 1, got 0"),
        ("[policy]\nhours = '7-8'", "must be empty or have the form 19:00-07:00"),
        ("[policy]\ncounts = 'exact'\nprivacy = { epsilon = 1.0 }", "must not send exact counts"),
        ("[policy", "must be TOML"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, line: str, sentence: str) -> None:
    site_file(tmp_path).write_text(f"name = 'a'\n{line}\n")
    with pytest.raises(ConfigError, match=r"site\.toml") as error:
        read_site(tmp_path)
    assert sentence in str(error.value)


def test_a_missing_file_says_what_creates_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fedra site init"):
        read_site(tmp_path)


@pytest.mark.parametrize("name", ["", "St-Mary", "../etc", "a b", "-a", "a" * 41])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="the name of a site"):
        require_name(name, "a site")
