"""What a check found: for each check the rows it saw, how many mismatches there were, and the first of each kind.

Memory does not grow with what is wrong: only counts and first mismatches are kept, and stored values are cut to a readable length.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CHECKS: Final = ("digests", "schema", "rules", "rewards", "totals", "times", "sources", "evidence", "regenerate", "holdout")
"""Names of the checks, in the order they are reported."""

LONGEST: Final = 160
"""Characters of a stored or derived text that are kept."""

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first of its kind."""

    what: str
    """What must hold, as a phrase."""
    where: str
    """Episode id; in `holdout` a task id, for whole files their name."""
    message: int | None
    """0-based index of the message; None if the whole row is meant."""
    stored: Value
    derived: Value

    def to_json(self) -> dict[str, Value]:
        return {"episode_id": self.where, "message": self.message, "stored": self.stored, "derived": self.derived}

    def __str__(self) -> str:
        """One line; whatever a file holds is escaped."""
        place = json.dumps(self.where)[1:-1] + (f" message {self.message}" if self.message is not None else "")
        return f"{place}: {self.what}: stored {json.dumps(self.stored)}, derived {json.dumps(self.derived)}"


class Report:
    """Everything found so far."""

    def __init__(self) -> None:
        self.rows = dict.fromkeys(CHECKS, 0)
        self.mismatches = dict.fromkeys(CHECKS, 0)
        self.first: dict[str, dict[str, Mismatch]] = {name: {} for name in CHECKS}

    @property
    def ok(self) -> bool:
        return not any(self.mismatches.values())

    def saw(self, check: str, rows: int) -> None:
        """`check` has looked at so many more rows."""
        self.rows[check] += rows

    def add(self, check: str, what: str, where: str, message: int | None, stored: object, derived: object, count: int = 1) -> None:
        """A mismatch, or `count` of one kind of which this is the first."""
        self.mismatches[check] += count
        if what not in self.first[check]:
            self.first[check][what] = Mismatch(what, _short(where), message, _value(stored), _value(derived))

    def compare(self, check: str, what: str, where: str, message: int | None, stored: object, derived: object) -> None:
        """A mismatch unless both are equal."""
        if stored != derived:
            self.add(check, what, where, message, stored, derived)

    def to_json(self) -> list[dict[str, object]]:
        """One object a check: name, rows, mismatches, and the first mismatch or None."""
        return [
            {"check": name, "rows": self.rows[name], "mismatches": self.mismatches[name], "first": first.to_json() if first else None}
            for name in CHECKS
            for first in [next(iter(self.first[name].values()), None)]
        ]

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Head and rows of the summary."""
        return ("check", "rows", "mismatches"), [(name, f"{self.rows[name]:,}", f"{self.mismatches[name]:,}") for name in CHECKS]

    def lines(self) -> list[str]:
        """One line for the first mismatch of each kind."""
        return [f"{name}: {mismatch}" for name in CHECKS for mismatch in self.first[name].values()]


def _value(value: object) -> Value:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return _short(str(value))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
