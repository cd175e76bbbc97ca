"""docs/methods/ and docs/parts.md: every algorithm as its parts, and the parts by slot."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from _generator.markdown import NOTICE, block, fields_table, joined, lead, paragraphs, prose, table, value
from fedra.algorithms import ALGORITHMS, ENTRIES
from fedra.catalog import SLOT_NOTES
from fedra.core.algorithm import SLOTS, Algorithm
from fedra.core.batches import Examples
from fedra.core.data_rule import OwnData
from fedra.core.job import Job, run_client
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model
from fedra.core.part import Part, known_parts
from fedra.core.round import broadcast, init_server
from fedra.core.sharing import Sharing
from fedra.data.clients import SeparateClients
from fedra.experiment.build import add_class_owners
from fedra.losses.angular_loss import AngularLoss
from fedra.registry import class_fields, fields

CHOICES: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("choices.toml").read_text(encoding="utf-8"))
PARTS = """# Parts

Parts fill the slots of an algorithm. A configuration adds them with `plus = ["clip"]` or
`plus = [{ name = "clip", norm = 1.0 }]`, or passes them to a field that takes one (`proximal = "model-contrast"`).
Python builds the classes: `fedra.algorithms.fedavg().plus(Clip(1.0))`. In the formulas, w are the client's weights, w_g
the received ones, z the logits, f the features, n_k a client's number of examples and S the clients of the round.

"""
METHODS = """# Methods

Each method is a choice of parts, and any two can be [combined](../architecture.md#the-law-of-composition).
`fedra show FILE` prints the parts of any configuration.

"""


def pages() -> dict[str, str]:
    """One page per method, their index, and the parts."""
    found = {f"methods/{name}.md": _page(name) for name in ALGORITHMS}
    found["methods/index.md"] = NOTICE + METHODS + overview("")
    found["parts.md"] = _parts()
    return found


def overview(root: str) -> str:
    """The table of methods, with links relative to `root`."""
    rows = [(f"[{name}]({root}{name}.md)", lead(ALGORITHMS[name]), _source(name)) for name in ALGORITHMS]
    return table(("name", "what it does", "paper"), rows)


def _module(name: str) -> Any:
    return sys.modules[ALGORITHMS[name].__module__]


def _source(name: str) -> str:
    """Authors, place and year of the papers, without their titles; of several, those that name the method."""
    papers = re.sub(r'"[^"]*", ', "", joined(paragraphs(_module(name))[1])).rstrip(".").split("; ")
    own = [paper for paper in papers if re.search(rf"\(.*\b{name}\b.*\)$", paper, re.IGNORECASE)]
    return "; ".join(paper.rpartition(" (")[0] for paper in own) or "; ".join(papers)


def _page(name: str) -> str:
    recipe = ALGORITHMS[name]
    algorithm = recipe()
    about, paper, *more = paragraphs(_module(name))
    text = f"{NOTICE}# {name}\n\n{joined(about)}\n\n{prose(recipe)}\nPaper: {joined(paper)}\n\n"
    text += "".join(f"{joined(extra)}\n\n" for extra in more)
    text += f"## Parts\n\n{_slots(algorithm)}{_traffic(algorithm)}\n"
    text += f"## Fields\n\n{fields_table(fields(recipe), recipe, '../')}\n"
    text += f"## Use\n\n{block(_toml(name), 'toml')}\n{block(_python(name), 'python')}\n"
    text += f"## Relation to FedAvg\n\n{_neutral(name)}\n"
    if name in CHOICES:
        text += "\n## Choices\n\n" + "".join(f"- {choice}\n" for choice in CHOICES[name])
    return text


def _slots(algorithm: Algorithm) -> str:
    text = ""
    for slot, note in SLOT_NOTES.items():
        parts = [part for part in algorithm.in_slot(slot) if part not in (Sharing(), OwnData())]
        if parts:
            text += f"**{slot}** ({note})\n\n" + "".join(_part(part) for part in parts)
    return text


def _part(part: Part, role: str = "") -> str:
    values = [(item.name, getattr(part, item.name)) for item in dataclass_fields(part)]
    plain = ", ".join(f"`{name} = {value(given)}`" for name, given in values if not isinstance(given, Part))
    text = f"{role}[{part.name}](../parts.md#{part.name})" + (f" with {plain}" if plain else "") + "\n\n"
    text += block(part.formula) + "\n" if part.formula else ""
    return text + "".join(_part(given, f"its `{name}`: ") for name, given in values if isinstance(given, Part))


def _traffic(algorithm: Algorithm) -> str:
    """State and traffic in addition to the model, observed in one round of a toy federation."""
    model = Model(_toy())
    inputs = torch.linspace(-1, 1, 12).view(4, 3)
    clients = SeparateClients([Examples(inputs, torch.tensor([0, 1, 0, 1]))])
    job = add_class_owners(
        Job(algorithm=algorithm, model=model, clients=clients, local=LocalTraining(), classes=2, seed=0), clients
    )
    server = init_server(algorithm, job.initial())
    received, own = broadcast(algorithm, server), job.client_state(0, server.weights, {})
    memory, upload = run_client(job, 0, 0, job.common(server.weights), received, own)
    added = [name for name in server.weights.params if name not in model.names]
    rows = [
        ("additional trained parameters", ", ".join(added) or "nothing"),
        ("client state", _entries(memory)),
        ("server state", _entries(server.memory)),
        ("sent to clients in addition to the model", _entries(received)),
        ("sent to the server in addition to the model", _entries(upload.extras)),
    ]
    return table(("state and traffic", ""), rows)


def _toy() -> nn.Module:
    module = nn.Module()
    module.body, module.head = nn.Linear(3, 4), nn.Linear(4, 2)
    return module


def _entries(tree: dict[str, Any]) -> str:
    return ", ".join(f"{part}: {', '.join(sorted(values))}" for part, values in sorted(tree.items())) or "nothing"


def _toml(name: str) -> str:
    known = fields(ALGORITHMS[name]).values()
    settings = [f"{field.name} = {value(field.default)}" for field in known if field.default is not None]
    return "\n".join(["[algorithm]", f'name = "{name}"', *settings])


def _python(name: str) -> str:
    recipe = ALGORITHMS[name]
    plain = {f.name: f.default for f in fields(recipe).values() if not isinstance(f.default, Part | AngularLoss)}
    settings = ", ".join(f"{field}={_literal(default)}" for field, default in plain.items())
    call = f"fedra.algorithms.{recipe.__name__}"
    return f"import fedra\n\nalgorithm = {call}({settings})\ncombined = fedra.algorithms.fedavgm().plus(algorithm)"


def _literal(given: Any) -> str:
    return json.dumps(given) if isinstance(given, str) else repr(given)


def _neutral(name: str) -> str:
    neutral = ENTRIES[name].neutral
    if neutral is None:
        return "It is not FedAvg at any setting of its fields."
    if not neutral:
        return (
            "Always: it is FedAvg."
            if name == "fedavg"
            else "The global model always equals FedAvg's; a test checks this."
        )
    settings = " and ".join(f"`{field} = {value(given)}`" for field, given in neutral.items())
    return f"It equals FedAvg at {settings}; a test checks this."


def _parts() -> str:
    text = NOTICE + PARTS
    for slot, base in SLOTS.items():
        found = list(_of_kind(base))
        if found:
            text += f"## {slot}\n\n{SLOT_NOTES[slot].capitalize()}.\n\n" + "".join(map(_described, found))
    others = [part for part in _of_kind(Part) if not issubclass(part, tuple(SLOTS.values()))]
    text += "## Parts of other parts\n\nThese are passed to a field of another part.\n\n" + "".join(
        map(_described, others)
    )
    return text.rstrip("\n") + "\n"


def _of_kind(base: type[Part]) -> Iterator[type[Part]]:
    """The parts of fedra itself that can be built, by name."""
    homes = ("fedra.core.", "fedra.parts.", "fedra.algorithms.")
    for _, part in sorted(known_parts().items()):
        if issubclass(part, base) and "__dataclass_fields__" in vars(part) and part.__module__.startswith(homes):
            yield part


def _described(part: type[Part]) -> str:
    formula = f"{block(part.formula)}\n" if part.formula else ""
    where = f"`{part.__module__}.{part.__name__}`"
    return f"### {part.name}\n\n{prose(part)}\n{formula}{fields_table(class_fields(part), part)}\n{where}\n\n"
