"""Tables that many tests read, built once a session."""

import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

# Read when huggingface_hub and datasets are imported: no test may reach a network or a cache of the user's.
_HOME = tempfile.TemporaryDirectory(prefix="kernelswarm-tests-")
os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=_HOME.name, HF_DATASETS_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_TELEMETRY="1")

from generator.build import Request, build
from generator.episodes import build_range
from generator.holdout import build_holdout
from generator.release import Release


@pytest.fixture(scope="session")
def release() -> Release:
    return Release()


@pytest.fixture(scope="session")
def train(release: Release) -> pa.Table:
    """The whole train split of the default release."""
    return build_range(release, "train", 0, release.rows("train"))


@pytest.fixture(scope="session")
def sample(train: pa.Table) -> pa.Table:
    """Indices 0-67: every op in every scenario."""
    return train.slice(0, 68).combine_chunks()


@pytest.fixture
def rows(sample: pa.Table) -> list[dict]:
    """The sample as dicts, anew for each test: it may change them."""
    return sample.to_pylist()


@pytest.fixture(scope="session")
def holdout(release: Release) -> pa.Table:
    return build_holdout(release)


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of 68 + 10 episodes in three shards, with the original's layout beside the Parquet; read only."""
    out = tmp_path_factory.mktemp("export") / "kernelswarm"
    build(Request(out=out, release=Release(episodes=68, validation=10), shard_size=30, jsonl=True))
    return out
