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

A run is described by one TOML file. Every key has a default, unknown keys are refused with the nearest valid name, and
`fedra show FILE` prints the file as it is understood, defaults included.

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

Words after the file replace its keys: `fedra run FILE rounds=5 local.lr=0.1 algorithm=fedavg`.
In Python the same table is a dict: `fedra.run({"rounds": 5, "algorithm": "fedavg"})`.

A section that has a `name` may be written as the name alone: `algorithm = "fedavg"`. On the command line,
`algorithm=fedavg` and `algorithm.name=fedavg` are the same: the name changes, the section's own keys below
(`partition.clients`, `algorithm.plus`) stay, and of the fields that the file sets for the old name those stay that
the new one has too; what other words set is never dropped. `algorithm='{ name = "fedavg" }'` replaces the whole
section. Data sets, models and algorithms of your own are named as `module:function` ([own data and
models](own-data.md)).

Sections with a `name` also take the fields of what they name; those are listed [below](#what-sections-can-name), for
algorithms on [their own pages](methods/index.md). A field that wants a part takes its name or a table with its name and
fields ([parts](parts.md)).

Two environment variables belong to the machine and not to a run (`fedra doctor` shows both):

| variable | what it does |
| --- | --- |
| `FEDRA_DATA` | the data root: the folder of data sets and detectors; unless set, the user's cache folder |
| `FEDRA_OFFLINE` | any value but `0`, `false` and `no` switches downloads off: what is missing is an error |

"""

SWEEP = """## [sweep]

A grid for `fedra sweep FILE`; `fedra run` passes over it. Every other key of the table is a dotted key of the
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
