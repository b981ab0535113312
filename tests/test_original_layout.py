"""Why the original could not be loaded, shown on a tiny folder of its layout, and that ours loads with the same files beside it."""

import json

import pytest
from datasets import load_dataset
from datasets.exceptions import DatasetGenerationError

TASK = {"task_id": "rope_h100_M=1", "op": "rope", "gpu": "h100", "shape": {"M": 1}, "kind": "unseen_shape"}
STATS = {"episodes": 4, "by_op": {"rmsnorm": 2, "rope": 2}}


def episode(number):
    shape = {"M": 4096, "N": 4096} if number % 2 else {"B": 8, "H": 32, "T": 4096}
    messages = [
        {"role": "lead", "agent": "lead", "kind": "plan", "content": "split", "t": 1.5, "reward": 0},
        {
            "role": "worker",
            "agent": "a01",
            "kind": "candidate",
            "content": "source",
            "t": 2,
            "reward": 0,
            "params": {f"block_{number}": 64},
        },
    ]
    return {"episode_id": f"e{number}", "shape": shape, "speedup": 2.5, "agents": [{"id": "lead", "best_ms": None}], "messages": messages}


@pytest.fixture
def original(tmp_path):
    """The files of the original's page, without `configs:` in its README, as there."""
    folder = tmp_path / "original"
    (folder / "batches").mkdir(parents=True)
    lines = [json.dumps(episode(number)) + "\n" for number in range(4)]
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# kernelswarm\n")
    (folder / "batches/batch_000.jsonl").write_text("".join(lines[:2]))
    (folder / "batches/batch_001.jsonl").write_text("".join(lines[2:]))
    (folder / "episodes.jsonl").write_text("".join(lines))
    (folder / "stats.json").write_text(json.dumps(STATS, indent=2))
    (folder / "tasks_holdout.jsonl").write_text(json.dumps(TASK) + "\n")
    return folder


def test_the_originals_layout_does_not_load(original, tmp_path):
    with pytest.raises(DatasetGenerationError) as error:
        load_dataset(str(original), cache_dir=str(tmp_path / "cache"))
    assert "Expected object or value" in str(error.value.__cause__)


def test_without_its_statistics_a_second_fault_shows(original, tmp_path):
    (original / "stats.json").unlink()
    with pytest.raises(DatasetGenerationError) as error:
        load_dataset(str(original), cache_dir=str(tmp_path / "cache"))
    assert "column names don't match" in str(error.value.__cause__)


def test_without_its_tasks_every_row_comes_twice(original, tmp_path):
    (original / "stats.json").unlink()
    (original / "tasks_holdout.jsonl").unlink()
    ids = load_dataset(str(original), split="train", cache_dir=str(tmp_path / "cache"))["episode_id"]
    assert sorted(ids) == sorted(2 * [f"e{number}" for number in range(4)])


def test_ours_loads_with_the_same_files_beside_it(export, tmp_path):
    assert (export / "jsonl/stats.json").is_file()
    loaded = load_dataset(str(export), cache_dir=str(tmp_path / "cache"))
    assert {name: len(split) for name, split in loaded.items()} == {"train": 68, "validation": 10}
    assert len(set(loaded["train"]["episode_id"])) == 68
