"""triton_flash_decode/split: out[b, h] = softmax(q[b, h] . K[b, :, g] / sqrt(D)) @ V[b, :, g], g = h * KV / H, paged fp16 cache.

As grouped, but the sequence is cut into SPLITS slices, one program each; every slice leaves its unnormalised
output with its maximum and sum, and a second kernel reduces the slices, one program per query head.
Gains over grouped: SPLITS times the programs, so few sequences still fill the GPU.

Layouts: q, out [batch, heads, HEAD_DIM]; k, v [pages, page, kv_heads, HEAD_DIM]; table [batch, max_pages]; lengths [batch];
         part [batch, heads, SPLITS, HEAD_DIM], part_max and part_sum [batch, heads, SPLITS], all fp32.
Launch: flash_decode_split, grid = (SPLITS, kv_heads, batch); then flash_decode_reduce, grid = batch * heads.
Needs:  sm_80 or later, heads <= 16 * kv_heads.
"""

import torch
import triton
import triton.language as tl

# ---- problem ----------------------------------------------------------------
HEAD_DIM = 128  # D
# ---- tuning parameters ------------------------------------------------------
BLOCK_N = 32  # tokens per step
WARPS = 4     # warps per program
STAGES = 2    # depth of the loop's pipeline
SPLITS = 4    # slices of the sequence
# -----------------------------------------------------------------------------


@triton.jit
def flash_decode_split(
    q, k, v, table, lengths, part, part_max, part_sum, heads, kv_heads, page, max_pages, scale,
    HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, WARPS: tl.constexpr, STAGES: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    tl.static_assert(BLOCK_N >= 16 and BLOCK_N & (BLOCK_N - 1) == 0, "BLOCK_N must be a power of two, at least 16: tl.dot tiles")
    tl.static_assert(BLOCK_N * HEAD_DIM <= 128 * 32 * WARPS, "a tile of K exceeds 128 elements a thread")
    tl.static_assert(SPLITS & (SPLITS - 1) == 0, "SPLITS must be a power of two: the reduce loads them as one tile")
    split, kv_head, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group = heads // kv_heads
    length = tl.load(lengths + b)
    chunk = tl.cdiv(length, SPLITS)
    begin = split * chunk
    end = tl.minimum(begin + chunk, length)
    row, d = tl.arange(0, 16), tl.arange(0, HEAD_DIM)
    head = b * heads + kv_head * group + row
    query = tl.load(q + head[:, None] * HEAD_DIM + d[None, :], mask=(row < group)[:, None], other=0.0)
    best = tl.full((16,), -1e30, dtype=tl.float32)
    total = tl.zeros((16,), dtype=tl.float32)
    acc = tl.zeros((16, HEAD_DIM), dtype=tl.float32)
    for start in tl.range(begin, end, BLOCK_N, num_stages=STAGES):
        token = start + tl.arange(0, BLOCK_N)
        live = token < end
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
    slot = head * SPLITS + split
    tl.store(part + slot[:, None] * HEAD_DIM + d[None, :], acc, mask=(row < group)[:, None])
    tl.store(part_max + slot, best, mask=row < group)
    tl.store(part_sum + slot, total, mask=row < group)


@triton.jit
def flash_decode_reduce(part, part_max, part_sum, out, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr):
    head = tl.program_id(0)
    slot, d = head * SPLITS + tl.arange(0, SPLITS), tl.arange(0, HEAD_DIM)
    best = tl.load(part_max + slot)
    fix = tl.exp(best - tl.max(best, axis=0))
    total = tl.sum(tl.load(part_sum + slot) * fix, axis=0)
    acc = tl.sum(tl.load(part + slot[:, None] * HEAD_DIM + d[None, :]) * fix[:, None], axis=0)
    tl.store(out + head * HEAD_DIM + d, (acc / total).to(tl.float16))


def launch(q, k, v, table, lengths, out, scale):
    batch, heads, _ = q.shape
    _, page, kv_heads, _ = k.shape
    part = torch.empty((batch, heads, SPLITS, HEAD_DIM), dtype=torch.float32, device=q.device)
    part_max, part_sum = torch.empty((2, batch, heads, SPLITS), dtype=torch.float32, device=q.device)
    flash_decode_split[(SPLITS, kv_heads, batch)](
        q, k, v, table, lengths, part, part_max, part_sum, heads, kv_heads, page, table.shape[1], scale,
        HEAD_DIM=HEAD_DIM, BLOCK_N=BLOCK_N, WARPS=WARPS, STAGES=STAGES, SPLITS=SPLITS, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    flash_decode_reduce[(batch * heads,)](part, part_max, part_sum, out, HEAD_DIM=HEAD_DIM, SPLITS=SPLITS, num_warps=WARPS)
