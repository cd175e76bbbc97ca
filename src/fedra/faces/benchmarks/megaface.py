"""Evaluate a model on MegaFace: rank-1 and TAR with up to a million distractors, raw and cleaned of label noise.

Kemelmacher-Shlizerman et al., CVPR 2016. Features come from a model and the images of the folder, or from feature files
in the devkit's format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from rich.console import Console
from torch import Tensor

from fedra.console import steps, tell
from fedra.core.random import generator
from fedra.errors import ConfigError, DataError
from fedra.evaluation.results import ModelEvaluation, Protocol, ProtocolResult
from fedra.faces.benchmarks.many_images import embed_files
from fedra.faces.benchmarks.megaface_lists import DISTRACTORS, PROBES, MegaFaceLists, read_megaface
from fedra.faces.benchmarks.protocols import collapsed_result, points
from fedra.faces.metrics import MegaFace, Subjects, clean_probes, read_features
from fedra.faces.metrics.collapse import collapse_warning, separate_zero_embeddings
from fedra.faces.metrics.megaface_rates import megaface
from fedra.models import Embedder

FARS = (1e-6, 1e-5, 1e-4, 1e-3)
"""The false accept rates to report, if there are enough impostors to measure them."""


@dataclass(frozen=True)
class Half:
    """Features (n, d) of probes or distractors, their indices (n,) in the list, and the reason if they collapsed."""

    features: Tensor
    rows: Tensor
    collapsed: str | None


Source = Callable[[str, Sequence[str]], Half]
"""Returns the features of probes or distractors, given the paths of the images."""


def is_feature_folder(folder: Path) -> bool:
    """Return whether a folder contains feature files of probes and distractors."""
    return (folder / PROBES).is_dir() and (folder / DISTRACTORS).is_dir()


def evaluate_megaface(
    features: Embedder | Path,
    folder: Path | str,
    protocols: Sequence[Protocol] = (),
    *,
    seed: int = 0,
    console: Console | None = None,
) -> ModelEvaluation:
    """Run MegaFace with a model on the images of the folder, or with a folder of feature files.

    If the folder has noise lists, the cleaned protocol is run too; `seed` determines the noise of replaced probes.
    """
    folder = Path(folder)
    if wrong := [protocol for protocol in protocols if protocol != "megaface"]:
        raise ConfigError(f"protocol must be 'megaface' for a MegaFace folder, got '{wrong[0]}': omit --protocol")
    lists = read_megaface(folder)
    _check_people(lists)  # before the hours of embedding
    cleaned = _can_clean(lists, torch.arange(len(lists.probes)), torch.arange(len(lists.distractors)), console)
    source = _file_source(features, console) if isinstance(features, Path) else _model_source(features, folder, console)
    probes, distractors = source(PROBES, lists.probes), source(DISTRACTORS, lists.distractors)
    if probes.collapsed is not None:
        outcome = collapsed_result("megaface", probes.collapsed, len(probes.rows))
        return ModelEvaluation(folder.resolve().name, "MegaFace", {"megaface": outcome}, str(folder.resolve()))
    people = Subjects(probes.features, lists.people[probes.rows])
    found = {"": _measure("MegaFace", people, distractors.features, None, console)}
    if cleaned and _can_clean(lists, probes.rows, distractors.rows, console):
        assert lists.noisy_probes is not None, "noise lists were read"
        assert lists.noisy_distractors is not None, "noise lists were read"
        clean = clean_probes(people, lists.noisy_probes[probes.rows], generator(seed, "megaface"))
        removed = lists.noisy_distractors[distractors.rows]
        found["cleaned "] = _measure("MegaFace, cleaned", clean, distractors.features, removed, console)
    outcome = _make_result(lists, probes, distractors, found)
    return ModelEvaluation(folder.resolve().name, "MegaFace", {"megaface": outcome}, str(folder.resolve()))


def _check_people(lists: MegaFaceLists) -> None:
    if len(torch.unique(lists.people)) == len(lists.people):
        raise DataError(f"at least one person must have two images in {PROBES}_lst, got none: check the list")


def _can_clean(lists: MegaFaceLists, probes: Tensor, distractors: Tensor, console: Console | None) -> bool:
    """Return whether the given rows can be cleaned; if too few images without noise remain, report it."""
    if lists.noisy_probes is None or lists.noisy_distractors is None:
        return False
    people, noisy = lists.people[probes], lists.noisy_probes[probes]
    lost = probes[noisy & ~torch.isin(people, people[~noisy])]
    reason = None
    if len(lost):
        person = PurePosixPath(lists.probes[int(lost[0])]).parent.name
        reason = f"'{person}' has no usable probe image that is not in {PROBES}_noises.txt"
    elif bool(lists.noisy_distractors[distractors].all()):
        reason = f"all usable distractors are in {DISTRACTORS}_noises.txt"
    tell(console, reason and f"the cleaned protocol is skipped, because {reason}")
    return reason is None


def _make_result(lists: MegaFaceLists, probes: Half, distractors: Half, found: dict[str, MegaFace]) -> ProtocolResult:
    table = {"probes": f"{len(probes.rows):,}", "distractors": f"{len(distractors.rows):,}"}
    metrics: dict[str, object] = {
        "probes": len(probes.rows),
        "distractors": len(distractors.rows),
        "unreadable": len(lists.probes) + len(lists.distractors) - len(probes.rows) - len(distractors.rows),
    }
    for kind, result in found.items():
        table |= {f"{kind}rank 1": f"{result.rank_1:.2%}", **points(f"{kind}TAR", "FAR", result.points)}
        metrics[kind.strip() or "raw"] = result.metrics()
    return ProtocolResult(metrics, table)


def _measure(
    title: str, probes: Subjects, distractors: Tensor, removed: Tensor | None, console: Console | None
) -> MegaFace:
    impostors = len(probes) * len(distractors)
    fars = [far for far in FARS if far * impostors >= 1]
    with steps(console, title, impostors) as done:
        return megaface(probes, distractors, fars, removed=removed, done=done)


def _model_source(embedder: Embedder, folder: Path, console: Console | None) -> Source:
    def embed(half: str, images: Sequence[str]) -> Half:
        base = folder / f"{half}_images"
        if not base.is_dir():
            raise DataError(f"the folder '{base}' does not exist: put the aligned images of {half}_lst there")
        found = embed_files(embedder, [base / name for name in images], half, console)
        return Half(found.features, found.rows, found.collapsed)

    return embed


def _file_source(features: Path, console: Console | None) -> Source:
    """Read feature files laid out as by the devkit: facescrub/PERSON/IMAGE_ALGORITHM.bin, megaface/A/B/IMAGE_..."""

    def read(half: str, images: Sequence[str]) -> Half:
        depth = 2 if half == PROBES else 3
        algorithm = _algorithm(features, half, images[0], depth)
        paths = [features / half / f"{'/'.join(PurePosixPath(name).parts[-depth:])}_{algorithm}.bin" for name in images]
        with steps(console, f"reading features of {half}", len(paths)) as done:
            table, _, collapsed = separate_zero_embeddings(read_features(paths, done=done))
        tell(console, None if collapsed is None else collapse_warning(collapsed))
        return Half(table, torch.arange(len(paths)), collapsed)

    return read


def _algorithm(features: Path, half: str, image: str, depth: int) -> str:
    """Return the suffix of the names of the feature files, found at the first image."""
    own = PurePosixPath(*PurePosixPath(image).parts[-depth:])
    found = sorted((features / half / own.parent).glob(f"{own.name}_*.bin"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise DataError(
            f"'{features / half / own.parent}' must contain one feature file of the image '{own.name}', such as "
            f"{own.name}_mine.bin, got {names}: give a folder with the features of one network"
        )
    return found[0].name.removeprefix(f"{own.name}_").removesuffix(".bin")
