"""rmsnorm: root-mean-square normalisation of the rows of an fp16 matrix, as in Llama.

Pure bandwidth: each element is read once, written once. The ladder is about whole sectors, loads in flight, and what the reduction in
the middle of a row costs.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Column, Columns, Demand, Illegal, Op, Quantity, Shape, Variant, Work, ceil_div, grid, shapes

AXES = ("M", "N")

MAX_COLS = 8192
"""Row length for which the kernels that keep a row in registers are sized."""

PORT = 115
"""Bytes a ns through the port of an SM to L2: 64 a clock, at 1.8 GHz."""


def work(s: Shape) -> Work:
    """Read x, write y (fp16), read the weight once; square, add, scale, weight: 4 flops an element."""
    m, n = s["M"], s["N"]
    return Work(bytes=2 * m * n * 2 + n * 2, flops=4 * m * n, math="fp32")


def constants(s: Shape) -> dict[str, int]:
    return {}


def reference(x: npt.NDArray[np.float16], w: npt.NDArray[np.float16], eps: float) -> npt.NDArray[np.float64]:
    """`x * rsqrt(mean(x^2) + eps) * w` for x `[M, N]` and w `[N]`; float64 `[M, N]`."""
    xf = x.astype(np.float64)
    scale: npt.NDArray[np.float64] = 1.0 / np.sqrt((xf * xf).mean(axis=1, keepdims=True) + eps)
    return xf * scale * w.astype(np.float64)


def demand_scalar(s: Shape, p: Columns) -> Demand:
    """Contiguous slices: 2 * slice sectors an access, one access in flight; a store costs L2 every sector it touches.

    x is read twice and w once a row, from L2 where the rows of all resident blocks (131072 threads) fit. A step of the tree is a
    barrier and a shared-memory trip.
    """
    m, n, threads, unroll = s["M"], s["N"], p["threads"], p["unroll"]
    warps = threads // 32
    slice_ = ceil_div(n, threads)
    sectors: npt.NDArray[np.int64] = np.clip(2 * slice_, 2, 32)
    return Demand(
        blocks=m,
        threads=threads,
        registers=20 + 3 * unroll // 2,
        smem_per_block=threads * 4,
        dram_bytes=4 * m * n + 2 * n,
        reread_bytes=4 * m * n + m * n * (sectors - 2),
        footprint_bytes=4 * n * (131072 / threads),
        inflight_per_block=np.minimum(threads * 32, 2 * n),
        flops=4 * m * n,
        alu_ops=m * n * (8 + 8 / unroll),
        lsu_ops=m * n // 8 * np.clip(slice_ / 2, 1, 32) + m * warps * 36,
        leak=1.0,
        chain_ns=900 + 2 * slice_ * (4 + 18 / unroll) + _steps(threads) * 35,
    )


def _steps(threads: Column) -> Quantity:
    """log2 of a power of two between 32 and 1024, by comparisons: the steps of a tree."""
    return 5 + (threads >= 64) + (threads >= 128) + (threads >= 256) + (threads >= 512) + (threads >= 1024)


def demand_warp_row(s: Shape, p: Columns) -> Demand:
    """One pass by one warp: 3 ns a half and lane, and no step between warps. A row fills 128 registers a lane, so 12 warps fill an SM."""
    m, n, rows, vec = s["M"], s["N"], p["rows"], p["vec"]
    packets = MAX_COLS // (32 * vec)
    return Demand(
        blocks=ceil_div(m, rows),
        threads=32 * rows,
        registers=156 + 24 // vec,
        dram_bytes=4 * m * n + 2 * n,
        reread_bytes=2 * m * n,
        footprint_bytes=2 * n,
        inflight_per_block=2 * n * rows,
        flops=4 * m * n,
        alu_ops=3 * m * n + m * 32 * (20 + 8 * packets),
        lsu_ops=m * (3 * ceil_div(n, 32 * vec) + 5),
        leak=0.35,
        chain_ns=900 + 4 * n / PORT + 3 * n / 32,
    )


def demand_vec(s: Shape, p: Columns) -> Demand:
    """One pass: a thread holds its packets in registers, all loads issued before the sum is needed.

    A block's latency is its first load, the row and then the weights through one port, a step of the reduction per warp, and 3 ns of
    conversion and sum per half and thread.
    """
    m, n, threads, vec = s["M"], s["N"], p["threads"], p["vec"]
    warps, packets = threads // 32, MAX_COLS // (threads * vec)
    return Demand(
        blocks=m,
        threads=threads,
        registers=24 + packets * vec * 3 // 8,
        smem_per_block=warps * 4,
        dram_bytes=4 * m * n + 2 * n,
        reread_bytes=2 * m * n,
        footprint_bytes=2 * n,
        inflight_per_block=2 * n,
        flops=4 * m * n,
        alu_ops=3 * m * n + m * threads * (30 + 8 * packets),
        lsu_ops=m * (3 * ceil_div(n, 32 * vec) + warps * 12),
        leak=0.35,
        chain_ns=900 + 4 * n / PORT + 10 * warps + 3 * n / threads,
    )


def demand_persistent(s: Shape, p: Columns) -> Demand:
    """The next row is in flight while a row is reduced: only the first load and the reductions are a chain.

    It is as long as a block has rows; a block with a single row hides no more than `vec` does. Weights are read once a block.
    """
    m, n, threads = s["M"], s["N"], p["threads"]
    warps, packets = threads // 32, MAX_COLS // (threads * 8)
    blocks = np.minimum(p["persistent"], m)
    turns = ceil_div(m, blocks)
    return Demand(
        blocks=blocks,
        threads=threads,
        registers=14 + 17 * packets,
        smem_per_block=warps * 8,
        dram_bytes=4 * m * n + 2 * n,
        reread_bytes=2 * n * (blocks - 1),
        footprint_bytes=2 * n,
        inflight_per_block=2 * n,
        flops=4 * m * n,
        alu_ops=3 * m * n + m * threads * (30 + 12 * packets),
        lsu_ops=2 * m * ceil_div(n, 256) + blocks * ceil_div(n, 256) + m * warps * 12,
        leak=0.15 + 0.2 / turns,
        chain_ns=700 + 4 * n / PORT + turns * (180 + 10 * warps + 3 * n / threads),
    )


def demand_cluster_rows(s: Shape, p: Columns) -> Demand:
    """A row over the blocks of a cluster: CLUSTER times the ports, and a chain longer than that of one row of `persistent`.

    Estimates: 190 ns for the barrier of the cluster, 110 ns (200 cycles; 180 to 213 are measured on H100) for the read of distributed
    shared memory, 50 ns for what the stores leave open of the barrier before the exit.
    """
    m, n, threads, cluster = s["M"], s["N"], p["threads"], p["cluster"]
    warps, packets = threads // 32, MAX_COLS // (cluster * threads * 8)
    return Demand(
        blocks=m * cluster,
        threads=threads,
        registers=18 + 10 * packets,
        smem_per_block=warps * 4,
        dram_bytes=4 * m * n + 2 * n,
        reread_bytes=2 * m * n,
        footprint_bytes=2 * n,
        inflight_per_block=2 * n / cluster,
        flops=4 * m * n,
        alu_ops=3 * m * n + m * cluster * threads * (40 + 8 * packets),
        lsu_ops=m * (3 * ceil_div(n, 256) + cluster * warps * 14),
        leak=0.35,
        chain_ns=700 + 4 * n / (cluster * PORT) + 180 + 190 + 110 + 50 + 10 * warps + 3 * n / (cluster * threads),
    )


SCALAR = Variant(
    name="scalar",
    idea="one block per row, contiguous slices, two passes",
    points=grid(threads=(64, 128, 256, 512, 1024), unroll=(1, 2, 4)),
    start={"threads": 128, "unroll": 1},
    demand=demand_scalar,
    illegal=(
        Illegal(params={"threads": 96, "unroll": 1}, rule="THREADS must be a power of two"),
        Illegal(params={"threads": 2048, "unroll": 1}, rule="a block has at most 1024 threads"),
        Illegal(params={"threads": 128, "unroll": 3}, rule="UNROLL must be 1, 2 or 4"),
    ),
    bugs=(
        Bug(
            name="eps_outside",
            old="rsqrtf(block_sum(sum) / cols + eps)",
            new="rsqrtf(block_sum(sum) / cols) + eps",
            slip="eps is added after rsqrt instead of under the root",
            symptom="rows near zero blow up",
        ),
        Bug(
            name="padded_mean",
            old="rsqrtf(block_sum(sum) / cols + eps)",
            new="rsqrtf(block_sum(sum) / (slice * THREADS) + eps)",
            slip="mean is taken over the padded row, slice * THREADS instead of N",
            symptom="rows come out too large unless THREADS divides N",
        ),
        Bug(
            name="no_barrier",
            old="partial[threadIdx.x] = v;\n  __syncthreads();",
            new="partial[threadIdx.x] = v;",
            slip="no barrier between writing the partial sums and the first step",
            symptom="race on shared memory; sums of slow warps are missed",
        ),
    ),
)

WARP_ROW = Variant(
    name="warp_row",
    idea="one warp per row, shuffles only, no barrier",
    parent="scalar",
    points=grid(rows=(1, 2, 4, 8), vec=(2, 4, 8)),
    start={"rows": 4, "vec": 4},
    demand=demand_warp_row,
    illegal=(
        Illegal(params={"rows": 4, "vec": 3}, rule="VEC must be 2, 4 or 8: one aligned access"),
        Illegal(params={"rows": 0, "vec": 8}, rule="ROWS must be at least 1"),
        Illegal(params={"rows": 16, "vec": 8}, rule="ROWS must be 8 at most: more warps would spill their rows"),
    ),
    bugs=(
        Bug(
            name="half_warp",
            old="int offset = 16; offset > 0",
            new="int offset = 8; offset > 0",
            slip="butterfly starts at 8, so each half of the warp sums for itself",
            symptom="halves of a row are scaled apart, by about the root of two",
        ),
        Bug(
            name="capacity_mean",
            old="warp_sum(sum) / cols + eps",
            new="warp_sum(sum) / MAX_COLS + eps",
            slip="mean is taken over the longest row that fits, not over N",
            symptom="rows shorter than 8192 come out too large",
        ),
        Bug(
            name="weight_packet",
            old="const Packet weight = wp[p];",
            new="const Packet weight = wp[lane];",
            slip="weight packet lacks the step over the row: every step uses the first ones",
            symptom="columns past the first 32 packets carry the weights of others",
        ),
    ),
)

VEC = Variant(
    name="vec",
    idea="row kept in registers, wide loads, one pass",
    parent="scalar",
    points=grid(threads=(128, 256, 512, 1024), vec=(2, 4, 8)),
    start={"threads": 256, "vec": 2},
    demand=demand_vec,
    illegal=(
        Illegal(params={"threads": 256, "vec": 3}, rule="VEC must be 2, 4 or 8: one aligned access"),
        Illegal(params={"threads": 192, "vec": 8}, rule="THREADS must be a power of two, 32 at least"),
        Illegal(params={"threads": 2048, "vec": 8}, rule="THREADS * VEC exceeds the longest row"),
    ),
    bugs=(
        Bug(
            name="sum_not_shared",
            old="return warp_sum(lane < WARPS ? partial[lane] : 0.0f);",
            new="return warp_sum(lane < WARPS - 1 ? partial[lane] : 0.0f);",
            slip="the last warp's partial sum is left out of the block sum",
            symptom="rows that fill the block are scaled up by a few per cent",
        ),
        Bug(
            name="half_squares",
            old="sum += f.x * f.x + f.y * f.y;",
            new="sum += __half2float(__float2half(f.x * f.x)) + f.y * f.y;",
            slip="square is rounded to fp16: 65504 is soon passed",
            symptom="rows with values above 255 become zero",
        ),
        Bug(
            name="tail_packet",
            old="if (p < row_packets) keep[i] = xp[p];",
            new="if (p <= row_packets) keep[i] = xp[p];",
            slip="bound check lets the first packet of the next row through",
            symptom="out-of-bounds read after the last row",
        ),
    ),
)

PERSISTENT = Variant(
    name="persistent",
    idea="fixed grid over the rows, next row in flight",
    parent="vec",
    points=grid(threads=(128, 256, 512), persistent=(64, 128, 256, 512)),
    start={"threads": 256, "persistent": 128},
    demand=demand_persistent,
    illegal=(
        Illegal(params={"threads": 384, "persistent": 128}, rule="THREADS must be a power of two"),
        Illegal(params={"threads": 64, "persistent": 128}, rule="THREADS must be 128 to 1024: the row in registers"),
        Illegal(params={"threads": 256, "persistent": 0}, rule="PERSISTENT must be at least 1"),
    ),
    bugs=(
        Bug(
            name="one_buffer",
            old="row += PERSISTENT, turn ^= 1)",
            new="row += PERSISTENT)",
            slip="the two buffers never take turns: with one barrier a row, a fast warp overwrites sums that others still read",
            symptom="race on shared memory from the second row of a block on",
        ),
        Bug(
            name="same_row",
            old="x + (size_t)(row + PERSISTENT) * cols",
            new="x + (size_t)row * cols",
            slip="prefetch requests the current row instead of the next",
            symptom="every row of a block repeats its first",
        ),
        Bug(
            name="short_weights",
            old="load(weight, w, row_packets);",
            new="load(weight, w, row_packets - 1);",
            slip="the last packet of the weights is never loaded",
            symptom="the last eight columns are zero",
        ),
    ),
)

CLUSTER_ROWS = Variant(
    name="cluster_rows",
    idea="a row over a cluster, sums through distributed shared memory",
    parent="vec",
    needs=frozenset({"cluster"}),
    points=grid(lambda p: 128 <= p["cluster"] * p["threads"] <= 1024, cluster=(2, 4, 8), threads=(32, 64, 128, 256, 512)),
    start={"cluster": 4, "threads": 128},
    demand=demand_cluster_rows,
    illegal=(
        Illegal(params={"cluster": 3, "threads": 128}, rule="CLUSTER must be 2, 4 or 8: a portable size"),
        Illegal(params={"cluster": 4, "threads": 96}, rule="THREADS must be a power of two, 32 at least"),
        Illegal(params={"cluster": 8, "threads": 256}, rule="CLUSTER * THREADS exceeds the packets of the longest row"),
    ),
    bugs=(
        Bug(
            name="no_exit_barrier",
            old="[p] = out;\n  }\n  cluster_wait();",
            new="[p] = out;\n  }",
            slip="a block does not wait at its end, so it may exit while others read its sums",
            symptom="reads from the shared memory of a block that has exited",
        ),
        Bug(
            name="own_sums",
            old="read_from(&partial[lane % WARPS], lane / WARPS)",
            new="partial[lane % WARPS]",
            slip="sums are read from the own block, CLUSTER times, and not from the others",
            symptom="slices of a row are scaled apart",
        ),
        Bug(
            name="block_barrier",
            old="cluster_sync();",
            new="__syncthreads();",
            slip="barrier of the block where the sums of the whole cluster are needed",
            symptom="sums of slower blocks are read before they are there",
        ),
    ),
)

OP = Op(
    name="rmsnorm",
    impl="cuda",
    dtype="fp16",
    axes=AXES,
    summary=(
        "y[m, n] = x[m, n] * rsqrt(mean over n of x[m, n]^2 + eps) * w[n]; "
        "x and y are row-major fp16 [M, N], w fp16 [N], sums in fp32, eps = 1e-5."
    ),
    shapes=shapes(AXES, (4096, 4096), (16384, 8192), (64, 7168)),
    heldout={"M": 2048, "N": 5120},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=2e-3,
    variants=(SCALAR, WARP_ROW, VEC, PERSISTENT, CLUSTER_ROWS),
)
