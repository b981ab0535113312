import itertools
import re

import pytest
import yaml
from datasets import Features
from datasets.info import DatasetInfosDict
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCard

from generator import card, columns, manifest
from generator.build import Request, build
from generator.build import read as read_build
from generator.errors import DataError
from generator.ops import OPS
from generator.release import Release
from schema import arrow, vocab


@pytest.fixture(scope="module")
def header(export):
    return DatasetCard.load(export / "README.md").data


def test_infos_and_configs_come_back_equal(export, header):
    found = manifest.read(export)
    infos = DatasetInfosDict.from_dataset_card_data(header)
    assert {name: info.features for name, info in infos.items()} == {name: card.features(name) for name in arrow.CONFIGS}
    assert infos.keys() == card.infos(found).keys()
    for name, info in card.infos(found).items():
        assert {s.name: (s.num_examples, s.num_bytes) for s in infos[name].splits.values()} == {
            s.name: (s.num_examples, s.num_bytes) for s in info.splits.values()
        }
        assert (infos[name].download_size, infos[name].dataset_size) == (info.download_size, info.dataset_size)
    assert MetadataConfigs.from_dataset_card_data(header) == card.configs(found)


def test_split_sizes_are_exact(export, header):
    infos = header.to_dict()["dataset_info"]
    sizes = {(info["config_name"], split["name"]): split["num_examples"] for info in infos for split in info["splits"]}
    tasks = manifest.read(export)["configs"]["holdout"]["test"]["rows"]
    assert sizes == {("default", "train"): 68, ("default", "validation"): 10, ("holdout", "test"): tasks}


def test_default_is_the_default(header):
    assert [(c["config_name"], c.get("default", False)) for c in header.to_dict()["configs"]] == [("default", True), ("holdout", False)]


def test_features_are_of_types_that_every_version_knows(export):
    text = (export / "README.md").read_text(encoding="utf-8").split("---")[1]
    infos = yaml.safe_load(text)["dataset_info"]
    assert set(re.findall(r"dtype: (\S+)", text)) == {"string", "int64", "float64", "bool"}
    assert not re.search(r"Json|_type|large_list|sequence", text)
    assert [field["name"] for field in infos[0]["features"]] == arrow.EPISODES.names


@pytest.mark.parametrize("config", arrow.CONFIGS)
def test_features_are_the_schemas(config):
    features = card.features(config)
    assert isinstance(features, Features)
    assert features.arrow_schema.names == arrow.CONFIGS[config].names
    assert [field.type for field in arrow.CONFIGS[config] if field.name not in ("agents", "messages")] == [
        features.arrow_schema.field(field.name).type for field in arrow.CONFIGS[config] if field.name not in ("agents", "messages")
    ]


def test_no_validation_means_no_such_split_anywhere(tmp_path):
    build(Request(out=tmp_path / "out", release=Release(episodes=4, validation=0)))
    head, body = (tmp_path / "out" / "README.md").read_text(encoding="utf-8").split("---\n", 2)[1:]
    assert "validation" not in head
    assert "`validation`" not in body
    assert not list((tmp_path / "out" / "default").glob("validation*"))


@pytest.mark.parametrize(
    ("meanings", "fields"),
    [
        (columns.EPISODE, arrow.EPISODES),
        (columns.AGENT, arrow.AGENT),
        (columns.MESSAGE, arrow.MESSAGE),
        (columns.TASK, arrow.HOLDOUT),
    ],
)
def test_every_column_has_a_meaning(meanings, fields):
    assert list(meanings) == [field.name for field in fields]


def test_every_kind_column_scenario_and_op_is_named(export):
    text = (export / "README.md").read_text(encoding="utf-8")
    names = [*vocab.KINDS, *vocab.SCENARIOS, *columns.EPISODE, *columns.TASK, *columns.MESSAGE, *(op.name for op in OPS)]
    assert [name for name in names if f"| `{name}` |" not in text] == []


def test_numbers_are_those_of_the_build(export):
    found, totals = read_build(export)
    text = (export / "README.md").read_text(encoding="utf-8")
    for number in (f"{totals['messages']:,}", f"{totals['tries']:,}", f"{totals['mean_messages']:.1f}", found["digest"]):
        assert number in text
    assert "$" not in text
    assert f"| `verdict` | lead | `time_ms`, `variant`, `params` | {vocab.PAYLOADS['verdict'].meaning} | 68 |" in text


def test_tables_are_well_formed(export):
    rows = [line for line in (export / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    width = None
    for row, following in itertools.pairwise(rows):
        cells = len(re.findall(r"(?<!\\)\|", row))
        width = cells if re.fullmatch(r"[| -]+", following) else width
        assert cells == width, row


def test_the_command_builds_the_release_again():
    key = Release(seed=3, episodes=500, validation=0, ops=("rope", "rmsnorm"), gpus=("a10",)).key()
    assert card._command(key) == ("python -m generator build --episodes 500 --validation 0 --seed 3 --op rmsnorm --op rope --gpu a10")


def test_a_template_that_asks_for_more_is_refused(export, tmp_path, monkeypatch):
    (tmp_path / "card.md").write_text("$no_such_number")
    monkeypatch.setattr(card, "TEMPLATE", tmp_path / "card.md")
    with pytest.raises(DataError, match="no_such_number"):
        card.render(*read_build(export))


@pytest.mark.parametrize(("rows", "size"), [(10, "n<1K"), (2640, "1K<n<10K"), (5_000_000, "n>1M")])
def test_size_category(export, rows, size):
    found = manifest.read(export)
    found["configs"]["default"] = {"train": {**found["configs"]["default"]["train"], "rows": rows}}
    assert card.metadata(found).size_categories == [size]
