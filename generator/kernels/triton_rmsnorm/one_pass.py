"""triton_rmsnorm/one_pass: y[m, n] = x[m, n] * rsqrt(mean(x[m, :]^2) + eps) * w[n], fp16 in and out, fp32 sums.

One program holds ROWS whole rows as one tile, BLOCK columns wide, masked past N: x is read once, in 16-byte
accesses that are all in flight together, and stays in registers between the sum and the store.
Gains over two_pass: half the reads, the whole row in flight, one reduction a row.

Launch: grid = ceil(M / ROWS).
Needs:  any arch, N <= BLOCK, N % 16 == 0.
"""

import triton
import triton.language as tl

# ---- problem ----------------------------------------------------------------
BLOCK = 4096  # least power of two that holds a row
# ---- tuning parameters ------------------------------------------------------
ROWS = 1   # rows per program
WARPS = 8  # warps per program
# -----------------------------------------------------------------------------


@triton.jit
def rmsnorm(x, w, y, M, N, eps, BLOCK: tl.constexpr, ROWS: tl.constexpr, WARPS: tl.constexpr):
    tl.static_assert(ROWS & (ROWS - 1) == 0, "ROWS must be a power of two")
    tl.static_assert(ROWS * BLOCK <= 128 * 32 * WARPS, "the tile exceeds 128 elements a thread")
    tl.static_assert(WARPS <= 32, "a program has at most 32 warps")
    N = N // 16 * 16  # says that rows are aligned, where no launch is there to see it
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    live = (row < M) & (col < N)
    at = row.to(tl.int64) * N + col
    xs = tl.load(x + at, mask=live, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(xs * xs, axis=1, keep_dims=True) / N + eps)
    ws = tl.load(w + col, mask=col < N).to(tl.float32)
    tl.store(y + at, (xs * scale * ws).to(tl.float16), mask=live)


def launch(x, w, y, eps):
    M, N = x.shape
    rmsnorm[(triton.cdiv(M, ROWS),)](x, w, y, M, N, eps, BLOCK=BLOCK, ROWS=ROWS, WARPS=WARPS, num_warps=WARPS)
