"""swiglu_act: counted work, reference against plain loops, and which half is the gate."""

import math

import numpy as np
import pytest

from generator.ops.swiglu_act import OP, reference


def test_bytes_and_flops_of_a_small_shape() -> None:
    work = OP.work({"M": 128, "N": 1024})
    assert work.bytes == 128 * 1024 * 3 * 2  # gate and up read, y written, fp16
    assert work.flops == 128 * 1024 * 5  # negate, exp, add, divide, multiply


def test_reference_is_silu_of_the_first_half_times_the_second() -> None:
    x = np.random.default_rng(2).standard_normal((3, 10)).astype(np.float16)
    got = reference(x)
    for m in range(3):
        for n in range(5):
            gate, up = float(x[m, n]), float(x[m, 5 + n])
            assert got[m, n] == pytest.approx(gate / (1 + math.exp(-gate)) * up, rel=1e-12)


@pytest.mark.parametrize("half", [0, 1])
def test_an_output_depends_on_its_own_gate_and_up_alone(half: int) -> None:
    x = np.random.default_rng(3).standard_normal((4, 12)).astype(np.float16)
    moved = x.copy()
    moved[2, half * 6 + 3] += np.float16(0.5)
    changed = reference(moved) != reference(x)
    assert changed.sum() == 1
    assert changed[2, 3]


def test_extreme_gates_stay_finite() -> None:
    x = np.array([[-65504.0, 65504.0, 1.0, 1.0]], dtype=np.float16)
    assert reference(x) == pytest.approx(np.array([[0.0, 65504.0]]))


def test_the_scratch_matrix_costs_eight_bytes_an_element() -> None:
    shape = OP.shapes[0]
    moved = [np.max(v.demand(shape, v.columns()).dram_bytes) for v in OP.variants]
    elements = shape["M"] * shape["N"]
    assert moved == [14 * elements, 6 * elements, 6 * elements]
