"""Checks `times`, `sources` and `evidence`: every candidate against its task's landscape and against what its source turns out to be.

The text is the truth: it is read back to a point and perhaps a bug, and the columns, the measured times and the status must agree with it.
"""

from collections.abc import Callable
from typing import Final

from generator import phrases
from generator.check.batch import Batch
from generator.check.library import Entry, Facts, Source, unpack_text
from generator.check.oracle import RUNS
from generator.check.report import Report
from generator.ops.base import Bug
from generator.task import Point, Task
from schema.arrow import SHAPE
from schema.vocab import RAN

Oracle = Callable[[Task, Source, Point], str | None]
"""What evidence says becomes of a source at a point of a task: RUNS, a status, or None where it says nothing. The arch is the task's."""

_BY_FATE: Final = {
    "illegal": "compile_error",
    "launch": "compile_error",
    "unsupported": "unsupported_arch",
    "flawed": "wrong_result",
}


def by_construction(point: Point, bug: Bug | None) -> str:
    """What becomes of a candidate by what its source is."""
    if point.fate != "legal":
        return _BY_FATE[point.fate]
    return RUNS if bug is None else "wrong_result"


class Candidates:
    """Checks the candidates of one batch."""

    def __init__(self, batch: Batch, report: Report, oracle: Oracle) -> None:
        self.batch = batch
        self.report = report
        self.oracle = oracle
        self._columns = {name: batch.column(name) for name in ("op", "impl", "gpu", "arch", "dtype", "floor_ms", "task_id")}
        self._status_of: dict[int, str] = {}

    def run(self) -> None:
        for check in ("times", "sources", "evidence"):
            self.report.saw(check, len(self.batch))
        for row, _, given in self.batch.whole():
            if given is None:
                self._add("times", row, None, "task_id names a task", self._columns["task_id"][row], None)
            else:
                self._task(row, given)
            self._row(row, given)

    def _task(self, row: int, given: Facts) -> None:
        """The columns of the row that its task fixes."""
        for name, value in given.columns.items():
            self._same("times", row, None, f"{name} is the task's", self._columns[name][row], value)
        if self.batch.shape[row] != given.shape:
            shapes = (unpack_text(packed, SHAPE) for packed in (self.batch.shape[row], given.shape))
            self._add("times", row, None, "shape is the task's", *shapes)
        self._same("times", row, None, "floor_ms is the task's", self._columns["floor_ms"][row], given.land.floor_ms)

    def _row(self, row: int, given: Facts | None) -> None:
        batch = self.batch
        entries: dict[int, Entry | None] = {}
        sent: set[tuple[str, int]] = set()
        self._status_of.clear()
        for at in batch.messages(row):
            if batch.kind[at] == "candidate":
                entries[at] = self._source(row, at, given)
                key = (batch.agent[at], batch.text[at])
                if key in sent:
                    self._add("sources", row, at, "no agent submits a source twice", "submitted before", "new")
                sent.add(key)
                continue
            target = batch.target(row, at)
            entry = entries.get(target) if target is not None else None
            source = batch.source[target] if target is not None else None
            if given is None or entry is None or source is None or target is None:
                continue
            self._time(row, at, given, entry)
            if batch.kind[at] == "result":
                self._status_of[target] = batch.status[at] or ""
                self._status(row, at, given, entry, source)
            elif batch.kind[at] == "verify":
                self._verify(row, at, target, given, entry, source)

    # -- sources ----------------------------------------------------------------------------------

    def _source(self, row: int, at: int, given: Facts | None) -> Entry | None:
        """The candidate that the text of a message is on its task; None if it is none."""
        batch, source = self.batch, self.batch.source[at]
        if source is None or source.fault:
            self._add("sources", row, at, "a source renders again to the same text", source.fault if source else None, "a rendering")
            return None
        self._same("sources", row, at, "a source is of the row's op", source.op, self._columns["op"][row])
        self._same("sources", row, at, "variant is the source's", batch.variant[at], source.variant)
        if batch.params[at] != source.params:
            self._add("sources", row, at, "params are the source's", unpack_text(batch.params[at]), unpack_text(source.params))
        if given is None or given.task.op.name != source.op:
            return None
        if not source.constants.items() <= given.constants.items():
            self._add("sources", row, at, "a source is for the row's shape", _text(source.constants), _text(given.constants))
        entry = given.entries.get((source.variant, source.params))
        if entry is None:
            self._add("sources", row, at, "a source is a candidate of the task", f"{source.variant} {unpack_text(source.params)}", None)
        elif at == batch.first[row] + 1 and (entry.point is not given.land.baseline or source.bug is not None):
            self._add("sources", row, at, "message 1 is the baseline", f"{source.variant} {entry.point.label}", given.land.baseline.label)
        if entry is not None and source.bug is not None and source.bug not in entry.point.bugs:
            caught = ", ".join(bug.name for bug in entry.point.bugs)
            self._add("sources", row, at, "a slip is one that a check catches at its params", source.bug.name, caught)
            return None
        return entry

    # -- times ------------------------------------------------------------------------------------

    def _time(self, row: int, at: int, given: Facts, entry: Entry) -> None:
        time_ms = self.batch.time_ms[at]
        if time_ms is None or entry.low <= time_ms <= entry.high:
            return
        if entry.low > entry.high:
            self._add("times", row, at, "a candidate that cannot run has no time", time_ms, None)
        elif time_ms < given.land.floor_ms:
            self._add("times", row, at, "no time is below the task's floor", time_ms, f"{given.land.floor_ms} and up")
        else:
            what = "a time is within the noise around its candidate's"
            self._add("times", row, at, what, time_ms, f"{entry.low:.7g} to {entry.high:.7g} around {entry.point.ms}")

    # -- evidence ---------------------------------------------------------------------------------

    def _status(self, row: int, at: int, given: Facts, entry: Entry, source: Source) -> None:
        status = self.batch.status[at] or ""
        stored = RUNS if status in RAN else status
        point, bug = entry.point, source.bug
        derived = by_construction(point, bug)
        if stored != derived:
            self._add("evidence", row, at, "a status is what becomes of such a source", status, derived)
            return
        said = self.oracle(given.task, source, point)
        if said is not None and said != stored:
            self._add("evidence", row, at, "a status is what the evidence says", status, said)
        self._error(row, at, given, point, bug)
        self._quotes(row, at, given, point, bug)

    def _quotes(self, row: int, at: int, given: Facts, point: Point, bug: Bug | None) -> None:
        """A result's text holds what the compiler and the check said."""
        text = self.batch.content[at] or ""
        if point.fate == "illegal":
            self._same("evidence", row, at, "a compile error is the compiler's diagnostic", text, point.diagnostic)
        elif point.fate == "launch":
            self._says(row, at, text, point.reason, start="launch failure:")
        elif point.fate == "unsupported":
            self._says(row, at, text, point.diagnostic)
        else:
            check, tolerance = given.land.check(point, bug), given.task.op.tolerance
            flaw = bug or point.variant.flaw
            quotes = (phrases.finding(check, tolerance), flaw.symptom) if flaw else (phrases.measured(check, tolerance),)
            for quote in (*quotes, *((phrases.built(point.compiled),) if point.compiled and not flaw else ())):
                self._says(row, at, text, quote)

    def _says(self, row: int, at: int, text: str, cause: str, start: str = "") -> None:
        if not text.startswith(start) or cause not in text:
            self._add("evidence", row, at, "a result quotes its evidence", text, f"{start} ... {cause}".removeprefix(" ... "))

    def _error(self, row: int, at: int, given: Facts, point: Point, bug: Bug | None) -> None:
        runs = point.check is not None
        derived = given.land.check(point, bug).error if runs else None
        self._same("evidence", row, at, "max_rel_err is the measured one", self.batch.max_rel_err[at], derived)

    def _verify(self, row: int, at: int, target: int, given: Facts, entry: Entry, source: Source) -> None:
        """A verifier confirms what the result said: it passes exactly what ran right."""
        derived = self._status_of.get(target) in RAN
        self._same("evidence", row, at, "a verification passes exactly what is right", self.batch.passed[at], derived)
        self._error(row, at, given, entry.point, source.bug)

    # -- telling ----------------------------------------------------------------------------------

    def _same(self, check: str, row: int, at: int | None, what: str, stored: object, derived: object) -> None:
        if stored != derived:
            self._add(check, row, at, what, stored, derived)

    def _add(self, check: str, row: int, at: int | None, what: str, stored: object, derived: object) -> None:
        message = None if at is None else at - self.batch.first[row]
        self.report.add(check, what, self.batch.ids[row], message, stored, derived)


def _text(constants: object) -> str:
    return " ".join(f"{k}={v}" for k, v in constants.items()) if isinstance(constants, dict) else str(constants)
