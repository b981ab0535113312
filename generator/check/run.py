"""The check of a built folder: one pass over its shards, each batch through every check and then forgotten."""

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from generator.check import files
from generator.check.batch import Batch
from generator.check.candidates import Candidates, Oracle
from generator.check.identity import HeldOut, Identity
from generator.check.library import Library
from generator.check.oracle import by_evidence
from generator.check.report import Report
from generator.check.store import Build, Listed, Split, UnreadableError, open_build
from generator.check.structure import check_holdout_rules, check_rules, check_schema
from generator.check.transcript import Replay
from generator.digest import row_digests, split_digest
from schema.arrow import CONFIGS
from schema.rules import View

Progress = Callable[[str, int, int], None]
"""Told of a stage, the rows done and the rows in all."""


def check(
    url: str, *, full: bool = False, digests: bool = True, oracle: Oracle = by_evidence, progress: Progress = lambda *_: None
) -> Report:
    """Derive every label of a build again.

    Args:
        url: A folder, or any fsspec URL of one.
        full: Make every row again from its index, not one in 49.
        digests: Compare files and values with the digests of the manifest.
        oracle: What evidence says becomes of a source.
        progress: Told after each shard.

    Raises:
        InputError: There is no build.
        DataError: Its manifest cannot be read.
    """
    return _Check(open_build(url), full=full, digests=digests, oracle=oracle, progress=progress).run()


class _Check:
    """One check under way."""

    def __init__(self, build: Build, *, full: bool, digests: bool, oracle: Oracle, progress: Progress) -> None:
        self.build = build
        self.digests = digests
        self.oracle = oracle
        self.progress = progress
        self.report = Report()
        self.library = Library()
        self.identity = Identity(build.release, self.report, full=full)
        self.held_out: HeldOut | None = None
        self.seen: Counter[tuple[str, str]] = Counter()
        self.done = 0
        self.total = sum(split.rows for split in build.splits)

    def run(self) -> Report:
        if self.digests:
            files.check_manifest(self.build, self.report)
        for split in sorted(self.build.splits, key=lambda split: split.config):
            self._split(split)
        for (config, name), rows in files.planned_rows(self.build.release).items():
            place = f"{config}/{name}"
            self.report.compare("holdout", "a split has the rows of the release", place, None, self.seen[config, name], rows)
        return self.report

    def _split(self, split: Split) -> None:
        """The digest of a split takes all its rows in order, so it is what pulls them through the checks."""
        digest = split_digest(CONFIGS[split.config], self._rows(split))
        if self.digests:
            name = f"{split.config}/{split.name}"
            self.report.compare("digests", "a split has the digest of its rows", name, None, split.digest, digest)

    def _rows(self, split: Split) -> Iterator[bytes]:
        """Digests of the rows of a split, each batch checked."""
        for shard in split.shards:
            pieces: list[bytes] = []
            if self.digests:
                files.check_file(self.build, shard, self.report)
            start = shard.start
            try:
                for table in self.build.batches(shard):
                    if self.digests:
                        pieces.append(row_digests(table))
                        yield pieces[-1]
                    self._batch(table, shard, start)
                    start += table.num_rows
            except UnreadableError as error:
                self.report.add("schema", "a shard can be read and is of the contract's schema", shard.name, None, str(error), None)
            self._told(shard, start - shard.start, pieces)

    def _told(self, shard: Listed, rows: int, pieces: list[bytes]) -> None:
        self.seen[shard.config, shard.split] += rows
        if self.digests:
            self.report.saw("digests", rows)
            self.report.compare("digests", "a shard has its rows", shard.name, None, shard.rows, rows)
            digest = split_digest(CONFIGS[shard.config], pieces)
            self.report.compare("digests", "a shard has the digest of its rows", shard.name, None, shard.digest, digest)
        self.done += shard.rows
        self.progress("check", self.done, self.total)

    def _batch(self, table: pa.Table, shard: Listed, start: int) -> None:
        good = check_schema(table, shard.config, self.report)
        places = (np.flatnonzero(good) + start).tolist()
        if not good.all():
            table = table.filter(pa.array(good)).combine_chunks()
        if not table.num_rows:
            return
        if shard.config == "holdout":
            check_holdout_rules(table, self.report)
            self.held_out = self.held_out or HeldOut(self.identity)
            self.held_out.check(table, places)
            return
        view = View(table)
        check_rules(view, self.report)
        batch = Batch(view, shard.split, places, self.library)
        Replay(batch, self.report).run()
        Candidates(batch, self.report, self.oracle).run()
        self.identity.check(batch)
