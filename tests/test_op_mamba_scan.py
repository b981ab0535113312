"""mamba_scan: counted work, reference against plain loops, and what the gate, the skip and the recurrence must do."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from generator import costmodel
from generator.gpus import GPUS
from generator.ops.mamba_scan import OP, reference

B, L, D, N = 2, 5, 3, 4
NAMES = ("u", "delta", "a", "b", "c", "z", "skip", "bias")


def inputs() -> dict[str, npt.NDArray[np.generic]]:
    rng = np.random.default_rng(1)
    half = {name: rng.standard_normal((B, L, D)).astype(np.float16) for name in ("u", "delta", "z")}
    narrow = {name: rng.standard_normal((B, L, N)).astype(np.float16) for name in ("b", "c")}
    a = -np.exp(rng.standard_normal((D, N))).astype(np.float32)
    wide = {name: rng.standard_normal(D).astype(np.float32) for name in ("skip", "bias")}
    return {**half, **narrow, "a": a, **wide}


def scan(values: dict[str, npt.NDArray[np.generic]]) -> npt.NDArray[np.float64]:
    return reference(**{name: values[name] for name in NAMES})  # type: ignore[arg-type]


def test_bytes_and_flops_of_a_small_shape() -> None:
    work = OP.work({"B": 2, "L": 64, "D": 128, "N": 16})
    wide = 4 * 2 * 64 * 128 * 2  # u, delta, z read, y written, fp16
    narrow = 2 * 2 * 64 * 16 * 2  # B and C, fp16
    fixed = 128 * 16 * 4 + 2 * 128 * 4  # A, then skip and bias, fp32
    assert work.bytes == wide + narrow + fixed
    assert work.flops == 2 * 64 * 128 * 16 * 8  # scale A, exp, dt * B * u as two, decay and add, times C and add


def test_reference_is_the_recurrence_written_out() -> None:
    v = inputs()
    got = scan(v)
    for i in range(B):
        for d in range(D):
            h = [0.0] * N
            for t in range(L):
                u, z = float(v["u"][i, t, d]), float(v["z"][i, t, d])
                dt = math.log1p(math.exp(float(v["delta"][i, t, d]) + float(v["bias"][d])))
                y = float(v["skip"][d]) * u
                for n in range(N):
                    h[n] = math.exp(dt * float(v["a"][d, n])) * h[n] + dt * u * float(v["b"][i, t, n])
                    y += float(v["c"][i, t, n]) * h[n]
                assert got[i, t, d] == pytest.approx(y * z / (1 + math.exp(-z)), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_every_output_depends_on_each_input(name: str) -> None:
    v = inputs()
    moved = {**v, name: (v[name].astype(np.float64) + 0.5).astype(v[name].dtype)}
    changed = scan(moved) != scan(v)
    # A acts on a state, and the first step has none yet.
    assert changed[:, 1:].all() if name == "a" else changed.all()


def test_an_early_step_reaches_all_later_ones_of_its_sequence_only() -> None:
    v = inputs()
    u = v["u"].copy()
    u[0, 1, 2] += 1
    changed = scan({**v, "u": u}) != scan(v)
    assert changed[0, 1:, 2].all()
    assert not changed[0, 0].any()
    assert not changed[0, :, :2].any()
    assert not changed[1].any()


def test_softplus_neither_overflows_nor_vanishes() -> None:
    v = inputs()
    for shift in (80.0, -80.0):
        assert np.isfinite(scan({**v, "bias": np.full(D, shift, dtype=np.float32)})).all()


def test_split_l_walks_more_than_chunked() -> None:
    shape = OP.shapes[0]
    once, twice = (OP.variant(name) for name in ("chunked", "split_l"))
    least = np.min(once.demand(shape, once.columns()).sfu_ops)
    assert np.min(twice.demand(shape, twice.columns()).sfu_ops) > 1.3 * least


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_cutting_l_pays_with_few_channels_only(gpu) -> None:
    """Its second walk costs exponentials, which bind where channels fill the board: at all shapes of the op."""

    def best(name: str, shape: dict[str, int]) -> float:
        variant = OP.variant(name)
        return float(costmodel.price(gpu, variant.demand(shape, variant.columns()), OP.work(shape)).ms.min())

    few = {"B": 1, "L": 32768, "D": 512, "N": 16}
    assert best("split_l", few) < 0.7 * best("chunked", few)
    for shape in (*OP.shapes, OP.heldout):
        assert best("split_l", dict(shape)) > 1.4 * best("chunked", dict(shape))
