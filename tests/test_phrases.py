"""Text is true to the numbers beside it."""

import re

import pyarrow as pa
import pytest

from generator.phrases import ms, percent, sweep
from generator.release import training_tasks
from generator.task import landscape


@pytest.mark.parametrize(
    ("time", "text"),
    [(0.0123456, "0.01235"), (0.5, "0.5000"), (12.3456, "12.35"), (123456.7, "123457"), (1000.0, "1000"), (999.95, "1000")],
)
def test_times_have_four_significant_digits(time: float, text: str):
    assert ms(time) == text


def test_percent():
    assert percent(0.5, 2.0) == "25%"


def test_a_sweep_names_what_moves_and_what_stays():
    land = landscape(training_tasks()[0])
    points = land.legal[land.ladder[-1]]
    text = sweep(points)
    for name in points[0].params:
        values = sorted({p.params[name] for p in points})
        assert f"{name}={','.join(map(str, values))}" in text
    assert sweep(points[:1]) == points[0].label


def test_every_time_beside_a_text_is_in_it(train: pa.Table):
    for row in train.slice(0, 200).to_pylist():
        for m in row["messages"]:
            if m["time_ms"] is not None:
                assert ms(m["time_ms"]) in m["content"], (row["episode_id"], m)


def test_what_a_leader_asks_is_addressed_and_named(train: pa.Table):
    for row in train.slice(0, 200).to_pylist():
        for m in row["messages"]:
            if m["kind"] in {"dispatch", "redirect"}:
                variant, span = m["subtask"].split(": ", 1)
                assert m["content"].startswith(f"{m['to']}: ")
                assert variant in m["content"]
                assert span in m["content"]
            if m["kind"] == "handoff":
                assert m["content"].startswith(f"to {m['to']}: ")
                assert row["messages"][m["reply_to"]]["variant"] in m["content"]


def test_plans_begin_as_the_originals(rows: list[dict]):
    for row in rows:
        assert re.match(rf"campaign: {row['op']} {row['gpu']} [A-Z]+=\d+.*\. plan: ", row["messages"][0]["content"])


def test_text_is_terse_and_varied(train: pa.Table):
    seen: dict[str, set[str]] = {}
    for row in train.slice(0, 200).to_pylist():
        for m in row["messages"]:
            if m["kind"] not in {"candidate", "leaderboard"}:
                assert len(m["content"]) < 360, m["content"]
                seen.setdefault(m["kind"], set()).add(re.sub(r"[\d.]+", "#", m["content"]))
    assert all(len(shapes) >= 3 for shapes in seen.values())
