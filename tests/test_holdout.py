import pyarrow as pa
import pytest

from generator.holdout import build_holdout
from generator.ops import BY_NAME
from generator.release import Release, training_tasks
from generator.task import landscape, task
from schema.arrow import HOLDOUT


def test_sizes_and_types(holdout: pa.Table):
    assert holdout.schema.equals(HOLDOUT)
    kinds = holdout["kind"].to_pylist()
    assert (kinds.count("unseen_triple"), kinds.count("unseen_shape")) == (51, 102)
    assert not set(holdout["task_id"].to_pylist()) & {t.task_id for t in training_tasks()}


def test_times_are_the_landscapes(holdout: pa.Table):
    for row in holdout.to_pylist()[::10]:
        land = landscape(task(row["op"], row["gpu"], tuple(v for v in (row["shape"][a] for a in BY_NAME[row["op"]].axes))))
        assert row["best_known_ms"] == land.best.ms
        assert row["baseline_ms"] == land.baseline.ms
        assert row["floor_ms"] < row["best_known_ms"] < row["baseline_ms"]
        assert row["best_known_speedup"] == pytest.approx(row["baseline_ms"] / row["best_known_ms"], rel=1e-6)


def test_prompts_state_the_task(holdout: pa.Table):
    for row in holdout.to_pylist():
        op, text = BY_NAME[row["op"]], row["prompt"]
        assert op.summary in text
        assert f"{row['gpu']} (" in text
        assert row["arch"] in text
        assert all((f"- {v.name}: {v.idea}" in text) == (v.flaw is None) for v in op.variants)
        assert all(f"{a}={row['shape'][a]}" in text for a in op.axes)
        assert "log2(baseline / best) / 4" in text


def test_every_listed_point_can_be_answered(holdout: pa.Table):
    """A policy that answers with a listed point names a source that renders."""
    row = holdout.slice(0, 1).to_pylist()[0]
    op = BY_NAME[row["op"]]
    for line in row["prompt"].splitlines():
        if line.startswith("- ") and ". " in line:
            name = line[2:].split(":")[0]
            for label in line.rsplit(". ", 1)[1].split("; "):
                params = {k: int(v) for k, v in (pair.split("=") for pair in label.split())}
                assert params in op.variant(name).points


def test_filters(release: Release):
    part = build_holdout(Release(ops=("rope",), gpus=("h100",)))
    assert set(part["op"].to_pylist()) == {"rope"}
    assert set(part["gpu"].to_pylist()) == {"h100"}
    assert part.num_rows in {1, 2}
