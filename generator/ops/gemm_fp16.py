"""gemm_fp16: the fp16 matrix product behind every linear layer, with fp32 sums.

Large M is bound by the tensor cores, M = 64 by reading the weights B. The ladder leads from shared-memory tiles on CUDA cores to
mma.sync fed by cp.async, split-K for few rows, stream-K for tiles that do not fill a last wave, and, on Hopper, wgmma fed by TMA.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Column, Columns, Demand, Illegal, Op, Params, Shape, Variant, Work, ceil_div, grid, shapes
from generator.ops.gemm_tiles import traffic

AXES = ("M", "N", "K")

ROUND_TRIP_NS = 600
"""Latency of one slice of A and B under load, L2 hits and misses mixed."""


def work(s: Shape) -> Work:
    """Read A and B, write C, 2 bytes a number; a multiply and an add per (m, n, k)."""
    m, n, k = s["M"], s["N"], s["K"]
    return Work(bytes=2 * (m * k + n * k) + 2 * m * n, flops=2 * m * n * k, math="fp16")


def constants(s: Shape) -> dict[str, int]:
    return {}


def reference(a: npt.NDArray[np.float16], b: npt.NDArray[np.float16]) -> npt.NDArray[np.float64]:
    """`a @ b.T` for a `[M, K]` and b `[N, K]`; float64 `[M, N]`."""
    return a.astype(np.float64) @ b.astype(np.float64).T


def demand_smem(s: Shape, p: Columns) -> Demand:
    """Per slice a warp reads its B column once per k, A once per four (one broadcast float4); two barriers, nothing in flight meanwhile."""
    m, n, k = s["M"], s["N"], s["K"]
    bm, bn, bk, rows = p["block_m"], p["block_n"], p["block_k"], p["rows"]
    threads, steps = bm * bn // rows, ceil_div(k, bk)
    warps = threads // 32
    move = traffic(s, 2, bm, bn, warps, np.ones_like(bm))
    staged = (bm + bn) * bk
    return Demand(
        blocks=move.tiles,
        threads=threads,
        registers=38,
        smem_per_block=4 * (bm * bk + bk * (bn + 1)),
        dram_bytes=move.dram_bytes + 2 * m * n,
        reread_bytes=move.reread_bytes,
        footprint_bytes=move.window_rows * bk * 2,
        inflight_per_block=np.minimum(threads * 2, staged) * 2,
        flops=move.tiles * bm * bn * steps * bk * 2,
        alu_ops=move.tiles * steps * staged * 10,
        lsu_ops=move.tiles * steps * (warps * (bk + rows * bk // 4) + staged // 32 * 2),
        leak=0.35,
        chain_ns=1000 + steps * (ROUND_TRIP_NS + 100),
    )


def warp_tile(p: Columns) -> tuple[Column, Column]:
    """Rows and columns of C that one warp owns: up to 64 rows."""
    along_m = np.maximum(p["block_m"] // 64, 1)
    return p["block_m"] // along_m, p["block_n"] * along_m // p["warps"]


def demand_mma(s: Shape, p: Columns) -> Demand:
    """STAGES - 1 tiles in flight; ldmatrix fetches (rows + columns) of a warp tile per k, 128 bytes a clock."""
    m, n, k = s["M"], s["N"], s["K"]
    bm, bn, bk, warps, stages = p["block_m"], p["block_n"], p["block_k"], p["warps"], p["stages"]
    wm, wn = warp_tile(p)
    steps, row = ceil_div(k, bk), bk * 2
    move = traffic(s, 2, bm, bn, warps, p["swizzle"])
    mmas = wm * wn * bk // 2048
    return Demand(
        blocks=move.tiles,
        threads=32 * warps,
        registers=mma_registers(wm, wn, bk),
        smem_per_block=stages * (bm + bn) * row,
        dram_bytes=move.dram_bytes + 2 * m * n,
        reread_bytes=move.reread_bytes,
        footprint_bytes=move.window_rows * row * stages,
        inflight_per_block=(stages - 1) * (np.minimum(bm, m) + bn) * row,
        flops=move.tiles * bm * bn * steps * bk * 2,
        unit="mma_fp16",
        efficiency=mmas / (mmas + 4),
        alu_ops=move.tiles * steps * (bm + bn) * row // 16 * 4,
        lsu_ops=move.tiles * (steps * (bm + bn + warps * (wm + wn)) * row // 128 + bm * bn // 64),
        leak=np.where(stages > 2, 0.15, 0.35),
        chain_ns=1500 + steps * ROUND_TRIP_NS / (stages - 1),
    )


def demand_split(s: Shape, p: Columns) -> Demand:
    """The pipeline of mma_cp_async over a part of K per block; parts of C go to DRAM in fp32, the second kernel still finds them in L2."""
    m, n, k = s["M"], s["N"], s["K"]
    bm, bn, stages, splits = p["block_m"], p["block_n"], p["stages"], p["splits"]
    steps = ceil_div(ceil_div(k, 64), splits)
    move = traffic(s, 2, bm, bn, np.full_like(bm, 4), ceil_div(m, bm))
    blocks, parts, wn = move.tiles * splits, 4 * m * n * splits, bn // 4
    mmas = bm * wn * 64 // 2048
    return Demand(
        blocks=blocks,
        threads=128,
        registers=mma_registers(bm, wn, np.full_like(bm, 64)),
        smem_per_block=stages * (bm + bn) * 128,
        dram_bytes=move.dram_bytes + 2 * m * n + parts,
        reread_bytes=move.reread_bytes + parts,
        footprint_bytes=move.window_rows * 128 * stages,
        inflight_per_block=(stages - 1) * (np.minimum(bm, m) + bn) * 128,
        flops=blocks * bm * bn * steps * 64 * 2,
        unit="mma_fp16",
        efficiency=mmas / (mmas + 4),
        alu_ops=blocks * steps * (bm + bn) * 8 * 4 + m * n * splits,
        lsu_ops=blocks * (steps * (bm + bn + 4 * (bm + wn)) + bm * bn // 32) + m * n * splits // 64,
        leak=np.where(stages > 2, 0.15, 0.35),
        launches=2,
        chain_ns=2500 + steps * ROUND_TRIP_NS / (stages - 1),
    )


def mma_registers(wm: Column, wn: Column, bk: Column) -> Column:
    """Sums and what ptxas adds to move them, fragments of A and B, addresses: within 15 % of most reports of ptxas."""
    return 30 + wm * wn * 9 // 256 + (wm + wn) // 4 + bk // 64 * 16


def demand_stream(s: Shape, p: Columns) -> Demand:
    """Every block gets as many slices as the others, and restarts the pipeline for each tile it has a piece of.

    A share that ends inside a tile makes two parts of it, a further end in the same tile one more. Blocks in their shares are at different
    depths of K: what those tiles have in common comes from DRAM again, unless they are one row of tiles, whose A stays in L2.
    """
    m, n, k = s["M"], s["N"], s["K"]
    bm, bn, bk, stages, blocks = p["block_m"], p["block_n"], p["block_k"], p["stages"], p["persistent"]
    warps, steps, row = bm * bn // 4096, ceil_div(k, bk), bk * 2
    move = traffic(s, 2, bm, bn, warps, ceil_div(m, bm))
    rounds = np.maximum(move.tiles // blocks - 1, 0)
    shared = move.tiles - rounds * blocks
    share = ceil_div(shared * steps, blocks)
    ends = ceil_div(shared * steps, share) - 1
    inside = ends - ends // (steps // np.gcd(share, steps))
    parts = (inside + np.minimum(inside, shared)) * bm * bn
    again = np.where(m > bm, move.reread_bytes * shared // move.tiles, 0)
    mmas = 2 * bk
    return Demand(
        blocks=blocks,
        threads=32 * warps,
        registers=252,
        smem_per_block=stages * (bm + bn) * row + 128,
        dram_bytes=move.dram_bytes + again + 2 * m * n + 4 * parts,
        reread_bytes=move.reread_bytes - again + 4 * parts,
        footprint_bytes=move.window_rows * row * stages,
        inflight_per_block=(stages - 1) * (np.minimum(bm, m) + bn) * row,
        flops=move.tiles * bm * bn * steps * bk * 2,
        unit="mma_fp16",
        efficiency=mmas / (mmas + 4),
        alu_ops=move.tiles * steps * (bm + bn) * row // 16 * 4 + parts,
        lsu_ops=move.tiles * (steps * (bm + bn + warps * 128) * row // 128 + bm * bn // 64) + 2 * parts // 32,
        leak=np.where(stages > 2, 0.15, 0.35),
        chain_ns=1500 * (rounds + 2) + (rounds * steps + share) * ROUND_TRIP_NS / (stages - 1),
        tail_ns=2500,
    )


def demand_wgmma(s: Shape, p: Columns) -> Demand:
    """Operands go from TMA to the tensor cores through shared memory alone; 64 x 128 x 16 products take 64 clocks."""
    m, n, k = s["M"], s["N"], s["K"]
    consumers, bn, stages = p["consumers"], p["block_n"], p["stages"]
    bm = 64 * consumers
    steps = ceil_div(k, 64)
    move = traffic(s, 2, bm, bn, 4 * consumers, p["swizzle"])
    clocks = bm * bn // 32
    return Demand(
        blocks=move.tiles,
        threads=128 * (consumers + 1),
        registers=np.where(consumers == 1, 128, 168),
        smem_per_block=stages * ((bm + bn) * 128 + 16) + 1024,
        dram_bytes=move.dram_bytes + 2 * m * n,
        reread_bytes=move.reread_bytes,
        footprint_bytes=move.window_rows * 128 * stages,
        inflight_per_block=(stages - 1) * (np.minimum(bm, m) + bn) * 128,
        flops=move.tiles * bm * bn * steps * 64 * 2,
        unit="wgmma_fp16",
        efficiency=clocks / (clocks + 24),
        lsu_ops=move.tiles * bm * bn // 64,
        leak=0.05,
        chain_ns=2000 + steps * ROUND_TRIP_NS / (stages - 1),
    )


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
