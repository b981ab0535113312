"""gemm_fp16: counts, reference and what tiles waste."""

import numpy as np
import pytest

from generator.kernels.gemm_fp16 import harness
from generator.ops.base import ceil_div
from generator.ops.gemm_fp16 import OP, reference
from generator.ops.gemm_tiles import traffic

SHAPE = {"M": 64, "N": 512, "K": 1024}


def test_work_by_hand():
    work = OP.work(SHAPE)
    assert work.bytes == 64 * 1024 * 2 + 512 * 1024 * 2 + 64 * 512 * 2  # A and B read, C written, fp16
    assert work.flops == 64 * 512 * 1024 * 2  # a multiply and an add per (m, n, k)


def test_reference_is_the_plain_triple_loop():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((3, 5)).astype(np.float16), rng.standard_normal((4, 5)).astype(np.float16)
    c = reference(a, b)
    assert c.shape == (3, 4)
    for m in range(3):
        for n in range(4):
            assert c[m, n] == pytest.approx(sum(float(a[m, k]) * float(b[n, k]) for k in range(5)))


def test_every_output_depends_on_its_row_and_column_only():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((3, 6)).astype(np.float16), rng.standard_normal((4, 6)).astype(np.float16)
    before = reference(a, b)
    for k in range(6):
        moved_a, moved_b = a.copy(), b.copy()
        moved_a[1, k] += 1
        moved_b[2, k] += 1
        assert (reference(moved_a, b) != before).tolist() == [[False] * 4, [True] * 4, [False] * 4]
        assert (reference(a, moved_b) != before).tolist() == [[False, False, True, False]] * 3


@pytest.mark.parametrize("variant", OP.variants, ids=lambda v: v.name)
def test_flops_issued_are_those_of_whole_tiles(variant):
    shape = {"M": 40, "N": 520, "K": 1000}  # no tile fits
    p = variant.columns()
    block_m = 64 * p["consumers"] if variant.name == "wgmma_tma" else p["block_m"]
    block_k = p.get("block_k", 64)
    splits = p.get("splits", 1)
    steps = splits * ceil_div(ceil_div(1000, block_k), splits)  # whole slices in every part
    padded = ceil_div(40, block_m) * block_m * ceil_div(520, p["block_n"]) * p["block_n"] * steps * block_k
    assert np.array_equal(np.asarray(variant.demand(shape, p).flops), 2 * padded)


def test_traffic_by_hand():
    one = np.array([1])
    t = traffic({"M": 256, "N": 256, "K": 64}, 2, 128 * one, 128 * one, 8 * one, 2 * one)
    assert t.tiles == 2 * 2
    assert t.dram_bytes == (256 + 256) * 64 * 2  # four tiles run together: A and B once each
    # each of 2 tile columns asks for A; the 2 blocks of a column ask for B as one; less the first reads
    assert t.reread_bytes == (2 * 256 + 1 * 256) * 64 * 2 - t.dram_bytes
    assert t.window_rows == 256 + 256


def stream(m: int, n: int, k: int, blocks: int):
    point = {"block_m": 128, "block_n": 128, "block_k": 32, "stages": 3, "persistent": blocks}
    return OP.variant("stream_k").demand({"M": m, "N": n, "K": k}, {name: np.array([value]) for name, value in point.items()})


def test_stream_k_writes_parts_only_where_a_share_ends_inside_a_tile():
    tile = 128 * 128 * 4
    whole = stream(128, 128 * 12, 320, 6)  # two tiles a block
    assert whole.dram_bytes == OP.work({"M": 128, "N": 128 * 12, "K": 320}).bytes
    # five tiles of ten slices on four blocks: shares end in slices 12 1/2, rounded to 13, 26 and 39: three tiles in two parts each
    few = stream(128, 128 * 5, 320, 4)
    assert few.dram_bytes - OP.work({"M": 128, "N": 128 * 5, "K": 320}).bytes == 3 * 2 * tile
    # two tiles on eight blocks: shares of three slices, the ends at 3, 6, 9 and 12, 15, 18: each tile in four parts
    many = stream(128, 128 * 2, 320, 8)
    assert many.dram_bytes - OP.work({"M": 128, "N": 128 * 2, "K": 320}).bytes == 2 * 4 * tile


def test_a_single_tile_reads_each_operand_once():
    one = np.array([1])
    t = traffic({"M": 100, "N": 100, "K": 64}, 2, 128 * one, 128 * one, 8 * one, 8 * one)
    assert t.dram_bytes == (100 + 100) * 64 * 2  # rows past the edge are not loaded
    assert t.reread_bytes == 0


def test_adversarial_case_needs_fp32_sums():
    case = harness.cases(np.random.default_rng(0))[1]
    a, b = (case.buffers[name].astype(np.float64) for name in ("a", "b"))
    assert (np.abs(np.cumsum(a[:, None, :] * b[None], axis=2)).max(axis=2) > 65504).all()
    assert np.abs(case.expected["c"]).max() < 65504
