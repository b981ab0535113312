import numpy as np
import pytest

from generator import costmodel
from generator.release import held_out_shapes, training_tasks
from generator.task import Task, landscape, task

TASKS = (*training_tasks(), *held_out_shapes())
by_task = pytest.mark.parametrize("of", TASKS[::7], ids=lambda t: t.task_id)


def test_task_id():
    of = task("rmsnorm", "h100", (4096, 4096))
    assert of.task_id == "rmsnorm_h100_M=4096,N=4096"
    assert task("rmsnorm", "h100", (4096, 4096)) is of


@by_task
def test_landscape_holds_every_point_once(of: Task):
    land = landscape(of)
    legal = [p for points in land.legal.values() for p in points] + [land.baseline]
    faulty = [p for points in land.faulty.values() for p in points]
    keys = [p.key for p in (*legal, *faulty, *land.lacking, *land.flawed)]
    assert len(set(keys)) == len(keys)
    offered = sum(len(v.points if v.needs <= of.gpu.features else v.offered_to_all) for v in of.op.variants)
    assert len(legal) + len(land.lacking) + len(land.flawed) + sum(p.fate == "launch" for p in faulty) == offered
    assert landscape(of) is land


@by_task
def test_times_are_rounded_finite_and_above_the_floor(of: Task):
    land = landscape(of)
    for points in land.legal.values():
        for point in points:
            assert np.isfinite(point.ms)
            assert point.ms == float(f"{point.ms:.7g}")
            assert point.ms >= land.floor_ms
            assert point.bound in costmodel.BOUNDS
    assert land.best.ms == min(p.ms for points in land.legal.values() for p in points)


@by_task
def test_ladder_climbs(of: Task):
    land = landscape(of)
    best = [min(p.ms for p in land.legal[name]) for name in land.ladder]
    assert best == sorted(best, reverse=True)
    assert len(land.ladder) >= 2


@by_task
def test_near_goes_outward_in_the_same_variant(of: Task):
    land = landscape(of)
    near = land.near(land.best)
    assert {p.key for p in near} == {p.key for p in land.legal[land.best.variant.name]} - {land.best.key}
    moves = [sum(p.params[k] != v for k, v in land.best.params.items()) for p in near]
    assert moves[0] <= 2
    assert land.near(land.best) is near


@by_task
def test_gated_variants_lack_a_feature_and_say_which(of: Task):
    for point in landscape(of).lacking:
        assert point.reason
        assert set(point.reason.split(" and ")) == set(point.variant.needs - of.gpu.features)


@by_task
def test_points_carry_what_compilers_and_checks_said(of: Task):
    land = landscape(of)
    for point in (land.baseline, *(p for points in land.legal.values() for p in points)):
        assert point.compiled is not None
        assert 0 < point.compiled.registers <= costmodel.MAX_REGISTERS
        assert point.compiled.smem <= of.gpu.smem_block_bytes
        assert point.check is not None
        assert point.check.error <= of.op.tolerance
        assert point.diagnostic == ""
        assert all(land.check(point, bug).kind != "ok" for bug in point.bugs)
    for point in land.lacking:
        assert point.diagnostic
        assert point.compiled is None
    for points in land.faulty.values():
        for point in points:
            assert (point.fate == "illegal") == (point.reason in point.diagnostic and point.compiled is None)


def test_a_shortcut_that_runs_is_flawed_and_never_legal():
    shortcuts = [(t, p) for t in TASKS for p in landscape(t).flawed]
    assert shortcuts
    for of, point in shortcuts:
        assert point.variant.flaw is not None
        assert point.check is not None
        assert point.check.error is None or point.check.error > of.op.tolerance
        assert point.variant.name not in landscape(of).ladder
    assert all(v.flaw is None for t in TASKS for v in (t.op.variant(name) for name in landscape(t).ladder))


def test_launch_failures_name_the_limit_they_exceed():
    failures = [p for t in TASKS for points in landscape(t).faulty.values() for p in points if p.fate == "launch"]
    assert failures
    assert all(any(word in p.reason for word in ("limit", "registers")) for p in failures)


def test_sources_are_shared_between_candidates():
    a, b = (landscape(task("rmsnorm", gpu, (4096, 4096))) for gpu in ("h100", "a100"))
    assert a.source(a.baseline) is b.source(b.baseline)
    bug = a.baseline.variant.bugs[0]
    assert a.source(a.baseline, bug) != a.source(a.baseline)
