"""triton_rmsnorm/multi_row: y[m, n] = x[m, n] * rsqrt(mean(x[m, :]^2) + eps) * w[n], fp16 in and out, fp32 sums.

One program owns ROWS rows and takes them one after another, the weight kept in registers. The loop is
software-pipelined: cp.async brings the rows STAGES - 1 ahead into shared memory during the reduction.
Gains over one_pass: the weight is loaded once for ROWS rows, and DRAM stays busy while a row is reduced.

Launch: grid = ceil(M / ROWS).
Needs:  sm_80 or newer, N <= BLOCK, N % 16 == 0.
"""

import triton
import triton.language as tl

# ---- problem ----------------------------------------------------------------
BLOCK = 4096  # least power of two that holds a row
# ---- tuning parameters ------------------------------------------------------
ROWS = 4    # rows per program
WARPS = 8   # warps per program
STAGES = 2  # rows in hand at once: STAGES - 1 on their way, one being worked on
# -----------------------------------------------------------------------------


@triton.jit
def rmsnorm(x, w, y, M, N, eps, BLOCK: tl.constexpr, ROWS: tl.constexpr, WARPS: tl.constexpr, STAGES: tl.constexpr):
    tl.static_assert(BLOCK <= 64 * 32 * WARPS, "a row exceeds 64 elements a thread")
    tl.static_assert(STAGES >= 2, "STAGES must be at least 2: one row loads while one is worked on")
    tl.static_assert(ROWS >= STAGES, "ROWS must be at least STAGES: the pipeline would never fill")
    N = N // 16 * 16  # says that rows are aligned, where no launch is there to see it
    pitch = N.to(tl.int64)
    col = tl.arange(0, BLOCK)
    ws = tl.load(w + col, mask=col < N).to(tl.float32)
    first = tl.program_id(0) * ROWS
    for row in tl.range(first, tl.minimum(first + ROWS, M), num_stages=STAGES):
        at = row * pitch + col
        xs = tl.load(x + at, mask=col < N, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(xs * xs, axis=0) / N + eps)
        tl.store(y + at, (xs * scale * ws).to(tl.float16), mask=col < N)


def launch(x, w, y, eps):
    M, N = x.shape
    rmsnorm[(triton.cdiv(M, ROWS),)](
        x, w, y, M, N, eps, BLOCK=BLOCK, ROWS=ROWS, WARPS=WARPS, STAGES=STAGES, num_warps=WARPS
    )
