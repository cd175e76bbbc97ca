"""Do two commits compute the same bits? `python benchmarks/bits.py BEFORE AFTER [--methods ...] [--runners ...]`.

Every registered method, and a list of settings and compositions, is run through `fedra.run` at both commits, on every
runner, on this machine. Compared are the model's weights, the tensors of the checkpoint (the server's and the clients'
memories), the lines of the rounds and of the clients without their times, and the summary's figures. The command
prints a table and exits with 1 if anything differs. A commit may also be the path of a checkout, such as `.`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Table = dict[str, Any]

AMERICAN = ("centralized", "personalize", "personalized", "renormalize", "normalized", "regularizer")
AMERICAN += ("regularizer_temperature", "normalized-mean", "normalized-softmax")
SPELLINGS = {word: word.replace("iz", "is") for word in AMERICAN}
SPELLINGS |= {"nearest-neighbors": "nearest-neighb" + "ours", "enroll": "enroll"[:-1]}
"""Names in configurations and results, and how older commits spelled them: a case is written with the new ones."""

TIMES = ("seconds", "versions", "runner", "version", "time")
"""Keys of lines and summaries that say when or with what, not what."""

RUNNERS: dict[str, Table] = {
    "sequential": {"name": "sequential"},
    "processes": {"name": "processes", "workers": 2},
    "stacked": {"name": "stacked", "threads": 1},
    "ray": {"name": "ray", "workers": 2},
    "centralized": {"name": "centralized", "threads": 1},
}

DIGITS: Table = {
    "rounds": 3,
    "data": {"name": "digits"},
    "partition": {"name": "class-shards", "clients": 6},
    "model": {"name": "mlp", "hidden": [16]},
    "local": {"batch": 40, "epochs": 2, "lr": 0.05, "momentum": 0.5, "weight_decay": 0.001, "lr_decay": 0.9},
    "cohort": {"fraction": 0.67},
    "checkpoint": {"seconds": 0},
}
VECTORS: Table = {
    **DIGITS,
    "data": {"name": "synthetic", "examples": 120, "test_examples": 60, "classes": 6, "shape": [6], "seed": 1},
    "partition": {"name": "identity", "clients": 3},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"batch": 7, "epochs": 2, "lr": 0.05, "momentum": 0.5},
}
IMAGES: Table = {
    **DIGITS,
    "rounds": 2,
    "data": {"name": "synthetic", "examples": 60, "test_examples": 30, "classes": 4, "shape": [1, 16, 16], "seed": 2},
    "partition": {"name": "quantity", "alpha": 5.0, "clients": 3, "min_size": 5},
    "model": {"name": "resnet18", "width": 2, "norm": "running"},
    "local": {"batch": 8, "epochs": 2, "lr": 0.02, "momentum": 0.5},
}
FACES: Table = {
    **DIGITS,
    "rounds": 2,
    "data": {
        "name": "synthetic-faces",
        "identities": 6,
        "images": 6,
        "size": 32,
        "test_identities": 0,
        "test_fraction": 0.5,
    },
    "partition": {"name": "identity", "clients": 3},
    "model": {"name": "mobilefacenet-tiny", "embedding": 8, "norm": "fixed"},
    "local": {"batch": 4, "epochs": 2, "lr": 0.02, "momentum": 0.5},
    "evaluation": {"protocol": "clients", "enroll": 1, "fpir": 0.1},
}
PUBLIC: Table = {"name": "synthetic", "examples": 40, "test_examples": 5, "classes": 3, "shape": [6], "seed": 9}
PERSONAL = ("fine-tune", "keep-private", "keep-last", "tethered-twin", "mixed-twin", "nearest-neighbors")
STATEFUL = (
    *("sphereface", "elastic-arcface", "elastic-cosface-plus", "curricularface", "adaface", "adacos-dynamic"),
    *("unitsface", "cvm", "arcface"),
)
OWNED = ("fedpe", "fedcos", "fedgc", "fedaws", "fedface", "fedfr", "fedfs")


def cases(methods: list[str], losses: list[str]) -> dict[str, Table]:
    """Everything that is run, by name; the name begins with the method's."""
    found: dict[str, Table] = {}
    for name in methods:
        own = name in OWNED
        found[name] = {**(VECTORS if own else DIGITS), "algorithm": {"name": name}}
        images = {**IMAGES, "partition": {"name": "identity", "clients": 2}} if own else IMAGES
        found[f"{name} images"] = {**images, "algorithm": {"name": name}}
    for name, algorithm in _varied().items():
        own = name.partition(" ")[0] in OWNED
        found[name] = {**(VECTORS if own else DIGITS), "algorithm": algorithm}
    for loss in losses:
        found[f"fedarc {loss}"] = {**DIGITS, "algorithm": {"name": "fedarc", "margin": loss}}
        head = {"name": "margin-head", "margin": loss}
        found[f"fedavg margin-head {loss}"] = {**DIGITS, "algorithm": {"name": "fedavg", "plus": [head]}}
        found[f"fedpe {loss}"] = {**VECTORS, "algorithm": {"name": "fedpe", "margin": loss}}
    return found | _settings()


def _varied() -> dict[str, Table]:
    """Fields away from their defaults, and compositions."""
    joined = {
        "fedprox fedsam fedlc fedadam": ("fedprox", "fedsam", "fedlc", {"name": "fedadam", "lr": 0.05}),
        "fedavg proximal first": ("fedavg", {"name": "proximal", "mu": 0.1}, "fine-tune"),
        "moon scaffold fedper": ("moon", "scaffold", "fedper"),
        "moon feddyn median": ("moon", "feddyn", "median"),
        "fedprox ditto clip": ("fedprox", "ditto", {"name": "clip", "norm": 1.0}),
        "scaffold apfl plain-mean": ("scaffold", "apfl", "plain-mean"),
        "fedlc fine-tune trimmed": ("fedlc", {"name": "fine-tune", "epochs": [1, 2], "scope": "head"}, "trimmed-mean"),
        "fedsol accumulate": ("fedsol", {"name": "accumulate", "passes": 3}),
        "fedarc fine-tune": ("fedarc", {"name": "fine-tune", "epochs": 1}),
        "fedarc ditto": ("fedarc", {"name": "ditto"}),
        "fedpe moon unit": ("fedpe", "moon", "unit-rows"),
        "fedpe mean": ("fedpe", "mean-rows", "keep-last"),
        "fedgc fine-tune fedprox": ("fedgc", "fedprox", {"name": "fine-tune", "epochs": 1}),
        "fedfr fine-tune": ("fedfr", {"name": "fine-tune", "epochs": 1}),
        "fednova normalized": ("fedavg", "normalized-mean", "fedavgm"),
    }
    for part in PERSONAL:
        joined[f"fedntd {part}"] = ("fedntd", part)
    found: dict[str, Table] = {name: {"name": of[0], "plus": list(of[1:])} for name, of in joined.items()}
    found["knn-per more"] = {"name": "knn-per", "epochs": [0, 1], "grid": [0.2, 0.9], "capacity": 20, "mix": "logits"}
    found["per-fedavg hessian"] = {"name": "per-fedavg", "order": "hessian-free"}
    found["fedbabu stages"] = {"name": "fedbabu", "epochs": [1, 2], "initial_rate": True}
    found["fedarc repo"] = {"name": "fedarc", "objective": "repo"}
    found["fedarc margin"] = {"name": "fedarc", "objective": "margin"}
    found["fednova official"] = {"name": "fednova", "control": "official"}
    found["fednova correct"] = {"name": "fednova", "control": "correct"}
    found["scaffold aware"] = {"name": "scaffold", "size_aware": True, "clip": 1.0}
    found["fedpe fixed"] = {"name": "fedpe", "fixed": True}
    found["fedfs projection"] = {"name": "fedfs", "aggregation": "projection", "regularizer": "contrastive"}
    found["fedgc margin"] = {"name": "fedgc", "margin": "arcface", "scale": 8.0, "renormalize": True, "sample": 3}
    found["fedgc active"] = {"name": "fedgc", "active_only": True, "self_term": False, "reduction": "mean"}
    found["fedaws nearest"] = {"name": "fedaws", "nearest": 2, "steps": 2}
    found["fedcos raw"] = {"name": "fedcos", "normalized": False}
    found["fedsol contrast"] = {"name": "fedsol", "proximal": "model-contrast", "radius": "adaptive", "scope": "body"}
    found["fedsol head"] = {"name": "fedsol", "radius": "adaptive", "over": "layer", "scope": "head"}
    for variant in ("A0", "A2", "A3", "A4", "A5", "A6"):
        found[f"fedsol-ablation {variant}"] = {"name": "fedsol-ablation", "variant": variant}
    return found


def _settings() -> dict[str, Table]:
    """The same methods in other surroundings: public data, faces, augmentation, faults, other optimizers."""
    fedfr = {"name": "fedfr", "threshold": 0.9}
    public = {**VECTORS, "public": PUBLIC}
    found = {
        "fedfr public": {**public, "algorithm": fedfr},
        "fedfr public fedprox": {**public, "algorithm": {**fedfr, "plus": ["fedprox", "fedavgm"]}},
        "fedfr public personal": {**public, "algorithm": {**fedfr, "plus": [{"name": "fine-tune", "epochs": 1}]}},
        "fedfr public faces": {
            **FACES,
            "public": {**FACES["data"], "identities": 4, "seed": 5},
            "algorithm": {**fedfr, "threshold": 0.0},
        },
        "scaffold one chunk each": {**DIGITS, "algorithm": {"name": "scaffold"}, "runner": {"chunk": 1}},
    }
    for name in (*OWNED, "fedavg", "fedarc"):
        found[f"{name} faces"] = {**FACES, "algorithm": {"name": name}}
    for name in ("fedavg", "moon", "fedsol", "fedarc", "ditto", "per-fedavg"):
        table = {**DIGITS, "algorithm": {"name": name}}
        local = DIGITS["local"]
        found[f"{name} adam"] = {**table, "local": {**local, "optimizer": "adam", "lr": 0.01, "drop_last": True}}
        cosine = {"batch": 30, "lr": 0.05, "schedule": {"name": "cosine", "warmup": 1.0, "floor": 0.1}}
        found[f"{name} cosine"] = {**table, "local": cosine}
        found[f"{name} augmented"] = {
            **IMAGES,
            "data": {**IMAGES["data"], "augment": ["crop", "flip"]},
            "algorithm": {"name": name},
        }
        faults = {"dropout": 0.3, "quorum": 0.3}
        found[f"{name} faults"] = {**table, "faults": faults, "model": {"name": "fedavg-cnn"}, "rounds": 2}
        seen = dict.fromkeys(("classes", "preservation", "divergence", "proximal"), True)
        found[f"{name} diagnosed"] = {**table, "diagnostics": seen, "precision": "float64"}
        found[f"{name} half"] = {**table, "precision": "bfloat16"}
    return found


def respelled(value: Any, old: bool) -> Any:
    """The table with every key and word in its old spelling, or in its new one."""
    words = SPELLINGS if old else {before: after for after, before in SPELLINGS.items()}
    if isinstance(value, Mapping):
        return {_respelled(key, words): respelled(item, old) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [respelled(item, old) for item in value]
    return words.get(value, value) if isinstance(value, str) else value


def _respelled(key: str, words: Mapping[str, str]) -> str:
    whole = words.get(key)
    return whole or "_".join(words.get(word, word) for word in key.split("_"))


def run_cases(wanted: Mapping[str, Table], out: Path) -> None:
    """In a checkout of one commit: run every case and write down what it left."""
    import torch

    import fedra

    torch.set_num_threads(1)
    if any(table["runner"]["name"] == "ray" for table in wanted.values()):
        import ray

        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)  # once for all runs
    found: Table = {}
    for name, table in wanted.items():
        found[name] = _result(fedra, table)
        print(f"{name}: {found[name].get('error', 'done')}", file=sys.stderr, flush=True)
        out.write_text(json.dumps(found))


def _result(fedra: Any, table: Table) -> Table:
    """What one run left, or the kind of error it ended with; names are tried in both spellings."""
    error: Exception | None = None
    for spelled in (_with_mode(table), respelled(table, old=True)):
        with tempfile.TemporaryDirectory() as folder:
            try:
                return _digested(fedra.run(spelled, out=Path(folder) / "run"), Path(folder) / "run")
            except (fedra.ConfigError, fedra.DataError, fedra.RunError) as other:
                # The first error is a wrong spelling, or both are the same.
                error = other
    return {"error": type(error).__name__, "sentence": str(error)}


def _with_mode(table: Table) -> Table:
    """Centralized training is a mode now; at older commits, which know no modes, it was a runner."""
    runner = table["runner"]
    if runner["name"] != "centralized":
        return table
    return {**table, "mode": "centralized", "runner": {**runner, "name": "auto"}}


def _digested(result: Any, folder: Path) -> Table:
    from safetensors.numpy import load_file

    tensors = sorted(
        hashlib.blake2b(str((value.dtype, value.shape)).encode() + value.tobytes(), digest_size=12).hexdigest()
        for path in folder.rglob("*.safetensors")
        for value in load_file(path).values()
    )
    model = hashlib.blake2b(digest_size=12)
    for name, value in result.model.state_dict().items():
        model.update(name.encode() + value.contiguous().numpy().tobytes())
    lines = {
        path.name: [_plain(json.loads(line)) for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    }
    state = hashlib.blake2b("".join(tensors).encode(), digest_size=12).hexdigest()
    summary = _plain(result.summary)
    return {"model": model.hexdigest(), "state": state, "lines": lines, "summary": summary}


def _plain(line: Mapping[str, Any]) -> Table:
    told = {key: value for key, value in line.items() if key not in TIMES}
    again: Table = json.loads(json.dumps(respelled(told, old=False), default=str))
    return again


def differences(before: Table, after: Table) -> list[str]:
    """Where two results differ; figures that only the later commit has are no difference."""
    if "error" in before or "error" in after:
        same = before.get("error") == after.get("error")
        return [] if same else [f"{before.get('sentence', 'ran')} | {after.get('sentence', 'ran')}"]
    # A later commit may withhold figures of embeddings that have collapsed.
    withheld = any("collapsed" in line for lines in after["lines"].values() for line in lines)

    def differs(old: Table, new: Table, key: str) -> bool:
        return bool(old[key] != new.get(key) and not (withheld and new.get(key) is None))

    found = [what for what in ("model", "state") if before[what] != after[what]]
    for name, lines in before["lines"].items():
        later = after["lines"].get(name, [])
        if len(later) != len(lines):
            found.append(f"{name}: {len(lines)} lines, {len(later)}")
        keys = {key for old, new in zip(lines, later, strict=False) for key in old if differs(old, new, key)}
        found += [f"{name}: {key}" for key in sorted(keys)]
    told = before["summary"], after["summary"]
    return found + [f"summary: {key}" for key in told[0] if differs(*told, key)]


def on_runner(wanted: Mapping[str, Table], runner: str) -> dict[str, Table]:
    """The cases for one runner; a setting of a case that is not the runner's goes."""
    own = RUNNERS[runner]
    chosen = {}
    for name, table in wanted.items():
        extra = table.get("runner", {}) if runner == "stacked" else {}
        chosen[name] = {**table, "runner": {**own, **extra}}
    return chosen


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A temporary worktree of a commit, or the folder that was named."""
    if Path(commit).is_dir():
        yield Path(commit).resolve()
        return
    repository = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", "-q", tree, commit], cwd=repository, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=repository, check=True)


def results(commit: str, wanted: dict[str, Table], runner: str, kept: Path | None) -> Table:
    """What the cases left at a commit; `kept` is a folder of results to use again."""
    asked = hashlib.blake2b(json.dumps(wanted).encode(), digest_size=8).hexdigest()
    with checkout(commit) as tree, tempfile.TemporaryDirectory() as folder:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, check=True, capture_output=True, text=True)
        path = kept / f"{head.stdout.strip()[:12]}-{runner}-{asked}.json" if kept else Path(folder) / "found.json"
        if kept and path.exists() and not Path(commit).is_dir():
            return dict(json.loads(path.read_text()))
        out = Path(folder) / "results.json"
        (Path(folder) / "cases.json").write_text(json.dumps(wanted))
        paths = os.pathsep.join((str(tree / "src"), os.environ.get("PYTHONPATH", "")))
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        words = [sys.executable, __file__, "--run", str(Path(folder) / "cases.json"), str(out)]
        subprocess.run(words, check=True, env=environment, cwd=folder)
        found = dict(json.loads(out.read_text()))
        if kept and not Path(commit).is_dir():
            kept.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found))
        return found


def names_at(commit: str) -> tuple[list[str], list[str]]:
    """The registered methods of a commit, and those of the tried losses that it has."""
    with checkout(commit) as tree:
        asked = "from fedra.algorithms import ALGORITHMS; print(*ALGORITHMS)"
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        found = subprocess.run(
            [sys.executable, "-c", asked], check=True, capture_output=True, text=True, env=environment
        )
        return found.stdout.split(), list(STATEFUL)


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        run_cases(json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--methods", nargs="+", help="only cases whose names begin with one of these words")
    parser.add_argument("--runners", nargs="+", choices=RUNNERS, default=list(RUNNERS))
    parser.add_argument("--keep", type=Path, help="a folder where results of commits are kept for the next time")
    given = parser.parse_args()
    wanted = cases(*names_at(given.before))
    if given.methods:
        wanted = {name: table for name, table in wanted.items() if name.split(" ")[0] in given.methods}
    wrong = 0
    for runner in given.runners:
        chosen = on_runner(wanted, runner)
        before, after = (results(commit, chosen, runner, given.keep) for commit in (given.before, given.after))
        refused = [name for name in chosen if "error" in before[name]]
        different = {name: found for name in chosen if (found := differences(before[name], after[name]))}
        equal = len(chosen) - len(different)
        print(f"{runner:12} {equal:4} of {len(chosen)} equal ({len(refused)} refused at the first commit)")
        for name, found in different.items():
            print(f"    {name}: {'; '.join(found)}")
        wrong += len(different)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
