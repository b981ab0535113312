"""The rules every table obeys, checked on Arrow columns before anything is written.

A rule looks at a whole table at once and yields (what must hold, mask of where it does not). `check_episodes` and `check_holdout` raise
`RuleError` at the first that is broken, naming the row it is broken in.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schema import vocab
from schema.arrow import EPISODES, HOLDOUT

Mask: TypeAlias = npt.NDArray[np.bool_]
Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Rule: TypeAlias = "Callable[[View], Iterator[tuple[str, Mask]]]"


class RuleError(ValueError):
    """A table breaks a rule of the contract."""


class View:
    """The flattened columns of one episodes table; `row_of` maps a message or an agent to its row."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table.combine_chunks()
        messages, agents = (self._list(name) for name in ("messages", "agents"))
        self.messages, self.message_row, self.first = messages
        self.agents, self.agent_row, self.first_agent = agents
        self.kind = self.message("kind")
        self.last = self.first + self.counts - 1

    def _list(self, name: str) -> tuple[pa.StructArray, Ints, Ints]:
        column = self.table[name].combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        lengths = pc.list_value_length(column).to_numpy().astype(np.int64)
        return column.flatten(), np.repeat(np.arange(len(column)), lengths), np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)

    @property
    def counts(self) -> Ints:
        """Messages per row."""
        counts: Ints = self.column("num_messages").to_numpy().astype(np.int64)
        return counts

    def column(self, name: str) -> pa.Array:
        chunked = self.table[name]
        return chunked.chunk(0) if chunked.num_chunks else pa.array([], chunked.type)

    def numbers(self, name: str) -> Floats:
        values: Floats = self.column(name).to_numpy()
        return values

    def message(self, name: str) -> pa.Array:
        return self.messages.field(name)

    def message_numbers(self, name: str) -> Floats:
        """A numeric message column; null is NaN."""
        return _floats(self.message(name))

    def agent_numbers(self, name: str) -> Floats:
        """A numeric agent column; null is NaN."""
        return _floats(self.agents.field(name))

    def is_kind(self, *kinds: str) -> Mask:
        return is_in(self.kind, kinds)

    def has_status(self, *statuses: str) -> Mask:
        return is_in(self.message("status"), statuses)


def is_in(values: pa.Array, allowed: object) -> Mask:
    """Whether each value is one of `allowed`; null is not."""
    return _mask(pc.is_in(values, pa.array(allowed, pa.string())))


def _mask(values: pa.Array) -> Mask:
    """A boolean array as NumPy; null is False."""
    mask: Mask = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return mask


def _floats(values: pa.Array) -> Floats:
    floats: Floats = pc.fill_null(pc.cast(values, pa.float64(), safe=False), float("nan")).to_numpy()
    return floats


def check_episodes(table: pa.Table) -> None:
    """Raises RuleError unless every row obeys every rule of the `default` table."""
    _check_schema(table, EPISODES)
    if not table.num_rows:
        return
    view = View(table)
    if int(view.counts.sum()) != len(view.messages) or not (np.bincount(view.message_row, minlength=table.num_rows) == view.counts).all():
        raise RuleError("num_messages is the number of messages: it is not")
    for rule in episode_rules:
        for what, bad in rule(view):
            _refuse(what, bad, view)


def check_holdout(table: pa.Table) -> None:
    """Raises RuleError unless every row obeys every rule of the `holdout` table."""
    _check_schema(table, HOLDOUT)
    times = {name: table[name].to_numpy() for name in ("baseline_ms", "floor_ms", "best_known_ms", "best_known_speedup")}
    conditions = {
        "kind is known": ~is_in(table["kind"].combine_chunks(), vocab.HOLDOUT_KINDS),
        "times are finite and positive": ~np.all([np.isfinite(t) & (t > 0) for t in times.values()], axis=0),
        "no time is below the floor": (times["best_known_ms"] < times["floor_ms"]) | (times["baseline_ms"] < times["best_known_ms"]),
        "best_known_speedup is the ratio": ~close(times["best_known_speedup"], times["baseline_ms"] / times["best_known_ms"]),
    }
    for what, bad in conditions.items():
        if bad.any():
            raise RuleError(f"{what}: broken in task {table['task_id'][int(np.argmax(bad))].as_py()}")
    if pc.count_distinct(table["task_id"]).as_py() != table.num_rows:
        raise RuleError("task_id is unique: it is not")


def close(a: Floats, b: Floats) -> Mask:
    """Equal to seven significant digits."""
    return np.abs(a - b) <= 1e-6 * np.maximum(np.abs(b), 1e-9)


def _refuse(what: str, bad: Mask, view: View) -> None:
    if not bad.any():
        return
    at = int(np.argmax(bad))
    rows = {len(view.messages): view.message_row, len(view.agents): view.agent_row}
    row = at if len(bad) == view.table.num_rows else int(rows[len(bad)][at])
    where = f", message {at - int(view.first[row])}" if len(bad) == len(view.messages) else ""
    raise RuleError(f"{what}: broken in {view.column('episode_id')[row].as_py()}{where}")


def _check_schema(table: pa.Table, schema: pa.Schema) -> None:
    if not table.schema.equals(schema, check_metadata=False):
        names = [f.name for f in schema if f.name not in table.schema.names or table.schema.field(f.name) != f]
        raise RuleError(f"the schema is that of schema/arrow.py: it differs in {names or table.schema.names}")
    table.validate(full=True)
    for path, array in _non_nullable(table):
        if array.null_count:
            raise RuleError(f"{path} is never null: it is, {array.null_count} times")
        if pa.types.is_floating(array.type) and not np.isfinite(array.to_numpy(zero_copy_only=False)).all():
            raise RuleError(f"{path} is finite: it is not")


def _non_nullable(table: pa.Table) -> Iterator[tuple[str, pa.Array]]:
    for name in table.schema.names:
        for chunk in table[name].chunks:
            yield from _walk(name, table.schema.field(name), chunk)


def _walk(path: str, field: pa.Field, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    if not field.nullable:
        yield path, array
    if pa.types.is_list(field.type):
        yield from _walk(f"{path}[]", field.type.value_field, array.flatten())
    elif pa.types.is_struct(field.type):
        for child in field.type:
            yield from _walk(f"{path}.{child.name}", child, array.field(child.name))


def _words(view: View) -> Iterator[tuple[str, Mask]]:
    for name, words in vocab.WORDS.items():
        yield f"{name} is known", ~is_in(view.column(name), words)
    yield "an agent's role is known", ~is_in(view.agents.field("role"), vocab.ROLES)
    yield "a message's kind is known", ~view.is_kind(*vocab.KINDS)
    yield "content is not empty", _mask(pc.equal(pc.binary_length(view.message("content")), 0))


def _payloads(view: View) -> Iterator[tuple[str, Mask]]:
    for kind, payload in vocab.PAYLOADS.items():
        here = view.is_kind(kind)
        yield f"{kind} is sent by {', '.join(payload.senders)}", here & ~is_in(view.message("role"), payload.senders)
        for name in vocab.PAYLOAD_FIELDS:
            null = _mask(view.message(name).is_null())
            if name in payload.required:
                yield f"{kind} carries {name}", here & null
            elif name not in payload.optional:
                yield f"{kind} carries no {name}", here & ~null


def _team(view: View) -> Iterator[tuple[str, Mask]]:
    sizes = np.bincount(view.agent_row, minlength=view.table.num_rows)
    yield "n_agents counts the specialists", sizes - 1 != view.numbers("n_agents")
    lead = np.zeros(len(view.agents), dtype=bool)
    lead[view.first_agent] = True
    yield "the lead, and only it, comes first", lead != is_in(view.agents.field("role"), (vocab.LEAD,))
    low, high = (np.array([vocab.SPECIALISTS[s][i] for s in view.column("scenario").to_pylist()]) for i in (0, 1))
    yield "the team size fits the scenario", (sizes - 1 < low) | (sizes - 1 > high)


def _order(view: View) -> Iterator[tuple[str, Mask]]:
    rows, t = view.message_row, view.message_numbers("t")
    position = np.arange(len(rows)) - view.first[rows]
    for place, kind in ((0, "plan"), (1, "candidate"), (2, "result")):
        yield f"message {place} is a {kind}", (position == place) & ~view.is_kind(kind)
    yield "message 2, and only it, is the baseline's result", (position == 2) != view.has_status("baseline")
    final = np.zeros(len(rows), dtype=bool)
    final[view.last] = True
    yield "the last message, and only it, is the verdict", final != view.is_kind("verdict")
    yield "t never decreases", np.concatenate([[False], (np.diff(t) < 0) & (np.diff(rows) == 0)])
    yield "elapsed_s is the verdict's t", view.numbers("elapsed_s") != t[view.last]


def _replies(view: View) -> Iterator[tuple[str, Mask]]:
    rows, reply = view.message_row, view.message_numbers("reply_to")
    has = ~np.isnan(reply)
    position = np.arange(len(rows)) - view.first[rows]
    yield "reply_to points back", has & ((reply >= position) | (reply < 0))
    target = np.where(has, view.first[rows] + np.nan_to_num(reply).astype(np.int64), 0).clip(0, len(rows) - 1)
    candidates = view.is_kind("candidate")
    yield "reply_to names a candidate", has & ~candidates[target]
    results = np.bincount(target[view.is_kind("result")], minlength=len(rows))
    failed = view.is_kind("review") & ~_mask(view.message("passed"))
    stopped = np.bincount(target[failed], minlength=len(rows)) > 0
    yield "a candidate has one result unless a review stopped it", candidates & (results != np.where(stopped, 0, 1))
    authors = view.message("agent").take(pa.array(target))
    yield "a result goes to the candidate's author", view.is_kind("result") & ~_mask(pc.equal(view.message("to"), authors))


def _times(view: View) -> Iterator[tuple[str, Mask]]:
    rows, time = view.message_row, view.message_numbers("time_ms")
    yield "a result has a time exactly when it ran", view.is_kind("result") & (np.isnan(time) == view.has_status(*vocab.RAN))
    yield "a status is known", view.is_kind("result") & ~view.has_status(*vocab.STATUSES)
    floor = view.numbers("floor_ms")
    yield "no time is below the floor", np.nan_to_num(time, nan=np.inf) < floor[rows]
    yield "times are positive", (view.numbers("baseline_ms") <= 0) | (floor <= 0)
    baseline = time[view.first + 2]
    yield "baseline_ms is the baseline's time", view.numbers("baseline_ms") != baseline
    best = np.minimum(least(np.where(view.has_status("kept"), time, np.inf), rows, view.table.num_rows), baseline)
    yield "best_ms is the least kept time", view.numbers("best_ms") != best
    yield "the verdict's time is best_ms", time[view.last] != best
    yield "speedup is baseline_ms / best_ms", ~close(view.numbers("speedup"), baseline / best)


def least(values: Floats, groups: Ints, count: int) -> Floats:
    """Least value of each group, infinite where a group has none."""
    out = np.full(count, np.inf)
    np.minimum.at(out, groups, values)
    return out


def _rewards(view: View) -> Iterator[tuple[str, Mask]]:
    reward = view.message_numbers("reward")
    paid = view.is_kind("result", "verdict")
    yield "only results and the verdict are rewarded", ~paid & (reward != 0)
    for status, value in vocab.FIXED_REWARDS.items():
        yield f"a {status} result earns {value}", view.has_status(status) & (reward != value)
    yield "a kept result earns more than 0 and at most 1", view.has_status("kept") & ((reward < 0) | (reward > 1))
    yield "the verdict earns log2(speedup) / 4", np.abs(reward[view.last] - np.log2(view.numbers("speedup")) / 4) > 1e-6


def _totals(view: View) -> Iterator[tuple[str, Mask]]:
    """Each agent's tries, kept and best_ms are what the messages addressed to it say."""
    names = pc.binary_join_element_wise(pc.cast(pa.array(view.agent_row), pa.string()), view.agents.field("id"), " ")
    addressed = pc.binary_join_element_wise(pc.cast(pa.array(view.message_row), pa.string()), view.message("to"), " ")
    tried = view.is_kind("result") & ~view.has_status("baseline")
    owner = pc.index_in(addressed.filter(pa.array(tried)), names)
    yield "results go to agents of the team", _at(tried, _mask(pc.is_null(owner)))
    who = pc.fill_null(owner, 0).to_numpy().astype(np.int64)
    kept = view.has_status("kept")[tried]
    time = view.message_numbers("time_ms")[tried]
    count = len(view.agents)
    yield "tries counts the agent's results", np.bincount(who, minlength=count) != view.agent_numbers("tries")
    yield "kept counts the agent's kept results", np.bincount(who[kept], minlength=count) != view.agent_numbers("kept")
    best = least(np.where(kept, time, np.inf), who, count)
    yield "an agent's best_ms is its least kept time", best != np.nan_to_num(view.agent_numbers("best_ms"), nan=np.inf)


def _at(where: Mask, values: Mask) -> Mask:
    out = np.zeros(len(where), dtype=bool)
    out[where] = values
    return out


def _identity(view: View) -> Iterator[tuple[str, Mask]]:
    ids = view.column("episode_id")
    start = pc.binary_join_element_wise(
        view.column("task_id"), view.column("scenario"), pc.cast(view.column("num_messages"), pa.string()), "_"
    )
    matches = [name.startswith(head) for name, head in zip(ids.to_pylist(), start.to_pylist(), strict=True)]
    yield "episode_id begins {task_id}_{scenario}_{num_messages}", ~np.array(matches)
    once = pc.value_counts(ids)
    repeated = once.field("values").filter(pc.greater(once.field("counts"), 1))
    yield "episode_id is unique", is_in(ids, repeated)


episode_rules: Final[tuple[Rule, ...]] = (_words, _payloads, _team, _order, _replies, _times, _rewards, _totals, _identity)

CHECKS: Final[Mapping[str, Callable[[pa.Table], None]]] = {"default": check_episodes, "holdout": check_holdout}
"""The check of each config's tables."""
