"""Checks `regenerate` and `holdout`: which row is where, what it is when made again, and that training and held-out tasks stay apart.

A release says which episode stands at each place of a split. A row that is at its place, under its own id, cannot be there twice: so ids
are unique over all shards and splits without any being remembered.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from generator.check.batch import Batch
from generator.check.report import Report
from generator.episodes import build_range
from generator.holdout import build_holdout
from generator.ops.base import Shape
from generator.release import Release, cells, training_tasks
from generator.task import Task
from schema.rules import RuleError
from schema.version import DATASET_VERSION

Triple = tuple[str, str, tuple[tuple[str, int], ...]]
"""Op, gpu and shape."""

Difference = tuple[str, int | None, object, object]
"""Path, index of the message (None outside), stored and derived value."""

EVERY: Final = 49
"""One row in so many is made again unless all are; prime to the number of cells, so the sample moves through all of them."""

_PLACE: Final = "the row here is the one the release has here, once"


class Identity:
    """What is known of the rows of `default`, over all batches."""

    def __init__(self, release: Release, report: Report, *, full: bool) -> None:
        self.release = release
        self.report = report
        self.full = full
        self.training = {task.task_id for task in training_tasks()}
        self.played: set[Triple] = set()
        """Every known task seen in `default`."""

    def check(self, batch: Batch) -> None:
        """Places and ids of a batch, then its sample made again."""
        self.report.saw("holdout", len(batch))
        names = ("index", "seed", "dataset_version", "scenario", "num_messages")
        for row, values in enumerate(zip(*(batch.column(name) for name in names), strict=True)):
            self._place(batch, row, dict(zip(names, values, strict=True)))
        self._regenerate(batch)

    def _place(self, batch: Batch, row: int, stored: dict[str, object]) -> None:
        episode_id, given = batch.ids[row], batch.facts[row]
        index = self._index(batch.split, batch.places[row])
        self.report.compare("holdout", _PLACE, episode_id, None, stored["index"], index)
        self.report.compare("holdout", "seed is the release's", episode_id, None, stored["seed"], self.release.seed)
        self.report.compare("holdout", "dataset_version is this one", episode_id, None, stored["dataset_version"], DATASET_VERSION)
        if given is None:
            return
        task = given.task
        self.played.add(_triple(task))
        if task.task_id not in self.training:
            self.report.add("holdout", "default plays no held-out task", episode_id, None, task.task_id, "a training task")
        if index is not None:
            cell = cells()[index % len(cells())]
            repeat = index // len(cells())
            suffix = {"train": f"-r{repeat}" if repeat else "", "validation": f"-v{repeat or ''}"}[batch.split]
            derived = f"{cell.task.task_id}_{cell.scenario}_{stored['num_messages']}{suffix}"
            self.report.compare("holdout", "episode_id is that of its index", episode_id, None, episode_id, derived)

    def _index(self, split: str, position: int) -> int | None:
        return self.release.index(split, position) if position < self.release.rows(split) else None

    def _regenerate(self, batch: Batch) -> None:
        end = self.release.rows(batch.split)
        chosen = [row for row, place in enumerate(batch.places) if place < end and (self.full or place % EVERY == 0)]
        if not chosen:
            return
        first, last = batch.places[chosen[0]], batch.places[chosen[-1]]
        if last - first == len(chosen) - 1:
            self._again(batch, chosen[0], first, last + 1)
        else:
            for row in chosen:
                self._again(batch, row, batch.places[row], batch.places[row] + 1)

    def _again(self, batch: Batch, row: int, start: int, stop: int) -> None:
        """Compare the rows from `row` on with places `start` to `stop` made again."""
        self.report.saw("regenerate", stop - start)
        try:
            again = build_range(self.release, batch.split, start, stop)
        except RuleError as error:
            self.report.add("regenerate", "a row can be made again", batch.ids[row], None, "a row", str(error))
        else:
            _compare(batch, again, row, self.report)


def _compare(batch: Batch, again: pa.Table, first: int, report: Report) -> None:
    stored = batch.table.slice(first, again.num_rows)
    if stored.equals(again):
        return
    for row in range(again.num_rows):
        one, other = stored.slice(row, 1), again.slice(row, 1)
        if not one.equals(other):
            path, message, was, now = next(differences(one.to_pylist()[0], other.to_pylist()[0]), ("row", None, "a row", "another"))
            report.add("regenerate", f"a row equals the one made again from its index: {path}", batch.ids[first + row], message, was, now)


def differences(stored: object, derived: object, path: str = "", message: int | None = None) -> Iterator[Difference]:
    """Where two rows differ."""
    if isinstance(stored, dict) and isinstance(derived, dict):
        for name in stored:
            yield from differences(stored[name], derived.get(name), f"{path}.{name}".lstrip("."), message)
    elif isinstance(stored, list) and isinstance(derived, list):
        if len(stored) != len(derived):
            yield f"length of {path}", message, len(stored), len(derived)
        for at, (one, other) in enumerate(zip(stored, derived, strict=False)):
            yield from differences(one, other, path, at if path == "messages" else message)
    elif stored != derived:
        yield path, message, stored, derived


class HeldOut:
    """The rows of `holdout` against those the release has, and against what `default` plays."""

    def __init__(self, identity: Identity) -> None:
        self.report = identity.report
        self.played = identity.played
        self.expected = build_holdout(identity.release).to_pylist()
        training = training_tasks()
        self.triples = {_triple(task) for task in training}
        self.gpus = {task.gpu.name for task in training}

    def check(self, table: pa.Table, places: Sequence[int]) -> None:
        """Rows at these places."""
        self.report.saw("holdout", table.num_rows)
        for at, row in zip(places, table.to_pylist(), strict=True):
            derived = self.expected[at] if at < len(self.expected) else {}
            for path, _, was, now in differences(row, derived):
                self.report.add("holdout", f"a held-out task is the one the release has here: {path}", row["task_id"], None, was, now)
            self._apart(row)

    def _apart(self, row: dict[str, object]) -> None:
        sizes = row["shape"]
        shape = _sizes({axis: size for axis, size in sizes.items() if size is not None}) if isinstance(sizes, dict) else ()
        op, gpu = str(row["op"]), str(row["gpu"])
        trained = self.played | self.triples
        seen = any(triple[0] == op and triple[2] == shape for triple in trained)
        apart = not seen if row["kind"] == "unseen_shape" else seen and gpu in self.gpus and (op, gpu, shape) not in trained
        if not apart:
            what = "a held-out task is apart from training as its kind says"
            self.report.add("holdout", what, str(row["task_id"]), None, row["kind"], None)


def _triple(task: Task) -> Triple:
    return task.op.name, task.gpu.name, _sizes(task.shape)


def _sizes(shape: Shape) -> tuple[tuple[str, int], ...]:
    """Axis sizes in one order, whatever the order of the axes."""
    return tuple(sorted(shape.items()))
