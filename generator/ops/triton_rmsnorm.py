"""triton_rmsnorm: root-mean-square normalisation of the rows of an fp16 matrix, written in Triton.

Pure bandwidth, as `rmsnorm`; what differs is the language. A row is a block of a power of two columns, so rows of 5376 or 3584 columns
waste lanes, and registers, occupancy and bytes in flight all follow from rows and warps per program.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Columns, Demand, Illegal, Op, Shape, Variant, Work, ceil_div, grid, shapes

AXES = ("M", "N")


def work(s: Shape) -> Work:
    """Read x, write y (fp16), read the weight once; square, add, scale, weight: 4 flops an element."""
    m, n = s["M"], s["N"]
    return Work(bytes=2 * m * n * 2 + n * 2, flops=4 * m * n, math="fp32")


def constants(s: Shape) -> dict[str, int]:
    """BLOCK: the least power of two that holds a row."""
    block = 1
    while block < s["N"]:
        block *= 2
    return {"BLOCK": block}


def reference(x: npt.NDArray[np.float16], w: npt.NDArray[np.float16], eps: float) -> npt.NDArray[np.float64]:
    """`x * rsqrt(mean(x^2) + eps) * w` for x `[M, N]` and w `[N]`; float64 `[M, N]`."""
    xf = x.astype(np.float64)
    scale = 1.0 / np.sqrt((xf * xf).mean(axis=1, keepdims=True) + eps)
    return np.asarray(xf * scale * w.astype(np.float64))


def demand_two_pass(s: Shape, p: Columns) -> Demand:
    """2-byte loads, one step outstanding; the second walk re-reads the row from L2 if all resident rows fit.

    A step of the first walk ends in a reduction: five shuffles, and with several warps a trip through shared memory with two barriers.
    """
    m, n, block, warps = s["M"], s["N"], p["block_n"], p["warps"]
    threads = 32 * warps
    steps = ceil_div(n, block)
    issued = steps * np.maximum(block, threads)
    return Demand(
        blocks=m,
        threads=threads,
        registers=22 + 2 * np.maximum(block // threads, 1),
        smem_per_block=4 * warps,
        dram_bytes=4 * m * n + 2 * n,
        reread_bytes=2 * m * n + 2 * m * n,
        footprint_bytes=2 * n * 2048,
        inflight_per_block=2 * block,
        flops=4 * m * n,
        alu_ops=m * issued * 14 + m * steps * threads * 40,
        lsu_ops=m * (4 * issued / 32 + steps * warps * np.where(warps > 1, 12, 5)),
        leak=1.0,
        chain_ns=900 + steps * np.where(warps > 1, 230, 130),
    )


def demand_one_pass(s: Shape, p: Columns) -> Demand:
    """All loads of ROWS rows at once; then one reduction a row and the store. Lanes past N idle."""
    m, n, block, rows, warps = s["M"], s["N"], constants(s)["BLOCK"], p["rows"], p["warps"]
    threads = 32 * warps
    programs = ceil_div(m, rows)
    held = rows * block // threads
    accesses = programs * warps * np.maximum(held // 8, 1)
    return Demand(
        blocks=programs,
        threads=threads,
        registers=14 + held + held // (2 * rows),
        smem_per_block=4 * warps * rows,
        dram_bytes=4 * m * n + 2 * n,
        reread_bytes=2 * n * programs,
        footprint_bytes=2 * n,
        inflight_per_block=2 * n * np.minimum(rows, m),
        flops=4 * m * n,
        alu_ops=programs * threads * (3 * held + 60),
        lsu_ops=3 * accesses + programs * warps * rows * 12,
        leak=0.35,
        chain_ns=900 + 12 * warps + 60 * rows + 4 * held,
    )


def demand_multi_row(s: Shape, p: Columns) -> Demand:
    """One row after another, STAGES - 1 on their way through cp.async; the weight stays in registers."""
    m, n, block, rows, warps, stages = s["M"], s["N"], constants(s)["BLOCK"], p["rows"], p["warps"], p["stages"]
    threads = 32 * warps
    programs = ceil_div(m, rows)
    held = block // threads
    return Demand(
        blocks=programs,
        threads=threads,
        registers=20 + 2 * held,
        smem_per_block=2 * block * (stages - 1) + 4 * warps,
        dram_bytes=4 * m * n + 2 * n,
        reread_bytes=2 * n * programs,
        footprint_bytes=2 * n,
        inflight_per_block=2 * n * (stages - 1),
        flops=4 * m * n,
        alu_ops=m * threads * (3 * held + 60),
        lsu_ops=(m * 3 + programs) * warps * np.maximum(held // 8, 1) + m * warps * 12,
        leak=0.15,
        chain_ns=1200 + rows * (260 + 12 * warps + 4 * held),
    )


def demand_persistent(s: Shape, p: Columns) -> Demand:
    """As multi_row, for as many rows as a program gets: each wave of programs fills its pipeline, and here there is one.

    Where the rows do not come out even, some programs idle through the last round.
    """
    m, n, block, warps, stages = s["M"], s["N"], constants(s)["BLOCK"], p["warps"], p["stages"]
    threads = 32 * warps
    programs = np.minimum(p["persistent"], ceil_div(m, stages))
    rows = ceil_div(m, programs)
    held = block // threads
    return Demand(
        blocks=programs,
        threads=threads,
        registers=20 + 5 * held // 2 + held * (stages - 2) // 3,
        smem_per_block=2 * block * (stages - 1) + 4 * warps,
        dram_bytes=4 * m * n + 2 * n,
        reread_bytes=2 * n * programs,
        footprint_bytes=2 * n,
        inflight_per_block=2 * n * (stages - 1) * m / (programs * rows),
        flops=4 * m * n,
        alu_ops=m * threads * (3 * held + 60),
        lsu_ops=(m * 3 + programs) * warps * np.maximum(held // 8, 1) + m * warps * 12,
        leak=0.15,
        chain_ns=1200 + rows * (260 + 12 * warps + 4 * held),
    )


TWO_PASS = Variant(
    name="two_pass",
    idea="one program a row, walked twice in short steps",
    points=grid(block_n=(64, 128, 256, 512), warps=(1, 2, 4)),
    start={"block_n": 64, "warps": 4},
    demand=demand_two_pass,
    illegal=(
        Illegal(params={"block_n": 96, "warps": 4}, rule="BLOCK_N must be a power of two"),
        Illegal(params={"block_n": 16, "warps": 1}, rule="BLOCK_N must fill a warp"),
        Illegal(params={"block_n": 4096, "warps": 1}, rule="BLOCK_N exceeds 64 elements a thread"),
    ),
    bugs=(
        Bug(
            name="eps_outside",
            old="tl.rsqrt(total / N + eps)",
            new="tl.rsqrt(total / N) + eps",
            slip="eps is added after rsqrt instead of under the root",
            symptom="rows near zero blow up, a zero row gives NaN",
        ),
        Bug(
            name="padding_is_one",
            old="mask=col < N, other=0.0)",
            new="mask=col < N, other=1.0)",
            slip="columns past N are read as one and enter the sum of squares",
            symptom="rows come out too small when N % BLOCK_N != 0",
        ),
        Bug(
            name="square_in_half",
            old="total += tl.sum(xs * xs, axis=0)",
            new="total += tl.sum((xs.to(tl.float16) * xs.to(tl.float16)).to(tl.float32), axis=0)",
            slip="x is squared in fp16, not in fp32",
            symptom="rows with |x| > 255 overflow to zero output",
        ),
    ),
)

ONE_PASS = Variant(
    name="one_pass",
    idea="whole rows in registers, read once",
    parent="two_pass",
    points=grid(
        lambda p: p["rows"] * 2 <= p["warps"] and (p["rows"] < 4 or p["warps"] > 8),
        rows=(1, 2, 4),
        warps=(2, 4, 8, 16, 32),
    ),
    start={"rows": 1, "warps": 8},
    demand=demand_one_pass,
    illegal=(
        Illegal(params={"rows": 3, "warps": 8}, rule="ROWS must be a power of two"),
        Illegal(params={"rows": 4, "warps": 2}, rule="the tile exceeds 128 elements a thread"),
        Illegal(params={"rows": 1, "warps": 64}, rule="a program has at most 32 warps"),
    ),
    bugs=(
        Bug(
            name="mean_over_block",
            old="keep_dims=True) / N + eps)",
            new="keep_dims=True) / BLOCK + eps)",
            slip="the mean divides by the padded width, not by N",
            symptom="rows come out too large by sqrt(BLOCK / N)",
        ),
        Bug(
            name="sum_not_mean",
            old="keep_dims=True) / N + eps)",
            new="keep_dims=True) + eps)",
            slip="the sum of squares is not divided by N",
            symptom="rows come out too small by sqrt(N)",
        ),
        Bug(
            name="not_widened",
            old="mask=live, other=0.0).to(tl.float32)",
            new="mask=live, other=0.0)",
            slip="x stays fp16: squares and their sum are fp16",
            symptom="rows with |x| > 255 overflow, others lose digits",
        ),
    ),
)

MULTI_ROW = Variant(
    name="multi_row",
    idea="rows pipelined through cp.async, weight kept",
    parent="one_pass",
    points=grid(
        lambda p: (p["stages"] == 2 or p["rows"] == 4) and (p["rows"] < 8 or p["warps"] > 4),
        rows=(2, 4, 8),
        warps=(4, 8, 16),
        stages=(2, 3),
    ),
    start={"rows": 4, "warps": 8, "stages": 2},
    demand=demand_multi_row,
    illegal=(
        Illegal(params={"rows": 4, "warps": 1, "stages": 2}, rule="a row exceeds 64 elements a thread"),
        Illegal(params={"rows": 4, "warps": 8, "stages": 1}, rule="STAGES must be at least 2: one row loads while one is worked on"),
        Illegal(params={"rows": 2, "warps": 8, "stages": 3}, rule="ROWS must be at least STAGES: the pipeline would never fill"),
    ),
    bugs=(
        Bug(
            name="last_row",
            old="tl.minimum(first + ROWS, M)",
            new="tl.minimum(first + ROWS, M - 1)",
            slip="the row loop stops one short of M",
            symptom="the last row is never written",
        ),
        Bug(
            name="rows_overlap",
            old="first = tl.program_id(0) * ROWS",
            new="first = tl.program_id(0) * (ROWS - 1)",
            slip="programs start ROWS - 1 rows apart",
            symptom="the last rows are never written",
        ),
        Bug(
            name="padding_is_one",
            old="mask=col < N, other=0.0)",
            new="mask=col < N, other=1.0)",
            slip="columns past N are read as one and enter the sum of squares",
            symptom="rows come out too small unless N is a power of two",
        ),
    ),
)

PERSISTENT = Variant(
    name="persistent",
    idea="fixed grid loops over rows, pipelined throughout",
    parent="multi_row",
    points=grid(
        lambda p: p["persistent"] * p["warps"] <= 4096 and p["persistent"] * p["stages"] <= 2048,
        persistent=(256, 512, 1024),
        warps=(4, 8),
        stages=(2, 3, 4),
    ),
    start={"persistent": 256, "warps": 8, "stages": 2},
    demand=demand_persistent,
    illegal=(
        Illegal(params={"persistent": 256, "warps": 1, "stages": 2}, rule="a row exceeds 64 elements a thread"),
        Illegal(
            params={"persistent": 256, "warps": 8, "stages": 1}, rule="STAGES must be at least 2: one row loads while one is worked on"
        ),
        Illegal(params={"persistent": 256, "warps": 64, "stages": 2}, rule="a program has at most 32 warps"),
    ),
    bugs=(
        Bug(
            name="last_row",
            old="M, tl.num_programs(0), num_stages",
            new="M - 1, tl.num_programs(0), num_stages",
            slip="the row loop stops one short of M",
            symptom="the last row is never written",
        ),
        Bug(
            name="one_row_each",
            old="M, tl.num_programs(0), num_stages",
            new="tl.num_programs(0), tl.num_programs(0), num_stages",
            slip="the loop ends at the number of programs, not of rows",
            symptom="rows beyond the first of each program are never written",
        ),
        Bug(
            name="padded_pitch",
            old="at = row * pitch + col",
            new="at = row * BLOCK + col",
            slip="rows are stepped by the padded width, not by N",
            symptom="out of bounds unless N is a power of two",
        ),
    ),
)

OP = Op(
    name="triton_rmsnorm",
    impl="triton",
    dtype="fp16",
    axes=AXES,
    summary="y[m, n] = x[m, n] * rsqrt(mean over n of x[m, n]^2 + eps) * w[n]; x, y are row-major fp16 [M, N], w fp16 [N], sums in fp32.",
    shapes=shapes(AXES, (8192, 4096), (4096, 5376), (256, 8192)),
    heldout={"M": 1024, "N": 3584},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=2e-3,
    variants=(TWO_PASS, ONE_PASS, MULTI_ROW, PERSISTENT),
)
