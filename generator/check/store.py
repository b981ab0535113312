"""A built folder as the check reads it: its manifest, typed and refused if it is not one, and its shards in batches.

Local or any fsspec URL. Nothing is opened but regular files under the names that a build gives its shards, so a hostile manifest cannot
lead anywhere else; nothing is held but one batch.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Final, TypeVar, cast

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from generator import manifest
from generator.errors import DataError, InputError
from generator.parquet import shard_name
from generator.release import Release
from schema.arrow import CONFIGS

T = TypeVar("T")

BATCH: Final = 100
"""Episodes read at a time, as many as a row group has: about 15 MB."""
SPLITS: Final = {"default": ("train", "validation"), "holdout": ("test",)}
_BLOCK: Final = 1 << 20
_BROKEN: Final = (OSError, ValueError, MemoryError, NotImplementedError, OverflowError, pa.ArrowException)
"""What pyarrow and file systems raise for a damaged file."""


class UnreadableError(Exception):
    """A shard cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One shard, as the manifest lists it."""

    config: str
    split: str
    name: str
    start: int
    """Rows of the split before it."""
    rows: int
    bytes: int
    sha256: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One split, as the manifest lists it."""

    config: str
    name: str
    rows: int
    bytes: int
    digest: str
    shards: tuple[Listed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A folder with a readable manifest."""

    fs: Any
    root: str
    dataset_version: str
    digest: str
    release: Release
    splits: tuple[Split, ...]

    def size(self, name: str) -> int:
        """Bytes of a regular file. Raises UnreadableError if it is none."""
        with _unreadable():
            info = self.fs.info(f"{self.root}/{name}")
            if info["type"] != "file":
                raise OSError(f"it is no file but {info['type']}")
            return int(info["size"])

    def sha256(self, name: str) -> str:
        """Of a whole file, as hex. Raises UnreadableError."""
        total = hashlib.sha256()
        with _unreadable(), self._open(name) as file:
            while block := file.read(_BLOCK):
                total.update(block)
        return total.hexdigest()

    def names(self, config: str) -> list[str]:
        """Parquet files in the folder of a config, as `default/...`."""
        try:
            found = self.fs.ls(f"{self.root}/{config}", detail=False)
        except (OSError, ValueError):
            return []
        names = (str(path).rstrip("/").rsplit("/", 1)[-1] for path in found)
        return sorted(f"{config}/{name}" for name in names if name.endswith(".parquet"))

    def batches(self, shard: Listed) -> Iterator[pa.Table]:
        """The rows of a shard. Raises UnreadableError, also if they are not of the contract's schema."""
        self.size(shard.name)
        with contextlib.ExitStack() as stack:
            with _unreadable():
                file = pq.ParquetFile(stack.enter_context(self._open(shard.name)))
                if not file.schema_arrow.equals(CONFIGS[shard.config], check_metadata=False):
                    raise ValueError(_difference(file.schema_arrow, CONFIGS[shard.config]))
                found = file.iter_batches(batch_size=BATCH)
            while True:
                with _unreadable():
                    batch = next(found, None)
                    if batch is None:
                        return
                    table = pa.Table.from_batches([batch]).replace_schema_metadata(None)
                    table.validate(full=True)
                yield table

    def _open(self, name: str) -> IO[bytes]:
        return cast("IO[bytes]", self.fs.open(f"{self.root}/{name}", "rb"))


def open_build(url: str) -> Build:
    """The build at a path or URL. Raises InputError if there is none, DataError if its manifest is not one of ours."""
    if "\0" in url or not url:
        raise InputError("no such folder", url, "a folder that `build` finished", "give the --out of a build")
    try:
        fs, root = fsspec.core.url_to_fs(url)
        folder, there = fs.isdir(root), fs.isfile(f"{root.rstrip('/')}/{manifest.NAME}")
    except (OSError, ValueError, ImportError) as error:
        raise InputError("this place cannot be read", url, "a folder, or a URL that fsspec can open", _first_line(error)) from error
    if not there:
        what = "no build here" if folder else "no such folder"
        raise InputError(what, url, "a folder that `build` finished", "give the --out of a build")
    try:
        found = json.loads(fs.cat_file(f"{root.rstrip('/')}/{manifest.NAME}"))
    except (OSError, ValueError, RecursionError) as error:
        raise _refused(f"{url}: {_first_line(error)}") from error
    return _parse(fs, root.rstrip("/"), found)


def _parse(fs: Any, root: str, found: object) -> Build:
    if _get(found, "dataset", str) != manifest.DATASET:
        raise _refused("dataset")
    for value in _get(found, "versions", dict).values():
        if type(value) is not str:
            raise _refused(f"versions {value!r}")
    configs = _get(found, "configs", dict)
    unknown = [name for name in configs if name not in SPLITS]
    if unknown or "default" not in configs:
        raise _refused(f"configs {list(configs)}")
    return Build(
        fs=fs,
        root=root,
        dataset_version=_get(found, "dataset_version", str),
        digest=_get(found, "digest", str),
        release=_release(_get(found, "release", dict)),
        splits=tuple(_split(config, name, configs) for config in configs for name in _get(configs, config, dict)),
    )


def _release(key: dict[str, object]) -> Release:
    """The release of a manifest, whose every key must be one of a release's."""
    sizes = {name: _get(key, name, int) for name in ("seed", "episodes", "validation")}
    filters: dict[str, tuple[str, ...]] = {name: tuple(_get(key, name, list)) for name in ("ops", "gpus", "scenarios")}
    try:
        release = Release(**sizes, **filters)  # type: ignore[arg-type]
    except InputError as error:
        raise _refused(f"release: {error.what} {error.value!r}") from error
    if release.key() != key:
        raise _refused(f"release {key}")
    return release


def _split(config: str, name: str, configs: dict[str, Any]) -> Split:
    if name not in SPLITS[config]:
        raise _refused(f"split {config}/{name}")
    found = configs[config][name]
    listed = _get(found, "shards", list)
    shards: list[Listed] = []
    start = 0
    for number, entry in enumerate(listed):
        expected = shard_name(config, name, number, len(listed))
        if _get(entry, "name", str) != expected:
            raise _refused(f"{entry['name']!r} instead of {expected}")
        rows, size = _count(entry, "rows"), _count(entry, "bytes")
        digests = {what: _get(entry, what, str) for what in ("sha256", "digest")}
        shards.append(Listed(config=config, split=name, name=expected, start=start, rows=rows, bytes=size, **digests))
        start += rows
    digest = _get(found, "digest", str)
    _count(found, "arrow_bytes")  # what pyarrow once needed in memory; readers need it, nothing derives it
    return Split(config=config, name=name, rows=_count(found, "rows"), bytes=_count(found, "bytes"), digest=digest, shards=tuple(shards))


def _count(node: object, key: str) -> int:
    number = _get(node, key, int)
    if not 0 <= number < 2**63:
        raise _refused(f"{key} {number}")
    return number


def _get(node: object, key: str, kind: type[T]) -> T:
    """The value of a key, of exactly this type (a bool is no int)."""
    found = node.get(key) if isinstance(node, dict) else None
    if type(found) is not kind:
        raise _refused(f"{key} {str(found)[:80]!r}")
    return found


def _refused(value: str) -> DataError:
    return DataError("the manifest is not that of a kernelswarm build", value[:200], "what `build` writes", "build it again")


@contextlib.contextmanager
def _unreadable() -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise UnreadableError(_first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0].strip() or type(error).__name__


def _difference(found: pa.Schema, schema: pa.Schema) -> str:
    """The first column that differs, as a phrase."""
    for name in schema.names:
        at = found.get_field_index(name)
        if at < 0:
            return f"column {name} is missing"
        if not found.field(at).equals(schema.field(name)):
            null = "" if found.field(at).nullable == schema.field(name).nullable else ", nullability differs"
            return f"column {name} is {found.field(at).type}{null}"
    extra = [name for name in found.names if name not in schema.names]
    return f"column {extra[0]} is not in the contract" if extra else "the columns are in another order"
