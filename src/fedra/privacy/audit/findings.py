"""The record of an audit: what each attack found, with chance levels and intervals, as JSON and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

OWN_RUNS = (
    "An audit attacks a model with the data that it was trained on. It is for your own runs: results and pictures may "
    "show people, and no guarantee of differential privacy covers them."
)
FLOOR = (
    "An attack that succeeds proves a leak; one that fails proves nothing, because a stronger one may succeed. Only "
    "the accountant's epsilon is an upper bound."
)


@dataclass(frozen=True)
class AuditFigure:
    """One figure of an attack.

    Args:
        name: What was measured.
        value: The value.
        low: Lower end of its 95 % interval.
        high: Upper end of its interval.
        chance: The value that an attack without any information reaches; None if there is none.
        count: Number of examples, people or canaries behind it.

    Example:
        >>> AuditFigure("AUC", 0.62, 0.58, 0.66, 0.5, 400).above_chance
        True
    """

    name: str
    value: float
    low: float
    high: float
    chance: float | None
    count: int

    @property
    def above_chance(self) -> bool:
        """Whether the whole interval is above chance."""
        return self.chance is not None and self.low > self.chance


@dataclass(frozen=True)
class Finding:
    """What one attack found.

    Args:
        attack: Name of the attack, such as "photographs".
        title: What was attacked, in a few words.
        figures: What it reached.
        controls: The same figures of a model or picture that cannot leak.
        reading: One sentence on how to read the figures.
        decisive: Name of the figure that says whether there is a leak.
        violation: Why the run's guarantee cannot hold; None if nothing contradicts it.
        pictures: Names of the files with pictures.
        notes: What was left out, and why.
        seconds: Duration of the attack.

    Example:
        >>> found = AuditFigure("AUC", 0.62, 0.58, 0.66, 0.5, 400)
        >>> Finding("photographs", "loss threshold", (found,), reading="", decisive="AUC").leaks
        True
    """

    attack: str
    title: str
    figures: tuple[AuditFigure, ...]
    controls: tuple[AuditFigure, ...] = ()
    reading: str = ""
    decisive: str = ""
    violation: str | None = None
    pictures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def leaks(self) -> bool:
        """Whether the deciding figure is above chance, and above the upper end of its control."""
        found = next((one for one in self.figures if one.name == self.decisive), None)
        control = next((one for one in self.controls if one.name == self.decisive), None)
        return found is not None and found.above_chance and (control is None or found.low > control.value)

    @property
    def verdict(self) -> str:
        """In a few words whether there is a leak, or what an attack on a mechanism says about its guarantee."""
        if not self.decisive:
            return "does not contradict the guarantee" if self.violation is None else "contradicts the guarantee"
        return "leaks" if self.leaks else "no leak found"

    def with_details(self, **changed: Any) -> Finding:
        """Return the finding with some fields changed.

        Args:
            **changed: Fields and their values.

        Returns:
            A new finding.
        """
        return replace(self, **changed)


@dataclass(frozen=True)
class Audit:
    """The result of `fedra.audit`.

    Args:
        run: Name of the run's folder.
        findings: What each attack found.
        skipped: Attacks that do not fit the run, with the reason.
        guarantee: The run's privacy statement; empty without differential privacy.
        settings: The settings of the audit.

    Returns:
        A result whose arguments are its attributes.

    Example:
        >>> audit = fedra.audit("runs/faces", attacks=["rows"])
        >>> audit.findings[0].leaks
    """

    run: str
    findings: tuple[Finding, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    guarantee: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def violations(self) -> tuple[str, ...]:
        """Why the run's guarantee cannot hold; empty if nothing contradicts it."""
        return tuple(one.violation for one in self.findings if one.violation is not None)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of audit.json.

        Returns:
            Plain values.
        """
        return {
            "run": self.run,
            "findings": [{**asdict(one), "leaks": one.leaks, "verdict": one.verdict} for one in self.findings],
            "skipped": dict(self.skipped),
            "guarantee": dict(self.guarantee),
            "settings": dict(self.settings),
            "violations": list(self.violations),
        }

    def as_markdown(self) -> str:
        """Return the content of audit.md.

        Returns:
            A page with one table per attack.
        """
        lines = [f"# Audit of {self.run}", "", OWN_RUNS, "", FLOOR, ""]
        for sentence in self.violations:
            lines += [f"**The guarantee does not hold: {sentence}**", ""]
        for one in self.findings:
            lines += _section(one)
        if self.skipped:
            lines += ["## Not run", "", *(f"- {name}: {reason}" for name, reason in self.skipped.items()), ""]
        return "\n".join(lines)


def _section(found: Finding) -> list[str]:
    lines = [f"## {found.attack}: {found.title}", "", f"{found.verdict.capitalize()}. {found.reading}", ""]
    lines += [
        "| figure | value | 95 % interval | chance | control | of |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in figure_rows(found)]
    lines += [""]
    lines += [f"![{found.title}]({name})" for name in found.pictures]
    lines += [""] * bool(found.pictures)
    lines += [f"- {note}" for note in found.notes]
    return [*lines, *[""] * bool(found.notes), f"Took {found.seconds:.0f} s.", ""]


def figure_rows(found: Finding) -> list[Sequence[str]]:
    """The rows of a table of a finding.

    Args:
        found: The finding.

    Returns:
        For each figure its name, value, interval, chance level, control and number of units.

    Example:
        >>> figure_rows(Finding("photographs", "", (AuditFigure("AUC", 0.6, 0.55, 0.65, 0.5, 100),)))
        [('AUC', '0.600', '0.550 to 0.650', '0.5', '', '100')]
    """
    controls = {one.name: one.value for one in found.controls}
    return [
        (
            one.name,
            f"{one.value:.3f}",
            f"{one.low:.3f} to {one.high:.3f}",
            "" if one.chance is None else f"{one.chance:.3g}",
            f"{controls[one.name]:.3f}" if one.name in controls else "",
            f"{one.count:,}",
        )
        for one in found.figures
    ]
