"""docs/losses/: one page and one plot per margin loss, and a table of all."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import matplotlib

from _generator.markdown import NOTICE, block, fields_table, lead, prose, table
from fedra.losses import LOSSES
from fedra.losses.loss_plot import draw
from fedra.registry import class_fields

INTRODUCTION = """# Margin losses

Every loss works in any training loop: `loss(features, weight, labels)` with features (B, d), class weights (C, d) and
labels (B,). A loss is a frozen dataclass of numbers. State that changes during training (running statistics, trained
thresholds) is passed in and returned, or held by `fedra.losses.Stateful` and `fedra.losses.MarginHead`. In the
formulas, t_j is the angle between the feature and the weights of class j, c_j its cosine, y the true class and s the
scale.

"""

QUOTED = """
Han et al. (2026) quote or cite further methods whose loss has no published formula that could be checked here, or
is not a loss on class vectors: GroupFace, MC-FaceGraph, DeepID, Dyn-ArcFace. They are not implemented. The adaptive
sampling of AdaptiveFace and the running centers of UniformFace are left out, as their pages say.
"""


def pages() -> dict[str, str]:
    """One page per loss, and the index."""
    found = {f"losses/{name}.md": _page(name) for name in LOSSES}
    rows = [(f"[{name}]({name}.md)", f"`{_class(name)}`", lead(LOSSES[name])) for name in LOSSES]
    found["losses/index.md"] = NOTICE + INTRODUCTION + table(("name", "class", "what it is"), rows) + QUOTED
    return found


def _class(name: str) -> str:
    return LOSSES[name].__name__


def _page(name: str) -> str:
    loss = LOSSES[name]
    assert inspect.isclass(loss)
    features = "torch.randn(8, 16)" if loss.trains_vectors else "torch.randn(8, 16, requires_grad=True)"
    example = (
        "import torch\n"
        f"from fedra.losses import {_class(name)}, Stateful\n\n"
        f"features, weight = {features}, torch.randn(4, 16, requires_grad=True)\n"
        "labels = torch.arange(8) % 4\n"
        f"loss = Stateful({_class(name)}(), weight)\n"
        "loss(features, weight, labels).backward()"
    )
    picture = (
        f"![The true-class logit of {name} and its derivative over the angle](plots/{name}.svg)\n\n"
        "Left: the true-class logit without its scale over the angle to the true class, and the plain cosine (dashed). "
        "Right: its derivative.\nDefault settings; random margins at their mean, initial running states.\n\n"
    )
    return (
        f"{NOTICE}# {name}\n\n{prose(loss)}\n{picture if loss.trains_vectors else ''}"
        f"## Fields\n\n{fields_table(class_fields(loss), loss, '../')}\n"
        f"## Python\n\n{block(example, 'python')}"
    )


def pictures(folder: Path) -> set[Path]:
    """The plots; a loss between examples has no true-class logit to draw."""
    return {folder / f"{name}.svg" for name in LOSSES if LOSSES[name].trains_vectors}


def draw_pictures(folder: Path) -> None:
    """Draw the plots, with the same bytes every time: no date, a fixed salt, text as text."""
    settings: dict[Any, Any] = {"svg.hashsalt": "fedra", "svg.fonttype": "none", "path.simplify_threshold": 0.2}
    folder.mkdir(exist_ok=True)
    for path in sorted(pictures(folder)):
        with matplotlib.rc_context(settings):
            draw([path.stem], path)
        path.write_text(re.sub(r" *<metadata>.*?</metadata>\n", "", path.read_text(), flags=re.DOTALL))
