"""Running states: explicit, pure, blind to padding, and the same through a checkpoint."""

from __future__ import annotations

import math

import pytest
import torch

from fedra.errors import ConfigError
from fedra.losses import LOSSES, Stateful

STATEFUL = ["sphereface", "uniformface", "adaface", "curricularface", "adacos-dynamic", "unitsface", "broadface"]


def batch(seed: int = 0, examples: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = 8 * torch.randn(examples, 5, generator=generator)
    weight = torch.randn(6, 5, generator=torch.Generator().manual_seed(99))
    return features, weight, torch.randint(0, 6, (examples,), generator=generator)


def test_the_stateful_losses_are_these() -> None:
    weight = batch()[1]
    assert sorted(name for name in LOSSES if LOSSES[name]().init_state(weight)) == sorted(STATEFUL)


@pytest.mark.parametrize("name", STATEFUL)
def test_a_step_is_pure_and_equals_the_loss_at_its_new_state(name: str) -> None:
    loss = LOSSES[name]()
    features, weight, labels = batch()
    learned, start = loss.init_learned(weight), loss.init_state(weight)
    kept = {key: it.clone() for key, it in start.items()}
    losses, state = loss.step(features, weight, labels, start, learned=learned)
    assert all(torch.equal(start[key], kept[key]) for key in start)
    assert any(not torch.equal(state[key], start[key]) for key in start)
    assert not any(it.requires_grad for it in state.values())
    at = start if name in ("unitsface", "broadface") else state  # memory is written after the loss
    torch.testing.assert_close(losses, loss.per_example(features, weight, labels, state=at, learned=learned))


@pytest.mark.parametrize("name", STATEFUL)
def test_padding_leaves_no_trace(name: str) -> None:
    loss = LOSSES[name]()
    features, weight, labels = batch()
    state, learned = loss.init_state(weight), loss.init_learned(weight)
    for seed in range(3):
        features, _, labels = batch(seed)
        padded = torch.cat([features, torch.full((4, 5), 70.0)]), weight, torch.cat([labels, labels[:4] * 0])
        mask = torch.arange(12) < 8
        losses, new = loss.step(*padded, state, mask=mask, learned=learned)
        wanted, state = loss.step(features, weight, labels, state, learned=learned)
        torch.testing.assert_close(losses[:8], wanted)
        for key in state:
            torch.testing.assert_close(new[key], state[key])
        _, same = loss.step(*padded, state, mask=torch.zeros(12, dtype=torch.bool), learned=learned)
        for key in state:
            assert torch.equal(same[key], state[key])


def test_sphereface_anneals_by_the_step_it_is_given() -> None:
    loss = LOSSES["sphereface"]()
    features, weight, labels = batch()
    state = loss.init_state()
    for _ in range(3):
        _, state = loss.step(features, weight, labels, state)
    assert float(state["step"]) == 3
    assert float(loss.annealing(state["step"])) == pytest.approx(1000 / (1 + 0.12 * 3))
    assert float(loss.annealing(torch.tensor(1e6))) == 5


def test_curricularface_follows_the_mean_true_cosine() -> None:
    loss = LOSSES["curricularface"](momentum=0.25)
    features, weight, labels = batch()
    unit = torch.nn.functional.normalize
    mean = float((unit(features) * unit(weight)[labels]).sum(dim=1).mean())
    _, state = loss.step(features, weight, labels, {"t": torch.tensor(0.4)})
    assert float(state["t"]) == pytest.approx(0.25 * mean + 0.75 * 0.4, abs=1e-6)


def test_adaface_follows_the_lengths_and_survives_a_single_example() -> None:
    loss = LOSSES["adaface"](momentum=0.5)
    features, weight, labels = batch()
    lengths = features.norm(dim=1).clamp(1e-3, 100)
    _, state = loss.step(features, weight, labels, loss.init_state())
    assert float(state["mean"]) == pytest.approx(0.5 * 20 + 0.5 * float(lengths.mean()), rel=1e-6)
    assert float(state["std"]) == pytest.approx(0.5 * 100 + 0.5 * float(lengths.std()), rel=1e-6)
    _, alone = loss.step(features[:1], weight, labels[:1], state)
    assert torch.equal(alone["std"], state["std"])
    assert float(alone["mean"]) == pytest.approx(0.5 * float(state["mean"]) + 0.5 * float(lengths[0]), rel=1e-6)


def test_dynamic_adacos_measures_its_scale() -> None:
    loss = LOSSES["adacos-dynamic"]()
    noise, weight, labels = batch(examples=8)
    features = weight[labels] + 0.07 * noise  # near enough for a median below 45 degrees
    unit = torch.nn.functional.normalize
    cosine = unit(features.double()) @ unit(weight.double()).T
    _, state = loss.step(features, weight, labels, {"scale": torch.tensor(9.0)})
    total = sum(math.exp(9 * float(cosine[i, j])) for i in range(8) for j in range(6) if j != int(labels[i]))
    median = sorted(math.acos(float(cosine[i, int(labels[i])])) for i in range(8))[3]
    assert median < math.pi / 4
    wanted = math.log(total / 8) / math.cos(min(math.pi / 4, median))
    assert float(state["scale"]) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("classes", [2, 3, 100])
def test_adacos_scale_never_vanishes(classes: int) -> None:
    scale = LOSSES["adacos"]().fixed_scale(classes)
    assert scale == pytest.approx(max(1.0, math.sqrt(2) * math.log(classes - 1) if classes > 1 else 0))


def test_unitsface_remembers_the_last_feature_of_each_class() -> None:
    loss = LOSSES["unitsface"]()
    features, weight, _ = batch()
    labels = torch.tensor([0, 1, 0, 2, 2, 1, 0, 1])
    learned, state = loss.init_learned(weight), loss.init_state(weight)
    first, state = loss.step(features, weight, labels, state, learned=learned)
    torch.testing.assert_close(first, LOSSES["cosface"](margin=0.4).per_example(features, weight, labels))
    assert float(state["threshold"]) == 0
    assert torch.equal(state["memory"][:3], features[[6, 7, 4]])
    assert torch.equal(state["memory"][3:], torch.zeros(3, 5))
    second, later = loss.step(features, weight, labels, state, learned=learned)
    pairs = torch.nn.functional.normalize(features) @ torch.nn.functional.normalize(state["memory"][:3]).T
    rivals = torch.stack([(64 * row[torch.arange(3) != y]).logsumexp(0) for row, y in zip(pairs, labels, strict=True)])
    assert float(later["threshold"]) == pytest.approx(float(rivals.mean()), rel=1e-5)
    assert (second >= first).all()
    assert float(second.sum()) > float(first.sum()) + 1
    _, after = loss.step(*batch(4)[:2], labels, later, learned=learned)
    assert torch.equal(after["threshold"], later["threshold"])
    with pytest.raises(ConfigError, match=r"init_state\(weight\)"):
        loss.init_state()


@pytest.mark.parametrize("name", STATEFUL)
def test_the_wrapper_carries_the_state_through_a_checkpoint(name: str) -> None:
    weight = batch()[1]
    one, whole = Stateful(LOSSES[name](), weight), Stateful(LOSSES[name](), weight)
    for seed in range(2):
        one(*batch(seed))
        whole(*batch(seed))
    two = Stateful(LOSSES[name](), weight)
    two.load_state_dict(one.state_dict())
    assert float(two(*batch(3))) == float(whole(*batch(3)))
    before = {key: it.clone() for key, it in two.state.items()}
    two.eval()(*batch(5))
    assert all(torch.equal(before[key], two.state[key]) for key in before)


def test_float64_inputs_do_not_change_the_type_of_the_state() -> None:
    features, weight, labels = batch()
    for name in STATEFUL:
        loss = LOSSES[name]()
        start = loss.init_state(weight)
        _, state = loss.step(
            features.double(), weight.double(), labels, start, learned=loss.init_learned(weight.double())
        )
        assert [it.dtype for it in state.values()] == [it.dtype for it in start.values()]
