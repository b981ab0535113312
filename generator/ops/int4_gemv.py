"""int4_gemv: a few rows of fp16 activations times a 4-bit weight matrix (W4A16), the linear layer of a decode step.

Bandwidth of the packed weights decides, provided that unpacking keeps up. The ladder is about instructions per weight and loads in
flight; with several rows, about decoding a weight once for all of them and reading the rows once for many columns.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Columns, Demand, Illegal, Op, Params, Shape, Variant, Work, ceil_div, grid, shapes

AXES = ("M", "N", "K", "G")


def work(s: Shape) -> Work:
    """Read half a byte a weight, an fp16 scale per G weights and x; write y (fp16); one multiply and add per weight and row."""
    m, n, k = s["M"], s["N"], s["K"]
    return Work(bytes=n * k // 2 + 2 * n * k // s["G"] + 2 * m * k + 2 * m * n, flops=2 * m * n * k, math="fp16")


def constants(s: Shape) -> dict[str, int]:
    return {"GROUP": s["G"]}


def reference(w: npt.NDArray[np.uint32], scale: npt.NDArray[np.float16], x: npt.NDArray[np.float16]) -> npt.NDArray[np.float64]:
    """`x @ dequant(w).T` for x `[M, K]`, words w `[N, K / 8]` and scale `[N, K / G]`; float64 `[M, N]`.

    Nibble k of a word lies at bit `4 (k / 2) + 16 (k % 2)`, k = 0..7, and is weight + 8.
    """
    shifts = np.array([4 * (k // 2) + 16 * (k % 2) for k in range(8)], dtype=np.uint32)
    q = ((w[:, :, None] >> shifts) & np.uint32(15)).reshape(w.shape[0], -1).astype(np.float64) - 8.0
    group = q.shape[1] // scale.shape[1]
    out: npt.NDArray[np.float64] = x.astype(np.float64) @ (q * np.repeat(scale.astype(np.float64), group, axis=1)).T
    return out


def demand_naive_unpack(s: Shape, p: Columns) -> Demand:
    """A lane a weight: ~9 instructions to decode one, 3 to use it; eight lanes share a word, so a warp has a sector in flight."""
    m, n, k, warps = s["M"], s["N"], s["K"], p["warps"]
    passes = ceil_div(m, p["block_m"])
    weights = n * k // 2 + 2 * n * k // s["G"]
    visits = n * k * passes
    return Demand(
        blocks=ceil_div(n, warps) * passes,
        threads=32 * warps,
        registers=24 + 2 * p["block_m"] + 3 * p["unroll"],
        dram_bytes=weights + 2 * m * k + 2 * m * n,
        reread_bytes=(passes - 1) * weights + ceil_div(n, warps) * 2 * m * k,
        footprint_bytes=2 * m * k + 8 * warps * k,
        inflight_per_block=warps * 32 * p["unroll"],
        flops=2 * m * n * k,
        alu_ops=visits * (8 + p["block_m"] + 3 / p["unroll"]) + m * n * k,
        sfu_ops=visits,
        lsu_ops=(2 * visits + m * n * k) // 32,
        leak=1.0,
        chain_ns=700 + 30 * ceil_div(k, 64 * p["unroll"]),
    )


def demand_lop3(s: Shape, p: Columns) -> Demand:
    """Per word 11 instructions to decode and 8 per row of x; a lane's 64-byte stride makes each 16-byte load of x four accesses."""
    m, n, k, warps, rows, block_m = s["M"], s["N"], s["K"], p["warps"], p["rows"], p["block_m"]
    tiles, passes = ceil_div(n, warps * rows), ceil_div(m, block_m)
    weights = n * k // 2 + 2 * n * k // s["G"]
    steps = ceil_div(k, 1024)
    lane_steps = tiles * passes * 32 * warps * steps
    return Demand(
        blocks=tiles * passes,
        threads=32 * warps,
        registers=32 + rows * (2 * block_m + np.minimum(2 * block_m, 8)) + 4 * rows * (p["unroll"] - 1),
        dram_bytes=weights + 2 * m * k + 2 * m * n,
        reread_bytes=(passes - 1) * weights + tiles * passes * 2 * block_m * k,
        footprint_bytes=2 * m * k + 8 * warps * rows * k,
        inflight_per_block=np.minimum(warps * rows * 512 * p["unroll"], warps * rows * k // 2),
        alu_ops=lane_steps * (rows * (50 + 32 * block_m) + 8 * block_m + 12 / p["unroll"])
        + tiles * passes * 32 * warps * rows * block_m * 10,
        lsu_ops=lane_steps // 32 * (5 * rows + 16 * block_m) + tiles * passes * warps * rows * block_m * 6,
        leak=0.35,
        chain_ns=600 + 350 * ceil_div(steps, p["unroll"]) + 60 * rows * block_m,
    )


def demand_split_k(s: Shape, p: Columns) -> Demand:
    """Per 16 x 128 tile of weights and warp: 100 instructions to decode, 8 mma for eight rows, whatever M; partials pass through L2."""
    m, n, k, warps, splits = s["M"], s["N"], s["K"], p["warps"], p["splits"]
    tiles = ceil_div(n, 16 * warps)
    steps = ceil_div(k // 128, splits)
    warp_steps = tiles * warps * splits * steps
    return Demand(
        blocks=tiles * splits,
        threads=32 * warps,
        registers=48 + 4 * p["unroll"],
        dram_bytes=n * k // 2 + 2 * n * k // s["G"] + 2 * m * k + 2 * m * n,
        reread_bytes=tiles * 2 * m * k + 2 * splits * 4 * m * n,
        footprint_bytes=2 * m * k + 4 * splits * m * n,
        inflight_per_block=warps * 1024 * p["unroll"],
        flops=2 * 8 * 16 * 128 * warp_steps,
        unit="mma_fp16",
        efficiency=0.5,
        alu_ops=32 * warp_steps * (100 + 12 / p["unroll"]) + m * n * (12 + 2 * splits),
        lsu_ops=warp_steps * (4 * 2 + 4 * 4 + 2),
        leak=0.35,
        launches=2,
        chain_ns=900 + 600 * ceil_div(steps, p["unroll"]),
    )


def demand_mma_small_m(s: Shape, p: Columns) -> Demand:
    """Per 16 x 128 tile of weights and warp 100 instructions to decode and 8 dependent mma per eight rows; x from shared memory.

    A block walks all of K, so a step's barrier, decoding and mma are paid K / 128 times in a row, however few the columns.
    """
    m, n, k = s["M"], s["N"], s["K"]
    bm, bn, bk, stages, warps = p["block_m"], p["block_n"], p["block_k"], p["stages"], p["warps"]
    blocks, mt, nt = ceil_div(m, bm) * ceil_div(n, bn), bm // 8, bn // (16 * warps)
    rounds = ceil_div(k, bk)
    steps = rounds * (bk // 128)
    warp_steps = blocks * warps * steps
    chunks = 4 * bn + 16 * bm
    weights = n * k // 2 + 2 * n * k // s["G"]
    return Demand(
        blocks=blocks,
        threads=32 * warps,
        registers=64 + 16 * mt * nt,
        smem_per_block=stages * (bk // 128) * (64 * bn + 320 * bm),
        dram_bytes=weights + 2 * m * k + 2 * m * n,
        reread_bytes=(ceil_div(m, bm) - 1) * weights + ceil_div(n, bn) * 2 * m * k,
        footprint_bytes=2 * m * k + blocks * stages * (bk // 2) * bn,
        inflight_per_block=(stages - 1) * (bk // 2) * bn,
        flops=2 * bm * 16 * 128 * nt * warp_steps,
        unit="mma_fp16",
        efficiency=0.5,
        alu_ops=32 * warp_steps * (nt * (100 + 4 * mt) + 12) + blocks * steps * chunks * 10,
        lsu_ops=warp_steps * (nt * (8 + 4) + 16 * mt) + blocks * steps * chunks // 8,
        leak=np.where(stages >= 3, 0.15, 0.35),
        chain_ns=1200 + 200 * steps + 60 * rounds,
    )


def _points(*rows: tuple[int, int, int, int, int]) -> tuple[Params, ...]:
    """Points of `mma_small_m`: block_m, block_n, block_k, stages, warps."""
    return tuple(dict(zip(("block_m", "block_n", "block_k", "stages", "warps"), row, strict=True)) for row in rows)


NAIVE_UNPACK = Variant(
    name="naive_unpack",
    idea="one warp a column, one weight a lane",
    points=grid(warps=(2, 4, 8), block_m=(1, 4), unroll=(1, 4)),
    start={"warps": 4, "block_m": 4, "unroll": 1},
    demand=demand_naive_unpack,
    illegal=(
        Illegal(params={"warps": 64, "block_m": 4, "unroll": 1}, rule="a block has 1 to 32 warps"),
        Illegal(params={"warps": 4, "block_m": 16, "unroll": 1}, rule="BLOCK_M must be 1 to 8: one accumulator a row"),
        Illegal(params={"warps": 4, "block_m": 4, "unroll": 3}, rule="UNROLL must be a power of two"),
    ),
    bugs=(
        Bug(
            name="scale_index",
            old="scale[(size_t)n * (K / GROUP) + k / GROUP]",
            new="scale[(size_t)n * (K / GROUP) + k % GROUP % (K / GROUP)]",
            slip="the scale is picked by k % GROUP, it belongs to group k / GROUP",
            symptom="every output differs, worse where scales vary between groups",
        ),
        Bug(
            name="nibble_order",
            old="lane % 8 / 2 * 4 + lane % 2 * 16",
            new="lane % 8 * 4",
            slip="nibbles are taken in bit order; a word is interleaved, odd k lies 16 bits up",
            symptom="every output differs, magnitudes are right",
        ),
        Bug(
            name="unsigned_weight",
            old="(nibble - 8) *",
            new="nibble *",
            slip="the bias of 8 is not subtracted from the nibble",
            symptom="outputs shifted by 8 times the scaled sum of x",
        ),
    ),
)

LOP3 = Variant(
    name="lop3",
    idea="16-byte weight loads, nibbles to half2 by lop3",
    parent="naive_unpack",
    points=grid(
        lambda p: p["rows"] <= 2 if p["block_m"] == 1 else p["rows"] >= 2 and p["unroll"] == 1,
        warps=(4, 8),
        rows=(1, 2, 4),
        block_m=(1, 4, 8),
        unroll=(1, 2),
    ),
    start={"warps": 4, "rows": 2, "block_m": 1, "unroll": 1},
    demand=demand_lop3,
    illegal=(
        Illegal(params={"warps": 40, "rows": 2, "block_m": 1, "unroll": 1}, rule="a block has 1 to 32 warps"),
        Illegal(params={"warps": 4, "rows": 8, "block_m": 8, "unroll": 1}, rule="ROWS * BLOCK_M accumulators exceed 32 registers"),
        Illegal(params={"warps": 4, "rows": 2, "block_m": 1, "unroll": 3}, rule="UNROLL must be a power of two"),
    ),
    bugs=(
        Bug(
            name="bias_1024",
            old="__float2half2_rn(1032.0f)",
            new="__float2half2_rn(1024.0f)",
            slip="the magic number leaves 1024 + w + 8; only 1024 is subtracted",
            symptom="outputs shifted by 8 times the scaled sum of x",
        ),
        Bug(
            name="tail_lanes",
            old="k = lane * LANE_K; k < K; k += 32 * LANE_K",
            new="k = lane * LANE_K; k + 32 * LANE_K <= K; k += 32 * LANE_K",
            slip="the loop bound drops lanes whose last step is not followed by a full one",
            symptom="products of the end of K are missing",
        ),
        Bug(
            name="column_tail",
            old="lane == 0 && n0 + r < N && m0 + m < M",
            new="lane == 0 && n0 < N && m0 + m < M",
            slip="store is guarded by the first column of the warp, not by each; the last one is off the row when N % ROWS != 0",
            symptom="first column of the next row is overwritten",
        ),
    ),
)

SPLIT_K = Variant(
    name="split_k",
    idea="mma on decoded nibbles, K split over blocks",
    parent="lop3",
    points=grid(lambda p: p["unroll"] == 2 or p["warps"] == 4, warps=(2, 4, 8), splits=(1, 2, 4, 8), unroll=(1, 2)),
    start={"warps": 4, "splits": 4, "unroll": 1},
    demand=demand_split_k,
    illegal=(
        Illegal(params={"warps": 64, "splits": 4, "unroll": 1}, rule="a block has 1 to 32 warps"),
        Illegal(params={"warps": 4, "splits": 64, "unroll": 1}, rule="SPLITS must be 1 to 32"),
        Illegal(params={"warps": 4, "splits": 4, "unroll": 6}, rule="UNROLL must be a power of two"),
    ),
    bugs=(
        Bug(
            name="chunk_floor",
            old="(K / STEP_K + SPLITS - 1) / SPLITS * STEP_K",
            new="K / STEP_K / SPLITS * STEP_K",
            slip="K is divided by SPLITS rounding down, the last steps belong to no split",
            symptom="products of the end of K are missing when K / 128 is no multiple of SPLITS",
        ),
        Bug(
            name="lower_scale",
            old="acc[2] += sl * c[2];",
            new="acc[2] += su * c[2];",
            slip="c[2] belongs to column g + 8 but is scaled by column g's scale",
            symptom="columns 8..15 of every tile are off in even rows",
        ),
        Bug(
            name="sum_splits",
            old="partial[(size_t)s * M * N + i]",
            new="partial[(size_t)s * N + i]",
            slip="stride between splits is N instead of M * N",
            symptom="rows are mixed for M > 1",
        ),
    ),
)

MMA_SMALL_M = Variant(
    name="mma_small_m",
    idea="Marlin-style mma, cp.async ring, x in shared memory",
    parent="split_k",
    points=_points(
        (8, 64, 128, 3, 4),
        (8, 64, 128, 4, 4),
        (8, 64, 256, 3, 4),
        (8, 128, 128, 3, 4),
        (8, 128, 128, 4, 4),
        (8, 128, 128, 4, 8),
        (8, 128, 256, 3, 4),
        (8, 256, 128, 3, 8),
        (8, 256, 128, 4, 8),
        (16, 64, 128, 4, 4),
        (16, 128, 128, 4, 4),
        (16, 128, 128, 4, 8),
    ),
    start={"block_m": 16, "block_n": 128, "block_k": 128, "stages": 4, "warps": 4},
    demand=demand_mma_small_m,
    illegal=(
        Illegal(
            params={"block_m": 4, "block_n": 128, "block_k": 128, "stages": 4, "warps": 4},
            rule="BLOCK_M must be 8 or 16: mma takes eight rows",
        ),
        Illegal(
            params={"block_m": 8, "block_n": 96, "block_k": 128, "stages": 4, "warps": 4},
            rule="a warp takes a multiple of 16 columns",
        ),
        Illegal(
            params={"block_m": 8, "block_n": 128, "block_k": 64, "stages": 4, "warps": 4},
            rule="BLOCK_K must be a multiple of 128",
        ),
        Illegal(
            params={"block_m": 8, "block_n": 128, "block_k": 128, "stages": 1, "warps": 4},
            rule="STAGES must be at least 2: one in flight, one in use",
        ),
    ),
    bugs=(
        Bug(
            name="x_in_order",
            old="row * X_PITCH + c % 4 * 4 + c / 4",
            new="row * X_PITCH + c",
            slip="chunks of x are stored in order of k, lanes read them transposed as the weights lie",
            symptom="every output differs, weights meet activations of another k",
        ),
        Bug(
            name="rows_past_m",
            old="const bool live = m < M && k < K;",
            new="const bool live = k < K;",
            slip="rows past M are copied from beyond x, they must be filled with zeros",
            symptom="reads past the end of x when M is no multiple of BLOCK_M",
        ),
        Bug(
            name="wait_too_late",
            old="cp_async_wait<STAGES - 2>();",
            new="cp_async_wait<STAGES - 1>();",
            slip="wait_group allows one group too many, the stage in use may still be in flight",
            symptom="garbage from stages that have not landed",
        ),
    ),
)

OP = Op(
    name="int4_gemv",
    impl="cuda",
    dtype="int4",
    axes=AXES,
    summary="y[m, n] = sum over k of (q[n, k] - 8) * scale[n, k / G] * x[m, k]; x fp16 [M, K], scale fp16 [N, K / G], y fp16 [M, N], "
    "sums in fp32. q is packed in uint32 words w [N, K / 8]: nibble k = 0..7 of a word lies at bit 4 (k / 2) + 16 (k % 2).",
    shapes=shapes(AXES, (1, 4096, 14336, 128), (1, 8192, 8192, 128), (8, 28672, 8192, 128)),
    heldout={"M": 4, "N": 18944, "K": 3584, "G": 128},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=1e-2,
    variants=(NAIVE_UNPACK, LOP3, SPLIT_K, MMA_SMALL_M),
)
