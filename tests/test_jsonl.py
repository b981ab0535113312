import json

import pyarrow as pa
import pytest

from generator import jsonl
from generator.build import Request, build
from generator.release import Release
from schema.arrow import EPISODES, HOLDOUT
from schema.vocab import PAYLOADS

ORIGINAL = [
    *("episode_id", "scenario", "n_agents", "op", "impl", "gpu", "arch", "dtype", "shape"),
    *("baseline_ms", "best_ms", "speedup", "elapsed_s", "agents", "num_messages", "messages"),
]


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def episodes(export):
    return lines(export / "jsonl/episodes.jsonl")


def test_the_files_are_the_originals(export):
    names = sorted(path.relative_to(export).as_posix() for path in (export / "jsonl").rglob("*") if path.is_file())
    assert names == ["jsonl/batches/batch_000.jsonl", "jsonl/episodes.jsonl", "jsonl/stats.json", "jsonl/tasks_holdout.jsonl"]
    assert (export / "jsonl/stats.json").read_bytes() == (export / "stats.json").read_bytes()


def test_a_batch_holds_a_hundred_rows_across_shards(tmp_path):
    release = Release(episodes=110, validation=0, scenarios=("pipeline", "dispatch"))
    build(Request(out=tmp_path / "out", release=release, shard_size=17, jsonl=True))
    rows = release.splits()["train"]
    batches = [path.read_bytes() for path in sorted((tmp_path / "out/jsonl/batches").iterdir())]
    assert [batch.count(b"\n") for batch in batches] == [min(100, rows - start) for start in range(0, rows, 100)]
    assert b"".join(batches) == (tmp_path / "out/jsonl/episodes.jsonl").read_bytes()


def test_lines_hold_the_rows_exactly(episodes, sample):
    assert pa.Table.from_pylist(episodes, schema=EPISODES).equals(sample)


def test_tasks_hold_the_rows_exactly(export, holdout):
    assert pa.Table.from_pylist(lines(export / "jsonl/tasks_holdout.jsonl"), schema=HOLDOUT).equals(holdout)


def test_the_originals_columns_come_first(episodes):
    assert all(list(row)[:16] == ORIGINAL for row in episodes)


def test_nulls_are_left_out_but_for_an_agents_best(episodes):
    for row in episodes:
        assert None not in row["shape"].values()
        for message in row["messages"]:
            assert None not in message.values()
            assert None not in message.get("params", {}).values()
        assert all("best_ms" in agent for agent in row["agents"])
    assert any(agent["best_ms"] is None for row in episodes for agent in row["agents"])


def test_messages_carry_what_their_kind_does(episodes):
    for message in (message for row in episodes for message in row["messages"]):
        payload = PAYLOADS[message["kind"]]
        carried = set(message) - {"role", "agent", "kind", "content", "t", "reward"}
        assert set(payload.required) - {"to"} <= carried <= {*payload.required, *payload.optional, "to"}


def test_text_is_not_escaped():
    assert jsonl._line({"a": "µ\n"}) == '{"a": "µ\\n"}\n'.encode()


def test_no_line_can_hold_a_nan():
    with pytest.raises(ValueError, match="not JSON compliant"):
        jsonl._line({"a": float("nan")})
