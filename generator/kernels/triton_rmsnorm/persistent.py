"""triton_rmsnorm/persistent: y[m, n] = x[m, n] * rsqrt(mean(x[m, :]^2) + eps) * w[n], fp16 in and out, fp32 sums.

A grid of at most PERSISTENT programs, whatever M, all resident at once: each takes every so-many-th row and keeps
the weight in registers to the end. The loop is software-pipelined as in multi_row: cp.async brings the rows
STAGES - 1 ahead into shared memory while one is reduced; but here the pipeline fills once a program.
Gains over multi_row: no waves of programs that drain and refill, the weight is loaded once a program, and no
multiprocessor is left with one chunk of rows more than another.

Launch: grid = min(PERSISTENT, ceil(M / STAGES)): two to eight programs a multiprocessor, STAGES rows or more each.
Needs:  sm_80 or newer, N <= BLOCK, N % 16 == 0.
"""

import triton
import triton.language as tl

# ---- problem ----------------------------------------------------------------
BLOCK = 4096  # least power of two that holds a row
# ---- tuning parameters ------------------------------------------------------
PERSISTENT = 256  # programs of the grid, at most
WARPS = 8         # warps per program
STAGES = 3        # rows in hand at once: STAGES - 1 on their way, one being worked on
# -----------------------------------------------------------------------------


@triton.jit
def rmsnorm(x, w, y, M, N, eps, BLOCK: tl.constexpr, WARPS: tl.constexpr, STAGES: tl.constexpr):
    tl.static_assert(BLOCK <= 64 * 32 * WARPS, "a row exceeds 64 elements a thread")
    tl.static_assert(STAGES >= 2, "STAGES must be at least 2: one row loads while one is worked on")
    tl.static_assert(WARPS <= 32, "a program has at most 32 warps")
    N = N // 16 * 16  # says that rows are aligned, where no launch is there to see it
    pitch = N.to(tl.int64)
    col = tl.arange(0, BLOCK)
    ws = tl.load(w + col, mask=col < N).to(tl.float32)
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0), num_stages=STAGES):
        at = row * pitch + col
        xs = tl.load(x + at, mask=col < N, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(xs * xs, axis=0) / N + eps)
        tl.store(y + at, (xs * scale * ws).to(tl.float16), mask=col < N)


def launch(x, w, y, eps):
    M, N = x.shape
    programs = min(PERSISTENT, triton.cdiv(M, STAGES))
    rmsnorm[(programs,)](x, w, y, M, N, eps, BLOCK=BLOCK, WARPS=WARPS, STAGES=STAGES, num_warps=WARPS)
