"""Clients as recognizers of their own people: who is enrolled, and what follows, against plain loops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fedra.errors import DataError
from fedra.faces.metrics.client_recognition import Device, Recognition, draw_devices, search

PEOPLE = torch.tensor([0] * 5 + [1] * 4 + [2] * 3 + [3] * 2 + [4] + [5] * 6)
ONE_EACH = {client: torch.tensor([client]) for client in range(6)}
SEVERAL = {0: torch.tensor([0, 3]), 1: torch.tensor([1, 2]), 2: torch.tensor([4, 5])}


def drawn(holdings: dict[int, Tensor], **settings: int | None) -> list[Device]:
    wanted: dict[str, int | None] = {"enroll": 2, "clients": None, "impostors": None, "seed": 3, **settings}
    return draw_devices(PEOPLE, holdings, **wanted)  # type: ignore[arg-type]


def features(seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    middles = torch.randn(6, 8, generator=draw, dtype=torch.float64)
    return middles[PEOPLE] + 0.9 * torch.randn(len(PEOPLE), 8, generator=draw, dtype=torch.float64)


def test_own_images_are_divided_and_strangers_are_other_clients_people() -> None:
    for device in drawn(SEVERAL):
        own, rows = SEVERAL[device.client], torch.cat([device.enrolled, device.probes])
        assert bool(torch.isin(PEOPLE[rows], own).all())
        assert len(torch.unique(rows)) == len(rows)
        assert not bool(torch.isin(PEOPLE[device.impostors], own).any())
        for person in torch.unique(PEOPLE[rows]).tolist():
            held = int((person == PEOPLE).sum())
            assert int((PEOPLE[device.enrolled] == person).sum()) == min(2, held - 1)
            assert int((PEOPLE[rows] == person).sum()) == held


def test_a_person_of_one_image_is_neither_enrolled_nor_an_impostor() -> None:
    devices = drawn(ONE_EACH)
    assert [device.client for device in devices] == [0, 1, 2, 3, 5]
    assert all(14 not in device.rows.tolist() for device in devices)  # person 4's only image


def test_samples_are_bounded_and_depend_on_the_seed_alone() -> None:
    some, again, other = (drawn(ONE_EACH, clients=3, impostors=4, seed=seed) for seed in (1, 1, 2))
    assert len(some) == 3
    assert all(len(device.impostors) == 4 for device in some)
    assert all(torch.equal(one.rows, two.rows) for one, two in zip(some, again, strict=True))
    assert [d.rows.tolist() for d in some] != [d.rows.tolist() for d in other]
    tested = torch.cat([torch.cat([d.enrolled, d.probes]) for d in some])
    assert all(bool(torch.isin(device.impostors, tested).all()) for device in some)


def unit(row: Tensor) -> Tensor:
    return row / row.norm()


def naive(
    devices: list[Device], table: Tensor
) -> Iterator[tuple[int, list[float], list[float], list[float], list[float]]]:
    for device in devices:
        people = sorted(set(PEOPLE[device.enrolled].tolist()))
        templates = {
            person: unit(sum(unit(table[row]) for row in device.enrolled.tolist() if PEOPLE[row] == person))  # type: ignore
            for person in people
        }
        genuine, impostor, best, right = [], [], [], []
        for row in device.probes.tolist():
            scores = {person: float(unit(table[row]) @ template) for person, template in templates.items()}
            own = scores.pop(int(PEOPLE[row]))
            genuine.append(own)
            if all(own > score for score in scores.values()):
                right.append(own)
        for row in device.impostors.tolist():
            found = [float(unit(table[row]) @ template) for template in templates.values()]
            impostor += found
            best.append(max(found))
        yield device.client, genuine, impostor, best, right


@pytest.mark.parametrize("holdings", [ONE_EACH, SEVERAL], ids=["one", "several"])
def test_figures_against_loops(holdings: dict[int, Tensor]) -> None:
    devices, table = drawn(holdings), features()
    found = Recognition.of((d.client, search(d, PEOPLE, table[d.rows])) for d in devices)
    figures = found.metrics(0.1)
    loops = list(naive(devices, table))
    genuine, impostor, best, right = ([score for line in loops for score in line[k]] for k in (1, 2, 3, 4))

    def auroc(own: list[float], others: list[float]) -> float:
        return sum((g > i) + (g == i) / 2 for g in own for i in others) / (len(own) * len(others))

    assert figures["auroc"] == pytest.approx(auroc(genuine, impostor))
    aurocs = {line[0]: auroc(line[1], line[2]) for line in loops}
    assert found.aurocs() == pytest.approx(aurocs)
    assert figures["auroc_macro"] == pytest.approx(sum(aurocs.values()) / len(aurocs))
    allowed = int(0.1 * len(best))
    threshold = sorted(best)[-allowed - 1]
    assert figures["tpir"] == pytest.approx(sum(score > threshold for score in right) / len(genuine))
    assert figures["fpir"] == pytest.approx(allowed / len(best))
    assert figures["fpir_smallest"] == pytest.approx(1 / len(best))
    assert 0 < figures["eer"] < 0.5


def test_an_equal_score_of_another_person_is_a_miss() -> None:
    device = drawn(SEVERAL)[0]
    found = search(device, PEOPLE, torch.ones(len(device.rows), 4))
    assert len(found.genuine) == len(device.probes)
    assert not len(found.right)


def test_mistakes_are_told() -> None:
    with pytest.raises(
        DataError,
        match=r"2 held-out images of a person .*, got 1: raise data.test_fraction",
    ):
        draw_devices(torch.tensor([0, 0, 1]), {0: torch.tensor([0]), 1: torch.tensor([1])},
                     enroll=1, clients=None, impostors=None, seed=0)  # fmt: skip
    with pytest.raises(DataError, match=r"client 0 needs impostors, but all tested images show its own people"):
        draw_devices(torch.tensor([0, 0]), {0: torch.tensor([0]), 1: torch.tensor([0])},
                     enroll=1, clients=None, impostors=None, seed=0)  # fmt: skip
    device = drawn(ONE_EACH)[0]
    with pytest.raises(DataError, match=r"the embeddings of a client: row 0 contains NaN"):
        search(device, PEOPLE, torch.full((len(device.rows), 4), torch.nan))
