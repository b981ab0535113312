"""triton_rmsnorm: counted work, reference against plain loops, and the power of two that holds a row."""

import math

import numpy as np
import pytest

from generator.ops.triton_rmsnorm import OP, constants, reference


def test_bytes_and_flops_of_a_small_shape() -> None:
    work = OP.work({"M": 64, "N": 1024})
    assert work.bytes == 64 * 1024 * 2 * 2 + 1024 * 2  # x read, y written, weight read once, fp16
    assert work.flops == 64 * 1024 * 4  # square, add, scale, weight


def test_reference_is_the_formula_written_out() -> None:
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((3, 7)).astype(np.float16), rng.standard_normal(7).astype(np.float16)
    got = reference(x, w, 1e-5)
    for m in range(3):
        scale = 1 / math.sqrt(sum(float(v) ** 2 for v in x[m]) / 7 + 1e-5)
        for n in range(7):
            assert got[m, n] == pytest.approx(float(x[m, n]) * scale * float(w[n]), rel=1e-12)


def test_one_element_moves_its_whole_row_and_a_weight_its_whole_column() -> None:
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((4, 6)).astype(np.float16), rng.standard_normal(6).astype(np.float16)
    before = reference(x, w, 1e-5)
    x[1, 2] += np.float16(1)
    assert ((reference(x, w, 1e-5) != before) == (np.arange(4) == 1)[:, None]).all()
    before = reference(x, w, 1e-5)
    w[3] += np.float16(1)
    assert ((reference(x, w, 1e-5) != before) == (np.arange(6) == 3)[None, :]).all()


def test_a_zero_row_stays_zero() -> None:
    assert (reference(np.zeros((2, 8), dtype=np.float16), np.ones(8, dtype=np.float16), 1e-5) == 0).all()


@pytest.mark.parametrize("shape", [*OP.shapes, OP.heldout], ids=str)
def test_block_is_the_least_power_of_two_that_holds_a_row(shape: dict[str, int]) -> None:
    block = constants(shape)["BLOCK"]
    assert block & (block - 1) == 0
    assert block // 2 < shape["N"] <= block


@pytest.mark.parametrize("shape", [*OP.shapes, OP.heldout], ids=str)
def test_every_tile_fits_the_registers_it_may_take(shape: dict[str, int]) -> None:
    block = constants(shape)["BLOCK"]
    for point in OP.variant("one_pass").points:
        assert point["rows"] * block <= 128 * 32 * point["warps"]
    for point in OP.variant("multi_row").points:
        assert block <= 64 * 32 * point["warps"]
        assert point["rows"] >= point["stages"] >= 2
    for point in OP.variant("persistent").points:
        assert block <= 64 * 32 * point["warps"]


def test_a_fixed_grid_shrinks_to_what_fills_its_pipelines() -> None:
    persistent = OP.variant("persistent")
    stages = persistent.columns()["stages"]
    few = persistent.demand({"M": 256, "N": 8192}, persistent.columns())
    assert (np.asarray(few.blocks) == np.minimum(persistent.columns()["persistent"], -(-256 // stages))).all()
    many = persistent.demand(OP.shapes[0], persistent.columns())
    assert (np.asarray(many.blocks) == persistent.columns()["persistent"]).all()
