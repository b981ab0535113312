"""How int8_gemm's kernels are launched, and the matrices that expose their faults."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from generator.evidence.harness import Case, Launch, Plan, Tile
from generator.ops.int8_gemm import reference


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: no size is a multiple of a tile. Adversarial: extreme bytes of one sign, whose sums pass fp16's 65504 before the scales."""
    return (
        _case("ragged", rng.integers(-128, 128, (150, 592)), rng.integers(-128, 128, (138, 592)), 1e-3, rng),
        _case("adversarial", rng.choice([-128, -127, 127], (40, 1296)), rng.choice([-128, 127], (70, 1296), p=[0.9, 0.1]), 1e-4, rng),
    )


def _case(name: str, a: npt.NDArray[np.int64], b: npt.NDArray[np.int64], scale: float, rng: np.random.Generator) -> Case:
    a8, b8 = a.astype(np.int8), b.astype(np.int8)
    m, n = len(a), len(b)
    row_scale = (scale * rng.uniform(0.1, 2.0, m)).astype(np.float32)
    col_scale = rng.uniform(0.1, 2.0, n).astype(np.float32)
    return Case(
        name=name,
        shape={"M": m, "N": n, "K": a.shape[1]},
        buffers={"a": a8, "b": b8, "row_scale": row_scale, "col_scale": col_scale, "c": np.full((m, n), np.nan, np.float16)},
        scalars={},
        expected={"c": reference(a8, b8, row_scale, col_scale)},
    )


def plan(variant: str, params: Mapping[str, int], case: Case) -> Plan:
    """One block per tile of C: a 2-D grid in `dp4a`, one walked in bands elsewhere."""
    block_m = 64 * params["consumers"] if variant == "wgmma_s8" else params["block_m"]
    block_n = params["block_n"]
    tiles_m, tiles_n = -(-case.shape["M"] // block_m), -(-case.shape["N"] // block_n)
    rest = ("row_scale", "col_scale", "c", "M", "N", "K")
    if variant == "dp4a":
        threads = block_n * block_m // params["rows"]
        return Plan(launches=(Launch(kernel="int8_gemm", grid=(tiles_n, tiles_m, 1), block=threads, args=("a", "b", *rest)),))
    if variant == "wgmma_s8":
        launch = Launch(
            kernel="int8_gemm",
            grid=(tiles_m * tiles_n, 1, 1),
            block=128 * (params["consumers"] + 1),
            args=(Tile(buffer="a", box=(128, block_m)), Tile(buffer="b", box=(128, block_n)), *rest),
            smem=params["stages"] * (block_m + block_n) * 128 + 1024,
        )
        return Plan(launches=(launch,))
    launch = Launch(
        kernel="int8_gemm",
        grid=(tiles_m * tiles_n, 1, 1),
        block=32 * params["warps"],
        args=("a", "b", *rest),
        smem=params["stages"] * (block_m + block_n) * params["block_k"],
    )
    return Plan(launches=(launch,))
