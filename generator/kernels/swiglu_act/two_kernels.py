"""swiglu_act/two_kernels: y[m, n] = silu(x[m, n]) * x[m, N + n], fp16 in and out.

One kernel writes silu(gate) to an fp32 matrix, the next multiplies it by up. Elements are numbered over the whole
matrix, so row and column come from a division, which hides from the compiler that neighbours are adjacent in x.
Simple and correct; the scratch matrix costs eight bytes an element on top of the six that x and y take.

Launch: silu, then multiply; grid = ceil(M * N / BLOCK_N).
Needs:  any arch.
"""

import torch
import triton
import triton.language as tl

# ---- tuning parameters ------------------------------------------------------
BLOCK_N = 128  # elements per program
WARPS = 1      # warps per program
# -----------------------------------------------------------------------------


@triton.jit
def silu(x, scratch, total, N, BLOCK_N: tl.constexpr, WARPS: tl.constexpr):
    tl.static_assert(BLOCK_N & (BLOCK_N - 1) == 0, "BLOCK_N must be a power of two")
    tl.static_assert(BLOCK_N >= 32, "BLOCK_N must fill a warp")
    tl.static_assert(BLOCK_N <= 64 * 32 * WARPS, "BLOCK_N exceeds 64 elements a thread")
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    live = at < total
    gate = tl.load(x + at // N * 2 * N + at % N, mask=live).to(tl.float32)
    tl.store(scratch + at, gate / (1.0 + tl.exp(-gate)), mask=live)


@triton.jit
def multiply(x, scratch, y, total, N, BLOCK_N: tl.constexpr):
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    live = at < total
    up = tl.load(x + at // N * 2 * N + N + at % N, mask=live).to(tl.float32)
    tl.store(y + at, (tl.load(scratch + at, mask=live) * up).to(tl.float16), mask=live)


def launch(x, y):
    M, N = y.shape
    scratch = torch.empty((M, N), dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(M * N, BLOCK_N),)
    silu[grid](x, scratch, M * N, N, BLOCK_N=BLOCK_N, WARPS=WARPS, num_warps=WARPS)
    multiply[grid](x, scratch, y, M * N, N, BLOCK_N=BLOCK_N, num_warps=WARPS)
