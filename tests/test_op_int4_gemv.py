"""int4_gemv: counts, nibble order, groups of scales, and what rows cost."""

import numpy as np
import pytest

from generator.kernels.int4_gemv.harness import cases, pack
from generator.ops.int4_gemv import OP, reference

SHAPE = {"M": 2, "N": 64, "K": 256, "G": 128}


def inputs():
    rng = np.random.default_rng(0)
    w = rng.integers(-8, 8, (3, 16))
    scale, x = rng.uniform(0.5, 2, (3, 2)).astype(np.float16), rng.standard_normal((2, 16)).astype(np.float16)
    return w, scale, x


def test_work_by_hand():
    work = OP.work(SHAPE)
    # half a byte a weight; two fp16 scales a row of w; two rows of x read and of y written, fp16
    assert work.bytes == 64 * 256 // 2 + 64 * 2 * 2 + 2 * 256 * 2 + 2 * 64 * 2
    assert work.flops == 2 * 64 * 256 * 2  # a multiply and an add per weight and row


def test_nibbles_are_interleaved_and_biased():
    w = np.array([[-8, -7, 0, 7, 1, 2, 3, 4]])
    # k = 0, 2, 4, 6 from bit 0 up, k = 1, 3, 5, 7 from bit 16 up, each + 8
    assert pack(w).tolist() == [[0x0 | 0x8 << 4 | 0x9 << 8 | 0xB << 12 | 0x1 << 16 | 0xF << 20 | 0xA << 24 | 0xC << 28]]


def test_reference_is_the_plain_loop():
    w, scale, x = inputs()
    y = reference(pack(w), scale, x)
    assert y.shape == (2, 3)
    for m in range(2):
        for n in range(3):
            assert y[m, n] == pytest.approx(sum(int(w[n, k]) * float(scale[n, k // 8]) * float(x[m, k]) for k in range(16)))


@pytest.mark.parametrize("k", range(16))
def test_every_weight_and_activation_counts_once(k):
    w, scale, x = inputs()
    before = reference(pack(w), scale, x)
    moved = w.copy()
    moved[1, k] += 1 if w[1, k] < 7 else -1
    assert (reference(pack(moved), scale, x) != before).tolist() == [[False, True, False]] * 2
    moved_x = x.copy()
    moved_x[1, k] += 1
    changed = reference(pack(w), scale, moved_x) != before
    assert changed.tolist() == [[False] * 3, (w[:, k] != 0).tolist()]


def test_a_scale_belongs_to_its_group():
    w, scale, x = inputs()
    x[:, :8] = 0
    before = reference(pack(w), scale, x)
    scale[:, 0] *= 2
    assert np.array_equal(reference(pack(w), scale, x), before)
    scale[:, 1] *= 2
    assert reference(pack(w), scale, x) == pytest.approx(2 * before)


def test_weights_are_read_again_only_for_further_row_tiles():
    lop3, p = OP.variant("lop3"), OP.variant("lop3").columns()
    weights = 64 * 256 // 2 + 64 * 2 * 2
    one, eight = (np.asarray(lop3.demand(SHAPE | {"M": m}, p).reread_bytes) for m in (1, 8))
    passes = -(-8 // p["block_m"])
    blocks = -(-64 // (p["warps"] * p["rows"]))
    assert np.array_equal(eight - one, (passes - 1) * (weights + blocks * 2 * p["block_m"] * 256))


def test_mma_small_m_pads_rows_and_reads_x_once_per_column_tile():
    variant, p = OP.variant("mma_small_m"), OP.variant("mma_small_m").columns()
    shape = {"M": 3, "N": 520, "K": 1152, "G": 128}
    demand = variant.demand(shape, p)
    tiles = -(-520 // p["block_n"])
    depth = -(-1152 // p["block_k"]) * p["block_k"]
    assert np.array_equal(np.asarray(demand.flops), 2 * p["block_m"] * tiles * p["block_n"] * depth)
    assert np.array_equal(np.asarray(demand.reread_bytes), tiles * 2 * 3 * 1152)  # three rows fit one tile: weights are read once


def test_cases_leave_a_split_empty_and_rows_unfilled():
    ragged, adversarial = cases(np.random.default_rng(0))
    steps = ragged.shape["K"] // 128
    assert 5 * -(-steps // 8) >= steps  # eight splits of two steps: the last three have none of the nine
    assert ragged.shape["M"] == 5
    assert adversarial.shape["M"] == 1
