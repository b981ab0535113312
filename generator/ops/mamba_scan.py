"""mamba_scan: the selective scan of Mamba-1, with softplus on the step size, the D skip and the SiLU gate, on fp16 tensors.

One exponential for every state and step against eight bytes for every step of a channel: special functions and DRAM take about the same
time, so the ladder is about feeding the exponentials. The scan is serial in L; parallelism comes from channels, states and, at a price,
from cutting L.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Columns, Demand, Illegal, Op, Shape, Variant, Work, ceil_div, grid, shapes

AXES = ("B", "L", "D", "N")


def work(s: Shape) -> Work:
    """Read u, delta, z and write y (fp16 `[B, L, D]`), read B and C (fp16 `[B, L, N]`), A (fp32 `[D, N]`), skip and bias (fp32 `[D]`).

    Per state and step: scale A by dt, exp, drive (dt * B and times u), decay and add, times C and add: 8 flops.
    """
    b, length, d, n = s["B"], s["L"], s["D"], s["N"]
    return Work(
        bytes=4 * b * length * d * 2 + 2 * b * length * n * 2 + d * n * 4 + 2 * d * 4,
        flops=8 * b * length * d * n,
        math="fp32",
    )


def constants(s: Shape) -> dict[str, int]:
    return {"STATES": s["N"]}


def reference(
    u: npt.NDArray[np.float16],
    delta: npt.NDArray[np.float16],
    a: npt.NDArray[np.float32],
    b: npt.NDArray[np.float16],
    c: npt.NDArray[np.float16],
    z: npt.NDArray[np.float16],
    skip: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32],
) -> npt.NDArray[np.float64]:
    """The scan over axis 1 for u, delta, z `[B, L, D]`, a `[D, N]`, b and c `[B, L, N]`, skip and bias `[D]`; float64 `[B, L, D]`."""
    uf, zf, af, bf, cf = (x.astype(np.float64) for x in (u, z, a, b, c))
    dt = np.logaddexp(0.0, delta.astype(np.float64) + bias.astype(np.float64))
    state = np.zeros((u.shape[0], u.shape[2], a.shape[1]))
    y = np.empty(u.shape)
    for t in range(u.shape[1]):
        drive = dt[:, t] * uf[:, t]
        state = np.exp(dt[:, t, :, None] * af) * state + drive[:, :, None] * bf[:, t, None, :]
        y[:, t] = (state * cf[:, t, None, :]).sum(axis=2)
    return np.asarray((y + skip.astype(np.float64) * uf) * zf / (1.0 + np.exp(-zf)))


def sizes(s: Shape) -> tuple[int, int, int]:
    """Steps of channels `B L D`, states and steps `B L D N`, bytes of B and C."""
    steps = s["B"] * s["L"] * s["D"]
    return steps, steps * s["N"], 4 * s["B"] * s["L"] * s["N"]


def demand_sequential(s: Shape, p: Columns) -> Demand:
    """A warp's load of A touches N lines, one a clock; expf is the full one: reduction, ex2, scaling.

    Only the loads of UNROLL steps overlap.
    """
    n, threads, unroll = s["N"], p["threads"], p["unroll"]
    steps, states, bc = sizes(s)
    per_sequence = ceil_div(s["D"], threads)
    return Demand(
        blocks=s["B"] * per_sequence,
        threads=threads,
        registers=44 + 3 * unroll,
        dram_bytes=8 * steps + bc + 4 * s["D"] * (n + 2),
        reread_bytes=(per_sequence - 1) * bc,
        footprint_bytes=bc,
        inflight_per_block=threads * 6 * unroll,
        flops=8 * states,
        alu_ops=8 * states + (60 + 8 / unroll) * steps,
        sfu_ops=states + 5 * steps,
        lsu_ops=steps / 32 * (n * n + 2 * n + 6),
        leak=0.35,
        chain_ns=900 + s["L"] * (120 + 60 / unroll),
    )


def demand_chunked(s: Shape, p: Columns) -> Demand:
    """Per warp and step: dt, B and C from shared memory (a float4 takes two clocks), one shuffle a halving of the lanes.

    The chain is that of one chunk after another: barriers and conversion, then per LANES steps loads, ex2, decay, sum, shuffles, gate.
    """
    n, threads, items, chunk, stages = s["N"], p["threads"], p["items"], p["chunk"], p["stages"]
    steps, states, bc = sizes(s)
    lanes = n // items
    channels = threads // lanes
    halvings = (lanes >= 2) * 1 + (lanes >= 4) * 1 + (lanes >= 8) * 1
    per_sequence = ceil_div(s["D"], channels)
    padded = per_sequence * channels / s["D"]
    chunks = ceil_div(s["L"], chunk)
    return Demand(
        blocks=s["B"] * per_sequence,
        threads=threads,
        registers=50 + 7 * items // 2 + np.where(lanes > 1, 12, 0),
        smem_per_block=stages * chunk * (6 * channels + 4 * n) + chunk * (8 * channels + 8 * n),
        dram_bytes=8 * steps + bc + 4 * s["D"] * (n + 2),
        reread_bytes=(per_sequence - 1) * bc,
        footprint_bytes=bc,
        inflight_per_block=(stages - 1) * chunk * (6 * channels + 4 * n),
        flops=8 * states * padded,
        alu_ops=padded * steps * (24 + lanes * (2 * halvings + 1)) + 1.5 * per_sequence * bc,
        sfu_ops=padded * (states + 4 * steps),
        lsu_ops=padded * steps / 32 * (lanes * (1 + items + halvings) + 12) + per_sequence * bc / 16,
        leak=np.where(stages > 2, 0.12, 0.2),
        chain_ns=900 + chunks * 250 + s["L"] / lanes * (100 + 2.5 * (lanes + items) + 14 * halvings),
    )


def demand_split_l(s: Shape, p: Columns) -> Demand:
    """Two walks, the first without z, C and y and without the last run; states of the runs pass through DRAM or L2 three times."""
    n, threads, splits, unroll = s["N"], p["threads"], p["splits"], p["unroll"]
    steps, states, bc = sizes(s)
    walks = 1.0 + ((splits - 1) / splits).astype(np.float64)
    per_sequence = ceil_div(s["D"], threads)
    carried = 4 * s["B"] * s["D"] * splits * (n + 1)
    return Demand(
        blocks=s["B"] * per_sequence * splits,
        threads=threads,
        registers=62 + 3 * unroll,
        dram_bytes=(4 * walks + 4) * steps + bc + 4 * s["D"] * (n + 2),
        reread_bytes=(per_sequence * (1 + walks) / 2 - 1) * bc + 4 * carried,
        footprint_bytes=np.maximum(carried, bc),
        inflight_per_block=threads * (4 + 2 / walks) * unroll,
        flops=(6 * walks + 2) * states,
        alu_ops=walks * states + (14 * walks + 16) * steps,
        sfu_ops=walks * states + (2 * walks + 2) * steps,
        lsu_ops=steps / 32 * ((2 + n / 8) * walks + 2 + n / 8) + 4 * carried / 128,
        leak=0.35,
        launches=3,
        chain_ns=1800 + walks * ceil_div(s["L"], splits) * (110 + 60 / unroll),
        tail_ns=900 + splits * 450,
    )


SEQUENTIAL = Variant(
    name="sequential",
    idea="one thread per channel walks all of L",
    points=grid(threads=(32, 64, 128, 256), unroll=(1, 2, 4)),
    start={"threads": 128, "unroll": 1},
    demand=demand_sequential,
    illegal=(
        Illegal(params={"threads": 48, "unroll": 1}, rule="THREADS must be whole warps"),
        Illegal(params={"threads": 2048, "unroll": 1}, rule="a block has at most 1024 threads"),
        Illegal(params={"threads": 128, "unroll": 3}, rule="UNROLL must be 1, 2, 4 or 8"),
    ),
    bugs=(
        Bug(
            name="no_softplus_limit",
            old="x > 20.0f ? x : log1pf(expf(x))",
            new="log1pf(expf(x))",
            slip="softplus has no linear branch: expf overflows for large delta",
            symptom="channels with large delta give inf or NaN",
        ),
        Bug(
            name="skip_uses_dt",
            old="sum + skip[d] * us[i]",
            new="sum + skip[d] * dt * us[i]",
            slip="the skip takes dt * u instead of u",
            symptom="error proportional to skip * u in every step",
        ),
        Bug(
            name="c_of_first_step",
            old="sum += __half2float(Cm[bc]) * h[n];",
            new="sum += __half2float(Cm[first * STATES + n]) * h[n];",
            slip="C is read at step 0 of the sequence, not at t",
            symptom="only the first step of each sequence agrees",
        ),
    ),
)

CHUNKED = Variant(
    name="chunked",
    idea="chunks staged by cp.async, states across lanes",
    parent="sequential",
    points=grid(
        lambda p: (
            p["stages"] * p["chunk"] * (6 * p["threads"] * p["items"] // 16 + 64) + p["chunk"] * (p["threads"] * p["items"] // 2 + 128)
            <= 49152
            and (p["threads"] != 256 or (p["items"] == 4 and p["chunk"] * p["stages"] != 32))
            and (p["threads"] * p["items"] != 256 or p["stages"] == 3)
            and (p["chunk"] == 16 or p["stages"] == 2)
        ),
        threads=(64, 128, 256),
        items=(4, 8, 16),
        chunk=(16, 32),
        stages=(2, 3),
    ),
    start={"threads": 128, "items": 4, "chunk": 32, "stages": 2},
    demand=demand_chunked,
    illegal=(
        Illegal(params={"threads": 128, "items": 2, "chunk": 32, "stages": 2}, rule="ITEMS must be 4, 8 or 16: float4 loads of B and C"),
        Illegal(params={"threads": 128, "items": 4, "chunk": 18, "stages": 2}, rule="CHUNK must be a multiple of STATES / ITEMS"),
        Illegal(
            params={"threads": 128, "items": 4, "chunk": 32, "stages": 1},
            rule="STAGES must be at least 2: one chunk loads while one is scanned",
        ),
        Illegal(params={"threads": 256, "items": 8, "chunk": 64, "stages": 2}, rule="tiles exceed 48 KB of static shared memory"),
    ),
    bugs=(
        Bug(
            name="no_ready_barrier",
            old="    __syncthreads(); // chunk ready\n",
            new="",
            slip="no barrier between preparing a chunk and scanning it",
            symptom="race: lanes read dt, B and C before they are written",
        ),
        Bug(
            name="wait_one_short",
            old="cp_async_wait<STAGES - 2>();",
            new="cp_async_wait<STAGES - 1>();",
            slip="wait_group leaves the chunk about to be scanned in flight",
            symptom="garbage or NaN from the first chunk on",
        ),
        Bug(
            name="c_lane_offset",
            old="&ready.c[t + j][lane * ITEMS + i]",
            new="&ready.c[t + j][i]",
            slip="every lane takes the C of the first states",
            symptom="all outputs wrong, wrong weights on the states",
        ),
        Bug(
            name="half_reduction",
            old="int offset = LANES / 2; offset > 0",
            new="int offset = LANES / 2; offset > 1",
            slip="the last shuffle of the lane sum is missing",
            symptom="half of the states are absent from y",
        ),
        Bug(
            name="no_tail_mask",
            old="if (t < L && col < D)",
            new="if (col < D)",
            slip="the last chunk is stored unmasked when L % CHUNK != 0",
            symptom="the next sequence's first steps are overwritten; out of bounds at the end",
        ),
    ),
)

SPLIT_L = Variant(
    name="split_l",
    idea="L cut into runs, three passes",
    parent="sequential",
    points=grid(
        lambda p: p["unroll"] == 4 or p["splits"] in (2, 4),
        threads=(64, 128),
        splits=(2, 4, 8, 16),
        unroll=(2, 4),
    ),
    start={"threads": 128, "splits": 4, "unroll": 4},
    demand=demand_split_l,
    illegal=(
        Illegal(params={"threads": 100, "splits": 4, "unroll": 4}, rule="THREADS must be whole warps, at most 1024"),
        Illegal(params={"threads": 128, "splits": 1, "unroll": 4}, rule="SPLITS must be at least 2"),
        Illegal(params={"threads": 128, "splits": 4, "unroll": 6}, rule="UNROLL must be 1, 2, 4 or 8"),
    ),
    bugs=(
        Bug(
            name="carry_not_decayed",
            old="carry = ex2(rate * total[slot * D + d]) * carry + ended;",
            new="carry = ex2(rate) * carry + ended;",
            slip="the carried state decays by exp(A), not by exp(A * sum of dt) of the run",
            symptom="runs from the third on start from a wrong state",
        ),
        Bug(
            name="carry_inclusive",
            old="    state[at] = carry;",
            new="    state[at] = carry + ended;",
            slip="a run's own end state is added to the carry it begins from",
            symptom="every run but the last starts wrong, the first included",
        ),
        Bug(
            name="total_of_drive",
            old="total += dt;",
            new="total += drive;",
            slip="the run's decay sums dt * u instead of dt",
            symptom="carried states are scaled at random, some blow up",
        ),
    ),
)

OP = Op(
    name="mamba_scan",
    impl="cuda",
    dtype="fp16",
    axes=AXES,
    summary=(
        "Mamba-1 selective scan: dt = softplus(delta + bias), h[n] = exp(dt * A[n]) * h[n] + dt * u * B[n] along L, "
        "y = (sum over n of C[n] * h[n] + skip * u) * silu(z). u, delta, z and y are fp16 [B, L, D], A fp32 [D, N], B and C fp16 "
        "[B, L, N], skip and bias fp32 [D]; the state is fp32 and starts at zero."
    ),
    shapes=shapes(AXES, (8, 2048, 5120, 16), (4, 4096, 4096, 16), (32, 1024, 3072, 16)),
    heldout={"B": 2, "L": 8192, "D": 8192, "N": 16},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=5e-3,
    variants=(SEQUENTIAL, CHUNKED, SPLIT_L),
)
