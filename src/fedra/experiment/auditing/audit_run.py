"""`fedra.audit`: attack a finished run of your own, and write what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from fedra.console import choose_console, tell
from fedra.errors import ConfigError, nearest
from fedra.experiment.auditing.audit_target import AuditSettings, AuditTarget, UnfitAttack, open_target
from fedra.experiment.auditing.face_attacks import attack_people, attack_rows
from fedra.experiment.auditing.mechanism_attack import attack_mechanism, attack_own_canaries
from fedra.experiment.auditing.photo_attack import attack_by_threshold, match_pairs
from fedra.experiment.auditing.shadow_runs import attack_by_shadows
from fedra.experiment.auditing.upload_attack import attack_uploads
from fedra.privacy.audit.audit_pictures import (
    draw_canaries,
    draw_membership,
    draw_people,
    draw_rows,
    draw_uploads,
)
from fedra.privacy.audit.findings import OWN_RUNS, Audit, Finding
from fedra.storage.claims import claim
from fedra.writing import write_atomically, write_json

Attack = Callable[[AuditTarget], Iterator[Finding]]


def audit(
    run: Path | str,
    *,
    out: Path | str | None = None,
    attacks: Sequence[str] = (),
    examples: int = 1000,
    shadows: int = 0,
    minutes: float = 15.0,
    people: int = 10,
    images: int = 4,
    steps: int = 200,
    seed: int = 0,
    device: str | None = None,
    trust: bool = False,
    console: Console | None = None,
) -> Audit:
    """Attack a finished run of your own: what its model, its class vectors and its uploads reveal.

    It needs the run's folder and its data, and is for your own runs: other people's model files are refused. Results
    and pictures may show people, so their folder is readable by its owner alone.

    Args:
        run: The run's folder.
        out: Folder for audit.json, audit.md and pictures; `audit` in the run's folder by default.
        attacks: Names of the attacks: "photographs", "people", "rows", "uploads", "mechanism". By default all that fit
            the run.
        examples: Largest number of training photographs whose membership is tested.
        shadows: Number of shadow runs for LiRA, an even number; 0 leaves it out. Each takes as long as the run.
        minutes: Time limit of all shadow runs; no shadow run starts that would exceed it.
        people: Number of class vectors to invert.
        images: Number of images to reconstruct from uploads.
        steps: Gradient steps of a picture.
        seed: Seed of the attacks.
        device: Device to run on; that of the run's configuration if None.
        trust: Whether to import the functions that the run names as `module:function`.
        console: Where progress is shown; standard error if it is a terminal, by default.

    Returns:
        What each attack found. `violations` is not empty if the run's privacy guarantee cannot hold.

    Example:
        >>> audit = fedra.audit("runs/faces", attacks=["rows"], people=5)
        >>> audit.findings[0].leaks
    """
    chosen = _choose(attacks)
    settings = AuditSettings(
        examples=_positive("examples", examples),
        shadows=shadows,
        minutes=minutes,
        people=_positive("people", people),
        images=_positive("images", images),
        steps=_positive("steps", steps),
        seed=seed,
    )
    if shadows and (shadows < 2 or shadows % 2):
        raise ConfigError(f"shadows must be 0 or an even number of shadow runs, got {shadows}")
    shown = choose_console(console)
    target = open_target(run, out, settings, device, trust, shown)
    tell(shown, OWN_RUNS)
    target.out.mkdir(parents=True, exist_ok=True, mode=0o700)
    findings: list[Finding] = []
    skipped: dict[str, str] = {}
    for name in chosen:
        began = time.monotonic()
        try:
            for found in ATTACKS[name](target):
                findings.append(found.with_details(seconds=time.monotonic() - began))
                began = time.monotonic()
        except UnfitAttack as error:
            if attacks:
                raise ConfigError(f"the attack '{name}' must fit the run: {error}") from None
            skipped[name] = str(error)
    result = Audit(
        target.folder.path.resolve().name,
        tuple(findings),
        skipped,
        target.guarantee,
        {"examples": examples, "shadows": shadows, "people": people, "images": images, "steps": steps, "seed": seed},
    )
    _write(target, result)
    return result


def _choose(attacks: Sequence[str]) -> list[str]:
    for name in attacks:
        if name not in ATTACKS:
            raise ConfigError(f"attacks must be known, got '{name}': {nearest(name, ATTACKS)}")
    return [name for name in ATTACKS if not attacks or name in attacks]


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{name} must be at least 1, got {value}")
    return value


def _photographs(target: AuditTarget) -> Iterator[Finding]:
    pairs = match_pairs(target)
    found, curves = attack_by_threshold(target, pairs)
    picture = "audit-photographs.svg"
    if not target.settings.shadows:
        draw_membership(curves, target.photograph_bound, target.out / picture)
        yield found.with_details(pictures=(picture,))
        return
    yield found
    second, more = attack_by_shadows(target, pairs)
    draw_membership(curves | more, target.photograph_bound, target.out / picture)
    yield second.with_details(pictures=(picture,))


def _people(target: AuditTarget) -> Iterator[Finding]:
    findings, tests = attack_people(target)
    draw_people(tests, target.out / "audit-people.svg")
    yield from findings[:-1]
    yield findings[-1].with_details(pictures=("audit-people.svg",))


def _rows(target: AuditTarget) -> Iterator[Finding]:
    found, shown = attack_rows(target)
    path = target.out / "audit-rows.png"
    draw_rows(shown.start, shown.found, shown.photographs, shown.ranks, shown.candidates, path)
    yield found.with_details(pictures=(path.name,))


def _uploads(target: AuditTarget) -> Iterator[Finding]:
    findings, shown = attack_uploads(target)
    draw_uploads(shown.truth, shown.found, shown.quality, target.out / "audit-uploads.png")
    yield from findings[:-1]
    yield findings[-1].with_details(pictures=("audit-uploads.png",))


def _mechanism(target: AuditTarget) -> Iterator[Finding]:
    found, scores = attack_mechanism(target)
    draw_canaries(scores, target.out / "audit-mechanism.svg")
    yield found.with_details(pictures=("audit-mechanism.svg",))
    yield from attack_own_canaries(target)


ATTACKS: Mapping[str, Attack] = {
    "photographs": _photographs,
    "people": _people,
    "rows": _rows,
    "uploads": _uploads,
    "mechanism": _mechanism,
}
"""The attacks by name, in the order in which they run."""


def _write(target: AuditTarget, result: Audit) -> None:
    """Write audit.json and audit.md."""
    names = ["audit.json", "audit.md", *(name for one in result.findings for name in one.pictures)]
    if target.out.parent == target.folder.path:
        claim(target.folder.path, *(f"{target.out.name}/{name}" for name in names))
    write_json(target.out / "audit.json", result.as_dict(), private=True)
    write_atomically(target.out / "audit.md", result.as_markdown().encode(), private=True)
