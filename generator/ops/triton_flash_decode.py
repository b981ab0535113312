"""triton_flash_decode: attention of one new token per sequence over a paged fp16 KV cache, grouped query heads, written in Triton.

Bandwidth again, but a KV head serves several query heads: the ladder is to read it once for all of them, on tensor cores, and then to
split the sequence where there are fewer KV heads than multiprocessors.
"""

import numpy as np
import numpy.typing as npt

from generator.ops import flash_decode
from generator.ops.base import Bug, Columns, Demand, Illegal, Op, Shape, Variant, Work, ceil_div, grid, shapes
from generator.ops.flash_decode_demand import COMBINE_NS

AXES = ("B", "H", "KV", "D", "T", "P")
ROWS = 16
"""Query rows of a tensor-core tile; the rows beyond the group are padding."""


def work(s: Shape) -> Work:
    """K and V of every token once per KV head, q and out once, one int32 page number per page: fp16.

    A multiply-add for q.K and one for p.V, for every query head. The B sequence lengths, four bytes each, are left out.
    """
    b, h, kv, d, t, p = (s[a] for a in AXES)
    pages = -(-t // p)
    return Work(bytes=2 * b * kv * t * d * 2 + 2 * b * h * d * 2 + b * pages * 4, flops=4 * b * h * t * d, math="fp16")


def constants(s: Shape) -> dict[str, int]:
    return {"HEAD_DIM": s["D"]}


def demand_per_head(s: Shape, p: Columns) -> Demand:
    """Every head reads its KV head. The programs of a group start together and drift apart, up to a quarter of the sequence.

    K of a step lands before its V is asked for, and the sums over tokens cross the warps, so about half the time nothing is in flight.
    """
    b, h, kv, d, t, _ = (s[a] for a in AXES)
    block_n, warps = p["block_n"], p["warps"]
    steps = ceil_div(t, block_n)
    tokens = b * h * steps * block_n
    held = block_n * d // (32 * warps)
    return Demand(
        blocks=b * h,
        threads=32 * warps,
        registers=34 + 17 * held // 20,
        smem_per_block=warps * d * 4,
        dram_bytes=work(s).bytes,
        reread_bytes=(h // kv - 1) * 4 * b * kv * t * d,
        footprint_bytes=b * kv * t * d,
        inflight_per_block=block_n * d,
        flops=4 * tokens * d,
        alu_ops=tokens * d * 5 + tokens * d // 8 * 30 + b * h * steps * warps * 32 * (60 + d // 8 * 3),
        sfu_ops=tokens * d // 8 + b * h * steps * warps * 32,
        lsu_ops=tokens * d // 256 * (3 + 4) + b * h * steps * warps * (24 + d // 8),
        leak=1.0,
        chain_ns=1500 + steps * (650 + 6 * held),
    )


def demand_grouped(s: Shape, p: Columns) -> Demand:
    """One program per KV head of a sequence."""
    return _grouped(s, p, p["block_h"], np.ones_like(p["warps"]))


def demand_split(s: Shape, p: Columns) -> Demand:
    """SPLITS programs per KV head of a sequence, partial results to L2 and back."""
    return _grouped(s, p, np.full_like(p["warps"], ROWS), p["splits"])


def _grouped(s: Shape, p: Columns, rows: npt.NDArray[np.int64], splits: npt.NDArray[np.int64]) -> Demand:
    """Both products of a step are one tile of `rows` heads, one after the other: maximum and sum over the warps lie between them.

    What the compiler makes of STAGES: K and V one after the other (1), both together (2), page numbers a step ahead as well (3), tiles a
    step ahead as well, in a second pair of buffers (5).
    """
    b, h, kv, d, t, _ = (s[a] for a in AXES)
    block_n, warps, stages = p["block_n"], p["warps"], p["stages"]
    blocks = b * kv * splits
    steps = ceil_div(ceil_div(t, splits), block_n)
    tokens = blocks * steps * block_n
    partials = b * h * splits * (d + 2) * 4 if "splits" in p else 0
    tile, buffers = block_n * d * 4, np.where(stages >= 5, 2, 1)
    step_ns = np.where(stages >= 3, 420, 700) + 3 * block_n * rows // (16 * warps) + 20 * warps
    out = np.where(stages == 1, 0.5, buffers - 1 + 600.0 / (600.0 + step_ns)) * tile
    edges_ns = 2500
    return Demand(
        blocks=blocks,
        threads=32 * warps,
        registers=np.minimum(40 + d * (rows + block_n) // (32 * warps), 255),
        smem_per_block=np.where(stages == 1, tile // 2, buffers * tile) + rows * (d + block_n) * 2,
        dram_bytes=work(s).bytes,
        reread_bytes=2 * partials + tokens * 4,
        footprint_bytes=partials,
        inflight_per_block=out * (600.0 * steps / (600.0 * steps + edges_ns)),
        flops=4 * tokens * rows * d,
        unit="mma_fp16",
        efficiency=0.4,
        alu_ops=tokens * rows * 10 + tokens * d // 8 * 24 + blocks * steps * rows * d,
        sfu_ops=tokens * rows,
        lsu_ops=tokens * d // 256 * 2 + tokens * d * 4 // 512 + blocks * steps * warps * (30 + rows * d // 512),
        leak=np.where(stages >= 5, 0.15, np.where(stages == 1, 1.0, 0.35)),
        launches=2 if "splits" in p else 1,
        chain_ns=edges_ns + steps * step_ns,
        tail_ns=COMBINE_NS + 15 * splits if "splits" in p else 0,
    )


PER_HEAD = Variant(
    name="per_head",
    idea="one program per query head, no grouping",
    points=grid(lambda p: 4 * p["warps"] <= p["block_n"] <= 32 * p["warps"], block_n=(16, 32, 64, 128), warps=(2, 4, 8)),
    start={"block_n": 16, "warps": 4},
    demand=demand_per_head,
    illegal=(
        Illegal(params={"block_n": 24, "warps": 4}, rule="BLOCK_N must be a power of two"),
        Illegal(params={"block_n": 4, "warps": 4}, rule="BLOCK_N must be at least 4 * WARPS: every warp gets tokens of its own"),
        Illegal(params={"block_n": 512, "warps": 4}, rule="a step exceeds 128 elements a thread"),
    ),
    bugs=(
        Bug(
            name="no_rescale",
            old="acc = acc * fix + tl.sum(",
            new="acc = acc + tl.sum(",
            slip="the running output is not rescaled when the maximum moves",
            symptom="outputs are too large where a later step holds the maximum",
        ),
        Bug(
            name="wrong_kv_head",
            old="kv_head = head // (heads // kv_heads)",
            new="kv_head = head % kv_heads",
            slip="KV head taken as head % kv_heads: groups are consecutive heads, not interleaved",
            symptom="all heads but a few attend to another group's keys",
        ),
        Bug(
            name="tail_not_masked",
            old="score = tl.where(live, tl.sum(query[None, :] * keys, axis=1), -1e30)",
            new="score = tl.sum(query[None, :] * keys, axis=1)",
            slip="tokens past the end score 0, not minus infinity: masked loads return zeros",
            symptom="outputs shrink, most for short sequences",
        ),
    ),
)

GROUPED = Variant(
    name="grouped",
    idea="heads of a KV head together, tl.dot",
    parent="per_head",
    points=shapes(
        ("block_h", "block_n", "warps", "stages"),
        (16, 16, 2, 3),
        (16, 32, 2, 2),
        (16, 32, 2, 5),
        (16, 32, 4, 1),
        (16, 32, 4, 2),
        (16, 32, 4, 5),
        (16, 64, 4, 3),
        (16, 64, 4, 5),
        (16, 128, 8, 3),
        (32, 64, 4, 2),
    ),
    start={"block_h": 16, "block_n": 32, "warps": 4, "stages": 1},
    demand=demand_grouped,
    illegal=(
        Illegal(
            params={"block_h": 8, "block_n": 32, "warps": 4, "stages": 2}, rule="BLOCK_H must be a power of two, at least 16: tl.dot tiles"
        ),
        Illegal(
            params={"block_h": 16, "block_n": 48, "warps": 4, "stages": 2}, rule="BLOCK_N must be a power of two, at least 16: tl.dot tiles"
        ),
        Illegal(params={"block_h": 16, "block_n": 128, "warps": 1, "stages": 2}, rule="a tile of K exceeds 128 elements a thread"),
    ),
    bugs=(
        Bug(
            name="no_rescale",
            old="acc = tl.dot(weight.to(tl.float16), values, acc * fix[:, None])",
            new="acc = tl.dot(weight.to(tl.float16), values, acc)",
            slip="the accumulator is not rescaled when the maximum moves",
            symptom="outputs are too large where a later step holds the maximum",
        ),
        Bug(
            name="tail_not_masked",
            old="score = tl.where(live[None, :], tl.dot(query, keys) * scale, -1e30)",
            new="score = tl.dot(query, keys) * scale",
            slip="tokens past the end score 0, not minus infinity: masked loads return zeros",
            symptom="outputs shrink, most for short sequences",
        ),
        Bug(
            name="total_not_rescaled",
            old="total = total * fix + tl.sum(weight, axis=1)",
            new="total = total + tl.sum(weight, axis=1)",
            slip="the running denominator keeps its old scale",
            symptom="outputs are too small wherever a later step holds the maximum",
        ),
    ),
)

SPLIT = Variant(
    name="split",
    idea="grouped, sequence split, then a reduce kernel",
    parent="grouped",
    points=shapes(
        ("block_n", "warps", "stages", "splits"),
        (16, 2, 5, 8),
        (32, 2, 3, 2),
        (32, 2, 5, 4),
        (32, 4, 1, 4),
        (32, 4, 2, 4),
        (32, 4, 3, 16),
        (32, 4, 5, 8),
        (64, 4, 3, 8),
        (64, 4, 5, 2),
        (64, 8, 3, 2),
    ),
    start={"block_n": 32, "warps": 4, "stages": 2, "splits": 4},
    demand=demand_split,
    illegal=(
        Illegal(
            params={"block_n": 8, "warps": 4, "stages": 2, "splits": 4}, rule="BLOCK_N must be a power of two, at least 16: tl.dot tiles"
        ),
        Illegal(params={"block_n": 128, "warps": 1, "stages": 2, "splits": 4}, rule="a tile of K exceeds 128 elements a thread"),
        Illegal(
            params={"block_n": 32, "warps": 4, "stages": 2, "splits": 6},
            rule="SPLITS must be a power of two: the reduce loads them as one tile",
        ),
    ),
    bugs=(
        Bug(
            name="reduce_no_rescale",
            old="total = tl.sum(tl.load(part_sum + slot) * fix, axis=0)",
            new="total = tl.sum(tl.load(part_sum + slot), axis=0)",
            slip="the sums of the slices are added without bringing them to one maximum",
            symptom="outputs shrink, worst where slices differ in maximum",
        ),
        Bug(
            name="slice_not_clipped",
            old="live = token < end",
            new="live = token < length",
            slip="the last step of a slice runs into the next one: masked with the sequence's end, not the slice's",
            symptom="tokens at the slice borders count twice",
        ),
        Bug(
            name="chunk_rounded_down",
            old="chunk = tl.cdiv(length, SPLITS)",
            new="chunk = length // SPLITS",
            slip="the slice length is rounded down, so the remainder belongs to no slice",
            symptom="the newest tokens are missing where SPLITS does not divide the length",
        ),
    ),
)

OP = Op(
    name="triton_flash_decode",
    impl="triton",
    dtype="fp16",
    axes=AXES,
    summary="out[b, h] = softmax(q[b, h] . K[b, :, g] / sqrt(D)) @ V[b, :, g] over T tokens, g = h * KV / H, one query token per sequence. "
    "q and out are fp16 [B, H, D]; K and V lie in fp16 pages [pages, P, KV, D], found through an int32 table [B, max_pages]; lengths "
    "int32 [B]; sums in fp32.",
    shapes=shapes(AXES, (8, 32, 8, 128, 4096, 16), (32, 64, 8, 128, 8192, 16), (128, 32, 8, 64, 2048, 32)),
    heldout={"B": 16, "H": 28, "KV": 4, "D": 128, "T": 8192, "P": 16},
    work=work,
    constants=constants,
    reference=flash_decode.reference,
    tolerance=3e-3,
    variants=(PER_HEAD, GROUPED, SPLIT),
)
