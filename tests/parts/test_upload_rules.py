"""Compressed uploads: packed without loss, with the error fed back, the same by every runner and in a federation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tiny
import toy
from fedra.algorithms import fedavg, fedper, scaffold
from fedra.core.algorithm import Algorithm
from fedra.core.upload_rule import UploadRule
from fedra.errors import ConfigError
from fedra.parts import ByteUpload, HalfUpload, TopUpload
from fedra.storage.checkpoint import load_model

RULES: tuple[UploadRule, ...] = (HalfUpload(), ByteUpload(), TopUpload(share=0.25))
COHORTS = ((0, 1), (1, 2), (0, 2))


def changes(count: int = 200) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    found = []
    for number in range(count):
        shape = [(7,), (4, 9), (3, 2, 5), (1,), ()][number % 5]
        found.append(torch.randn(shape, generator=draw) * 10 ** float(torch.randn((), generator=draw) * 3))
    return [*found, torch.zeros(4), torch.tensor([127.0, -1.0]), torch.tensor([64.0, 63.5]), torch.tensor([1e-30])]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_packing_loses_nothing(rule: UploadRule) -> None:
    for change in changes():
        sent = rule.compress(change.clamp(-6e4, 6e4))
        packed = rule.pack(sent)
        assert torch.equal(rule.unpack(packed, sent.shape, sent.dtype), sent)
        assert torch.equal(rule.compress(sent), sent)


def test_rounding_is_as_near_as_it_can_be() -> None:
    for change in changes():
        step = float(change.abs().max()) / 127 if change.numel() else 0.0
        error = float((ByteUpload().compress(change) - change).abs().max())
        assert error <= step * (1 + 1e-6)
        assert int((ByteUpload().pack(change)["values"].int().abs()).max()) <= 127


def test_the_largest_entries_are_sent() -> None:
    change = torch.tensor([0.1, -5.0, 2.0, 0.0, 3.0, -0.2, 0.3, 0.4])
    assert TopUpload(share=0.25).compress(change).tolist() == [0, -5, 0, 0, 3, 0, 0, 0]
    assert TopUpload(share=0.01).compress(change).tolist() == [0, -5, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(("rule", "share"), [(HalfUpload(), 0.5), (ByteUpload(), 0.26), (TopUpload(share=0.1), 0.21)])
def test_uploads_are_smaller(rule: UploadRule, share: float) -> None:
    change = torch.randn(100, 100)
    assert rule.packed_bytes(rule.compress(change)) <= share * change.nbytes


@pytest.mark.parametrize("rule", [ByteUpload(), TopUpload(share=0.25)], ids=lambda rule: rule.name)
def test_what_is_not_sent_is_sent_later(rule: UploadRule) -> None:
    """All that was sent and the error that is left are all changes."""
    work = toy.job(fedavg().plus(rule), toy.mlp())
    history = toy.run(work, ((0,), (0,), (0,)))
    plain = toy.run(toy.job(fedavg(), toy.mlp()), ((0,),))
    first = {name: value.clone() for name, value in plain.uploads[0].delta.items()}
    sent = history.uploads[0].delta
    assert any(not torch.equal(first[name], sent[name]) for name in first)
    error = {name: torch.zeros_like(value) for name, value in first.items()}
    errors = [toy.run(work, ((0,),) * rounds).memory[0][rule.name] for rounds in (1, 2)]
    for name in first:
        assert torch.allclose(sent[name] + errors[0][name], first[name] + error[name], atol=1e-12)
    assert all(bool(errors[1][name].isfinite().all()) for name in first)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("base", [fedavg, scaffold, fedper], ids=lambda recipe: recipe.__name__)
def test_runners_agree(rule: UploadRule, base: type[Algorithm]) -> None:
    algorithm = base().plus(rule)
    one = toy.run(toy.job(algorithm, toy.conv(torch.float32)), COHORTS)
    two = toy.run(toy.job(algorithm, toy.conv(torch.float32)), COHORTS, "processes", workers=2)
    three = toy.run(toy.job(algorithm, toy.conv()), COHORTS, "stacked")
    four = toy.run(toy.job(algorithm, toy.conv()), COHORTS)
    assert toy.same_bits(one.params, two.params)
    assert toy.distance(three.params, four.params) < 1e-3  # rounding turns the last bit into a whole step


@pytest.mark.parametrize(
    ("rule", "packed"),
    [
        (HalfUpload(), {"values": torch.zeros(3)}),
        (HalfUpload(), {"values": torch.zeros(2, dtype=torch.float16)}),
        (ByteUpload(), {"values": torch.zeros(3, dtype=torch.int8), "scale": torch.tensor([torch.nan])}),
        (ByteUpload(), {"values": torch.zeros(3, dtype=torch.int8), "scale": torch.tensor([0.0])}),
        (TopUpload(share=1), {"rows": torch.tensor([3], dtype=torch.int32), "values": torch.ones(1)}),
        (TopUpload(share=1), {"rows": torch.tensor([-1], dtype=torch.int32), "values": torch.ones(1)}),
        (TopUpload(share=1), {"rows": torch.tensor([1, 1], dtype=torch.int32), "values": torch.ones(2)}),
        (TopUpload(share=0.1), {"rows": torch.tensor([0, 1], dtype=torch.int32), "values": torch.ones(2)}),
    ],
)
def test_a_packed_change_that_does_not_fit_is_refused(rule: UploadRule, packed: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="must"):
        rule.unpack(packed, torch.Size([3]), torch.float32)


def test_a_configuration_names_them_and_traffic_is_counted(tmp_path: Path, without_curves: None) -> None:
    import fedra

    found = {}
    for name in ("none", "half-upload", "byte-upload"):
        plus = [] if name == "none" else [name]
        table = tiny.table(algorithm={"name": "fedavg", "plus": plus}, rounds=2)
        found[name] = fedra.run(table, out=tmp_path / name).summary["bytes_up"]
    assert found["half-upload"] * 2 == found["none"]
    assert found["byte-upload"] < 0.35 * found["none"]
    table = tiny.table(algorithm={"name": "fedper", "plus": ["half-upload"]}, rounds=1)
    fedra.run(table, out=tmp_path / "private")
    assert load_model(tmp_path / "private" / "model.safetensors")[0]


def test_two_rules_replace_each_other_and_a_wrong_part_is_refused() -> None:
    assert fedavg().plus(HalfUpload(), TopUpload()).upload == TopUpload()
    with pytest.raises(ConfigError, match="slot 'upload' must hold UploadRule parts"):
        Algorithm(objective=fedavg().objective, combine=fedavg().combine, upload=fedavg().combine)  # type: ignore[arg-type]
