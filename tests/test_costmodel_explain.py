import numpy as np
import pytest

from generator import costmodel, explain, facts
from generator.errors import InputError
from generator.gpus import GPUS
from generator.ops import OPS
from generator.ops.base import Op
from generator.task import Task

TASK = explain.task_of("gemm_fp16_h100_M=4096,N=6144,K=4096")


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_variant_is_explained_and_its_terms_add_up(op: Op):
    for gpu in GPUS:
        task = Task(op=op, gpu=gpu, shape=op.shapes[0])
        for variant in op.variants:
            if not variant.needs <= gpu.features:
                continue
            told = explain.explain(task, variant.name, variant.start)
            demand = facts.demand(op, variant, task.shape, gpu.arch, variant.points)
            priced = costmodel.price(gpu, demand, op.work(task.shape)).ms
            ms = float(np.broadcast_to(priced, (len(variant.points),))[variant.points.index(variant.start)])
            assert told.ms == ms
            if np.isfinite(ms):
                assert sum(told.terms.values()) == pytest.approx(max(ms, 0) * 1e3, rel=1e-5) or ms == pytest.approx(told.floor_ms)
                assert told.bound in told.resources
                assert told.resources[told.bound] == max(told.resources.values())
            assert told.ms >= told.floor_ms


def test_text_names_terms_bound_and_floor():
    text = explain.text(explain.explain(TASK, "wgmma_tma", explain.params_of("block_n=256, stages=4")))
    for word in ("occupancy", "DRAM", "longest resource", "bound by", "floor", "time / floor"):
        assert word in text


def test_a_launch_failure_is_told():
    task = explain.task_of("gemm_fp16_a10_M=4096,N=6144,K=4096")
    variant = task.op.variant("mma_cp_async")
    big = next(p for p in variant.points if p["block_m"] * p["block_n"] == 32768 and p["block_k"] == 64)
    told = explain.explain(task, variant.name, big)
    assert "cannot be launched" in explain.text(told)


@pytest.mark.parametrize("task_id", ["", "x", "rmsnorm_h100", "rmsnorm_h100_M=1,N=1", "rmsnorm_h999_M=4096,N=4096"])
def test_unknown_tasks(task_id: str):
    with pytest.raises(InputError):
        explain.task_of(task_id)


@pytest.mark.parametrize("words", ["a=b", "=1", "threads", "threads=-1"])
def test_bad_params(words: str):
    with pytest.raises(InputError, match="bad params"):
        explain.params_of(words)


def test_unknown_variant_param_point_and_missing_feature():
    with pytest.raises(InputError, match="unknown variant"):
        explain.explain(TASK, "nope", {})
    with pytest.raises(InputError, match="unknown param"):
        explain.explain(TASK, "wgmma_tma", {"vec": 1})
    with pytest.raises(InputError, match="no point"):
        explain.explain(TASK, "wgmma_tma", {"stages": 5})
    with pytest.raises(InputError, match="do not compile"):
        explain.explain(TASK, "wgmma_tma", {"consumers": 3, "block_n": 128, "stages": 4, "swizzle": 8})
    with pytest.raises(InputError, match="lacks"):
        explain.explain(explain.task_of("gemm_fp16_a100_M=4096,N=6144,K=4096"), "wgmma_tma", {})
