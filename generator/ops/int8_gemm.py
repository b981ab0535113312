"""int8_gemm: the int8 matrix product of W8A8 inference, with a scale per row of A and per row of B.

Large M is bound by the tensor cores, M = 16 by reading the weights B. The ladder leads from shared-memory tiles and __dp4a to mma.sync
on bytes fed by cp.async and, on Hopper, wgmma fed by TMA.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Column, Columns, Demand, Illegal, Op, Params, Shape, Variant, Work, ceil_div, grid, shapes
from generator.ops.gemm_tiles import traffic

AXES = ("M", "N", "K")

ROUND_TRIP_NS = 600
"""Latency of one slice of A and B under load, L2 hits and misses mixed."""


def work(s: Shape) -> Work:
    """Read A and B (1 byte a number) and both scales (fp32), write C (fp16); a multiply and an add per (m, n, k)."""
    m, n, k = s["M"], s["N"], s["K"]
    return Work(bytes=m * k + n * k + 4 * (m + n) + 2 * m * n, flops=2 * m * n * k, math="int8")


def constants(s: Shape) -> dict[str, int]:
    return {}


def reference(
    a: npt.NDArray[np.int8], b: npt.NDArray[np.int8], row_scale: npt.NDArray[np.float32], col_scale: npt.NDArray[np.float32]
) -> npt.NDArray[np.float64]:
    """`(a @ b.T) * row_scale[:, None] * col_scale` for a `[M, K]`, b `[N, K]`, scales `[M]` and `[N]`; float64 `[M, N]`."""
    return a.astype(np.float64) @ b.astype(np.float64).T * row_scale.astype(np.float64)[:, None] * col_scale.astype(np.float64)


def demand_dp4a(s: Shape, p: Columns) -> Demand:
    """A warp reads a word of A per row and one of B for each word of K; two barriers a slice, nothing in flight meanwhile."""
    m, n, k = s["M"], s["N"], s["K"]
    bm, bn, bk, rows = p["block_m"], p["block_n"], p["block_k"], p["rows"]
    threads, steps = bm * bn // rows, ceil_div(k, bk)
    warps, words = threads // 32, bk // 4
    move = traffic(s, 1, bm, bn, warps, np.ones_like(bm))
    staged = (bm + bn) * words
    return Demand(
        blocks=move.tiles,
        threads=threads,
        registers=36,
        smem_per_block=4 * (bm + bn) * (words + 1),
        dram_bytes=move.dram_bytes + 4 * (m + n) + 2 * m * n,
        reread_bytes=move.reread_bytes,
        footprint_bytes=move.window_rows * bk,
        inflight_per_block=np.minimum(threads, staged) * 4,
        flops=move.tiles * bm * bn * steps * bk * 2,
        unit="dp4a",
        alu_ops=move.tiles * steps * staged * 10,
        lsu_ops=move.tiles * steps * (warps * words * (1 + rows) + staged // 32 * 2),
        leak=0.35,
        chain_ns=1000 + steps * (ROUND_TRIP_NS + 100),
    )


def demand_mma(s: Shape, p: Columns) -> Demand:
    """STAGES - 1 tiles in flight; ldmatrix fetches (rows + columns) of a warp tile per k, 128 bytes a clock."""
    m, n, k = s["M"], s["N"], s["K"]
    bm, bn, bk, warps, stages = p["block_m"], p["block_n"], p["block_k"], p["warps"], p["stages"]
    along_m = np.maximum(bm // 64, 1)
    wm, wn = bm // along_m, bn * along_m // warps
    steps = ceil_div(k, bk)
    move = traffic(s, 1, bm, bn, warps, p["swizzle"])
    mmas = wm * wn * bk // 4096
    return Demand(
        blocks=move.tiles,
        threads=32 * warps,
        registers=mma_registers(wm, wn, bk),
        smem_per_block=stages * (bm + bn) * bk,
        dram_bytes=move.dram_bytes + 4 * (m + n) + 2 * m * n,
        reread_bytes=move.reread_bytes,
        footprint_bytes=move.window_rows * bk * stages,
        inflight_per_block=(stages - 1) * (np.minimum(bm, m) + bn) * bk,
        flops=move.tiles * bm * bn * steps * bk * 2,
        unit="mma_int8",
        efficiency=mmas / (mmas + 4),
        alu_ops=move.tiles * (steps * (bm + bn) * bk // 16 * 4 + bm * bn * 3),
        lsu_ops=move.tiles * (steps * (bm + bn + warps * (wm + wn)) * bk // 128 + bm * bn // 32),
        leak=np.where(stages > 2, 0.15, 0.35),
        chain_ns=1700 + steps * ROUND_TRIP_NS / (stages - 1),
    )


def mma_registers(wm: Column, wn: Column, bk: Column) -> Column:
    """Sums and what ptxas adds to move them, fragments of A and B, addresses: within 15 % of most reports of ptxas."""
    return 30 + wm * wn * 9 // 256 + (wm + wn) // 4 + bk // 128 * 16


def demand_wgmma(s: Shape, p: Columns) -> Demand:
    """Operands go from TMA to the tensor cores through shared memory alone; 64 x 128 x 32 products take 64 clocks."""
    m, n, k = s["M"], s["N"], s["K"]
    consumers, bn, stages = p["consumers"], p["block_n"], p["stages"]
    bm = 64 * consumers
    steps = ceil_div(k, 128)
    move = traffic(s, 1, bm, bn, 4 * consumers, p["swizzle"])
    clocks = bm * bn // 32
    return Demand(
        blocks=move.tiles,
        threads=128 * (consumers + 1),
        registers=np.where(consumers == 1, 128, 168),
        smem_per_block=stages * ((bm + bn) * 128 + 16) + 1024,
        dram_bytes=move.dram_bytes + 4 * (m + n) + 2 * m * n,
        reread_bytes=move.reread_bytes,
        footprint_bytes=move.window_rows * 128 * stages,
        inflight_per_block=(stages - 1) * (np.minimum(bm, m) + bn) * 128,
        flops=move.tiles * bm * bn * steps * 128 * 2,
        unit="wgmma_int8",
        efficiency=clocks / (clocks + 24),
        alu_ops=move.tiles * bm * bn * 3,
        lsu_ops=move.tiles * bm * bn // 32,
        leak=0.05,
        chain_ns=2200 + steps * ROUND_TRIP_NS / (stages - 1),
    )


def points(names: tuple[str, ...], *rows: tuple[int, ...]) -> tuple[Params, ...]:
    """One point per row of values."""
    return tuple(dict(zip(names, row, strict=True)) for row in rows)


DP4A = Variant(
    name="dp4a",
    idea="shared-memory tiles multiplied with __dp4a",
    points=grid(
        lambda p: p["block_m"] in (16, p["block_n"]) and 512 <= p["block_m"] * p["block_n"] // p["rows"] <= 1024,
        block_m=(16, 32, 64),
        block_n=(32, 64),
        block_k=(32, 64),
        rows=(1, 2, 4),
    ),
    start={"block_m": 64, "block_n": 64, "block_k": 32, "rows": 4},
    demand=demand_dp4a,
    illegal=(
        Illegal(params={"block_m": 16, "block_n": 32, "block_k": 32, "rows": 3}, rule="ROWS must divide BLOCK_M"),
        Illegal(params={"block_m": 32, "block_n": 64, "block_k": 32, "rows": 1}, rule="a block has at most 1024 threads"),
        Illegal(params={"block_m": 16, "block_n": 32, "block_k": 16, "rows": 1}, rule="BLOCK_K must be whole 32-byte sectors"),
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
            name="scale_index",
            old="row_scale[m] * col_scale[n]",
            new="row_scale[m] * col_scale[col]",
            slip="col_scale is indexed with the column inside the tile, not in C",
            symptom="columns past the first tile carry the scales of the first tile",
        ),
        Bug(
            name="half_sum",
            old="__float2half(sum[i] * row_scale[m] * col_scale[n])",
            new="__float2half(__half2float(__float2half((float)sum[i])) * row_scale[m] * col_scale[n])",
            slip="the integer sum is rounded to fp16 before the scales: it overflows past 65504",
            symptom="inf where the unscaled sum is large",
        ),
    ),
)

MMA_S8 = Variant(
    name="mma_s8",
    idea="multistage cp.async pipeline feeding mma.sync on bytes",
    parent="dp4a",
    points=points(
        ("block_m", "block_n", "block_k", "warps", "stages", "swizzle"),
        (16, 64, 128, 4, 4, 1),
        (16, 128, 128, 4, 3, 1),
        (16, 128, 128, 4, 5, 1),
        (32, 128, 128, 4, 4, 1),
        (64, 64, 64, 4, 3, 8),
        (64, 128, 64, 4, 2, 8),
        (64, 128, 64, 4, 4, 8),
        (64, 128, 128, 4, 3, 8),
        (128, 128, 64, 4, 2, 8),
        (128, 128, 64, 4, 3, 1),
        (128, 128, 64, 4, 3, 8),
        (128, 128, 64, 8, 4, 8),
        (128, 128, 128, 8, 3, 8),
        (128, 256, 64, 8, 3, 8),
        (128, 256, 64, 8, 4, 8),
        (128, 256, 128, 8, 3, 8),
    ),
    start={"block_m": 128, "block_n": 128, "block_k": 64, "warps": 4, "stages": 2, "swizzle": 8},
    demand=demand_mma,
    illegal=(
        Illegal(
            params={"block_m": 128, "block_n": 128, "block_k": 64, "warps": 4, "stages": 1, "swizzle": 8},
            rule="a pipeline needs two stages",
        ),
        Illegal(
            params={"block_m": 128, "block_n": 128, "block_k": 96, "warps": 4, "stages": 3, "swizzle": 8},
            rule="BLOCK_K must be 64 or 128: the bytes of a swizzled row",
        ),
        Illegal(
            params={"block_m": 64, "block_n": 64, "block_k": 64, "warps": 8, "stages": 3, "swizzle": 8},
            rule="a warp needs a multiple of 16 columns",
        ),
        Illegal(
            params={"block_m": 256, "block_n": 128, "block_k": 64, "warps": 6, "stages": 3, "swizzle": 8},
            rule="WARPS must be a multiple of BLOCK_M / 64",
        ),
    ),
    bugs=(
        Bug(
            name="wait_late",
            old="cp_async_wait<STAGES - 2>();",
            new="cp_async_wait<STAGES - 1>();",
            slip="wait_group leaves one group too many in flight: the tile about to be read may not have landed",
            symptom="sums of stale tiles",
        ),
        Bug(
            name="k_tail",
            old="const bool live = row0 + r < rows && k0 + c * 16 < K;",
            new="const bool live = row0 + r < rows && k0 + c < K;",
            slip="the K tail is masked by chunk number instead of byte offset",
            symptom="last slice reads into the next row, and past the end of the matrix",
        ),
        Bug(
            name="scale_column",
            old="row_scale[row] * col_scale[col + 1];",
            new="row_scale[row] * col_scale[col];",
            slip="the second column of a pair takes the scale of the first",
            symptom="odd columns are off by the ratio of neighbouring scales",
        ),
    ),
)

WGMMA_S8 = Variant(
    name="wgmma_s8",
    idea="TMA producer warp, wgmma consumers on bytes",
    parent="mma_s8",
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
            name="descriptor_step",
            old="smem_desc(a + kk * 32)",
            new="smem_desc(a + kk * 64)",
            slip="the descriptor of A advances by 32 halves a product, not by 32 bytes",
            symptom="A and B are paired at different k: every sum differs",
        ),
        Bug(
            name="scale_row",
            old="const float x = d[0] * row_scale[row] * col_scale[col], y",
            new="const float x = d[0] * row_scale[row - m0] * col_scale[col], y",
            slip="row_scale is indexed with the row inside the tile, not in C",
            symptom="even columns of all tile rows but the first carry wrong scales",
        ),
    ),
)

OP = Op(
    name="int8_gemm",
    impl="cuda",
    dtype="int8",
    axes=AXES,
    summary=(
        "C[m, n] = (sum over k of A[m, k] * B[n, k]) * row_scale[m] * col_scale[n]; A [M, K] and B [N, K] are row-major int8, "
        "row_scale [M] and col_scale [N] fp32, C [M, N] row-major fp16, sums in int32."
    ),
    shapes=shapes(AXES, (256, 12288, 4096), (2048, 5120, 13824), (16, 18944, 3584)),
    heldout={"M": 1024, "N": 4096, "K": 11008},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=2e-3,
    variants=(DP4A, MMA_S8, WGMMA_S8),
)
