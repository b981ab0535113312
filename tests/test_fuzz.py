"""Hostile command lines, manifests, receipts and shards: a clear error or the right bytes, and nothing touched outside the folder."""

import copy
import json
import re
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from generator import build as building
from generator import cli, folder, manifest, parquet, places, receipts, selftest
from generator.build import Outcome, Request, build
from generator.errors import DataError, InputError
from generator.release import Release

SMALL = Release(episodes=6, validation=2)
ERROR = re.compile(r"error: [^\n]+, got [^\n]+, allowed: [^\n]+, [^\n]+\n")
QUICK = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
WHOLE = settings(QUICK, max_examples=40)

ODD = st.sampled_from(["", "..", "../../../outside", "/outside", "a\0b", "\ud800", "-1", "9" * 40, "1e999", "NaN", "--", "💥", "x" * 5000])
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12) | ODD.filter(lambda text: "\ud800" not in text)
VALUES = {
    "--episodes": st.integers(-3, 10**13).map(str) | TEXT,
    "--validation": st.integers(-3, 10**13).map(str) | TEXT,
    "--seed": st.integers(-3, 2**64).map(str) | TEXT,
    "--workers": st.integers(-3, 3000).map(str) | TEXT,
    "--shard-size": st.integers(-3, 10**20).map(str) | TEXT,
    "--op": st.sampled_from(["rmsnorm", "rope", "Rope"]) | TEXT,
    "--gpu": st.sampled_from(["h100", "a10"]) | TEXT,
    "--scenario": st.sampled_from(["dispatch", "pipeline"]) | TEXT,
    "--engine": st.sampled_from(["local", "dask:", "ray:", "local:1"]) | TEXT.filter(lambda text: text not in ("dask", "ray")),
    "--slice": st.tuples(st.integers(-1, 9), st.integers(-1, 9)).map("{0[0]}/{0[1]}".format) | TEXT,
    "--stall": st.floats().map(str) | TEXT,
    "--out": st.sampled_from(["out", "file", "file/below", "hf://datasets/a/b", "nowhere://x"]) | TEXT,
}
FLAGS = st.sampled_from([["--jsonl"], ["--overwrite"], ["--bogus"], ["extra"]])
OPTION = st.sampled_from(sorted(VALUES)).flatmap(lambda name: VALUES[name].map(lambda value: [name, value]))
LINES = st.lists(OPTION | FLAGS, max_size=6).map(lambda parts: ["build", *(word for part in parts for word in part)])


@pytest.fixture
def nothing_built(monkeypatch, tmp_path):
    """Requests are made and refused for real; what they would build is not."""
    empty = {"configs": {"default": {}}, "digest": ""}
    monkeypatch.setattr(building, "build", lambda *_: Outcome(state="built", manifest=empty, shards=0, planned=0, made=0))
    (tmp_path / "file").write_text("mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@QUICK
@given(LINES)
def test_any_command_line_is_taken_or_told_in_one_line(nothing_built, capsys, line):
    code = cli.main(line)
    out, err = capsys.readouterr()
    assert code in (0, 2), line
    assert code == 0 or (ERROR.fullmatch(err) and not out), (line, err)
    assert [path.name for path in nothing_built.iterdir()] == ["file"]


SIZES = st.integers(-10, 2**70) | st.sampled_from([True, 1.5, "3", None])


@QUICK
@given(st.fixed_dictionaries(dict.fromkeys(("seed", "episodes", "validation"), SIZES)))
def test_any_release_is_taken_or_refused(values):
    try:
        release = Release(**values)
    except InputError:
        return
    assert release.rows("train") >= 1
    assert release.key()["seed"] == values["seed"]


def one_line(error):
    assert ERROR.fullmatch(f"error: {error}\n")


def tree(out):
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


class StopError(Exception):
    """Stands in for a crash of the process."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("built") / "out"
    build(Request(out=out, release=SMALL, shard_size=2))
    return out


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """Everything is there but the manifest."""
    out = tmp_path_factory.mktemp("half") / "out"

    def stop(stage, done, total):
        if done == total:
            raise StopError

    with pytest.raises(StopError):
        build(Request(out=out, release=SMALL, shard_size=2), stop)
    return out


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | ODD | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def mutants(draw, data):
    """Bytes that were cut, flipped, replaced, or changed at one place of their JSON."""
    how = draw(st.sampled_from(["flip", "cut", "replace", "value", "value", "value", "delete", "deep"]))
    if how == "deep":
        return b"[" * draw(st.integers(1, 100_000))
    if how in ("flip", "cut", "replace") or not data.startswith(b"{"):
        at = draw(st.integers(0, len(data) - 1))
        new = {"flip": bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]), "cut": b""}.get(how)
        new = draw(st.binary(max_size=20)) if new is None else new
        return data[:at] + new + (b"" if how == "cut" else data[at + 1 :])
    node = root = copy.deepcopy(json.loads(data))
    while True:
        key = draw(st.sampled_from(sorted(node)) if isinstance(node, dict) else st.integers(0, len(node) - 1))
        if not (isinstance(node[key], dict | list) and node[key] and draw(st.integers(0, 3))):
            break
        node = node[key]
    if how == "delete":
        del node[key]
    else:
        node[key] = draw(JSON)
    return json.dumps(root).encode()


def job(out, number=0):
    key = folder.Key(release=SMALL, shard_size=2, selftest=selftest.digest())
    return receipts.Job(shard=parquet.plan(SMALL, out, 2)[number], key=key.digest, selftest=key.selftest)


@QUICK
@given(st.data())
def test_any_receipt_is_the_true_one_or_none(half, data):
    true = receipts.read(job(half))
    path = half / receipts.name(job(half).shard)
    before = path.read_bytes()
    path.write_bytes(data.draw(mutants(before)))
    try:
        found = receipts.read(job(half))
    finally:
        path.write_bytes(before)
    assert found is None or (found.sha256, found.row_digests, found.rows) == (true.sha256, true.row_digests, true.rows)


def signed(data):
    """A hostile receipt that is true to itself."""
    try:
        found = json.loads(data)
        found["sha256"] = receipts._sha256(found["receipt"])
        return json.dumps(found).encode()
    except (ValueError, KeyError, TypeError, RecursionError):
        return data


@QUICK
@given(st.data())
def test_a_forged_receipt_is_of_its_shard_or_none(half, data):
    path = half / receipts.name(job(half).shard)
    before = path.read_bytes()
    path.write_bytes(signed(data.draw(mutants(before))))
    try:
        found = receipts.read(job(half))
    finally:
        path.write_bytes(before)
    if found is not None:
        assert (found.name, found.rows, len(found.row_digests)) == ("default/train-00000-of-00003.parquet", 2, 64)
        assert found.file_bytes == (half / found.name).stat().st_size
        manifest.to_json(building.stats.summarise([found.tally]))


@QUICK
@given(st.data())
def test_any_manifest_is_read_or_told(built, data):
    path = built / "manifest.json"
    before = path.read_bytes()
    path.write_bytes(data.draw(mutants(before)))
    try:
        folder.holds(places.place(built), SMALL)
        building.read(built)
    except DataError as error:
        one_line(error)
    finally:
        path.write_bytes(before)


NAMES = st.sampled_from(
    [
        *("manifest.json", "stats.json", ".build/release.json", ".build/lock", ".build/receipts/default-train-00001-of-00003.json"),
        *("default/train-00000-of-00003.parquet", "default/train-00002-of-00003.parquet", "holdout/test-00000-of-00001.parquet"),
        *(".build/.tmp-1-0-x", "default/.tmp-1-0-x", "default/train-00000-of-00001.parquet", "jsonl/stats.json"),
    ]
)


def resumed(source, reference, base, data):
    """A copy of a build with some of its files altered or swapped, gone on with."""
    out, outside = base / "in" / "out", base / "outside"
    shutil.rmtree(base / "in", ignore_errors=True)
    shutil.copytree(source, out)
    outside.write_text("mine")
    for name in data.draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        other = data.draw(st.sampled_from(sorted(tree(source))))
        content = (source / other).read_bytes() if data.draw(st.booleans()) else (out / name).read_bytes() if path.is_file() else b""
        path.write_bytes(data.draw(mutants(content)) if content and data.draw(st.booleans()) else content)
    before = tree(out)
    try:
        outcome = build(Request(out=out, release=SMALL, shard_size=2))
    except InputError as error:
        one_line(error)
        assert tree(out) == before
    except DataError as error:
        one_line(error)
    else:
        assert outcome.state in ("built", "existing", "repaired")
        if outcome.state == "built":
            assert tree(out) == tree(reference)
    assert sorted(path.name for path in base.iterdir()) == ["in", "outside"]
    assert outside.read_text() == "mine"
    assert [path.name for path in (base / "in").iterdir()] == ["out"]


@WHOLE
@given(st.data())
def test_hostile_folders_end_in_an_error_or_in_the_same_bytes(half, built, tmp_path_factory, data):
    resumed(half, built, tmp_path_factory.mktemp("hostile"), data)


@WHOLE
@given(st.data())
def test_hostile_finished_builds_end_in_an_error_or_are_mended(built, tmp_path_factory, data):
    resumed(built, built, tmp_path_factory.mktemp("hostile"), data)


@pytest.mark.slow
@settings(WHOLE, max_examples=1000, derandomize=False)
@given(st.data())
def test_a_thousand_hostile_folders(half, built, tmp_path_factory, data):
    resumed(data.draw(st.sampled_from([half, built])), built, tmp_path_factory.mktemp("hostile"), data)
