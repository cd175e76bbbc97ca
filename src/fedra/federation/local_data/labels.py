"""Agreed labels: a site's folder names become the numbers of the plan's classes; training knows the numbers alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedra.errors import DataError, nearest

LEFT_OUT = ""
"""What a folder is mapped to if its images are left out."""


def map_labels(folders: Iterable[str], agreed: Sequence[str], mapping: Mapping[str, str]) -> dict[str, int | None]:
    """Map the names of a site's folders to the numbers of the agreed classes.

    Args:
        folders: The site's names.
        agreed: The plan's names, whose order gives the numbers.
        mapping: The site's `[data.labels]`: its names and the agreed ones, or "" to leave a folder out.

    Returns:
        The number of every folder, None for those that are left out.
    """
    number = {name: index for index, name in enumerate(agreed)}
    folders = list(dict.fromkeys(folders))
    for name, target in mapping.items():
        if target != LEFT_OUT and target not in number:
            raise DataError(
                f"data.labels must map to agreed classes or \"\", got '{name}' = '{target}': {nearest(target, number)}"
            )
        if name not in folders:
            raise DataError(
                f"data.labels must name folders of the data, got '{name}', which is not there: {nearest(name, folders)}"
            )
    unknown = [name for name in folders if name not in number and name not in mapping]
    if unknown:
        first = unknown[0]
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        hint = nearest(first, number)
        end = "" if hint.endswith("?") else "."
        raise DataError(
            f"folders must have the names of agreed classes, got '{first}'{more}: {hint}{end} "
            f'Write "{first}" = "NAME" under [data.labels] in site.toml, or "{first}" = "" to leave it out'
        )
    found = {name: number.get(mapping.get(name, name)) for name in folders}
    if all(label is None for label in found.values()):
        raise DataError("at least one folder must belong to an agreed class, got none: change [data.labels]")
    return found


def describe_mapping(mapping: Mapping[str, str]) -> str:
    """Describe the renamed and left-out folders, for the site's own eyes."""
    return ", ".join(
        f"'{name}' left out" if target == LEFT_OUT else f"'{name}' -> '{target}'" for name, target in mapping.items()
    )
