"""kv_append: counted work, reference against plain loops, padding and what a slot means."""

import numpy as np
import numpy.typing as npt
import pytest

from generator import costmodel
from generator.gpus import GPUS
from generator.ops.kv_append import OP, reference

M, KV, D, P, PAGES = 5, 2, 3, 4, 3
NAMES = ("k", "v", "slots", "k_cache", "v_cache")


def inputs() -> dict[str, npt.NDArray[np.generic]]:
    rng = np.random.default_rng(1)
    new = {name: rng.standard_normal((M, KV, D)).astype(np.float16) for name in ("k", "v")}
    caches = {name: rng.standard_normal((PAGES, P, KV, D)).astype(np.float16) for name in ("k_cache", "v_cache")}
    return {**new, **caches, "slots": np.array([11, -1, 0, 6, 4], dtype=np.int64)}


def append(values: dict[str, npt.NDArray[np.generic]]) -> npt.NDArray[np.float64]:
    return reference(**{name: values[name] for name in NAMES})  # type: ignore[arg-type]


def test_bytes_and_flops_of_a_small_shape() -> None:
    work = OP.work({"M": 64, "KV": 8, "D": 128, "P": 16})
    assert work.bytes == 64 * 8 * 128 * 2 * 4 + 64 * 8  # k and v read, both written, fp16; one int64 slot a token
    assert work.flops == 0  # a copy


def test_reference_is_the_loop_written_out() -> None:
    v = inputs()
    want = [v["k_cache"].astype(np.float64), v["v_cache"].astype(np.float64)]
    for m, slot in enumerate(v["slots"].tolist()):
        if slot >= 0:
            for h in range(KV):
                for d in range(D):
                    want[0][slot // P, slot % P, h, d] = v["k"][m, h, d]
                    want[1][slot // P, slot % P, h, d] = v["v"][m, h, d]
    assert np.array_equal(append(v), np.stack(want))


@pytest.mark.parametrize(("name", "cache"), [("k", 0), ("v", 1)])
def test_a_cache_depends_on_its_own_input_alone(name: str, cache: int) -> None:
    v = inputs()
    changed = append({**v, name: v[name] + np.float16(1)}) != append(v)
    rows = changed.reshape(2, PAGES * P, KV, D)
    written = v["slots"][v["slots"] >= 0]
    assert rows[cache, written].all()
    assert changed.sum() == len(written) * KV * D


@pytest.mark.parametrize(("name", "cache"), [("k_cache", 0), ("v_cache", 1)])
def test_what_is_not_written_stays(name: str, cache: int) -> None:
    v = inputs()
    changed = append({**v, name: v[name] + np.float16(1)}) != append(v)
    kept = np.setdiff1d(np.arange(PAGES * P), v["slots"])
    assert changed[cache].reshape(PAGES * P, KV, D)[kept].all()
    assert changed.sum() == len(kept) * KV * D


def test_a_moved_slot_moves_its_token() -> None:
    v = inputs()
    slots = v["slots"].copy()
    slots[0] = 10
    moved = append({**v, "slots": slots})
    assert np.array_equal(moved[:, 2, 2], np.stack([v["k"][0], v["v"][0]]))
    assert np.array_equal(moved[:, 2, 3], np.stack([v["k_cache"][2, 3], v["v_cache"][2, 3]]))


def test_padding_alone_changes_nothing() -> None:
    v = inputs()
    got = append({**v, "slots": np.full(M, -1, dtype=np.int64)})
    assert np.array_equal(got, np.stack([v["k_cache"], v["v_cache"]]))


def test_slots_ahead_pay_with_many_tokens_and_not_at_decode() -> None:
    """A warp that owns several tokens leaves multiprocessors idle when there are only 64."""
    for shape, winner in ((OP.shapes[0], "vec32"), (OP.shapes[1], "table_prefetch")):
        for gpu in GPUS:
            times = {v.name: costmodel.price(gpu, v.demand(shape, v.columns()), OP.work(shape)).ms.min() for v in OP.variants}
            assert min(times, key=lambda name: times[name]) == winner, gpu.name
