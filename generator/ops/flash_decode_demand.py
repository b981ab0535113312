"""The work of flash_decode and what its variants ask of a GPU: the accounting behind floors and prices."""

from dataclasses import replace

import numpy as np

from generator.ops.base import Columns, Demand, Shape, Work, ceil_div

AXES = ("B", "H", "D", "T", "P")
COMBINE_NS = 900
"""Latency of merging the splits, beside 15 ns for each: maxima, then partial outputs from L2, then one store."""
CLUSTER_BARRIER_NS = 300
"""Latency of a barrier among the blocks of a cluster."""


def work(s: Shape) -> Work:
    """K and V of every token once, q and out once, one int32 page number per page: fp16. A multiply-add for q.K and one for p.V.

    The B sequence lengths, four bytes each, are left out.
    """
    b, h, d, t, p = (s[a] for a in AXES)
    pages = -(-t // p)
    return Work(bytes=2 * b * h * t * d * 2 + 2 * b * h * d * 2 + b * pages * 4, flops=4 * b * h * t * d, math="fp16")


def demand_single(s: Shape, p: Columns) -> Demand:
    """Two phases a tile: scores, a K row per lane, then output, coalesced rows of V with UNROLL in flight.

    A K access takes 32 sectors, and by the time their next halves are wanted the rows of other warps have pushed them out of L1; L2 keeps
    a sector for each resident thread. In flight is the harmonic mean of the phases. Each thread scans the tile's scores twice.
    """
    b, h, d, t, _ = (s[a] for a in AXES)
    threads, vec, unroll = p["threads"], p["vec"], p["unroll"]
    tokens, tiles, columns = b * h * t, ceil_div(t, threads), np.minimum(threads, d)
    loads = tokens * ceil_div(d, vec)
    in_scores, in_output = 32.0 * threads, 2.0 * columns * unroll
    return Demand(
        blocks=b * h,
        threads=threads,
        registers=30 + 2 * unroll,
        smem_per_block=(2 * d + 2 * threads) * 4,
        dram_bytes=work(s).bytes,
        reread_bytes=loads * 32 - tokens * d * 2,
        footprint_bytes=32 * np.minimum(b * h * threads, 131072),
        inflight_per_block=2.0 / (1.0 / in_scores + 1.0 / in_output),
        flops=4 * tokens * d,
        alu_ops=loads * 4 + tokens * d * 3 + tokens * (d * 6 + columns * 2) + tokens * 40,
        sfu_ops=2 * tokens,
        lsu_ops=loads + loads * vec // 32 + tokens * (3 * ceil_div(d, 32) + 2 * threads // 32),
        leak=1.0,
        chain_ns=tiles * (900 + 8 * threads),
    )


def demand_split(s: Shape, p: Columns) -> Demand:
    """A team of D / VEC lanes per token; its shuffles and softmax are repeated by every lane.

    Loads are out for about 600 ns a step; the rest of a block's life is page lookup, softmax, the way in and the merge of the teams.
    """
    b, h, d, t, _ = (s[a] for a in AXES)
    threads, splits = 32 * p["warps"], p["splits"]
    lanes = d // p["vec"]
    hops = sum(lanes > 1 << i for i in range(5))
    teams = threads // lanes
    steps = ceil_div(ceil_div(t, splits), teams * p["tokens"])
    tokens = b * h * splits * steps * teams * p["tokens"]
    partials = b * h * splits * (d + 2) * 4
    chain_ns = 1500 + 16 * teams + steps * (250 + 60 * p["tokens"])
    return Demand(
        blocks=b * h * splits,
        threads=threads,
        registers=20 + p["vec"] * (1.5 + p["tokens"]),
        smem_per_block=threads * 4 * p["vec"] + teams * 8,
        dram_bytes=work(s).bytes,
        reread_bytes=2 * partials + tokens * 4,
        footprint_bytes=partials,
        inflight_per_block=threads * 4 * p["vec"] * p["tokens"] * (600.0 * steps / (chain_ns + 600.0 * steps)),
        flops=4 * tokens * d,
        alu_ops=tokens * lanes * (3 * p["vec"] + 38 + hops) + b * h * splits * threads * (60 + 6 * teams),
        sfu_ops=2 * tokens * lanes,
        lsu_ops=tokens * lanes // 32 * (1 + ceil_div(p["vec"], 8) * 2 + hops)
        + b * h * splits * (p["warps"] * (16 + 2 * teams) + teams * ceil_div(d, 32)),
        leak=0.35,
        launches=2,
        chain_ns=chain_ns,
        tail_ns=COMBINE_NS + 15 * splits,
    )


def demand_ring(s: Shape, p: Columns) -> Demand:
    """As `demand_split`, but STAGES - 1 tiles stay in flight; packets cross shared memory once more, addresses wait for nothing."""
    b, h, d, t, _ = (s[a] for a in AXES)
    threads, splits = 32 * p["warps"], p["splits"]
    lanes = d // 8
    hops = lanes.bit_length() - 1
    teams = threads // lanes
    per_team = p["block_n"] // teams
    steps = ceil_div(ceil_div(t, splits), p["block_n"])
    blocks = b * h * splits
    tokens = blocks * steps * p["block_n"]
    partials = blocks * (d + 2) * 4
    edges_ns = 2000 + 16 * teams
    return Demand(
        blocks=blocks,
        threads=threads,
        registers=38 + 3 * per_team,
        smem_per_block=p["stages"] * p["block_n"] * d * 4 + threads * 32 + teams * 8,
        dram_bytes=work(s).bytes,
        reread_bytes=2 * partials + tokens * 4,
        footprint_bytes=partials,
        inflight_per_block=np.minimum(p["stages"] - 1, steps) * p["block_n"] * d * 4 * (600.0 * steps / (600.0 * steps + edges_ns)),
        flops=4 * tokens * d,
        alu_ops=tokens * lanes * (52 + hops) + blocks * threads * (60 + 6 * teams + 30 * steps),
        sfu_ops=tokens * lanes + blocks * steps * threads,
        lsu_ops=tokens * lanes // 32 * (11 + hops) + blocks * (p["warps"] * (16 + 2 * teams) + teams * ceil_div(d, 32)),
        leak=0.05,
        launches=2,
        chain_ns=edges_ns + steps * (120 + 45 * per_team),
        tail_ns=COMBINE_NS + 15 * splits,
    )


def demand_cluster(s: Shape, p: Columns) -> Demand:
    """As `demand_ring` without partial results in global memory or a second kernel.

    A block's turn ends with two barriers of its cluster and, between them, two dependent reads from its peers; and no block of a cluster
    starts before all of them find room.
    """
    b, h, d, _, _ = (s[a] for a in AXES)
    ring = demand_ring(s, {**p, "splits": p["cluster"]})
    return replace(
        ring,
        smem_per_block=ring.smem_per_block + (d + 2) * 4,
        reread_bytes=np.asarray(ring.reread_bytes, dtype=np.int64) - 2 * np.asarray(ring.footprint_bytes, dtype=np.int64),
        footprint_bytes=0,
        lsu_ops=ring.lsu_ops + b * h * d * 3,
        launches=1,
        tail_ns=0.0,
        turn_ns=2 * CLUSTER_BARRIER_NS + 250 + 40 * p["cluster"],
    )


def demand_tma(s: Shape, p: Columns) -> Demand:
    """As `demand_ring`, but TMA does the page lookup, addresses and copies, and a stage is refilled as soon as it is free.

    The running maximum moves at every token, as in `demand_split`.
    """
    b, h, d, t, _ = (s[a] for a in AXES)
    consumers, splits = 32 * p["warps"], p["splits"]
    lanes = d // 8
    hops = lanes.bit_length() - 1
    teams = consumers // lanes
    per_team = p["block_n"] // teams
    steps = ceil_div(t, splits * p["block_n"])
    blocks = b * h * splits
    tokens = blocks * steps * p["block_n"]
    partials = blocks * (d + 2) * 4
    edges_ns = 2200 + 16 * teams
    return Demand(
        blocks=blocks,
        threads=consumers + 32,
        registers=56,
        smem_per_block=p["stages"] * (p["block_n"] * d * 4 + 16) + consumers * 32 + teams * 8,
        dram_bytes=work(s).bytes,
        reread_bytes=2 * partials,
        footprint_bytes=partials,
        inflight_per_block=np.minimum(p["stages"] - 0.5, steps) * p["block_n"] * d * 4 * (600.0 * steps / (600.0 * steps + edges_ns)),
        flops=4 * tokens * d,
        alu_ops=tokens * lanes * (36 + hops) + blocks * consumers * (60 + 10 * teams + 20 * steps),
        sfu_ops=2 * tokens * lanes,
        lsu_ops=tokens * lanes // 32 * (8 + hops) + blocks * (p["warps"] * (16 + 2 * teams + 3 * steps) + teams * ceil_div(d, 32)),
        leak=0.05,
        launches=2,
        chain_ns=edges_ns + steps * (120 + 30 * per_team),
        tail_ns=COMBINE_NS + 15 * splits,
    )
