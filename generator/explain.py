"""Explains the price of one candidate: every term of the cost model, what bounds the time, and how far it lies from the floor.

Wired to `python -m generator explain TASK --variant V --params "block_n=64 splits=8"`. Terms are those of `generator.costmodel`, in
microseconds; the numbers are noiseless, as in the landscape.
"""

import dataclasses
from collections.abc import Mapping
from typing import Final

import numpy as np

from generator import costmodel, facts
from generator.errors import InputError
from generator.gpus import BY_NAME as GPU_BY_NAME
from generator.ops import BY_NAME as OP_BY_NAME
from generator.ops.base import Demand, Op, Params, Variant
from generator.task import Task, params_text

_US: Final = 1e6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One candidate priced: times in microseconds, infinite if it cannot be launched."""

    task_id: str
    variant: str
    params: Params
    ms: float
    floor_ms: float
    floor_bound: str
    """What sets the floor: DRAM bytes, flops or the launch."""
    bound: str
    resources: Mapping[str, float]
    """Time of each resource by its name in `costmodel.BOUNDS`."""
    terms: Mapping[str, float]
    """The addends of the time, in order."""
    facts: Mapping[str, str]
    """Blocks, occupancy, waves, bytes: what the terms follow from."""


def task_of(task_id: str) -> Task:
    """The task of an id such as `rmsnorm_h100_M=4096,N=4096`. Raises InputError for an unknown op, gpu or shape."""
    for op in OP_BY_NAME.values():
        for gpu in GPU_BY_NAME.values():
            head = f"{op.name}_{gpu.name}_"
            if task_id.startswith(head):
                tasks = [Task(op=op, gpu=gpu, shape=shape) for shape in (*op.shapes, op.heldout)]
                found = next((task for task in tasks if task.task_id == task_id), None)
                if found is None:
                    raise InputError(f"unknown shape of {op.name}", task_id.removeprefix(head), _shapes(op), f"write {tasks[0].task_id}")
                return found
    raise InputError("unknown task", task_id, "an op, a gpu and a shape joined by _", "see `python -m generator list tasks`")


def params_of(text: str) -> dict[str, int]:
    """`block_n=64 splits=8` (blanks or commas between) as a mapping. Raises InputError for anything else."""
    params: dict[str, int] = {}
    for word in text.replace(",", " ").split():
        name, _, value = word.partition("=")
        if not name or not value.isdecimal():
            raise InputError("bad params", word, "NAME=INTEGER, blanks or commas between", "write block_n=64 splits=8")
        params[name] = int(value)
    return params


def explain(task: Task, variant: str, params: Params) -> Explanation:
    """The terms of one candidate. Raises InputError for an unknown variant, one the arch lacks, or params that are no point of it."""
    chosen = _variant(task, variant)
    point = _point(chosen, params)
    demand = facts.demand(task.op, chosen, task.shape, task.gpu.arch, [point])
    parts = costmodel.terms(task.gpu, demand)
    priced = costmodel.price(task.gpu, demand, task.op.work(task.shape))
    names = dict(zip(costmodel.BOUNDS, parts.resources, strict=True))
    return Explanation(
        task_id=task.task_id,
        variant=chosen.name,
        params=point,
        ms=float(priced.ms.flat[0]),
        floor_ms=costmodel.floor_ms(task.gpu, task.op.work(task.shape)),
        floor_bound=costmodel.floor_bound(task.gpu, task.op.work(task.shape)),
        bound=costmodel.BOUNDS[int(priced.bound.flat[0])],
        resources={name: _first(seconds) * _US for name, seconds in names.items()},
        terms={
            "launches": _first(parts.launch) * _US,
            "fill and tail": _first(parts.fill) * _US,
            "longest resource": _first(parts.longest) * _US,
            "leak of the others": _first(parts.leaked) * _US,
            "spills": (_first(parts.spill) - 1.0) * (_first(parts.longest) + _first(parts.leaked)) * _US,
            "turns of blocks": _first(parts.turns) * _US,
        },
        facts=_facts(task, demand, parts),
    )


def text(told: Explanation) -> str:
    """The explanation as lines."""
    lines = [f"{told.task_id}", f"{told.variant} {params_text(told.params)}", ""]
    lines += [f"  {name:<20}{value}" for name, value in told.facts.items()]
    lines += ["", "resource               us"]
    lines += [f"  {name:<18}{us:>10.3f}{'  <- bound' if name == told.bound else ''}" for name, us in told.resources.items()]
    lines += ["", "term                   us"]
    lines += [f"  {name:<18}{us:>10.3f}" for name, us in told.terms.items() if us]
    if not np.isfinite(told.ms):
        return "\n".join([*lines, "", "cannot be launched: no block fits on a multiprocessor"])
    lines += ["", f"time  {told.ms:.7g} ms, bound by {told.bound}"]
    return "\n".join([*lines, f"floor {told.floor_ms:.7g} ms, set by {told.floor_bound}; time / floor {told.ms / told.floor_ms:.3f}"])


def _shapes(op: Op) -> str:
    return "; ".join(",".join(f"{axis}={size}" for axis, size in shape.items()) for shape in (*op.shapes, op.heldout))


def _variant(task: Task, name: str) -> Variant:
    names = [variant.name for variant in task.op.variants]
    if name not in names:
        raise InputError(f"unknown variant of {task.op.name}", name, ", ".join(names), "choose one of these")
    chosen = task.op.variant(name)
    missing = chosen.needs - task.gpu.features
    if missing:
        runs = ", ".join(v.name for v in task.op.variants if v.needs <= task.gpu.features)
        raise InputError(f"{task.gpu.name} lacks {' and '.join(sorted(missing))}", name, runs, "choose one of these or another gpu")
    return chosen


def _point(variant: Variant, params: Params) -> Params:
    """The point of `variant` with these params; what is left out is as in its start."""
    unknown = sorted(set(params) - set(variant.start))
    if unknown:
        raise InputError(f"unknown param of {variant.name}", unknown[0], ", ".join(variant.start), "leave it out")
    point = dict(variant.start) | dict(params)
    for bad in variant.illegal:
        if bad.params == point:
            raise InputError(f"params of {variant.name} that do not compile", params_text(point), bad.rule, "choose a legal point")
    if point not in variant.points:
        legal = {name: sorted({p[name] for p in variant.points}) for name in variant.start}
        values = "; ".join(f"{name} in {', '.join(map(str, some))}" for name, some in legal.items())
        raise InputError(f"params that are no point of {variant.name}", params_text(point), values, "choose one of its points")
    return point


def _first(values: costmodel.Floats) -> float:
    return float(np.asarray(values).flat[0])


def _facts(task: Task, demand: Demand, parts: costmodel.Terms) -> dict[str, str]:
    def one(quantity: object) -> float:
        return float(np.asarray(quantity, dtype=np.float64).flat[0])

    hit = _first(costmodel.l2_hit(task.gpu, demand.footprint_bytes))
    return {
        "blocks": f"{one(demand.blocks):,.0f} of {one(demand.threads):.0f} threads, {one(demand.launches):.0f} launches",
        "occupancy": f"{one(parts.blocks_per_sm):.0f} blocks per SM ({one(demand.registers):.0f} registers, "
        f"{one(demand.smem_per_block):,.0f} B shared memory), {one(parts.waves):.0f} waves on {task.gpu.sm_count} SMs",
        "DRAM": f"{one(demand.dram_bytes) / 1e6:,.2f} MB, compulsory {task.op.work(task.shape).bytes / 1e6:,.2f} MB",
        "re-reads": f"{one(demand.reread_bytes) / 1e6:,.2f} MB, {100 * hit:.0f} % from L2",
        "in flight": f"{one(demand.inflight_per_block):,.0f} B a block",
        "arithmetic": f"{one(demand.flops) / 1e9:,.2f} GFLOP on {demand.unit}, efficiency {one(demand.efficiency):.2f}, "
        f"{one(demand.alu_ops) / 1e9:,.2f} G scalar",
    }
