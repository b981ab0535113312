"""triton_flash_decode/per_head: out[b, h] = softmax(q[b, h] . K[b, :, g] / sqrt(D)) @ V[b, :, g], g = h * KV / H, paged fp16.

One program per query head walks the whole sequence, BLOCK_N tokens a step, with a running softmax; products are
summed on CUDA cores. Simple and correct; but the H / KV heads that share a KV head each read it for themselves,
a step's V is asked for only when its K has been used, and there are no more programs than heads.

Layouts: q, out [batch, heads, HEAD_DIM]; k, v [pages, page, kv_heads, HEAD_DIM]; table [batch, max_pages]; lengths [batch].
Launch: grid = (batch, heads).
Needs:  any arch.
"""

import triton
import triton.language as tl

# ---- problem ----------------------------------------------------------------
HEAD_DIM = 128  # D
# ---- tuning parameters ------------------------------------------------------
BLOCK_N = 16  # tokens per step
WARPS = 4     # warps per program
# -----------------------------------------------------------------------------


@triton.jit
def flash_decode(
    q, k, v, table, lengths, out, heads, kv_heads, page, max_pages, scale,
    HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, WARPS: tl.constexpr
):
    tl.static_assert(BLOCK_N & (BLOCK_N - 1) == 0, "BLOCK_N must be a power of two")
    tl.static_assert(BLOCK_N >= 4 * WARPS, "BLOCK_N must be at least 4 * WARPS: every warp gets tokens of its own")
    tl.static_assert(BLOCK_N * HEAD_DIM <= 128 * 32 * WARPS, "a step exceeds 128 elements a thread")
    b, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // (heads // kv_heads)
    length = tl.load(lengths + b)
    d = tl.arange(0, HEAD_DIM)
    query = tl.load(q + (b * heads + head) * HEAD_DIM + d).to(tl.float32) * scale
    best, total, acc = -1e30, 0.0, tl.zeros((HEAD_DIM,), dtype=tl.float32)
    for start in range(0, length, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        live = token < length
        number = tl.load(table + b * max_pages + token // page, mask=live, other=0).to(tl.int64)
        at = ((number * page + token % page) * kv_heads + kv_head)[:, None] * HEAD_DIM + d[None, :]
        keys = tl.load(k + at, mask=live[:, None], other=0.0).to(tl.float32)
        score = tl.where(live, tl.sum(query[None, :] * keys, axis=1), -1e30)
        top = tl.maximum(best, tl.max(score, axis=0))
        weight = tl.exp(score - top)
        fix = tl.exp(best - top)
        values = tl.load(v + at, mask=live[:, None], other=0.0).to(tl.float32)
        acc = acc * fix + tl.sum(weight[:, None] * values, axis=0)
        total = total * fix + tl.sum(weight, axis=0)
        best = top
    tl.store(out + (b * heads + head) * HEAD_DIM + d, (acc / total).to(tl.float16))


def launch(q, k, v, table, lengths, out, scale):
    batch, heads, _ = q.shape
    _, page, kv_heads, _ = k.shape
    flash_decode[(batch, heads)](
        q, k, v, table, lengths, out, heads, kv_heads, page, table.shape[1], scale,
        HEAD_DIM=HEAD_DIM, BLOCK_N=BLOCK_N, WARPS=WARPS, num_warps=WARPS,
    )
