"""nucleus_sample: draw one token per row from the fewest likeliest tokens whose probability reaches p (top-p), fp32 logits.

The set is defined by a threshold, the pivot, so nothing need be sorted. The ladder is about how often the row is read, and every weight
computed, until the pivot is known; and, as for top-k, about rows too few to fill a GPU with one block each.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Columns, Demand, Illegal, Op, Quantity, Shape, Variant, Work, ceil_div, grid, shapes

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


def pick_ns(bins: Quantity) -> npt.NDArray[np.float64]:
    """One warp finds a bin among `bins`: a strided walk over the shared histogram, whose stride is also its bank conflict."""
    span = np.asarray(bins, dtype=np.float64) / 32
    return 120 + 0.55 * span * np.minimum(span, 32) + 8 * span


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


def demand_radix(s: Shape, p: Columns) -> Demand:
    """One pass for the maximum, one per digit of an interval of about 2^28 keys, one to weigh.

    Float atomics are compare-and-swap loops; most logits take part in the first digit, a quarter in the second, few later.
    """
    b, v, threads, copies, vec = s["B"], s["V"], p["threads"], p["copies"], p["vec"]
    warps, bins, digits = threads // 32, np.left_shift(1, p["radix"]), ceil_div(28, p["radix"])
    busy = np.where(p["radix"] >= 11, 30.0, np.where(p["radix"] >= 8, 5.0, 3.0))
    collisions = 1 + 32 / (np.minimum(copies, 32) * busy)
    return Demand(
        blocks=b,
        threads=threads,
        registers=30 + 2 * p["unroll"] * vec,
        smem_per_block=copies * bins * 4 + warps * 4 + 8,
        dram_bytes=4 * b * v + 8 * b,
        reread_bytes=4 * b * v * (digits + 1 + 1 / warps),
        footprint_bytes=4 * b * v,
        inflight_per_block=threads * 4 * vec * p["unroll"],
        flops=4 * b * v,
        alu_ops=b * v * (digits * (6 + 3 / (vec * p["unroll"])) + 10),
        sfu_ops=1.4 * b * v,
        lsu_ops=b * (ceil_div(v, 32 * vec) * (digits + 2) + ceil_div(v, 32) * (2.4 * collisions + 1) + digits * copies * bins / 16),
        leak=0.35,
        chain_ns=digits * (300 + pick_ns(bins) + 25 * copies * bins / threads) + 1300 + ceil_div(v, warps * threads) * (420 + 4 * warps),
    )


def demand_two_phase(s: Shape, p: Columns) -> Demand:
    """Two passes over the row by many blocks, the second backwards: on average half the logits lie between a logit's first and last use.

    In the second pass every block also adds up the cells of all chunks of its row: always in L2, they cost two clocks a line of 128 bytes.
    The last kernel is one short chain per row, the tail.
    """
    b, v, threads, items = s["B"], s["V"], p["threads"], p["items"]
    warps, bins = threads // 32, np.left_shift(1, p["radix"])
    size = threads * items
    chunks = ceil_div(v, size)
    merged = b * chunks * chunks * bins
    digits = ceil_div(18, p["radix"])
    gather = 500 * ceil_div(chunks, 32) * (1 + size / (80 * bins))
    finish = digits * (200 + pick_ns(bins) + gather) + 2 * gather + 8 * chunks + 1200 + size / 16
    return Demand(
        blocks=b * chunks,
        threads=threads,
        registers=28 + items,
        smem_per_block=bins * 4 + warps * 8 + 8,
        dram_bytes=4 * b * v + 8 * b,
        reread_bytes=4 * b * v + 4 * b * chunks * bins + 4 * b * size,
        footprint_bytes=2 * b * v,
        inflight_per_block=np.minimum(size, v) * 4,
        flops=4 * b * v,
        alu_ops=14 * b * chunks * size + 6 * merged,
        sfu_ops=b * chunks * size + merged,
        lsu_ops=b * chunks * (size / 32 * (2 + 2 * (1 + 80 / bins)) + 40 + 3 * warps * (6 + warps)) + merged / 8,
        leak=0.35,
        launches=3,
        tail_ns=finish,
        chain_ns=1300 + 6 * (60 + 3 * warps) + pick_ns(bins) + chunks * ceil_div(bins, threads) * 12,
    )


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
        lambda p: (1 << p["radix"]) <= p["threads"] and (p["radix"] > 4 or p["unroll"] == 4),
        threads=(256, 512, 1024),
        radix=(4, 6, 8),
        unroll=(1, 4),
    ),
    start={"threads": 512, "radix": 4, "unroll": 4},
    demand=demand_bisection,
    illegal=(),
    bugs=(),
)

REJECTION = Variant(
    name="rejection",
    idea="one block per row, drawn tokens tried as pivots",
    parent="sort_cumsum",
    points=grid(
        lambda p: p["vec"] == 4 or p["tokens"] == 2,
        threads=(256, 512, 1024),
        tokens=(2, 4, 8),
        vec=(1, 4),
    ),
    start={"threads": 512, "tokens": 2, "vec": 1},
    demand=demand_bisection,
    illegal=(),
    bugs=(),
)

RADIX = Variant(
    name="radix_pivot",
    idea="one block per row, mass histogram narrows the pivot",
    parent="bisection",
    points=grid(
        lambda p: p["vec"] == 4 or p["radix"] == 10,
        threads=(256, 512, 1024),
        radix=(8, 10, 12),
        vec=(1, 4),
    ),
    start={"threads": 512, "radix": 10, "vec": 1},
    demand=demand_radix,
    illegal=(
        Illegal(params={"threads": 500, "radix": 8, "copies": 2, "vec": 4, "unroll": 2}, rule="THREADS must be whole warps"),
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
            name="need_not_carried",
            old="for (; bin > first && hist[bin] < left; --bin) left -= hist[bin];",
            new="for (; bin > first && hist[bin] < left; --bin) {}",
            slip="the mass of the bins passed over is not taken off what the pivot's bin must give",
            symptom="the pivot falls too low, improbable tokens are drawn",
        ),
        Bug(
            name="interval_open",
            old="const bool inside = order_key(f) >= pivot && offset <= range;",
            new="const bool inside = order_key(f) >= pivot && offset < range;",
            slip="the interval leaves out its own upper end, at first the row's greatest logit",
            symptom="the mass from above never reaches p, the pivot falls to the bottom",
        ),
        Bug(
            name="clear_without_barrier",
            old="hist[i / BINS][i % BINS] = 0.0f;\n    __syncthreads();",
            new="hist[i / BINS][i % BINS] = 0.0f;",
            slip="no barrier between clearing the histogram and the first atomics",
            symptom="race on the histogram, mass is lost",
        ),
    ),
)

TWO_PHASE = Variant(
    name="two_phase",
    idea="many blocks per row, cells of mass, then list",
    parent="radix_pivot",
    points=grid(
        lambda p: 2048 <= p["threads"] * p["items"] <= 16384,
        threads=(128, 256, 512, 1024),
        items=(8, 16, 32),
    ),
    start={"threads": 256, "items": 16},
    demand=demand_two_phase,
    illegal=(
        Illegal(params={"threads": 200, "items": 16, "radix": 8}, rule="THREADS must be whole warps"),
        Illegal(params={"threads": 256, "items": 16, "radix": 4}, rule="RADIX must be 5 to 11: a warp scans the cells"),
        Illegal(params={"threads": 1024, "items": 32, "radix": 8}, rule="THREADS * ITEMS weights overflow a cell's 32 bits"),
    ),
    bugs=(
        Bug(
            name="cells_not_aligned",
            old="if (drop <= i) sum += cells[(first + c) * BINS + i - int(drop)];",
            new="if (drop <= i) sum += cells[(first + c) * BINS + i];",
            slip="cells of different chunks are added without shifting them to the row's top",
            symptom="mass of low chunks counts as that of the top, the pivot is too high",
        ),
        Bug(
            name="mass_overwritten",
            old="if (lane == 31) mass[c] += kept;",
            new="if (lane == 31) mass[c] = kept;",
            slip="the listed tokens replace the mass above the pivot's cell instead of adding to it",
            symptom="the draw weighs chunks by their least likely tokens",
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
