"""topk_sample: draw one token per row from the softmax of its k largest fp32 logits, as an LLM server does after each step.

Every logit is needed once and almost none of them matters: the ladder is about how often the row is read to find the k-th largest, and
about rows so few that one block each leaves most of the GPU idle.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Illegal, Op, Shape, Variant, Work, grid, shapes
from generator.ops.topk_sample_demand import demand_heaps, demand_radix, demand_selection, demand_sort, demand_split

AXES = ("B", "V", "K")


def work(s: Shape) -> Work:
    """Read each logit and one uniform per row (fp32), write one token (int32); compare each logit once, weigh k of them: 4 flops each."""
    b, v, k = s["B"], s["V"], s["K"]
    return Work(bytes=4 * b * v + 4 * b + 4 * b, flops=b * v + 4 * b * k, math="fp32")


def constants(s: Shape) -> dict[str, int]:
    return {}


def reference(logits: npt.NDArray[np.float32], uniform: npt.NDArray[np.float32], k: int, inv_temperature: float) -> npt.NDArray[np.float64]:
    """Token ids `[B]` for logits `[B, V]` and uniform `[B]` in [0, 1).

    Keeps logits not below the row's k-th largest; takes the first token, in index order, at which the normalised cumulative sum of
    `exp(logit * inv_temperature)` over the kept ones exceeds the row's uniform.
    """
    values = logits.astype(np.float64)
    kept = values >= np.sort(values, axis=1)[:, -k, None]
    weight = np.where(kept, np.exp((values - values.max(axis=1, keepdims=True)) * inv_temperature), 0.0)
    total = np.cumsum(weight, axis=1)
    first: npt.NDArray[np.int64] = np.argmax(total > uniform.astype(np.float64)[:, None] * total[:, -1:], axis=1)
    return first.astype(np.float64)


SELECTION = Variant(
    name="selection_passes",
    idea="one block per row, repeated passes for the maximum",
    points=grid(
        lambda p: p["unroll"] == 4 or p["items"] <= 2,
        threads=(512, 1024),
        items=(1, 2, 4, 8),
        unroll=(1, 4),
    ),
    start={"threads": 1024, "items": 4, "unroll": 4},
    demand=demand_selection,
    illegal=(
        Illegal(params={"threads": 500, "items": 2, "unroll": 4}, rule="THREADS must be whole warps"),
        Illegal(params={"threads": 2048, "items": 1, "unroll": 4}, rule="a block has at most 1024 threads"),
        Illegal(params={"threads": 512, "items": 16, "unroll": 4}, rule="ITEMS must be 1 to 8: a thread's list lives in registers"),
    ),
    bugs=(
        Bug(
            name="ties_counted_once",
            old="taken += block_reduce(mine ? list.count[0] : 0, [](int a, int b) { return a + b; });",
            new="taken += block_reduce(mine ? 1 : 0, [](int a, int b) { return a + b; });",
            slip="a value that one thread saw several times counts as one logit taken",
            symptom="rows with repeated logits keep more than k of them",
        ),
        Bug(
            name="inclusive_draw",
            old="if (kept && upto - weight <= target) atomicMax(&chosen, i);",
            new="if (kept && upto <= target) atomicMax(&chosen, i);",
            slip="the draw compares the inclusive prefix sum, so it stops one kept token early",
            symptom="every token is the kept one before the right one",
        ),
        Bug(
            name="scan_buffer_reused",
            old="    total += sums[i];\n  }\n  __syncthreads();",
            new="    total += sums[i];\n  }",
            slip="no barrier between reading the warp sums and the next tile's write to them",
            symptom="race on the warp sums",
        ),
    ),
)

SORT = Variant(
    name="sort",
    idea="one block per row, chunks sorted by a bitonic network",
    parent="selection_passes",
    points=grid(
        lambda p: 2048 <= p["threads"] * p["items"] <= 8192,
        threads=(256, 512, 1024),
        items=(2, 4, 8, 16, 32),
    ),
    start={"threads": 512, "items": 4},
    demand=demand_sort,
    illegal=(
        Illegal(params={"threads": 384, "items": 8}, rule="THREADS must be a power of two, at least 64"),
        Illegal(params={"threads": 512, "items": 6}, rule="ITEMS must be a power of two"),
        Illegal(params={"threads": 1024, "items": 16}, rule="a chunk exceeds 32 KB of shared memory"),
    ),
    bugs=(
        Bug(
            name="direction_by_thread",
            old="((tid & apart) == 0) == ((tid * ITEMS & size) == 0);",
            new="((tid & apart) == 0) == ((tid & size) == 0);",
            slip="the direction of a run is taken from the thread's number, not from that of its first key",
            symptom="chunks come out unsorted, the cut is some other key",
        ),
        Bug(
            name="passed_too_early",
            old="      if (apart >= 32) __syncthreads();\n",
            new="",
            slip="no barrier between reading the partner's keys and the next stage's write over them",
            symptom="race on the passed keys",
        ),
        Bug(
            name="leaders_lost",
            old="    if (tid < k) key[0] = leader[tid];\n",
            new="",
            slip="the k largest are not put back in front of the next chunk",
            symptom="of each chunk only one key a thread survives, the cut falls too low",
        ),
    ),
)

RADIX = Variant(
    name="radix_select",
    idea="one block per row, radix select in shared memory",
    parent="selection_passes",
    points=grid(
        lambda p: (
            (p["threads"], p["vec"], p["unroll"]) in {(512, 1, 1), (512, 1, 4), (512, 4, 2), (1024, 4, 4)}
            and (p["copies"] <= 2 or (p["radix"], p["vec"]) == (8, 4))
            and (p["vec"] == 4 or p["radix"] == 8)
        ),
        threads=(512, 1024),
        radix=(8, 11),
        copies=(1, 2, 8),
        vec=(1, 4),
        unroll=(1, 2, 4),
    ),
    start={"threads": 512, "radix": 8, "copies": 1, "vec": 1, "unroll": 4},
    demand=demand_radix,
    illegal=(
        Illegal(params={"threads": 500, "radix": 8, "copies": 2, "vec": 4, "unroll": 2}, rule="THREADS must be whole warps, 1024 at most"),
        Illegal(
            params={"threads": 512, "radix": 4, "copies": 2, "vec": 4, "unroll": 2}, rule="RADIX must be 5 to 12: a warp scans the bins"
        ),
        Illegal(
            params={"threads": 512, "radix": 11, "copies": 8, "vec": 4, "unroll": 2}, rule="COPIES histograms exceed 32 KB of shared memory"
        ),
        Illegal(params={"threads": 512, "radix": 8, "copies": 2, "vec": 8, "unroll": 2}, rule="VEC must be 1, 2 or 4: one aligned access"),
    ),
    bugs=(
        Bug(
            name="clear_without_barrier",
            old="hist[i / BINS][i % BINS] = 0;\n    __syncthreads();",
            new="hist[i / BINS][i % BINS] = 0;",
            slip="no barrier between clearing the histogram and the first atomics",
            symptom="race on the histogram, counts are lost",
        ),
        Bug(
            name="rank_not_reduced",
            old="for (; hist[bin] < left; --bin) left -= hist[bin];",
            new="for (; hist[bin] < left; --bin) {}",
            slip="the rank is not reduced by the bins passed over",
            symptom="the cut falls too low or the walk leaves the histogram",
        ),
        Bug(
            name="cut_excluded",
            old="[=](float f) { return order_key(f) >= cut ?",
            new="[=](float f) { return order_key(f) > cut ?",
            slip="logits equal to the k-th largest are left out",
            symptom="draws never take the k-th largest, rows of ties end at the first token",
        ),
    ),
)

HEAPS = Variant(
    name="block_heaps",
    idea="several blocks per row, each warp's largest kept sorted",
    parent="radix_select",
    points=grid(
        lambda p: 512 <= p["threads"] * p["splits"] <= 2048 and (p["unroll"] == 8 or p["threads"] == 256),
        threads=(128, 256, 512),
        splits=(2, 4, 8, 16),
        unroll=(4, 8, 16),
    ),
    start={"threads": 256, "splits": 8, "unroll": 4},
    demand=demand_heaps,
    illegal=(
        Illegal(params={"threads": 200, "splits": 8, "unroll": 4}, rule="THREADS must be whole warps, 1024 at most"),
        Illegal(params={"threads": 256, "splits": 8, "unroll": 6}, rule="UNROLL must be 4, 8 or 16: whole batches between folds"),
        Illegal(params={"threads": 512, "splits": 64, "unroll": 4}, rule="a row has at most 512 warps: one block folds their lists"),
    ),
    bugs=(
        Bug(
            name="ties_not_counted",
            old="const bool whole = its[k - 1] < cut;",
            new="const bool whole = its[k - 1] <= cut;",
            slip="a list whose k-th equals the cut is taken for whole, but its warp dropped further logits equal to it",
            symptom="rows with long plateaus draw from the wrong place",
        ),
        Bug(
            name="queue_read_early",
            old="    __syncwarp();\n    float fresh[2]",
            new="    float fresh[2]",
            slip="no __syncwarp between queueing logits and other lanes' reads of them",
            symptom="race on the queue",
        ),
        Bug(
            name="list_not_turned",
            old="best[0] = fmaxf(best[0], turned[0]), best[1] = fmaxf(best[1], turned[-32]);",
            new="best[0] = fmaxf(best[0], turned[-32]), best[1] = fmaxf(best[1], turned[0]);",
            slip="the halves of the turned list are swapped, large logits meet large ones",
            symptom="large logits push each other out of the list, the cut falls too low",
        ),
    ),
)

SPLIT = Variant(
    name="split_select",
    idea="many blocks per row, candidates per chunk, then merge",
    parent="radix_select",
    points=grid(
        lambda p: p["threads"] * p["items"] >= 2048 and (p["radix"] == 8 or p["items"] == 16) and (p["vec"] == 4 or p["threads"] == 256),
        threads=(128, 256, 512),
        items=(8, 16, 32),
        vec=(1, 4),
        radix=(6, 8),
    ),
    start={"threads": 256, "items": 16, "vec": 1, "radix": 8},
    demand=demand_split,
    illegal=(
        Illegal(params={"threads": 200, "items": 16, "vec": 4, "radix": 8}, rule="THREADS must be whole warps, 1024 at most"),
        Illegal(params={"threads": 256, "items": 6, "vec": 4, "radix": 8}, rule="VEC must be 1, 2 or 4 and divide ITEMS"),
        Illegal(params={"threads": 256, "items": 16, "vec": 4, "radix": 4}, rule="RADIX must be 5 to 12: a warp scans the bins"),
    ),
    bugs=(
        Bug(
            name="bound_from_above",
            old="const unsigned least = kth_largest<THREADS>([&](auto f) { f(order_key(most)); }, k, 2 * RADIX);",
            new="const unsigned least = kth_largest<THREADS>([&](auto f) { f(order_key(most)); }, 1, 2 * RADIX);",
            slip="a chunk lists only what reaches the largest of its threads' maxima, not the k-th",
            symptom="kept logits go missing wherever one chunk holds several of them",
        ),
        Bug(
            name="tail_counts_as_zero",
            old="hold[i + v] = live ? packet.f[v] : LOWEST);",
            new="hold[i + v] = packet.f[v]);",
            slip="lanes past the end of the row enter the selection as logit 0",
            symptom="rows of negative logits select zeros that are not there",
        ),
        Bug(
            name="missing_base",
            old="float base = __shfl_sync(0xffffffffu, upto - part, owner);",
            new="float base = 0.0f;",
            slip="the scan of the owner's chunks starts at zero instead of the weight of those before them",
            symptom="draws beyond the first chunks take the last kept token of theirs",
        ),
    ),
)

OP = Op(
    name="topk_sample",
    impl="cuda",
    dtype="fp32",
    axes=AXES,
    summary=(
        "token[b] = the first index, in index order, at which the cumulative sum of exp(logits[b, v] * inv_temperature), normalised over "
        "the logits not below the K-th largest of the row (ties kept), exceeds uniform[b] in [0, 1); logits are row-major fp32 [B, V], "
        "uniform fp32 [B], token int32 [B]."
    ),
    shapes=shapes(AXES, (64, 128256, 50), (16, 151936, 20), (128, 201088, 40)),
    heldout={"B": 32, "V": 262144, "K": 64},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=1e-4,
    variants=(SELECTION, SORT, RADIX, HEAPS, SPLIT),
)
