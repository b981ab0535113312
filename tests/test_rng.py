import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator.rng import Dice, stream_key

KEY = stream_key("kernelswarm", 0, "train", "play")


def draws(key: int, index: int, count: int) -> list[float]:
    dice = Dice(key, index)
    return [dice.uniform() for _ in range(count)]


def test_first_values_are_frozen():
    assert draws(stream_key("kernelswarm", 0, "train", "plan"), 0, 4) == [
        0.8271685423435102,
        0.871172699039309,
        0.39717818608423006,
        0.29700100419001296,
    ]


def test_a_stream_is_philox_at_its_counter():
    words = np.random.Philox(key=KEY, counter=7 << 64).random_raw(300)
    assert draws(KEY, 7, 300) == ((words >> np.uint64(11)) * 2.0**-53).tolist()


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_episodes_share_no_draw(a: int, b: int):
    if a != b:
        assert not set(draws(KEY, a, 200)) & set(draws(KEY, b, 200))


def test_streams_seeds_and_splits_share_no_draw():
    keys = [stream_key("kernelswarm", s, split, n) for s in (0, 1, 2) for split in ("train", "validation") for n in ("plan", "play")]
    sets = [set(draws(key, i, 100)) for key in keys for i in (0, 1)]
    assert all(not a & b for a, b in itertools.combinations(sets, 2))


def test_neighbouring_seeds_do_not_shift():
    """Seed 42 row i+1 is not seed 43 row i."""
    rows = {s: [tuple(draws(stream_key("kernelswarm", s, "train", "play"), i, 3)) for i in range(50)] for s in (42, 43)}
    assert not set(rows[42]) & set(rows[43])


@given(st.integers(1, 60), st.integers(0, 1000))
def test_sample_and_shuffle_keep_the_items(n: int, index: int):
    dice = Dice(KEY, index)
    assert sorted(dice.shuffled(range(n))) == list(range(n))
    picked = dice.sample(range(n), 5)
    assert len(set(picked)) == len(picked) == min(5, n)
    assert all(0 <= dice.below(n) < n for _ in range(20))


def test_normal_has_mean_zero_and_variance_one():
    dice = Dice(KEY)
    values = np.array([dice.normal() for _ in range(20_000)])
    assert abs(values.mean()) < 0.03
    assert abs(values.std() - 1) < 0.02
    assert abs(values).max() <= 3.4642


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_chance(p: float):
    dice = Dice(KEY, 3)
    assert np.mean([dice.chance(p) for _ in range(5000)]) == pytest.approx(p, abs=0.02)
