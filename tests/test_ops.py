"""What holds for every op of the registry; each op's own numbers are in test_op_<name>.py."""

import numpy as np
import pytest

from generator import kernels
from generator.gpus import GPUS
from generator.ops import OPS
from generator.ops.base import Op, ceil_div, grid, shapes
from schema import vocab

by_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)

SHAPES = {
    "flash_decode": ("B H D T P", "8,32,128,4096,16 32,8,128,8192,16 128,32,64,2048,32", "16,40,128,4096,16"),
    "triton_flash_decode": ("B H KV D T P", "8,32,8,128,4096,16 32,64,8,128,8192,16 128,32,8,64,2048,32", "16,28,4,128,8192,16"),
    "swa_decode": (
        "B H KV D T W P",
        "64,64,8,64,8192,128,16 32,32,8,128,8192,4096,16 16,32,16,128,16384,1024,16",
        "32,8,4,256,8192,1024,16",
    ),
    "gemm_fp16": ("M N K", "4096,6144,4096 64,28672,4096 2048,8192,28672", "256,18944,3584"),
    "int8_gemm": ("M N K", "256,12288,4096 2048,5120,13824 16,18944,3584", "1024,4096,11008"),
    "fp8_gemm": ("M N K", "4096,7168,16384 64,24576,1536 128,4096,7168", "4096,2112,7168"),
    "int4_gemv": ("M N K G", "1,4096,14336,128 1,8192,8192,128 8,28672,8192,128", "4,18944,3584,128"),
    "rmsnorm": ("M N", "4096,4096 16384,8192 64,7168", "2048,5120"),
    "triton_rmsnorm": ("M N", "8192,4096 4096,5376 256,8192", "1024,3584"),
    "rope": ("M H KV D", "4096,32,8,128 8192,64,8,128 128,64,8,64", "2048,28,4,128"),
    "swiglu_act": ("M N", "4096,14336 2048,28672 16384,11008", "1024,18944"),
    "topk_sample": ("B V K", "64,128256,50 16,151936,20 128,201088,40", "32,262144,64"),
    "nucleus_sample": ("B V", "64,128256 16,151936 128,201088", "32,262144"),
    "mamba_scan": ("B L D N", "8,2048,5120,16 4,4096,4096,16 32,1024,3072,16", "2,8192,8192,16"),
    "moe_scatter": ("M K E N", "4096,2,8,4096 512,8,256,7168 2048,8,128,2048", "1024,4,32,2880"),
    "kv_append": ("M KV D P", "64,8,128,16 4096,8,128,16 2048,8,64,32", "512,4,128,16"),
    "fused_qkv_rope": ("M K H KV D", "64,4096,32,8,128 2048,4096,32,8,128 256,5120,64,8,128", "32,8192,64,8,128"),
}


def test_registry_is_the_vocabulary():
    assert tuple(op.name for op in OPS) == vocab.OPS
    assert sum(op.impl == "cuda" for op in OPS) == 14
    assert {op.name for op in OPS if op.impl == "triton"} == {"swiglu_act", "triton_flash_decode", "triton_rmsnorm"}


@by_op
def test_shapes_are_those_of_the_design(op: Op):
    axes, release, heldout = SHAPES[op.name]
    assert op.axes == tuple(axes.split())
    assert [tuple(s.values()) for s in op.shapes] == [tuple(map(int, text.split(","))) for text in release.split()]
    assert tuple(op.heldout.values()) == tuple(map(int, heldout.split(",")))
    assert all(tuple(s) == op.axes for s in (*op.shapes, op.heldout))
    assert set(op.axes) <= set(vocab.AXES)


@by_op
def test_words_are_closed(op: Op):
    assert op.dtype in vocab.DTYPES
    assert op.impl in vocab.IMPLS
    for variant in op.variants:
        assert variant.needs <= set(vocab.FEATURES)
        for point in (*variant.points, *(bad.params for bad in variant.illegal)):
            assert set(point) == set(variant.start) <= set(vocab.TUNABLES)


@by_op
def test_ladder_has_a_baseline_and_an_engineers_step_everywhere(op: Op):
    ungated = [v for v in op.variants if not v.needs]
    assert op.baseline is ungated[0]
    assert len(ungated) >= 2
    assert op.baseline.parent is None
    names = [v.name for v in op.variants]
    assert len(set(names)) == len(names)
    assert all(v.parent in names for v in op.variants[1:])
    if op.name in {"gemm_fp16", "int8_gemm", "fp8_gemm"}:
        assert any("wgmma" in v.needs for v in op.variants)


@by_op
def test_points_bugs_and_illegal_points(op: Op):
    for variant in op.variants:
        distinct = {tuple(sorted(p.items())) for p in variant.points}
        assert 4 <= len(variant.points) <= 16, variant.name
        assert len(distinct) == len(variant.points)
        assert variant.start in variant.points
        assert variant.illegal
        assert variant.bugs or variant.flaw
        assert not {tuple(sorted(bad.params.items())) for bad in variant.illegal} & distinct
        assert len(variant.idea.split()) <= 10, variant.idea


@by_op
def test_work_counts_are_positive_whole_numbers(op: Op):
    for shape in (*op.shapes, op.heldout):
        work = op.work(shape)
        assert isinstance(work.bytes, int)
        assert isinstance(work.flops, int)
        assert work.bytes > 0


@by_op
def test_sources_are_there_and_no_others(op: Op):
    for variant in op.variants:
        assert kernels.template(op.name, variant.name, op.impl)
    files = {f.name for f in kernels.folder(op.name).iterdir() if f.name.endswith((".cu", ".py"))}
    assert files == {v.name + kernels.SUFFIX[op.impl] for v in op.variants} | {"harness.py"}


@by_op
def test_demand_is_arrays_over_points(op: Op):
    for variant in op.variants:
        for shape in (*op.shapes, op.heldout):
            demand = variant.demand(shape, variant.columns())
            for name in demand.__slots__:
                value = getattr(demand, name)
                if name != "unit":
                    assert np.isfinite(np.asarray(value, dtype=np.float64)).all(), name
                    assert np.shape(value) in {(), (len(variant.points),)}, name
                    assert (np.asarray(value) >= 0).all(), name
            assert (np.asarray(demand.dram_bytes) >= 0.99 * op.work(shape).bytes).all(), "moves less than the compulsory bytes"


def test_variant_lookup_says_what_there_is():
    with pytest.raises(KeyError, match="scalar"):
        next(op for op in OPS if op.name == "rmsnorm").variant("nope")


def test_helpers():
    assert shapes(("A", "B"), (1, 2), (3, 4)) == ({"A": 1, "B": 2}, {"A": 3, "B": 4})
    assert grid(lambda p: p["vec"] > p["rows"], vec=(1, 2), rows=(1,)) == ({"vec": 2, "rows": 1},)
    assert ceil_div(7, np.array([2, 7, 8])).tolist() == [4, 1, 1]
    assert len({gpu.arch for gpu in GPUS}) == 4
