"""A release: seed, splits, sizes and filters: everything that determines the bytes, and which tasks are held out of training.

Cells (task, scenario) are enumerated once, in an order that is the same for every seed: blocks of 68 in which each (op, scenario) occurs
once, scenarios in turn, ops and boards shuffled. Episode `index` plays cell `index mod cells`, repeat `index div cells`. A filter keeps
rows of the unfiltered release; it never changes one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from generator.errors import InputError
from generator.gpus import GPUS
from generator.ops import OPS
from generator.rng import Dice, stream_key
from generator.scenarios import SCENARIOS
from generator.task import Task, task

MAX_EPISODES: Final = 2**40
SPLITS: Final = ("train", "validation")


@dataclass(frozen=True, slots=True)
class Cell:
    """One task in one scenario."""

    task: Task
    scenario: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Sizes of the splits before filters, the seed, and what is kept; empty filters keep all. Raises InputError on bad values."""

    seed: int = 0
    episodes: int = 2400
    validation: int = 240
    ops: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _whole("seed", self.seed, 0, 2**63 - 1)
        _whole("episodes", self.episodes, 1, MAX_EPISODES)
        _whole("validation", self.validation, 0, MAX_EPISODES)
        for name, known in (("ops", [o.name for o in OPS]), ("gpus", [g.name for g in GPUS]), ("scenarios", list(SCENARIOS))):
            object.__setattr__(self, name, _filter(name.removesuffix("s"), getattr(self, name), known))
        if self.rows("train") == 0:
            chosen = " ".join(f"{k}={','.join(v)}" for k, v in self._filters().items() if v)
            raise InputError("filters match no episode", f"{chosen} of {self.episodes} episodes", "at least one row", "raise --episodes")

    def splits(self) -> dict[str, int]:
        """Rows of each split that has any, after filters."""
        return {split: rows for split in SPLITS if (rows := self.rows(split))}

    def rows(self, split: str) -> int:
        """Rows of a split after filters."""
        total = self.episodes if split == "train" else self.validation
        kept = self._kept()
        return total // len(cells()) * len(kept) + int(np.searchsorted(kept, total % len(cells())))

    def index(self, split: str, position: int) -> int:
        """Episode index of the row at `position` of a split. Raises IndexError beyond its end."""
        if not 0 <= position < self.rows(split):
            raise IndexError(f"row {position} of {split}: it has {self.rows(split)}")
        kept = self._kept()
        return position // len(kept) * len(cells()) + int(kept[position % len(kept)])

    def key(self) -> dict[str, object]:
        """What identifies the bytes, ready for JSON."""
        sizes = {"seed": self.seed, "episodes": self.episodes, "validation": self.validation}
        return sizes | {name: list(chosen) for name, chosen in self._filters().items()}

    def _filters(self) -> dict[str, tuple[str, ...]]:
        return {"ops": self.ops, "gpus": self.gpus, "scenarios": self.scenarios}

    def _kept(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return _kept_cells(self.ops, self.gpus, self.scenarios)


@cache
def _kept_cells(ops: tuple[str, ...], gpus: tuple[str, ...], scenarios: tuple[str, ...]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Positions in the cell order that the filters keep."""
    return np.array(
        [
            i
            for i, cell in enumerate(cells())
            if (not ops or cell.task.op.name in ops)
            and (not gpus or cell.task.gpu.name in gpus)
            and (not scenarios or cell.scenario in scenarios)
        ],
        dtype=np.int64,
    )


@cache
def held_out_triples() -> tuple[Task, ...]:
    """Three tasks per op whose (op, gpu, shape) never occurs in `default`: each release shape once, on boards that rotate with the op."""
    return tuple(
        task(op.name, GPUS[(i + 2 * j) % len(GPUS)].name, tuple(shape.values()))
        for i, op in enumerate(OPS)
        for j, shape in enumerate(op.shapes)
    )


@cache
def held_out_shapes() -> tuple[Task, ...]:
    """Every op's held-out shape on every board."""
    return tuple(task(op.name, gpu.name, tuple(op.heldout.values())) for op in OPS for gpu in GPUS)


@cache
def training_tasks() -> tuple[Task, ...]:
    """All tasks of `default`, by op, gpu and shape."""
    out = {t.task_id for t in held_out_triples()}
    every = (task(op.name, gpu.name, tuple(shape.values())) for op in OPS for gpu in GPUS for shape in op.shapes)
    return tuple(t for t in every if t.task_id not in out)


@cache
def cells() -> tuple[Cell, ...]:
    """All cells in playing order."""
    dice = Dice(stream_key("kernelswarm", "cells"))
    names = tuple(SCENARIOS)
    by_op = [[t for t in training_tasks() if t.op is op] for op in OPS]
    decks = [[dice.shuffled(tasks) for _ in names] for tasks in by_op]
    order: list[Cell] = []
    for block in range(len(by_op[0])):
        ops = [dice.shuffled(range(len(OPS))) for _ in names]
        for j in range(len(OPS)):
            order.extend(Cell(decks[ops[s][j]][s][block], name) for s, name in enumerate(names))
    return tuple(order)


@cache
def cell_positions() -> dict[tuple[str, str], int]:
    """Position of each (task_id, scenario) in the cell order."""
    return {(cell.task.task_id, cell.scenario): i for i, cell in enumerate(cells())}


def _whole(what: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(f"{what} out of range", value, f"whole numbers from {low} to {high}", f"pass --{what} with one of them")


def _filter(what: str, chosen: Iterable[str], known: list[str]) -> tuple[str, ...]:
    """The chosen names in registry order, without repeats; naming all of them is no filter."""
    chosen = list(chosen)
    for name in chosen:
        if name not in known:
            raise InputError(f"unknown {what}", name, ", ".join(known), f"pass --{what} with one of them")
    kept = tuple(name for name in known if name in chosen)
    return kept if len(kept) < len(known) else ()
