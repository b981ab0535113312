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


def demand_vec(s: Shape, p: Columns) -> Demand:
    """One pass: a thread holds its packets in registers, all loads issued before the sum is needed.

    A block's latency is its first load, a step of the reduction per warp, and 3 ns of conversion and sum per half and thread.
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
        chain_ns=900 + 10 * warps + 3 * n / threads,
    )


def demand_prefetch(s: Shape, p: Columns) -> Demand:
    """The next row is in flight while a row is reduced: only the first load and the reductions are a chain."""
    m, n, threads, rows = s["M"], s["N"], p["threads"], p["rows"]
    warps, packets = threads // 32, MAX_COLS // (threads * 8)
    blocks = ceil_div(m, rows)
    return Demand(
        blocks=blocks,
        threads=threads,
        registers=12 + 17 * packets,
        smem_per_block=warps * 8,
        dram_bytes=4 * m * n + 2 * n,
        reread_bytes=2 * n * (blocks - 1),
        footprint_bytes=2 * n,
        inflight_per_block=2 * n,
        flops=4 * m * n,
        alu_ops=3 * m * n + m * threads * (30 + 12 * packets),
        lsu_ops=2 * m * ceil_div(n, 256) + blocks * ceil_div(n, 256) + m * warps * 12,
        leak=0.15,
        chain_ns=700 + rows * (180 + 10 * warps + 3 * n / threads),
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

PREFETCH = Variant(
    name="prefetch",
    idea="several rows a block, next row in flight",
    parent="vec",
    points=grid(threads=(128, 256, 512, 1024), rows=(2, 4, 8)),
    start={"threads": 256, "rows": 4},
    demand=demand_prefetch,
    illegal=(
        Illegal(params={"threads": 384, "rows": 4}, rule="THREADS must be a power of two"),
        Illegal(params={"threads": 64, "rows": 4}, rule="THREADS must be 128 to 1024: the row in registers"),
        Illegal(params={"threads": 256, "rows": 1}, rule="ROWS must be 2 to 16"),
    ),
    bugs=(
        Bug(
            name="one_buffer",
            old="if (lane == 0) partial[r % 2][warp] = sum;",
            new="if (lane == 0) partial[0][warp] = sum;",
            slip="sums of odd rows go to buffer 0 but are read from buffer 1",
            symptom="odd rows of a block are scaled by garbage",
        ),
        Bug(
            name="same_row",
            old="load(next, x + row + cols, row_packets)",
            new="load(next, x + row, row_packets)",
            slip="prefetch requests the current row instead of the next",
            symptom="every row of a block repeats its first",
        ),
        Bug(
            name="last_block",
            old="count = min(ROWS, rows - first)",
            new="count = ROWS",
            slip="the last block is not clipped when M % ROWS != 0",
            symptom="out-of-bounds read behind the last row",
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
    variants=(SCALAR, VEC, PREFETCH),
)
