"""Parts of one's own: mistakes become sentences, names stay one part's, and known parts do not depend on imports."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import toy
from fedra.algorithms import fedavg
from fedra.core.part import known_parts
from fedra.errors import ConfigError
from fedra.parts import ClientState, Clip, GradientRule, Local, Output, Params, ServerState, Term, Tree, View, Weights


@dataclass(frozen=True)
class ToyForgotMean(Term):
    """A loss for every example."""

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return output.logits.square()


@dataclass(frozen=True)
class ToyNumber(Term):
    """A loss that is no tensor."""

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return 0.5  # type: ignore[return-value]


@dataclass(frozen=True)
class ToyKeeper(Term, ClientState, ServerState):
    """Keeps whatever it is told to."""

    first: Any = None
    last: Any = None
    server: Any = None

    def init_client(self, origin: Weights) -> Tree:
        return {"count": torch.zeros(1)} if self.first is None else self.first  # type: ignore[no-any-return]

    def init_server(self, weights: Weights) -> Tree:
        return {} if self.server is None else self.server  # type: ignore[no-any-return]

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return output.logits.sum() * 0

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        return ({}, {}) if self.last is None else self.last  # type: ignore[no-any-return]


@pytest.mark.parametrize("runner", ["sequential", "stacked"])
@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (
            ToyForgotMean(),
            r"loss of the part 'toy-forgot-mean' must return a scalar.*got shape \(4, 4\).*batch\.mean",
        ),
        (ToyNumber(), "loss of the part 'toy-number' must return a scalar.*got float"),
        (ToyKeeper(first={"count": 3}), "init_client of the part 'toy-keeper'.*got int at 'count'.*torch.tensor"),
        (ToyKeeper(first=[1]), "init_client of the part 'toy-keeper'.*must be a dict of tensors.*got list"),
        (ToyKeeper(server={"a": {"b": 1.0}}), r"init_server of the part 'toy-keeper'.*got float at 'a\|b'"),
        (ToyKeeper(last={}), r"finish_client of the part 'toy-keeper' must return \(state, extras\).*got dict"),
        (ToyKeeper(last=({"count": 1}, {})), "the state that finish_client of the part 'toy-keeper'.*got int"),
        (ToyKeeper(last=({}, {"up": None})), "the extras that finish_client of the part 'toy-keeper'.*got NoneType"),
    ],
    ids=["vector", "float", "first-int", "first-list", "server", "no-pair", "memory", "extras"],
)
def test_a_mistake_in_a_part_is_a_sentence(part: Term, sentence: str, runner: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){sentence}"):
        toy.run(toy.job(fedavg().plus(part)), runner=runner)


def test_a_method_that_nobody_would_call_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"init_client must inherit from ClientState, got ToyLost.*ToyLost\(Term, ClientState\)"
    ):

        class ToyLost(Term):
            def init_client(self, origin: Weights) -> Tree:
                return {}


def test_the_name_of_a_built_in_part_is_taken() -> None:
    with pytest.raises(
        ConfigError, match=r"unique, got 'clip' for .* and fedra\.parts\.gradient\.Clip: rename the class"
    ):
        type("Clip", (GradientRule,), {"__module__": "my_module"})
    assert known_parts()["clip"] is Clip

    class Other(GradientRule, name="toy-clip"):
        pass

    assert known_parts()["toy-clip"] is Other


def test_the_same_class_may_be_defined_again() -> None:
    """As a notebook does when a cell is run a second time."""
    kinds = [type("ToyCell", (GradientRule,), {"__module__": "__main__"}) for _ in range(2)]
    assert known_parts()["toy-cell"] is kinds[1]


def in_a_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_known_parts_do_not_depend_on_what_was_imported() -> None:
    code = "from fedra.core.part import known_parts; print(*sorted(known_parts()))"
    found = in_a_process(code).split()
    assert {"personal-branch", "clip", "head-then-body", "margin-head", "spread-out", "intra-subject"} <= set(found)
    assert found == in_a_process(f"import fedra.algorithms.fedavg, fedra.parts.gradient; {code}").split()


def test_a_name_is_taken_before_its_part_was_imported() -> None:
    code = (
        "from fedra.core.part import GradientRule\n"
        "try:\n    type('HeadThenBody', (GradientRule,), {'__module__': '__main__'})\n"
        "except Exception as error: print(error)"
    )
    assert "and fedra.algorithms.fedrep.HeadThenBody: rename the class" in in_a_process(code)
