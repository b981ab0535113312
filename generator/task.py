"""A task, and its landscape: every legal candidate of the task priced at once, without noise.

The landscape is what a campaign explores. Beside the legal points it keeps what an agent may submit by mistake: points that break a rule
of the source, points that cannot be launched on this board, variants whose instructions the arch lacks, and shortcuts that give wrong
results. What a compiler or a check says of each is the evidence's word (`generator.facts`).
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal

import numpy as np

from generator import costmodel, facts, kernels, sources
from generator.facts import Check, Compiled
from generator.gpus import BY_NAME as GPU_BY_NAME
from generator.gpus import Gpu
from generator.ops import BY_NAME as OP_BY_NAME
from generator.ops.base import Bug, Op, Params, Shape, Variant

Fate = Literal["legal", "illegal", "launch", "unsupported", "flawed"]


@dataclass(frozen=True, slots=True)
class Point:
    """One (variant, params) on one task, and what would become of it."""

    key: int
    """Position among all points of the task; with a bug's name it identifies a source."""
    variant: Variant
    params: Params
    label: str
    """The params as text: `block_n=64 splits=8`."""
    fate: Fate
    ms: float
    """Noiseless time; infinite unless legal."""
    bound: str = ""
    """The resource that sets the time."""
    reason: str = ""
    """Why it is not legal: the broken rule, the exceeded limit, the missing features, or the flaw."""
    compiled: Compiled | None = None
    """What the compiler made of it; None if it refused."""
    diagnostic: str = ""
    """What the compiler said if it refused."""
    check: Check | None = None
    """How its results compared with the reference; None if it does not run."""
    bugs: tuple[Bug, ...] = ()
    """Slips of its variant that a check catches at these params."""


@dataclass(frozen=True, slots=True)
class Task:
    """Op x gpu x shape; the op fixes the dtype."""

    op: Op
    gpu: Gpu
    shape: Shape

    @property
    def task_id(self) -> str:
        return f"{self.op.name}_{self.gpu.name}_{shape_text(self.shape)}"


def shape_text(shape: Mapping[str, int]) -> str:
    """`B=8,H=32,...` in the op's order of axes."""
    return ",".join(f"{axis}={size}" for axis, size in shape.items())


def params_text(params: Params) -> str:
    """`block_n=64 splits=8`."""
    return " ".join(f"{name}={value}" for name, value in params.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """All candidates of one task."""

    task: Task
    floor_ms: float
    baseline: Point
    best: Point
    ladder: tuple[str, ...]
    """Usable variants, weakest to strongest by their best point."""
    legal: Mapping[str, tuple[Point, ...]]
    """Legal points of each usable variant, at least one; the baseline's own point left out."""
    start: Mapping[str, Point]
    """Where an engineer would begin in each usable variant: its start point, or another where that one is the baseline or too big."""
    faulty: Mapping[str, tuple[Point, ...]]
    """Points of each usable variant that a compiler or the launch refuses."""
    lacking: tuple[Point, ...]
    """Points of variants whose instructions the arch lacks, a few of each."""
    flawed: tuple[Point, ...]
    """Points of shortcuts that run here and give wrong results."""
    _texts: dict[tuple[int, str], str] = field(default_factory=dict, repr=False, compare=False)
    _near: dict[int, tuple[Point, ...]] = field(default_factory=dict, repr=False, compare=False)

    def near(self, point: Point) -> tuple[Point, ...]:
        """Other legal points of its variant, nearest first: distance in steps along each tunable's values."""
        if point.key not in self._near:
            self._near[point.key] = self._by_distance(point)
        return self._near[point.key]

    def _by_distance(self, point: Point) -> tuple[Point, ...]:
        points = self.legal[point.variant.name]
        steps = {k: {v: i for i, v in enumerate(sorted({p.params[k] for p in points} | {point.params[k]}))} for k in point.params}

        def distance(other: Point) -> int:
            return sum(abs(steps[k][v] - steps[k][point.params[k]]) for k, v in other.params.items())

        return tuple(sorted((p for p in points if p.key != point.key), key=lambda p: (distance(p), p.key)))

    def check(self, point: Point, bug: Bug | None = None) -> Check:
        """How the results of a point, or of a slip in it, compared with the reference."""
        if bug is None and point.check is not None:
            return point.check
        return facts.check(self.task.op, point.variant, point.params, bug)

    def source(self, point: Point, bug: Bug | None = None) -> str:
        """The exact text a candidate submits; rendered once and shared."""
        key = (point.key, bug.name if bug else "")
        text = self._texts.get(key)
        if text is None:
            op = self.task.op
            template = kernels.template(op.name, point.variant.name, op.impl)
            constants = op.constants(self.task.shape)
            text = self._texts[key] = _shared(op.name, template, tuple(constants.items()), tuple(point.params.items()), bug)
        return text


@cache
def _shared(op: str, template: str, constants: tuple[tuple[str, int], ...], params: tuple[tuple[str, int], ...], bug: Bug | None) -> str:
    """One string per distinct source of the op, whatever the task."""
    del op
    return sources.render(template, dict(constants), dict(params), bug)


@cache
def task(op: str, gpu: str, sizes: tuple[int, ...]) -> Task:
    """The task of an op and gpu by name and the axis sizes in the op's order; a release or held-out shape."""
    spec = OP_BY_NAME[op]
    return Task(op=spec, gpu=GPU_BY_NAME[gpu], shape=dict(zip(spec.axes, sizes, strict=True)))


_LANDSCAPES: Final[dict[str, Landscape]] = {}


def landscape(of: Task) -> Landscape:
    """The landscape of a task, priced once per process."""
    found = _LANDSCAPES.get(of.task_id)
    if found is None:
        found = _LANDSCAPES[of.task_id] = _survey(of)
    return found


def _survey(of: Task) -> Landscape:
    points: list[Point] = []
    for variant in of.op.variants:
        points.extend(_points(of, variant, len(points)))
    runs = [p for p in points if p.fate == "legal"]
    baseline = next(p for p in runs if p.variant is of.op.baseline and p.params == of.op.baseline.start)
    legal = {v.name: tuple(p for p in runs if p.variant is v and p is not baseline) for v in of.op.variants}
    legal = {name: some for name, some in legal.items() if some}
    ladder = sorted(legal, key=lambda name: min(p.ms for p in legal[name]), reverse=True)
    return Landscape(
        task=of,
        floor_ms=costmodel.floor_ms(of.gpu, of.op.work(of.shape)),
        baseline=baseline,
        best=min(runs, key=lambda p: (p.ms, p.key)),
        ladder=tuple(ladder),
        legal=legal,
        start={name: next((p for p in some if p.params == p.variant.start), some[0]) for name, some in legal.items()},
        faulty={name: tuple(p for p in points if p.variant.name == name and p.fate in {"illegal", "launch"}) for name in legal},
        lacking=tuple(p for p in points if p.fate == "unsupported"),
        flawed=tuple(p for p in points if p.fate == "flawed"),
    )


def _points(of: Task, variant: Variant, first: int) -> list[Point]:
    """All points of one variant with their fates, keys from `first` on: those it offers, then those that break a rule."""
    keys = itertools.count(first)
    missing = variant.needs - of.gpu.features
    if missing:
        why = " and ".join(sorted(missing))
        return [_refused(of, next(keys), variant, params, "unsupported", why) for params in variant.offered_to_all]
    offered = [_offered(of, next(keys), variant, *priced) for priced in _priced(of, variant)]
    return offered + [_refused(of, next(keys), variant, bad.params, "illegal", bad.rule) for bad in variant.illegal]


def _refused(of: Task, key: int, variant: Variant, params: Params, fate: Fate, reason: str) -> Point:
    """A point that a compiler refuses."""
    said = facts.diagnostic(of.op, variant, params, of.shape, of.gpu.arch)
    return Point(key, variant, params, params_text(params), fate, np.inf, reason=reason, diagnostic=said)


def _offered(of: Task, key: int, variant: Variant, params: Params, built: Compiled, ms: float, bound: int) -> Point:
    """A point that compiles: legal unless it cannot be launched or its variant is a shortcut."""
    label = params_text(params)
    if not np.isfinite(ms):
        reason = costmodel.refusal(of.gpu, built.threads, built.smem)
        return Point(key, variant, params, label, "launch", np.inf, reason=reason, compiled=built)
    check = facts.check(of.op, variant, params)
    if variant.flaw is not None:
        return Point(key, variant, params, label, "flawed", np.inf, reason=variant.flaw.symptom, compiled=built, check=check)
    bugs = facts.caught(of.op, variant, params)
    return Point(key, variant, params, label, "legal", ms, costmodel.BOUNDS[bound], compiled=built, check=check, bugs=bugs)


def _priced(of: Task, variant: Variant) -> Iterator[tuple[Params, Compiled, float, int]]:
    """Each offered point, what it compiles to, its time (infinite if it cannot be launched) and what bounds it."""
    estimate = variant.demand(of.shape, variant.columns())
    built = facts.mains(of.op, variant, of.shape, of.gpu.arch, variant.points, estimate)
    price = costmodel.price(of.gpu, facts.as_compiled(estimate, built), of.op.work(of.shape))
    return zip(variant.points, built, price.ms.tolist(), price.bound.tolist(), strict=True)
