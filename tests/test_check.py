"""The check passes what was built, and finds every fault that is planted in it: each by the check that is there for it."""

import copy
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from generator import cli, facts, kernels, manifest, parquet, sources
from generator.build import Request, build
from generator.check.candidates import by_construction
from generator.check.identity import EVERY
from generator.check.report import CHECKS
from generator.check.run import check
from generator.digest import row_digests, split_digest
from generator.errors import DataError, InputError
from generator.ops import BY_NAME
from generator.phrases import SEPARATOR
from generator.release import Release
from schema.arrow import CONFIGS, EPISODES, HOLDOUT

ERROR = re.compile(r"error: [^\n]+, got [^\n]+, allowed: [^\n]+, [^\n]+\n")

Row = dict
Change = Callable[[Row], int | None]
"""Alters a row; returns the index of the message it altered, None if the fault is not of one message."""


# -- what is checked ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """136 + 12 episodes in several shards."""
    out = tmp_path_factory.mktemp("check") / "built"
    build(Request(out=out, release=Release(episodes=136, validation=12), shard_size=50))
    return out


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A dozen episodes of one op, for what needs many checks."""
    out = tmp_path_factory.mktemp("check") / "tiny"
    build(Request(out=out, release=Release(episodes=136, validation=60, ops=("rope",)), shard_size=4))
    return out


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """What faults are planted in: a board that lacks features and shared memory, so that every status occurs."""
    out = tmp_path_factory.mktemp("check") / "base"
    build(Request(out=out, release=Release(episodes=408, validation=0, gpus=("a10",)), shard_size=17))
    return out


@pytest.fixture(scope="module")
def episodes(base) -> list[Row]:
    """Its rows, less those that would be made again: the other checks must do without."""
    rows = pq.read_table(base / "default", schema=EPISODES).to_pylist()
    return [row for place, row in enumerate(rows) if place % EVERY]


@pytest.fixture
def copied(base, tmp_path) -> Path:
    return Path(shutil.copytree(base, tmp_path / "copy"))


@pytest.fixture
def small(tiny, tmp_path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def shard_of(folder: Path, episode_id: str) -> Path:
    for path in sorted((folder / "default").iterdir()):
        if episode_id in pq.read_table(path, columns=["episode_id"])["episode_id"].to_pylist():
            return path
    raise AssertionError(episode_id)


def rewrite(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, **parquet.ENCODING)


def change_row(folder: Path, episode_id: str, change: Change) -> int | None:
    """Alters one row where it lies."""
    path = shard_of(folder, episode_id)
    table = pq.read_table(path, schema=EPISODES)
    at = table["episode_id"].to_pylist().index(episode_id)
    row = table.slice(at, 1).to_pylist()[0]
    message = change(row)
    rewrite(path, pa.concat_tables([table.slice(0, at), pa.Table.from_pylist([row], schema=EPISODES), table.slice(at + 1)]))
    return message


def restamp(folder: Path) -> None:
    """Makes the manifest true to the files again, so that no digest tells of a fault."""
    found = json.loads((folder / manifest.NAME).read_bytes())
    lines = []
    for config, splits in found["configs"].items():
        for split, entry in splits.items():
            pieces = []
            for shard in entry["shards"]:
                data = (folder / shard["name"]).read_bytes()
                pieces.append(row_digests(pq.read_table(folder / shard["name"], schema=CONFIGS[config])))
                shard |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "rows": len(pieces[-1]) // 32}
                shard["digest"] = split_digest(CONFIGS[config], pieces[-1:])
            entry["bytes"] = sum(shard["bytes"] for shard in entry["shards"])
            entry["rows"] = sum(shard["rows"] for shard in entry["shards"])
            entry["digest"] = split_digest(CONFIGS[config], pieces)
            lines.append(f"{config}/{split} {entry['rows']} {entry['digest']}\n")
    found["digest"] = hashlib.sha256("".join(lines).encode()).hexdigest()
    (folder / manifest.NAME).write_bytes(manifest.to_json(found))


def edit_manifest(folder: Path, change: Callable[[dict], object]) -> None:
    found = json.loads((folder / manifest.NAME).read_bytes())
    change(found)
    (folder / manifest.NAME).write_bytes(json.dumps(found).encode())


def found_by(report) -> set[str]:
    return {name for name in CHECKS if report.mismatches[name]}


def test_a_build_passes(built):
    report = check(str(built), full=True)
    assert report.ok, report.lines()
    assert report.lines() == []
    default = 136 + 12
    assert all(report.rows[name] == default for name in ("rewards", "totals", "times", "sources", "evidence", "regenerate"))
    assert all(report.rows[name] == default + 153 for name in ("digests", "schema", "rules", "holdout"))


def test_a_sample_is_made_again_unless_all_are(built):
    report = check(str(built), digests=False)
    assert report.ok
    assert report.rows["digests"] == 0
    assert 0 < report.rows["regenerate"] < 10


def test_a_filtered_build_of_another_seed_passes(tmp_path):
    release = Release(seed=7, episodes=300, validation=60, ops=("rmsnorm", "gemm_fp16"), gpus=("a100", "h100"), scenarios=("campaign",))
    build(Request(out=tmp_path / "x", release=release, shard_size=3))
    assert check(str(tmp_path / "x"), full=True).ok


def test_a_url_is_as_good_as_a_path(small):
    fsspec.filesystem("memory").put(str(small), "memory://check-test", recursive=True)
    assert check("memory://check-test").rows == check(str(small)).rows
    assert check("memory://check-test").ok
    assert check(f"file://{small}").ok


def test_the_footprint_does_not_grow_with_the_episodes(tiny, tmp_path):
    """No batch outlives its turn, so what is held after the last shard is what was held after the first."""
    build(Request(out=tmp_path / "x", release=Release(episodes=1700, validation=0, ops=("rope",)), shard_size=10))
    held: list[int] = []
    assert check(str(tmp_path / "x"), digests=False, progress=lambda *_: held.append(pa.total_allocated_bytes())).ok
    assert len(held) == 11
    assert max(held[1:]) <= 1.5 * held[0]


# -- one thing changed in one row ---------------------------------------------------------------

Value = object
"""A value to put, or a function of the row (and the message) that gives it."""
Test = Callable[[Row, Row], bool]


def put(field: str, value: Value) -> Change:
    def change(row: Row) -> None:
        row[field] = value(row) if callable(value) else value

    return change


def of_agent(field: str, value: Callable[[Row], object]) -> Change:
    """Sets a field of the first agent that kept something."""

    def change(row: Row) -> None:
        one = next(a for a in row["agents"] if a["kept"])
        one[field] = value(one)

    return change


def anything(row: Row, m: Row) -> bool:
    return True


def find(row: Row, kind: str, test: Test = anything, **want) -> int:
    """Index of the first message of a kind after the baseline. Raises LookupError."""
    for number, m in enumerate(row["messages"]):
        if number > 2 and m["kind"] == kind and all(m[k] == v for k, v in want.items()) and test(row, m):
            return number
    raise LookupError(kind)


def of_first(kind: str, field: str, value: Value, test: Test = anything, **want) -> Change:
    return lambda row: put_message(row, find(row, kind, test, **want), field, value)


def of_result(status: str, field: str, value: Value, test: Test = anything) -> Change:
    return of_first("result", field, value, test, status=status)


def of_candidate(field: str, value: Value, test: Test = anything) -> Change:
    return of_first("candidate", field, value, test)


def of_number(number: int, field: str, value: Value) -> Change:
    return lambda row: put_message(row, number % len(row["messages"]), field, value)


def put_message(row: Row, number: int, field: str, value: Value) -> int:
    m = row["messages"][number]
    m[field] = value(row, m) if callable(value) else value
    return number


def seven(x: float) -> float:
    return float(f"{x:.7g}")


def scaled(field: str, by: float) -> Callable[..., float]:
    """The field times a factor, of a message or else of the row."""
    return lambda row, m=None: seven((row if m is None else m)[field] * by)


def more(field: str, by: float) -> Callable[..., float]:
    return lambda row, m=None: (row if m is None else m)[field] + by


def refused_in(words: str) -> Test:
    return lambda _, m: words in m["content"]


def above_floor_at(by: float) -> Test:
    return lambda row, m: m["time_ms"] * by > row["floor_ms"]


def timed(row: Row, m: Row) -> bool:
    return m["time_ms"] is not None


def ranks_two(row: Row, m: Row) -> bool:
    return SEPARATOR + "2 " in m["content"]


def swap_places(row: Row, m: Row) -> str:
    entries = m["content"].split(SEPARATOR)
    (one, first), (two, second) = (entry.split(" ", 1) for entry in entries[:2])
    return SEPARATOR.join([f"{one} {second}", f"{two} {first}", *entries[2:]])


def another_time(row: Row, m: Row) -> str:
    return m["content"].replace(".", ".9", 1)


def another_agent(row: Row, m: Row) -> str:
    return next(a["id"] for a in row["agents"][1:] if a["id"] != m["to"])


def others(row: Row, m: Row) -> Sequence[int]:
    """Candidates before a reply by the author of the one it replies to, that one and the baseline left out."""
    before = row["messages"][: row["messages"].index(m)]
    author = before[m["reply_to"]]["agent"]
    return [i for i, c in enumerate(before) if c["kind"] == "candidate" and c["agent"] == author and i not in (1, m["reply_to"])]


def has_others(row: Row, m: Row) -> bool:
    return (m["kind"] == "handoff" or m["time_ms"] is not None) and bool(others(row, m))


def another_candidate(row: Row, m: Row) -> int:
    return others(row, m)[0]


def no_merge(row: Row) -> int:
    """The first merge becomes the lead's word that there is none."""
    number = find(row, "merge")
    m = row["messages"][number]
    row["messages"][number] = dict.fromkeys(m) | {k: m[k] for k in ("role", "agent", "t", "reward")}
    row["messages"][number] |= {"kind": "status", "content": "nothing to merge"}
    return number


def merge_of_nothing(row: Row) -> int:
    """The lead's word that there is nothing to merge becomes the last merge once more."""
    last = max(i for i, m in enumerate(row["messages"]) if m["kind"] == "merge")
    number = find(row, "status", lambda row, m: row["messages"].index(m) > last, role="lead")
    row["messages"][number] = row["messages"][last] | {"t": row["messages"][number]["t"]}
    return number


def rebench_of_the_loser(row: Row) -> int:
    """The leader that was not merged becomes the faster one when re-benched: the merge is wrong then."""
    merge = find(row, "merge")
    rechecks = [m for m in row["messages"][:merge] if m["kind"] == "verify" and m["time_ms"] is not None]
    winner, loser = sorted(rechecks, key=lambda m: m["time_ms"])
    loser["time_ms"] = seven(winner["time_ms"] * 0.99)
    return merge


def other_axis(row: Row) -> None:
    axis = next(name for name, size in row["shape"].items() if size is not None)
    row["shape"][axis] *= 2


def doubled_param(row: Row, m: Row) -> Row:
    name = next(k for k, v in m["params"].items() if v is not None)
    return m["params"] | {name: m["params"][name] * 2}


def one_character(row: Row, m: Row) -> str:
    head, rule, body = m["content"].rpartition("-----\n")
    return head + rule + body.replace("0", "1", 1)


def other_constant(row: Row, m: Row) -> str:
    """The same candidate for another size."""
    return re.sub(r"(?m)^((?:constexpr int )?[A-Z]\w* = )(\d+)", lambda c: c[1] + str(int(c[2]) + 1), m["content"], count=1)


def states_a_problem(row: Row, m: Row) -> bool:
    return "- problem -" in m["content"]


def submitted_twice(row: Row) -> int:
    """An agent's second candidate becomes its first once more."""
    sent: dict[str, Row] = {}
    for number, m in enumerate(row["messages"]):
        if number > 2 and m["kind"] == "candidate":
            if m["agent"] in sent:
                m |= {name: sent[m["agent"]][name] for name in ("content", "variant", "params")}
                return number
            sent[m["agent"]] = m
    raise LookupError


def other_baseline(row: Row) -> int:
    """The lead opens with somebody's later candidate."""
    other = row["messages"][find(row, "candidate", lambda row, m: m["variant"] != row["messages"][1]["variant"])]
    row["messages"][1] |= {name: other[name] for name in ("content", "variant", "params")}
    return 1


def honest_called_wrong(row: Row) -> int:
    number = find(row, "result", status="no_improvement")
    row["messages"][number] |= {"status": "wrong_result", "time_ms": None, "reward": -0.3, "content": "verify FAIL"}
    return number


def slip_that_was_never_run(row: Row) -> int:
    """An honest candidate that ran gets a slip at params where no check ever judged it, and a result that calls it wrong."""
    number = find(row, "result", status="no_improvement")
    candidate = row["messages"][row["messages"][number]["reply_to"]]
    source = sources.parse(candidate["content"])
    op = BY_NAME[source.op]
    variant = op.variant(source.variant)
    known = facts.table(op.name).points
    bug = next(b for b in variant.bugs if sources.label(variant.name, source.params, bug=b.name) not in known)
    template = kernels.template(op.name, variant.name, op.impl)
    candidate["content"] = sources.render(template, source.constants, source.params, bug)
    row["messages"][number] |= {"status": "wrong_result", "time_ms": None, "reward": -0.3, "content": "verify FAIL"}
    return row["messages"].index(candidate)


def another_number(row: Row, m: Row) -> str:
    return re.sub(r"\d+", "7", m["content"], count=1)


def unknown_task(row: Row) -> str:
    return row["task_id"] + ",N=1"


FAULTS: dict[str, tuple[str, str, Change]] = {
    "nan": ("schema", "is finite", put("floor_ms", float("nan"))),
    "infinite t": ("schema", "is finite", of_number(4, "t", float("inf"))),
    "eight digits": ("schema", "seven significant digits", of_agent("skill", lambda _: 1.00000001)),
    "hundredths": ("schema", r"to 0\.1 s", of_number(4, "t", more("t", 0.04))),
    "time runs back": ("rules", "t never decreases", of_number(5, "t", 0.0)),
    "unknown kind": ("rules", "kind is known", of_first("dispatch", "kind", "chat")),
    "unknown scenario": ("rules", "scenario is known", put("scenario", "solo")),
    "stray payload": ("rules", "carries no time_ms", of_first("dispatch", "time_ms", 1.0)),
    "reply ahead": ("rules", "points back", of_first("result", "reply_to", 10**6)),
    "count": ("rules", "num_messages", put("num_messages", 3)),
    "no messages": ("rules", "has a plan", lambda row: row.update(messages=[], num_messages=0)),
    "no team": ("rules", "has a lead", lambda row: row.update(agents=[])),
    "kept reward": ("rewards", "what its time says", of_result("kept", "reward", scaled("reward", 0.999))),
    "fixed reward": ("rewards", "what its time says", of_result("no_improvement", "reward", -0.06)),
    "refused reward": ("rewards", "its status's reward", of_result("compile_error", "reward", -0.2)),
    "wrong reward": ("rewards", "its status's reward", of_result("wrong_result", "reward", -0.2)),
    "baseline reward": ("rewards", "baseline earns 0", of_number(2, "reward", 0.5)),
    "verdict reward": ("rewards", r"log2\(speedup\)", of_number(-1, "reward", more("reward", 1e-5))),
    "talk is rewarded": ("rewards", "only results", of_first("dispatch", "reward", 0.5)),
    "kept called no gain": ("rewards", "what its agent had to beat", of_result("kept", "status", "no_improvement")),
    "no gain called kept": ("rewards", "what its agent had to beat", of_result("no_improvement", "status", "kept")),
    "tries": ("totals", "tries is", of_agent("tries", lambda a: a["tries"] + 1)),
    "kept": ("totals", "kept is", of_agent("kept", lambda a: a["kept"] - 1)),
    "agent's best": ("totals", "best_ms is", of_agent("best_ms", lambda a: a["best_ms"] * 2)),
    "no best": ("totals", "best_ms is", of_agent("best_ms", lambda _: None)),
    "best_ms": ("totals", "best_ms is the least", put("best_ms", scaled("best_ms", 2))),
    "baseline_ms": ("totals", "baseline_ms is", put("baseline_ms", scaled("baseline_ms", 2))),
    "speedup": ("totals", "speedup is", put("speedup", scaled("speedup", 1.0000005))),
    "elapsed": ("totals", "elapsed_s is", put("elapsed_s", more("elapsed_s", 1))),
    "leaderboard order": ("totals", "leaderboard ranks", of_first("leaderboard", "content", swap_places, ranks_two)),
    "leaderboard time": (
        "totals",
        "leaderboard ranks",
        of_first("leaderboard", "content", another_time),
    ),
    "merge winner": ("totals", "a merge goes to", of_first("merge", "to", another_agent)),
    "merge time": ("totals", "a merge's time is", of_first("merge", "time_ms", scaled("time_ms", 0.5))),
    "merge params": ("totals", "a merge's params", of_first("merge", "params", doubled_param)),
    "no merge": ("totals", "the lead merges when", no_merge),
    "merge of nothing": ("totals", "a merge goes to", merge_of_nothing),
    "re-bench of the loser": ("totals", "a merge goes to", rebench_of_the_loser),
    "re-bench of another": ("totals", "a re-bench is of", of_first("verify", "reply_to", another_candidate, has_others)),
    "handoff of another": ("totals", "a handoff is of", of_first("handoff", "reply_to", another_candidate, has_others)),
    "verdict time": ("totals", "the verdict's time", of_number(-1, "time_ms", scaled("time_ms", 2))),
    "verdict variant": ("totals", "the verdict's variant", of_number(-1, "variant", "another")),
    "sender's role": ("totals", "role is its sender's", of_first("candidate", "role", "tuner", role="worker")),
    "addressee": ("totals", "to an agent of the team", of_first("dispatch", "to", "a99")),
    "too slow": ("times", "within the noise", of_result("no_improvement", "time_ms", scaled("time_ms", 3))),
    "too fast": ("times", "within the noise", of_result("no_improvement", "time_ms", scaled("time_ms", 0.6), above_floor_at(0.6))),
    "below the floor": ("times", "below the task's floor", of_result("no_improvement", "time_ms", 1e-6)),
    "slow re-bench": ("times", "within the noise", of_first("verify", "time_ms", scaled("time_ms", 3), timed)),
    "slow baseline": ("times", "within the noise", of_number(2, "time_ms", scaled("time_ms", 3))),
    "floor_ms": ("times", "floor_ms is the task's", put("floor_ms", scaled("floor_ms", 0.9))),
    "arch": ("times", "arch is the task's", put("arch", lambda row: {"sm_80": "sm_86"}.get(row["arch"], "sm_80"))),
    "dtype": ("times", "dtype is the task's", put("dtype", lambda row: {"int4": "int8"}.get(row["dtype"], "int4"))),
    "shape": ("times", "shape is the task's", other_axis),
    "task_id": ("times", "names a task", put("task_id", unknown_task)),
    "one character": ("sources", "renders again", of_candidate("content", one_character)),
    "not a source": ("sources", "renders again", of_candidate("content", "int main() {}")),
    "another op": ("sources", "renders again", of_candidate("content", lambda _, m: "// another/one: " + m["content"].split(": ", 1)[1])),
    "another shape": ("sources", "for the row's shape", of_candidate("content", other_constant, states_a_problem)),
    "params": ("sources", "params are the source's", of_candidate("params", doubled_param)),
    "variant": ("sources", "variant is the source's", of_candidate("variant", "another")),
    "twice": ("sources", "submits a source twice", submitted_twice),
    "baseline": ("sources", "message 1 is the baseline", other_baseline),
    "endless line": ("sources", "renders again", of_candidate("content", "// " + "-" * 150_000 + "x-")),
    "slip never run": ("sources", "a check catches at its params", slip_that_was_never_run),
    "honest called wrong": ("evidence", "what becomes of such a source", honest_called_wrong),
    "wrong called refused": ("evidence", "what becomes of such a source", of_result("wrong_result", "status", "compile_error")),
    "refused called lacking": ("evidence", "what becomes of such a source", of_result("compile_error", "status", "unsupported_arch")),
    "lacking called refused": ("evidence", "what becomes of such a source", of_result("unsupported_arch", "status", "compile_error")),
    "diagnostic": ("evidence", "compiler's diagnostic", of_result("compile_error", "content", another_number, refused_in("error: static"))),
    "launch failure": (
        "evidence",
        "quotes its evidence",
        of_result("compile_error", "content", "launch failure: no", refused_in("launch failure:")),
    ),
    "symptom": ("evidence", "quotes its evidence", of_result("wrong_result", "content", "verify FAIL")),
    "lacking feature": ("evidence", "quotes its evidence", of_result("unsupported_arch", "content", "no")),
    "registers": ("evidence", "quotes its evidence", of_result("kept", "content", "ok 1 regs")),
    "error in text": ("evidence", "quotes its evidence", of_result("no_improvement", "content", "max_rel_err 0.5 (tol 0.002)")),
    "measured error": ("evidence", "max_rel_err is the measured one", of_result("kept", "max_rel_err", 0.5)),
    "error of a refused one": ("evidence", "max_rel_err is the measured one", of_result("compile_error", "max_rel_err", 0.5)),
    "verified error": ("evidence", "max_rel_err is the measured one", of_first("verify", "max_rel_err", 0.5)),
    "verification": ("evidence", "passes exactly", of_first("verify", "passed", lambda _, m: not m["passed"])),
    "seed": ("holdout", "seed is the release's", put("seed", 1)),
    "index": ("holdout", "the row here is", put("index", more("index", 1))),
    "version": ("holdout", "dataset_version is", put("dataset_version", "9.9.9")),
    "id": ("holdout", "that of its index", put("episode_id", lambda row: row["episode_id"] + "-r7")),
}
"""Fault: the check that finds it, what it says, and the change."""

ALONE = {
    "schema": "hundredths",
    "rules": "stray payload",
    "rewards": "kept reward",
    "totals": "merge winner",
    "times": "too slow",
    "sources": "one character",
    "evidence": "verification",
    "holdout": "index",
}
"""For each check a fault that no other would have found."""


def planted(folder: Path, episodes: list[Row], change: Change) -> tuple[str, int | None]:
    """Alters the first row that a change applies to; returns its id and the index of the message."""
    for row in episodes:
        altered = copy.deepcopy(row)
        try:
            change(altered)
        except (LookupError, StopIteration, ValueError):
            continue
        if altered != row:
            return altered["episode_id"], change_row(folder, row["episode_id"], change)
    raise AssertionError("no row to plant this fault in")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_check(name, copied, episodes):
    by, what, change = FAULTS[name]
    episode_id, message = planted(copied, episodes, change)
    report = check(str(copied), digests=False)
    found = [mismatch for text, mismatch in report.first[by].items() if re.search(what, text)]
    assert found, report.lines()
    assert (found[0].where, found[0].message) == (episode_id, message)
    assert found[0].stored != found[0].derived


def test_every_check_of_rows_has_faults_of_its_own():
    assert {by for by, _, _ in FAULTS.values()} == set(ALONE) == set(CHECKS) - {"digests", "regenerate"}
    assert len(FAULTS) >= 25


@pytest.mark.parametrize("by", ALONE)
def test_new_digests_do_not_hide_what_one_check_finds(by, copied, episodes):
    planted(copied, episodes, FAULTS[ALONE[by]][2])
    assert "digests" in found_by(check(str(copied)))
    restamp(copied)
    assert found_by(check(str(copied))) == {by}


# -- rows made again ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [of_first("dispatch", "content", "go on"), of_agent("skill", lambda _: 1.25), of_number(4, "t", more("t", -0.1))]
)
def test_what_nothing_else_derives_is_found_when_made_again(copied, change):
    rows = pq.read_table(copied / "default", schema=EPISODES).to_pylist()
    for place, found in ((EVERY, {"regenerate"}), (EVERY + 1, set())):
        folder = shutil.copytree(copied, copied / f"at-{place}")
        message = change_row(folder, rows[place]["episode_id"], change)
        assert found_by(check(str(folder), digests=False)) == found
        report = check(str(folder), digests=False, full=True)
        assert report.mismatches["regenerate"] == 1
        (first,) = report.first["regenerate"].values()
        assert (first.where, first.message) == (rows[place]["episode_id"], message)


# -- who is where -------------------------------------------------------------------------------


def first_what(report, name: str) -> str:
    return next(iter(report.first[name]))


def test_a_row_cannot_be_there_twice(copied):
    first, second = sorted((copied / "default").iterdir())[:2]
    table = pq.read_table(second, schema=EPISODES)
    rewrite(second, pa.concat_tables([pq.read_table(first, schema=EPISODES).slice(3, 1), table.slice(1)]))
    restamp(copied)
    report = check(str(copied))
    assert found_by(report) == {"holdout"}
    assert "the row here is the one the release has here, once" in report.first["holdout"]


def test_a_row_that_is_left_out_is_missed(copied):
    path = sorted((copied / "default").iterdir())[-1]
    table = pq.read_table(path, schema=EPISODES)
    rewrite(path, table.slice(0, len(table) - 1))
    assert first_what(check(str(copied), digests=False), "holdout") == "a split has the rows of the release"
    restamp(copied)
    assert found_by(check(str(copied))) == {"digests", "holdout"}


def test_a_split_that_is_left_out_is_missed(small):
    edit_manifest(small, lambda found: found["configs"].pop("holdout"))
    assert found_by(check(str(small), digests=False)) == {"holdout"}
    assert "digests" in found_by(check(str(small)))


def test_shards_in_each_others_place_are_found(small):
    one, other = sorted((small / "default").iterdir())[:2]
    one.rename(small / "x")
    other.rename(one)
    (small / "x").rename(other)
    assert {"digests", "holdout"} <= found_by(check(str(small)))
    assert "holdout" in found_by(check(str(small), digests=False))


def test_training_plays_no_held_out_task(copied, episodes):
    held = pq.read_table(copied / "holdout", schema=HOLDOUT).to_pylist()
    row, other = next((row, task) for row in episodes for task in held if (task["op"], task["kind"]) == (row["op"], "unseen_triple"))

    def change(row: Row) -> None:
        row |= {name: other[name] for name in ("task_id", "shape", "floor_ms")}

    change_row(copied, row["episode_id"], change)
    report = check(str(copied), digests=False)
    assert report.first["holdout"]["default plays no held-out task"].where == row["episode_id"]
    assert "a held-out task is apart from training as its kind says" in report.first["holdout"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", lambda row: "unseen_shape" if row["kind"] == "unseen_triple" else "unseen_triple"),
        ("baseline_ms", lambda row: seven(row["baseline_ms"] * 1.01)),
        ("floor_ms", lambda row: seven(row["floor_ms"] * 0.99)),
        ("best_known_ms", lambda row: row["floor_ms"]),
        ("prompt", lambda row: row["prompt"] + " "),
        ("arch", lambda row: "sm_90a" if row["arch"] != "sm_90a" else "sm_80"),
        ("task_id", lambda row: row["task_id"] + ",X=1"),
    ],
)
def test_a_held_out_task_is_priced_and_worded_again(small, field, value):
    path = next((small / "holdout").iterdir())
    rows = pq.read_table(path, schema=HOLDOUT).to_pylist()
    rows[2][field] = value(rows[2])
    rewrite(path, pa.Table.from_pylist(rows, schema=HOLDOUT))
    report = check(str(small), digests=False)
    first = report.first["holdout"][f"a held-out task is the one the release has here: {field}"]
    assert (first.where, first.message) == (rows[2]["task_id"], None)
    assert ("a held-out task is apart from training as its kind says" in report.first["holdout"]) == (field == "kind")


# -- evidence that is handed in -------------------------------------------------------------------


def test_the_evidence_table_is_asked(tiny):
    assert check(str(tiny), oracle=lambda _, source, point: by_construction(point, source.bug)).ok
    asked = []

    def doubt(task, source, point):
        asked.append((task.gpu.arch, point.fate, source.bug))
        return "compile_error" if task.gpu.arch == "sm_90a" and point.fate == "legal" and source.bug is None else None

    report = check(str(tiny), oracle=doubt)
    assert found_by(report) == {"evidence"}
    assert (list(report.first["evidence"])) == ["a status is what the evidence says"]
    assert {fate for _, fate, _ in asked} >= {"legal", "illegal"}


# -- damaged and hostile files --------------------------------------------------------------------


def outcomes(folder: Path) -> tuple[set[str], set[str]]:
    """What is found with and without digests."""
    return found_by(check(str(folder))), found_by(check(str(folder), digests=False))


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.parquet"))


@pytest.mark.parametrize("size", [0, 1, 4, 100, 0.5, -1, -8, -9])
def test_a_truncated_shard_is_found(small, size):
    for path in shards(small)[1:]:
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * size) if isinstance(size, float) else size])
        found, _ = outcomes(small)
        assert {"digests", "schema"} <= found
        path.write_bytes(data)


def test_a_flipped_bit_is_found(small):
    for number in range(24):
        path = shards(small)[number % len(shards(small))]
        whole = path.read_bytes()
        data = bytearray(whole)
        data[number * 7919 % len(data)] ^= 1 << number % 8
        path.write_bytes(data)
        assert "digests" in found_by(check(str(small)))
        path.write_bytes(whole)


def test_a_missing_shard_is_found(small):
    shards(small)[0].unlink()
    found, without = outcomes(small)
    assert {"digests", "schema"} <= found
    assert {"schema", "holdout"} <= without


def test_a_shard_that_is_no_file_is_not_opened(small):
    folder, pipe, device = shards(small)[:3]
    for path in (folder, pipe, device):
        path.unlink()
    folder.mkdir()
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    report = check(str(small))
    assert report.mismatches["schema"] == 3
    assert {"digests", "schema"} <= found_by(report)


def test_a_parquet_file_that_is_not_listed_is_found(small):
    shutil.copy(shards(small)[0], small / "default" / "train-00009-of-00010.parquet")
    report = check(str(small))
    assert found_by(report) == {"digests"}
    assert report.to_json()[0]["first"]["episode_id"] == "default/train-00009-of-00010.parquet"


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.drop_columns(["floor_ms"]),
        lambda table: table.append_column("extra", table["floor_ms"]),
        lambda table: table.select(table.schema.names[::-1]),
        lambda table: table.set_column(6, "arch", table["arch"].dictionary_encode()),
        lambda table: table.set_column(2, "n_agents", table["n_agents"].cast(pa.int32())),
        lambda table: table.cast(pa.schema([pa.field(f.name, f.type) for f in table.schema])),
        lambda table: table.slice(0, 0),
    ],
)
def test_another_schema_is_found(small, change):
    path = shards(small)[0]
    rewrite(path, change(pq.read_table(path, schema=EPISODES)))
    found, without = outcomes(small)
    assert {"digests", "schema"} <= found or pq.read_metadata(path).num_rows == 0
    assert {"holdout"} <= without


def set_at(*path: object) -> Callable[[dict], None]:
    """Sets the value at the end of `path` in a manifest."""

    def change(found: dict) -> None:
        *way, name, value = path
        for key in way:
            found = found[key]
        found[name] = value

    return change


SHARD = ("configs", "default", "train", "shards", 0)


@pytest.mark.parametrize(
    "change",
    [
        set_at("dataset", "another"),
        set_at("dataset_version", 1),
        set_at("digest", None),
        set_at("versions", []),
        set_at("release", None),
        set_at("release", "seed", -1),
        set_at("release", "seed", True),
        set_at("release", "episodes", 10**30),
        set_at("release", "ops", ["conv"]),
        set_at("release", "ops", [["rope"]]),
        set_at("release", "more", 1),
        set_at("configs", {}),
        set_at("configs", []),
        set_at("configs", "more", {}),
        set_at("configs", "default", None),
        set_at("configs", "default", "test", {}),
        set_at("configs", "default", "train", "shards", {}),
        set_at("configs", "default", "train", "rows", -1),
        set_at("configs", "default", "train", "bytes", 1.5),
        set_at("configs", "default", "train", "arrow_bytes", "1"),
        set_at(*SHARD, None),
        set_at(*SHARD, "name", "../../../etc/passwd"),
        set_at(*SHARD, "name", "/dev/zero"),
        set_at(*SHARD, "rows", 10**30),
        set_at(*SHARD, "sha256", 5),
    ],
)
def test_a_manifest_that_is_none_of_ours_is_refused(small, change):
    edit_manifest(small, change)
    with pytest.raises(DataError, match="manifest is not that of a kernelswarm build"):
        check(str(small))


@pytest.mark.parametrize("text", [b"", b"{", b"null", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"dataset": ' + b"9" * 5000 + b"}", b"\0"])
def test_a_manifest_that_is_no_json_object_is_refused(small, text):
    (small / manifest.NAME).write_bytes(text)
    with pytest.raises(DataError, match="manifest"):
        check(str(small))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (set_at("dataset_version", "9.9.9"), {"digests"}),
        (set_at("digest", "0" * 64), {"digests"}),
        (set_at("configs", "default", "train", "digest", "0" * 64), {"digests"}),
        (set_at("configs", "default", "train", "rows", 5), {"digests"}),
        (set_at(*SHARD, "sha256", "0" * 64), {"digests"}),
        (set_at(*SHARD, "digest", "\ud800"), {"digests"}),
        (set_at(*SHARD, "bytes", 1), {"digests"}),
        (set_at(*SHARD, "rows", 2), {"digests", "holdout"}),
        (set_at("release", "episodes", 2**40), {"digests", "holdout"}),
        (set_at("release", "seed", 1), {"holdout", "regenerate"}),
    ],
)
def test_a_manifest_that_lies_is_found(small, change, found):
    edit_manifest(small, change)
    assert found_by(check(str(small))) == found


# -- the command line -----------------------------------------------------------------------------


def run(capsys, *arguments):
    code = cli.main(["check", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_prints_a_table(capsys, tiny):
    code, out, _ = run(capsys, tiny)
    assert code == 0
    lines = [line.split("\t") for line in out.splitlines()]
    assert lines[0] == ["check", "rows", "mismatches"]
    assert [line[0] for line in lines[1:]] == list(CHECKS)
    assert {line[2] for line in lines[1:]} == {"0"}


def test_the_command_tells_the_first_mismatch_of_each_kind(capsys, copied, episodes):
    episode_id, message = planted(copied, episodes, FAULTS["kept reward"][2])
    code, out, err = run(capsys, copied, "--no-digests")
    assert code == 1
    assert "Traceback" not in err
    line = out.splitlines()[-1]
    assert line.startswith(f"rewards: {episode_id} message {message}: a try earns what its time says: stored 0.")
    assert ", derived " in line


def test_the_command_prints_json(capsys, copied, episodes):
    episode_id, message = planted(copied, episodes, FAULTS["kept reward"][2])
    code, out, _ = run(capsys, copied, "--json")
    assert code == 1
    found = json.loads(out)
    assert [entry["check"] for entry in found] == list(CHECKS)
    assert all(set(entry) == {"check", "rows", "mismatches", "first"} for entry in found)
    rewards = found[CHECKS.index("rewards")]
    assert (rewards["rows"], rewards["mismatches"]) == (len(pq.read_table(copied / "default", columns=["index"])), 1)
    first = rewards["first"]
    assert (first["episode_id"], first["message"]) == (episode_id, message)
    assert first["stored"] == pytest.approx(0.999 * first["derived"], rel=1e-6)
    assert [entry["first"] is None for entry in found] == [entry["mismatches"] == 0 for entry in found]


def test_what_a_file_holds_cannot_write_to_the_terminal(capsys, copied, episodes):
    planted(copied, episodes, of_first("candidate", "variant", "\x1b[31m\x9b" + "x" * 10_000))
    _, out, _ = run(capsys, copied, "--no-digests")
    assert out.isascii()
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) < 1000


@pytest.mark.parametrize("line", ["", "absent", "file", "empty", "bogus://x", "empty --bogus", "empty more"])
def test_bad_input_is_one_line_and_exit_2(capsys, tmp_path, monkeypatch, line):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *line.split())
    assert (code, out) == (2, "")
    assert ERROR.fullmatch(err), err


def test_a_broken_manifest_is_one_line_and_exit_1(capsys, small):
    (small / manifest.NAME).write_text("{")
    code, out, err = run(capsys, small)
    assert (code, out) == (1, "")
    assert ERROR.fullmatch(err), err


def test_no_place_is_an_input_error():
    for url in ("", "a\0b"):
        with pytest.raises(InputError, match="no such folder"):
            check(url)
