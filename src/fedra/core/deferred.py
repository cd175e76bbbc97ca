"""Inputs that stay in their files until they are needed: a tensor of which only row numbers are in memory.

Selecting rows, splitting and concatenating read nothing. Moving the rows to a device, and every other operation, reads
them. So all code for tensors works, and memory is bounded by what is moved at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

aten = torch.ops.aten


class InputSource(Protocol):
    """Where deferred inputs are read. It is pickled for worker processes, so it holds names of files, not contents."""

    def __len__(self) -> int: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Type of the inputs."""
        ...

    def read(self, rows: Tensor, threads: int) -> Tensor:
        """The inputs of these rows, read by this many threads."""
        ...


class DeferredInputs(Tensor):
    """Inputs (N, ...) that are read from a source when they are moved to a device or computed with.

    Args:
        source: Where to read.
        rows: Rows of the source; by default all, in order.

    Example:
        ```python
        inputs = DeferredInputs(source)
        batch = inputs[torch.tensor([7, 3, 5])]  # reads nothing
        pixels = batch.to("cpu")  # reads three inputs
        ```
    """

    source: InputSource
    rows: Tensor
    _pending: Future[Tensor] | None

    @staticmethod
    def __new__(cls, source: InputSource, rows: Tensor | None = None) -> DeferredInputs:
        rows = torch.arange(len(source)) if rows is None else rows
        made: DeferredInputs = Tensor._make_wrapper_subclass(cls, (len(rows), *source.shape), dtype=source.dtype)
        made.source, made.rows, made._pending = source, rows, None
        return made

    def read(self) -> Tensor:
        """Read the inputs, or wait for `begin` to finish.

        Returns:
            A plain tensor on the CPU.
        """
        if self._pending is not None:
            return self._pending.result()
        return self.source.read(self.rows, torch.get_num_threads())

    def begin(self) -> DeferredInputs:
        """Start to read in the background.

        Returns:
            These inputs.
        """
        if self._pending is None:
            # A pool for each batch costs little, and no thread is left that a fork would lack.
            pool = ThreadPoolExecutor(1, "read-ahead")
            self._pending = pool.submit(self.source.read, self.rows, torch.get_num_threads())
            pool.shutdown(wait=False)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.read().to(*args, **kwargs)

    def cpu(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.read()

    def contiguous(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.read().contiguous(*args, **kwargs)

    def pin_memory(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.read().pin_memory()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        return self.read().numpy()

    def share_memory_(self) -> DeferredInputs:
        self.rows.share_memory_()  # type: ignore[no-untyped-call]
        return self

    def __deepcopy__(self, memo: Any) -> DeferredInputs:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return DeferredInputs, (self.source, self.rows)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"DeferredInputs({tuple(self.shape)}, {self.dtype}, {self.source!r})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func in _DEFERRED and (found := _DEFERRED[func](*args, **(kwargs or {}))) is not None:
            return found
        args, kwargs = tree_map(read_now, (args, kwargs or {}))
        return func(*args, **kwargs)


def read_now(value: Any) -> Any:
    """Read deferred inputs; other values are returned unchanged."""
    return value.read() if isinstance(value, DeferredInputs) else value


def read_ahead(inputs: Tensor, selections: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield `inputs[rows]` for each selection of rows; the next selection of deferred inputs is read meanwhile."""
    selected = (inputs[rows] for rows in selections)
    if not isinstance(inputs, DeferredInputs):
        yield from selected
        return
    current: Tensor | None = None
    for upcoming in selected:
        read = upcoming.begin() if isinstance(upcoming, DeferredInputs) else upcoming
        if current is not None:
            yield current
        current = read
    if current is not None:
        yield current


class JoinedSource:
    """Consecutive parts as one source: plain tensors, or deferred inputs of different sources."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self.parts = tuple(parts)
        self.ends = torch.tensor([len(part) for part in parts]).cumsum(0)

    def __len__(self) -> int:
        return int(self.ends[-1])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.parts[0].shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    def read(self, rows: Tensor, threads: int) -> Tensor:
        found = torch.empty((len(rows), *self.shape), dtype=self.dtype)
        owners = self.owners(rows)
        for number in torch.unique(owners).tolist():
            chosen = owners == number
            part = self.select(number, rows[chosen])
            found[chosen] = part.source.read(part.rows, threads) if isinstance(part, DeferredInputs) else part
        return found

    def owners(self, rows: Tensor) -> Tensor:
        """The part of each row."""
        return torch.searchsorted(self.ends, rows, right=True)

    def select(self, number: int, rows: Tensor) -> Tensor:
        """Rows of the whole that are all in one part."""
        part = self.parts[number]
        return part[rows - (int(self.ends[number]) - len(part))]


def _select(inputs: DeferredInputs, rows: Tensor) -> Tensor:
    """The inputs of these rows of the source; without the joined parts that they do not need."""
    source = inputs.source
    if isinstance(source, JoinedSource) and len(rows):
        owners = source.owners(rows)
        if bool((owners == owners[0]).all()):
            return source.select(int(owners[0]), rows)
    return DeferredInputs(source, rows)


def _index(inputs: DeferredInputs, which: Sequence[Tensor | None]) -> Tensor | None:
    first = which[0]
    if len(which) != 1 or first is None or first.dtype not in (torch.int64, torch.bool):
        return None
    rows = inputs.rows[first.cpu()]
    if rows.dim() == 1:
        return _select(inputs, rows)
    return _select(inputs, rows.flatten()).cpu().view(*rows.shape, *inputs.shape[1:])


def _slice(
    inputs: DeferredInputs, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor | None:
    return None if dim else _select(inputs, inputs.rows[start:end:step])


def _pick(inputs: DeferredInputs, dim: int, index: int) -> Tensor | None:
    return None if dim else _select(inputs, inputs.rows[index].view(1)).cpu()[0]


def _index_select(inputs: DeferredInputs, dim: int, rows: Tensor) -> Tensor | None:
    return None if dim else _select(inputs, inputs.rows[rows.cpu()])


def _split(inputs: DeferredInputs, sizes: Sequence[int] | int, dim: int = 0) -> list[Tensor] | None:
    each = sizes if isinstance(sizes, int) else list(sizes)
    return None if dim else [_select(inputs, rows) for rows in torch.split(inputs.rows, each)]


def _cat(parts: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    kinds = {(part.dtype, part.shape[1:]) for part in parts}
    if dim or len(kinds) > 1:
        return None
    first = parts[0]
    if all(isinstance(part, DeferredInputs) for part in parts):
        deferred = [part for part in parts if isinstance(part, DeferredInputs)]
        if len({id(part.source) for part in deferred}) == 1:
            return DeferredInputs(deferred[0].source, torch.cat([part.rows for part in deferred]))
    return first if len(parts) == 1 else DeferredInputs(JoinedSource(parts))


_DEFERRED: dict[Any, Any] = {
    aten.index.Tensor: _index,
    aten.slice.Tensor: _slice,
    aten.select.int: _pick,
    aten.index_select.default: _index_select,
    aten.split_with_sizes.default: _split,
    aten.split.Tensor: _split,
    aten.cat.default: _cat,
    aten.detach.default: lambda inputs: inputs,
    aten.alias.default: lambda inputs: inputs,
}
