"""triton_flash_decode/grouped: out[b, h] = softmax(q[b, h] . K[b, :, g] / sqrt(D)) @ V[b, :, g], g = h * KV / H, paged fp16 cache.

One program per KV head serves all query heads of its group as the rows of one tile, BLOCK_H of them, so tl.dot
does both products on tensor cores and K and V are read once. The loop over BLOCK_N tokens a step is
software-pipelined, STAGES deep: page numbers and tiles of later steps arrive while one is used.
Gains over per_head: K and V once a group instead of once a head, tensor cores, loads in flight across steps.

Layouts: q, out [batch, heads, HEAD_DIM]; k, v [pages, page, kv_heads, HEAD_DIM]; table [batch, max_pages]; lengths [batch].
Launch: grid = (kv_heads, batch).
Needs:  sm_80 or later, heads <= BLOCK_H * kv_heads.
"""

import triton
import triton.language as tl

# ---- problem ----------------------------------------------------------------
HEAD_DIM = 128  # D
# ---- tuning parameters ------------------------------------------------------
BLOCK_H = 16  # rows of the query tile, those beyond the group are padding
BLOCK_N = 32  # tokens per step
WARPS = 4     # warps per program
STAGES = 2    # depth of the loop's pipeline
# -----------------------------------------------------------------------------


@triton.jit
def flash_decode(
    q, k, v, table, lengths, out, heads, kv_heads, page, max_pages, scale,
    HEAD_DIM: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, WARPS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tl.static_assert(BLOCK_H >= 16 and BLOCK_H & (BLOCK_H - 1) == 0, "BLOCK_H must be a power of two, at least 16: tl.dot tiles")
    tl.static_assert(BLOCK_N >= 16 and BLOCK_N & (BLOCK_N - 1) == 0, "BLOCK_N must be a power of two, at least 16: tl.dot tiles")
    tl.static_assert(BLOCK_N * HEAD_DIM <= 128 * 32 * WARPS, "a tile of K exceeds 128 elements a thread")
    kv_head, b = tl.program_id(0), tl.program_id(1)
    group = heads // kv_heads
    length = tl.load(lengths + b)
    row, d = tl.arange(0, BLOCK_H), tl.arange(0, HEAD_DIM)
    mine = (b * heads + kv_head * group + row)[:, None] * HEAD_DIM + d[None, :]
    query = tl.load(q + mine, mask=(row < group)[:, None], other=0.0)
    best = tl.full((BLOCK_H,), -1e30, dtype=tl.float32)
    total = tl.zeros((BLOCK_H,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_H, HEAD_DIM), dtype=tl.float32)
    for start in tl.range(0, length, BLOCK_N, num_stages=STAGES):
        token = start + tl.arange(0, BLOCK_N)
        live = token < length
        number = tl.load(table + b * max_pages + token // page, mask=live, other=0).to(tl.int64)
        at = ((number * page + token % page) * kv_heads + kv_head) * HEAD_DIM
        keys = tl.load(k + at[None, :] + d[:, None], mask=live[None, :], other=0.0)
        score = tl.where(live[None, :], tl.dot(query, keys) * scale, -1e30)
        top = tl.maximum(best, tl.max(score, axis=1))
        weight = tl.exp(score - top[:, None])
        fix = tl.exp(best - top)
        values = tl.load(v + at[:, None] + d[None, :], mask=live[:, None], other=0.0)
        acc = tl.dot(weight.to(tl.float16), values, acc * fix[:, None])
        total = total * fix + tl.sum(weight, axis=1)
        best = top
    tl.store(out + mine, (acc / total[:, None]).to(tl.float16), mask=(row < group)[:, None])


def launch(q, k, v, table, lengths, out, scale):
    batch, heads, _ = q.shape
    _, page, kv_heads, _ = k.shape
    flash_decode[(kv_heads, batch)](
        q, k, v, table, lengths, out, heads, kv_heads, page, table.shape[1], scale,
        HEAD_DIM=HEAD_DIM, BLOCK_H=BLOCK_H, BLOCK_N=BLOCK_N, WARPS=WARPS, STAGES=STAGES, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
