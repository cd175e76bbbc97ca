"""A model on MegaFace: rank-1 and TAR among a million distractors, as they are and cleaned of noise.

Kemelmacher-Shlizerman et al., CVPR 2016. Features come from a model and the folder's images, or from feature files in
the devkit's format, of whatever network.
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
from fedra.faces.metrics.collapse import collapse_warning, give_directions
from fedra.faces.metrics.megaface_rates import megaface
from fedra.models import Embedder

FARS = (1e-6, 1e-5, 1e-4, 1e-3)
"""The rates of false accepts that are told, as far as so many impostors can show them."""


@dataclass(frozen=True)
class Half:
    """The features (n, d) of probes or of distractors, their places (n,) in the list, and why none differ."""

    features: Tensor
    rows: Tensor
    collapsed: str | None


Source = Callable[[str, Sequence[str]], Half]
"""The features of the images of a half, named by their paths."""


def is_feature_folder(folder: Path) -> bool:
    """Whether a folder holds feature files of both halves."""
    return (folder / PROBES).is_dir() and (folder / DISTRACTORS).is_dir()


def evaluate_megaface(
    features: Embedder | Path,
    folder: Path | str,
    protocols: Sequence[Protocol] = (),
    *,
    seed: int = 0,
    console: Console | None = None,
) -> ModelEvaluation:
    """MegaFace by a model's features of the folder's images, or by those in a folder of feature files.

    With lists of noise the cleaned protocol is run as well; `seed` draws the noise of replaced probes.
    """
    folder = Path(folder)
    if wrong := [protocol for protocol in protocols if protocol != "megaface"]:
        raise ConfigError(f"the protocol '{wrong[0]}' does not go with a MegaFace folder: leave --protocol out")
    lists = read_megaface(folder)
    _check_people(lists)  # before the images, which take hours
    cleaned = _cleanable(lists, torch.arange(len(lists.probes)), torch.arange(len(lists.distractors)), console)
    source = _of_files(features, console) if isinstance(features, Path) else _of_model(features, folder, console)
    probes, distractors = source(PROBES, lists.probes), source(DISTRACTORS, lists.distractors)
    if probes.collapsed is not None:
        outcome = collapsed_result("megaface", probes.collapsed, len(probes.rows))
        return ModelEvaluation(folder.resolve().name, "MegaFace", {"megaface": outcome}, str(folder.resolve()))
    people = Subjects(probes.features, lists.people[probes.rows])
    found = {"": _found("MegaFace", people, distractors.features, None, console)}
    if cleaned and _cleanable(lists, probes.rows, distractors.rows, console):
        assert lists.noisy_probes is not None, "there is noise to clean"
        assert lists.noisy_distractors is not None, "there is noise to clean"
        clean = clean_probes(people, lists.noisy_probes[probes.rows], generator(seed, "megaface"))
        removed = lists.noisy_distractors[distractors.rows]
        found["cleaned "] = _found("MegaFace, cleaned", clean, distractors.features, removed, console)
    outcome = _outcome(lists, probes, distractors, found)
    return ModelEvaluation(folder.resolve().name, "MegaFace", {"megaface": outcome}, str(folder.resolve()))


def _check_people(lists: MegaFaceLists) -> None:
    if len(torch.unique(lists.people)) == len(lists.people):
        raise DataError(f"nobody has two images in {PROBES}_lst: MegaFace needs one to search by and one to find")


def _cleanable(lists: MegaFaceLists, probes: Tensor, distractors: Tensor, console: Console | None) -> bool:
    """Whether some rows of the lists can be cleaned; where only those without noise are missing, this is told."""
    if lists.noisy_probes is None or lists.noisy_distractors is None:
        return False
    people, noisy = lists.people[probes], lists.noisy_probes[probes]
    lost = probes[noisy & ~torch.isin(people, people[~noisy])]
    reason = None
    if len(lost):
        person = PurePosixPath(lists.probes[int(lost[0])]).parent.name
        reason = f"'{person}' has no usable probe image that is not in {PROBES}_noises.txt"
    elif bool(lists.noisy_distractors[distractors].all()):
        reason = f"no usable distractor is left that is not in {DISTRACTORS}_noises.txt"
    tell(console, reason and f"the cleaned protocol is left out, because {reason}")
    return reason is None


def _outcome(lists: MegaFaceLists, probes: Half, distractors: Half, found: dict[str, MegaFace]) -> ProtocolResult:
    table = {"probes": f"{len(probes.rows):,}", "distractors": f"{len(distractors.rows):,}"}
    figures: dict[str, object] = {
        "probes": len(probes.rows),
        "distractors": len(distractors.rows),
        "unreadable": len(lists.probes) + len(lists.distractors) - len(probes.rows) - len(distractors.rows),
    }
    for kind, result in found.items():
        table |= {f"{kind}rank 1": f"{result.rank_1:.2%}", **points(f"{kind}TAR", "FAR", result.points)}
        figures[kind.strip() or "raw"] = result.figures()
    return ProtocolResult(figures, table)


def _found(
    title: str, probes: Subjects, distractors: Tensor, removed: Tensor | None, console: Console | None
) -> MegaFace:
    impostors = len(probes) * len(distractors)
    fars = [far for far in FARS if far * impostors >= 1]
    with steps(console, title, impostors) as done:
        return megaface(probes, distractors, fars, removed=removed, done=done)


def _of_model(embedder: Embedder, folder: Path, console: Console | None) -> Source:
    def embedded(half: str, images: Sequence[str]) -> Half:
        base = folder / f"{half}_images"
        if not base.is_dir():
            raise DataError(f"there is no folder '{base}': put the aligned images of {half}_lst there")
        found = embed_files(embedder, [base / name for name in images], half, console)
        return Half(found.features, found.rows, found.collapsed)

    return embedded


def _of_files(features: Path, console: Console | None) -> Source:
    """Feature files as the devkit lays them out: facescrub/PERSON/IMAGE_ALGORITHM.bin, megaface/A/B/IMAGE_..."""

    def read(half: str, images: Sequence[str]) -> Half:
        depth = 2 if half == PROBES else 3
        algorithm = _algorithm(features, half, images[0], depth)
        paths = [features / half / f"{'/'.join(PurePosixPath(name).parts[-depth:])}_{algorithm}.bin" for name in images]
        with steps(console, f"reading features of {half}", len(paths)) as done:
            table, _, collapsed = give_directions(read_features(paths, done=done))
        tell(console, None if collapsed is None else collapse_warning(collapsed))
        return Half(table, torch.arange(len(paths)), collapsed)

    return read


def _algorithm(features: Path, half: str, image: str, depth: int) -> str:
    """The last part of the names of a network's feature files, found by the first image's."""
    own = PurePosixPath(*PurePosixPath(image).parts[-depth:])
    found = sorted((features / half / own.parent).glob(f"{own.name}_*.bin"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise DataError(
            f"'{features / half / own.parent}' must hold one feature file of the image '{own.name}', such as "
            f"{own.name}_mine.bin, and holds {names}: check the folder, and keep one network's features in it"
        )
    return found[0].name.removeprefix(f"{own.name}_").removesuffix(".bin")
