"""The epsilon that canaries measure next to the accountant's, and with the clip broken on purpose.

python benchmarks/canaries.py
"""

from __future__ import annotations

import sys
from unittest import mock

import torch

from fedra.experiment.auditing import mechanism_attack
from fedra.experiment.auditing.mechanism_attack import run_client_canaries, run_example_canaries
from fedra.parts.private import PrivateMean
from fedra.parts.private_gradient import PrivateGradient
from fedra.privacy.accounting import Mechanism
from fedra.privacy.audit.canaries import CanaryScores, judge_canaries
from fedra.privacy.client_level import ClipAndNoise

SETTINGS = ((1.0, 8.0, 50, 1e-5), (1.0, 2.0, 20, 1e-5), (0.1, 1.0, 100, 1e-3))
"""Sampling rate, noise, releases and delta."""


def loosened(**numbers: float) -> ClipAndNoise:
    """The mechanism with three times its clip norm and the noise of the right one."""
    return ClipAndNoise(**{**numbers, "clip": 3 * numbers["clip"], "noise": numbers["noise"] / 3})  # type: ignore[arg-type]


def clients(rate: float, noise: float, releases: int) -> CanaryScores:
    return run_client_canaries(PrivateMean(noise=noise, clip=1.0), releases, rate)


def examples(rate: float, noise: float, releases: int) -> CanaryScores:
    return run_example_canaries(PrivateGradient(noise=noise, clip=1.0, batch=10), releases, rate)


def unclipped(self: PrivateGradient, total: dict, gradients: dict, real: object, functional: bool) -> dict:
    return {name: total[name] + value.sum(dim=0) for name, value in gradients.items()}


def main() -> int:
    torch.set_num_threads(1)
    breaks = {
        "client": (clients, mock.patch.object(mechanism_attack, "ClipAndNoise", loosened)),
        "example": (examples, mock.patch.object(PrivateGradient, "_add", unclipped)),
    }
    print("| level | q | noise | releases | delta | accountant | measured | at least (95 %) | clip broken, measured |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for level, (run, broken) in breaks.items():
        for rate, noise, releases, delta in SETTINGS:
            accounted = Mechanism(noise, rate).epsilon(releases, delta)
            right = judge_canaries(run(rate, noise, releases), accounted, delta, level)
            with broken:
                wrong = judge_canaries(run(rate, noise, releases), accounted, delta, level)
            _, measured, bound = right.figures
            found = "found" if wrong.violation else "missed"
            interval = f"{measured.value:.2f} ({measured.low:.2f} to {measured.high:.2f})"
            setting = f"{level} | {rate:g} | {noise:g} | {releases} | {delta:g} | {accounted:.2f}"
            print(f"| {setting} | {interval} | {bound.value:.2f} | {wrong.figures[1].value:.2f}, {found} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
