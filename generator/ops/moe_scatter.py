"""moe_scatter: permutes tokens by expert before the grouped GEMMs of a mixture-of-experts layer.

Two jobs in one: a stable counting sort of few thousand small integers, which is all latency, and a copy of K rows a token, which is
all bandwidth. The ladder is about keeping the first short enough not to show beside the second.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Columns, Demand, Illegal, Op, Quantity, Shape, Variant, Work, ceil_div, grid, shapes

AXES = ("M", "K", "E", "N")

TYPICAL_THREADS = 128 * 2048
"""Threads a data-centre board holds at once: 128 multiprocessors of 2048."""


def work(s: Shape) -> Work:
    """Read x once, write K rows a token (fp16); read the ids, write the row map and the E + 1 offsets (int32). No arithmetic."""
    m, k, n = s["M"], s["K"], s["N"]
    return Work(bytes=m * n * 2 + m * k * n * 2 + 2 * m * k * 4 + (s["E"] + 1) * 4, flops=0, math="fp32")


def constants(s: Shape) -> dict[str, int]:
    return {}


def routing(topk_ids: npt.NDArray[np.int32], experts: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First row of each expert `[E + 1]` and row of each (token, choice) pair `[M * K]`, for ids `[M, K]`; pairs keep their order."""
    ids = topk_ids.reshape(-1)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(ids, minlength=experts))])
    row_map = np.empty(ids.size, dtype=np.int64)
    row_map[np.argsort(ids, kind="stable")] = np.arange(ids.size)
    return offsets.astype(np.int64), row_map


def reference(x: npt.NDArray[np.float16], topk_ids: npt.NDArray[np.int32], experts: int) -> npt.NDArray[np.float64]:
    """Rows of x `[M, N]` grouped by expert, a row for each of the K experts of its token; float64 `[M * K, N]`."""
    _, row_map = routing(topk_ids, experts)
    y = np.empty((topk_ids.size, x.shape[1]), dtype=np.float64)
    y[row_map] = np.repeat(x.astype(np.float64), topk_ids.shape[1], axis=0)
    return y


LEAK = 0.6
"""Between a copy that hides all but the longest of its times (0.35) and a ranking that hides nothing (1)."""


def once(ns: Quantity, blocks: Quantity, threads: Quantity, leak: float) -> npt.NDArray[np.float64]:
    """`chain_ns` by which kernels that run before the main one, alone and once, cost `ns` in all.

    The chain is paid in every wave of the main kernel, and only its `leak` shows: spread over the waves of a typical board.
    """
    waves: npt.NDArray[np.float64] = np.maximum(blocks * threads / TYPICAL_THREADS, 1.0)
    return np.asarray(ns / leak / waves, dtype=np.float64)


def demand_atomics(s: Shape, p: Columns) -> Demand:
    """Each pair compares all pairs before it; the copy touches 2 * slice sectors an access, and a store costs L2 all of them.

    Before it one block counts with atomics, an L2 trip a round, and one thread adds the offsets, 90 ns each.
    """
    m, k, e, n, threads, unroll = s["M"], s["K"], s["E"], s["N"], p["threads"], p["unroll"]
    pairs = m * k
    slice_ = ceil_div(n, threads)
    sectors: npt.NDArray[np.int64] = np.clip(2 * slice_, 4, 32)
    compares = pairs * pairs // 2
    step = 4 + 18 / unroll
    count = 1000 + ceil_div(pairs, threads) * (20 + 400 / unroll) + 90 * e
    return Demand(
        blocks=pairs,
        threads=threads,
        registers=12 + 4 * unroll,
        smem_per_block=4 * threads,
        dram_bytes=work(s).bytes,
        reread_bytes=2 * compares + (k - 1) * 2 * m * n + pairs * n * (sectors - 2),
        footprint_bytes=32 * 65536 + 4 * pairs,
        inflight_per_block=np.minimum(threads * 32, 2 * n),
        alu_ops=compares * (2 + 3 / unroll) + pairs * n * (1 + 3 / unroll),
        lsu_ops=compares // 32 + pairs * n // 16 * np.clip(slice_ / 2, 1, 32) + pairs * (threads // 32) * 24,
        leak=1.0,
        launches=2,
        chain_ns=1400 + (slice_ + ceil_div(pairs, 2 * threads)) * step + once(count, pairs, threads, 1.0),
    )


def demand_count_prefix(s: Shape, p: Columns) -> Demand:
    """One block walks the ids twice, a DRAM trip and then an L2 trip a round; the copy reads a token's row once a block."""
    m, k, e, n = s["M"], s["K"], s["E"], s["N"]
    warps, threads, vec, rows = p["warps"], p["threads"], p["vec"], p["rows"]
    pairs, blocks = m * k, ceil_div(m * k, rows)
    walk = ceil_div(pairs, 32 * warps) * 900
    prefix = ceil_div(e, 32 * warps) * warps * 40 + ceil_div(e, 32) * 120
    rounds = ceil_div(n, vec * threads)
    blocks_per_row: npt.NDArray[np.float64] = np.maximum(k / rows, 1.0)
    return Demand(
        blocks=blocks,
        threads=threads,
        registers=32,
        dram_bytes=work(s).bytes,
        reread_bytes=2 * m * n * (blocks_per_row - 1.0) + 12 * pairs,
        footprint_bytes=2 * n * 256,
        inflight_per_block=2 * n * rows / rounds,
        alu_ops=10 * pairs * n // vec + blocks * threads * 30 * rows,
        lsu_ops=2 * pairs * ceil_div(n, 32 * vec),
        leak=LEAK,
        launches=2,
        chain_ns=900 + 60 * rounds * rows + once(1500 + walk + prefix, blocks, threads, LEAK),
    )


def demand_vec_gather(s: Shape, p: Columns) -> Demand:
    """One block reads the ids once and walks them twice in shared memory; then a plain copy, ROWS packets a thread in flight.

    Each row of x is read for all of its K places, far apart: from L2 while it holds all of x, for y streams through.
    """
    m, k, e, n = s["M"], s["K"], s["E"], s["N"]
    warps, threads, rows = p["warps"], p["threads"], p["rows"]
    pairs = m * k
    blocks, rounds = ceil_div(pairs, rows), ceil_div(n, 8 * threads)
    walks = ceil_div(pairs, 32 * warps) * 200
    prefix = ceil_div(e, 32 * warps) * warps * 40 + ceil_div(e, 32) * 120
    return Demand(
        blocks=blocks,
        threads=threads,
        registers=np.where(rows > 2, 48, 28 + 2 * rows),
        dram_bytes=work(s).bytes,
        reread_bytes=2 * m * n * (k - 1) + 12 * pairs,
        footprint_bytes=2 * m * n + 8 * pairs,
        inflight_per_block=2 * n * rows / rounds,
        alu_ops=pairs * n * 6 // 8 + blocks * threads * (30 + 10 * rows),
        lsu_ops=2 * pairs * ceil_div(n, 256) + pairs * (threads // 32),
        leak=0.35,
        launches=2,
        chain_ns=900 + 60 * rounds * rows,
        tail_ns=1500 + walks + prefix,
    )


def demand_multi_block(s: Shape, p: Columns) -> Demand:
    """Ranking in two short kernels, `chunk` pairs a block, the second adding up all histograms; the copy reads each row once."""
    m, k, e, n, chunk, threads, unroll = s["M"], s["K"], s["E"], s["N"], p["chunk"], p["threads"], p["unroll"]
    pairs = m * k
    chunks, rounds = ceil_div(pairs, chunk), ceil_div(n, 8 * threads * unroll)
    count = 1000 + ceil_div(e, chunk) * 60 + chunk // e * 4
    place = 1600 + ceil_div(e, chunk) * ceil_div(chunks, 4) * 350 + ceil_div(e, 32) * 140 + chunk // 32 * 15
    return Demand(
        blocks=m,
        threads=threads,
        registers=32,
        dram_bytes=work(s).bytes,
        reread_bytes=4 * pairs + 4 * chunks * e * (chunks + 1),
        footprint_bytes=4 * pairs + 4 * chunks * e,
        inflight_per_block=2 * n / rounds,
        alu_ops=pairs * n * 6 // 8 + m * threads * 30,
        lsu_ops=(m + pairs) * ceil_div(n, 256) + pairs * rounds * (threads // 32),
        leak=LEAK,
        launches=3,
        chain_ns=500 + 60 * rounds * k + once(count + place, m, threads, LEAK),
    )


ATOMICS = Variant(
    name="atomics",
    idea="atomic counts, then each pair scans its predecessors",
    points=grid(threads=(64, 128, 256, 512), unroll=(1, 2, 4)),
    start={"threads": 128, "unroll": 1},
    demand=demand_atomics,
    illegal=(
        Illegal(params={"threads": 160, "unroll": 1}, rule="THREADS must be a power of two"),
        Illegal(params={"threads": 2048, "unroll": 1}, rule="a block has 32 to 1024 threads"),
        Illegal(params={"threads": 128, "unroll": 3}, rule="UNROLL must be 1, 2 or 4"),
    ),
    bugs=(
        Bug(
            name="not_stable",
            old="p < pair; p += THREADS) count += ids[p] == expert;",
            new="p <= pair; p += THREADS) count += ids[p] == expert;",
            slip="a pair counts itself among its predecessors",
            symptom="all rows are shifted by one, last row out of bounds",
        ),
        Bug(
            name="inclusive_offsets",
            old="atomicAdd(&offsets[ids[p] + 1], 1)",
            new="atomicAdd(&offsets[ids[p]], 1)",
            slip="counts are one place too low: the prefix is inclusive, not exclusive",
            symptom="offsets[0] is not 0, every expert starts where it should end",
        ),
        Bug(
            name="tree_step",
            old="step > 0; step /= 2",
            new="step > 1; step /= 2",
            slip="the last step of the tree is missing: odd threads are left out",
            symptom="several pairs get the same row",
        ),
    ),
)

COUNT_PREFIX = Variant(
    name="count_prefix",
    idea="one block counts and places, vector row copy",
    parent="atomics",
    points=grid(
        lambda p: (
            (p["vec"] == 8 or p["rows"] == 1)
            and (p["threads"] == 256 or (p["vec"] == 8 and p["rows"] < 4))
            and (p["warps"] != 16 or p["threads"] == 256)
        ),
        warps=(8, 16, 32),
        threads=(128, 256),
        vec=(4, 8),
        rows=(1, 2, 4),
    ),
    start={"warps": 8, "threads": 256, "vec": 4, "rows": 1},
    demand=demand_count_prefix,
    illegal=(
        Illegal(params={"warps": 48, "threads": 256, "vec": 8, "rows": 1}, rule="one block has 1 to 32 warps"),
        Illegal(params={"warps": 8, "threads": 240, "vec": 8, "rows": 1}, rule="THREADS must be whole warps, 1024 at most"),
        Illegal(params={"warps": 8, "threads": 256, "vec": 1, "rows": 1}, rule="VEC must be 2, 4 or 8: one aligned access"),
        Illegal(params={"warps": 8, "threads": 256, "vec": 8, "rows": 16}, rule="ROWS must be 1 to 8"),
    ),
    bugs=(
        Bug(
            name="scan_carry",
            old="first[e + 1] = carry + sum;",
            new="first[e + 1] = sum;",
            slip="the scan drops its carry between groups of 32 experts",
            symptom="experts from 32 on start at row 0 again",
        ),
        Bug(
            name="lane_order",
            old="__popc(same & ((1u << lane) - 1))",
            new="__popc(same) - 1",
            slip="rank inside the warp is the group's size, not the lanes before",
            symptom="pairs of one warp and expert share a row, others stay empty",
        ),
        Bug(
            name="no_barrier",
            old="if (lane == 0) first[0] = 0;\n  }\n  __syncthreads();",
            new="if (lane == 0) first[0] = 0;\n  }",
            slip="no barrier between warp 0's scan and its readers",
            symptom="race on shared memory; offsets read before they are summed",
        ),
        Bug(
            name="pair_for_token",
            old="from[r] = (first + r) / experts_per_token;",
            new="from[r] = first + r;",
            slip="source row is the number of the pair instead of its token",
            symptom="rows of later tokens everywhere, out-of-bounds read past the last",
        ),
    ),
)

VEC_GATHER = Variant(
    name="vec_gather",
    idea="inverse map, blocks gather neighbouring rows",
    parent="count_prefix",
    points=grid(
        lambda p: p["warps"] == 32 or p["rows"] > 2,
        warps=(16, 32),
        threads=(128, 256),
        rows=(1, 2, 4, 8),
    ),
    start={"warps": 16, "threads": 256, "rows": 4},
    demand=demand_vec_gather,
    illegal=(
        Illegal(params={"warps": 64, "threads": 256, "rows": 4}, rule="one block has 1 to 32 warps"),
        Illegal(params={"warps": 16, "threads": 200, "rows": 4}, rule="THREADS must be whole warps, 1024 at most"),
        Illegal(params={"warps": 16, "threads": 256, "rows": 32}, rule="ROWS must be 1 to 16: a thread holds a packet of each"),
    ),
    bugs=(
        Bug(
            name="map_not_inverted",
            old="source[row] = p / experts_per_token;",
            new="source[p] = row / experts_per_token;",
            slip="the inverse map is written the wrong way round: indexed by pair, not by row",
            symptom="rows of y come from other tokens",
        ),
        Bug(
            name="first_walk_only",
            old="mine[expert] + __popc(same & ((1u << lane) - 1));",
            new="__popc(same & ((1u << lane) - 1));",
            slip="rank leaves out the pairs of the warps and rounds before",
            symptom="pairs of an expert share rows, others stay unwritten",
        ),
        Bug(
            name="last_block",
            old="first + r < pairs ?",
            new="first < pairs ?",
            slip="rows past the last are not left out when M * K % ROWS != 0",
            symptom="out-of-bounds read behind the inverse map",
        ),
    ),
)

MULTI_BLOCK = Variant(
    name="multi_block",
    idea="ranking over many blocks, row read once",
    parent="count_prefix",
    points=grid(
        lambda p: p["chunk"] != 512 or p["threads"] == 256,
        chunk=(256, 512, 1024),
        threads=(128, 256, 512),
        unroll=(1, 2),
    ),
    start={"chunk": 256, "threads": 256, "unroll": 1},
    demand=demand_multi_block,
    illegal=(
        Illegal(params={"chunk": 2048, "threads": 256, "unroll": 1}, rule="CHUNK must be whole warps, 1024 pairs at most"),
        Illegal(params={"chunk": 256, "threads": 2048, "unroll": 1}, rule="THREADS must be whole warps, 1024 at most"),
        Illegal(params={"chunk": 256, "threads": 256, "unroll": 8}, rule="UNROLL must be 1, 2 or 4"),
    ),
    bugs=(
        Bug(
            name="earlier_warps",
            old="for (int w = 0; w < warp; ++w)",
            new="for (int w = 0; w <= warp; ++w)",
            slip="a warp adds its own count to those of the warps before",
            symptom="rows are too high by the group's size, last ones out of bounds",
        ),
        Bug(
            name="inclusive_chunks",
            old="if (c == blockIdx.x) before[e] = sum;",
            new="if (c <= blockIdx.x) before[e] = sum + counts[c * experts + e];",
            slip="prefix over chunks is inclusive: a chunk counts itself among those before it",
            symptom="each chunk starts where it should end",
        ),
        Bug(
            name="zeroing_race",
            old="histogram[e] = 0;\n  __syncthreads();",
            new="histogram[e] = 0;",
            slip="no barrier after clearing the histogram",
            symptom="race on shared memory; early counts are wiped",
        ),
    ),
)

OP = Op(
    name="moe_scatter",
    impl="cuda",
    dtype="fp16",
    axes=AXES,
    summary=(
        "Stable grouping of the M * K (token, expert) pairs by expert: pair p = m * K + k gets row row_map[p], rows in order of expert, "
        "then of p; y[row_map[p]] = x[m], offsets[e] = first row of expert e. x is row-major fp16 [M, N], topk_ids int32 [M, K] in 0..E-1, "
        "y fp16 [M * K, N], offsets int32 [E + 1], row_map int32 [M * K]."
    ),
    shapes=shapes(AXES, (4096, 2, 8, 4096), (512, 8, 256, 7168), (2048, 8, 128, 2048)),
    heldout={"M": 1024, "K": 4, "E": 32, "N": 2880},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=0.0,
    variants=(ATOMICS, COUNT_PREFIX, VEC_GATHER, MULTI_BLOCK),
)
