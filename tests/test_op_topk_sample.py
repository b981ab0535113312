"""topk_sample: work and counts of the ladder by hand, and the reference against a plain loop, with ties and at the ends of the draw."""

import math

import numpy as np
import pytest

from generator.ops.topk_sample import OP
from generator.ops.topk_sample_demand import entered, log2, network


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


def test_log2_is_linear_between_powers_of_two() -> None:
    assert log2(np.array([1, 2, 3, 4, 512, 2**30])).tolist() == [0, 1, 1.5, 2, 9, 30]


@pytest.mark.parametrize(("threads", "items"), [(256, 8), (256, 32), (512, 4), (1024, 2)])
def test_stages_of_the_network(threads: int, items: int) -> None:
    """The loops of sort.cu."""
    stages = inside = across = 0
    size = 2
    while size <= threads * items:
        stride = size // 2
        while stride > 0:
            stages, inside, across = stages + 1, inside + (stride < items), across + (stride >= 32 * items)
            stride //= 2
        size *= 2
    assert network(threads, items) == (stages, inside, across)


@pytest.mark.parametrize("k", [20, 50, 64])
@pytest.mark.parametrize("run", [1000, 4000, 16000])
def test_logits_that_enter_a_queue(run: int, k: int) -> None:
    """A warp of block_heaps on random runs: the bound moves when 64 have queued, looked at every 128 logits."""
    rng, count, tries = np.random.default_rng(0), 0, 30
    for _ in range(tries):
        row, best, queue, bound = rng.standard_normal(run), np.full(64, -np.inf), np.empty(0), -np.inf
        for at in range(0, run, 128):
            batch = row[at : at + 128]
            queue = np.concatenate((queue, batch[batch > bound]))
            count += int((batch > bound).sum())
            while queue.size >= 64:
                best, queue = np.sort(np.concatenate((best, queue[-64:])))[:-65:-1], queue[:-64]
                bound = best[k - 1]
    assert float(entered(run, k)) == pytest.approx(count / tries, rel=0.08)
