"""swiglu_act: the gated activation of Llama's feed-forward block, on the fp16 output of one gate-and-up projection.

Pure bandwidth, two reads and one write an element. The ladder is about passes over memory, bytes in flight and the cost of starting
programs.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Columns, Demand, Illegal, Op, Shape, Variant, Work, ceil_div, grid, shapes

AXES = ("M", "N")


def work(s: Shape) -> Work:
    """Read gate and up, write y (fp16); negate, exp, add, divide, multiply: 5 flops an element of y."""
    m, n = s["M"], s["N"]
    return Work(bytes=3 * m * n * 2, flops=5 * m * n, math="fp32")


def constants(_: Shape) -> dict[str, int]:
    return {}


def reference(x: npt.NDArray[np.float16]) -> npt.NDArray[np.float64]:
    """`silu(x[:, :N]) * x[:, N:]` for x `[M, 2 N]`; float64 `[M, N]`."""
    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    return np.asarray(gate / (1.0 + np.exp(np.minimum(-gate, 700.0))) * up)


def demand_two_kernels(s: Shape, p: Columns) -> Demand:
    """Both grids together: 6 bytes an element in silu, 8 in multiply, 2-byte loads, a division by N and its remainder in each.

    A program has 2 bytes an element in flight in silu and 6 in multiply: 3.2 on average over the time they take.
    """
    total, block, threads = s["M"] * s["N"], p["block_n"], 32 * p["warps"]
    programs = ceil_div(total, block)
    each = np.maximum(block / threads, 1)
    issued = np.maximum(threads / block, 1)
    return Demand(
        blocks=2 * programs,
        threads=threads,
        registers=10 + 3 * each,
        dram_bytes=14 * total,
        inflight_per_block=16 * block / 5,
        flops=5 * total,
        alu_ops=60 * total * issued,
        sfu_ops=2 * total * issued,
        lsu_ops=5 * total / 32 * issued,
        leak=1.0,
        launches=2,
        chain_ns=900,
    )


def tile(s: Shape, p: Columns) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Programs along a row, elements issued over useful ones, halves per access."""
    across = ceil_div(s["N"], p["block_n"])
    return across, across * p["block_n"] / s["N"], np.minimum(p["block_n"] // (32 * p["warps"]), 8)


def demand_fused(s: Shape, p: Columns) -> Demand:
    """A short program: all its loads go out at once, then it waits for them, computes, stores and makes room for the next."""
    total, block, threads = s["M"] * s["N"], p["block_n"], 32 * p["warps"]
    across, waste, vec = tile(s, p)
    return Demand(
        blocks=s["M"] * across,
        threads=threads,
        registers=16 + 2 * block // threads,
        dram_bytes=6 * total,
        inflight_per_block=4 * s["N"] / across,
        flops=5 * total * waste,
        alu_ops=8 * total * waste + s["M"] * across * threads * 20,
        sfu_ops=2 * total * waste,
        lsu_ops=3 * total * waste / (32 * vec),
        leak=0.35,
        chain_ns=900 + 3 * block // threads,
    )


def demand_row_blocks(s: Shape, p: Columns) -> Demand:
    """A program of ROWS steps: STAGES - 1 rows in flight while it lasts, each step a wait, a barrier, exp and store."""
    total, rows, block, stages, threads = s["M"] * s["N"], p["rows"], p["block_n"], p["stages"], 32 * p["warps"]
    across, waste, vec = tile(s, p)
    programs = ceil_div(s["M"], rows) * across
    return Demand(
        blocks=programs,
        threads=threads,
        registers=24 + 2 * block // threads,
        smem_per_block=(stages - 1) * 4 * block,
        dram_bytes=6 * total,
        inflight_per_block=(stages - 1) * 4 * s["N"] / across,
        flops=5 * total * waste,
        alu_ops=8 * total * waste + (s["M"] * 30 + programs / across * 60) * across * threads,
        sfu_ops=2 * total * waste,
        lsu_ops=5 * total * waste / (32 * vec),
        leak=0.15,
        chain_ns=900 + rows * (120 + 3 * block // threads),
    )


TWO_KERNELS = Variant(
    name="two_kernels",
    idea="silu to an fp32 scratch, then multiply",
    points=grid(block_n=(64, 128, 256, 512), warps=(1, 2, 4)),
    start={"block_n": 128, "warps": 4},
    demand=demand_two_kernels,
    illegal=(
        Illegal(params={"block_n": 192, "warps": 4}, rule="BLOCK_N must be a power of two"),
        Illegal(params={"block_n": 16, "warps": 1}, rule="BLOCK_N must fill a warp"),
        Illegal(params={"block_n": 4096, "warps": 1}, rule="BLOCK_N exceeds 64 elements a thread"),
    ),
    bugs=(
        Bug(
            name="gate_for_up",
            old="at // N * 2 * N + N + at % N",
            new="at // N * 2 * N + at % N",
            slip="up is loaded from the gate half: + N is missing",
            symptom="y is silu(gate) * gate everywhere",
        ),
        Bug(
            name="row_stride",
            old="gate = tl.load(x + at // N * 2 * N + at % N, mask=live)",
            new="gate = tl.load(x + at // N * N + at % N, mask=live)",
            slip="rows of x are 2 * N apart, not N",
            symptom="row 0 agrees, all others differ",
        ),
    ),
)

FUSED = Variant(
    name="fused",
    idea="one kernel, 16-byte accesses, one stretch a program",
    parent="two_kernels",
    points=grid(
        lambda p: 2 <= p["block_n"] // (32 * p["warps"]) <= 32 and p["block_n"] // p["warps"] != 128,
        block_n=(256, 512, 1024, 2048, 4096),
        warps=(1, 2, 4, 8),
    ),
    start={"block_n": 1024, "warps": 4},
    demand=demand_fused,
    illegal=(
        Illegal(params={"block_n": 1536, "warps": 4}, rule="BLOCK_N must be a power of two"),
        Illegal(params={"block_n": 256, "warps": 8}, rule="BLOCK_N must give every thread at least two elements"),
        Illegal(params={"block_n": 8192, "warps": 2}, rule="BLOCK_N exceeds 64 elements a thread"),
    ),
    bugs=(
        Bug(
            name="halves_swapped",
            old="(gate / (1.0 + tl.exp(-gate)) * up)",
            new="(up / (1.0 + tl.exp(-up)) * gate)",
            slip="silu is taken of up; the gate is the first half",
            symptom="every element differs unless gate equals up",
        ),
        Bug(
            name="mask_one_short",
            old="live = col < N\n",
            new="live = col < N - 1\n",
            slip="the mask leaves out the last column of every row",
            symptom="column N - 1 is never written",
        ),
        Bug(
            name="exp_sign",
            old="tl.exp(-gate)",
            new="tl.exp(gate)",
            slip="the sigmoid has the wrong sign",
            symptom="positive gates give almost nothing",
        ),
    ),
)

ROW_BLOCKS = Variant(
    name="row_blocks",
    idea="several rows a program, software-pipelined",
    parent="fused",
    points=grid(
        lambda p: p["block_n"] == 256 * p["warps"] and (p["rows"], p["stages"]) in ((4, 2), (4, 3), (8, 3), (8, 4), (32, 4)),
        rows=(4, 8, 32),
        block_n=(512, 1024, 2048),
        warps=(2, 4, 8),
        stages=(2, 3, 4),
    ),
    start={"rows": 4, "block_n": 1024, "warps": 4, "stages": 3},
    demand=demand_row_blocks,
    illegal=(
        Illegal(params={"rows": 4, "block_n": 768, "warps": 4, "stages": 3}, rule="BLOCK_N must be a power of two"),
        Illegal(params={"rows": 4, "block_n": 256, "warps": 8, "stages": 3}, rule="BLOCK_N must give every thread a 4-byte cp.async"),
        Illegal(
            params={"rows": 4, "block_n": 1024, "warps": 4, "stages": 1},
            rule="STAGES must be at least 2: one row loads while one is worked on",
        ),
        Illegal(
            params={"rows": 2, "block_n": 1024, "warps": 4, "stages": 3}, rule="ROWS must be at least STAGES: the pipeline would never fill"
        ),
    ),
    bugs=(
        Bug(
            name="last_row_of_block",
            old="tl.minimum(first + ROWS, M)",
            new="tl.minimum(first + ROWS - 1, M)",
            slip="the row loop ends one row early",
            symptom="the last row of every full block is never written",
        ),
        Bug(
            name="narrow_sigmoid",
            old="(gate / (1.0 + tl.exp(-gate)) * up).to(tl.float16)",
            new="gate / (1.0 + tl.exp(-gate)).to(tl.float16) * up",
            slip="1 + exp(-gate) is narrowed to fp16 and overflows for gates under -11",
            symptom="very negative gates give zero where y is not; others lose digits",
        ),
        Bug(
            name="first_not_scaled",
            old="first = tl.program_id(1) * ROWS",
            new="first = tl.program_id(1)",
            slip="programs start one row apart instead of ROWS",
            symptom="the lower rows are never written",
        ),
    ),
)

OP = Op(
    name="swiglu_act",
    impl="triton",
    dtype="fp16",
    axes=AXES,
    summary="y[m, n] = silu(x[m, n]) * x[m, N + n], silu(g) = g / (1 + exp(-g)), in fp32; x is row-major fp16 [M, 2 N], y fp16 [M, N].",
    shapes=shapes(AXES, (4096, 14336), (2048, 28672), (16384, 11008)),
    heldout={"M": 1024, "N": 18944},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=2e-3,
    variants=(TWO_KERNELS, FUSED, ROW_BLOCKS),
)
