"""The acceptance check of an export: would the Hub's viewer and every reader of the Parquet get what the card promises?

The Hub itself looks at the first 100 rows; this reads every shard: names, schema to the last nullability, row groups, page index, empty
or non-finite content, the YAML against the footers, the manifest against the bytes. It says nothing of labels; `generator.check` does.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets.info import DatasetInfosDict
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCardData, metadata_load

from generator import card, files, manifest, preview
from generator.errors import DataError, InputError
from schema.arrow import CONFIGS

SPLITS: Final = {"default": ("train", "validation"), "holdout": ("test",)}
ROW_GROUP_BYTES: Final = 100_000_000
"""Uncompressed; above it the viewer shows no page. https://huggingface.co/docs/dataset-viewer/parquet"""
COLUMNS: Final = 1000
"""Leaf columns that the viewer takes."""
NO_BOUNDS: Final = frozenset({"messages.list.element.content", "prompt"})
"""Columns whose pages may have no bounds: texts longer than the 4 kB that a column index stores. They have an offset index all the same."""
ROOT: Final = frozenset({"README.md", manifest.NAME, "stats.json", ".gitattributes"})
FOLDERS: Final = frozenset({*CONFIGS, "figures", "jsonl", ".cache"})

_NAME: Final = re.compile(r"([a-z]+)-(\d{5})-of-(\d{5})\.parquet")

Shards = dict[tuple[str, str], list[Path]]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a reader would stumble over."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def check(folder: Path) -> list[Finding]:
    """Everything wrong with an export, nothing if it may be published. Raises InputError if there is no such folder."""
    if not folder.is_dir():
        raise InputError("no such folder", str(folder), "the folder of a build", "give the --out of a build")
    shards, findings = _shards(folder)
    findings += _strangers(folder)
    sizes: dict[tuple[str, str], tuple[int, int]] = {}
    for (config, split), paths in shards.items():
        rows = 0
        for path in paths:
            found, count = _shard(path, f"{config}/{path.name}", CONFIGS[config])
            findings += found
            rows += count
        sizes[config, split] = rows, sum(path.stat().st_size for path in paths)
    findings += _header(folder / "README.md", sizes)
    findings += _manifest(folder, shards)
    return findings + ([] if findings else list(_previews(folder, shards)))


def _shards(folder: Path) -> tuple[Shards, list[Finding]]:
    """The shards of each split in order, and what is wrong with their names."""
    shards: Shards = {}
    findings = []
    for config, splits in SPLITS.items():
        for path in sorted((folder / config).iterdir()) if (folder / config).is_dir() else []:
            match = _NAME.fullmatch(path.name)
            if match is None or match[1] not in splits:
                findings.append(Finding(f"{config}/{path.name}", f"not a name of a shard: {' or '.join(splits)}-00000-of-0000N.parquet"))
            else:
                shards.setdefault((config, match[1]), []).append(path)
    for (config, split), paths in shards.items():
        expected = [f"{split}-{number:05d}-of-{len(paths):05d}.parquet" for number in range(len(paths))]
        if [path.name for path in paths] != expected:
            findings.append(Finding(f"{config}/{split}", f"the shards are not 0 to {len(paths) - 1} of {len(paths)}"))
    if ("default", "train") not in shards:
        findings.append(Finding("default/train", "there is no such split"))
    return shards, findings


def _strangers(folder: Path) -> Iterator[Finding]:
    """Files at the root that would be taken for a loading script or for data, or do not belong there."""
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py":
            yield Finding(path.name, "a script at the root makes `load_dataset` of datasets 4 and later refuse the whole repository")
        elif path.name.startswith(files.TEMPORARY) or path.name == ".build":
            yield Finding(path.name, "a leftover of a build that was cut short")
        elif path.name not in (FOLDERS if path.is_dir() else ROOT):
            yield Finding(path.name, "no build writes this")
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            yield Finding(path.relative_to(folder).as_posix(), "a link, not a file")


def _shard(path: Path, where: str, schema: pa.Schema) -> tuple[list[Finding], int]:
    """Findings of one file, and its rows."""
    try:
        with pq.ParquetFile(path) as file:
            whats = [*_form(file, schema), *_finite(file)]
            return [Finding(where, what) for what in whats], file.metadata.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        return [Finding(where, f"cannot be read: {' '.join(str(error).split())[:200]}")], 0


def _form(file: Any, schema: pa.Schema) -> Iterator[str]:
    if not file.schema_arrow.equals(schema, check_metadata=True):
        yield _difference(file.schema_arrow, schema)
    if file.metadata.num_rows == 0:
        yield "no rows: readers refuse an empty shard"
    if file.metadata.num_columns > COLUMNS:
        yield f"{file.metadata.num_columns} leaf columns, the viewer takes {COLUMNS}"
    strange = sorted(name.decode(errors="replace") for name in set(file.metadata.metadata or {}) - {b"ARROW:schema"})
    if strange:
        yield f"metadata {strange}: older versions of datasets cannot read every type that it names"
    unindexed: set[str] = set()
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        if group.total_byte_size > ROW_GROUP_BYTES:
            yield f"row group {number} has {group.total_byte_size:,} bytes, the viewer reads up to {ROW_GROUP_BYTES:,}"
        for column in (group.column(i) for i in range(group.num_columns)):
            if not column.has_offset_index or (not column.has_column_index and column.path_in_schema not in NO_BOUNDS):
                unindexed.add(column.path_in_schema)
    if unindexed:
        yield f"{len(unindexed)} columns have no page index, {min(unindexed)} among them"


def _difference(found: pa.Schema, schema: pa.Schema) -> str:
    if found.metadata != schema.metadata:
        return f"the schema has metadata {sorted(found.metadata or {})}"
    if found.names != schema.names:
        extra, missing = sorted(set(found.names) - set(schema.names)), sorted(set(schema.names) - set(found.names))
        return f"the columns are not the contract's, or in another order: missing {missing}, extra {extra}"
    fields = [name for name in schema.names if not found.field(name).equals(schema.field(name), check_metadata=True)]
    kinds = [name for name in fields if not found.field(name).type.equals(schema.field(name).type)]
    return f"another type or nullability than schema/arrow.py: {', '.join(kinds or fields)}"


def _finite(file: Any) -> Iterator[str]:
    """NaN and infinities break the viewer's statistics."""
    leaves = [file.schema.column(i) for i in range(len(file.schema))]
    reals = [leaf.path for leaf in leaves if leaf.physical_type in ("DOUBLE", "FLOAT")]
    bad: set[str] = set()
    for number in range(file.metadata.num_row_groups):
        table = file.read_row_group(number, columns=reals)
        for name in table.schema.names:
            bad.update(_not_finite(name, table[name].combine_chunks()))
    if bad:
        yield f"NaN or infinity in {', '.join(sorted(bad))}"


def _not_finite(name: str, array: Any) -> Iterator[str]:
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if pa.types.is_struct(array.type):
        for field, child in zip(array.type, array.flatten(), strict=True):
            yield from _not_finite(f"{name}.{field.name}", child)
    elif pa.types.is_list(array.type):
        yield from _not_finite(name, array.flatten())
    elif pa.types.is_floating(array.type) and pc.all(pc.is_finite(array)).as_py() is False:
        yield name


def _header(path: Path, sizes: Mapping[tuple[str, str], tuple[int, int]]) -> Iterator[Finding]:
    """The card's YAML against the footers: `sizes` gives rows and bytes of each split."""
    where = path.name
    try:
        header = metadata_load(path) or {}
        data = DatasetCardData(**header)
        configs = MetadataConfigs.from_dataset_card_data(data)
        infos = DatasetInfosDict.from_dataset_card_data(data)
    except Exception as error:  # noqa: BLE001 - whatever a parser trips over is a finding
        yield Finding(where, f"the YAML header cannot be read: {' '.join(str(error).split())[:200]}")
        return
    splits: dict[str, list[str]] = {}
    for config, split in sizes:
        splits.setdefault(config, []).append(split)
    yield from (Finding(where, what) for what in _configs(configs, splits))
    for config in splits:
        if config in infos:
            yield from (Finding(where, f"dataset_info of {config}: {what}") for what in _info(infos[config], config, sizes))
    if set(infos) != set(splits):
        yield Finding(where, f"dataset_info has {sorted(infos)}, the files are {sorted(splits)}")
    for name in ("license", "language", "task_categories", "tags", "size_categories", "pretty_name"):
        if not header.get(name):
            yield Finding(where, f"the YAML header has no {name}")


def _configs(configs: Mapping[str, Any], splits: Mapping[str, list[str]]) -> Iterator[str]:
    if not configs:
        yield "no `configs`: every file would be taken for data"
    elif set(configs) != set(splits):
        yield f"configs has {sorted(configs)}, the files are {sorted(splits)}"
    defaults = [name for name, config in configs.items() if config.get("default")]
    if configs and defaults != ["default"]:
        yield f"the default config is {defaults}, not `default` alone"
    for config, names in splits.items():
        wanted = [{"split": split, "path": f"{config}/{split}-*.parquet"} for split in names]
        if config in configs and configs[config].get("data_files") != wanted:
            yield f"configs of {config} name other files than {config}/SPLIT-*.parquet"


def _info(info: Any, config: str, sizes: Mapping[tuple[str, str], tuple[int, int]]) -> Iterator[str]:
    if info.features != card.features(config) or list(info.features or ()) != CONFIGS[config].names:
        yield "the features are not those of schema/arrow.py"
    stated = {name: split.num_examples for name, split in (info.splits or {}).items()}
    counted = {split: rows for (of, split), (rows, _) in sizes.items() if of == config}
    if stated != counted:
        yield f"the splits are stated as {stated}, the files have {counted}"
    size = sum(size for (of, _), (_, size) in sizes.items() if of == config)
    if info.download_size != size:
        yield f"download_size is stated as {info.download_size}, the files have {size}"
    if info.dataset_size != sum(split.num_bytes for split in (info.splits or {}).values()):
        yield "dataset_size is not the sum of num_bytes"


def _manifest(folder: Path, shards: Shards) -> Iterator[Finding]:
    """The manifest against the files, to the last byte."""
    try:
        found = manifest.read(folder)
        listed = {shard["name"]: shard for splits in found["configs"].values() for split in splits.values() for shard in split["shards"]}
    except (DataError, KeyError, TypeError, AttributeError):
        yield Finding(manifest.NAME, "no readable manifest: the build is not finished")
        return
    there = {f"{config}/{path.name}": path for (config, _), paths in shards.items() for path in paths}
    for name in sorted({*there, *listed}):
        if name not in listed:
            yield Finding(name, "not in the manifest: a leftover of another build")
        elif name not in there:
            yield Finding(name, "is in the manifest and missing")
        elif _sha256(there[name]) != listed[name].get("sha256"):
            yield Finding(name, "is not the file of the manifest: its SHA-256 differs")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _previews(folder: Path, shards: Shards) -> Iterator[Finding]:
    for shown in previews(folder, shards):
        cut = [name for name in shown.cut if not pa.types.is_nested(CONFIGS[shown.config].field(name).type)]
        if cut:
            yield Finding(f"{shown.config}/{shown.split}", f"the viewer's first page cuts {', '.join(cut)}, which a reader needs whole")


def previews(folder: Path, shards: Shards | None = None) -> list[preview.Preview]:
    """The viewer's first page of each split."""
    return [preview.first_rows(paths, config, split) for (config, split), paths in (shards or _shards(folder)[0]).items()]
