"""nucleus_sample: work counted by hand, and the reference against a plain loop, with ties at the pivot and heavy tails."""

import math

import numpy as np
import pytest

from generator import costmodel
from generator.gpus import GPUS
from generator.ops.nucleus_sample import OP, pivots


def plain(row: list[float], u: float, p: float, inv_temperature: float) -> int:
    weights = [math.exp(x * inv_temperature) for x in row]
    held, pivot = 0.0, 0.0
    for weight in sorted(weights, reverse=True):
        held, pivot = held + weight, weight
        if held >= p * sum(weights):
            break
    kept = [w if w >= pivot else 0.0 for w in weights]
    upto = 0.0
    for token, weight in enumerate(kept):
        upto += weight / sum(kept)
        if upto > u:
            return token
    raise AssertionError("u must be below 1")


def draw(masses: list[float], u: float, p: float = 0.9, inv_temperature: float = 1.0) -> int:
    """The token drawn from logits whose weights are `masses` at temperature 1."""
    logits = np.log(np.array([masses])).astype(np.float32)
    return int(OP.reference(logits, np.array([u], np.float32), p, inv_temperature)[0])


def test_work_by_hand() -> None:
    work = OP.work({"B": 2, "V": 1000})
    assert work.bytes == 2 * 1000 * 4 + 2 * 4 + 2 * 4  # logits and uniforms in, fp32; tokens out, int32
    assert work.flops == 2 * 1000 * 4  # subtract the maximum, scale, exp, add
    assert work.math == "fp32"


def test_reference_equals_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((40, 9)) * 2).astype(np.float32)
    uniform = rng.random(40).astype(np.float32)
    tokens = OP.reference(logits, uniform, 0.8, 1.25)
    assert tokens.dtype == np.float64
    assert tokens.tolist() == [plain([float(x) for x in row], float(u), 0.8, 1.25) for row, u in zip(logits, uniform, strict=True)]


@pytest.mark.parametrize(("p", "pivot"), [(0.39, 0.4), (0.41, 0.3), (0.71, 0.2), (0.91, 0.1)])
def test_pivot_is_the_least_of_the_fewest_that_reach_p(p: float, pivot: float) -> None:
    assert pivots(np.array([[0.1, 0.4, 0.2, 0.3]]), p)[0, 0] == pivot


@pytest.mark.parametrize(("u", "token"), [(0.0, 0), (0.24, 0), (0.26, 1), (0.51, 2), (0.99, 3)])
def test_all_tokens_equal_to_the_pivot_are_kept(u: float, token: int) -> None:
    assert draw([0.25, 0.25, 0.25, 0.25], u, p=0.5) == token


def test_many_improbable_tokens_widen_the_set() -> None:
    assert draw([0.5, 0.3, 0.2], 0.99, p=0.75) == 1
    assert draw([0.5, 0.3, 0.2, *[0.001] * 100], 0.99, p=0.75) == 2


@pytest.mark.parametrize(
    "change",
    [{"masses": [0.05, 0.6, 0.35]}, {"u": 0.9}, {"p": 0.3}, {"inv_temperature": 0.2}],
    ids=["logits", "uniform", "p", "inv_temperature"],
)
def test_token_depends_on_every_input(change: dict[str, object]) -> None:
    given: dict[str, object] = {"masses": [0.4, 0.5, 0.1], "u": 0.42}
    assert draw(**given) != draw(**given | change)  # type: ignore[arg-type]


def best(gpu_name: str, shape: dict[str, int], variant: str) -> float:
    gpu = next(gpu for gpu in GPUS if gpu.name == gpu_name)
    of = OP.variant(variant)
    return float(costmodel.price(gpu, of.demand(shape, of.columns()), OP.work(shape)).ms.min())


@pytest.mark.parametrize(
    ("gpu", "rows", "winner"),
    [("h100", 128, "radix_pivot"), ("h100", 16, "two_phase"), ("a100", 128, "two_phase"), ("a10", 128, "radix_pivot")],
)
def test_one_block_a_row_pays_where_rows_fill_the_multiprocessors(gpu: str, rows: int, winner: str) -> None:
    """132 and 72 of them take 128 rows in even turns, 108 take them in two turns, the second almost empty."""
    times = {name: best(gpu, {"B": rows, "V": 160_000}, name) for name in ("radix_pivot", "two_phase")}
    assert min(times, key=times.__getitem__) == winner
    assert max(times.values()) / min(times.values()) < (1.5 if rows == 128 else 4)


def test_sorting_is_no_gain_and_rejection_is() -> None:
    shape = {"B": 64, "V": 128_256}
    sort, rejection, bisection = (best("h100", shape, name) for name in ("sort_cumsum", "rejection", "bisection"))
    assert rejection < bisection < sort < 2 * bisection
