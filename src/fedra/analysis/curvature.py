"""Curvature of a model's loss: the Hessian's largest eigenvalues, its trace and its spectral density.

Figure 4 of FedSoL's paper (Lee et al., CVPR 2024) compares the largest eigenvalue and its ratio to the fifth. The
density is estimated by stochastic Lanczos quadrature (Ghorbani, Krishnan and Xiao, ICML 2019), the trace by
Hutchinson's estimator with the same random vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from fedra.analysis.global_loss import GlobalLoss
from fedra.core.evaluate import ignore_progress
from fedra.core.random import generator
from fedra.core.tree import Params
from fedra.errors import ConfigError, RunError

Values = NDArray[np.float64]
TOLERANCE = 1e-4
"""Residual of an eigenvector, relative to its eigenvalue; the error of the eigenvalue is of the order of its square."""
RESTARTS = 30
"""Largest number of restarts of the Lanczos iteration."""
TYPICAL_RESTARTS = 3
"""Restarts that the shown progress expects; their number is not known before."""


@dataclass(frozen=True)
class Curvature:
    """The curvature of a loss at its weights, as `measure_curvature` returns it.

    Args:
        eigenvalues: The largest eigenvalues of the Hessian, in descending order (k,).
        eigenvectors: Their unit vectors, as parameters by name.
        trace: The estimated trace.
        trace_error: The standard error of the estimate.
        nodes: Eigenvalues at which the estimated density has mass.
        masses: The mass at each node; they sum to 1.
        loss: The loss at the weights.
        dimension: The number of parameters.
        examples: The number of examples of the loss.

    Example:
        ```python
        found = measure_curvature(loss, top=5)
        print(found.metrics()["lambda_1"])
        ```
    """

    eigenvalues: Values
    eigenvectors: tuple[Params, ...]
    trace: float
    trace_error: float
    nodes: Values
    masses: Values
    loss: float
    dimension: int
    examples: int

    def metrics(self) -> dict[str, Any]:
        """Return all metrics by name, for tables and JSON; a ratio without a positive divisor is None."""
        values = self.eigenvalues.tolist()
        last = values[4] if len(values) > 4 else 0.0
        return {
            "loss": self.loss,
            "lambda_1": values[0],
            "lambda_1_over_lambda_5": values[0] / last if last > 0 else None,
            "trace": self.trace,
            "trace_error": self.trace_error,
            "smallest_eigenvalue": float(self.nodes.min()),
            "eigenvalues": values,
            "parameters": self.dimension,
            "examples": self.examples,
        }


def curvature_steps(top: int, probes: int, steps: int) -> int:
    """Return the total that `done` of `measure_curvature` adds up to: products of the Hessian with a vector."""
    return _expected_products(top) + probes * steps


def measure_curvature(
    loss: GlobalLoss,
    *,
    top: int = 5,
    probes: int = 4,
    steps: int = 20,
    seed: int = 0,
    done: Callable[[int], None] = ignore_progress,
) -> Curvature:
    """Measure the largest eigenvalues of a loss's Hessian, its trace and its spectral density.

    Args:
        loss: The loss, at its weights.
        top: Number of eigenvalues.
        probes: Number of random vectors for the trace and the density.
        steps: Lanczos steps per random vector; the density has as many nodes per vector.
        seed: Seed of the random vectors; the same seed gives the same result on one machine.
        done: Called with the number of finished products; their total is `curvature_steps(top, probes, steps)`.

    Returns:
        The eigenvalues with their vectors, the trace and the density.

    Raises:
        ConfigError: If a number is out of range, or a layer has no second derivative.

    Example:
        ```python
        found = measure_curvature(GlobalLoss(model, model.weights(), examples))
        ```
    """
    for name, value, least in (("probes", probes, 1), ("steps", steps, 2), ("top", top, 1)):
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")
    if top >= loss.dimension:
        raise ConfigError(f"top must be below {loss.dimension:,} (the number of parameters), got {top}")
    values, vectors = find_eigenvalues(loss, top, seed=seed, done=done)
    quadratics, nodes, masses = [], [], []
    for probe in range(probes):
        start = _signs(loss.dimension, seed, probe)
        main, beside = tridiagonalize(loss.product, start, min(steps, loss.dimension), done)
        places, basis = eigh_tridiagonal(main, beside)
        # The first entry of the tridiagonal matrix is z H z / n for a vector z of signs: Hutchinson's estimate.
        quadratics.append(loss.dimension * main[0])
        nodes.append(places)
        masses.append(basis[0] ** 2 / probes)
        done(max(steps - len(main), 0))
    return Curvature(
        values,
        vectors,
        float(np.mean(quadratics)),
        float(np.std(quadratics, ddof=1) / np.sqrt(probes)) if probes > 1 else 0.0,
        np.concatenate(nodes),
        np.concatenate(masses),
        loss.value(loss.params),
        loss.dimension,
        loss.examples,
    )


def find_eigenvalues(
    loss: GlobalLoss, top: int, *, seed: int = 0, done: Callable[[int], None] = ignore_progress
) -> tuple[Values, tuple[Params, ...]]:
    """Return the largest eigenvalues of the Hessian in descending order, and their unit vectors.

    The sign of a vector is that of its largest entry, so equal models have equal vectors.
    """
    expected = left = _expected_products(top)

    def multiply(vector: Values) -> Values:
        nonlocal left
        if left > 0:
            done(1)
        left -= 1
        return loss.multiply(vector)

    size = loss.dimension
    start = torch.randn(size, generator=generator(seed, "eigenvalues"), dtype=torch.float64).numpy()
    operator = LinearOperator((size, size), matvec=multiply, dtype=np.float64)
    try:
        values, vectors = eigsh(
            operator, k=top, which="LA", v0=start, tol=TOLERANCE, ncv=_basis(top, size), maxiter=RESTARTS
        )
    except ArpackNoConvergence as error:
        raise RunError(
            f"{top} eigenvalues must converge within {RESTARTS} restarts of the Lanczos iteration, got "
            f"{len(error.eigenvalues)}: ask for fewer, or use more examples"
        ) from None
    done(max(left, 0) if expected else 0)
    order = np.argsort(values)[::-1]
    found = []
    for column in order:
        vector = torch.from_numpy(vectors[:, column].copy())
        found.append(loss.unflatten(vector * vector[vector.abs().argmax()].sign()))
    return values[order], tuple(found)


def _basis(top: int, size: int) -> int:
    return min(max(2 * top + 1, 20), size)


def _expected_products(top: int) -> int:
    basis = _basis(top, 2**31)
    return basis + TYPICAL_RESTARTS * (basis - top)


def _signs(size: int, seed: int, probe: int) -> Tensor:
    """Return random signs of float32, divided by their length."""
    drawn = torch.randint(0, 2, (size,), generator=generator(seed, "probes", probe), dtype=torch.int8)
    signs: Tensor = (2.0 * drawn - 1.0) / size**0.5
    return signs


def tridiagonalize(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    steps: int,
    done: Callable[[int], None] = ignore_progress,
) -> tuple[Values, Values]:
    """Return the diagonal and the off-diagonal of the Lanczos matrix after some steps, with full orthogonalization.

    It ends early if the vectors so far span an invariant subspace.
    """
    basis = [start.double()]
    main: list[float] = []
    beside: list[float] = []
    while True:
        following = product(basis[-1].to(start.dtype)).double()
        done(1)
        main.append(float(following @ basis[-1]))
        for _ in range(2):  # once leaves errors of the order of the rounding times the condition
            for vector in basis:
                following -= (following @ vector) * vector
        length = float(following.norm())
        if len(main) == steps or length <= 1e-6 * max(map(abs, main)):
            return np.array(main), np.array(beside)
        beside.append(length)
        basis.append(following / length)
