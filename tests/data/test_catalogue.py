from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from sklearn.datasets import load_digits

from fedra.data import DATASETS, data_root, load, transform_for
from fedra.errors import ConfigError
from fedra.registry import fields


def test_data_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDRA_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.delenv("FEDRA_DATA")
    assert data_root().name == "data"
    assert "fedra" in data_root().parts


def test_unknown_names_and_values_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no data set 'cifar': did you mean 'cifar1"):
        load("cifar", root=tmp_path)
    with pytest.raises(ConfigError, match=r"no field 'test_fractoin': did you mean 'test_fraction'\?"):
        load("digits", test_fractoin=0.1)
    with pytest.raises(ConfigError, match="'mnist' has no field 'labels': it has none"):
        load("mnist", root=tmp_path, labels="fine")
    with pytest.raises(ConfigError, match=r"'test_fraction' of the data set 'digits' must be less than 1, got 1.5"):
        load("digits", test_fraction=1.5)


@pytest.mark.parametrize("name", list(DATASETS))
def test_every_loader_is_documented_and_its_defaults_are_valid(name: str) -> None:
    assert DATASETS.summary(name).endswith(".") or ":" in DATASETS.summary(name)
    for field in fields(DATASETS[name]).values():
        if not field.required:
            TypeAdapter(field.annotation).validate_python(field.default)


def test_importing_is_light() -> None:
    program = "import sys, fedra.data; print(*{'PIL', 'sklearn', 'scipy'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == ""


def test_digits_keep_every_image_and_scale_to_bytes() -> None:
    dataset = load("digits")
    assert (len(dataset.train), len(dataset.test), dataset.shape) == (1438, 359, (1, 8, 8))
    pixels = torch.cat([dataset.train.inputs, dataset.test.inputs]).numpy().reshape(-1, 64)
    source = load_digits().images.reshape(-1, 64)
    assert pixels.max() == 255
    # Back to 0..16 nothing is lost: the two hold the same images, in another order.
    restored = np.rint(pixels / 255 * 16)
    order = [np.lexsort(values.T) for values in (restored, source)]
    assert np.array_equal(restored[order[0]], source[order[1]])
    scaled = transform_for(dataset).prepare(dataset.train.inputs)
    assert scaled.mean().item() == pytest.approx(0, abs=0.02)
    assert scaled.std().item() == pytest.approx(1, abs=0.02)


def test_digits_split_is_stratified_and_fixed() -> None:
    first, second = load("digits", test_fraction=0.5), load("digits", test_fraction=0.5)
    assert torch.equal(first.test.inputs, second.test.inputs)
    difference = first.train.targets.bincount() - first.test.targets.bincount()
    assert difference.abs().max() <= 1


def nearest_mean_accuracy(name: str, **settings: object) -> float:
    dataset = load(name, **settings)
    look = transform_for(dataset, "none").prepare
    train, test = look(dataset.train.inputs).flatten(1), look(dataset.test.inputs).flatten(1)
    means = torch.stack([train[dataset.train.targets == c].mean(0) for c in range(len(dataset.classes))])
    return (torch.cdist(test, means).argmin(1) == dataset.test.targets).double().mean().item()


def test_synthetic_can_be_learned_and_noise_makes_it_harder() -> None:
    easy = nearest_mean_accuracy("synthetic", noise=0.5)
    hard = nearest_mean_accuracy("synthetic", noise=6.0)
    assert easy > 0.9
    assert 0.12 < hard < easy - 0.2
    assert nearest_mean_accuracy("synthetic", shape=(20,), classes=3) > 0.9


def test_synthetic_shapes_and_kinds() -> None:
    images = load("synthetic", examples=33, test_examples=7, classes=4, shape=[3, 9, 12])
    assert images.train.inputs.shape == (33, 3, 9, 12)
    assert images.train.inputs.dtype == torch.uint8
    assert images.train.targets.bincount().tolist() == [9, 8, 8, 8]
    vectors = load("synthetic", examples=33, shape=(5,))
    assert vectors.train.inputs.dtype == torch.float32
    assert vectors.mean is None
    assert torch.equal(transform_for(vectors).prepare(vectors.test.inputs), vectors.test.inputs)
    with pytest.raises(ConfigError, match=r"data\.shape must have at least one size"):
        load("synthetic", shape=())


def test_synthetic_is_a_function_of_its_seed_and_of_no_global_state() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (load("synthetic", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.train.inputs, same.train.inputs)
    assert not torch.equal(one.train.inputs, other.train.inputs)
    assert torch.equal(before, torch.random.get_rng_state())


def test_synthetic_groups_differ_by_a_shift() -> None:
    dataset = load("synthetic", groups=3, noise=0.1, classes=2, examples=600)
    assert dataset.groups is not None
    assert sorted(dataset.groups.unique().tolist()) == [0, 1, 2]
    look = transform_for(dataset).prepare(dataset.train.inputs)
    of_class = dataset.train.targets == 0
    means = [look[of_class & (dataset.groups == group)].mean(0) for group in range(3)]
    assert (means[0] - means[1]).square().mean() > 0.1
    assert load("synthetic").groups is None
