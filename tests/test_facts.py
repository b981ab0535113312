"""The committed evidence is of the sources that are offered, all of them and no others, and says what the landscape claims."""

import numpy as np
import pytest

from generator import facts, kernels, sources
from generator.errors import DataError
from generator.gpus import GPUS
from generator.ops import OPS
from generator.ops.base import Op

by_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
ARCHS = sorted({gpu.arch for gpu in GPUS})


def render(op: Op, variant, params, shape, bug=None) -> str:
    return sources.render(kernels.template(op.name, variant.name, op.impl), op.constants(shape), params, bug)


def claimed(variant) -> set[str]:
    return {gpu.arch for gpu in GPUS if variant.needs <= gpu.features}


def everything(op: Op):
    """Every text without a bug that a campaign could submit: variant, params, shape, and the rule it breaks."""
    for variant in op.variants:
        for shape in (*op.shapes, op.heldout):
            yield from ((variant, params, shape, "") for params in variant.points)
            yield from ((variant, bad.params, shape, bad.rule) for bad in variant.illegal)


@by_op
def test_every_text_has_its_record_and_every_record_a_text(op: Op):
    texts = {facts.digest(render(op, variant, params, shape)) for variant, params, shape, _ in everything(op)}
    for variant in op.variants:
        for shape in (*op.shapes, op.heldout):
            texts |= {facts.digest(render(op, variant, params, shape, bug)) for params in variant.points for bug in variant.bugs}
    records = facts.table(op.name).sources
    honest = {digest for digest, record in records.items() if "bug=" not in record.of}
    assert honest <= texts
    assert set(records) <= texts
    assert {facts.digest(render(op, v, params, shape)) for v, params, shape, _ in everything(op)} == honest


@by_op
def test_what_is_claimed_compiles_and_what_is_not_is_refused(op: Op):
    records = facts.table(op.name).sources
    for variant, params, shape, rule in everything(op):
        record = records[facts.digest(render(op, variant, params, shape))]
        if rule:
            assert all(rule in said for said in record.archs.values())
            continue
        assert set(record.archs) == (set(ARCHS) if params in variant.offered_to_all else claimed(variant))
        for arch, found in record.archs.items():
            assert isinstance(found, dict) == (arch in claimed(variant)), (record.of, arch)
            assert facts.diagnostic(op, variant, params, shape, arch) == (found if isinstance(found, str) else "")


@by_op
def test_honest_points_are_right_and_every_bug_is_caught_at_the_start(op: Op):
    for variant in op.variants:
        for params in variant.points:
            found = facts.check(op, variant, params)
            assert found.error is not None
            assert (found.kind == facts.OK) == (found.error <= op.tolerance) == (variant.flaw is None)
        assert facts.caught(op, variant, variant.start) == variant.bugs
    runs = [record.check.kind for of, record in facts.table(op.name).points.items() if "bug=" in of]
    assert sum(kind != facts.OK for kind in runs) > 0.8 * len(runs), "bugs that hardly ever show"


@by_op
def test_an_op_has_bugs_and_compile_errors_of_each_kind(op: Op):
    assert sum(len(variant.bugs) for variant in op.variants) >= 4
    errors = {said for record in facts.table(op.name).sources.values() for said in record.archs.values() if isinstance(said, str)}
    assert len(errors) >= 2
    assert not any("/" in said.split(":")[0] or "tmpxft" in said for said in errors), "a path of the machine that compiled"


@by_op
def test_demands_have_registers_and_shared_memory_as_compiled(op: Op):
    for variant in op.variants:
        for shape in (*op.shapes, op.heldout):
            arch = sorted(claimed(variant))[0]
            demand = facts.demand(op, variant, shape, arch, variant.points)
            built = [facts.compiled(op, variant, params, shape, arch) for params in variant.points]
            threads = np.broadcast_to(np.asarray(demand.threads), len(built))
            for i, some in enumerate(built):
                assert (demand.registers[i], demand.smem_per_block[i]) in {(k.registers, k.smem) for k in some}
                assert threads[i] in {k.threads for k in some}, f"{variant.name}: no kernel has the demand's {threads[i]} threads"


def test_a_shape_without_evidence_keeps_its_estimates():
    op = OPS[0]
    shape = {axis: size * 2 for axis, size in op.shapes[0].items()}
    demand = facts.demand(op, op.baseline, shape, "sm_80", op.baseline.points)
    estimate = op.baseline.demand(shape, op.baseline.columns())
    assert np.array_equal(demand.registers, estimate.registers)


def test_the_main_kernel_is_of_the_demands_block_size():
    small, large = facts.Compiled("a", 128, 40, 0, 0), facts.Compiled("b", 256, 90, 0, 0)
    same = facts.Compiled("c", 128, 50, 0, 0)
    assert facts.main([small, large, same], 128) is same
    assert facts.main([small, large, same], 256) is large
    assert facts.main([small, large, same], 64) is large


def test_only_a_broken_rule_holds_for_an_arch_that_was_not_asked():
    rule = facts.SourceRecord(of="v t=3", archs={"sm_80": 'v.cu(3): error: static assertion failed with "x"'})
    assert facts.outcome(rule, "sm_90a") == facts.outcome(rule, "sm_80") == rule.archs["sm_80"]
    refused = facts.SourceRecord(of="v t=1", archs={"sm_80": "ptxas v.ptx, line 9; error   : Instruction 'x' not supported"})
    honest = facts.SourceRecord(of="v t=2", archs={"sm_90a": {"k": (30, 0, 0)}})
    assert facts.outcome(refused, "sm_90a") is None
    assert facts.outcome(honest, "sm_80") is None


def test_what_is_lacking_says_the_command():
    op = OPS[0]
    with pytest.raises(KeyError, match=f"python -m generator evidence build --op {op.name}"):
        facts.check(op, op.baseline, {"threads": 7})
    with pytest.raises(DataError, match="python -m generator evidence build --op nothing"):
        facts.table("nothing")
