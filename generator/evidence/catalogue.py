"""What must be compiled and run for an op: every source a campaign could submit, each distinct text once.

- Honest: every legal point at the constants of every shape, held-out one included; compiled for every arch that the variant claims, and
  the few points that are offered to all (`Variant.offered_to_all`) also for the others, whose refusal is evidence too. Run once a point
  (the constants come from the harness's cases).
- Illegal: every illegal point at every set of constants, for one arch: `static_assert` is the front end's, which is the same for all.
- Bugs: run, and so compiled by g++, at the start point and `ELSEWHERE` others, spread so that nearly every point has a bug. Compiled by the
  real compiler at the start point for every arch that the variant claims: a bug is one line of a text whose honest form compiles there.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Final, Protocol, cast

import numpy as np

from generator import facts, kernels, sources
from generator.evidence.harness import Case, Entry, Plan
from generator.gpus import GPUS
from generator.ops.base import Bug, Op, Params, Shape, Variant

ARCHS: Final = tuple(dict.fromkeys(gpu.arch for gpu in GPUS))
SEED: Final = 0
"""Of the harness's inputs."""
ELSEWHERE: Final = 2
"""Points beside the start at which a bug is run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One text and the archs to compile it for."""

    of: str
    """Its label, see `sources.label`."""
    file: str
    """Name it has in diagnostics."""
    text: str
    archs: tuple[str, ...]
    params: Params
    shape: Shape
    """A shape whose constants it has."""
    rule: str = ""
    """What its diagnostic must say, for an illegal point."""
    unsupported: tuple[str, ...] = ()
    """Those of `archs` that must refuse it."""
    bug: str = ""

    @property
    def digest(self) -> str:
        """Its key in the table."""
        return facts.digest(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One candidate of a variant, whatever its constants: what is run."""

    variant: Variant
    params: Params
    bug: Bug | None = None

    @property
    def of(self) -> str:
        """Its label, see `sources.label`."""
        return sources.label(self.variant.name, self.params, bug=self.bug.name if self.bug else "")


class Harness(Protocol):
    """An op's `harness` module; a CUDA op has `plan`, a Triton op has `entries`."""

    def cases(self, rng: np.random.Generator) -> tuple[Case, ...]: ...
    def plan(self, variant: str, params: Mapping[str, int], case: Case) -> Plan: ...
    def entries(self, variant: str, params: Mapping[str, int], shape: Mapping[str, int]) -> tuple[Entry, ...]: ...


@cache
def harness(op: str) -> Harness:
    """The harness of an op."""
    return cast("Harness", import_module(f"generator.kernels.{op}.harness"))


@cache
def cases(op: str) -> tuple[Case, ...]:
    """The cases of an op, always with the same inputs."""
    return harness(op).cases(np.random.default_rng(SEED))


def render(op: Op, variant: Variant, params: Params, shape: Shape, bug: Bug | None = None) -> str:
    """The text of a candidate on a shape."""
    return sources.render(kernels.template(op.name, variant.name, op.impl), op.constants(shape), params, bug)


def all_shapes(op: Op) -> tuple[Shape, ...]:
    """The shapes of the release and the held-out one."""
    return (*op.shapes, op.heldout)


def claimed(variant: Variant) -> tuple[str, ...]:
    """Archs whose GPUs have what a variant needs."""
    return tuple(dict.fromkeys(gpu.arch for gpu in GPUS if variant.needs <= gpu.features))


def honest_and_illegal(op: Op) -> list[Source]:
    """All texts without a bug, each once."""
    found: dict[str, Source] = {}
    for variant, shape in itertools.product(op.variants, all_shapes(op)):
        archs = claimed(variant)
        refused = tuple(arch for arch in ARCHS if arch not in archs)
        for params in variant.points:
            asked, lacking = (ARCHS, refused) if params in variant.offered_to_all else (archs, ())
            source = _source(op, variant, params, shape, archs=asked, unsupported=lacking)
            found.setdefault(source.text, source)
        for illegal in variant.illegal:
            source = _source(op, variant, illegal.params, shape, archs=archs[:1], rule=illegal.rule)
            found.setdefault(source.text, source)
    return list(found.values())


def buggy(op: Op) -> list[Source]:
    """The texts with a bug to compile."""
    return [
        _source(op, variant, variant.start, op.shapes[0], archs=claimed(variant), bug=bug)
        for variant in op.variants
        for bug in variant.bugs
    ]


def points(variant: Variant) -> Iterator[Point]:
    """What is run of a variant: every legal point, and each bug at the start and `ELSEWHERE` others."""
    yield from (Point(variant=variant, params=params) for params in variant.points)
    for n, bug in enumerate(variant.bugs):
        yield from (Point(variant=variant, params=params, bug=bug) for params in variant.spread(ELSEWHERE, n))


def _source(
    op: Op,
    variant: Variant,
    params: Params,
    shape: Shape,
    *,
    archs: tuple[str, ...],
    rule: str = "",
    unsupported: tuple[str, ...] = (),
    bug: Bug | None = None,
) -> Source:
    text = render(op, variant, params, shape, bug)
    constants = sources.identify(text)[2]
    return Source(
        of=sources.label(variant.name, params, constants, bug.name if bug else ""),
        file=variant.name + kernels.SUFFIX[op.impl],
        text=text,
        archs=archs,
        params=params,
        shape=shape,
        rule=rule,
        unsupported=unsupported,
        bug=bug.name if bug else "",
    )
