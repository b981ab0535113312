import itertools
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from datasets import Features
from datasets.info import DatasetInfosDict
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCard

from generator import card, columns, facts, figures, manifest, proof, showcase
from generator.build import Request, build
from generator.build import read as read_build
from generator.errors import DataError, InputError
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
        card.render(*read_build(export), showcase.pick(manifest.read(export), lambda name: (export / name).read_bytes()))


@pytest.mark.parametrize(("rows", "size"), [(10, "n<1K"), (2640, "1K<n<10K"), (5_000_000, "n>1M")])
def test_size_category(export, rows, size):
    found = manifest.read(export)
    found["configs"]["default"] = {"train": {**found["configs"]["default"]["train"], "rows": rows}}
    assert card.metadata(found).size_categories == [size]


@pytest.fixture(scope="module")
def illustrated(tmp_path_factory):
    out = tmp_path_factory.mktemp("illustrated") / "kernelswarm"
    build(Request(out=out, release=Release(episodes=68, validation=4), figures=True))
    return out


def read_files(folder):
    return lambda name: (folder / name).read_bytes()


def test_the_snippets_run(illustrated, tmp_path):
    snippets = re.findall(r"```python\n(.*?)```", (illustrated / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:
        command = [sys.executable, "-W", "ignore", "-c", snippet]
        environment = {**os.environ, "HF_HOME": str(tmp_path)}
        found = subprocess.run(command, cwd=illustrated.parent, env=environment, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr
        assert found.stdout


def test_pictures_are_there_with_a_text_each(illustrated):
    text = (illustrated / "README.md").read_text(encoding="utf-8")
    pictures = {name: alt for alt, name in re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", text)}
    assert sorted(pictures) == sorted(figures.NAMES)
    for name, alt in pictures.items():
        data = (illustrated / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) < 200_000
        assert re.search(r"\d", alt)
    assert {path.name for path in (illustrated / "figures").iterdir()} == {Path(name).name for name in figures.NAMES}
    assert re.findall(r"^!\[", text, re.MULTILINE) == ["![", "![", "!["]


def test_pictures_do_not_change(illustrated):
    found = manifest.read(illustrated)
    row = showcase.pick(found, read_files(illustrated))
    for figure in figures.draw(found, read_files(illustrated), row):
        assert figure.png == (illustrated / figure.name).read_bytes()


def test_texts_of_pictures_are_computed(illustrated):
    found = manifest.read(illustrated)
    rows = pq.read_table(illustrated / "default/train-00000-of-00001.parquet").to_pylist()
    row = showcase.pick(found, read_files(illustrated))
    speedup, outcomes, course = (figure.alt for figure in figures.draw(found, read_files(illustrated), row))
    tries = sum(agent["tries"] for row in rows for agent in row["agents"])
    assert f"{tries:,} tries" in outcomes
    pairs = {}
    for r in rows:
        pairs.setdefault((r["op"], r["gpu"]), []).append(r["speedup"])
    medians = sorted(statistics.median(values) for values in pairs.values())
    assert f"({medians[0]:.2f}x)" in speedup
    assert f"({medians[-1]:.2f}x)" in speedup
    assert f"{row['best_ms']:g} ms" in course


def test_no_matplotlib_no_pictures_and_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"kernelswarm\[figures\]"):
        Request(out=tmp_path / "out", figures=True)
    assert not (tmp_path / "out").exists()


def test_a_campaign_is_shown_whole(illustrated):
    text = (illustrated / "README.md").read_text(encoding="utf-8")
    row = showcase.pick(manifest.read(illustrated), read_files(illustrated))
    assert any(message["status"] in ("compile_error", "wrong_result", "unsupported_arch") for message in row["messages"])
    assert f"`{row['episode_id']}`" in text
    short, whole = text.split(showcase.FENCE + "text\n")[1:]
    for part in (short, whole):
        assert len(re.findall(r"^ +\d+  \d:\d\d:\d\d  ", part, re.MULTILINE)) == row["num_messages"]
    assert not [line for m in row["messages"] for line in m["content"].splitlines() if line.strip() not in whole]
    assert all(showcase.FENCE not in message["content"] for message in row["messages"])


def test_proof_counts_what_the_tables_say(monkeypatch):
    table = {
        "op": "x",
        "toolchain": {"nvcc": "13.0.88", "gxx": "12"},
        "points": {
            "a t=1": {"check": ["ok", 0.1]},
            "a t=2": {"check": ["numeric", 1.0, "ragged"]},
            "a t=1 bug=b": {"check": ["race", None, "ragged", "thread 1"]},
            "a t=2 bug=b": {"check": ["ok", 0.1]},
            "a t=2 bug=c": {"check": ["ok", 0.1]},
        },
        "sources": {
            "1": {"of": "a N=1 t=1", "sm_80": {"k": [1, 2, 3]}, "sm_90a": {"k": [1, 2, 3]}},
            "2": {"of": "a N=1 t=3", "sm_80": "error"},
            "3": {"of": "a N=1 t=1 bug=b", "sm_80": {"k": [1, 2, 3]}},
        },
    }
    monkeypatch.setattr("generator.facts.table", lambda _: facts.loads(json.dumps(table)))
    found = proof.gather(OPS[:1])
    assert found == proof.Proof(ops=1, sources=1, compiled=2, right=1, bugs=1, tools=("nvcc 13.0.88",))
    assert "1 sources of 1 ops were compiled with nvcc 13.0.88" in proof.sentence(found)


def test_the_tag_is_named(illustrated):
    found = manifest.read(illustrated)
    assert f'revision="{card.tag_name(found)}"' in (illustrated / "README.md").read_text(encoding="utf-8")


def test_the_card_of_the_sample_is_up_to_date():
    folder = Path(__file__).parents[1] / "data/sample"
    if not (folder / manifest.NAME).is_file():
        pytest.skip("no sample is built")
    text = (folder / "README.md").read_text(encoding="utf-8")
    row = showcase.pick(manifest.read(folder), read_files(folder))
    drawn = figures.draw(manifest.read(folder), read_files(folder), row) if (folder / "figures").is_dir() else ()
    assert card.render(*read_build(folder), row, drawn) == text, "run `make sample`"
