"""Whether the false-accept statement of `fedra faces identify` holds for people who are not enrolled.

Many random divisions of people into those a threshold is calibrated on, those who are enrolled and unknown people (all
others, so that the measured rate is nearly exact). Printed are the mean of the stated rate, the mean of the measured
one, and how often the stated 95 % interval holds the measured rate. The control is the threshold of pairs on templates,
which `identify` must not use.

    python benchmarks/false_accepts.py                            # made-up embeddings, a minute
    python benchmarks/false_accepts.py --embeddings people.npz    # `features` (N, d) and `labels` (N,) of real photos
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedra.faces.recognition.choose_threshold import calibrate_people
from fedra.faces.recognition.thresholds import Decision

ENROLLED = 3
"""Photos of an enrolled person."""


@dataclass
class Tally:
    """The rates of all divisions."""

    stated: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    naive: list[float] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)


def draw_people(people: int, photos: int, seed: int) -> tuple[Tensor, Tensor]:
    """Embeddings of people who differ in few directions and whose photos differ in many, as those of faces do."""
    draw = torch.Generator().manual_seed(seed)
    centers = torch.cat([torch.randn(people, 10, generator=draw), torch.zeros(people, 30)], dim=1)
    features = centers.repeat_interleave(photos, dim=0) + 0.5 * torch.randn(people * photos, 40, generator=draw)
    return features, torch.arange(people).repeat_interleave(photos)


def read_people(path: str) -> tuple[Tensor, Tensor]:
    with np.load(path, allow_pickle=False) as file:
        return torch.from_numpy(file["features"]).float(), torch.from_numpy(file["labels"]).long()


def divide(
    features: Tensor, people: Tensor, calibrated: int, enrolled: int, far: float, random: np.random.Generator
) -> tuple[Decision, Tensor, Tensor]:
    """Calibrate on some people, enroll others, and return the decision, the templates and the photos of all others."""
    counts = torch.bincount(people)
    able = np.flatnonzero((counts >= ENROLLED + 1).numpy())
    order = random.permutation(able)
    known, gallery = order[:calibrated], order[calibrated : calibrated + enrolled]
    used = torch.isin(people, torch.from_numpy(known))
    decision = calibrate_people(features[used], people[used], far, fingerprint="benchmark", data="benchmark")
    templates = torch.stack([features[people == int(person)][:ENROLLED].sum(dim=0) for person in gallery])
    others = ~torch.isin(people, torch.from_numpy(np.concatenate([known, gallery])))
    return decision, templates, features[others]


def measure(features: Tensor, people: Tensor, divisions: int, calibrated: int, enrolled: int, far: float) -> Tally:
    random, tally = np.random.default_rng(0), Tally()
    for _ in range(divisions):
        decision, templates, unknown = divide(features, people, calibrated, enrolled, far, random)
        scores = torch.nn.functional.normalize(unknown) @ torch.nn.functional.normalize(templates).T
        best = scores.max(dim=1).values
        rate = decision.gallery_rate([ENROLLED] * enrolled)
        if rate is None or rate.low is None or rate.high is None:
            continue
        measured = float((best >= decision.at(ENROLLED).value).double().mean())
        tally.stated.append(rate.value)
        tally.measured.append(measured)
        tally.naive.append(float((best >= decision.value).double().mean()))
        tally.widths.append(rate.high - rate.low)
        tally.held.append(rate.low <= measured <= rate.high)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embeddings", help=".npz file with features (N, d) and labels (N,)")
    parser.add_argument("--divisions", type=int, default=200)
    parser.add_argument("--calibrated", type=int, default=80, help="people to calibrate on")
    parser.add_argument("--enrolled", type=int, default=30, help="people in the gallery")
    parser.add_argument("--far", type=float, default=1e-3)
    given = parser.parse_args()
    features, people = draw_people(800, 5, 0) if given.embeddings is None else read_people(given.embeddings)
    torch.set_num_threads(1)
    tally = measure(features, people, given.divisions, given.calibrated, given.enrolled, given.far)
    if not tally.held:
        raise SystemExit("no division has an interval: raise --far or --calibrated")
    print(f"{len(tally.held)} divisions with an interval of {given.divisions}; {len(people):,} photos")
    print(f"stated rate           {np.mean(tally.stated):.4f}")
    print(f"measured rate         {np.mean(tally.measured):.4f}")
    print(f"with pairs' threshold {np.mean(tally.naive):.4f}")
    print(f"interval holds it     {np.mean(tally.held):.1%}, mean width {np.mean(tally.widths):.4f}")


if __name__ == "__main__":
    main()
