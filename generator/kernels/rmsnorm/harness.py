"""How rmsnorm's kernels are launched, and the rows that expose their faults."""

from collections.abc import Mapping

import numpy as np

from generator.evidence.harness import Case, Launch, Plan
from generator.ops.base import ceil_div
from generator.ops.rmsnorm import reference

EPS = 1e-5


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: a row that no block of any point fills. Adversarial: rows near zero (eps rules) and rows whose squares overflow fp16."""
    return (
        _case("ragged", rng.standard_normal((3, 1000)), rng),
        _case("adversarial", rng.standard_normal((4, 4104)) * np.array([[1e-3], [300.0], [1.0], [0.0]]), rng),
    )


def _case(name: str, values: np.ndarray, rng: np.random.Generator) -> Case:
    x = values.astype(np.float16)
    w = (1 + 0.1 * rng.standard_normal(x.shape[1])).astype(np.float16)
    return Case(
        name=name,
        shape={"M": x.shape[0], "N": x.shape[1]},
        buffers={"x": x, "w": w, "y": np.full_like(x, np.nan)},
        scalars={"eps": EPS},
        expected={"y": reference(x, w, EPS)},
    )


def plan(variant: str, params: Mapping[str, int], case: Case) -> Plan:
    """One block per row; `prefetch` gives a block several, and so needs their number."""
    rows = case.shape["M"]
    if variant == "prefetch":
        blocks, args = int(ceil_div(rows, params["rows"])), ("x", "w", "y", "M", "N", "eps")
        return Plan(launches=(Launch(kernel="rmsnorm", grid=(blocks, 1, 1), block=params["threads"], args=args),))
    return Plan(launches=(Launch(kernel="rmsnorm", grid=(rows, 1, 1), block=params["threads"], args=("x", "w", "y", "N", "eps")),))
