"""Your own network and data by name: `cd examples && fedra run own_model_and_data.toml`, or run this file."""

import sys
from pathlib import Path

from sklearn.datasets import load_breast_cancer
from torch import nn

import fedra


def net(shape: tuple[int, ...], classes: int, *, hidden: int = 32) -> nn.Module:
    """Any module from a batch to logits."""
    return nn.Sequential(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, classes))


def load(*, hospitals: int = 4) -> dict[str, object]:
    """Tumors of four made-up hospitals; a share of every class is held out for the test."""
    x, y = load_breast_cancer(return_X_y=True)
    return {"train_x": x, "train_y": y, "groups": [f"hospital {row % hospitals}" for row in range(len(y))]}


if __name__ == "__main__":
    result = fedra.run(Path(__file__).with_suffix(".toml"), overrides=[f"rounds={(sys.argv[1:] or ['20'])[0]}"])
    print(f"accuracy {result.summary['final_accuracy']:.1%}")
