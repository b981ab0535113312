"""How int4_gemv's kernels are launched, and the weights that expose their faults."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from generator.evidence.harness import Case, Launch, Plan
from generator.ops.int4_gemv import reference

GROUP = 128
REDUCE_THREADS = 256
WEIGHT_BYTES, X_BYTES = 64, 320
"""Of 128 weights of a column, and of 128 activations of a row and their padding, in the stages of `mma_small_m`."""


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: N, M and K fill no tile, and K leaves some splits empty. Adversarial: scales that jump between groups, extreme nibbles."""
    ragged = rng.integers(-8, 8, (37, 1152))
    extreme = rng.choice(np.array([-8, 7, 0]), (18, 2432))
    return (
        _case("ragged", ragged, 0.01 + 0.02 * rng.random((37, 9)), rng.standard_normal((5, 1152))),
        _case("adversarial", extreme, 0.002 * np.float64(4) ** rng.integers(0, 5, (18, 19)), rng.standard_normal((1, 2432))),
    )


def pack(w: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Weights -8..7 `[N, K]` to words `[N, K / 8]`: k = 2i at bit 4i, k = 2i + 1 at bit 4i + 16."""
    nibbles = (w + 8).astype(np.uint32).reshape(w.shape[0], -1, 8)
    shifts = np.array([4 * (k // 2) + 16 * (k % 2) for k in range(8)], dtype=np.uint32)
    words: npt.NDArray[np.uint32] = np.bitwise_or.reduce(nibbles << shifts, axis=2)
    return words


def _case(name: str, w: npt.NDArray[np.int64], scale: npt.NDArray[np.float64], x: npt.NDArray[np.float64]) -> Case:
    words, scales, xs = pack(w), scale.astype(np.float16), x.astype(np.float16)
    m, (n, k) = len(x), w.shape
    return Case(
        name=name,
        shape={"M": m, "N": n, "K": k, "G": GROUP},
        buffers={"w": words, "scale": scales, "x": xs, "y": np.full((m, n), np.nan, np.float16)},
        scalars={},
        expected={"y": reference(words, scales, xs)},
    )


def plan(variant: str, params: Mapping[str, int], case: Case) -> Plan:
    """Row tiles along x, column tiles along y; `split_k` has column tiles and splits, and a second kernel that adds the partials."""
    m, n = case.shape["M"], case.shape["N"]
    args = ("w", "scale", "x", "y", "M", "N", "K")
    block = 32 * params["warps"]
    if variant == "split_k":
        splits = params["splits"]
        return Plan(
            launches=(
                Launch(
                    kernel="int4_partial",
                    grid=(-(-n // (16 * params["warps"])), splits, 1),
                    block=block,
                    args=("w", "scale", "x", "partial", "M", "N", "K"),
                ),
                Launch(
                    kernel="int4_reduce", grid=(-(-m * n // REDUCE_THREADS), 1, 1), block=REDUCE_THREADS, args=("partial", "y", "M", "N")
                ),
            ),
            scratch={"partial": np.full((splits, m, n), np.nan, np.float32)},
        )
    columns, smem = params["warps"] * params.get("rows", 1), 0
    if variant == "mma_small_m":
        columns = params["block_n"]
        smem = params["stages"] * params["block_k"] // GROUP * (WEIGHT_BYTES * columns + X_BYTES * params["block_m"])
    grid = (-(-m // params["block_m"]), -(-n // columns), 1)
    return Plan(launches=(Launch(kernel="int4_gemv", grid=grid, block=block, args=args, smem=smem),))
