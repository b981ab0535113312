"""What the variants of nucleus_sample ask of a GPU: the accounting behind their prices."""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Columns, Demand, Quantity, Shape, ceil_div


def crowd(cells: Quantity) -> npt.NDArray[np.float64]:
    """Lanes of a warp that meet in one cell of a mass histogram of `cells` cells a nat, logits spread over seven nats."""
    return 1 + 16 / np.sqrt(7.5 * np.asarray(cells, dtype=np.float64))


def tries(warps: Quantity) -> npt.NDArray[np.int64]:
    """Steps of a search that settles a key of 32 bits, one trial a warp."""
    return np.select([warps >= 32, warps >= 16, warps >= 8], [7, 8, 11], 16)


def demand_bisection(s: Shape, p: Columns) -> Demand:
    """32 / radix passes after two for maximum and total, half a one to draw; each trial pivot costs a block reduction."""
    b, v, threads, radix = s["B"], s["V"], p["threads"], p["radix"]
    warps, passes, trials = threads // 32, 32 // radix, np.left_shift(1, radix) - 1
    return Demand(
        blocks=b,
        threads=threads,
        registers=np.minimum(24 + 2 * trials + 2 * p["unroll"], 65536 // threads // 8 * 8),
        smem_per_block=warps * 8 + 4,
        dram_bytes=4 * b * v + 8 * b,
        reread_bytes=2 * b * v * (2 * passes + 3),
        footprint_bytes=4 * b * v,
        inflight_per_block=threads * 4 * p["unroll"],
        flops=4 * b * v,
        alu_ops=b * v * (passes * (4 + 2 / p["unroll"] + 2 * trials) + 14),
        sfu_ops=b * v * (2 * passes + 3) // 2,
        lsu_ops=b * (passes + 2.5) * ceil_div(v, 32) + b * warps * (6 + warps) * (passes * trials + ceil_div(v, 2 * threads)),
        leak=1.0,
        chain_ns=(passes * trials + 2) * (120 + 3 * warps) + 0.5 * ceil_div(v, threads) * (260 + 4 * warps),
    )


def demand_sort(s: Shape, p: Columns) -> Demand:
    """Two reads and one write per pass of the sort, the write a sector per run of equal digits; then two cumulative sums.

    A warp places 32 keys at a time, one after another; loads come from L2 at best, `unroll` of them at once.
    """
    b, v, threads, unroll = s["B"], s["V"], p["threads"], p["unroll"]
    warps, bins, passes = threads // 32, np.left_shift(1, p["radix"]), ceil_div(32, p["radix"])
    tiles = ceil_div(v, threads)
    return Demand(
        blocks=b,
        threads=threads,
        registers=np.where(unroll == 1, 32, np.select([threads <= 256, threads <= 512], [48, 40], 32)),
        smem_per_block=warps * (bins * 4 + 8) + 8,
        dram_bytes=4 * b * v + 8 * b,
        reread_bytes=4 * b * v * (3 * passes + 2),
        footprint_bytes=8 * b * v,
        inflight_per_block=threads * 4 * unroll,
        flops=4 * b * v,
        alu_ops=b * v * (passes * (20 + 2 / unroll) + 20),
        sfu_ops=2.2 * b * v,
        lsu_ops=b * ceil_div(v, 32) * (passes * (10 + 64 / bins + np.minimum(bins, 30)) + 4) + b * 0.6 * tiles * warps * (6 + warps),
        leak=0.35,
        chain_ns=passes * (tiles * (70 + 500 / unroll) + 16 * warps + 800) + 0.6 * tiles * (260 + 4 * warps),
    )


def demand_rejection(s: Shape, p: Columns) -> Demand:
    """One pass for maximum and total, one per round, half a one to draw.

    Rounds are those that normal logits take; a warp works through its logits as long as one of the 32 is still in question.
    """
    b, v, threads, tokens, vec = s["B"], s["V"], p["threads"], p["tokens"], p["vec"]
    warps, tiles = threads // 32, ceil_div(v, threads)
    rounds = np.select([tokens <= 2, tokens <= 4], [12.5, 8.4], 6.2)
    seen = np.select([tokens <= 2, tokens <= 4], [4.5, 3.5], 2.7)
    scans = rounds * (1.2 * tokens + 2)
    return Demand(
        blocks=b,
        threads=threads,
        registers=np.minimum(26 + 7 * tokens, 64),
        smem_per_block=8 * warps + 8 * tokens + 12,
        dram_bytes=4 * b * v + 8 * b,
        reread_bytes=4 * b * v * (rounds + 0.5),
        footprint_bytes=4 * b * v,
        inflight_per_block=threads * 4 * vec,
        flops=4 * b * v,
        alu_ops=b * v * (rounds * (6 + 3 / vec) + seen * (6 + 9 * (tokens + 1)) + 30),
        sfu_ops=b * v * (seen + 2),
        lsu_ops=b * ceil_div(v, 32 * np.minimum(vec, 4)) * (rounds + 1) + b * warps * (6 + warps) * (scans + 0.5 * tiles),
        leak=0.35,
        chain_ns=(rounds + 1) * (ceil_div(v, threads * vec) * 250 + 500) + scans * (120 + 3 * warps) + 0.5 * tiles * (260 + 4 * warps),
    )


def demand_radix(s: Shape, p: Columns) -> Demand:
    """Two passes, the second backwards: on average half the logits lie between a logit's first and last use; then a slice to draw.

    Float atomics are compare-and-swap loops, a round for each lane of a crowd. One row in twenty is guessed too low and passed again.
    """
    b, v, threads, vec = s["B"], s["V"], p["threads"], p["vec"]
    warps, bins = threads // 32, np.left_shift(1, p["radix"])
    rounds = crowd(bins / 32)
    return Demand(
        blocks=b,
        threads=threads,
        registers=np.where(threads > 512, 52, 34),
        smem_per_block=bins * 4 + warps * 20 + 4,
        dram_bytes=4 * b * v + 8 * b,
        reread_bytes=4 * b * v * (1.05 + 2 / warps),
        footprint_bytes=2 * b * v,
        inflight_per_block=threads * 4 * vec,
        flops=4 * b * v,
        alu_ops=b * v * (28 + 5 * rounds + 6 / vec),
        sfu_ops=2 * b * v,
        lsu_ops=b * (2.05 * ceil_div(v, 32 * np.minimum(vec, 4)) + ceil_div(v, 32) * (1 + 2.4 * rounds)) + b * bins / 8,
        leak=0.35,
        chain_ns=ceil_div(v, threads) * 40 * rounds
        + ceil_div(v, threads * vec) * 250
        + tries(warps) * (220 + 30 * warps)
        + 3 * (250 + bins / 8)
        + ceil_div(v, warps * threads) * 120
        + 2500,
    )


def demand_two_phase(s: Shape, p: Columns) -> Demand:
    """Two passes over the row by many blocks, the second backwards: on average half the logits lie between a logit's first and last use.

    Cells go out and come back once per chunk. What a row's last blocks do at the end of either kernel is the tail.
    """
    b, v, threads, items = s["B"], s["V"], p["threads"], p["items"]
    warps, size = threads // 32, threads * items
    chunks = ceil_div(v, size)
    lanes = crowd(threads / 16)
    listed = 0.03 * v * 16 / threads
    return Demand(
        blocks=b * chunks,
        threads=threads,
        registers=np.maximum(34, 16 + items),
        smem_per_block=threads * 4 + warps * 8 + 8,
        dram_bytes=4 * b * v + 8 * b,
        reread_bytes=4 * b * v + 8 * b * chunks * threads + 8 * b * size,
        footprint_bytes=2 * b * v,
        inflight_per_block=np.minimum(size, v) * 4,
        flops=4 * b * v,
        alu_ops=22 * b * chunks * size,
        sfu_ops=2 * b * chunks * size,
        lsu_ops=b * chunks * (size / 32 * (2 + 2 * lanes) + 3 * warps * (8 + warps)),
        leak=0.35,
        launches=2,
        chain_ns=2 * 1100 + 4 * (60 + 3 * warps) + 12 * items * lanes,
        tail_ns=2500 + 110 * chunks + tries(warps) * (220 + listed) + 100 * items,
    )
