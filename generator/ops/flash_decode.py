"""flash_decode: attention of one new token per sequence over a paged fp16 KV cache, every query head with a KV head of its own.

Pure bandwidth: K and V are read once, two flops a byte. The ladder is about blocks enough to fill the GPU and loads enough in flight.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Illegal, Op, Shape, Variant, grid, shapes
from generator.ops.flash_decode_demand import AXES, demand_cluster, demand_ring, demand_single, demand_split, demand_tma, work


def constants(s: Shape) -> dict[str, int]:
    return {"HEAD_DIM": s["D"]}


def reference(
    q: npt.NDArray[np.float16],
    k: npt.NDArray[np.float16],
    v: npt.NDArray[np.float16],
    table: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int32],
    scale: float,
) -> npt.NDArray[np.float64]:
    """`softmax(scale * q.K) @ V` over the first `lengths[b]` tokens of sequence `b`; float64 `[B, H, D]`.

    q is `[B, H, D]`; k and v are `[pages, P, KV, D]`; table `[B, max_pages]` names the pages of a sequence in order; lengths `[B]`.
    Query head `h` uses KV head `h // (H // KV)`.
    """
    out = np.empty(q.shape, dtype=np.float64)
    group = q.shape[1] // k.shape[2]
    for b, length in enumerate(lengths):
        keys, values = (c[table[b]].reshape(-1, *c.shape[2:])[:length].astype(np.float64) for c in (k, v))
        for h in range(q.shape[1]):
            score = scale * (keys[:, h // group] @ q[b, h].astype(np.float64))
            weight = np.exp(score - score.max())
            out[b, h] = weight / weight.sum() @ values[:, h // group]
    return out


SINGLE_PASS = Variant(
    name="single_pass",
    idea="one block per head, one token per thread",
    points=grid(
        lambda p: p["vec"] == 1 or p["threads"] == 128 or p["unroll"] == 2,
        threads=(64, 128, 256),
        vec=(1, 2),
        unroll=(1, 2, 4),
    ),
    start={"threads": 128, "vec": 1, "unroll": 1},
    demand=demand_single,
    illegal=(
        Illegal(params={"threads": 80, "vec": 1, "unroll": 1}, rule="THREADS must be whole warps"),
        Illegal(params={"threads": 2048, "vec": 1, "unroll": 1}, rule="a block has at most 1024 threads"),
        Illegal(params={"threads": 128, "vec": 6, "unroll": 1}, rule="VEC must be 1, 2, 4 or 8: one aligned access"),
        Illegal(params={"threads": 128, "vec": 1, "unroll": 16}, rule="UNROLL must be 1 to 8"),
    ),
    bugs=(
        Bug(
            name="no_rescale",
            old="float o = sum[d] * fix;",
            new="float o = sum[d];",
            slip="the running output is not rescaled when the maximum moves",
            symptom="rows whose maximum comes late are far too large",
        ),
        Bug(
            name="tail_not_clipped",
            old="count = min(THREADS, length - start);",
            new="count = THREADS;",
            slip="the last tile is not clipped to the sequence length",
            symptom="reads cache rows of tokens that do not exist",
        ),
        Bug(
            name="total_not_rescaled",
            old="    total *= fix;\n",
            new="",
            slip="the running denominator keeps its old scale",
            symptom="outputs are too small wherever a later tile holds the maximum",
        ),
    ),
)

SPLIT_KV = Variant(
    name="split_kv",
    idea="sequence split over blocks, then a combine kernel",
    parent="single_pass",
    points=shapes(
        ("warps", "vec", "tokens", "splits"),
        (1, 4, 1, 1),
        (2, 4, 2, 4),
        (2, 8, 2, 8),
        (2, 8, 4, 8),
        (4, 8, 1, 4),
        (4, 8, 2, 4),
        (4, 8, 4, 1),
        (4, 16, 2, 2),
        (2, 16, 2, 8),
        (16, 8, 1, 32),
    ),
    start={"warps": 4, "vec": 8, "tokens": 1, "splits": 4},
    demand=demand_split,
    illegal=(
        Illegal(params={"warps": 3, "vec": 8, "tokens": 1, "splits": 4}, rule="WARPS must be a power of two, at most 32"),
        Illegal(params={"warps": 4, "vec": 8, "tokens": 16, "splits": 4}, rule="TOKENS must be 1 to 8: all are held in registers"),
        Illegal(
            params={"warps": 4, "vec": 2, "tokens": 1, "splits": 4}, rule="VEC must be 4, 8 or 16: a token fits a warp in whole packets"
        ),
        Illegal(params={"warps": 4, "vec": 8, "tokens": 1, "splits": 64}, rule="SPLITS must be 1 to 32: the combine is unrolled over them"),
    ),
    bugs=(
        Bug(
            name="tail_not_masked",
            old="if (base + t * TEAMS + team >= end) score = 2 * NEVER;",
            new="if (base + t * TEAMS >= end) score = 2 * NEVER;",
            slip="the tail mask ignores the team, so the last token is counted by several teams",
            symptom="outputs lean towards the last token of every split",
        ),
        Bug(
            name="combine_no_rescale",
            old="total += ml[s].y * fix;",
            new="total += ml[s].y;",
            slip="the combine adds the sums of the splits without bringing them to one maximum",
            symptom="outputs shrink, worst where splits differ in maximum",
        ),
        Bug(
            name="merge_no_barrier",
            old="team_acc[team][lane * VEC + i] = acc[i] * fix;\n  __syncthreads();",
            new="team_acc[team][lane * VEC + i] = acc[i] * fix;",
            slip="no barrier between writing and summing the teams' partial outputs",
            symptom="shared-memory race in the merge",
        ),
    ),
)

CP_ASYNC = Variant(
    name="cp_async",
    idea="split-KV through a cp.async ring, table prefetched",
    parent="split_kv",
    points=shapes(
        ("warps", "block_n", "stages", "splits"),
        (2, 8, 2, 1),
        (2, 8, 2, 8),
        (2, 16, 2, 2),
        (2, 16, 2, 8),
        (2, 16, 3, 4),
        (2, 32, 2, 1),
        (4, 32, 2, 1),
        (4, 32, 2, 4),
        (4, 32, 3, 2),
        (8, 32, 3, 32),
    ),
    start={"warps": 4, "block_n": 32, "stages": 2, "splits": 4},
    demand=demand_ring,
    needs=frozenset({"cp_async"}),
    illegal=(
        Illegal(
            params={"warps": 4, "block_n": 8, "stages": 2, "splits": 4},
            rule="BLOCK_N must be a multiple of WARPS * 4: every team gets as many tokens",
        ),
        Illegal(
            params={"warps": 4, "block_n": 32, "stages": 1, "splits": 4},
            rule="STAGES must be 2 or more: one tile is used while others load",
        ),
        Illegal(params={"warps": 4, "block_n": 128, "stages": 8, "splits": 4}, rule="the ring exceeds the shared memory of any block"),
        Illegal(
            params={"warps": 4, "block_n": 32, "stages": 2, "splits": 64}, rule="SPLITS must be 1 to 32: the combine is unrolled over them"
        ),
    ),
    bugs=(
        Bug(
            name="waits_for_too_few",
            old="cp_async_wait<STAGES - 2>();",
            new="cp_async_wait<STAGES - 1>();",
            slip="wait_group leaves one group too many pending: the tile is used before it has landed",
            symptom="NaN or stale tiles in the output",
        ),
        Bug(
            name="table_too_late",
            old="if (tile + 1 < tiles) look_up(tile + 1);",
            new="if (tile + 1 < tiles) look_up(tile);",
            slip="the page lookup runs for the tile just copied, so the next copy repeats its rows",
            symptom="the first tile is counted twice, every later one a tile too late, the last never",
        ),
        Bug(
            name="tail_not_masked",
            old="+ t * TEAMS + team >= end) score[t] = 2 * NEVER;",
            new="+ t * TEAMS >= end) score[t] = 2 * NEVER;",
            slip="the tail mask ignores the team, so the last token is counted by several teams",
            symptom="outputs lean towards the last token of every split",
        ),
    ),
)

CLUSTER = Variant(
    name="cluster",
    idea="splits of a cluster merged through distributed shared memory",
    parent="cp_async",
    points=shapes(
        ("warps", "block_n", "stages", "cluster"),
        (2, 8, 2, 2),
        (2, 8, 2, 8),
        (2, 16, 2, 2),
        (2, 16, 2, 4),
        (2, 16, 3, 4),
        (2, 32, 2, 2),
        (4, 16, 2, 4),
        (4, 16, 3, 8),
        (4, 32, 2, 2),
        (4, 32, 2, 4),
        (4, 32, 3, 2),
        (8, 32, 2, 4),
    ),
    start={"warps": 4, "block_n": 32, "stages": 2, "cluster": 4},
    demand=demand_cluster,
    needs=frozenset({"cluster"}),
    illegal=(
        Illegal(
            params={"warps": 4, "block_n": 8, "stages": 2, "cluster": 4},
            rule="BLOCK_N must be a multiple of WARPS * 4: every team gets as many tokens",
        ),
        Illegal(
            params={"warps": 4, "block_n": 32, "stages": 1, "cluster": 4},
            rule="STAGES must be 2 or more: one tile is used while others load",
        ),
        Illegal(
            params={"warps": 4, "block_n": 32, "stages": 2, "cluster": 16}, rule="CLUSTER must be 2, 4 or 8: sizes that every board grants"
        ),
    ),
    bugs=(
        Bug(
            name="leaves_too_early",
            old="  cluster_sync(); // no block leaves while others read its memory\n",
            new="",
            slip="no barrier of the cluster before the end: a block may exit while its peers read its shared memory",
            symptom="reads of the shared memory of a block that has left",
        ),
        Bug(
            name="block_barrier_only",
            old="  cluster_sync(); // every",
            new="  __syncthreads(); // every",
            slip="the results are published with a barrier of the block, not of the cluster",
            symptom="race on the shared memory of the other blocks",
        ),
        Bug(
            name="merge_no_rescale",
            old="norm += peer(&block_total, r) * fix;",
            new="norm += peer(&block_total, r);",
            slip="the merge adds the totals of the blocks without bringing them to one maximum",
            symptom="outputs shrink, worst where slices differ in maximum",
        ),
    ),
)

TMA = Variant(
    name="tma",
    idea="split-KV, a producer thread fetches pages by TMA",
    parent="cp_async",
    points=shapes(
        ("warps", "block_n", "stages", "splits"),
        (2, 8, 2, 1),
        (2, 8, 4, 1),
        (2, 16, 2, 2),
        (2, 16, 4, 1),
        (2, 16, 4, 2),
        (2, 32, 3, 1),
        (2, 32, 3, 4),
        (4, 16, 4, 2),
        (4, 32, 3, 4),
        (4, 32, 4, 1),
        (4, 32, 4, 2),
        (8, 32, 4, 2),
    ),
    start={"warps": 4, "block_n": 32, "stages": 3, "splits": 4},
    demand=demand_tma,
    needs=frozenset({"tma"}),
    illegal=(
        Illegal(
            params={"warps": 3, "block_n": 32, "stages": 3, "splits": 4},
            rule="WARPS must be a power of two, at most 16",
        ),
        Illegal(
            params={"warps": 4, "block_n": 24, "stages": 3, "splits": 4},
            rule="BLOCK_N must be a multiple of WARPS * 4: every team gets as many tokens",
        ),
        Illegal(params={"warps": 4, "block_n": 128, "stages": 8, "splits": 4}, rule="the ring exceeds the shared memory of any block"),
        Illegal(
            params={"warps": 4, "block_n": 32, "stages": 3, "splits": 64}, rule="SPLITS must be 1 to 32: the combine is unrolled over them"
        ),
    ),
    bugs=(
        Bug(
            name="expects_half",
            old="rows * HEAD_DIM * 4);",
            new="rows * HEAD_DIM * 2);",
            slip="the full barrier expects the bytes of K only: V of the stage may still be on its way",
            symptom="NaN or stale V in the output",
        ),
        Bug(
            name="parity_of_tile",
            old="mbar_wait(&full[s], tile / STAGES & 1);",
            new="mbar_wait(&full[s], tile & 1);",
            slip="the parity flips with every tile, not with every round of the ring",
            symptom="every other stage is read and given back before its bytes have landed",
        ),
        Bug(
            name="column_of_head",
            old="tma_load_2d(box + TILE, &map_v, &full[s], head * HEAD_DIM, y);",
            new="tma_load_2d(box + TILE, &map_v, &full[s], head, y);",
            slip="the box of V starts at column head, but coordinates are elements: head * HEAD_DIM",
            symptom="every head but the first mixes in its neighbour's V",
        ),
    ),
)

OP = Op(
    name="flash_decode",
    impl="cuda",
    dtype="fp16",
    axes=AXES,
    summary="out[b, h] = softmax(q[b, h] . K[b, :, h] / sqrt(D)) @ V[b, :, h] for one query token per sequence, H query and H KV heads, "
    "T tokens. q and out are fp16 [B, H, D]; K and V lie in fp16 pages [pages, P, H, D], found through an int32 table [B, max_pages]; "
    "lengths int32 [B]; sums in fp32.",
    shapes=shapes(AXES, (8, 32, 128, 4096, 16), (32, 8, 128, 8192, 16), (128, 32, 64, 2048, 32)),
    heldout={"B": 16, "H": 40, "D": 128, "T": 4096, "P": 16},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=2e-3,
    variants=(SINGLE_PASS, SPLIT_KV, CP_ASYNC, CLUSTER, TMA),
)
