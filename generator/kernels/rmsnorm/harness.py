"""How rmsnorm's kernels are launched, and the rows that expose their faults."""

from collections.abc import Mapping

import numpy as np

from generator.evidence.harness import Case, Launch, Plan
from generator.ops.base import ceil_div
from generator.ops.rmsnorm import reference

EPS = 1e-5


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: a row that no block of any point fills. Adversarial: rows near zero (eps rules) and rows whose squares overflow fp16.

    Tall: more rows than a persistent grid of 64 or 128 has blocks.
    """
    return (
        _case("ragged", rng.standard_normal((3, 1000)), rng),
        _case("adversarial", rng.standard_normal((4, 4104)) * np.array([[1e-3], [300.0], [1.0], [0.0]]), rng),
        _case("tall", rng.standard_normal((130, 16)), rng),
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
    """One block per row; a kernel with several rows a block, or several blocks a row, has its own grid."""
    rows = case.shape["M"]
    blocks, threads, sizes = rows, params.get("threads", 0), ("N",)
    if variant == "warp_row":
        blocks, threads, sizes = int(ceil_div(rows, params["rows"])), 32 * params["rows"], ("M", "N")
    elif variant == "persistent":
        blocks, sizes = min(rows, params["persistent"]), ("M", "N")
    elif variant == "cluster_rows":
        blocks = rows * params["cluster"]
    return Plan(launches=(Launch(kernel="rmsnorm", grid=(blocks, 1, 1), block=threads, args=("x", "w", "y", *sizes, "eps")),))
