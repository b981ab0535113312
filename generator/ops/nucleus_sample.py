"""nucleus_sample: draw one token per row from the fewest likeliest tokens whose probability reaches p (top-p), fp32 logits.

The set is defined by a threshold, the pivot, so nothing need be sorted. The ladder is about how often the row is read, and every weight
computed, until the pivot is known; and, as for top-k, about rows too few to fill a GPU with one block each. A sort is the step that all
know: on a par with bisection.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Illegal, Op, Shape, Variant, Work, grid, shapes
from generator.ops.nucleus_sample_demand import demand_bisection, demand_radix, demand_rejection, demand_sort, demand_two_phase

AXES = ("B", "V")


def work(s: Shape) -> Work:
    """Read each logit and one uniform per row (fp32), write one token (int32); subtract, scale, exp, add: 4 flops a logit."""
    b, v = s["B"], s["V"]
    return Work(bytes=4 * b * v + 4 * b + 4 * b, flops=4 * b * v, math="fp32")


def constants(s: Shape) -> dict[str, int]:
    return {}


def pivots(weight: npt.NDArray[np.float64], p: float) -> npt.NDArray[np.float64]:
    """Per row of `weight` `[B, V]`, the greatest weight at or above which lies at least `p` of the row's sum; `[B, 1]`."""
    falling = -np.sort(-weight, axis=1)
    held = np.cumsum(falling, axis=1)
    last = np.argmax(held >= p * held[:, -1:], axis=1)
    return np.take_along_axis(falling, last[:, None], axis=1)


def reference(
    logits: npt.NDArray[np.float32], uniform: npt.NDArray[np.float32], p: float, inv_temperature: float
) -> npt.NDArray[np.float64]:
    """Token ids `[B]` for logits `[B, V]` and uniform `[B]` in [0, 1).

    Keeps the fewest tokens of greatest `exp(logit * inv_temperature)` that hold `p` of the row's sum, and all that equal the least of them;
    takes the first, in index order, at which the normalised cumulative sum over the kept ones exceeds the row's uniform.
    """
    values = logits.astype(np.float64)
    weight = np.exp((values - values.max(axis=1, keepdims=True)) * inv_temperature)
    total = np.cumsum(np.where(weight >= pivots(weight, p), weight, 0.0), axis=1)
    first: npt.NDArray[np.int64] = np.argmax(total > uniform.astype(np.float64)[:, None] * total[:, -1:], axis=1)
    return first.astype(np.float64)


BISECTION = Variant(
    name="bisection",
    idea="one block per row, pivot found by bisection",
    points=grid(
        lambda p: p["unroll"] == 4 or p["radix"] == 1,
        threads=(256, 512, 1024),
        radix=(1, 2, 4),
        unroll=(1, 4),
    ),
    start={"threads": 1024, "radix": 2, "unroll": 4},
    demand=demand_bisection,
    illegal=(
        Illegal(params={"threads": 500, "radix": 1, "unroll": 4}, rule="THREADS must be whole warps"),
        Illegal(params={"threads": 2048, "radix": 1, "unroll": 4}, rule="a block has at most 1024 threads"),
        Illegal(params={"threads": 512, "radix": 3, "unroll": 4}, rule="RADIX must be 1, 2 or 4: it divides a key of 32 bits"),
    ),
    bugs=(
        Bug(
            name="mass_of_last_trial",
            old="if (held >= need) digit = t + 1, kept = held;",
            new="kept = held; if (held >= need) digit = t + 1;",
            slip="the kept mass is that of the last trial, accepted or not",
            symptom="the draw is scaled by too small a mass, tokens come early",
        ),
        Bug(
            name="strict_pivot",
            old="const bool live = i < vocab && order_key(row[i]) >= pivot;",
            new="const bool live = i < vocab && order_key(row[i]) > pivot;",
            slip="tokens equal to the pivot are weighed but never drawn",
            symptom="rows with ties at the pivot return another token",
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
    name="sort_cumsum",
    idea="one block per row, radix sort, cumulative sum",
    parent="bisection",
    points=grid(
        lambda p: (p["radix"] == 8 or p["unroll"] == 4) and (p["radix"] > 4 or p["threads"] == 512),
        threads=(256, 512, 1024),
        radix=(4, 6, 8),
        unroll=(1, 4),
    ),
    start={"threads": 512, "radix": 8, "unroll": 4},
    demand=demand_sort,
    illegal=(
        Illegal(params={"threads": 500, "radix": 8, "unroll": 4}, rule="THREADS must be whole warps"),
        Illegal(params={"threads": 2048, "radix": 8, "unroll": 1}, rule="a block has at most 1024 threads"),
        Illegal(
            params={"threads": 128, "radix": 8, "unroll": 4},
            rule="a thread scans the counts of one digit: 2^RADIX must not exceed THREADS",
        ),
    ),
    bugs=(
        Bug(
            name="target_not_scaled",
            old="locate(vocab, p * block_sum(vocab, falling), falling)",
            new="locate(vocab, p, falling)",
            slip="the sorted weights are summed up to p, but their total is not 1",
            symptom="the pivot is too high, only the likeliest few tokens are drawn",
        ),
        Bug(
            name="inclusive_transform",
            old="if (mine > 0.0f && upto - mine <= target) atomicMax(&place, i);",
            new="if (mine > 0.0f && upto <= target) atomicMax(&place, i);",
            slip="the inverse transform compares the inclusive sum, so it stops one place early",
            symptom="every token is the kept one before the right one",
        ),
        Bug(
            name="places_read_too_soon",
            old="places[warp][digit] += __popc(peers);\n        __syncwarp();",
            new="places[warp][digit] += __popc(peers);",
            slip="lanes read the next keys' places before the leaders have moved them on",
            symptom="race on the places, keys overwrite each other",
        ),
    ),
)

REJECTION = Variant(
    name="rejection",
    idea="one block per row, drawn tokens tried as pivots",
    parent="sort_cumsum",
    points=grid(
        lambda p: (
            (p["tokens"], p["vec"]) in {(2, 1), (2, 4), (4, 4), (8, 4), (4, 8)}
            and (p["threads"] > 256 or (p["tokens"] < 8 and p["vec"] == 4))
            and (p["threads"] == 512 or p["vec"] > 1)
        ),
        threads=(256, 512, 1024),
        tokens=(2, 4, 8),
        vec=(1, 4, 8),
    ),
    start={"threads": 512, "tokens": 2, "vec": 4},
    demand=demand_rejection,
    illegal=(
        Illegal(params={"threads": 500, "tokens": 4, "vec": 4}, rule="THREADS must be whole warps, 1024 threads at most"),
        Illegal(
            params={"threads": 512, "tokens": 16, "vec": 4}, rule="TOKENS must be 2 to 8: a thread keeps sums and samples in registers"
        ),
        Illegal(params={"threads": 512, "tokens": 4, "vec": 2}, rule="VEC must be 1 or a multiple of 4: aligned accesses"),
    ),
    bugs=(
        Bug(
            name="mass_not_carried",
            old="      held += total;\n      block_scan(equal[t], total);",
            new="      block_scan(equal[t], total);",
            slip="the mass above a token that bounds the pivot is left out of the next rounds",
            symptom="the pivot falls too low, improbable tokens are drawn",
        ),
        Bug(
            name="ties_counted_once",
            old="equal[t] += weight(f);",
            new="equal[t] = weight(f);",
            slip="of the tokens equal to a drawn one each thread counts the last only",
            symptom="rows with ties at the pivot return another token",
        ),
        Bug(
            name="drawn_read_too_soon",
            old="atomicMax(&drawn[t], mine.key);\n    }\n    __syncthreads();",
            new="atomicMax(&drawn[t], mine.key);\n    }",
            slip="no barrier between the draw and the ranking of the drawn tokens",
            symptom="race on the drawn tokens",
        ),
    ),
)

RADIX = Variant(
    name="radix_pivot",
    idea="one block per row, mass histogram narrows the pivot",
    parent="rejection",
    points=grid(
        lambda p: (p["radix"] == 10 and (p["vec"] > 1 or p["threads"] > 256)) or (p["vec"] == 8 and p["threads"] > 256),
        threads=(256, 512, 1024),
        radix=(8, 10, 12),
        vec=(1, 4, 8),
    ),
    start={"threads": 512, "radix": 10, "vec": 1},
    demand=demand_radix,
    illegal=(
        Illegal(params={"threads": 500, "radix": 10, "vec": 4}, rule="THREADS must be whole warps, 1024 threads at most"),
        Illegal(params={"threads": 512, "radix": 4, "vec": 4}, rule="RADIX must be 5 to 12: the cells take 16 KB at most"),
        Illegal(params={"threads": 512, "radix": 10, "vec": 2}, rule="VEC must be 1 or a multiple of 4: aligned accesses"),
    ),
    bugs=(
        Bug(
            name="cell_weighed_twice",
            old="if (depth(f) < cell) sum += weight(f);",
            new="if (depth(f) <= cell) sum += weight(f);",
            slip="the logits of the pivot's cell are weighed with those above it, and again once listed",
            symptom="slices count too much, tokens come early",
        ),
        Bug(
            name="guess_not_raised",
            old="again = highest > top;",
            new="again = false;",
            slip="a row whose greatest logit lies above the cells is not passed again",
            symptom="a single peak is lost, tokens of the tail are drawn",
        ),
        Bug(
            name="clear_without_barrier",
            old="hist[i] = 0.0f;\n    __syncthreads();",
            new="hist[i] = 0.0f;",
            slip="no barrier between clearing the histogram and the first atomics",
            symptom="race on the histogram, mass is lost",
        ),
    ),
)

TWO_PHASE = Variant(
    name="two_phase",
    idea="many blocks per row, the last one finishes",
    parent="radix_pivot",
    points=grid(
        lambda p: 2048 <= p["threads"] * p["items"] <= 16384,
        threads=(128, 256, 512, 1024),
        items=(8, 16, 32),
    ),
    start={"threads": 256, "items": 16},
    demand=demand_two_phase,
    illegal=(
        Illegal(params={"threads": 200, "items": 16}, rule="THREADS must be whole warps, 1024 threads at most"),
        Illegal(params={"threads": 2048, "items": 8}, rule="THREADS must be whole warps, 1024 threads at most"),
        Illegal(params={"threads": 1024, "items": 32}, rule="THREADS * ITEMS weights overflow a cell's 32 bits"),
    ),
    bugs=(
        Bug(
            name="cells_not_aligned",
            old="mass += cells[(first + c) * THREADS + tid - drop];",
            new="mass += cells[(first + c) * THREADS + tid];",
            slip="cells of different chunks are added without shifting them to the row's top",
            symptom="mass of low chunks counts as that of the top, the pivot is too high",
        ),
        Bug(
            name="need_not_carried",
            old="need = p * all - (upto - mass);",
            new="need = p * all;",
            slip="the mass above the pivot's cell is not taken off what the cell must give",
            symptom="the pivot falls to the bottom of its cell, improbable tokens are drawn",
        ),
        Bug(
            name="missing_base",
            old="if (mass[c] > 0.0f && upto <= target) owner = c, base = upto;",
            new="if (mass[c] > 0.0f && upto <= target) owner = c;",
            slip="the chunk's scan starts at zero instead of the mass of the chunks before it",
            symptom="draws outside the first chunk take its last kept token",
        ),
    ),
)

OP = Op(
    name="nucleus_sample",
    impl="cuda",
    dtype="fp32",
    axes=AXES,
    summary=(
        "token[b] = the first index, in index order, at which the cumulative sum of exp(logits[b, v] * inv_temperature), normalised over "
        "the fewest likeliest tokens of the row that hold at least p = 0.9 of its probability (all equal to the least kept too), exceeds "
        "uniform[b] in [0, 1); logits are row-major fp32 [B, V], uniform fp32 [B], token int32 [B]."
    ),
    shapes=shapes(AXES, (64, 128256), (16, 151936), (128, 201088)),
    heldout={"B": 32, "V": 262144},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=1e-4,
    variants=(BISECTION, SORT, REJECTION, RADIX, TWO_PHASE),
)
