"""Checks `schema` and `rules`: what holds of columns before anything is replayed.

A row that breaks a rule is not shown to the rules after it: they may rely on those before.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from generator import costmodel
from generator.check.report import Report
from schema import rules
from schema.rules import RuleError, View

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Leaf = tuple[str, pa.Field, pa.Array, Ints, Ints]
"""Path, field, elements, and of each element its row and its place in the row's list (-1 for a column of the row)."""

_TENTHS: Final = ("messages[].t", "elapsed_s")
_EXACT: Final = 2**53
_COUNTS: Final = ("agents[].tries", "agents[].kept", "messages[].reply_to")
"""Integers that the rules read as reals."""
_NAMES: Final = {"default": "episode_id", "holdout": "task_id"}


def check_schema(table: pa.Table, config: str, report: Report) -> Mask:
    """Nulls, reals that are not finite, digits beyond the seventh; returns which rows later checks can read. `table` is of one chunk."""
    report.saw("schema", table.num_rows)
    names = table[_NAMES[config]]
    broken = np.zeros(table.num_rows, dtype=bool)
    for path, item, values, rows, places in _leaves(table):
        conditions = _conditions(path, item, values)
        for what, bad in conditions.items():
            if bad.any():
                at = int(np.argmax(bad))
                message = int(places[at]) if path.startswith("messages") else None
                where = names[int(rows[at])].as_py() or "?"
                report.add("schema", what, where, message, values[at].as_py(), None, int(bad.sum()))
                if "digits" not in what and "0.1 s" not in what:
                    broken[rows[bad]] = True
    return ~broken


def _conditions(path: str, item: pa.Field, values: pa.Array) -> dict[str, Mask]:
    """What must hold of one column, and where it does not."""
    out: dict[str, Mask] = {}
    if not item.nullable and values.null_count:
        out[f"{path} is never null"] = values.is_null().to_numpy(zero_copy_only=False)
    if path in _COUNTS:
        numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
        out[f"{path} is a whole number that a real can hold"] = (numbers > _EXACT) | (numbers < -_EXACT)
    if pa.types.is_floating(item.type):
        reals = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False)
        finite = np.isfinite(reals)
        reals = np.where(finite, reals, 0.0)
        out[f"{path} is finite"] = ~finite
        with np.errstate(all="ignore"):
            if path in _TENTHS:
                out[f"{path} is to 0.1 s"] = np.abs(reals * 10 - np.rint(reals * 10)) > 1e-9 * np.maximum(np.abs(reals), 1.0)
            else:
                out[f"{path} has seven significant digits"] = np.abs(costmodel.significant(reals) - reals) > 1e-12 * np.abs(reals)
    return out


def _leaves(table: pa.Table) -> Iterator[Leaf]:
    rows = np.arange(table.num_rows)
    for item in table.schema:
        yield from _walk(item.name, item, table[item.name].chunk(0), rows, np.full(len(rows), -1))


def _walk(path: str, item: pa.Field, array: pa.Array, rows: Ints, places: Ints) -> Iterator[Leaf]:
    yield path, item, array, rows, places
    if pa.types.is_list(item.type):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        yield from _walk(f"{path}[]", item.type.value_field, array.flatten(), np.repeat(rows, lengths), within)
    elif pa.types.is_struct(item.type):
        for child in item.type:
            yield from _walk(f"{path}.{child.name}", child, array.field(child.name), rows, places)


def check_rules(view: View, report: Report) -> None:
    """Every rule of `schema.rules` on a batch of episodes."""
    report.saw("rules", view.table.num_rows)
    view = _without(view, _uncountable(view.table, report))
    for rule in rules.episode_rules:
        if not view.table.num_rows:
            return
        broken = np.zeros(view.table.num_rows, dtype=bool)
        with np.errstate(all="ignore"):
            for what, bad in rule(view):
                if bad.any():
                    broken[_told(what, bad, view, report)] = True
        view = _without(view, broken)


def _without(view: View, broken: Mask) -> View:
    return View(view.table.filter(pa.array(~broken))) if broken.any() else view


def _uncountable(table: pa.Table, report: Report) -> Mask:
    """Rows whose lists are not as long as the rules take for granted."""
    messages, agents, counted = (
        np.asarray(values.to_numpy(), dtype=np.int64)
        for values in (pc.list_value_length(table["messages"]), pc.list_value_length(table["agents"]), table["num_messages"])
    )
    conditions: tuple[tuple[str, Mask, Ints, Ints | None], ...] = (
        ("num_messages is the number of messages", messages != counted, counted, messages),
        ("a campaign has a plan, a baseline, its result and a verdict", messages < 4, messages, None),
        ("a team has a lead", agents < 1, agents, None),
    )
    for what, bad, stored, derived in conditions:
        if bad.any():
            at = int(np.argmax(bad))
            right = None if derived is None else int(derived[at])
            report.add("rules", what, table["episode_id"][at].as_py(), None, int(stored[at]), right, int(bad.sum()))
    return conditions[0][1] | conditions[1][1] | conditions[2][1]


def _told(what: str, bad: Mask, view: View, report: Report) -> Ints:
    """Report where a rule is broken; returns the rows."""
    places = np.flatnonzero(bad)
    message = None
    if len(bad) == view.table.num_rows:
        found = places
    elif len(bad) == len(view.messages):
        found = view.message_row[places]
        message = int(places[0] - view.first[found[0]])
    else:
        found = view.agent_row[places]
    where = view.column("episode_id")[int(found[0])].as_py()
    report.add("rules", what, where, message, "broken", "holds", len(places))
    return np.asarray(found, dtype=np.int64)


def check_holdout_rules(table: pa.Table, report: Report) -> None:
    """The rules of the held-out tasks; the first that is broken."""
    report.saw("rules", table.num_rows)
    if not table.num_rows:
        return
    try:
        with np.errstate(all="ignore"):
            rules.check_holdout(table)
    except RuleError as error:
        what, _, where = str(error).partition(": broken in task ")
        report.add("rules", what, where or "holdout", None, "broken", "holds")
