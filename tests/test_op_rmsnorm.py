"""rmsnorm: counted work, reference against plain loops, and what scale and eps must do."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from generator import costmodel
from generator.gpus import BY_NAME
from generator.ops.rmsnorm import MAX_COLS, OP, reference

M, N, EPS = 3, 6, 1e-5


def inputs() -> tuple[npt.NDArray[np.float16], npt.NDArray[np.float16]]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((M, N)).astype(np.float16), (1 + 0.1 * rng.standard_normal(N)).astype(np.float16)


def test_bytes_and_flops_of_a_small_shape() -> None:
    work = OP.work({"M": 64, "N": 1024})
    assert work.bytes == 64 * 1024 * 2 * 2 + 1024 * 2  # x read, y written, the weights once, fp16
    assert work.flops == 64 * 1024 * 4  # square, add, scale, weight


def test_reference_is_the_formula_written_out() -> None:
    x, w = inputs()
    got = reference(x, w, EPS)
    for m in range(M):
        mean = sum(float(e) ** 2 for e in x[m]) / N
        for n in range(N):
            assert got[m, n] == pytest.approx(float(x[m, n]) / math.sqrt(mean + EPS) * float(w[n]), rel=1e-12)


def test_every_output_depends_on_each_input() -> None:
    x, w = inputs()
    plain = reference(x, w, EPS)
    for n in range(N):
        other = x.copy()
        other[1, n] += np.float16(1)
        changed = reference(other, w, EPS) != plain
        assert changed[1].all()  # through the mean of the row
        assert not changed[[0, 2]].any()
    assert (reference(x, w + np.float16(1), EPS) != plain).all()
    assert (reference(x, w, 0.1) != plain).all()


def test_a_row_of_zeros_stays_zero() -> None:
    x, w = inputs()
    x[0] = 0
    assert (reference(x, w, EPS)[0] == 0).all()


def test_scaling_a_row_leaves_its_result() -> None:
    x, w = inputs()
    assert reference(x * np.float16(4), w, 0.0) == pytest.approx(reference(x, w, 0.0))


def test_the_row_in_registers_holds_every_shape() -> None:
    assert max(s["N"] for s in (*OP.shapes, OP.heldout)) <= MAX_COLS
    assert all(s["N"] % 8 == 0 for s in (*OP.shapes, OP.heldout))


def best(variant: str, gpu: str, m: int, n: int) -> float:
    of, shape = OP.variant(variant), {"M": m, "N": n}
    return float(costmodel.price(BY_NAME[gpu], of.demand(shape, of.columns()), OP.work(shape)).ms.min())


@pytest.mark.parametrize("gpu", ["h100", "h200", "rtx_5090"])
def test_a_cluster_pays_for_few_rows_and_the_longer_the_more(gpu: str) -> None:
    gains = [best("vec", gpu, 64, n) / best("cluster_rows", gpu, 64, n) for n in (2048, 4096, 8192)]
    assert gains == sorted(gains)
    assert gains[-1] > 1
    assert best("cluster_rows", gpu, 4096, 4096) > best("vec", gpu, 4096, 4096)


@pytest.mark.parametrize("gpu", sorted(BY_NAME))
def test_a_warp_alone_is_slow_where_rows_are_few(gpu: str) -> None:
    assert best("warp_row", gpu, 64, 7168) > best("vec", gpu, 64, 7168)
    assert best("warp_row", gpu, 16384, 4096) == pytest.approx(best("vec", gpu, 16384, 4096), rel=0.1)


def test_a_persistent_grid_must_fill_the_machine() -> None:
    variant, shape = OP.variant("persistent"), {"M": 4096, "N": 4096}
    ms = costmodel.price(BY_NAME["h100"], variant.demand(shape, variant.columns()), OP.work(shape)).ms
    few, enough = (variant.points.index({"threads": 128, "persistent": blocks}) for blocks in (64, 256))
    assert ms[few] > 1.5 * ms[enough]


def test_a_persistent_block_with_one_row_has_no_next_to_hide() -> None:
    variant = OP.variant("persistent")
    demand = variant.demand({"M": 64, "N": 7168}, variant.columns())
    assert (np.asarray(demand.blocks) == 64).all()
    assert demand.leak == pytest.approx(0.35)
