"""rope: rotary position embedding of queries and keys, as in Llama (neox pairing: element i with i + D/2).

Each half is read once and written once, with three flops on it; what costs is the angle (recomputed or read), the width of the
accesses, and on decode sizes the second launch.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Columns, Demand, Illegal, Op, Shape, Variant, Work, ceil_div, grid, shapes

AXES = ("M", "H", "KV", "D")

THETA = 10000.0
"""Base of the frequencies (RoFormer, https://arxiv.org/abs/2104.09864)."""


def work(s: Shape) -> Work:
    """Read and write q and k (fp16), read one int32 position a token; a pair takes 4 products and 2 sums: 3 flops a half.

    The tables of sines and cosines are not counted: a kernel may do without them.
    """
    m, halves = s["M"], s["M"] * (s["H"] + s["KV"]) * s["D"]
    return Work(bytes=2 * halves * 2 + 4 * m, flops=3 * halves, math="fp32")


def constants(s: Shape) -> dict[str, int]:
    return {}


def angles(positions: npt.NDArray[np.integer], dim: int) -> npt.NDArray[np.float64]:
    """`positions * THETA^(-2i/dim)` for pair i, in radians; float64 `[M, dim / 2]`."""
    return positions.astype(np.float64)[:, None] * THETA ** (-2.0 * np.arange(dim // 2) / dim)


def reference(q: npt.NDArray[np.float16], k: npt.NDArray[np.float16], positions: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Rotated heads of q `[M, H, D]`, then those of k `[M, KV, D]`; float64 `[M, H + KV, D]`, for int32 positions `[M]`."""
    x = np.concatenate([q, k], axis=1).astype(np.float64)
    low, high = np.split(x, 2, axis=2)
    a = angles(positions, x.shape[2])[:, None, :]
    return np.concatenate([low * np.cos(a) - high * np.sin(a), high * np.cos(a) + low * np.sin(a)], axis=2)


def demand_per_head(s: Shape, p: Columns) -> Demand:
    """Heads fastest: min(32, heads) sectors an access, sectors fetched again by each block that takes a few pairs of them.

    A store costs L2 a sector for each head it touches. powf, cosf, sinf and four divisions are some 220 operations a pair, 15 of
    them and of the conversions on the special function unit. Position, angle and halves are fetched one after another.
    """
    m, d, threads, items = s["M"], s["D"], p["threads"], p["items"]
    pairs = m * (s["H"] + s["KV"]) * d // 2
    lines = sum(-(m * h * d // -64) * min(32, h) for h in (s["H"], s["KV"]))
    refetch = sum(m * h * d * 2 * np.maximum(16 * h / (threads * items), 1.0) for h in (s["H"], s["KV"]))
    return Demand(
        blocks=sum(ceil_div(m * h * d // 2, threads * items) for h in (s["H"], s["KV"])),
        threads=threads,
        registers=26 + 4 * (items > 1),
        dram_bytes=8 * pairs + 4 * m,
        reread_bytes=refetch - 4 * pairs + lines * 2 * 32 - 4 * pairs,
        footprint_bytes=min(8 * pairs, 64 * 65536),
        inflight_per_block=np.minimum(2 * 32 * s["H"] * ceil_div(threads, 16 * s["H"]), threads * 4 * 16),
        flops=6 * pairs,
        alu_ops=220 * pairs,
        sfu_ops=15 * pairs,
        lsu_ops=4 * lines + pairs / 32,
        leak=1.0,
        launches=2,
        chain_ns=1300 * items,
    )


def demand_fused_vec(s: Shape, p: Columns) -> Demand:
    """Whole sectors, all packets of a thread in flight; the tables come from L2 again for every block that shares a token."""
    m, heads, d, threads, vec, share = s["M"], s["H"] + s["KV"], s["D"], p["threads"], p["vec"], p["heads"]
    packets, groups = d // 2 // vec, ceil_div(heads, share)
    halves = m * heads * d
    blocks = ceil_div(m * groups * packets, threads)
    used = heads / (groups * share)
    table_reads = m * np.maximum(groups * packets / threads, 1.0) * d * 4
    return Demand(
        blocks=blocks,
        threads=threads,
        registers=14 + 2 * vec + share * (vec + 2),
        dram_bytes=4 * halves + 4 * m + 4 * m * d,
        reread_bytes=table_reads - 4 * m * d,
        footprint_bytes=4 * d * 4096,
        inflight_per_block=threads * share * used * 4 * vec,
        flops=3 * halves,
        alu_ops=halves * 2 + blocks * threads * (70 + 12 * share),
        lsu_ops=2 * ceil_div(halves, 32 * vec) + blocks * (threads // 32) * (1 + np.maximum(vec // 2, 2)),
        leak=0.35,
        chain_ns=900 + 25 * share * vec / 2,
    )


def demand_half2_pairs(s: Shape, p: Columns) -> Demand:
    """No tables; HEADS heads in flight while the angles are computed. 12 half2 instructions for 2 pairs, which are 4 halves.

    One is taken for one scalar operation: twice what it costs on sm_80, half of what it costs on sm_86 and sm_120. An angle is 12
    operations and 3 special functions, splitting its sine and cosine 6, the two addresses of a head and its bounds 30.
    """
    m, heads, d, threads, vec, share = s["M"], s["H"] + s["KV"], s["D"], p["threads"], p["vec"], p["heads"]
    packets, groups = d // 2 // vec, ceil_div(heads, share)
    halves = m * heads * d
    blocks = ceil_div(m * groups * packets, threads)
    used = heads / (groups * share)
    return Demand(
        blocks=blocks,
        threads=threads,
        registers=20 + 5 * vec // 2 + share * vec,
        dram_bytes=4 * halves + 4 * m,
        inflight_per_block=threads * share * used * 4 * vec,
        alu_ops=halves * 3 + blocks * threads * (70 + 30 * share + 18 * vec),
        sfu_ops=3 * blocks * threads * vec,
        lsu_ops=2 * ceil_div(halves, 32 * vec) + blocks * (threads // 32),
        leak=0.35,
        chain_ns=900 + 25 * share * vec / 2,
    )


def demand_token_rows(s: Shape, p: Columns) -> Demand:
    """Each table row read once; a block walks the packets of its tokens in rounds, after the tables have come."""
    m, heads, d, threads, tokens, unroll = s["M"], s["H"] + s["KV"], s["D"], p["threads"], p["tokens"], p["unroll"]
    halves, blocks = m * heads * d, ceil_div(m, tokens)
    pairs = tokens * heads * (d // 16)
    rounds = ceil_div(pairs, threads * unroll)
    return Demand(
        blocks=blocks,
        threads=threads,
        registers=16 + 16 * unroll,
        smem_per_block=tokens * d * 4,
        dram_bytes=4 * halves + 4 * m + 4 * m * d,
        inflight_per_block=32 * pairs / rounds,
        flops=3 * halves,
        alu_ops=halves * 2 + blocks * threads * rounds * unroll * 110,
        lsu_ops=2 * ceil_div(halves, 256) + ceil_div(halves, 64) + blocks * ceil_div(tokens * d // 2, 32) * 4,
        leak=0.35,
        chain_ns=1250 + 80 * rounds * unroll + threads / 8,
    )


PER_HEAD = Variant(
    name="per_head",
    idea="one pair a thread, heads fastest, angle computed",
    points=grid(threads=(64, 128, 256), items=(1, 2, 4, 8)),
    start={"threads": 256, "items": 8},
    demand=demand_per_head,
    illegal=(
        Illegal(params={"threads": 200, "items": 1}, rule="THREADS must be whole warps"),
        Illegal(params={"threads": 2048, "items": 1}, rule="a block has at most 1024 threads"),
        Illegal(params={"threads": 256, "items": 3}, rule="ITEMS must be 1, 2, 4 or 8"),
    ),
    bugs=(
        Bug(
            name="exponent",
            old="-2.0f * pair / dim",
            new="-1.0f * pair / dim",
            slip="frequency exponent is i/D instead of 2i/D",
            symptom="every pair but the first turns too far",
        ),
        Bug(
            name="sign",
            old="high * c + low * s",
            new="high * c - low * s",
            slip="upper half is rotated the other way",
            symptom="second half of each head differs",
        ),
        Bug(
            name="row_for_position",
            old="positions[token] *",
            new="token *",
            slip="row number of the batch is taken for the position",
            symptom="right only where positions count from 0",
        ),
    ),
)

FUSED_VEC = Variant(
    name="fused_vec",
    idea="q and k in one launch, packets, angle tables",
    parent="per_head",
    points=grid(
        lambda p: p["heads"] <= p["vec"] and p["heads"] * p["vec"] <= 16 and (p["threads"] < 512 or p["vec"] > 4 * p["heads"]),
        threads=(128, 256, 512),
        vec=(2, 4, 8),
        heads=(1, 2, 4),
    ),
    start={"threads": 256, "vec": 2, "heads": 1},
    demand=demand_fused_vec,
    illegal=(
        Illegal(params={"threads": 144, "vec": 4, "heads": 1}, rule="THREADS must be whole warps, 1024 at most"),
        Illegal(params={"threads": 256, "vec": 6, "heads": 1}, rule="VEC must be 2, 4 or 8: one aligned access"),
        Illegal(params={"threads": 256, "vec": 8, "heads": 8}, rule="HEADS * VEC packets do not fit the registers"),
    ),
    bugs=(
        Bug(
            name="kv_offset",
            old="(size_t)token * kv_heads + head - heads",
            new="(size_t)token * kv_heads + head",
            slip="key heads are indexed from H instead of 0",
            symptom="out-of-bounds read of k past its last head",
        ),
        Bug(
            name="sine_sign",
            old="y.y * c.f[j].y + x.y * s.f[j].y",
            new="y.y * c.f[j].y - x.y * s.f[j].y",
            slip="odd pairs of the upper half are rotated the other way",
            symptom="every second half above D/2 differs",
        ),
        Bug(
            name="table_row",
            old="(size_t)positions[token] * half_dim",
            new="(size_t)positions[token] * dim",
            slip="table rows are D/2 long but stepped by D",
            symptom="angles of twice the position, out of bounds far out",
        ),
    ),
)

HALF2_PAIRS = Variant(
    name="half2_pairs",
    idea="two pairs an instruction, angles computed in fp32",
    parent="fused_vec",
    points=grid(
        lambda p: p["heads"] * p["vec"] in (16, 32),
        threads=(128, 256),
        vec=(2, 4, 8),
        heads=(2, 4, 8, 16),
    ),
    start={"threads": 256, "vec": 4, "heads": 4},
    demand=demand_half2_pairs,
    illegal=(
        Illegal(params={"threads": 208, "vec": 8, "heads": 2}, rule="THREADS must be whole warps, 1024 at most"),
        Illegal(params={"threads": 256, "vec": 6, "heads": 2}, rule="VEC must be 2, 4 or 8: one aligned access"),
        Illegal(params={"threads": 256, "vec": 8, "heads": 8}, rule="HEADS * VEC packets do not fit the registers"),
    ),
    bugs=(
        Bug(
            name="interleaved",
            old="const Packet*>(x + half_dim);",
            new="const Packet*>(x + VEC);",
            slip="a packet is paired with its neighbour, as in interleaved layouts, not with the one D/2 away",
            symptom="every pair is rotated with the wrong partner",
        ),
        Bug(
            name="even_angle_twice",
            old="split(even.y, odd.y)",
            new="split(even.y, even.y)",
            slip="odd columns take the sine of their even neighbour",
            symptom="odd columns differ, even ones are right",
        ),
        Bug(
            name="half_position",
            old="const float position = positions[token],",
            new="const float position = __half2float(__int2half_rn(positions[token])),",
            slip="position is rounded to fp16: those past 2048 lose their last bits",
            symptom="far tokens differ, near ones are right",
        ),
    ),
)

TOKEN_ROWS = Variant(
    name="token_rows",
    idea="block per few tokens, angles in shared memory",
    parent="fused_vec",
    points=grid(
        lambda p: p["tokens"] * p["unroll"] <= 8 and (p["threads"] == 256 or p["tokens"] != 4),
        threads=(128, 256, 512),
        tokens=(1, 2, 4),
        unroll=(1, 2),
    ),
    start={"threads": 256, "tokens": 2, "unroll": 1},
    demand=demand_token_rows,
    illegal=(
        Illegal(params={"threads": 250, "tokens": 1, "unroll": 1}, rule="THREADS must be whole warps, 1024 at most"),
        Illegal(params={"threads": 256, "tokens": 16, "unroll": 1}, rule="TOKENS must be 1 to 8"),
        Illegal(params={"threads": 256, "tokens": 1, "unroll": 3}, rule="UNROLL must be 1, 2 or 4"),
    ),
    bugs=(
        Bug(
            name="no_barrier",
            old="  __syncthreads();\n",
            new="",
            slip="no barrier between filling the angles and reading them",
            symptom="race on shared memory; angles not yet written are used",
        ),
        Bug(
            name="last_block",
            old="count = min(TOKENS, tokens - first)",
            new="count = TOKENS",
            slip="the last block is not clipped when M % TOKENS != 0",
            symptom="out-of-bounds read behind the last position",
        ),
        Bug(
            name="angle_row",
            old="/ all_heads * half_dim + i % packets * VEC;",
            new="/ all_heads * half_dim + i % packets;",
            slip="offset into the angles counts packets, not pairs",
            symptom="all pairs but the first packet use the wrong angle",
        ),
    ),
)

OP = Op(
    name="rope",
    impl="cuda",
    dtype="fp16",
    axes=AXES,
    summary=(
        "For each head of q and k at position t and each pair i < D/2 with angle a = t * 10000^(-2i/D): "
        "y[i] = x[i] cos a - x[i + D/2] sin a, y[i + D/2] = x[i + D/2] cos a + x[i] sin a. q and its output are row-major fp16 [M, H, D], "
        "k and its output fp16 [M, KV, D], positions int32 [M]; tables of cos a and sin a, fp32 [positions, D/2], may be used."
    ),
    shapes=shapes(AXES, (4096, 32, 8, 128), (8192, 64, 8, 128), (128, 64, 8, 64)),
    heldout={"M": 2048, "H": 28, "KV": 4, "D": 128},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=2e-3,
    variants=(PER_HEAD, FUSED_VEC, HALF2_PAIRS, TOKEN_ROWS),
)
