import os
import subprocess
import sys

import pyarrow as pa
import pytest

from generator.episodes import build_range, play, regenerate
from generator.errors import InputError
from generator.release import Release, cells
from schema.arrow import EPISODES

ROWS = 240


@pytest.fixture(scope="module")
def table(train: pa.Table) -> pa.Table:
    return train.slice(0, ROWS).combine_chunks()


def test_range_equals_its_parts(release: Release, table: pa.Table):
    parts = [build_range(release, "train", i, i + 24) for i in range(0, ROWS, 24)]
    assert pa.concat_tables(parts).combine_chunks().equals(table)


def test_parts_in_any_order(release: Release, table: pa.Table):
    for start in (200, 7, 111):
        assert build_range(release, "train", start, start + 3).combine_chunks().equals(table.slice(start, 3).combine_chunks())


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_the_hash_seed_moves_nothing(hash_seed: str, table: pa.Table):
    code = (
        "import hashlib; from generator.episodes import build_range; from generator.release import Release;"
        "t = build_range(Release(), 'train', 60, 72); print(hashlib.sha256(repr(t.to_pylist()).encode()).hexdigest())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
    )
    import hashlib

    assert out.stdout.strip() == hashlib.sha256(repr(table.slice(60, 12).to_pylist()).encode()).hexdigest()


def test_schema_is_the_contract(table: pa.Table):
    assert table.schema.equals(EPISODES)


def reference_row(seed: int, split: str, index: int) -> dict:
    """The slow way: one dict a row, straight from the played campaign."""
    episode = play(seed, split, index)
    stage, task = episode.stage, episode.cell.task
    shape = {axis: task.shape.get(axis) for axis in EPISODES.field("shape").type.names}
    messages = [
        dict(zip(m._fields, m, strict=True)) | {"t": t, "params": None if m.params is None else dict(m.params)}
        for m, t in zip(stage.log.messages, episode.seconds, strict=True)
    ]
    agents = [{k: getattr(a, k) for k in ("id", "role", "skill", "tries", "kept", "best_ms")} for a in (stage.lead, *stage.team)]
    return {
        "episode_id": episode.episode_id,
        "shape": shape,
        "agents": agents,
        "messages": messages,
        "best_ms": stage.best_ms,
        "op": task.op.name,
    }


@pytest.mark.parametrize("index", range(0, 68, 5))
def test_columns_equal_the_slow_way(rows: list[dict], index: int):
    row, slow = rows[index], reference_row(0, "train", index)
    for m in row["messages"]:
        if m["params"] is not None:
            m["params"] = {k: v for k, v in m["params"].items() if v is not None}
    for name in slow:
        if name != "messages":
            assert row[name] == slow[name]
    assert row["messages"] == [{k: m[k] for k in row["messages"][0]} for m in slow["messages"]]


def test_splits_and_seeds_differ():
    a, b, c = (play(0, "train", 5), play(0, "validation", 5), play(1, "train", 5))
    texts = [[m.content for m in e.stage.log.messages if m.kind not in {"candidate", "plan"}] for e in (a, b, c)]
    assert texts[0] != texts[1]
    assert texts[0] != texts[2]
    assert a.stage.baseline_ms != b.stage.baseline_ms


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_neighbouring_seeds_share_no_episode(seed: int):
    def prints(s: int) -> set[tuple]:
        return {tuple(m.time_ms for m in play(s, "train", i).stage.log.messages if m.time_ms) for i in range(68)}

    assert not prints(seed) & prints(seed + 1)


def test_ids_follow_the_form(train: pa.Table):
    ids = train["episode_id"].to_pylist()
    assert len(set(ids)) == len(ids)
    n = len(cells())
    assert not any("-" in i for i in ids[:n])
    assert all(i.endswith("-r1") for i in ids[n : 2 * n])
    assert all(i.endswith("-r2") for i in ids[2 * n :])
    validation = build_range(Release(episodes=1, validation=2 * n + 1), "validation", n - 1, n + 1)["episode_id"].to_pylist()
    assert validation[0].endswith("-v")
    assert validation[1].endswith("-v1")


@pytest.mark.parametrize("at", [0, 33, 67, 1500, 2399])
def test_an_id_regenerates_its_row(train: pa.Table, at: int):
    row = train.slice(at, 1).combine_chunks()
    assert regenerate(row["episode_id"][0].as_py()).combine_chunks().equals(row)


def test_a_validation_id_regenerates_its_row(release: Release):
    row = build_range(release, "validation", 11, 12)
    assert regenerate(row["episode_id"][0].as_py()).equals(row)


def test_no_altered_id_is_accepted(rows: list[dict]):
    """Every change of one character names nothing, or another row that has that very id."""
    good = rows[3]["episode_id"]
    for i in range(len(good)):
        for c in "0x-_9":
            bad = good[:i] + c + good[i + 1 :]
            if bad != good:
                with pytest.raises(InputError):
                    regenerate(bad)
    for bad in (good + "-r0", good + "-v0", good + " ", "", good + "-r99999999999999999999", good.upper(), good + "-r1"):
        with pytest.raises(InputError):
            regenerate(bad)


def test_the_seed_belongs_to_the_id(rows: list[dict]):
    refused = 0
    for row in rows:
        try:
            regenerate(row["episode_id"], seed=1)
        except InputError:
            refused += 1
    assert refused > 0.7 * len(rows)  # the others have as many messages under either seed
