"""`manifest.json`: what a build holds, with digests, and the commit point of a build: it is written last.

It names the release, each file with its size and SHA-256, and the digests of the Arrow values. It says nothing of when, where, by how
many workers or by which engine it was built, so equal builds have equal manifests.
"""

import configparser
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from generator import places
from generator.digest import split_digest
from generator.errors import DataError
from generator.parquet import Receipt
from generator.release import Release
from schema.arrow import CONFIGS
from schema.version import DATASET_VERSION

NAME: Final = "manifest.json"
DATASET: Final = "kernelswarm"

Manifest = dict[str, Any]


def make(release: Release, receipts: Iterable[Receipt]) -> Manifest:
    """The manifest of a release from the receipts of its shards, in the order of the plan; takes one receipt at a time."""
    configs: dict[str, dict[str, Any]] = {}
    for (config, split), group in itertools.groupby(receipts, key=lambda r: (r.config, r.split)):
        configs.setdefault(config, {})[split] = _split(config, group)
    return {
        "dataset": DATASET,
        "dataset_version": DATASET_VERSION,
        "release": release.key(),
        "digest": _overall(configs),
        "configs": configs,
        "versions": {"kernelswarm": package_version(), "numpy": np.__version__, "pyarrow": pa.__version__},
    }


def _split(config: str, receipts: Iterable[Receipt]) -> dict[str, Any]:
    sizes = {"rows": 0, "bytes": 0, "arrow_bytes": 0}
    shards = []

    def pieces() -> Iterator[bytes]:
        for r in receipts:
            sizes["rows"] += r.rows
            sizes["bytes"] += r.file_bytes
            sizes["arrow_bytes"] += r.arrow_bytes
            shards.append({"name": r.name, "rows": r.rows, "bytes": r.file_bytes, "sha256": r.sha256, "digest": r.digest})
            yield r.row_digests

    digest = split_digest(CONFIGS[config], pieces())
    return {**sizes, "digest": digest, "shards": shards}


def read(folder: Path | str) -> Manifest:
    """The manifest of the build in `folder`, a path or URL. Raises DataError unless it is one of ours and whole."""
    try:
        found = json.loads(places.place(folder).read(NAME) or b"")
        shards(found, "default", "train")
        complete = found["dataset"] == DATASET and isinstance(found["dataset_version"], str) and isinstance(found["release"], dict)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        complete = False
    if not complete:
        what = "no readable manifest of a kernelswarm build"
        raise DataError(what, f"{folder}/{NAME}", "a folder that `build` finished", "build it again")
    return dict(found)


def shards(manifest: Manifest, config: str, split: str) -> list[tuple[str, int]]:
    """Name and rows of each Parquet file of a split, in order; none if the build has no such split."""
    found = manifest["configs"].get(config, {}).get(split, {"shards": []})
    return [(str(shard["name"]), int(shard["rows"])) for shard in found["shards"]]


def damage(folder: Path | str, manifest: Manifest, threads: int = 1) -> list[str]:
    """Names of the shards that are missing or not of their size and SHA-256. Reads every file."""
    place = places.place(folder)
    listed = [shard for splits in manifest["configs"].values() for split in splits.values() for shard in split["shards"]]
    with ThreadPoolExecutor(min(threads, 32)) as pool:
        whole = pool.map(
            lambda shard: place.size(shard["name"]) == shard["bytes"] and place.sha256(shard["name"]) == shard["sha256"], listed
        )
        return [shard["name"] for shard, right in zip(listed, whole, strict=True) if not right]


def package_version() -> str:
    """Version of the package: from setup.cfg in a checkout, else from what pip installed."""
    setup = Path(__file__).parents[1] / "setup.cfg"
    if setup.is_file():
        parser = configparser.ConfigParser()
        parser.read(setup, encoding="utf-8")
        return parser.get("metadata", "version")
    return metadata.version("kernelswarm")


def to_json(value: object) -> bytes:
    """Indented JSON with a final newline."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _overall(configs: dict[str, dict[str, Any]]) -> str:
    lines = [
        f"{config}/{split} {found['rows']} {found['digest']}\n" for config, splits in configs.items() for split, found in splits.items()
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
