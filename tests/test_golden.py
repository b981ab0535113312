"""Bytes are promised: when they move without a version, the first episode that changed is shown."""

import difflib
import json
from pathlib import Path

import golden
import pyarrow.parquet as pq
import pytest

from generator.digest import table_digest
from generator.episodes import build_range
from generator.holdout import build_holdout
from generator.release import Release
from schema.version import DATASET_VERSION

SAMPLE = Path(__file__).parents[1] / "data" / "sample"
STORED = json.loads(golden.FILE.read_text(encoding="utf-8"))
ADVICE = "\nIf the change is meant: bump schema/version.py, then run `make sample` and `make golden`, and say in CHANGELOG.md what moved."


def story(row: dict) -> list[str]:
    """One line per value of a row, sources cut to their first line."""
    lines = [f"{k}: {v}" for k, v in row.items() if k not in {"messages", "agents"}]
    lines += [f"agent {a}" for a in row["agents"]]
    for m in row["messages"]:
        text = m["content"].splitlines()[0] if m["kind"] == "candidate" else m["content"]
        lines.append(f"{m['t']} {m['agent']} {m['kind']} {text} | { ({k: v for k, v in m.items() if v is not None and k != 'content'}) }")
    return lines


def first_change(old: list[dict], new: list[dict]) -> str:
    """A unified diff of the first row that differs, as text."""
    for before, after in zip(old, new, strict=True):
        if before != after:
            diff = difflib.unified_diff(story(before), story(after), "stored", "generated", n=1, lineterm="")
            return "\n".join([f"first changed episode: {before['episode_id']}", *list(diff)[:60]])
    return "no row of the sample changed"


def test_the_sample_is_what_the_code_generates(rows: list[dict]):
    stored = pq.read_table(SAMPLE / "default").to_pylist()
    assert len(stored) == 68
    assert stored == rows, first_change(stored, rows) + ADVICE


def test_golden_digests_are_of_this_version():
    assert STORED["dataset_version"] == DATASET_VERSION, ADVICE


@pytest.mark.parametrize("which", golden.RANGES, ids=lambda w: golden.name(*w))
def test_rows_have_their_golden_digest(which: tuple[str, int, int, int]):
    split, start, stop, seed = which
    table = build_range(Release(seed=seed), split, start, stop)
    assert table_digest(table) == STORED[golden.name(*which)], f"{table['episode_id'][0]} or a row after it changed" + ADVICE


def test_holdout_has_its_golden_digest():
    assert table_digest(build_holdout(Release())) == STORED["holdout"], ADVICE


def test_a_change_is_shown(rows: list[dict]):
    changed = [dict(row) for row in rows]
    changed[3] = changed[3] | {"best_ms": 1.25}
    text = first_change(rows, changed)
    assert rows[3]["episode_id"] in text
    assert "+best_ms: 1.25" in text
