"""docs/api/: one page per public package; mkdocstrings fills in each name from its docstring."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

from _generator.markdown import NOTICE, lead, table
from fedra.registry import Registry

PACKAGES = {
    "fedra": "run, simulate, evaluate, predict, compare, report, export and audit",
    "fedra.algorithms": "the built-in federated algorithms",
    "fedra.parts": "what algorithms are made of, and the base classes for your own parts",
    "fedra.losses": "margin losses for any training loop",
    "fedra.models": "networks by name, and your own",
    "fedra.data": "data sets by name, and your own",
    "fedra.faces": "detection, alignment, galleries, verification and identification",
    "fedra.evaluation": "metrics, and the results of protocols",
    "fedra.analysis": "curvature, loss landscapes, and similar classes of different clients",
    "fedra.privacy.audit": "attacks that measure what a model reveals; imported by its full name",
    "fedra.callbacks": "hooks that run during training",
    "fedra.dashboard": "a live page over a folder of runs",
}
INTRODUCTION = """# Python API

Every public name. `import fedra` makes all packages available: `fedra.losses.ArcFace` needs no further import. Names
that are not listed here are internal and may change in any release.

"""
LISTED = {
    "ENTRIES": "Every algorithm's recipe, with the settings at which it equals FedAvg.",
    "METRICS": "The metrics of a classifier, by name.",
}
ALIASES = {
    "Answers": "What a personalizer's `answers` returns: a function from a batch of inputs to scores.",
    "GradientFunction": "A function from parameters to their gradient: what a gradient rule receives.",
    "Params": "Parameters or gradients by name.",
    "Tree": "Nested dicts of tensors: the state of a part.",
    "Photo": "What counts as a photo: a path, a PIL image, a `uint8` array or a tensor.",
}  # fmt: skip


def pages() -> dict[str, str]:
    """The index, and one page per package."""
    homes: dict[str, str] = {}
    found = {f"api/{_stem(package)}.md": _page(package, homes) for package in PACKAGES}
    rows = [(f"[`{package}`]({_stem(package)}.md)", about) for package, about in PACKAGES.items()]
    found["api/index.md"] = NOTICE + INTRODUCTION + table(("package", "what it holds"), rows)
    return found


def _stem(package: str) -> str:
    return package.removeprefix("fedra.")


def public_names(package: str) -> dict[str, Any]:
    """The public objects of a package that are documented on its own page: subpackages have pages of their own."""
    module = importlib.import_module(package)
    found = {name: getattr(module, name) for name in module.__all__}
    return {name: item for name, item in found.items() if f"{package}.{name}" not in PACKAGES}


def _page(package: str, homes: dict[str, str]) -> str:
    module = importlib.import_module(package)
    found = public_names(package)
    rows = [(f"[`{name}`](#{package}.{name})", _summary(name, item)) for name, item in found.items()]
    text = f"{NOTICE}# {package}\n\n{_about(module)}\n\n" + table(("name", "what it is"), rows) + "\n"
    return text + "\n".join(_entry(package, name, item, homes) for name, item in found.items())


def _about(module: ModuleType) -> str:
    return (inspect.getdoc(module) or "").partition("\n")[0]


def _summary(name: str, item: Any) -> str:
    if isinstance(item, Registry):
        return f"Every {item.kind} by name; {len(item)} are built in."
    if _is_documented(item):
        return lead(item)
    return LISTED.get(name) or ALIASES[name]


def _is_documented(item: Any) -> bool:
    return inspect.isclass(item) or inspect.isfunction(item) or inspect.ismodule(item)


def _entry(package: str, name: str, item: Any, homes: dict[str, str]) -> str:
    """One name; `homes` remembers which package has shown an object already."""
    shown = f"{package}.{name}"
    if not _is_documented(item):
        kind = "" if name not in ALIASES else f"```text\n{_written(item)}\n```\n"
        names = ""
        if isinstance(item, Registry | dict):
            names = "Names: " + ", ".join(f"`{key}`" for key in item) + ".\n"
        return f"{_heading(shown, name)}{_summary(name, item)}\n\n{kind}{names}"
    home = item.__name__ if inspect.ismodule(item) else f"{item.__module__}.{item.__qualname__}"
    first = homes.setdefault(home, package)
    if first != package:
        link = f"[`{first}.{name}`]({_stem(first)}.md#{first}.{name})"
        return f"{_heading(shown, name)}The same as {link}.\n"
    options = f"      heading: {shown}\n      toc_label: {name}\n"
    anchor = f"[](){{ #{shown} }}\n\n" if home != shown else ""
    return f"{anchor}::: {home}\n    options:\n{options}"


def _heading(shown: str, name: str) -> str:
    return f'## `{shown}` {{ #{shown} data-toc-label="{name}" }}\n\n'


def _written(alias: Any) -> str:
    return str(alias).replace("collections.abc.", "").replace("typing.", "")
