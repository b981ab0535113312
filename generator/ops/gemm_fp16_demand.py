"""What the variants of gemm_fp16 ask of a GPU: the accounting behind their prices."""

import numpy as np

from generator.ops.base import Column, Columns, Demand, Shape, ceil_div
from generator.ops.gemm_tiles import traffic

ROUND_TRIP_NS = 600
"""Latency of one slice of A and B under load, L2 hits and misses mixed."""


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
