import os
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pytest
from datasets import load_dataset

from generator import card, manifest
from generator.digest import table_digest
from generator.errors import InputError
from kernelswarm import KernelSwarm
from schema.arrow import CONFIGS, EPISODES
from schema.version import DATASET_VERSION

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def digests(export):
    configs = manifest.read(export)["configs"]
    return {split: found["digest"] for splits in configs.values() for split, found in splits.items()}


def builder(tmp_path, config="default", **options):
    return KernelSwarm(config_name=config, cache_dir=str(tmp_path), **({"episodes": 68, "validation": 10} | options))


def digest(dataset, schema=EPISODES):
    return table_digest(pa.Table.from_batches(dataset.data.table.to_batches()).cast(schema))


@pytest.mark.parametrize("processes", [None, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_builder_makes_the_rows_of_the_export(tmp_path, digests, processes):
    made = builder(tmp_path, episodes=68 if processes is None else 168)
    made.download_and_prepare(num_proc=processes)
    found = made.as_dataset()
    assert found["train"].features == card.features("default")
    first = found["train"].select(range(68)).flatten_indices() if processes else found["train"]
    assert digest(first) == digests["train"]
    assert digest(found["validation"]) == digests["validation"]


def test_builder_streams_the_rows_of_the_export(tmp_path, digests):
    streams = builder(tmp_path).as_streaming_dataset()
    for split, stream in streams.items():
        assert stream.features == card.features("default")
        assert table_digest(pa.Table.from_pylist(list(stream), schema=EPISODES)) == digests[split]


def test_builder_makes_the_holdout_of_the_export(tmp_path, digests):
    made = builder(tmp_path, "holdout")
    made.download_and_prepare()
    found = made.as_dataset()
    assert list(found) == ["test"]
    assert digest(found["test"], CONFIGS["holdout"]) == digests["test"]


def test_no_validation_no_such_split(tmp_path):
    assert list(builder(tmp_path, validation=0).as_streaming_dataset()) == ["train"]


def test_one_list_is_shared_out(tmp_path):
    for generator in builder(tmp_path, episodes=250)._split_generators(None):
        assert [name for name, value in generator.gen_kwargs.items() if isinstance(value, list)] == ["ranges"]
    assert builder(tmp_path, episodes=250).as_streaming_dataset(split="train").num_shards == 3


def test_version_and_options_name_the_cache(tmp_path):
    plain, seeded = builder(tmp_path), builder(tmp_path, seed=1)
    assert str(plain.VERSION) == str(plain.config.version) == DATASET_VERSION
    assert plain.cache_dir != seeded.cache_dir
    assert DATASET_VERSION in plain.cache_dir


def test_another_seed_is_other_rows(tmp_path):
    ids = [next(iter(builder(tmp_path, seed=seed).as_streaming_dataset(split="train")))["messages"] for seed in (0, 1)]
    assert ids[0] != ids[1]


@pytest.mark.parametrize("options", [{"episodes": 0}, {"episodes": -1}, {"seed": -1}, {"validation": -1}, {"episodes": "68"}])
def test_bad_options_are_refused_at_once(tmp_path, options):
    with pytest.raises(InputError):
        builder(tmp_path, **options)


def test_unknown_config_is_refused(tmp_path):
    with pytest.raises(ValueError, match="BuilderConfig 'sft' not found"):
        builder(tmp_path, "sft")


@pytest.mark.parametrize("config", CONFIGS)
def test_an_export_loads_typed(export, digests, tmp_path, config):
    loaded = load_dataset(str(export), config, cache_dir=str(tmp_path))
    for split, found in loaded.items():
        assert found.features == card.features(config)
        assert digest(found, CONFIGS[config]) == digests[split]


@pytest.mark.parametrize("config", CONFIGS)
def test_an_export_streams(export, digests, tmp_path, config):
    for split, stream in load_dataset(str(export), config, streaming=True, cache_dir=str(tmp_path)).items():
        assert table_digest(pa.Table.from_pylist(list(stream), schema=CONFIGS[config])) == digests[split]


def test_a_folder_named_kernelswarm_loads_by_its_name(export, tmp_path, monkeypatch):
    monkeypatch.chdir(export.parent)
    assert load_dataset("kernelswarm", split="validation", cache_dir=str(tmp_path)).num_rows == 10


def test_an_export_holds_no_script(export):
    assert not list(export.rglob("*.py"))


@pytest.mark.parametrize("package", ["schema", "generator"])
def test_a_stranger_of_the_same_name_is_told(tmp_path, package):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    code = [sys.executable, "-P", "-c", "import kernelswarm"]
    found = subprocess.run(code, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert f"kernelswarm needs its own package '{package}'" in found.stderr.splitlines()[-1]
    assert str(tmp_path) in found.stderr.splitlines()[-1]


def test_datasets_is_one_that_is_supported():
    assert tuple(int(part) for part in datasets.__version__.split(".")[:2]) >= (3, 6)
