"""The Hugging Face builder: `KernelSwarm` generates the rows of a release on the fly, in this process, in several, or as a stream.

It is imported, never uploaded: `datasets` 4 and later refuse a repository that holds a script, so an exported build has Parquet only.
datasets 3.6 can also load this file as a script. The rows are those that `python -m generator build` writes.

    from kernelswarm import KernelSwarm
    builder = KernelSwarm("default", episodes=240, validation=24)
    builder.download_and_prepare(num_proc=2)
    dataset = builder.as_dataset()
"""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import datasets

# Asked before anything of them is imported: an editable install finds our submodules even inside a stranger's package of the same name.
_MARKS: Final = {"schema": "arrow.py", "generator": "origin.py"}
for _name, _mark in _MARKS.items():
    _spec = importlib.util.find_spec(_name)
    _places = list(_spec.submodule_search_locations or ()) if _spec else []
    if not any((Path(_place) / _mark).is_file() for _place in _places):
        raise ImportError(
            f"kernelswarm needs its own package {_name!r}, got {_places or 'nothing'}, allowed: the one of its checkout, "
            "run from a checkout or install kernelswarm editable in an environment of its own"
        )

from generator.episodes import build_range
from generator.holdout import build_holdout
from generator.release import Release
from schema.arrow import CONFIGS
from schema.version import DATASET_VERSION

if TYPE_CHECKING:
    import pyarrow as pa

ROWS: Final = 100
"""Rows of one table: a task of `num_proc`, a step of a stream, and a row group of `file_format="parquet"`."""


@dataclass
class KernelSwarmConfig(datasets.BuilderConfig):
    """A release without filters; `episodes` and `validation` size the splits of `default`."""

    seed: int = 0
    episodes: int = 2400
    validation: int = 240

    def release(self) -> Release:
        """The release asked for. Raises generator.errors.InputError on values that no release has."""
        return Release(seed=self.seed, episodes=self.episodes, validation=self.validation)


class KernelSwarm(datasets.ArrowBasedBuilder):
    """Configs `default` (campaigns) and `holdout` (tasks never seen in it)."""

    VERSION = datasets.Version(DATASET_VERSION)
    BUILDER_CONFIG_CLASS = KernelSwarmConfig
    BUILDER_CONFIGS: Final = [
        KernelSwarmConfig(name="default", version=VERSION, description="Campaigns: one row is one team on one task."),
        KernelSwarmConfig(name="holdout", version=VERSION, description="Tasks that occur nowhere in `default`."),
    ]
    DEFAULT_CONFIG_NAME = "default"
    config: KernelSwarmConfig

    def _info(self) -> datasets.DatasetInfo:
        self.config.release()
        return datasets.DatasetInfo(
            description="Synthetic campaigns of AI teams that optimise GPU kernels for inference.",
            features=datasets.Features.from_arrow_schema(CONFIGS[self.config.name]),
            license="Apache-2.0",
        )

    def _split_generators(self, dl_manager: object) -> list[datasets.SplitGenerator]:
        """One list of ranges per split: what `num_proc` and streaming share out."""
        if self.config.name == "holdout":
            return [datasets.SplitGenerator("test", gen_kwargs={"ranges": [("test", 0, None)]})]
        return [
            datasets.SplitGenerator(split, gen_kwargs={"ranges": [(split, at, min(at + ROWS, rows)) for at in range(0, rows, ROWS)]})
            for split, rows in self.config.release().splits().items()
        ]

    def _generate_tables(self, ranges: list[tuple[str, int, int | None]]) -> Iterator[tuple[int, "pa.Table"]]:
        release = self.config.release()
        for number, (split, start, stop) in enumerate(ranges):
            yield number, build_holdout(release) if stop is None else build_range(release, split, start, stop)
