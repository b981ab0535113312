"""flash_decode: counted work, reference against plain loops, paging and lengths."""

import math

import numpy as np
import pytest

from generator.kernels.flash_decode import harness
from generator.ops.flash_decode import OP, reference


def _inputs(seed: int, heads: int = 2, kv_heads: int = 2):
    """Two sequences of 5 and 3 tokens in pages of 2, one page unused."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((2, heads, 4)).astype(np.float16)
    k, v = (rng.standard_normal((7, 2, kv_heads, 4)).astype(np.float16) for _ in range(2))
    table = np.array([[3, 0, 5], [6, 1, 2]], dtype=np.int32)
    return q, k, v, table, np.array([5, 3], dtype=np.int32)


def test_bytes_and_flops_of_a_small_shape():
    work = OP.work({"B": 2, "H": 4, "D": 64, "T": 100, "P": 16})
    assert work.bytes == (
        2 * 4 * 100 * 64 * 2 * 2  # K and V of 100 tokens for 2 x 4 heads, fp16
        + 2 * 4 * 64 * 2 * 2  # q and out, fp16
        + 2 * 7 * 4  # 100 tokens lie in 7 pages of 16, an int32 each, for 2 sequences
    )
    assert work.flops == 2 * 4 * 100 * 64 * 4  # a multiply and an add for q.K, and again for p.V


def test_reference_is_the_formula_written_out():
    q, k, v, table, lengths = _inputs(1)
    got = reference(q, k, v, table, lengths, 0.5)
    for b in range(2):
        for h in range(2):
            at = [(table[b, t // 2], t % 2) for t in range(lengths[b])]
            score = [0.5 * sum(float(q[b, h, d]) * float(k[page, slot, h, d]) for d in range(4)) for page, slot in at]
            weight = [math.exp(s) for s in score]
            for d in range(4):
                want = sum(w * float(v[page, slot, h, d]) for w, (page, slot) in zip(weight, at, strict=True)) / sum(weight)
                assert got[b, h, d] == pytest.approx(want, rel=1e-12)


def test_query_heads_of_a_group_share_a_kv_head():
    q, k, v, table, lengths = _inputs(2, heads=4, kv_heads=2)
    got = reference(q, k, v, table, lengths, 0.5)
    for h in range(4):
        alone = reference(q[:, [h]], k[:, :, [h // 2]], v[:, :, [h // 2]], table, lengths, 0.5)
        assert np.array_equal(got[:, [h]], alone)


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_every_output_depends_on_its_own_inputs_only(which: str):
    inputs = dict(zip(("q", "k", "v", "table", "lengths"), _inputs(3), strict=True))
    before = reference(**inputs, scale=0.5)
    at = (1, 1) if which == "q" else (1, 0, 1)  # sequence 1, head 1; page 1 holds tokens 2 and 3 of sequence 1
    inputs[which][at] += np.float16(1)
    moved = (reference(**inputs, scale=0.5) != before).all(axis=2)
    assert moved.tolist() == [[False, False], [False, True]]


def test_tokens_past_the_length_do_not_count():
    q, k, v, table, lengths = _inputs(4)
    before = reference(q, k, v, table, lengths, 0.5)
    k[1, 1], v[5, 1] = 100, 100  # token 3 of sequence 1 (length 3), token 5 of sequence 0 (length 5)
    assert np.array_equal(reference(q, k, v, table, lengths, 0.5), before)


def test_table_and_lengths_matter():
    q, k, v, table, lengths = _inputs(5)
    before = reference(q, k, v, table, lengths, 0.5)
    assert (reference(q, k, v, table, lengths - 1, 0.5) != before).all()
    assert (reference(q, k, v, (table + 1) % 7, lengths, 0.5) != before).all()
    assert (reference(q, k, v, table, lengths, 0.25) != before).all()


def test_late_maximum_in_the_adversarial_case():
    """The greatest score of the long sequence lies in its last quarter, so every running maximum moves."""
    case = next(c for c in harness.cases(np.random.default_rng(0)) if c.name == "adversarial")
    q, k, table = (case.buffers[n].astype(np.float64) for n in ("q", "k", "table"))
    length = int(case.buffers["lengths"][0])
    keys = k[table[0].astype(int)].reshape(-1, *k.shape[2:])[:length]
    assert (np.einsum("thd,hd->ht", keys, q[0]).argmax(axis=1) > length // 2).all()


def test_splitting_pays_only_while_blocks_are_few():
    """One block per head leaves most multiprocessors idle at B = 1; the cost of partial results grows with the splits."""
    variant = OP.variant("split_kv")
    demand = variant.demand(OP.shapes[0], variant.columns())
    splits = variant.columns()["splits"]
    assert (np.asarray(demand.blocks) == 8 * 32 * splits).all()
    assert (np.asarray(demand.reread_bytes)[splits == 32] > np.asarray(demand.reread_bytes)[splits == 4].max()).all()


def test_a_cluster_merges_on_the_chip_what_splits_send_through_memory():
    """The same slices: one kernel instead of two, no partial results, but barriers of the cluster in every block's turn."""
    points = {"warps": np.array([4, 4]), "block_n": np.array([32, 32]), "stages": np.array([2, 2])}
    shape, count = OP.shapes[1], np.array([2, 4])
    split = OP.variant("cp_async").demand(shape, {**points, "splits": count})
    merged = OP.variant("cluster").demand(shape, {**points, "cluster": count})
    assert np.array_equal(np.asarray(split.blocks), np.asarray(merged.blocks))
    assert (split.launches, merged.launches) == (2, 1)
    partials = 32 * 8 * count * (128 + 2) * 4  # sums of a head, maximum and total, fp32, for each slice
    assert np.array_equal(np.asarray(split.reread_bytes) - np.asarray(merged.reread_bytes), 2 * partials)
    assert (np.asarray(merged.turn_ns) > 600).all()
    assert split.turn_ns == 0


def test_tma_keeps_more_of_the_same_ring_in_flight():
    """A stage is refilled as soon as it is free; cp_async refills one only when the next is wanted."""
    point = {"warps": np.array([4]), "block_n": np.array([32]), "stages": np.array([3]), "splits": np.array([2])}
    ring, tma = (OP.variant(name).demand(OP.shapes[1], point) for name in ("cp_async", "tma"))
    assert np.asarray(ring.inflight_per_block) < np.asarray(tma.inflight_per_block) < 3 * 32 * 128 * 4  # three stages of K and V
    assert np.asarray(tma.alu_ops) < np.asarray(ring.alu_ops)
    assert np.asarray(tma.threads) == np.asarray(ring.threads) + 32  # the producer's warp
