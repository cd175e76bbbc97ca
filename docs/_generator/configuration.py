"""docs/configuration.md: every section and key of a configuration, and the fields of everything it can name."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from _generator.markdown import NOTICE, fields_table, kind, prose, table, value
from fedra.config.schema import Config, SweepSection
from fedra.core.rates import SCHEDULES
from fedra.data import DATASETS
from fedra.data.partition import PARTITIONS
from fedra.models import MODELS
from fedra.registry import Registry, fields
from fedra.runners import RUNNERS

INTRODUCTION = """# Configuration

A run is described by one TOML file. Every key has a default, unknown keys are rejected with the nearest valid name, and
`fedra show FILE` prints the configuration with all defaults filled in. `fedra init FILE` writes a new one with the main
sections, in which every key has its meaning as a comment.

```toml
rounds = 100

[data]
name = "cifar10"
augment = "paper"

[partition]
name = "dirichlet"
alpha = 0.1
clients = 100

[algorithm]
name = "fedprox"
mu = 0.1
plus = ["fedsam", { name = "server-adam", lr = 0.1 }]
```

Arguments after the file override its keys: `fedra run FILE rounds=5 local.lr=0.1 algorithm=fedavg`.
In Python the same table is a dict: `fedra.run({"rounds": 5, "algorithm": "fedavg"})`.

A section with a `name` can be written as the name alone: `algorithm = "fedavg"`. On the command line,
`algorithm=fedavg` and `algorithm.name=fedavg` are the same: they change the name and keep the section's own keys
(`partition.clients`, `algorithm.plus`). Of the fields that the file sets for the old name, those that the new one also
has are kept. Fields set by other arguments are never dropped. `algorithm='{ name = "fedavg" }'` replaces the whole
section. Your own data sets, models and algorithms are named as `module:function` ([data and models of your
own](own-data.md)).

A section with a `name` also takes the fields of what it names. They are listed [below](#what-sections-can-name), those
of algorithms on the [method pages](methods/index.md). A field that takes a part accepts its name, or a table with its
name and fields ([parts](parts.md)).

Two environment variables belong to the machine and not to a run (`fedra doctor` prints both):

| variable | what it does |
| --- | --- |
| `FEDRA_DATA` | the data root, the folder of data sets and detectors; by default the user's cache folder |
| `FEDRA_OFFLINE` | any value other than `0`, `false` and `no` forbids downloads: missing files are an error |

"""

SWEEP = """## [sweep]

A grid for `fedra sweep FILE`; `fedra run` ignores it. Every other key of this table is a dotted key of the
configuration, or the name of a whole section, with a list of values. All combinations are run, each with every seed.

{keys}
```toml
[sweep]
seeds = 3
"local.lr" = [0.1, 0.01]
algorithm = [{ name = "fedavg" }, { name = "fedprox", mu = 0.1 }]
```

"""


def pages() -> dict[str, str]:
    """The page of the configuration."""
    plain: dict[str, FieldInfo] = {}
    sections: dict[str, type[BaseModel]] = {}
    for name, field in Config.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            sections[name] = annotation
        elif name != "sweep":
            plain[name] = field
    text = NOTICE + INTRODUCTION + "## Top level\n\n" + _keys(plain) + "\n"
    for name, section in sections.items():
        text += f"## [{name}]\n\n{prose(section)}\n{_keys(section.model_fields)}\n"
    return {"configuration.md": text + SWEEP.replace("{keys}", _keys(SweepSection.model_fields)) + _named()}


def _keys(found: Mapping[str, FieldInfo]) -> str:
    rows = [
        (f"`{name}`", kind(field.annotation, field.metadata), _default(field), field.description or "")
        for name, field in found.items()
    ]
    return table(("key", "type", "default", "what it is"), rows)


def _default(field: FieldInfo) -> str:
    return "none" if field.default is None else f"`{value(field.default)}`"


def _named() -> str:
    registries: dict[str, Registry] = {
        "Data sets": DATASETS,
        "Partitions": PARTITIONS,
        "Models": MODELS,
        "Runners": RUNNERS,
        "Learning-rate schedules": SCHEDULES,
    }
    text = "## What sections can name\n\n"
    for title, registry in registries.items():
        text += f"### {title}\n\n"
        for name in registry:
            text += f"#### {name}\n\n{prose(registry[name])}\n{fields_table(fields(registry[name]), registry[name])}\n"
    return text.rstrip("\n") + "\n"
