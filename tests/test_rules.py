"""Each rule of the contract holds for a built table and fails for a table in which it is broken."""

import copy
from collections.abc import Callable

import pyarrow as pa
import pytest

from schema import rules, vocab
from schema.arrow import EPISODES, HOLDOUT
from schema.rules import RuleError


def first(row: dict, kind: str, **want) -> dict:
    return next(m for m in row["messages"][3:] if m["kind"] == kind and all(m[k] == v for k, v in want.items()))


def at(row: dict, kind: str, **want) -> int:
    return row["messages"].index(first(row, kind, **want))


def put(path: str, value: object) -> Callable[[dict], None]:
    def change(row: dict) -> None:
        row[path] = value(row) if callable(value) else value

    return change


def message(kind: str, field: str, value: object, **want) -> Callable[[dict], None]:
    def change(row: dict) -> None:
        m = first(row, kind, **want)
        m[field] = value(m) if callable(value) else value

    return change


def drop_answer(row: dict) -> None:
    """The first plain result vanishes; every reference behind it moves up."""
    gone = at(row, "result", status="no_improvement")
    del row["messages"][gone]
    for m in row["messages"]:
        if m["reply_to"] is not None and m["reply_to"] > gone:
            m["reply_to"] -= 1
    row["num_messages"] -= 1
    row["episode_id"] = f"{row['task_id']}_{row['scenario']}_{row['num_messages']}"


def early_verdict(row: dict) -> None:
    row["messages"].append(row["messages"][-1])
    row["num_messages"] += 1
    row["episode_id"] = f"{row['task_id']}_{row['scenario']}_{row['num_messages']}"


def lead_last(row: dict) -> None:
    row["agents"].append(row["agents"].pop(0))


BREAKS: dict[str, tuple[str, Callable[[dict], None]]] = {
    "scenario": ("scenario is known", put("scenario", "solo")),
    "gpu": ("gpu is known", put("gpu", "h999")),
    "arch": ("arch is known", put("arch", "sm_00")),
    "dtype": ("dtype is known", put("dtype", "fp64")),
    "op": ("op is known", put("op", "conv")),
    "impl": ("impl is known", put("impl", "hip")),
    "role": ("an agent's role is known", lambda row: row["agents"][1].update(role="boss")),
    "kind": ("a message's kind is known", message("dispatch", "kind", "chat")),
    "empty content": ("content is not empty", message("dispatch", "content", "")),
    "sender": ("dispatch is sent by lead", message("dispatch", "role", "worker")),
    "missing payload": ("dispatch carries subtask", message("dispatch", "subtask", None)),
    "stray payload": ("dispatch carries no time_ms", message("dispatch", "time_ms", 1.0)),
    "stray params": ("verdict carries variant", message("verdict", "variant", None)),
    "team count": ("n_agents counts", put("n_agents", 99)),
    "lead first": ("the lead, and only it", lead_last),
    "two leads": ("the lead, and only it", lambda row: row["agents"][1].update(role="lead")),
    "plan first": ("message 0 is a plan", lambda row: row["messages"][0].update(kind="status")),
    "baseline": ("message 2, and only it", lambda row: row["messages"][2].update(status="kept")),
    "late baseline": ("message 2, and only it", message("result", "status", "baseline", status="kept")),
    "early verdict": ("the last message, and only it", early_verdict),
    "time runs back": ("t never decreases", lambda row: row["messages"][5].update(t=0.0)),
    "elapsed": ("elapsed_s is the verdict's t", put("elapsed_s", lambda row: row["elapsed_s"] + 0.1)),
    "reply ahead": ("reply_to points back", message("result", "reply_to", 10**6)),
    "reply below": ("reply_to points back", message("result", "reply_to", -1)),
    "reply to talk": ("reply_to names a candidate", message("result", "reply_to", 0)),
    "answered twice": ("a candidate has one result", message("result", "reply_to", 1)),
    "unanswered": ("a candidate has one result", drop_answer),
    "wrong author": ("a result goes to the candidate's author", message("result", "to", "lead", status="no_improvement")),
    "no time": ("a result has a time exactly when it ran", message("result", "time_ms", None, status="no_improvement")),
    "needless time": ("a result has a time exactly when it ran", message("result", "time_ms", 9.9, status="compile_error")),
    "status": ("a status is known", message("result", "status", "fine", status="compile_error")),
    "below floor": ("no time is below the floor", message("result", "time_ms", 1e-6, status="no_improvement")),
    "baseline_ms": ("baseline_ms is the baseline's time", put("baseline_ms", lambda row: row["baseline_ms"] * 2)),
    "best_ms": ("best_ms is the least kept time", put("best_ms", lambda row: row["best_ms"] * 1.5)),
    "verdict time": ("the verdict's time is best_ms", message("verdict", "time_ms", lambda m: m["time_ms"] * 2)),
    "speedup": ("speedup is baseline_ms / best_ms", put("speedup", lambda row: row["speedup"] * 1.01)),
    "talk is rewarded": ("only results and the verdict are rewarded", message("dispatch", "reward", 0.5)),
    "fixed reward": ("a compile_error result earns -0.1", message("result", "reward", -0.2, status="compile_error")),
    "kept reward": ("a kept result earns more than 0", message("result", "reward", 1.5, status="kept")),
    "verdict reward": ("the verdict earns", message("verdict", "reward", lambda m: m["reward"] + 1e-4)),
    "huge tries": ("tries counts", lambda row: row["agents"][1].update(tries=2**62 + 1)),
    "tries": ("tries counts", lambda row: row["agents"][1].update(tries=row["agents"][1]["tries"] + 1)),
    "kept": ("kept counts", lambda row: row["agents"][1].update(kept=row["agents"][1]["kept"] + 1)),
    "agent best": ("an agent's best_ms", lambda row: row["agents"][1].update(best_ms=(row["agents"][1]["best_ms"] or 1.0) / 2)),
    "id": ("episode_id begins", put("episode_id", lambda row: "x" + row["episode_id"])),
}


@pytest.fixture(scope="module")
def busy(train: pa.Table) -> dict:
    """A row with every status, so that each rule has something to break."""
    for row in train.slice(0, 400).to_pylist():
        statuses = {m["status"] for m in row["messages"]}
        kinds = {m["kind"] for m in row["messages"]}
        if {"kept", "no_improvement", "compile_error", "wrong_result"} <= statuses and "merge" in kinds and "-" not in row["episode_id"]:
            return row
    raise AssertionError("no such row")


def table_of(*rows: dict) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=EPISODES)


def test_built_tables_pass(train: pa.Table, holdout: pa.Table):
    rules.check_episodes(train)
    rules.check_holdout(holdout)
    rules.check_episodes(train.slice(0, 0))


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_rule_is_found(name: str, busy: dict, rows: list[dict]):
    what, change = BREAKS[name]
    row = copy.deepcopy(busy)
    rules.check_episodes(table_of(row))
    change(row)
    with pytest.raises(RuleError, match=what):
        rules.check_episodes(table_of(rows[0], row) if rows[0]["episode_id"] != busy["episode_id"] else table_of(row))


def test_repeated_ids_are_found(rows: list[dict]):
    with pytest.raises(RuleError, match="episode_id is unique"):
        rules.check_episodes(table_of(rows[0], rows[0]))


def test_num_messages_must_count(rows: list[dict]):
    with pytest.raises(RuleError, match="num_messages"):
        rules.check_episodes(table_of(rows[0] | {"num_messages": 3}))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_reals_are_finite(rows: list[dict], value: float):
    with pytest.raises(RuleError, match="floor_ms is finite"):
        rules.check_episodes(table_of(rows[0] | {"floor_ms": value}))
    row = copy.deepcopy(rows[0])
    row["messages"][4]["t"] = value
    with pytest.raises(RuleError, match=r"messages\[\].t is finite"):
        rules.check_episodes(table_of(row))


def test_the_schema_is_exact(sample: pa.Table):
    loose = pa.schema([pa.field(f.name, f.type, nullable=True) for f in EPISODES])
    with pytest.raises(RuleError, match="schema"):
        rules.check_episodes(sample.cast(loose))
    with pytest.raises(RuleError, match="schema"):
        rules.check_episodes(sample.drop_columns(["speedup"]))


def test_nulls_are_found_where_none_may_be(sample: pa.Table):
    column = pa.array([None, *sample["floor_ms"].to_pylist()[1:]], pa.float64())
    at_floor = sample.schema.get_field_index("floor_ms")
    broken = pa.Table.from_arrays([column if i == at_floor else sample.column(i) for i in range(sample.num_columns)], schema=EPISODES)
    with pytest.raises(RuleError, match="floor_ms is never null"):
        rules.check_episodes(broken)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"kind": "seen"}, "kind is known"),
        ({"best_known_ms": 1e-9}, "floor"),
        ({"best_known_speedup": 1e9}, "best_known_speedup"),
        ({"baseline_ms": float("inf")}, "finite"),
    ],
)
def test_holdout_rules(holdout: pa.Table, change: dict, what: str):
    rows = holdout.slice(0, 3).to_pylist()
    with pytest.raises(RuleError, match=what):
        rules.check_holdout(pa.Table.from_pylist([rows[0], rows[1] | change], schema=HOLDOUT))
    with pytest.raises(RuleError, match="unique"):
        rules.check_holdout(pa.Table.from_pylist([rows[0], rows[0]], schema=HOLDOUT))


def test_payload_table_covers_every_kind_and_field():
    assert set(vocab.KINDS) == set(vocab.PAYLOADS)
    assert len(vocab.KINDS) == 12
    for payload in vocab.PAYLOADS.values():
        assert set(payload.required) | set(payload.optional) <= set(vocab.PAYLOAD_FIELDS)
        assert payload.meaning
