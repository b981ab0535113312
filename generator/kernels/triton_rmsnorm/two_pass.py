"""triton_rmsnorm/two_pass: y[m, n] = x[m, n] * rsqrt(mean(x[m, :]^2) + eps) * w[n], fp16 in and out, fp32 sums.

One program owns one row and walks it twice in steps of BLOCK_N: first for the sum of squares, reduced over the
program in every step, then to scale and store. Simple and correct; the second walk reads x again, and a program
keeps one short load in flight.

Launch: grid = M.
Needs:  any arch.
"""

import triton
import triton.language as tl

# ---- tuning parameters ------------------------------------------------------
BLOCK_N = 64  # columns per step
WARPS = 4     # warps per program
# -----------------------------------------------------------------------------


@triton.jit
def rmsnorm(x, w, y, N, eps, BLOCK_N: tl.constexpr, WARPS: tl.constexpr):
    tl.static_assert(BLOCK_N & (BLOCK_N - 1) == 0, "BLOCK_N must be a power of two")
    tl.static_assert(BLOCK_N >= 32, "BLOCK_N must fill a warp")
    tl.static_assert(BLOCK_N <= 64 * 32 * WARPS, "BLOCK_N exceeds 64 elements a thread")
    row = tl.program_id(0).to(tl.int64) * N
    total = 0.0
    for start in range(0, N, BLOCK_N):
        col = start + tl.arange(0, BLOCK_N)
        xs = tl.load(x + row + col, mask=col < N, other=0.0).to(tl.float32)
        total += tl.sum(xs * xs, axis=0)
    scale = tl.rsqrt(total / N + eps)
    for start in range(0, N, BLOCK_N):
        col = start + tl.arange(0, BLOCK_N)
        xs = tl.load(x + row + col, mask=col < N).to(tl.float32)
        ws = tl.load(w + col, mask=col < N).to(tl.float32)
        tl.store(y + row + col, (xs * scale * ws).to(tl.float16), mask=col < N)


def launch(x, w, y, eps):
    M, N = x.shape
    rmsnorm[(M,)](x, w, y, N, eps, BLOCK_N=BLOCK_N, WARPS=WARPS, num_warps=WARPS)
