"""The digests that the data of this version must have: `python tests/golden.py` writes `tests/golden.json` anew.

Run it only together with a bump of `schema/version.py` and a new `data/sample`: a version names one set of bytes.
"""

import json
from pathlib import Path

from generator.digest import table_digest
from generator.episodes import build_range
from generator.holdout import build_holdout
from generator.release import Release
from schema.version import DATASET_VERSION

FILE = Path(__file__).with_name("golden.json")
RANGES = (("train", 0, 68, 0), ("train", 1000, 1100, 0), ("train", 2380, 2400, 0), ("validation", 0, 60, 0), ("train", 0, 20, 1))
"""Split, start, stop and seed of the rows that are watched."""


def name(split: str, start: int, stop: int, seed: int) -> str:
    return f"{split}[{start}:{stop}] seed {seed}"


def digest(split: str, start: int, stop: int, seed: int) -> str:
    """Digest over the Arrow values of some rows of the default release."""
    return table_digest(build_range(Release(seed=seed), split, start, stop))


def digests() -> dict[str, str]:
    """All watched digests, and the version they belong to."""
    found = {name(*which): digest(*which) for which in RANGES}
    return {"dataset_version": DATASET_VERSION, **found, "holdout": table_digest(build_holdout(Release()))}


if __name__ == "__main__":
    FILE.write_text(json.dumps(digests(), indent=1) + "\n", encoding="utf-8")
