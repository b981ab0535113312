"""triton_flash_decode: counted work, grouped heads, and what ahead-of-time compilation is told."""

import inspect
import re

import numpy as np
import pytest

from generator import kernels
from generator.kernels.triton_flash_decode import harness
from generator.ops.flash_decode import reference
from generator.ops.triton_flash_decode import OP, ROWS

VARIANTS = pytest.mark.parametrize("variant", OP.variants, ids=lambda v: v.name)


def test_bytes_and_flops_of_a_small_shape():
    work = OP.work({"B": 2, "H": 8, "KV": 2, "D": 64, "T": 100, "P": 16})
    assert work.bytes == (
        2 * 2 * 100 * 64 * 2 * 2  # K and V of 100 tokens for 2 x 2 KV heads, fp16
        + 2 * 8 * 64 * 2 * 2  # q and out of 2 x 8 heads, fp16
        + 2 * 7 * 4  # 100 tokens lie in 7 pages of 16, an int32 each, for 2 sequences
    )
    assert work.flops == 2 * 8 * 100 * 64 * 4  # a multiply and an add for q.K, and again for p.V, for every query head


def test_reference_repeats_kv_heads_over_their_group():
    """Grouped attention is full attention on K and V repeated head by head."""
    case = harness.cases(np.random.default_rng(0))[0]
    q, k, v, table, lengths = (case.buffers[n] for n in ("q", "k", "v", "table", "lengths"))
    group = q.shape[1] // k.shape[2]
    scale = float(case.scalars["scale"])
    repeated = reference(q, np.repeat(k, group, axis=2), np.repeat(v, group, axis=2), table, lengths, scale)
    assert np.array_equal(reference(q, k, v, table, lengths, scale), repeated)


def test_a_kv_head_moves_its_group_and_no_other():
    case = harness.cases(np.random.default_rng(1))[0]
    q, k, v, table, lengths = (case.buffers[n].copy() for n in ("q", "k", "v", "table", "lengths"))
    scale = float(case.scalars["scale"])
    before = reference(q, k, v, table, lengths, scale)
    for cache in (k, v):
        kept = cache.copy()
        cache[:, :, 1] *= -1
        assert (reference(q, k, v, table, lengths, scale) != before).all(axis=(0, 2)).tolist() == [False] * 7 + [True] * 7
        cache[:] = kept
    q[1, 3] += np.float16(1)
    assert np.argwhere((reference(q, k, v, table, lengths, scale) != before).all(axis=2)).tolist() == [[1, 3]]


@pytest.mark.parametrize("shape", [*OP.shapes, OP.heldout], ids=str)
def test_a_group_fits_the_rows_of_a_tile(shape: dict[str, int]):
    assert shape["H"] % shape["KV"] == 0
    assert shape["H"] // shape["KV"] <= ROWS
    assert all(p["block_h"] >= ROWS for p in OP.variant("grouped").points)


@VARIANTS
def test_launch_takes_what_the_cases_hold(variant):
    """The buffers and scalars of a case are the arguments of the source's `launch`."""
    text = kernels.template(OP.name, variant.name, OP.impl)
    arguments = re.search(r"^def launch\((.*?)\):", text, re.MULTILINE)[1].split(", ")
    for case in harness.cases(np.random.default_rng(2)):
        assert [*case.buffers, *case.scalars] == arguments


@VARIANTS
def test_entries_name_the_kernels_and_their_arguments_in_order(variant):
    text = kernels.template(OP.name, variant.name, OP.impl)
    for shape in (*OP.shapes, OP.heldout):
        entries = harness.entries(variant.name, variant.start, shape)
        assert len(entries) == text.count("@triton.jit")
        for entry in entries:
            found = re.search(rf"^def {entry.kernel}\((.*?)\):", text, re.MULTILINE | re.DOTALL)[1]
            names = [re.sub(r":.*", "", a).strip() for a in found.split(",") if a.strip()]
            assert names == list(entry.signature)
            assert {n for n, kind in entry.signature.items() if kind == "constexpr"} == set(entry.constants)
            assert entry.warps == variant.start["warps"]


def test_reading_a_kv_head_once_is_what_grouping_saves():
    per_head, grouped = (OP.variant(n) for n in ("per_head", "grouped"))
    for shape in OP.shapes:
        kv_bytes = shape["B"] * shape["KV"] * shape["T"] * shape["D"] * 4
        again = per_head.demand(shape, per_head.columns()).reread_bytes
        assert again == (shape["H"] // shape["KV"] - 1) * kv_bytes
        assert np.max(grouped.demand(shape, grouped.columns()).reread_bytes) < 0.05 * kv_bytes


def test_harness_signature_is_the_projects():
    assert list(inspect.signature(harness.entries).parameters) == ["variant", "params", "shape"]
