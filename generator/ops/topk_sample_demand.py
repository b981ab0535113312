"""What the variants of topk_sample ask of a GPU: the accounting behind their prices."""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Columns, Demand, Quantity, Shape, ceil_div


def pick_ns(bins: Quantity) -> npt.NDArray[np.float64]:
    """One warp finds a bin among `bins`: a strided walk over the shared histogram, whose stride is also its bank conflict."""
    span = np.asarray(bins, dtype=np.float64) / 32
    return 120 + 0.55 * span * np.minimum(span, 32) + 8 * span


def demand_selection(s: Shape, p: Columns) -> Demand:
    """ceil(k / items) passes, one to weigh, half of one to draw; each value taken costs two block reductions."""
    b, v, k, threads, items = s["B"], s["V"], s["K"], p["threads"], p["items"]
    warps, passes = threads // 32, ceil_div(k, items)
    insertions = np.minimum(1.0, 24.0 * items * threads / v)
    live, budget = 24 + 7 * items, 65536 // threads
    return Demand(
        blocks=b,
        threads=threads,
        registers=np.minimum(live, budget),
        smem_per_block=warps * 16 + 4,
        dram_bytes=4 * b * v + 8 * b,
        reread_bytes=2 * b * v * (2 * passes + 1),
        footprint_bytes=4 * b * v,
        inflight_per_block=threads * 4 * p["unroll"],
        flops=b * v,
        alu_ops=b * v * (passes * (5 + 2 / p["unroll"] + 4 * items * insertions) + 12),
        sfu_ops=1.5 * b * v,
        lsu_ops=b * ceil_div(v, 32) * (passes * (1 + insertions * np.maximum(live - budget, 0)) + 1.5)
        + b * k * 2 * warps * (6 + warps)
        + b * ceil_div(v, threads) * warps * (6 + warps),
        leak=1.0,
        chain_ns=2 * k * (120 + 3 * warps) + 0.5 * ceil_div(v, threads) * (260 + 4 * warps),
    )


def log2(x: Quantity) -> npt.NDArray[np.float64]:
    """Binary logarithm of numbers from 1 to 2^30, linear between powers of two: sums and quotients only, the same on every CPU."""
    x = np.asarray(x, dtype=np.float64)
    whole = sum((x >= 1 << i).astype(np.int64) for i in range(1, 31))
    return whole + x / np.left_shift(1, whole) - 1


def network(threads: Quantity, items: Quantity) -> tuple[Quantity, Quantity, Quantity]:
    """Stages of the bitonic network over a block's keys, `items` a thread: all, those within a thread, those between warps."""
    held, kept = log2(items), log2(threads)
    depth = held + kept
    return depth * (depth + 1) / 2, held * (held + 1) / 2 + held * kept, (kept - 5) * (kept - 4) / 2


def demand_sort(s: Shape, p: Columns) -> Demand:
    """One pass to sort, one to weigh, half of one to draw; chunks overlap by the k best of those before.

    A stage of the network costs a key one shuffle, between warps two accesses of shared memory, within a thread arithmetic only.
    """
    b, v, k, threads, items = s["B"], s["V"], s["K"], p["threads"], p["items"]
    warps, size = threads // 32, threads * items
    stages, inside, across = network(threads, items)
    chunks = ceil_div(v, size - k)
    keys = b * chunks * size
    return Demand(
        blocks=b,
        threads=threads,
        registers=26 + 3 * items // 2,
        smem_per_block=4 * size + 4 * threads + 4 * warps + 4,
        dram_bytes=4 * b * v + 8 * b,
        reread_bytes=6 * b * v,
        footprint_bytes=4 * b * v,
        inflight_per_block=4 * size,
        flops=b * v,
        alu_ops=keys * (8 + 2 * stages) + 12 * b * v,
        sfu_ops=1.5 * b * v,
        lsu_ops=keys / 32 * (2 + stages - inside + across) + 1.5 * b * ceil_div(v, 32) + b * ceil_div(v, threads) * warps * (6 + warps),
        leak=0.35,
        chain_ns=chunks * (700 + 16 * stages + 50 * across) + 0.5 * ceil_div(v, threads) * (260 + 4 * warps),
    )


def demand_radix(s: Shape, p: Columns) -> Demand:
    """One pass per digit and one to weigh; only the first digit's atomics are many, and they collide in its few busy bins."""
    b, v, threads, copies, vec = s["B"], s["V"], p["threads"], p["copies"], p["vec"]
    warps, bins, digits = threads // 32, np.left_shift(1, p["radix"]), ceil_div(32, p["radix"])
    busy = np.where(p["radix"] >= 11, 30.0, np.where(p["radix"] >= 8, 5.0, 3.0))
    collisions = 1 + 32 / (np.minimum(copies, 32) * busy)
    return Demand(
        blocks=b,
        threads=threads,
        registers=30 + 2 * p["unroll"] * vec,
        smem_per_block=copies * bins * 4 + warps * 4 + 12,
        dram_bytes=4 * b * v + 8 * b,
        reread_bytes=4 * b * v * (digits + 1 / warps),
        footprint_bytes=4 * b * v,
        inflight_per_block=threads * 4 * vec * p["unroll"],
        flops=b * v,
        alu_ops=b * v * (digits * (6 + 3 / (vec * p["unroll"])) + 5),
        sfu_ops=4 * b * s["K"],
        lsu_ops=b * (ceil_div(v, 32 * vec) * (digits + 1) + ceil_div(v, 32) * 2 * collisions + digits * copies * bins / 16),
        leak=0.35,
        chain_ns=digits * (300 + pick_ns(bins) + 25 * copies * bins / threads) + 900 + ceil_div(v, warps * threads) * (420 + 4 * warps),
    )


def entered(run: Quantity, k: int) -> npt.NDArray[np.float64]:
    """Logits of a run that pass a warp's bound: all of its first 128, then, while those met double, k and some that wait unsorted."""
    return np.minimum(run, 128 + (14 + 0.77 * k) * log2(np.maximum(np.asarray(run) / 128, 1)))


def demand_heaps(s: Shape, p: Columns) -> Demand:
    """The row is read once by many warps; each sorts and merges 64 at a time what passes its bound, a few hundred logits.

    The last block of a row folds the lists, which come back from L2, and reads one run again: the tail.
    """
    b, v, k, threads, splits, unroll = s["B"], s["V"], s["K"], p["threads"], p["splits"], p["unroll"]
    warps = threads // 32
    runs = splits * warps
    run = ceil_div(v, runs)
    takes = 0.6 + entered(run, k) / 64
    share = ceil_div(run, threads)
    lists = 4 * 64 * b * runs
    return Demand(
        blocks=b * splits,
        threads=threads,
        registers=np.where(threads > 256, 40, 40 + unroll),
        smem_per_block=warps * 772 + 4 * runs + 8,
        dram_bytes=4 * b * v + 8 * b,
        reread_bytes=3 * lists + 4 * b * run,
        footprint_bytes=lists + 4 * b * run,
        inflight_per_block=threads * 4 * unroll,
        flops=b * v,
        alu_ops=b * (v * (9 + 2 / unroll) + runs * takes * 32 * 200),
        sfu_ops=64 * b * runs,
        lsu_ops=b * (2 * ceil_div(v, 32) + runs * (takes * 54 + 30)),
        leak=0.25,
        chain_ns=600 * takes,
        turn_ns=600,
        tail_ns=1400 + 340 * splits + 130 * warps + 9 * runs + 100 * share,
    )


def demand_split(s: Shape, p: Columns) -> Demand:
    """The row is read once by many blocks; their candidates, little more than k a chunk, come back from L2, and a run of chunks to draw.

    The second kernel is one short chain per row, the tail.
    """
    b, v, k, threads, items, vec = s["B"], s["V"], s["K"], p["threads"], p["items"], p["vec"]
    bins, digits = np.left_shift(1, p["radix"]), ceil_div(32, p["radix"])
    size = threads * items
    chunks = ceil_div(v, size)
    crowd = np.where(p["radix"] <= 6, 2.2, np.where(p["radix"] <= 8, 1.3, 1.1)) * (1 + 0.8 * k / threads)
    lists = 4 * b * chunks * k * crowd
    gather = 260 * ceil_div(chunks, 32) * (1 + k * crowd / 64)
    run = size * ceil_div(chunks, 32)
    merge = digits * (200 + pick_ns(bins) + gather) + 2 * gather + 1000 + run / 8
    return Demand(
        blocks=b * chunks,
        threads=threads,
        registers=20 + items,
        smem_per_block=bins * 4 + 8,
        dram_bytes=4 * b * v + 8 * b,
        reread_bytes=lists * (digits + 2) + 4 * b * run,
        footprint_bytes=lists + 4 * b * run,
        inflight_per_block=np.minimum(size, v) * 4,
        flops=b * v,
        alu_ops=b * chunks * size * (6 + 4 / vec),
        sfu_ops=2 * b * chunks * k,
        lsu_ops=b * chunks * (size / (32 * vec) + threads / 32 * 16 + bins / 16 + 40 + 2 * k * crowd),
        leak=0.35,
        launches=2,
        tail_ns=merge,
        chain_ns=700 + 2 * (160 + pick_ns(bins) + 20 * bins / threads),
    )
