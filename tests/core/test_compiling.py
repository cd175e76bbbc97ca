"""Compiled passes: the same results, one compilation for all sizes of batches, and a sentence where it cannot be.

Torch's own code generator takes half a minute; here its graphs run as they are (`aot_eager`), which everything but the
generator takes part in. `benchmarks/compile.py` compares the whole.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import fedra
import tiny
import toy
from fedra.algorithms import fedavg, fedsol, moon
from fedra.core.algorithm import Algorithm
from fedra.core.compiling import CompiledPass, check_compiler
from fedra.core.model import Model
from fedra.errors import ConfigError, RunError

CPU = torch.device("cpu")


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The graphs that were compiled, each by its number of operations."""
    graphs: list[int] = []
    real = torch.compile

    def count(graph: Any, inputs: Any) -> Any:
        from torch._dynamo.backends.debugging import aot_eager

        graphs.append(len(graph.graph.nodes))
        return aot_eager(graph, inputs)

    def compile(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        return real(function, backend=count)

    monkeypatch.setattr(torch, "compile", compile)
    yield graphs
    torch._dynamo.reset()


def trained(algorithm: Algorithm, net: toy.Net, compiled: bool, runner: str = "sequential") -> toy.History:
    work = toy.job(algorithm, net)
    return toy.run(replace(work, model=Model(net, compiled=compiled)), ((0,), (0,)), runner)


@pytest.mark.parametrize(
    ("algorithm", "kind"), [(fedavg(), toy.conv), (fedsol(scope="head"), toy.mlp), (moon(), toy.mlp)]
)
def test_results_are_the_same(
    algorithm: Algorithm, kind: Callable[[torch.dtype], toy.Net], compilations: list[int]
) -> None:
    plain = trained(algorithm, kind(torch.float32), compiled=False)
    assert not compilations
    compiled = trained(algorithm, kind(torch.float32), compiled=True)
    assert compilations
    assert toy.distance(plain.params, compiled.params) < 1e-5
    for name, value in plain.server.weights.buffers.items():
        assert torch.allclose(compiled.server.weights.buffers[name], value, atol=1e-5)


def test_a_short_batch_compiles_nothing_new(compilations: list[int]) -> None:
    model = Model(toy.mlp(torch.float32), compiled=True)
    weights = model.weights()
    for size in (4, 3, 2, 7, 50):
        assert model.output(weights, torch.ones(size, 5)).logits.shape == (size, toy.CLASSES)
    assert len(compilations) == 2, "one graph for the body, one for the head"


def test_machine_code_is_made_in_every_process_anew(compilations: list[int]) -> None:
    model = Model(toy.mlp(torch.float32), compiled=True)
    wanted = model.output(model.weights(), torch.ones(4, 5)).logits
    other: Model = pickle.loads(pickle.dumps(model))
    assert torch.equal(other.output(other.weights(), torch.ones(4, 5)).logits, wanted)


def test_a_stack_is_refused(compilations: list[int]) -> None:
    with pytest.raises(ConfigError, match="compiled passes cannot be stacked: do not compile"):
        trained(fedavg(), toy.mlp(torch.float32), compiled=True, runner="stacked")
    assert not compilations


def test_a_run_and_a_simulation(compilations: list[int]) -> None:
    plain = fedra.run(tiny.table(rounds=1))
    compiled = fedra.run(tiny.table(rounds=1, compile=True))
    assert len(compilations) > 1, "more than the trial at the start"
    assert compiled.metrics[0]["loss"] == pytest.approx(plain.metrics[0]["loss"], abs=1e-5)
    before = len(compilations)
    data = [(torch.ones(4, 5, dtype=torch.float64), torch.arange(4))]
    fedra.simulate(fedavg(), toy.mlp(), data, rounds=1, compile=True)
    assert len(compilations) > before


def test_a_compilation_that_fails_is_one_sentence(compilations: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    class InductorError(RuntimeError):
        """As torch raises it where its cache is damaged."""

    def fails(*_: Any) -> None:
        raise InductorError("ImportError: c35.main.so: file too short\n\nand much more")

    InductorError.__module__ = "torch._inductor.exc"
    monkeypatch.setattr(CompiledPass, "__call__", fails)
    with pytest.raises(
        RunError, match=r"a compiled pass failed in round 1, client 0 \(ImportError: .* short\): do not compile"
    ):
        trained(fedavg(), toy.mlp(torch.float32), compiled=True)


def test_torchs_warning_of_python_3_13_0_fails_no_pass(
    compilations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch warns while it compiles, and tests take warnings as errors; its workaround of that Python's fault stays."""
    around = pytest.importorskip("torch._dynamo.guards").GuardBuilder._get_generic_dict_manager_example_value
    with monkeypatch.context() as other:
        other.setattr("sys.version_info", (3, 13, 0))
        with pytest.raises(RuntimeWarning, match=r"3\.13\.0"):
            around({"a": 1})
    model = Model(toy.mlp(torch.float32), compiled=True)
    model.output(model.weights(), torch.ones(4, 5))
    monkeypatch.setattr("sys.version_info", (3, 13, 0))
    assert around({"a": 1}) is None


def test_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        def fails(*_: Any) -> None:
            raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\n\nand much more")

        return fails

    monkeypatch.setattr(torch, "compile", compile)
    with pytest.raises(ConfigError, match=r"got 'InvalidCxxCompiler: No working C\+\+ compiler found': install a"):
        check_compiler(CPU)
    with pytest.raises(ConfigError, match="or do not compile"):
        fedra.run(tiny.table(compile=True))
