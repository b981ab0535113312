"""fused_qkv_rope: the query, key and value projection of an attention layer with rotary embedding (neox style), grouped heads.

A GEMM with a cheap tail. The ladder is about tensor cores first, then about how often the product travels to memory and back, and how
many kernels that takes.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Column, Columns, Demand, Illegal, Op, Shape, Variant, Work, ceil_div, grid, shapes
from generator.ops.gemm_tiles import Traffic, traffic

AXES = ("M", "K", "H", "KV", "D")

ROUND_TRIP_NS = 600
"""Latency of one slice of x and w under load, L2 hits and misses mixed."""


def columns(s: Shape) -> int:
    """Columns of the product: all q, k and v heads."""
    return (s["H"] + 2 * s["KV"]) * s["D"]


def work(s: Shape) -> Work:
    """Read x, w (fp16) and the fp32 cosine and sine tables, write q, k, v (fp16); the product, and 3 flops an element of q and k heads."""
    m, k, d, n = s["M"], s["K"], s["D"], columns(s)
    return Work(bytes=2 * (m * k + n * k) + 4 * m * d + 2 * m * n, flops=2 * m * n * k + 3 * m * (s["H"] + s["KV"]) * d, math="fp16")


def constants(s: Shape) -> dict[str, int]:
    return {"HEAD_DIM": s["D"]}


def reference(
    x: npt.NDArray[np.float16],
    w: npt.NDArray[np.float16],
    cosine: npt.NDArray[np.float32],
    sine: npt.NDArray[np.float32],
    heads: int,
    kv_heads: int,
) -> npt.NDArray[np.float64]:
    """`x @ w.T` for x `[M, K]` and w `[(H + 2 KV) D, K]`, its q and k heads rotated; float64 `[M, (H + 2 KV) D]`.

    Cosine and sine are `[M, D / 2]`; element d of a head is paired with d + D / 2. Heads lie in the order q, k, v.
    """
    half = cosine.shape[1]
    product = (x.astype(np.float64) @ w.astype(np.float64).T).reshape(x.shape[0], heads + 2 * kv_heads, 2 * half)
    c, s = cosine.astype(np.float64)[:, None], sine.astype(np.float64)[:, None]
    lo, hi = product[:, : heads + kv_heads, :half].copy(), product[:, : heads + kv_heads, half:].copy()
    product[:, : heads + kv_heads, :half] = lo * c - hi * s
    product[:, : heads + kv_heads, half:] = hi * c + lo * s
    return product.reshape(x.shape[0], -1)


def _product(s: Shape, block_m: Column, block_n: Column, warps: Column) -> Traffic:
    """Traffic of x and w; tiles are walked row by row."""
    return traffic({"M": s["M"], "N": columns(s), "K": s["K"]}, 2, block_m, block_n, warps, np.ones_like(block_m))


def _once(s: Shape) -> int:
    """Bytes of cosine and sine read and of q, k and v written."""
    return 4 * s["M"] * s["D"] + 2 * s["M"] * columns(s)


def demand_three_launches(s: Shape, p: Columns) -> Demand:
    """Per step of k a thread reads TM + TN values for TM x TN products; two more kernels pass over the result.

    There is a barrier either side of the products; other resident blocks cover part of the wait.
    """
    m, n = s["M"], columns(s)
    bm, bn, bk = p["block_m"], p["block_n"], p["block_k"]
    move = _product(s, bm, bn, np.full_like(bm, 8))
    blocks, steps, tm, tn = move.tiles, ceil_div(s["K"], bk), bm // 16, bn // 16
    rotated = m * (s["H"] + s["KV"]) * s["D"]
    return Demand(
        blocks=blocks,
        threads=256,
        registers=24 + tm * tn + tm + tn,
        smem_per_block=(bm + bn) * (bk + 1) * 4,
        dram_bytes=move.dram_bytes + _once(s) + 2 * 2 * m * n + 2 * 2 * rotated,
        reread_bytes=move.reread_bytes,
        footprint_bytes=move.window_rows * bk * 2,
        inflight_per_block=(bm + bn) * bk * 2,
        flops=2 * blocks * bm * bn * steps * bk,
        efficiency=0.85,
        alu_ops=blocks * steps * (bm + bn) * bk * 12 + 20 * rotated + 45 * m * n,
        lsu_ops=blocks * steps * bk * ((bm + bn) / 16 + 8 * (tm + tn)) + (5 * rotated + 2 * m * n) // 32,
        leak=0.7,
        launches=3,
        chain_ns=1000 + ROUND_TRIP_NS * steps,
    )


def _tensor_cores(s: Shape, p: Columns, bn: Column, scratch_bytes: int, alu_ops: int, launches: int) -> Demand:
    """The cp.async product of both mma variants: shared memory is filled once and read by ldmatrix once per warp row or column."""
    m, n = s["M"], columns(s)
    bm, bk, stages, warps = p["block_m"], p["block_k"], p["stages"], p["warps"]
    move = _product(s, bm, bn, warps)
    blocks, steps, wm, wn = move.tiles, ceil_div(s["K"], bk), bm // 2, bn * 2 // warps
    mmas = wm * wn * bk // 2048
    return Demand(
        blocks=blocks,
        threads=32 * warps,
        registers=38 + wm * wn // 32 + (wm + wn) // 4,
        smem_per_block=stages * (bm + bn) * bk * 2,
        dram_bytes=move.dram_bytes + _once(s) + scratch_bytes,
        reread_bytes=move.reread_bytes,
        footprint_bytes=move.window_rows * bk * 2 * stages,
        inflight_per_block=(stages - 1) * (np.minimum(bm, m) + bn) * bk * 2,
        flops=2 * blocks * bm * bn * steps * bk,
        unit="mma_fp16",
        efficiency=mmas / (mmas + 4),
        alu_ops=blocks * steps * ((bm + bn) * bk // 2 + 32 * warps * 12) + alu_ops,
        lsu_ops=blocks * steps * ((bm + bn) * bk // 64 + bk // 16 * warps * (wm + wn) // 4) + m * n // 32,
        leak=np.where(stages >= 3, 0.15, 0.35),
        launches=launches,
        chain_ns=1500 + steps * ROUND_TRIP_NS / (stages - 1),
    )


def demand_gemm_rope(s: Shape, p: Columns) -> Demand:
    """The product goes to memory and back once; the second kernel spends ~8 instructions an element."""
    product = s["M"] * columns(s)
    return _tensor_cores(s, p, p["block_n"], 2 * 2 * product, 8 * product, launches=2)


def demand_epilogue(s: Shape, p: Columns) -> Demand:
    """Nothing but the outputs is written; the rotation costs ~6 instructions an element."""
    return _tensor_cores(s, p, p["heads"] * s["D"], 0, 6 * s["M"] * columns(s), launches=1)


def demand_wgmma(s: Shape, p: Columns) -> Demand:
    """Copies and operand reads cost no instructions; one warpgroup alone leaves the tensor cores idle while it waits for its own sums."""
    m, n = s["M"], columns(s)
    bm, bn, stages, consumers = 64 * p["consumers"], p["heads"] * s["D"], p["stages"], p["consumers"]
    move = _product(s, bm, bn, 4 * consumers)
    blocks, steps = move.tiles, ceil_div(s["K"], 64)
    return Demand(
        blocks=blocks,
        threads=128 * (consumers + 1),
        registers=np.where(consumers == 1, 232, 168),
        smem_per_block=stages * (bm + bn) * 128 + 1024 + 16 * stages,
        dram_bytes=move.dram_bytes + _once(s),
        reread_bytes=move.reread_bytes,
        footprint_bytes=move.window_rows * 128 * stages,
        inflight_per_block=(stages - 1) * (np.minimum(bm, m) + bn) * 128,
        flops=2 * blocks * bm * bn * steps * 64,
        unit="wgmma_fp16",
        efficiency=np.where(consumers == 1, 0.75, 0.9),
        alu_ops=6 * m * n + blocks * steps * consumers * 128 * 8,
        lsu_ops=blocks * steps * consumers * 8 + m * n // 16,
        leak=0.05,
        chain_ns=2000 + steps * ROUND_TRIP_NS / (stages - 1),
    )


THREE_LAUNCHES = Variant(
    name="three_launches",
    idea="CUDA-core GEMM, rope in place, then split",
    points=grid(
        lambda p: p["block_m"] <= 2 * p["block_n"] and p["block_n"] <= 2 * p["block_m"],
        block_m=(32, 64, 128),
        block_n=(32, 64, 128),
        block_k=(16, 32),
    ),
    start={"block_m": 64, "block_n": 64, "block_k": 16},
    demand=demand_three_launches,
    illegal=(
        Illegal(params={"block_m": 40, "block_n": 64, "block_k": 16}, rule="BLOCK_M and BLOCK_N must be multiples of 16"),
        Illegal(params={"block_m": 256, "block_n": 128, "block_k": 16}, rule="more than 64 outputs per thread spill"),
        Illegal(params={"block_m": 128, "block_n": 128, "block_k": 64}, rule="tiles exceed 48 KB of static shared memory"),
    ),
    bugs=(
        Bug(
            name="interleaved_pairs",
            old="const float lo = __half2float(at[0]), hi = __half2float(at[half_dim]);",
            new="const float lo = __half2float(at[d]), hi = __half2float(at[d + 1 < half_dim ? d + 1 : d]);",
            slip="pairs are taken as neighbours 2d, 2d + 1; the model uses neox style, d with d + D / 2",
            symptom="all q and k differ, v is right",
        ),
        Bug(
            name="missing_barrier",
            old="        for (int j = 0; j < TN; ++j) acc[i][j] += a[i] * b[j];\n    }\n    __syncthreads();",
            new="        for (int j = 0; j < TN; ++j) acc[i][j] += a[i] * b[j];\n    }",
            slip="no barrier between the last use of a tile and the next load",
            symptom="race between threads still multiplying and threads loading",
        ),
        Bug(
            name="rope_skips_k",
            old="const int d = i % half_dim, head = i / half_dim % (H + KV), m = i / half_dim / (H + KV);",
            new="const int d = i % half_dim, head = i / half_dim % H, m = i / half_dim / H;",
            slip="head runs over H, k heads are never rotated",
            symptom="k is not rotated, q is right",
        ),
    ),
)

GEMM_ROPE = Variant(
    name="gemm_rope",
    idea="mma.sync GEMM with cp.async, one rope-and-split kernel",
    parent="three_launches",
    points=grid(
        lambda p: (
            (p["block_m"], p["block_n"]) in ((32, 64), (64, 64), (64, 128), (128, 128))
            and p["warps"] == (8 if p["block_m"] == 128 else 4)
            and (p["block_k"], p["stages"]) in ((32, 2), (32, 4), (64, 3), (64, 4))
        ),
        block_m=(32, 64, 128),
        block_n=(64, 128),
        block_k=(32, 64),
        stages=(2, 3, 4),
        warps=(4, 8),
    ),
    start={"block_m": 64, "block_n": 64, "block_k": 32, "stages": 2, "warps": 4},
    demand=demand_gemm_rope,
    illegal=(
        Illegal(
            params={"block_m": 48, "block_n": 64, "block_k": 32, "stages": 2, "warps": 4}, rule="a warp tile must be a multiple of 16 x 16"
        ),
        Illegal(
            params={"block_m": 128, "block_n": 256, "block_k": 32, "stages": 2, "warps": 4},
            rule="more than 128 accumulators per thread spill",
        ),
        Illegal(
            params={"block_m": 64, "block_n": 64, "block_k": 16, "stages": 2, "warps": 4},
            rule="BLOCK_K must be 32 or 64: the swizzle spans 128 bytes",
        ),
        Illegal(
            params={"block_m": 64, "block_n": 64, "block_k": 32, "stages": 1, "warps": 4},
            rule="STAGES must be at least 2: one in flight, one in use",
        ),
    ),
    bugs=(
        Bug(
            name="rope_on_v",
            old="  if (head < H + KV) {",
            new="  if (head < H + 2 * KV) {",
            slip="v heads are rotated too",
            symptom="v differs, q and k are right",
        ),
        Bug(
            name="wait_too_late",
            old="cp_async_wait<STAGES - 2>();",
            new="cp_async_wait<STAGES - 1>();",
            slip="wait_group allows one group too many, the tile in use may still be in flight",
            symptom="garbage from tiles that have not landed",
        ),
        Bug(
            name="kv_offset",
            old=": v + ((size_t)m * KV + head - H - KV) * D;",
            new=": v + ((size_t)m * KV + head - H) * D;",
            slip="v heads start at H + KV, the offset subtracts H alone",
            symptom="v rows land one row too far, the last is out of bounds",
        ),
    ),
)

EPILOGUE = Variant(
    name="epilogue",
    idea="rope on the accumulators, one kernel",
    parent="gemm_rope",
    points=grid(
        lambda p: (
            (p["block_m"], p["heads"], p["warps"]) in ((32, 1, 4), (64, 1, 4), (128, 1, 8), (128, 2, 8))
            and (p["block_k"], p["stages"]) in ((32, 3), (32, 4), (64, 2), (64, 3))
        ),
        block_m=(32, 64, 128),
        heads=(1, 2),
        block_k=(32, 64),
        stages=(2, 3, 4),
        warps=(4, 8),
    ),
    start={"block_m": 64, "heads": 1, "block_k": 32, "stages": 3, "warps": 4},
    demand=demand_epilogue,
    illegal=(
        Illegal(
            params={"block_m": 64, "heads": 1, "block_k": 32, "stages": 3, "warps": 16},
            rule="a warp tile must be a multiple of 16 x 32: 16 columns of each half",
        ),
        Illegal(
            params={"block_m": 32, "heads": 3, "block_k": 32, "stages": 3, "warps": 4},
            rule="a warp must not cross heads: HEADS is too great for WARPS",
        ),
        Illegal(
            params={"block_m": 128, "heads": 2, "block_k": 32, "stages": 3, "warps": 4},
            rule="more than 128 accumulators per thread spill",
        ),
        Illegal(
            params={"block_m": 64, "heads": 1, "block_k": 32, "stages": 1, "warps": 4},
            rule="STAGES must be at least 2: one in flight, one in use",
        ),
    ),
    bugs=(
        Bug(
            name="rotation_sign",
            old="hi.x * c.x + lo.x * s.x, hi.y * c.y + lo.y * s.y",
            new="hi.x * c.x - lo.x * s.x, hi.y * c.y - lo.y * s.y",
            slip="sign of the upper half is wrong: it is hi * cos + lo * sin",
            symptom="upper half of q and k heads differs",
        ),
        Bug(
            name="columns_not_split",
            old="warp_head * HEAD_DIM + j / (NT / 4) * HALF + warp_d + j % (NT / 4) * 16",
            new="warp_head * HEAD_DIM + warp_d * 2 + j * 16",
            slip="the warp takes neighbouring columns, the epilogue expects half of them from the upper half of the head",
            symptom="heads are permuted within, all outputs differ",
        ),
        Bug(
            name="row_stride",
            old="const int heads = head < H ? H : KV,",
            new="const int heads = H,",
            slip="rows of k and v are strided by H heads, they have KV",
            symptom="k and v land in the wrong rows, the last past the end",
        ),
    ),
)

WGMMA = Variant(
    name="wgmma",
    idea="TMA and wgmma, rope on the accumulators",
    parent="epilogue",
    needs=frozenset({"wgmma", "tma"}),
    points=grid(consumers=(1, 2), heads=(1, 2), stages=(2, 3, 4)),
    start={"consumers": 1, "heads": 1, "stages": 4},
    demand=demand_wgmma,
    illegal=(
        Illegal(
            params={"consumers": 3, "heads": 1, "stages": 4},
            rule="CONSUMERS must be 1 or 2: more would need fewer than 232 registers each",
        ),
        Illegal(
            params={"consumers": 1, "heads": 3, "stages": 3},
            rule="HEADS must be 1 or 2: 64 accumulators a head, a TMA box has at most 256 rows",
        ),
        Illegal(params={"consumers": 1, "heads": 1, "stages": 1}, rule="STAGES must be at least 2: one in flight, one in use"),
        Illegal(params={"consumers": 2, "heads": 2, "stages": 5}, rule="stages exceed 227 KB of shared memory"),
    ),
    bugs=(
        Bug(
            name="partner_offset",
            old="make_float2(acc[h][HALF / 2 + i * 2], acc[h][HALF / 2 + i * 2 + 1])",
            new="make_float2(acc[h][HALF / 4 + i * 2], acc[h][HALF / 4 + i * 2 + 1])",
            slip="the partner is taken D / 4 away: 8 columns take 4 accumulators, so D / 2 columns take HALF / 2",
            symptom="all heads differ",
        ),
        Bug(
            name="phase_not_flipped",
            old="mbar_wait(&full[s], step / STAGES & 1);",
            new="mbar_wait(&full[s], 0);",
            slip="consumers wait for phase 0 in every round and run ahead of TMA from the second on",
            symptom="stale tiles once K is longer than the ring",
        ),
        Bug(
            name="half_the_bytes",
            old="mbar_expect_tx(&full[s], STAGE_BYTES);",
            new="mbar_expect_tx(&full[s], BLOCK_M * BLOCK_K * 2);",
            slip="the full barrier expects the bytes of x alone; w's arrive uncounted",
            symptom="barrier's byte count is off, the block hangs",
        ),
    ),
)

OP = Op(
    name="fused_qkv_rope",
    impl="cuda",
    dtype="fp16",
    axes=AXES,
    summary="q, k, v = split(x @ w^T) with rotary embedding on q and k: of a head, out[d] = a[d] cos[d] - a[d + D/2] sin[d] and "
    "out[d + D/2] = a[d + D/2] cos[d] + a[d] sin[d], d < D/2. x fp16 [M, K], w fp16 [(H + 2 KV) D, K] with q, k, v heads in that order, "
    "cos and sin fp32 [M, D/2]; q fp16 [M, H, D], k and v fp16 [M, KV, D], sums in fp32.",
    shapes=shapes(AXES, (64, 4096, 32, 8, 128), (2048, 4096, 32, 8, 128), (256, 5120, 64, 8, 128)),
    heldout={"M": 32, "K": 8192, "H": 64, "KV": 8, "D": 128},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=1e-2,
    variants=(THREE_LAUNCHES, GEMM_ROPE, EPILOGUE, WGMMA),
)
