"""gemm_fp16: the fp16 matrix product behind every linear layer, with fp32 sums.

Large M is bound by the tensor cores, M = 64 by reading the weights B. The ladder leads from shared-memory tiles on CUDA cores to
mma.sync fed by cp.async, split-K for few rows, stream-K for tiles that do not fill a last wave, and, on Hopper, wgmma fed by TMA.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Illegal, Op, Params, Shape, Variant, Work, grid, shapes
from generator.ops.gemm_fp16_demand import demand_mma, demand_smem, demand_split, demand_stream, demand_wgmma

AXES = ("M", "N", "K")


def work(s: Shape) -> Work:
    """Read A and B, write C, 2 bytes a number; a multiply and an add per (m, n, k)."""
    m, n, k = s["M"], s["N"], s["K"]
    return Work(bytes=2 * (m * k + n * k) + 2 * m * n, flops=2 * m * n * k, math="fp16")


def constants(s: Shape) -> dict[str, int]:
    return {}


def reference(a: npt.NDArray[np.float16], b: npt.NDArray[np.float16]) -> npt.NDArray[np.float64]:
    """`a @ b.T` for a `[M, K]` and b `[N, K]`; float64 `[M, N]`."""
    return a.astype(np.float64) @ b.astype(np.float64).T


def points(names: tuple[str, ...], *rows: tuple[int, ...]) -> tuple[Params, ...]:
    """One point per row of values."""
    return tuple(dict(zip(names, row, strict=True)) for row in rows)


SMEM_TILES = Variant(
    name="smem_tiles",
    idea="shared-memory tiles multiplied on CUDA cores",
    points=grid(
        lambda p: p["block_n"] == min(p["block_m"], 32) and 128 <= p["block_m"] * p["block_n"] // p["rows"] <= 1024,
        block_m=(16, 32, 64),
        block_n=(16, 32),
        block_k=(16, 32),
        rows=(1, 2, 4),
    ),
    start={"block_m": 32, "block_n": 32, "block_k": 32, "rows": 2},
    demand=demand_smem,
    illegal=(
        Illegal(params={"block_m": 32, "block_n": 32, "block_k": 16, "rows": 3}, rule="ROWS must divide BLOCK_M"),
        Illegal(params={"block_m": 64, "block_n": 32, "block_k": 16, "rows": 1}, rule="a block has at most 1024 threads"),
        Illegal(params={"block_m": 32, "block_n": 32, "block_k": 8, "rows": 1}, rule="BLOCK_K must be whole 32-byte sectors of halves"),
    ),
    bugs=(
        Bug(
            name="free_early",
            old="    __syncthreads(); // all have read the slice before the next one replaces it\n",
            new="",
            slip="no barrier after the arithmetic: a fast warp stages the next slice while others still read this one",
            symptom="race on the shared tiles, results vary with the schedule",
        ),
        Bug(
            name="k_tail",
            old="const bool live = n0 + r < N && k0 + c < K;",
            new="const bool live = n0 + r < N && k0 < K;",
            slip="columns past K are not masked in the slice of B",
            symptom="last slice reads into the next row, and past the end of B",
        ),
    ),
)

MMA_CP_ASYNC = Variant(
    name="mma_cp_async",
    idea="multistage cp.async pipeline feeding mma.sync",
    parent="smem_tiles",
    points=points(
        ("block_m", "block_n", "block_k", "warps", "stages", "swizzle"),
        (32, 64, 32, 4, 2, 8),
        (64, 64, 32, 4, 3, 8),
        (64, 64, 64, 4, 4, 8),
        (64, 128, 32, 4, 2, 8),
        (64, 128, 32, 4, 4, 8),
        (64, 128, 64, 4, 3, 8),
        (64, 256, 32, 8, 4, 8),
        (128, 128, 32, 4, 2, 8),
        (128, 128, 32, 4, 3, 1),
        (128, 128, 32, 4, 3, 8),
        (128, 128, 32, 8, 4, 8),
        (128, 128, 64, 8, 3, 8),
        (128, 256, 32, 8, 3, 8),
        (128, 256, 32, 8, 4, 8),
        (128, 256, 64, 8, 3, 8),
        (256, 128, 32, 8, 3, 8),
    ),
    start={"block_m": 128, "block_n": 128, "block_k": 32, "warps": 4, "stages": 2, "swizzle": 8},
    demand=demand_mma,
    illegal=(
        Illegal(
            params={"block_m": 128, "block_n": 128, "block_k": 32, "warps": 4, "stages": 1, "swizzle": 8},
            rule="a pipeline needs two stages",
        ),
        Illegal(
            params={"block_m": 128, "block_n": 128, "block_k": 48, "warps": 4, "stages": 3, "swizzle": 8},
            rule="BLOCK_K must be 32 or 64: a swizzled row is 64 or 128 bytes",
        ),
        Illegal(
            params={"block_m": 64, "block_n": 64, "block_k": 32, "warps": 8, "stages": 3, "swizzle": 8},
            rule="a warp needs a multiple of 16 columns",
        ),
        Illegal(
            params={"block_m": 256, "block_n": 128, "block_k": 32, "warps": 6, "stages": 3, "swizzle": 8},
            rule="WARPS must be a multiple of BLOCK_M / 64",
        ),
    ),
    bugs=(
        Bug(
            name="wait_late",
            old="cp_async_wait<STAGES - 2>();",
            new="cp_async_wait<STAGES - 1>();",
            slip="wait_group leaves one group too many in flight: the tile about to be read may not have landed",
            symptom="products of stale or poisoned tiles, non-finite values",
        ),
        Bug(
            name="stage_in_use",
            old="const int next = step + STAGES - 1;",
            new="const int next = step + STAGES;",
            slip="the prefetch runs one step ahead of the ring and refills the stage that is being read",
            symptom="race on the shared tiles, every sum differs",
        ),
        Bug(
            name="row_tail",
            old="if (row + 8 < M)",
            new="if (row < M)",
            slip="the lower half of a 16-row fragment is stored under the upper half's bounds check",
            symptom="writes past the last row of C when M % 16 is below 8",
        ),
    ),
)

SPLIT_K = Variant(
    name="split_k",
    idea="K split over blocks, partial tiles reduced",
    parent="mma_cp_async",
    points=grid(
        lambda p: p["block_m"] + p["block_n"] >= 128 and (p["splits"] != 3 or p["block_m"] + p["block_n"] == 192),
        block_m=(32, 64),
        block_n=(64, 128),
        stages=(3, 4),
        splits=(2, 3, 4),
    ),
    start={"block_m": 64, "block_n": 128, "stages": 3, "splits": 2},
    demand=demand_split,
    illegal=(
        Illegal(
            params={"block_m": 128, "block_n": 128, "stages": 3, "splits": 2},
            rule="BLOCK_M must be 16, 32 or 64: one warp holds all rows",
        ),
        Illegal(params={"block_m": 64, "block_n": 96, "stages": 3, "splits": 2}, rule="a warp needs a multiple of 16 columns"),
        Illegal(params={"block_m": 64, "block_n": 128, "stages": 1, "splits": 2}, rule="a pipeline needs two stages"),
        Illegal(
            params={"block_m": 64, "block_n": 128, "stages": 3, "splits": 1},
            rule="one part of K needs no reduction: use mma_cp_async",
        ),
    ),
    bugs=(
        Bug(
            name="part_overlap",
            old="const int steps = max(0, min(part, all - first));",
            new="const int steps = max(0, min(part + 1, all - first));",
            slip="each part runs one slice into the next: the slices at the seams count twice",
            symptom="every sum is too large by one slice per seam",
        ),
        Bug(
            name="part_dropped",
            old="for (int s = 1; s < SPLITS; ++s) {",
            new="for (int s = 1; s < SPLITS - 1; ++s) {",
            slip="the reduction leaves out the last part of K",
            symptom="the contribution of the last columns of A and B is missing",
        ),
    ),
)

STREAM_K = Variant(
    name="stream_k",
    idea="fixed grid, slices shared out across tile borders",
    parent="mma_cp_async",
    points=points(
        ("block_m", "block_n", "block_k", "stages", "persistent"),
        (64, 256, 32, 4, 108),
        (64, 256, 64, 4, 108),
        (128, 128, 32, 3, 216),
        (128, 256, 32, 4, 72),
        (128, 256, 32, 4, 84),
        (128, 256, 32, 4, 108),
        (128, 256, 64, 3, 108),
        (128, 256, 64, 3, 132),
        (128, 256, 32, 4, 170),
        (256, 128, 32, 4, 72),
        (256, 128, 32, 4, 84),
        (256, 128, 64, 3, 108),
        (256, 128, 32, 4, 170),
    ),
    start={"block_m": 128, "block_n": 128, "block_k": 32, "stages": 3, "persistent": 216},
    demand=demand_stream,
    illegal=(
        Illegal(
            params={"block_m": 96, "block_n": 128, "block_k": 32, "stages": 3, "persistent": 216},
            rule="a tile must be whole warp tiles of 64 x 64",
        ),
        Illegal(
            params={"block_m": 128, "block_n": 128, "block_k": 48, "stages": 3, "persistent": 216},
            rule="BLOCK_K must be 32 or 64: a swizzled row is 64 or 128 bytes",
        ),
        Illegal(
            params={"block_m": 128, "block_n": 256, "block_k": 32, "stages": 1, "persistent": 108},
            rule="a pipeline needs two stages",
        ),
        Illegal(
            params={"block_m": 128, "block_n": 256, "block_k": 32, "stages": 4, "persistent": 1},
            rule="one block has nobody to share with",
        ),
    ),
    bugs=(
        Bug(
            name="restart_at_zero",
            old="first = sharing ? at % steps : 0;",
            new="first = 0;",
            slip="a block that enters a tile midway starts at slice 0, not where its predecessor stopped",
            symptom="split tiles sum the first slices twice and miss later ones",
        ),
        Bug(
            name="ticket_of_all",
            old="atomicInc(&ticket[tile], to - from) == to - from;",
            new="atomicInc(&ticket[tile], to - from) == blocks - 1;",
            slip="the last part is recognised by the number of blocks instead of the number of parts of this tile",
            symptom="split tiles are never written, whole ones are right",
        ),
        Bug(
            name="last_part_dropped",
            old="for (int of = from; of <= to; ++of)",
            new="for (int of = from; of < to; ++of)",
            slip="the parts are added up to the last one, exclusive",
            symptom="split tiles lack the slices of the last block that worked on them",
        ),
        Bug(
            name="next_tile_early",
            old="    __syncthreads(); // all are done with the stages of the tile before\n",
            new="",
            slip="no barrier between tiles: the first slices of the next one land in stages that slow warps still read",
            symptom="race on the shared slices after a whole tile",
        ),
    ),
)

WGMMA_TMA = Variant(
    name="wgmma_tma",
    idea="TMA producer warp, wgmma consumer warpgroups",
    parent="mma_cp_async",
    needs=frozenset({"wgmma", "tma"}),
    points=grid(
        lambda p: p["stages"] * (64 * p["consumers"] + p["block_n"]) <= 1536 and (p["swizzle"] == 8 or p["stages"] == 4),
        consumers=(1, 2),
        block_n=(128, 256),
        stages=(2, 4, 6),
        swizzle=(1, 8),
    ),
    start={"consumers": 2, "block_n": 128, "stages": 4, "swizzle": 8},
    demand=demand_wgmma,
    illegal=(
        Illegal(
            params={"consumers": 3, "block_n": 128, "stages": 4, "swizzle": 8},
            rule="CONSUMERS must be 1 or 2: a third leaves too few registers",
        ),
        Illegal(
            params={"consumers": 2, "block_n": 192, "stages": 4, "swizzle": 8},
            rule="BLOCK_N must be 128 or 256: whole wgmma tiles, one TMA box",
        ),
        Illegal(params={"consumers": 2, "block_n": 256, "stages": 6, "swizzle": 8}, rule="stages do not fit in shared memory"),
    ),
    bugs=(
        Bug(
            name="parity",
            old="mbar_wait(&full[s], step / STAGES & 1);",
            new="mbar_wait(&full[s], step & 1);",
            slip="the parity of the full barrier follows the step instead of the round of the ring",
            symptom="consumers read stages that have not landed, or wait for ever",
        ),
        Bug(
            name="first_slice",
            old="step + kk > 0);",
            new="step > 0);",
            slip="the accumulate flag is off for the whole first slice, each product of it overwrites the one before",
            symptom="48 of the first 64 columns of A and B are missing from every sum",
        ),
    ),
)

OP = Op(
    name="gemm_fp16",
    impl="cuda",
    dtype="fp16",
    axes=AXES,
    summary="C[m, n] = sum over k of A[m, k] * B[n, k]; A [M, K], B [N, K] and C [M, N] are row-major fp16, sums in fp32.",
    shapes=shapes(AXES, (4096, 6144, 4096), (64, 28672, 4096), (2048, 8192, 28672)),
    heldout={"M": 256, "N": 18944, "K": 3584},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=2e-3,
    variants=(SMEM_TILES, MMA_CP_ASYNC, SPLIT_K, STREAM_K, WGMMA_TMA),
)
