"""Where a build may lie: folders, object stores, and what is refused."""

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from generator import build as building
from generator import folder, places
from generator.build import Request, build
from generator.errors import DataError, InputError
from generator.release import Release

ROOT = Path(__file__).parents[1]
SMALL = Release(episodes=6, validation=2)


class StopError(Exception):
    """Stands in for a crash of the process."""


def request(out, **options):
    return Request(out=out, **{"release": SMALL, "shard_size": 2, **options})


def content(out):
    place = places.place(out)
    return {name: place.read(name) for name in place.names() if not name.endswith("/")}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    out = tmp_path_factory.mktemp("reference") / "out"
    build(request(out))
    return content(out)


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    return "memory://bucket/builds/one"


@pytest.mark.parametrize("form", ["file://{}", "{}", "{}/", "{}/../out"])
def test_a_path_and_a_file_url_name_the_same_folder(tmp_path, form, reference):
    build(request(form.format(tmp_path / "out")))
    assert content(tmp_path / "out") == reference


def test_a_relative_path_is_that_of_this_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(places.place("out")) == str(tmp_path / "out")


def test_an_object_store_gets_the_same_bytes_and_nothing_else(memory, reference):
    assert build(request(memory)).state == "built"
    assert content(memory) == reference
    assert all(name.startswith("/bucket/builds/one/") for name in MemoryFileSystem.store)
    assert build(request(memory)).state == "existing"
    assert building.read(memory)[0]["release"]["episodes"] == 6


def test_every_object_is_put_in_one_call(memory, monkeypatch):
    puts = []
    monkeypatch.setattr(
        MemoryFileSystem, "pipe_file", lambda fs, path, data, **_: puts.append(path) or fs.store.update({path: stored(fs, path, data)})
    )
    build(request(memory))
    assert {path.rpartition("/")[2] for path in puts} >= {"manifest.json", "train-00002-of-00003.parquet", "release.json"}
    assert puts[0].endswith(".build/release.json")
    assert puts[-1].endswith("manifest.json")


def stored(fs, path, data):
    from fsspec.implementations.memory import MemoryFile

    return MemoryFile(fs, path, data)


@pytest.mark.parametrize("put", range(11))
def test_a_crash_at_any_put_is_survived(memory, monkeypatch, reference, put):
    real, count = MemoryFileSystem.pipe_file, iter(range(1000))

    def crash(fs, path, data, **options):
        if next(count) == put:
            raise StopError
        real(fs, path, data, **options)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", crash)
    with contextlib.suppress(OSError, InputError):
        build(request(memory))
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", real)
    build(request(memory))
    assert content(memory) == reference


def test_slices_of_an_object_store_are_completed_by_a_whole_run(memory, reference):
    assert [build(request(memory, part=(number, 2))).state for number in (0, 1)] == ["partial", "partial"]
    assert build(request(memory)).made == 0
    assert content(memory) == reference


def test_an_object_that_was_altered_is_put_again(memory, reference):
    build(request(memory))
    fs = fsspec.filesystem("memory")
    name = "/bucket/builds/one/default/train-00001-of-00003.parquet"
    data = bytearray(fs.cat_file(name))
    data[99] ^= 1
    fs.pipe_file(name, bytes(data))
    assert build(request(memory)).state == "repaired"
    assert content(memory) == reference


def test_what_others_keep_in_the_store_is_not_touched(memory):
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/bucket/builds/two", b"mine")
    build(request(memory))
    fs.pipe_file("/bucket/builds/one/notes.txt", b"mine")
    with pytest.raises(InputError, match="no build writes"):
        build(request(memory, release=Release(episodes=3, validation=0), overwrite=True))
    fs.rm_file("/bucket/builds/one/notes.txt")
    build(request(memory, release=Release(episodes=3, validation=0), overwrite=True))
    assert fs.cat_file("/bucket/builds/two") == b"mine"
    assert not [name for name in content(memory) if "of-00003" in name]


@pytest.mark.parametrize(
    "out", ["", "a\0b", "s3://", "memory://", "memory:///", "nowhere://x/y", "hf://datasets/a/b", "hf://a/b", "hf://spaces/a/b"]
)
def test_places_that_no_build_goes_to(out):
    with pytest.raises(InputError):
        request(out)


def test_a_hub_repository_is_refused_with_the_reason():
    with pytest.raises(InputError, match=r"each file would be a commit.*hf://buckets.*push"):
        request("hf://datasets/someone/kernelswarm")


def test_a_missing_extra_is_named(monkeypatch):
    def missing(url, **_):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(InputError, match=r"pip install 'kernelswarm\[s3\]'"):
        request("s3://bucket/missing-extra")


def test_a_hub_bucket_is_an_object_store(memory, monkeypatch, reference):
    """By contract: the bucket's file system is asked for listings, whole reads and whole puts, and for nothing else."""
    calls = set()

    class Bucket(MemoryFileSystem):
        protocol = "hf"
        cachable = False

        def __getattribute__(self, name):
            if not name.startswith("_"):
                calls.add(name)
            return super().__getattribute__(name)

        @classmethod
        def _strip_protocol(cls, path):
            return MemoryFileSystem._strip_protocol(path.removeprefix("hf://"))

    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url, **_: (Bucket(), Bucket._strip_protocol(url)))
    url = "hf://buckets/someone/somewhere/kernelswarm"
    places._open.cache_clear()
    build(request(url))
    assert content(url) == reference
    assert {"pipe_file", "cat_file", "find", "info", "rm_file", "invalidate_cache"} <= calls
    assert not {"open", "put", "mv", "move", "copy", "touch", "rm"} & calls - {"open"}
    places._open.cache_clear()


def test_what_a_store_raises_is_one_kind_of_error(memory, monkeypatch):
    def fail(fs, path, data, **_):
        raise RuntimeError("credentials have expired")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", fail)
    with pytest.raises(InputError, match=r"cannot be written.*credentials have expired"):
        build(request(memory))


def moto():
    """The server of a virtual environment of its own: it cannot share one with s3fs."""
    found = os.environ.get("MOTO_SERVER") or shutil.which(str(ROOT / ".venv/moto/bin/moto_server"))
    return found if importlib.util.find_spec("s3fs") else None


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([moto(), "-H", "127.0.0.1", "-p", str(port)], **quiet)
    end = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            break
        assert time.monotonic() < end
        time.sleep(0.1)
    places._open.cache_clear()
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir("bucket")
    yield "s3://bucket/builds/one"
    server.kill()
    server.wait()
    places._open.cache_clear()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not moto(), reason="needs the extra kernelswarm[s3], and moto_server in .venv/moto or $MOTO_SERVER")
def test_s3_gets_the_same_bytes_also_after_a_crash(bucket, reference):
    told = []

    def stop(stage, done, total):
        told.append(done)
        if len(told) == 4:
            raise StopError

    with pytest.raises(StopError):
        build(request(bucket), stop)
    half = content(bucket)
    assert "manifest.json" not in half
    assert folder.MARK in half
    assert {name: data for name, data in half.items() if name.endswith(".parquet")}.items() <= reference.items()
    with pytest.raises(InputError, match="unfinished build of another release"):
        build(request(bucket, release=Release(episodes=5, validation=0)))
    assert build(request(bucket, workers=2)).made < 5
    assert content(bucket) == reference
    assert build(request(bucket)).state == "existing"
    places.place(bucket).write("manifest.json", b"{")
    with pytest.raises(DataError, match="no readable manifest"):
        building.read(bucket)
