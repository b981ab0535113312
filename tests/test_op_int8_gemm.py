"""int8_gemm: counts, reference, scales and what tiles waste."""

import numpy as np
import pytest

from generator.kernels.int8_gemm import harness
from generator.ops.base import ceil_div
from generator.ops.int8_gemm import OP, reference

SHAPE = {"M": 16, "N": 512, "K": 1024}


def inputs(m: int, n: int, k: int):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (m, k)).astype(np.int8), rng.integers(-128, 128, (n, k)).astype(np.int8)
    return [a, b, rng.uniform(0.1, 1, m).astype(np.float32), rng.uniform(0.1, 1, n).astype(np.float32)]


def test_work_by_hand():
    work = OP.work(SHAPE)
    # A and B read, one byte each; a fp32 scale per row of A and of B; C written in fp16
    assert work.bytes == 16 * 1024 + 512 * 1024 + 16 * 4 + 512 * 4 + 16 * 512 * 2
    assert work.flops == 16 * 512 * 1024 * 2  # a multiply and an add per (m, n, k)


def test_reference_is_the_plain_triple_loop():
    a, b, row_scale, col_scale = inputs(3, 4, 8)
    c = reference(a, b, row_scale, col_scale)
    assert c.shape == (3, 4)
    for m in range(3):
        for n in range(4):
            total = sum(int(a[m, k]) * int(b[n, k]) for k in range(8))
            assert c[m, n] == pytest.approx(total * float(row_scale[m]) * float(col_scale[n]))


def test_reference_does_not_wrap_at_the_extremes():
    a, ones = np.full((1, 4096), -128, np.int8), np.ones(1, np.float32)
    assert reference(a, a, ones, ones)[0, 0] == 4096 * 128 * 128


@pytest.mark.parametrize(("which", "place"), [(0, (1, 0)), (0, (1, 7)), (1, (2, 0)), (1, (2, 7)), (2, (1,)), (3, (2,))])
def test_every_output_depends_on_each_input_of_its_row_and_column(which, place):
    args = inputs(3, 4, 8)
    before = reference(*args)
    args[which] = args[which].copy()
    args[which][place] = args[which][place] ^ 1 if which < 2 else args[which][place] * 2
    changed = reference(*args) != before
    row, column = [[False] * 4, [True] * 4, [False] * 4], [[False, False, True, False]] * 3
    assert changed.tolist() == (row if which in (0, 2) else column)


@pytest.mark.parametrize("variant", OP.variants, ids=lambda v: v.name)
def test_flops_issued_are_those_of_whole_tiles(variant):
    p = variant.columns()
    block_m = 64 * p["consumers"] if variant.name == "wgmma_s8" else p["block_m"]
    block_k = p.get("block_k", 128)
    padded = ceil_div(16, block_m) * block_m * ceil_div(512, p["block_n"]) * p["block_n"] * ceil_div(1024, block_k) * block_k
    assert np.array_equal(np.asarray(variant.demand(SHAPE, p).flops), 2 * padded)


def test_wgmma_pads_sixteen_rows_to_a_whole_warpgroup():
    wgmma = OP.variant("wgmma_s8")
    flops = np.asarray(wgmma.demand(SHAPE, wgmma.columns()).flops)
    useful = OP.work(SHAPE).flops
    assert {int(f) // useful for f in flops} == {64 // 16, 128 // 16}  # one or two consumers


def test_adversarial_case_overflows_fp16_before_the_scales():
    case = harness.cases(np.random.default_rng(0))[1]
    sums = case.buffers["a"].astype(np.int64) @ case.buffers["b"].astype(np.int64).T
    assert np.abs(sums).max() > 65504
    assert np.abs(sums).max() < 2**31
    assert np.abs(case.expected["c"]).max() < 65504
