"""Whole releases through the command, as people run it: slow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import load_dataset

from generator import manifest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def command(folder, hash_seed, *options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed}
    subprocess.run([sys.executable, "-m", "generator", "build", *options], cwd=folder, env=environment, check=True, capture_output=True)
    return manifest.read(folder / "kernelswarm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("default")
    command(folder, "1", "--workers", "2", "--jsonl")
    return folder


def test_the_default_release_loads_with_its_rows(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    rows = {name: split.num_rows for name, split in load_dataset("kernelswarm", cache_dir=str(tmp_path)).items()}
    assert rows == {"train": 2400, "validation": 240}
    assert load_dataset("kernelswarm", "holdout", split="test", cache_dir=str(tmp_path)).num_rows == 153


def test_workers_shards_and_hash_seeds_do_not_move_the_rows(folder, tmp_path):
    other = command(tmp_path, "2", "--workers", "1", "--shard-size", "177")
    assert other["digest"] == manifest.read(folder / "kernelswarm")["digest"]
    assert json.loads((tmp_path / "kernelswarm/stats.json").read_text()) == json.loads((folder / "kernelswarm/stats.json").read_text())


def test_the_originals_layout_is_24_batches_of_100(folder):
    batches = sorted((folder / "kernelswarm/jsonl/batches").iterdir())
    assert [path.name for path in batches] == [f"batch_{number:03d}.jsonl" for number in range(24)]
    assert [path.read_bytes().count(b"\n") for path in batches] == [100] * 24
    assert b"".join(path.read_bytes() for path in batches) == (folder / "kernelswarm/jsonl/episodes.jsonl").read_bytes()


def test_six_files_of_400(folder):
    shards = manifest.shards(manifest.read(folder / "kernelswarm"), "default", "train")
    assert shards == [(f"default/train-{number:05d}-of-00006.parquet", 400) for number in range(6)]
