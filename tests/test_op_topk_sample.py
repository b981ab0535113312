"""topk_sample: work counted by hand, and the reference against a plain loop, with ties and at the ends of the draw."""

import math

import numpy as np
import pytest

from generator.ops.topk_sample import OP


def plain(row: list[float], u: float, k: int, inv_temperature: float) -> int:
    cut = sorted(row)[-k]
    weights = [math.exp(x * inv_temperature) if x >= cut else 0.0 for x in row]
    upto = 0.0
    for token, weight in enumerate(weights):
        upto += weight / sum(weights)
        if upto > u:
            return token
    raise AssertionError("u must be below 1")


def draw(row: list[float], u: float, k: int, inv_temperature: float = 1.0) -> int:
    return int(OP.reference(np.array([row], np.float32), np.array([u], np.float32), k, inv_temperature)[0])


def test_work_by_hand() -> None:
    work = OP.work({"B": 2, "V": 1000, "K": 3})
    assert work.bytes == 2 * 1000 * 4 + 2 * 4 + 2 * 4  # logits and uniforms in, fp32; tokens out, int32
    assert work.flops == 2 * 1000 + 2 * 3 * 4  # one comparison a logit; subtract, scale, exp, add for each of k
    assert work.math == "fp32"


def test_reference_equals_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((40, 9)).astype(np.float32)
    uniform = rng.random(40).astype(np.float32)
    tokens = OP.reference(logits, uniform, 4, 1.25)
    assert tokens.dtype == np.float64
    assert tokens.tolist() == [plain([float(x) for x in row], float(u), 4, 1.25) for row, u in zip(logits, uniform, strict=True)]


@pytest.mark.parametrize(("u", "token"), [(0.0, 1), (0.24, 1), (0.26, 2), (0.51, 4), (0.76, 5), (0.99, 5)])
def test_all_logits_equal_to_the_kth_are_kept(u: float, token: int) -> None:
    assert draw([0.0, 2.0, 2.0, -1.0, 2.0, 2.0], u, k=2) == token


def test_k_of_one_is_the_maximum() -> None:
    assert [draw([0.5, 3.0, 2.9, -4.0], u, k=1) for u in (0.0, 0.5, 0.999)] == [1, 1, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"row": [5.0, 1.0, 1.5, 0.0]},
        {"u": 0.9},
        {"k": 1},
        {"inv_temperature": 8.0},
    ],
    ids=["logits", "uniform", "k", "inv_temperature"],
)
def test_token_depends_on_every_input(change: dict[str, object]) -> None:
    given: dict[str, object] = {"row": [1.0, 1.2, 1.5, 0.0], "u": 0.4, "k": 3, "inv_temperature": 1.0}
    assert draw(**given) != draw(**given | change)  # type: ignore[arg-type]


def test_weights_do_not_overflow() -> None:
    assert draw([3e38, 1.0, 3e38], 0.6, k=2) == 2
