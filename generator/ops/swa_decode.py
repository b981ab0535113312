"""swa_decode: attention of one new token per sequence over the last W tokens of a paged fp16 KV cache, grouped query heads.

Bandwidth of the window, not of the sequence: the first gain is not to read what the mask throws away, then to fill the GPU with a
short window. Tiny windows are bound by launches and latency.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Columns, Demand, Illegal, Op, Shape, Variant, Work, ceil_div, grid, shapes
from generator.ops.flash_decode_demand import COMBINE_NS

AXES = ("B", "H", "KV", "D", "T", "W", "P")


def work(s: Shape) -> Work:
    """K and V of the tokens in the window once, q and out once, one int32 page number per page of the window: fp16.

    A multiply-add for q.K and one for p.V, for every query head. The B sequence lengths, four bytes each, are left out.
    """
    b, h, kv, d, t, w, p = (s[a] for a in AXES)
    seen = min(t, w)
    pages = -(-seen // p)
    return Work(bytes=2 * b * kv * seen * d * 2 + 2 * b * h * d * 2 + b * pages * 4, flops=4 * b * h * seen * d, math="fp16")


def constants(_: Shape) -> dict[str, int]:
    """None: lanes share a token by D at run time, so one binary serves every shape."""
    return {}


def reference(
    q: npt.NDArray[np.float16],
    k: npt.NDArray[np.float16],
    v: npt.NDArray[np.float16],
    table: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int32],
    window: int,
    scale: float,
) -> npt.NDArray[np.float64]:
    """`softmax(scale * q.K) @ V` over tokens `lengths[b] - window` (0 if negative) to `lengths[b] - 1`; float64 `[B, H, D]`.

    q is `[B, H, D]`; k and v are `[pages, P, KV, D]`; table `[B, max_pages]` names the pages of a sequence in order; lengths `[B]`.
    Query head `h` uses KV head `h // (H // KV)`.
    """
    out = np.empty(q.shape, dtype=np.float64)
    group = q.shape[1] // k.shape[2]
    for b, length in enumerate(lengths):
        seen = slice(max(length - window, 0), length)
        keys, values = (c[table[b]].reshape(-1, *c.shape[2:])[seen].astype(np.float64) for c in (k, v))
        for h in range(q.shape[1]):
            score = scale * (keys[:, h // group] @ q[b, h].astype(np.float64))
            weight = np.exp(score - score.max())
            out[b, h] = weight / weight.sum() @ values[:, h // group]
    return out


def demand_mask(s: Shape, p: Columns) -> Demand:
    """K of all T tokens, V of the window. K comes in tiles that land before they are used; V comes UNROLL rows at a time.

    In flight is the harmonic mean of the two phases by bytes. Threads beyond D hold another head and read the same V rows; when threads
    run out, the tile's V is walked again from L2. Barriers part the phases, so little time hides under another.
    """
    b, h, kv, d, t, w, _ = (s[a] for a in AXES)
    threads, block_n, heads, unroll = p["threads"], p["block_n"], p["heads"], p["unroll"]
    group, seen = h // kv, min(t, w)
    tiles, live = ceil_div(t, block_n), ceil_div(seen, block_n)
    parts, walks = ceil_div(group, heads), ceil_div(group * d, threads)
    score_ns = 500 + 2.5 * d * ceil_div(parts * block_n, threads)
    k_bytes, v_bytes = b * kv * t * d * 2, b * kv * seen * d * 2
    in_k = np.minimum(block_n * d * 2, threads * 64) * (600.0 / (600.0 + 0.5 * score_ns))
    in_v = 2.0 * d * unroll * 0.9
    return Demand(
        blocks=b * kv,
        threads=threads,
        registers=36 + 2 * heads + 2 * unroll,
        smem_per_block=(block_n * (d + 8) + group * d) * 2 + group * (d + block_n + 3) * 4,
        dram_bytes=work(s).bytes + k_bytes - v_bytes,
        reread_bytes=(walks - 1) * v_bytes,
        footprint_bytes=b * kv * block_n * d * 2,
        inflight_per_block=(k_bytes + v_bytes) / (k_bytes / in_k + v_bytes / in_v),
        flops=2 * b * (kv * parts * heads * t + h * seen) * d,
        alu_ops=b * kv * parts * t * d * (1 + heads) + b * kv * t * d // 8 * 40 + b * h * seen * d * 50,
        sfu_ops=b * h * seen,
        lsu_ops=b * kv * parts * t * d // 256 * (4 + heads) + b * kv * t * d // 256 * 6 + b * h * seen * d // 32 * 3,
        leak=0.65,
        chain_ns=tiles * score_ns + live * 700 + (walks - 1) * seen * 250.0 / unroll,
    )


def demand_skip(s: Shape, p: Columns) -> Demand:
    """The window in one block per HEADS query heads."""
    return _window(s, p, np.ones_like(p["warps"]))


def demand_split(s: Shape, p: Columns) -> Demand:
    """The window in SPLITS blocks per HEADS query heads, partial results to L2 and back."""
    return _window(s, p, p["splits"])


def _window(s: Shape, p: Columns, splits: npt.NDArray[np.int64]) -> Demand:
    """A team of D / 8 lanes per token serves HEADS heads, those beyond the group for nothing.

    The blocks of a group run within some 32 tokens of each other and re-read K and V. Loads are out for about 600 ns a step; the rest of
    a block's life is page lookup, softmax, the way in and the merge of the teams.
    """
    b, h, kv, d, t, w, _ = (s[a] for a in AXES)
    threads, tokens, heads = 32 * p["warps"], p["tokens"], p["heads"]
    lanes, group, seen = d // 8, h // kv, min(t, w)
    hops = lanes.bit_length() - 1
    teams, parts = threads // lanes, ceil_div(group, heads)
    blocks = b * kv * parts * splits
    steps = ceil_div(ceil_div(seen, splits), teams * tokens)
    slots = blocks * steps * teams * tokens
    partials = np.where(splits > 1, b * h * splits * (d + 2) * 4, 0) if "splits" in p else 0
    merge = p["warps"] * (16 + 2 * teams) + teams * (d // 32)
    chain_ns = 1500 + heads * (100 + 8 * teams) + steps * (280 + tokens * (30 + 10 * heads))
    return Demand(
        blocks=blocks,
        threads=threads,
        registers=24 + 22 * heads + 4 * tokens,
        smem_per_block=threads * 33,
        dram_bytes=work(s).bytes,
        reread_bytes=(parts - 1) * 4 * b * kv * seen * d + 2 * partials,
        footprint_bytes=b * kv * min(seen, 32) * d * 4,
        inflight_per_block=threads * 32 * tokens * (600.0 * steps / (chain_ns + 600.0 * steps)),
        flops=4 * slots * heads * d,
        alu_ops=slots * lanes * (38 + heads * (8 + hops + 10 / tokens)) + blocks * heads * threads * (60 + 6 * teams),
        sfu_ops=slots * lanes * heads * (1 + 1 / tokens),
        lsu_ops=slots * lanes // 32 * (3 + hops * heads) + blocks * heads * merge,
        leak=0.35,
        launches=2 if "splits" in p else 1,
        chain_ns=chain_ns,
        tail_ns=COMBINE_NS + 15 * splits if "splits" in p else 0,
    )


def demand_ring(s: Shape, p: Columns) -> Demand:
    """As `_window` in one piece, a page a step: STAGES - 1 pages stay in flight, and a packet crosses shared memory once more.

    The first page loads and the last is used with nothing to hide under. Where a page has fewer tokens than the block has teams, the warps
    beyond them idle. The running maximum moves at every token.
    """
    b, h, kv, d, t, w, page = (s[a] for a in AXES)
    threads, stages, heads = 32 * p["warps"], p["stages"], p["heads"]
    lanes, group, seen = d // 8, h // kv, min(t, w)
    hops = lanes.bit_length() - 1
    teams, parts = threads // lanes, ceil_div(group, heads)
    per_team, pages = ceil_div(page, teams), -(-seen // page)
    blocks = b * kv * parts
    tokens = blocks * pages * page
    edges_ns = 2000 + heads * (100 + 8 * teams)
    return Demand(
        blocks=blocks,
        threads=threads,
        registers=14 + 27 * heads,
        smem_per_block=stages * page * d * 4 + threads * 33,
        dram_bytes=work(s).bytes,
        reread_bytes=(parts - 1) * 4 * b * kv * seen * d,
        footprint_bytes=b * kv * np.minimum(seen, stages * page) * d * 4,
        inflight_per_block=np.minimum(stages - 1, pages) * page * d * 4 * (600.0 * pages / (600.0 * pages + edges_ns)),
        flops=4 * tokens * heads * d,
        alu_ops=tokens * lanes * (34 + heads * (18 + hops)) + blocks * threads * (30 * pages + heads * (60 + 6 * teams)),
        sfu_ops=2 * tokens * lanes * heads,
        lsu_ops=tokens * lanes // 32 * (10 + hops * heads) + blocks * heads * (p["warps"] * (16 + 2 * teams) + teams * (d // 32)),
        leak=np.where(stages > 2, 0.15, 0.35) + 1.0 / pages,
        chain_ns=edges_ns + pages * (100 + per_team * (110 + 10 * heads)),
    )


MASK_ONLY = Variant(
    name="mask_only",
    idea="whole sequence scored, scores before the window masked",
    points=grid(
        lambda p: (p["heads"] == 2) + (p["threads"] == 256) + (p["block_n"] == 64) >= 2,
        threads=(128, 256),
        block_n=(32, 64),
        heads=(1, 2),
        unroll=(1, 2, 4),
    ),
    start={"threads": 256, "block_n": 64, "heads": 2, "unroll": 1},
    demand=demand_mask,
    illegal=(
        Illegal(params={"threads": 200, "block_n": 64, "heads": 2, "unroll": 1}, rule="THREADS must be whole warps"),
        Illegal(params={"threads": 2048, "block_n": 64, "heads": 2, "unroll": 1}, rule="a block has at most 1024 threads"),
        Illegal(
            params={"threads": 256, "block_n": 48, "heads": 2, "unroll": 1},
            rule="BLOCK_N must be a multiple of 32: whole warps score the same heads",
        ),
        Illegal(params={"threads": 256, "block_n": 64, "heads": 2, "unroll": 16}, rule="UNROLL must be 1 to 8"),
    ),
    bugs=(
        Bug(
            name="window_off_by_one",
            old="start + token >= first ? score[h] * scale : NEVER;",
            new="start + token > first ? score[h] * scale : NEVER;",
            slip="the oldest token of the window is masked too: > where >= is meant",
            symptom="one token is missing from every window that is full",
        ),
        Bug(
            name="skip_too_early",
            old="if (start + count <= first) continue;",
            new="if (start <= first) continue;",
            slip="the tile that holds the first token of the window is skipped whole",
            symptom="windows lose up to a tile of their oldest tokens, short sequences lose all",
        ),
        Bug(
            name="no_rescale",
            old="float o = sum[i] * fix[g];",
            new="float o = sum[i];",
            slip="the running output is not rescaled when the maximum moves",
            symptom="outputs are too large where a later tile holds the maximum",
        ),
    ),
)

BLOCK_SKIP = Variant(
    name="block_skip",
    idea="starts at the window, heads share K and V",
    parent="mask_only",
    points=shapes(
        ("warps", "tokens", "heads"),
        (1, 1, 1),
        (2, 1, 2),
        (2, 2, 2),
        (2, 2, 4),
        (4, 1, 1),
        (4, 1, 2),
        (4, 1, 4),
        (4, 2, 1),
        (4, 2, 2),
        (4, 2, 4),
        (4, 4, 2),
        (8, 1, 2),
        (8, 2, 2),
        (8, 4, 1),
        (8, 1, 8),
    ),
    start={"warps": 4, "tokens": 1, "heads": 1},
    demand=demand_skip,
    illegal=(
        Illegal(params={"warps": 6, "tokens": 1, "heads": 1}, rule="WARPS must be a power of two, at most 32"),
        Illegal(params={"warps": 4, "tokens": 12, "heads": 1}, rule="TOKENS must be 1 to 8: all are held in registers"),
        Illegal(params={"warps": 4, "tokens": 1, "heads": 16}, rule="HEADS must be 1 to 8: all are held in registers"),
    ),
    bugs=(
        Bug(
            name="window_off_by_one",
            old="begin = max(end - window, 0);",
            new="begin = max(end - window - 1, 0);",
            slip="the window is one token too long: the edge is exclusive",
            symptom="a token before the window leaks in",
        ),
        Bug(
            name="tail_not_masked",
            old="if (base + t * teams + team >= end)",
            new="if (base + t * teams >= end)",
            slip="the tail mask ignores the team, so the last token is counted by several teams",
            symptom="outputs lean towards the newest token",
        ),
        Bug(
            name="stride_of_query_heads",
            old="at = ((size_t)row * kv_heads + kv_head)",
            new="at = ((size_t)row * heads + kv_head)",
            slip="cache rows are strided by the number of query heads, not of KV heads",
            symptom="reads beyond the cache, and other tokens' keys before that",
        ),
    ),
)

SPLIT_WINDOW = Variant(
    name="split_window",
    idea="window split over blocks, then a combine kernel",
    parent="block_skip",
    points=shapes(
        ("warps", "tokens", "heads", "splits"),
        (2, 2, 2, 4),
        (2, 2, 2, 16),
        (1, 4, 2, 8),
        (2, 4, 2, 8),
        (2, 4, 4, 4),
        (4, 1, 2, 4),
        (4, 1, 8, 2),
        (4, 2, 2, 2),
        (4, 2, 2, 4),
        (4, 2, 4, 2),
        (4, 2, 4, 8),
        (4, 4, 2, 4),
        (8, 2, 2, 32),
    ),
    start={"warps": 4, "tokens": 1, "heads": 2, "splits": 4},
    demand=demand_split,
    illegal=(
        Illegal(params={"warps": 6, "tokens": 1, "heads": 2, "splits": 4}, rule="WARPS must be a power of two, at most 32"),
        Illegal(params={"warps": 4, "tokens": 1, "heads": 16, "splits": 4}, rule="HEADS must be 1 to 8: all are held in registers"),
        Illegal(
            params={"warps": 4, "tokens": 1, "heads": 2, "splits": 64}, rule="SPLITS must be 1 to 32: the combine is unrolled over them"
        ),
    ),
    bugs=(
        Bug(
            name="chunk_rounded_down",
            old="chunk = (min(window, length) + SPLITS - 1) / SPLITS;",
            new="chunk = min(window, length) / SPLITS;",
            slip="the slice length is rounded down, so the remainder of the window belongs to no slice",
            symptom="the newest tokens are missing where SPLITS does not divide the window",
        ),
        Bug(
            name="combine_no_rescale",
            old="total += ml[s].y * fix;",
            new="total += ml[s].y;",
            slip="the combine adds the sums of the slices without bringing them to one maximum",
            symptom="outputs shrink, worst where slices differ in maximum",
        ),
        Bug(
            name="window_off_by_one",
            old="begin = max(length - window, 0) + split * chunk",
            new="begin = max(length - window + 1, 0) + split * chunk",
            slip="the first token of the window is left out",
            symptom="one token is missing from every window that is full",
        ),
    ),
)

RING_PAGES = Variant(
    name="ring_pages",
    idea="pages of the window through a cp.async ring",
    parent="block_skip",
    points=shapes(
        ("warps", "stages", "heads"),
        (2, 2, 2),
        (2, 2, 4),
        (2, 3, 4),
        (2, 4, 4),
        (4, 2, 1),
        (4, 2, 4),
        (4, 3, 2),
        (4, 3, 4),
        (4, 4, 2),
        (4, 4, 4),
        (4, 6, 2),
        (4, 6, 4),
        (8, 4, 4),
    ),
    start={"warps": 4, "stages": 3, "heads": 2},
    demand=demand_ring,
    needs=frozenset({"cp_async"}),
    illegal=(
        Illegal(params={"warps": 6, "stages": 3, "heads": 2}, rule="WARPS must be a power of two, at most 32"),
        Illegal(params={"warps": 4, "stages": 1, "heads": 2}, rule="STAGES must be 2 or more: one page is used while others load"),
        Illegal(params={"warps": 4, "stages": 3, "heads": 16}, rule="HEADS must be 1 to 8: all are held in registers"),
    ),
    bugs=(
        Bug(
            name="waits_for_too_few",
            old="cp_async_wait<STAGES - 2>();",
            new="cp_async_wait<STAGES - 1>();",
            slip="wait_group leaves one group too many pending: the page is used before it has landed",
            symptom="NaN or stale pages in the output",
        ),
        Bug(
            name="first_page_not_masked",
            old="const bool seen = i * page + t >= begin && i * page + t < end;\n      float",
            new="const bool seen = i * page + t < end;\n      float",
            slip="rows of the first page before the window are zeros, but their scores are not masked",
            symptom="weights of exp(0) for tokens that are not in the window",
        ),
        Bug(
            name="page_number_too_late",
            old="next = pages[min(i + 1, last - 1)];",
            new="next = pages[i];",
            slip="the page number read ahead is that of the page just copied",
            symptom="the first page of the window is used twice, the last never",
        ),
    ),
)

OP = Op(
    name="swa_decode",
    impl="cuda",
    dtype="fp16",
    axes=AXES,
    summary="out[b, h] = softmax(q[b, h] . K[b, :, g] / sqrt(D)) @ V[b, :, g] over the last W of T tokens, g = h * KV / H, one query token "
    "per sequence. q and out are fp16 [B, H, D]; K and V lie in fp16 pages [pages, P, KV, D], found through an int32 table [B, max_pages]; "
    "lengths int32 [B]; sums in fp32.",
    shapes=shapes(AXES, (64, 64, 8, 64, 8192, 128, 16), (32, 32, 8, 128, 8192, 4096, 16), (16, 32, 16, 128, 16384, 1024, 16)),
    heldout={"B": 32, "H": 8, "KV": 4, "D": 256, "T": 8192, "W": 1024, "P": 16},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=2e-3,
    variants=(MASK_ONLY, BLOCK_SKIP, SPLIT_WINDOW, RING_PAGES),
)
