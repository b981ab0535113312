"""fused_qkv_rope: counts, head order, neox pairs, and which heads are rotated."""

import math

import numpy as np
import pytest

from generator.ops.base import ceil_div
from generator.ops.fused_qkv_rope import OP, reference

SHAPE = {"M": 16, "K": 256, "H": 4, "KV": 2, "D": 64}
M, K, H, KV, D = 2, 5, 2, 1, 4


def inputs():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((M, K)).astype(np.float16), rng.standard_normal(((H + 2 * KV) * D, K)).astype(np.float16)
    angle = rng.uniform(0.3, 1.2, (M, D // 2))
    return x, w, np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def test_work_by_hand():
    work = OP.work(SHAPE)
    columns = (4 + 2 * 2) * 64
    # x and w in fp16; cosine and sine in fp32, half a head a row each; q, k and v written in fp16
    assert work.bytes == 16 * 256 * 2 + columns * 256 * 2 + 2 * 16 * 32 * 4 + 16 * columns * 2
    # the product; two multiplies and an add per element of the 4 + 2 rotated heads
    assert work.flops == 16 * columns * 256 * 2 + 16 * (4 + 2) * 64 * 3


def test_reference_is_the_plain_loop():
    x, w, cosine, sine = inputs()
    out = reference(x, w, cosine, sine, H, KV)
    assert out.shape == (M, (H + 2 * KV) * D)
    for m in range(M):
        for head in range(H + 2 * KV):
            a = [sum(float(x[m, k]) * float(w[head * D + d, k]) for k in range(K)) for d in range(D)]
            for d in range(D):
                c, s = float(cosine[m, d % 2]), float(sine[m, d % 2])
                rotated = a[d] * c - a[d + 2] * s if d < 2 else a[d] * c + a[d - 2] * s
                assert out[m, head * D + d] == pytest.approx(a[d] if head >= H + KV else rotated)


def test_rotation_keeps_the_length_of_pairs_and_v_untouched():
    x, w, cosine, sine = inputs()
    plain = reference(x, w, np.ones_like(cosine), np.zeros_like(sine), H, KV).reshape(M, H + 2 * KV, D)
    assert plain.reshape(M, -1) == pytest.approx(x.astype(np.float64) @ w.astype(np.float64).T)
    turned = reference(x, w, cosine, sine, H, KV).reshape(M, H + 2 * KV, D)
    assert np.array_equal(turned[:, H + KV :], plain[:, H + KV :])
    for d in range(D // 2):
        assert np.hypot(turned[..., d], turned[..., d + 2]) == pytest.approx(np.hypot(plain[..., d], plain[..., d + 2]), rel=1e-6)


@pytest.mark.parametrize("row", range((H + 2 * KV) * D))
def test_a_row_of_w_moves_its_pair_of_outputs(row):
    x, w, cosine, sine = inputs()
    before = reference(x, w, cosine, sine, H, KV)
    w[row, 0] += 1
    moved = np.flatnonzero((reference(x, w, cosine, sine, H, KV) != before).all(axis=0)).tolist()
    head, d = divmod(row, D)
    assert moved == ([row] if head >= H + KV else [head * D + d % 2, head * D + d % 2 + 2])


def test_every_output_depends_on_its_row_of_x_and_angle():
    x, w, cosine, sine = inputs()
    before = reference(x, w, cosine, sine, H, KV)
    for k in range(K):
        moved = x.copy()
        moved[1, k] += 1
        assert (reference(moved, w, cosine, sine, H, KV) != before).tolist() == [[False] * 16, [True] * 16]
    cosine[0, 1] = math.cos(2.0)
    assert np.flatnonzero((reference(x, w, cosine, sine, H, KV) != before)[0]).tolist() == [1, 3, 5, 7, 9, 11]


@pytest.mark.parametrize("variant", OP.variants, ids=lambda v: v.name)
def test_flops_issued_are_those_of_whole_tiles(variant):
    shape = {"M": 40, "K": 1000, "H": 3, "KV": 1, "D": 128}  # five heads, no tile fits
    p = variant.columns()
    block_m = 64 * p["consumers"] if variant.name == "wgmma" else p["block_m"]
    block_n = p["heads"] * 128 if "heads" in p else p["block_n"]
    block_k = p.get("block_k", 64)
    padded = ceil_div(40, block_m) * block_m * ceil_div(5 * 128, block_n) * block_n * ceil_div(1000, block_k) * block_k
    assert np.array_equal(np.asarray(variant.demand(shape, p).flops), 2 * padded)


def test_only_the_epilogues_spare_the_product_its_round_trip():
    shape = {"M": 64, "K": 128, "H": 4, "KV": 2, "D": 128}
    product = 64 * (4 + 2 * 2) * 128 * 2
    point = {"block_m": 64, "block_n": 128, "block_k": 64, "stages": 3, "warps": 4, "heads": 1}
    column = {k: np.array([v]) for k, v in point.items()}
    apart, fused = (OP.variant(name).demand(shape, column) for name in ("gemm_rope", "epilogue"))
    assert np.asarray(apart.dram_bytes) - np.asarray(fused.dram_bytes) == 2 * product  # written once, read once
    assert (apart.launches, fused.launches) == (2, 1)
