"""swiglu_act/row_blocks: y[m, n] = silu(x[m, n]) * x[m, N + n], fp16 in and out.

One program takes the same stretch of ROWS rows, one after another. The loop is software-pipelined: cp.async brings
the rows STAGES - 1 ahead into shared memory while one is worked on.
Gains over fused: loads of the next rows in flight during exp and store, and ROWS times fewer programs to start.

Launch: grid = (ceil(N / BLOCK_N), ceil(M / ROWS)).
Needs:  sm_80 or newer, N % 16 == 0.
"""

import triton
import triton.language as tl

# ---- tuning parameters ------------------------------------------------------
ROWS = 4        # rows per program
BLOCK_N = 1024  # columns per program
WARPS = 4       # warps per program
STAGES = 3      # rows in hand at once: STAGES - 1 on their way, one being worked on
# -----------------------------------------------------------------------------


@triton.jit
def swiglu(x, y, M, N, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, WARPS: tl.constexpr, STAGES: tl.constexpr):
    tl.static_assert(BLOCK_N & (BLOCK_N - 1) == 0, "BLOCK_N must be a power of two")
    tl.static_assert(BLOCK_N >= 64 * WARPS, "BLOCK_N must give every thread a 4-byte cp.async")
    tl.static_assert(STAGES >= 2, "STAGES must be at least 2: one row loads while one is worked on")
    tl.static_assert(ROWS >= STAGES, "ROWS must be at least STAGES: the pipeline would never fill")
    N = N // 16 * 16  # says that rows are aligned, where no launch is there to see it
    pitch = N.to(tl.int64)
    first = tl.program_id(1) * ROWS
    col = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    for row in tl.range(first, tl.minimum(first + ROWS, M), num_stages=STAGES):
        at = row * pitch * 2 + col
        gate = tl.load(x + at, mask=col < N).to(tl.float32)
        up = tl.load(x + at + N, mask=col < N).to(tl.float32)
        tl.store(y + row * pitch + col, (gate / (1.0 + tl.exp(-gate)) * up).to(tl.float16), mask=col < N)


def launch(x, y):
    M, N = y.shape
    grid = (triton.cdiv(N, BLOCK_N), triton.cdiv(M, ROWS))
    swiglu[grid](x, y, M, N, ROWS=ROWS, BLOCK_N=BLOCK_N, WARPS=WARPS, STAGES=STAGES, num_warps=WARPS)
