"""Check `digests`: the manifest against its release, and every file against the manifest."""

import hashlib

from generator import manifest, parquet
from generator.check.report import Report
from generator.check.store import SPLITS, Build, Listed, UnreadableError
from generator.release import Release
from schema.version import DATASET_VERSION


def check_manifest(build: Build, report: Report) -> None:
    """What the manifest says of itself and of the release, and that no Parquet file lies there unlisted: `load_dataset` would read it."""
    name = manifest.NAME
    report.compare("digests", "dataset_version is this one", name, None, build.dataset_version, DATASET_VERSION)
    lines = [f"{split.config}/{split.name} {split.rows} {split.digest}\n" for split in build.splits]
    overall = hashlib.sha256("".join(lines).encode(errors="replace")).hexdigest()
    report.compare("digests", "the manifest's digest is that of its splits", name, None, build.digest, overall)
    planned = planned_rows(build.release)
    listed = {(split.config, split.name): split for split in build.splits}
    for config, split in dict.fromkeys((*planned, *listed)):
        found = listed.get((config, split))
        what = f"{config}/{split} has the rows of the release"
        report.compare("digests", what, name, None, found.rows if found else None, planned.get((config, split)))
        if found is not None:
            for field in ("rows", "bytes"):
                joined = sum(getattr(shard, field) for shard in found.shards)
                report.compare("digests", f"{field} of a split are those of its shards", name, None, getattr(found, field), joined)
    for config in SPLITS:
        names = {shard.name for split in build.splits for shard in split.shards}
        for extra in build.names(config):
            if extra not in names:
                report.add("digests", "every Parquet file is in the manifest", extra, None, "a file", None)


def planned_rows(release: Release) -> dict[tuple[str, str], int]:
    """Rows of each config and split of a release."""
    return {(shard.config, shard.split): shard.rows for shard in parquet.plan(release, "", 2**63)}


def check_file(build: Build, shard: Listed, report: Report) -> None:
    """Size and SHA-256 of one shard. A file of another size is not read."""
    try:
        size = build.size(shard.name)
        if size != shard.bytes:
            report.add("digests", "a file has its size", shard.name, None, shard.bytes, size)
        else:
            report.compare("digests", "a file has its SHA-256", shard.name, None, shard.sha256, build.sha256(shard.name))
    except UnreadableError as error:
        report.add("digests", "a file can be read", shard.name, None, str(error), None)
