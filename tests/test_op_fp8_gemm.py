"""fp8_gemm: counts, e4m3, block scales, and what promotion guards against."""

import numpy as np
import pytest

from generator import costmodel
from generator.evidence.judge import relative_error
from generator.gpus import BY_NAME
from generator.kernels.fp8_gemm.harness import cases
from generator.ops.base import ceil_div
from generator.ops.fp8_gemm import OP, decode, reference

SHAPE = {"M": 64, "N": 320, "K": 1024}


def inputs():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 127, shape).astype(np.uint8) for shape in ((2, 256), (130, 256)))
    sa, sb = rng.uniform(0.5, 2, (2, 2)).astype(np.float32), rng.uniform(0.5, 2, (2, 2)).astype(np.float32)
    return [a, sa, b, sb]


def test_work_by_hand():
    work = OP.work(SHAPE)
    # A and B, one byte each; fp32 scales: eight blocks of k a row of A, 3 x 8 squares of B (320 rows fill two and a half); C in fp16
    assert work.bytes == 64 * 1024 + 320 * 1024 + 64 * 8 * 4 + 3 * 8 * 4 + 64 * 320 * 2
    assert work.flops == 64 * 320 * 1024 * 2  # a multiply and an add per (m, n, k)


@pytest.mark.parametrize(
    ("bits", "value"),
    [(0x00, 0.0), (0x01, 2**-9), (0x07, 7 * 2**-9), (0x08, 2**-6), (0x38, 1.0), (0x39, 1.125), (0x7E, 448.0), (0xB8, -1.0), (0xFE, -448.0)],
)
def test_e4m3_by_hand(bits, value):
    assert decode(np.array([bits], np.uint8)).tolist() == [value]


def test_e4m3_has_two_nans_no_infinity_and_rises_with_its_bits():
    values = decode(np.arange(256, dtype=np.uint8))
    assert np.flatnonzero(np.isnan(values)).tolist() == [0x7F, 0xFF]
    assert np.isfinite(values[:0x7F]).all()
    assert (np.diff(values[:0x7F]) > 0).all()
    assert np.array_equal(values[0x80:0xFF], -values[:0x7F])


def test_bits_moved_to_fp16_are_the_value_over_256():
    # what dequant_mma relies on, subnormals included
    bits = np.delete(np.arange(256, dtype=np.uint16), [0x7F, 0xFF])
    halves = ((bits & 0x80) << 8 | (bits & 0x7F) << 7).astype(np.uint16).view(np.float16)
    assert np.array_equal(halves.astype(np.float64) * 256, decode(bits.astype(np.uint8)))


def test_reference_is_the_plain_loop():
    a, sa, b, sb = inputs()
    c = reference(a, sa, b, sb)
    assert c.shape == (2, 130)
    x, y = decode(a), decode(b)
    for m in range(2):
        for n in (0, 127, 128, 129):  # the second scale of B starts at row 128
            total = sum(x[m, k] * float(sa[m, k // 128]) * y[n, k] * float(sb[n // 128, k // 128]) for k in range(256))
            assert c[m, n] == pytest.approx(total)


@pytest.mark.parametrize(("which", "place", "rows", "columns"), [(1, (1, 0), [1], range(130)), (3, (1, 1), [0, 1], [128, 129])])
def test_a_scale_covers_its_block_alone(which, place, rows, columns):
    args = inputs()
    before = reference(*args)
    args[which][place] *= 2
    changed = reference(*args) != before
    assert np.flatnonzero(changed.any(axis=1)).tolist() == rows
    assert np.flatnonzero(changed.any(axis=0)).tolist() == list(columns)


@pytest.mark.parametrize("k", [0, 127, 128, 255])
def test_every_output_depends_on_its_row_and_column_only(k):
    args = inputs()
    before = reference(*args)
    for which, row in ((0, 1), (2, 7)):
        moved = [x.copy() for x in args]
        moved[which][row, k] ^= 0x80
        changed = reference(*moved) != before
        lines = changed.any(axis=1) if which == 0 else changed.any(axis=0)
        assert np.flatnonzero(lines).tolist() == [row]


@pytest.mark.parametrize("variant", OP.variants, ids=lambda v: v.name)
def test_flops_issued_are_those_of_whole_tiles(variant):
    shape = {"M": 40, "N": 520, "K": 1152}  # nine scale blocks, no tile fits
    p = variant.columns()
    block_m = 64 * p["consumers"] if variant.name == "wgmma_e4m3" else p["block_m"]
    splits = p.get("splits", 1)
    depth = splits * ceil_div(9, splits) * 128  # whole scale blocks in every split
    padded = ceil_div(40, block_m) * block_m * ceil_div(520, p["block_n"]) * p["block_n"] * depth
    assert np.array_equal(np.asarray(variant.demand(shape, p).flops), 2 * padded)


def test_block_scaled_mma_is_the_fast_form_of_geforce_only():
    geforce, hopper = BY_NAME["rtx_5090"], BY_NAME["h100"]
    assert costmodel.rate(geforce, "mma_mxfp8") == 2 * costmodel.rate(geforce, "mma_fp8")
    assert costmodel.rate(geforce, "mma_mxfp4") == 4 * costmodel.rate(geforce, "mma_fp8")
    assert costmodel.rate(hopper, "mma_fp8") == pytest.approx(costmodel.rate(hopper, "mma_fp16"), rel=1e-3)  # conversions and fp16


def mxfp4(values):
    """Values rounded to e2m1 with a power of two per 32 neighbours, the greatest between 4 and 8 before it saturates."""
    blocks = values.reshape(len(values), -1, 32)
    scale = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(blocks).max(axis=2, keepdims=True), 2.0**-9))) - 2)
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    nearest = grid[np.abs(np.abs(blocks / scale)[..., None] - grid).argmin(axis=3)]
    return (np.sign(blocks) * nearest * scale).reshape(values.shape)


def test_rounding_to_fp4_is_no_way_to_compute_the_op():
    for case in cases(np.random.default_rng(0)):
        a, sa, b, sb = (case.buffers[name] for name in ("A", "sa", "B", "sb"))
        x, y = mxfp4(decode(a)) * np.repeat(sa, 128, axis=1), mxfp4(decode(b))
        y *= np.repeat(np.repeat(sb, 128, axis=0)[: len(b)], 128, axis=1)
        assert relative_error(x @ y.T, case.expected["C"]) > 50 * OP.tolerance
    assert [v.name for v in OP.variants if v.flaw] == ["fp4_shortcut"]


def test_cases_hold_no_nan_and_reach_the_ends_of_e4m3():
    ragged, adversarial = cases(np.random.default_rng(0))
    for case in (ragged, adversarial):
        assert np.isfinite(case.expected["C"]).all()
        assert np.abs(case.expected["C"]).max() < 65504
    assert {0x7E, 0xFE, 0x01, 0x87} <= set(adversarial.buffers["A"].ravel().tolist())
