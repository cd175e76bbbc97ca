"""Curvature and loss landscapes of finished runs, as tables, files and plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fedra.analysis.curvature import Curvature, curvature_steps, measure_curvature
from fedra.analysis.global_loss import GlobalLoss
from fedra.analysis.landscape import Landscape, measure_landscape, random_directions
from fedra.console import steps as show_steps
from fedra.errors import ConfigError
from fedra.experiment.trained_run import check_split, open_trained_run, sample_examples
from fedra.reports.comparison import titles
from fedra.storage.run_folder import RunFolder
from fedra.writing import FORMATS, write_json

PLANES = ("both", "eigenvectors", "random", "none")
EIGENVECTORS = ("first eigenvector", "second eigenvector")
RANDOM = ("first random direction", "second random direction")


@dataclass(frozen=True)
class RunCurvature:
    """The curvature of one run, and its landscapes by the kind of plane.

    Args:
        run: Folder of the run.
        curvature: The eigenvalues, the trace and the density.
        landscapes: The loss on planes: `eigenvectors` and `random`.

    Example:
        ```python
        found = analyze_curvature(["runs/fedavg"], "curvature")["fedavg"]
        print(found.curvature.metrics(), found.landscapes["random"].values)
        ```
    """

    run: Path
    curvature: Curvature
    landscapes: dict[str, Landscape]


def analyze_curvature(
    runs: Sequence[Path | str],
    out: Path | str | None = None,
    *,
    split: str = "train",
    examples: int = 1000,
    top: int = 5,
    probes: int = 4,
    steps: int = 20,
    planes: str = "both",
    points: int = 15,
    radius: float = 0.5,
    random_radius: float = 1.0,
    picture: str = "svg",
    seed: int = 0,
    device: str | None = None,
    trust: bool = False,
    console: Console | None = None,
) -> dict[str, RunCurvature]:
    """Measure the curvature of the global models of runs, and the loss on planes through them.

    Args:
        runs: Folders of finished runs.
        out: Folder for curvature.json, .csv files and plots. Defaults to no files.
        split: "train" for the training examples of all clients, or "test".
        examples: Largest number of examples of the loss; more are sampled by the seed, the same for runs on one data
            set.
        top: Number of eigenvalues, at least 5 for the ratio of the first to the fifth.
        probes: Number of random vectors for the trace and the density.
        steps: Lanczos steps per random vector.
        planes: "eigenvectors" (the two of the largest eigenvalues), "random" (normalized by filter), "both" or "none".
        points: Points of a plane along each direction, an odd number.
        radius: Largest offset along a unit eigenvector.
        random_radius: Largest offset along a random direction; at 1, every filter is moved by its own length.
        picture: Format of the plots: svg, png or pdf.
        seed: Seed of all random draws.
        device: Device to run on; those of the runs if None.
        trust: Whether to import the functions that runs name as `module:function`.
        console: Where progress is shown.

    Returns:
        The measurements by the name of each run in the plots.

    Raises:
        ConfigError: If a setting is out of range, or a layer has no second derivative.

    Example:
        ```python
        found = analyze_curvature(["runs/fedavg", "runs/fedsol"], "curvature", examples=500)
        ```
    """
    if not runs:
        raise ConfigError("runs must have at least one folder, got none")
    if planes not in PLANES:
        raise ConfigError(f"planes must be one of {', '.join(PLANES)}, got '{planes}'")
    if picture not in FORMATS:
        raise ConfigError(f"the format of plots must be one of {', '.join(FORMATS)}, got '{picture}'")
    if planes in ("both", "eigenvectors") and top < 2:
        raise ConfigError(f"top must be at least 2 for a plane of eigenvectors, got {top}")
    check_split(split)
    found = {}
    kinds = {"both": ("eigenvectors", "random"), "none": ()}.get(planes, (planes,))
    for name, run in zip(titles([RunFolder(run) for run in runs]), runs, strict=True):
        # Half precision would drown the products in rounding, and a compiled pass has no second derivative.
        opened = open_trained_run(run, device=device, trust=trust, settings={"precision": "float32", "compile": False})
        job = opened.built.job
        loss = GlobalLoss(job.model, opened.weights, sample_examples(job, split, examples, seed))
        with show_steps(console, f"curvature of {name}", curvature_steps(top, probes, steps)) as done:
            curvature = measure_curvature(loss, top=top, probes=probes, steps=steps, seed=seed, done=done)
        landscapes = {}
        for kind in kinds:
            first, second = random_directions(loss, seed=seed) if kind == "random" else curvature.eigenvectors[:2]
            reach, axes = (random_radius, RANDOM) if kind == "random" else (radius, EIGENVECTORS)
            with show_steps(console, f"landscape of {name} ({kind})", points**2) as done:
                landscapes[kind] = measure_landscape(
                    loss, first, second, radius=reach, points=points, axes=axes, done=done
                )
        found[name] = RunCurvature(Path(run), curvature, landscapes)
    if out is not None:
        _write(found, Path(out), picture, {"split": split, "seed": seed, "probes": probes, "steps": steps})
    return found


def _write(found: dict[str, RunCurvature], out: Path, picture: str, settings: dict[str, Any]) -> None:
    from fedra.pictures import save_numbers  # matplotlib is slow to import and only needed here
    from fedra.reports.curvature_plots import draw_density, draw_eigenvalues, draw_landscapes

    metrics = {name: {"run": str(one.run)} | one.curvature.metrics() for name, one in found.items()}
    write_json(out / "curvature.json", settings | {"runs": metrics})
    rows = [
        {"name": name} | {key: value for key, value in row.items() if key != "eigenvalues"}
        for name, row in metrics.items()
    ]
    save_numbers(out / "curvature.csv", rows)
    curvatures = {name: one.curvature for name, one in found.items()}
    draw_eigenvalues(curvatures, out / f"eigenvalues.{picture}")
    draw_density(curvatures, out / f"density.{picture}")
    for kind in next(iter(found.values())).landscapes:
        planes = {name: one.landscapes[kind] for name, one in found.items()}
        draw_landscapes(planes, out / f"landscape-{kind}.{picture}")
