"""swa_decode: counted work, reference against plain loops, and where the window begins and ends."""

import math

import numpy as np
import pytest

from generator.ops.flash_decode import reference as full
from generator.ops.swa_decode import OP, reference


def _inputs(seed: int):
    """Two sequences of 5 and 3 tokens in pages of 2, four query heads on two KV heads."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((2, 4, 4)).astype(np.float16)
    k, v = (rng.standard_normal((7, 2, 2, 4)).astype(np.float16) for _ in range(2))
    table = np.array([[3, 0, 5], [6, 1, 2]], dtype=np.int32)
    return q, k, v, table, np.array([5, 3], dtype=np.int32)


def test_bytes_and_flops_of_a_small_shape():
    work = OP.work({"B": 2, "H": 8, "KV": 2, "D": 64, "T": 1000, "W": 100, "P": 16})
    assert work.bytes == (
        2 * 2 * 100 * 64 * 2 * 2  # K and V of the 100 tokens of the window for 2 x 2 KV heads, fp16
        + 2 * 8 * 64 * 2 * 2  # q and out of 2 x 8 heads, fp16
        + 2 * 7 * 4  # 100 tokens lie in 7 pages of 16 at least, an int32 each, for 2 sequences
    )
    assert work.flops == 2 * 8 * 100 * 64 * 4  # a multiply and an add for q.K, and again for p.V


def test_a_window_longer_than_the_sequence_counts_the_sequence():
    shape = {"B": 1, "H": 2, "KV": 1, "D": 64, "T": 32, "W": 4096, "P": 16}
    assert OP.work(shape) == OP.work(shape | {"W": 32})


def test_reference_is_the_formula_written_out():
    q, k, v, table, lengths = _inputs(1)
    got = reference(q, k, v, table, lengths, 2, 0.5)
    for b in range(2):
        for h in range(4):
            at = [(table[b, t // 2], t % 2) for t in (lengths[b] - 2, lengths[b] - 1)]
            weight = [math.exp(0.5 * sum(float(q[b, h, d]) * float(k[page, slot, h // 2, d]) for d in range(4))) for page, slot in at]
            for d in range(4):
                want = sum(w * float(v[page, slot, h // 2, d]) for w, (page, slot) in zip(weight, at, strict=True)) / sum(weight)
                assert got[b, h, d] == pytest.approx(want, rel=1e-12)


def test_the_window_is_the_last_w_tokens_and_no_more():
    q, k, v, table, lengths = _inputs(2)
    before = reference(q, k, v, table, lengths, 3, 0.5)
    k[0, 0] += np.float16(1)  # token 2 of sequence 0, the oldest of its window
    moved = reference(q, k, v, table, lengths, 3, 0.5)
    assert (moved != before).all(axis=(1, 2)).tolist() == [True, False]
    k[3, 1] += np.float16(1)  # token 1 of sequence 0, just before it
    assert np.array_equal(reference(q, k, v, table, lengths, 3, 0.5), moved)


def test_a_window_of_everything_is_full_attention():
    inputs = _inputs(3)
    assert np.array_equal(reference(*inputs, 5, 0.5), full(*inputs, 0.5))


@pytest.mark.parametrize("which", ["q", "k", "v", "table", "lengths"])
def test_every_output_depends_on_each_input(which: str):
    inputs = dict(zip(("q", "k", "v", "table", "lengths"), _inputs(4), strict=True))
    before = reference(**inputs, window=2, scale=0.5)
    inputs[which] = (inputs[which] + 1) % 7 if which == "table" else inputs[which] * -1 if which != "lengths" else inputs[which] - 1
    assert (reference(**inputs, window=2, scale=0.5) != before).all()


@pytest.mark.parametrize("shape", [*OP.shapes, OP.heldout], ids=str)
def test_masking_reads_what_skipping_does_not(shape: dict[str, int]):
    """The baseline reads K of the whole sequence; the others read the window, and what they read again comes from L2."""
    mask, skip = (OP.variant(n) for n in ("mask_only", "block_skip"))
    extra = shape["B"] * shape["KV"] * (shape["T"] - shape["W"]) * shape["D"] * 2  # K before the window, fp16
    assert np.all(mask.demand(shape, mask.columns()).dram_bytes == OP.work(shape).bytes + extra)
    assert np.all(skip.demand(shape, skip.columns()).dram_bytes == OP.work(shape).bytes)


def test_heads_that_do_not_divide_the_group_cost_what_they_waste():
    variant = OP.variant("block_skip")
    columns = {"warps": np.array([4, 4]), "tokens": np.array([1, 1]), "heads": np.array([2, 4])}
    shape = OP.shapes[2]  # two query heads a group
    two, four = np.asarray(variant.demand(shape, columns).flops).tolist()
    assert four == 2 * two


def test_a_ring_holds_whole_pages_and_keeps_all_but_one_in_flight():
    variant, shape = OP.variant("ring_pages"), OP.shapes[1]
    columns = {"warps": np.array([4, 4]), "stages": np.array([3, 5]), "heads": np.array([2, 2])}
    demand = variant.demand(shape, columns)
    page = 16 * 128 * 2 * 2  # 16 tokens of K and V, 128 halves each
    three, five = np.asarray(demand.smem_per_block).tolist()
    assert five - three == 2 * page
    two, four = np.asarray(demand.inflight_per_block).tolist()
    assert four == pytest.approx(2 * two)
    assert two == pytest.approx(2 * page, rel=0.03)  # less what is not under way at the block's ends
