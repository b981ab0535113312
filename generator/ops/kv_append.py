"""kv_append: writes the keys and values of new tokens into a paged cache, as every decode step does.

A copy through one level of indirection, so the ladder is about sectors, bytes in flight and the round trip for the slot; at decode
sizes the launch itself is most of the time.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Columns, Demand, Illegal, Op, Shape, Variant, Work, ceil_div, grid, shapes

AXES = ("M", "KV", "D", "P")


def work(s: Shape) -> Work:
    """Read k and v, write both (fp16), read one int64 slot a token. No arithmetic."""
    m, row = s["M"], s["KV"] * s["D"]
    return Work(bytes=2 * 2 * m * row * 2 + 8 * m, flops=0, math="fp32")


def constants(s: Shape) -> dict[str, int]:
    return {}


def reference(
    k: npt.NDArray[np.float16],
    v: npt.NDArray[np.float16],
    slots: npt.NDArray[np.int64],
    k_cache: npt.NDArray[np.float16],
    v_cache: npt.NDArray[np.float16],
) -> npt.NDArray[np.float64]:
    """Both caches after the append, float64 `[2, pages, P, KV, D]`, for k and v `[M, KV, D]` and caches `[pages, P, KV, D]`.

    Token m goes to place `slots[m] % P` of page `slots[m] // P`; a token with a negative slot goes nowhere.
    """
    page = k_cache.shape[1]
    after = np.stack([k_cache, v_cache]).astype(np.float64)
    kept = slots >= 0
    after[0, slots[kept] // page, slots[kept] % page] = k[kept]
    after[1, slots[kept] // page, slots[kept] % page] = v[kept]
    return after


def demand_scalar(s: Shape, p: Columns) -> Demand:
    """One thread per head: 32 sectors an access, one of them in flight per thread, k and v one after the other.

    A store of two bytes costs L2 a whole sector; the reads of a sector after the first hit L1.
    """
    m, kv, d, threads, unroll = s["M"], s["KV"], s["D"], p["threads"], p["unroll"]
    halves = 2 * m * kv * d
    return Demand(
        blocks=ceil_div(m * kv, threads),
        threads=threads,
        registers=12 + 4 * unroll,
        dram_bytes=4 * halves + 8 * m,
        reread_bytes=32 * halves - 2 * halves,
        footprint_bytes=min(4 * halves, 64 * 65536),
        inflight_per_block=threads * 32,
        alu_ops=halves * (2 + 4 / unroll) + m * kv * 90,
        lsu_ops=ceil_div(m * kv, 32) * (2 * 2 * d * 32 + 2),
        leak=1.0,
        chain_ns=700 + 2 * d * (4 + 18 / unroll),
    )


def demand_vec16(s: Shape, p: Columns) -> Demand:
    """Whole sectors, `unroll` packets of k and of v in flight, but only once the slot has come."""
    m, row, threads, unroll = s["M"], s["KV"] * s["D"], p["threads"], p["unroll"]
    packets = m * row // 8
    blocks = ceil_div(packets, threads * unroll)
    return Demand(
        blocks=blocks,
        threads=threads,
        registers=12 + 10 * unroll,
        dram_bytes=8 * m * row + 8 * m,
        reread_bytes=8 * blocks,
        inflight_per_block=threads * unroll * 32 / 2,
        alu_ops=blocks * threads * (14 + 34 * unroll),
        lsu_ops=5 * ceil_div(packets, 32),
        leak=0.35,
        chain_ns=950 + 50 * unroll + threads / 8,
    )


def demand_vec32(s: Shape, p: Columns) -> Demand:
    """Two packets of k and of v in flight from the first instruction on; a block runs through its tokens."""
    m, row, threads, tokens = s["M"], s["KV"] * s["D"], p["threads"], p["tokens"]
    packets = m * row // 8
    blocks = ceil_div(m, tokens)
    rounds = ceil_div(tokens * row // 8, 2 * threads)
    busy = tokens * row / (8 * 2 * threads * rounds)
    return Demand(
        blocks=blocks,
        threads=threads,
        registers=44,
        dram_bytes=8 * m * row + 8 * m,
        inflight_per_block=threads * 64 * busy,
        alu_ops=blocks * threads * rounds * 90,
        lsu_ops=6 * ceil_div(packets, 32) + blocks * (threads // 32) * 2,
        leak=0.35,
        chain_ns=500 + 120 * rounds + threads / 8,
    )


def demand_table_prefetch(s: Shape, p: Columns) -> Demand:
    """A slot is read once; a warp moves UNROLL packets of k and of v a lane at a time, one token after another."""
    m, row, threads, tokens, unroll = s["M"], s["KV"] * s["D"], p["threads"], p["tokens"], p["unroll"]
    warps = threads // 32
    blocks = ceil_div(m, warps * tokens)
    chunks = ceil_div(row // 8, 32 * unroll)
    return Demand(
        blocks=blocks,
        threads=threads,
        registers=24 + 8 * unroll,
        dram_bytes=8 * m * row + 8 * m,
        inflight_per_block=warps * 4 * row / chunks,
        alu_ops=32 * m * chunks * (12 + 10 * unroll),
        lsu_ops=4 * m * ceil_div(row // 8, 32) + m * chunks * 2 + blocks * warps,
        leak=0.35,
        chain_ns=500 + 120 * tokens * chunks,
    )


SCALAR = Variant(
    name="scalar",
    idea="one thread per token and head, half by half",
    points=grid(threads=(32, 64, 128, 256), unroll=(1, 2, 4)),
    start={"threads": 64, "unroll": 1},
    demand=demand_scalar,
    illegal=(
        Illegal(params={"threads": 48, "unroll": 1}, rule="THREADS must be whole warps"),
        Illegal(params={"threads": 2048, "unroll": 1}, rule="a block has at most 1024 threads"),
        Illegal(params={"threads": 64, "unroll": 16}, rule="UNROLL must be 1 to 8"),
    ),
    bugs=(
        Bug(
            name="padding_written",
            old="if (slot < 0) return; // padding of the batch",
            new="if (slot < -1) return; // padding of the batch",
            slip="slot -1 is not skipped: padded tokens are written in front of the cache",
            symptom="out-of-bounds write for padded tokens",
        ),
        Bug(
            name="page_stride",
            old="slot / page * page + slot % page",
            new="slot / page * kv_heads + slot % page",
            slip="page stride counts heads, not tokens of a page",
            symptom="tokens beyond page 0 land in the wrong rows",
        ),
        Bug(
            name="v_from_k",
            old="copy_head(v + from, v_cache + to, dim);",
            new="copy_head(k + from, v_cache + to, dim);",
            slip="the value cache is filled from k",
            symptom="v_cache differs everywhere, k_cache is right",
        ),
    ),
)

VEC16 = Variant(
    name="vec16",
    idea="flat 16-byte packets of k and v",
    parent="scalar",
    points=grid(threads=(32, 128, 256, 512, 1024), unroll=(1, 2, 4)),
    start={"threads": 256, "unroll": 1},
    demand=demand_vec16,
    illegal=(
        Illegal(params={"threads": 80, "unroll": 1}, rule="THREADS must be whole warps"),
        Illegal(params={"threads": 1056, "unroll": 1}, rule="a block has at most 1024 threads"),
        Illegal(params={"threads": 128, "unroll": 3}, rule="UNROLL must be 1, 2 or 4"),
    ),
    bugs=(
        Bug(
            name="padding_to_zero",
            old="to[i] = -1;",
            new="to[i] = 0;",
            slip="a packet without a slot falls back to packet 0 of the cache instead of nowhere",
            symptom="first packet of page 0 is garbage",
        ),
        Bug(
            name="bytes_as_packets",
            old="kv_heads * dim / 8",
            new="kv_heads * dim / 16",
            slip="row length is counted in 32-byte units while pointers step 16 bytes",
            symptom="second half of the tokens is never appended",
        ),
        Bug(
            name="tail_packet",
            old="if (p < packets) {",
            new="if (p <= packets) {",
            slip="bound check lets one packet past the last token through",
            symptom="out-of-bounds read when the block tile does not divide M",
        ),
    ),
)

VEC32 = Variant(
    name="vec32",
    idea="32 bytes a thread, several tokens a block",
    parent="vec16",
    points=grid(lambda p: 64 <= p["threads"] // p["tokens"] * 4 <= 1024, threads=(64, 128, 256, 512), tokens=(1, 2, 4, 8)),
    start={"threads": 128, "tokens": 2},
    demand=demand_vec32,
    illegal=(
        Illegal(params={"threads": 100, "tokens": 2}, rule="THREADS must be whole warps"),
        Illegal(params={"threads": 2048, "tokens": 4}, rule="a block has at most 1024 threads"),
        Illegal(params={"threads": 128, "tokens": 32}, rule="TOKENS must be 1 to 16"),
    ),
    bugs=(
        Bug(
            name="last_block",
            old="min(TOKENS, tokens - token)",
            new="TOKENS",
            slip="the last block is not clipped when M % TOKENS != 0",
            symptom="out-of-bounds read behind the last token",
        ),
        Bug(
            name="slot_of_first",
            old="slots[token + q / row_packets]",
            new="slots[token + p / row_packets]",
            slip="the second packet takes the slot of the first, which may be another token's",
            symptom="tokens at odd places of a block overwrite their neighbour",
        ),
        Bug(
            name="loop_step",
            old="p += 2 * THREADS",
            new="p += 4 * THREADS",
            slip="loop step covers four packets, the body moves two",
            symptom="half of each long row keeps its old content",
        ),
    ),
)

TABLE_PREFETCH = Variant(
    name="table_prefetch",
    idea="slots of many tokens ahead, warp by warp",
    parent="vec32",
    points=grid(
        lambda p: p["threads"] * p["tokens"] <= 256,
        threads=(32, 64, 128),
        tokens=(2, 4, 8),
        unroll=(2, 4),
    ),
    start={"threads": 64, "tokens": 4, "unroll": 2},
    demand=demand_table_prefetch,
    illegal=(
        Illegal(params={"threads": 104, "tokens": 4, "unroll": 2}, rule="THREADS must be whole warps, 1024 at most"),
        Illegal(params={"threads": 64, "tokens": 64, "unroll": 2}, rule="TOKENS must be 1 to 32: a lane holds one slot"),
        Illegal(params={"threads": 64, "tokens": 4, "unroll": 8}, rule="UNROLL must be 1, 2 or 4"),
    ),
    bugs=(
        Bug(
            name="lane_of_batch",
            old="__shfl_sync(0xffffffffu, ahead, t);",
            new="__shfl_sync(0xffffffffu, ahead, first + t);",
            slip="the lane of a slot is counted over the batch, not over the warp's tokens",
            symptom="all warps but the first drop or misplace their tokens",
        ),
        Bug(
            name="slots_past_end",
            old="lane < count ?",
            new="lane < TOKENS ?",
            slip="slots are read ahead past the last token when M % TOKENS != 0",
            symptom="out-of-bounds read behind the last slot",
        ),
        Bug(
            name="padding_ends_warp",
            old="if (slot < 0) break; ",
            new="if (slot < 0) return;",
            slip="a padded token ends its warp: the warp's later tokens are never appended",
            symptom="tokens behind padding keep their old rows",
        ),
    ),
)

OP = Op(
    name="kv_append",
    impl="cuda",
    dtype="fp16",
    axes=AXES,
    summary=(
        "k_cache[slots[m] // P, slots[m] % P] = k[m] and v_cache likewise from v, for every token m with slots[m] >= 0 (-1 marks padding); "
        "k and v are row-major fp16 [M, KV, D], slots int64 [M], distinct where not negative, the caches fp16 [pages, P, KV, D]."
    ),
    shapes=shapes(AXES, (64, 8, 128, 16), (4096, 8, 128, 16), (2048, 8, 64, 32)),
    heldout={"M": 512, "KV": 4, "D": 128, "P": 16},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=0.0,
    variants=(SCALAR, VEC16, VEC32, TABLE_PREFETCH),
)
