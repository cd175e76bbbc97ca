"""The table of sites before round one: outliers are marked, misfits are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from own_people import FolderFederation
from rich.console import Console

import fedra
from fedra.federation import wire
from fedra.federation.local_data.data_schema import DataSchema
from fedra.federation.site_descriptions import description_table, find_outliers
from fedra.federation.wire import Packet

pytestmark = pytest.mark.usefixtures("without_curves")
SCHEMA = DataSchema(shape=(1, 8, 8), classes=("a", "b"), mean=(0.5,), std=(0.25,))


def words(mean: float | None, std: float | None = 0.25) -> wire.SiteWords:
    return wire.SiteWords(fedra="1", torch="2", clients=[], shape=(1, 8, 8), mean=mean, std=std)


def outliers(*means: float | None) -> set[str]:
    return set(find_outliers({f"site-{n}": words(mean) for n, mean in enumerate(means)}, SCHEMA))


def test_a_site_far_from_the_others_is_marked() -> None:
    assert outliers(0.48, 0.5, 0.52, 0.5) == set()
    assert outliers(0.48, 0.5, 0.52, 0.8) == {"site-3"}
    assert outliers(0.48, 0.5, 0.52, 0.8, 0.51, 0.49, 0.9) == {"site-3", "site-6"}  # one does not hide the other
    assert outliers(0.5, 0.5, 0.5, 0.53) == set()  # close agreement of the others marks nobody
    assert outliers(0.3, 0.5, 0.7, 0.9) == set()  # sites that are far apart anyway


def test_two_sites_are_compared_with_the_plan() -> None:
    assert outliers(0.5, 0.8) == {"site-1"}
    assert outliers(0.5, None, 0.8) == {"site-2"}
    assert outliers(None, None, None) == set()


def test_the_deviation_is_compared_too() -> None:
    sites = {"a": words(0.5), "b": words(0.5), "c": words(0.5), "d": words(0.5, 0.02)}
    (sentence,) = find_outliers(sites, SCHEMA).values()
    assert sentence == "the deviation of its pixels is 0.02, that of the other sites 0.25"


def test_the_coordinator_shows_the_table_and_marks_the_dark_site(tmp_path: Path) -> None:
    people = {"north": ["a", "b"], "south": ["c", "d"], "west": ["e", "f"], "east": ["g", "h"]}
    policies = {"south": {"pixel_statistics": False}}
    federation = FolderFederation(tmp_path, people, match="none", policies=policies)
    federation.draw("east", ["g", "h"], high=40)
    coordinator = federation.coordinator()
    coordinator.console = Console(file=(tmp_path / "shown.txt").open("w"), width=200)
    coordinator._gather()
    coordinator.console.file.close()
    shown = (tmp_path / "shown.txt").read_text()
    rows = {line.split()[0]: line for line in shown.splitlines() if line}
    assert rows["east"].split()[-1] == "OUTLIER"
    assert "the mean of its pixels is 0.07, that of the other sites 0.5" in " ".join(federation.told)
    assert rows["south"].split()[-2:] == ["-", "-"]
    assert "OUTLIER" not in rows["south"] + rows["north"] + rows["west"]
    told = [line for line in federation.told if line.startswith("warning: east")]
    assert len(told) == 1
    assert "inverted" in told[0]
    described = json.loads((tmp_path / "coordinator" / "status.json").read_text())["described"]
    assert described["north"]["examples"] == 10
    assert described["south"]["mean"] is None
    console = Console(file=(tmp_path / "again.txt").open("w"), width=200)
    console.print(description_table(described))
    console.file.close()
    assert (tmp_path / "again.txt").read_text() in shown


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"fedra": "0.0.1"}, f"it has fedra 0.0.1, this federation needs {fedra.__version__}"),
        ({"shape": (1, 9, 9)}, "its examples have shape (1, 9, 9), the plan (1, 8, 8)"),
    ],
)
def test_a_misfit_is_refused_by_name(change: dict[str, object], sentence: str, tmp_path: Path) -> None:
    federation = FolderFederation(tmp_path, {"north": ["a", "b"], "south": ["c", "d"]}, match="none")
    honest = federation.link.sites["south"]

    def misfit(packet: Packet) -> Packet:
        answer = honest(packet)
        assert isinstance(answer, Packet)
        return wire.packet("describe", answer.read(wire.SiteWords).model_copy(update=change))

    federation.link.sites["south"] = misfit
    coordinator = federation.coordinator()
    assert coordinator._describe("south") is not None
    assert any(line.startswith(f"south does not take part: {sentence}") for line in federation.told)
    assert "south" not in coordinator.roster.sites()
