"""The end of a round of a stack: the clients' new states and extras.

Clients with equal numbers of examples and steps finish together, mapped with `vmap`, because parts compute with these
numbers as Python's. Clients that share them with few others, and parts that vmap does not support, are finished one by
one.
"""

from __future__ import annotations

from collections import defaultdict

from torch.func import vmap

from fedra.core import tree
from fedra.core.capabilities import ClientState
from fedra.core.model import Weights
from fedra.core.program import ClientProgram
from fedra.core.tree import Params, Tree
from fedra.core.view import Local
from fedra.runners import stacked_tree as stack
from fedra.runners.stacked_data import StackedData
from fedra.runners.stacked_states import StackedTrees

FEW = 4
"""Clients that are finished faster one by one than by setting up vmap."""


def finish_clients(program: ClientProgram, data: StackedData, own: Tree) -> tuple[StackedTrees, Tree]:
    """The clients' new states, and the stacked extras; both may be views of the stack."""
    count = len(data.clients)
    if not any(part.has_state for part in program.algorithm.with_capability(ClientState).values()):
        return StackedTrees({}, count), {}
    flat = tree.flatten({name: value for name, value in own.items() if name != "optimizer"})
    states, extras = [], []
    for (examples, steps), rows in _groups(data).items():
        values = flat if len(rows) == count else {path: value[rows] for path, value in flat.items()}
        found = _finish_together(program, own, values, examples, steps) if len(rows) > FEW else None
        if found is None:
            each = [_finish(program, own, one, examples, steps) for one in stack.unstack(values, len(rows))]
            found = (
                stack.stack_trees([state for state, _ in each], "client state", "finish_client"),
                stack.stack_trees([sent for _, sent in each], "extras", "finish_client"),
            )
        states.append((rows, tree.flatten(found[0])))
        extras.append((rows, tree.flatten(found[1])))
    memories = stack.merge_groups(states, "client state", "finish_client")
    sent = stack.merge_groups(extras, "extras", "finish_client")
    return StackedTrees(memories, count), tree.unflatten(sent)


def _groups(data: StackedData) -> dict[tuple[int, int], list[int]]:
    """The rows of the clients with equal numbers of examples and steps."""
    groups = defaultdict[tuple[int, int], list[int]](list)
    for row, numbers in enumerate(zip(data.examples, data.steps, strict=True)):
        groups[numbers].append(row)
    return groups


def _finish_together(
    program: ClientProgram, own: Tree, values: Params, examples: int, steps: int
) -> tuple[Tree, Tree] | None:
    """The stacked new states and extras of equal clients; None if a part cannot be mapped over clients."""
    try:
        found: tuple[Tree, Tree] = vmap(lambda one: _finish(program, own, one, examples, steps))(values)
    except RuntimeError:  # of vmap, as a part that takes a number out of a tensor; a part's own error comes back below
        return None
    return found


def _finish(program: ClientProgram, own: Tree, values: Params, examples: int, steps: int) -> tuple[Tree, Tree]:
    """One client's new state and extras, inside or outside of vmap."""
    one = {"params": {}, "buffers": {}, "memory": {}, "carried": {}, **tree.unflatten(values)}
    memory = {name: one["memory"].get(name, {}) for name in own["memory"]}
    client = program.client(memory, examples, one["label_counts"])
    weights = Weights({**client.origin.params, **one["params"]}, one["buffers"])
    return program.finish(Local(client=client, weights=weights, steps=steps, carried=one["carried"]))
