"""Send every round to an experiment tracker: `python examples/log_to_tracker.py [ROUNDS]`."""

import sys

import fedra
from fedra.callbacks import Callback


class Track(Callback):
    """Any tracker with a `log(dict, step=)` will do: wandb.init(...), an mlflow wrapper, or, here, print."""

    def __init__(self, log):
        self.log = log

    def on_round_end(self, run, report):
        numbers = {name: value for name, value in report.metrics.items() if isinstance(value, int | float)}
        self.log(numbers, step=run.round)


def log(numbers, step):
    """Stands for the tracker."""
    print(f"step {step}: accuracy {numbers['accuracy']:.1%}, train loss {numbers['train_loss']:.3f}")


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    fedra.run({"rounds": rounds, "model": {"name": "mlp"}, "local": {"lr": 0.1}}, callbacks=[Track(log)])
