"""Face backbones trained as stacks: PReLU, depth-wise kernels, running statistics, and the refusal of dropout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_stacked import LOCAL, apart

from fedra.algorithms import fedprox
from fedra.core.job import Job
from fedra.core.model import Model
from fedra.errors import ConfigError
from fedra.models import build
from toy import CLASSES, clients


def work(name: str, settings: dict[str, Any]) -> Job:
    shape = (1, 16, 16)
    module = build(name, shape, CLASSES, seed=1, **settings).double()
    local = replace(LOCAL, lr=0.01, epochs=1, batch=6)
    return Job(
        algorithm=fedprox(mu=0.1),
        model=Model(module),
        clients=clients(shape, sizes=(12, 7, 10)),
        local=local,
        classes=CLASSES,
        seed=7,
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mobilefacenet", {"width": 0.1, "embedding": 8}),
        ("mobilefacenet", {"width": 0.1, "embedding": 8, "norm": "group"}),
        ("iresnet-tiny", {"width": 4, "embedding": 8}),
        ("ghostfacenet", {"width": 0.25, "embedding": 8}),
        ("sphere20", {"width": 4, "embedding": 8}),
    ],
    ids=["mobilefacenet", "mobilefacenet-group", "iresnet", "ghostfacenet", "sphere20"],
)
def test_face_models_train_as_in_sequence(name: str, settings: dict[str, Any]) -> None:
    assert apart(work(name, settings), ((0, 1, 2),)) < 1e-8  # the second client's last batch has one example


def test_dropout_cannot_be_stacked() -> None:
    with pytest.raises(ConfigError, match=r"the model's layer 'body\.dropout' \(Dropout\) cannot be stacked"):
        apart(work("iresnet-tiny", {"width": 4, "embedding": 8, "dropout": 0.4}), ((0, 1, 2),))
