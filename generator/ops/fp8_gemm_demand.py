"""The work of fp8_gemm and what its variants ask of a GPU: the accounting behind floors and prices."""

import numpy as np

from generator.ops.base import Columns, Demand, Shape, Work, ceil_div
from generator.ops.gemm_tiles import traffic

ROUND_TRIP_NS = 600
"""Latency of one slice of A and B under load, L2 hits and misses mixed."""


def work(s: Shape) -> Work:
    """Read A and B (1 byte) and their fp32 scales (per 1 x 128 of A, per 128 x 128 of B), write C (fp16); one multiply and add each."""
    m, n, k = s["M"], s["N"], s["K"]
    scales = m * (k // 128) + -(-n // 128) * (k // 128)
    return Work(bytes=m * k + n * k + 4 * scales + 2 * m * n, flops=2 * m * n * k, math="fp8")


def _once(s: Shape) -> int:
    """Bytes of scales read and of C written."""
    return work(s).bytes - s["K"] * (s["M"] + s["N"])


def demand_dequant_tiles(s: Shape, p: Columns) -> Demand:
    """Decoding costs ~16 instructions a value; a thread then reads TM + TN values for TM x TN products.

    There is a barrier either side of the products; other resident blocks cover part of the wait.
    """
    bm, bn, bk = p["block_m"], p["block_n"], p["block_k"]
    steps, tm, tn = s["K"] // bk, bm // 16, bn // 16
    move = traffic(s, 1, bm, bn, np.full_like(bm, 8), np.ones_like(bm))
    blocks = move.tiles
    return Demand(
        blocks=blocks,
        threads=256,
        registers=30 + tm * tn + tm + tn,
        smem_per_block=(bm + bn) * (bk + 1) * 4,
        dram_bytes=move.dram_bytes + _once(s),
        reread_bytes=move.reread_bytes,
        footprint_bytes=move.window_rows * bk,
        inflight_per_block=(bm + bn) * bk,
        flops=2 * blocks * bm * bn * steps * bk,
        efficiency=0.85,
        alu_ops=blocks * steps * (bm + bn) * bk * 16,
        lsu_ops=blocks * steps * bk * ((bm + bn) * 3 / 32 + 8 * (tm + tn)),
        leak=0.65,
        chain_ns=1000 + ROUND_TRIP_NS * steps,
    )


def demand_dequant_mma(s: Shape, p: Columns) -> Demand:
    """A block decodes each value once, at 1.75 instructions, and writes it back to shared memory as fp16; two barriers a step."""
    m, n, k = s["M"], s["N"], s["K"]
    bm, bn, bk, stages, warps, splits = p["block_m"], p["block_n"], p["block_k"], p["stages"], p["warps"], p["splits"]
    move = traffic(s, 1, bm, bn, warps, np.ones_like(bm))
    steps = ceil_div(k // 128, splits) * (128 // bk)
    blocks, wm, wn = move.tiles * splits, bm // 2, bn * 2 // warps
    values = (bm + bn) * bk
    partials = np.where(splits > 1, 8 * m * n * splits, 0)
    return Demand(
        blocks=blocks,
        threads=32 * warps,
        registers=54 + wm * wn // 16 + (wm + wn) // 4,
        smem_per_block=(stages + 2) * values,
        dram_bytes=move.dram_bytes + _once(s),
        reread_bytes=move.reread_bytes + partials,
        footprint_bytes=move.window_rows * bk * stages + partials // 2,
        inflight_per_block=(stages - 1) * (np.minimum(bm, m) + bn) * bk,
        flops=2 * blocks * bm * bn * steps * bk,
        unit="mma_fp16",
        efficiency=0.95,
        alu_ops=blocks * steps * (2 * values + 32 * warps * 12) + blocks * bm * bn * steps * bk // 64 + partials,
        lsu_ops=blocks * steps * (values * 4 // 128 + bk // 16 * warps * (wm + wn) // 4) + m * n // 32 + partials // 128,
        leak=np.where(stages >= 3, 0.2, 0.35),
        launches=np.where(splits > 1, 2, 1),
        chain_ns=1500 + steps * (60 + ROUND_TRIP_NS / (stages - 1)),
    )


def demand_mma_e4m3(s: Shape, p: Columns) -> Demand:
    """Bytes go from shared memory to the tensor cores as they are. Promotion: two operations an element, the sums are cleared too."""
    m, n, k = s["M"], s["N"], s["K"]
    bm, bn, bk, stages, warps = p["block_m"], p["block_n"], p["block_k"], p["stages"], p["warps"]
    move = traffic(s, 1, bm, bn, warps, np.ones_like(bm))
    steps, blocks, wm, wn = k // bk, move.tiles, bm // 2, bn * 2 // warps
    values = (bm + bn) * bk
    return Demand(
        blocks=blocks,
        threads=32 * warps,
        registers=50 + wm * wn // 16 + (wm + wn) // 4,
        smem_per_block=stages * values,
        dram_bytes=move.dram_bytes + _once(s),
        reread_bytes=move.reread_bytes,
        footprint_bytes=move.window_rows * bk * stages,
        inflight_per_block=(stages - 1) * (np.minimum(bm, m) + bn) * bk,
        flops=2 * blocks * bm * bn * steps * bk,
        unit="mma_fp8",
        efficiency=0.95,
        alu_ops=blocks * steps * (values // 2 + 32 * warps * 12) + blocks * bm * bn * steps * bk // 64,
        lsu_ops=blocks * steps * (values // 128 + bk // 32 * warps * (wm + wn) // 4) + m * n // 32,
        leak=np.where(stages >= 3, 0.15, 0.35),
        chain_ns=1500 + steps * ROUND_TRIP_NS / (stages - 1),
    )


def demand_mxfp8(s: Shape, p: Columns) -> Demand:
    """As `mma_e4m3` at the rate of the block-scaled form; one operation an element for promotion, B read from shared memory once."""
    m, n, k = s["M"], s["N"], s["K"]
    bm, bn, stages, warps = p["block_m"], p["block_n"], p["stages"], p["warps"]
    move = traffic(s, 1, bm, bn, warps, np.ones_like(bm))
    steps, blocks, wm, wn = k // 128, move.tiles, bm // 2, bn * 2 // warps
    values = (bm + bn) * 128
    return Demand(
        blocks=blocks,
        threads=32 * warps,
        registers=np.where(wm > 16, 36 + 11 * (wm + wn) // 8, 64),
        smem_per_block=stages * values,
        dram_bytes=move.dram_bytes + _once(s),
        reread_bytes=move.reread_bytes,
        footprint_bytes=move.window_rows * 128 * stages,
        inflight_per_block=(stages - 1) * (np.minimum(bm, m) + bn) * 128,
        flops=2 * blocks * bm * bn * steps * 128,
        unit="mma_mxfp8",
        efficiency=0.95,
        alu_ops=blocks * steps * (values + 32 * warps * 12) + blocks * bm * bn * steps,
        lsu_ops=blocks * steps * (values // 128 + warps * (wm + wn)) + m * n // 32,
        leak=np.where(stages >= 3, 0.15, 0.35),
        chain_ns=1500 + steps * ROUND_TRIP_NS / (stages - 1),
    )


def demand_fp4_shortcut(s: Shape, p: Columns) -> Demand:
    """A block rounds each value once, in 4 operations, between two barriers; mma then reads half the bytes at twice the rate."""
    m, n, k = s["M"], s["N"], s["K"]
    bm, bn, stages, warps = p["block_m"], p["block_n"], p["stages"], p["warps"]
    move = traffic(s, 1, bm, bn, warps, np.ones_like(bm))
    steps, blocks, wm, wn = k // 128, move.tiles, bm // 2, bn * 2 // warps
    values = (bm + bn) * 128
    return Demand(
        blocks=blocks,
        threads=32 * warps,
        registers=np.where(wm > 16, 36 + 11 * (wm + wn) // 8, 64),
        smem_per_block=(bm + bn) * (128 * stages + 68),
        dram_bytes=move.dram_bytes + _once(s),
        reread_bytes=move.reread_bytes,
        footprint_bytes=move.window_rows * 128 * stages,
        inflight_per_block=(stages - 1) * (np.minimum(bm, m) + bn) * 128,
        flops=2 * blocks * bm * bn * steps * 128,
        unit="mma_mxfp4",
        efficiency=0.95,
        alu_ops=blocks * steps * (5 * values + 32 * warps * 12) + blocks * bm * bn * steps,
        lsu_ops=blocks * steps * (values * 5 // 256 + warps * ((wm + wn) // 2 + wm // 16 + wn // 8)) + m * n // 32,
        leak=np.where(stages >= 3, 0.2, 0.35),
        chain_ns=1500 + steps * (100 + ROUND_TRIP_NS / (stages - 1)),
    )


def demand_wgmma_e4m3(s: Shape, p: Columns) -> Demand:
    """Promotion costs two CUDA-core operations per element and 128 of K; one warpgroup cannot hide it, two take turns."""
    m, n, k = s["M"], s["N"], s["K"]
    consumers, bn, stages = p["consumers"], p["block_n"], p["stages"]
    bm, steps = 64 * consumers, k // 128
    move = traffic(s, 1, bm, bn, 4 * consumers, np.ones_like(bm))
    blocks = move.tiles
    return Demand(
        blocks=blocks,
        threads=128 * (consumers + 1),
        registers=np.where(consumers == 1, 232, 168),
        smem_per_block=stages * (bm + bn) * 128 + 1024 + 16 * stages,
        dram_bytes=move.dram_bytes + _once(s),
        reread_bytes=move.reread_bytes,
        footprint_bytes=move.window_rows * 128 * stages,
        inflight_per_block=(stages - 1) * (np.minimum(bm, m) + bn) * 128,
        flops=2 * blocks * bm * bn * steps * 128,
        unit="wgmma_fp8",
        efficiency=np.where(bn == 64, 0.65, 0.9),
        alu_ops=blocks * bm * bn * steps * np.where(consumers == 1, 2.0, 1.2),
        lsu_ops=blocks * steps * consumers * 16 + m * n // 32,
        leak=0.05,
        chain_ns=2000 + steps * (60 + ROUND_TRIP_NS / (stages - 1)),
    )
