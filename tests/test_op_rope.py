"""rope: counted work, reference against plain loops, and the laws of a rotation."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from generator import costmodel
from generator.gpus import BY_NAME
from generator.ops.rope import OP, angles, reference

M, H, KV, D = 4, 3, 2, 8
NAMES = ("q", "k", "positions")


def inputs() -> dict[str, npt.NDArray[np.generic]]:
    rng = np.random.default_rng(1)
    heads = {name: rng.standard_normal((M, count, D)).astype(np.float16) for name, count in (("q", H), ("k", KV))}
    return {**heads, "positions": np.array([5, 1, 900, 17], dtype=np.int32)}


def rotate(values: dict[str, npt.NDArray[np.generic]]) -> npt.NDArray[np.float64]:
    return reference(**{name: values[name] for name in NAMES})  # type: ignore[arg-type]


def test_bytes_and_flops_of_a_small_shape() -> None:
    work = OP.work({"M": 128, "H": 64, "KV": 8, "D": 64})
    assert work.bytes == 128 * (64 + 8) * 64 * 2 * 2 + 128 * 4  # q and k read and written, fp16; one int32 position a token
    assert work.flops == 128 * (64 + 8) * 32 * 6  # 32 pairs a head: 4 products, 2 sums each


def test_reference_is_the_rotation_written_out() -> None:
    v = inputs()
    got = rotate(v)
    for m in range(M):
        for h in range(H + KV):
            x = [float(e) for e in (v["q"][m, h] if h < H else v["k"][m, h - H])]
            for i in range(D // 2):
                a = float(v["positions"][m]) / 10000 ** (2 * i / D)
                assert got[m, h, i] == pytest.approx(x[i] * math.cos(a) - x[i + D // 2] * math.sin(a), abs=1e-12)
                assert got[m, h, i + D // 2] == pytest.approx(x[i + D // 2] * math.cos(a) + x[i] * math.sin(a), abs=1e-12)


def test_every_output_depends_on_each_input() -> None:
    v = inputs()
    plain = rotate(v)
    q = rotate({**v, "q": v["q"] + np.float16(1)}) != plain
    assert q[:, :H].all()
    assert not q[:, H:].any()
    k = rotate({**v, "k": v["k"] + np.float16(1)}) != plain
    assert k[:, H:].all()
    assert not k[:, :H].any()
    assert (rotate({**v, "positions": v["positions"] + np.int32(1)}) != plain).all()


def test_position_zero_leaves_all_as_it_is() -> None:
    v = inputs()
    got = rotate({**v, "positions": np.zeros(M, dtype=np.int32)})
    assert np.array_equal(got, np.concatenate([v["q"], v["k"]], axis=1))


def test_length_of_a_pair_stays() -> None:
    v = inputs()
    x, y = np.concatenate([v["q"], v["k"]], axis=1).astype(np.float64), rotate(v)
    assert np.allclose(np.hypot(x[..., : D // 2], x[..., D // 2 :]), np.hypot(y[..., : D // 2], y[..., D // 2 :]))


def test_scores_depend_on_the_distance_alone() -> None:
    v = inputs()
    near, far = (rotate({**v, "positions": np.array([p, p + 3, p, p], dtype=np.int32)}) for p in (2, 700))
    assert near[0, 0] @ near[1, H] == pytest.approx(far[0, 0] @ far[1, H])


def test_angles_fall_by_a_constant_factor() -> None:
    got = angles(np.array([1, 10]), 8)
    assert got[0].tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])
    assert got[1] == pytest.approx(10 * got[0])


def fma(a: npt.NDArray[np.float16], b: npt.NDArray[np.float16], c: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float16)


def test_halves_are_accurate_enough_only_with_what_they_leave_out() -> None:
    """half2_pairs' rotation, step by step, on inputs of every size; and the plain one, which large inputs break."""
    rng = np.random.default_rng(3)
    x, y = (np.exp2(rng.uniform(-10, 10, 100_000)) * rng.choice([-1, 1], 100_000) for _ in range(2))
    x, y = x.astype(np.float16), np.where(rng.random(100_000) < 0.5, x, y).astype(np.float16)  # half of them may cancel out
    angle = rng.uniform(-np.pi, np.pi, 100_000)
    c, s = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    want = x * np.cos(angle) + y * np.sin(angle)
    c0, s0 = c.astype(np.float16), s.astype(np.float16)
    c1, s1 = (c - c0).astype(np.float16), (s - s0).astype(np.float16)
    p = (y * s0).astype(np.float16)
    carried = fma(x, c0, p) + fma(x, c1, fma(y, s1, fma(y, s0, -p)))
    plain = fma(x, c0, p)
    errors = [np.max(np.abs(got - want) / (1 + np.abs(want))) for got in (carried, plain)]
    assert errors[0] < OP.tolerance / 1.5
    assert errors[1] > 10 * OP.tolerance


def test_no_variant_is_best_everywhere() -> None:
    """Tables in shared memory pay on Hopper, angles without tables elsewhere, short blocks at decode sizes."""
    best = {}
    for gpu, shape in (("h200", 1), ("rtx_a6000", 1), ("h200", 2)):
        s = OP.shapes[shape]
        times = {v.name: costmodel.price(BY_NAME[gpu], v.demand(s, v.columns()), OP.work(s)).ms.min() for v in OP.variants}
        best[gpu, shape] = min(times, key=lambda name: times[name])
    assert best == {("h200", 1): "token_rows", ("rtx_a6000", 1): "half2_pairs", ("h200", 2): "fused_vec"}
