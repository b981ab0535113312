"""What the default release promises of its train split as a whole."""

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from generator.gpus import BY_NAME as GPU_BY_NAME
from generator.ops import OPS
from generator.release import cells, training_tasks
from generator.task import landscape
from schema import vocab


@pytest.fixture(scope="module")
def messages(train: pa.Table) -> pa.StructArray:
    return train["messages"].combine_chunks().flatten()


@pytest.fixture(scope="module")
def agents(train: pa.Table) -> dict[str, np.ndarray]:
    """One entry per specialist that tried something, with the optimum of its task."""
    optimum = {c.task.task_id: landscape(c.task).best.ms for c in cells()}
    best = [optimum[t] for t in train["task_id"].to_pylist()]
    flat = train["agents"].combine_chunks().flatten()
    counts = pc.list_value_length(train["agents"].combine_chunks()).to_numpy()
    columns = {
        name: pc.cast(flat.field(name), pa.float64()).to_numpy(zero_copy_only=False) for name in ("skill", "tries", "kept", "best_ms")
    }
    columns["optimum"] = np.repeat(best, counts)
    columns["row"] = np.repeat(np.arange(train.num_rows), counts)
    columns["id"] = np.array(flat.field("id").to_pylist())
    return columns


def test_everything_occurs(train: pa.Table, messages: pa.StructArray):
    assert set(train["op"].unique().to_pylist()) == set(vocab.OPS)
    assert set(train["gpu"].unique().to_pylist()) == set(vocab.GPUS)
    assert {op.impl for op in OPS} == set(train["impl"].unique().to_pylist())
    assert set(messages.field("kind").unique().to_pylist()) == set(vocab.KINDS)
    assert set(messages.field("status").unique().to_pylist()) - {None} == set(vocab.STATUSES)
    assert pc.count_distinct(train["episode_id"]).as_py() == 2400
    assert all(train["arch"][i].as_py() == GPU_BY_NAME[train["gpu"][i].as_py()].arch for i in range(0, 2400, 100))


def test_counts(train: pa.Table, messages: pa.StructArray):
    scenarios = Counter(train["scenario"].to_pylist())
    assert all(abs(n - 600) <= 18 for n in scenarios.values())
    assert len(messages) == pytest.approx(170_000, rel=0.05)
    assert pc.mean(train["n_agents"]).as_py() == pytest.approx(8.6, abs=0.3)
    elapsed = pc.min_max(train["elapsed_s"]).as_py()
    assert 3600 <= elapsed["min"] < elapsed["max"] <= 18000


def test_outcome_mix(messages: pa.StructArray):
    counts = Counter(messages.field("status").to_pylist())
    total = sum(n for status, n in counts.items() if status not in {None, "baseline"})
    share = {status: 100 * counts[status] / total for status in vocab.STATUSES if status != "baseline"}
    bands = {
        "kept": (20, 45),
        "no_improvement": (25, 55),
        "compile_error": (5, 15),
        "wrong_result": (3, 12),
        "unsupported_arch": (1, 8),
    }
    assert all(low <= share[status] <= high for status, (low, high) in bands.items()), share


def test_every_variant_that_is_legal_somewhere_is_tried(train: pa.Table, messages: pa.StructArray):
    rows = np.repeat(train["op"].to_numpy(), train["num_messages"].to_numpy())
    position = np.concatenate([np.arange(n) for n in train["num_messages"].to_numpy()])
    candidates = pc.equal(messages.field("kind"), "candidate").to_numpy(zero_copy_only=False) & (position > 1)
    tried = Counter(zip(rows[candidates], np.array(messages.field("variant").to_pylist())[candidates], strict=True))
    assert all(tried[op.name, v.name] >= 20 for op in OPS for v in op.variants)


def test_for_most_ops_the_winner_depends_on_the_gpu_and_on_the_shape():
    winners = {(t.op.name, t.gpu.name, tuple(t.shape.values())): landscape(t).best.variant.name for t in training_tasks()}

    def ops_that_differ(*fixed: int) -> set[str]:
        """Ops with several winners among tasks that agree in the `fixed` parts of the key."""
        found = defaultdict(set)
        for key, winner in winners.items():
            found[tuple(key[i] for i in fixed)].add(winner)
        return {key[0] for key, several in found.items() if len(several) > 1}

    assert len(ops_that_differ(0, 2)) > 0.8 * len(OPS)  # one shape, board by board
    assert len(ops_that_differ(0, 1)) > 0.6 * len(OPS)  # one board, shape by shape


def test_skill_shows(train: pa.Table, messages: pa.StructArray, agents: dict[str, np.ndarray]):
    """By skill quartile errors per try fall to half or less, and so does the distance from the optimum."""
    rows = np.repeat(np.arange(train.num_rows), train["num_messages"].to_numpy())
    status, to = np.array(messages.field("status").to_pylist()), np.array(messages.field("to").to_pylist())
    wrong = np.isin(status, ["compile_error", "wrong_result", "unsupported_arch"])
    errors = Counter(zip(rows[wrong].tolist(), to[wrong].tolist(), strict=True))
    active = agents["tries"] > 0
    skill = agents["skill"][active]
    bad = np.array([errors[r, i] for r, i in zip(agents["row"][active].tolist(), agents["id"][active].tolist(), strict=True)])
    quartile = np.digitize(skill, np.quantile(skill, [0.25, 0.5, 0.75]))
    rate = [bad[quartile == q].sum() / agents["tries"][active][quartile == q].sum() for q in range(4)]
    gap = [np.nanmedian((agents["best_ms"] / agents["optimum"])[active][quartile == q]) for q in range(4)]
    assert rate == sorted(rate, reverse=True)
    assert rate[3] <= 0.5 * rate[0]
    assert gap == sorted(gap, reverse=True)


def test_times_obey_physics(train: pa.Table):
    floors = {c.task.task_id: landscape(c.task).floor_ms for c in cells()}
    assert all(f == floors[t] for f, t in zip(train["floor_ms"].to_pylist(), train["task_id"].to_pylist(), strict=True))
    assert pc.all(pc.greater_equal(train["best_ms"], train["floor_ms"])).as_py()


def test_the_first_page_shows_all_scenarios_and_several_ops(train: pa.Table):
    first = train.slice(0, 10)
    assert len(set(first["scenario"].to_pylist())) == 4
    assert len(set(first["op"].to_pylist())) >= 4
