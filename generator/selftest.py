"""Whether this process makes the same bytes as the one that planned the build.

Versions of the code, of NumPy, of pyarrow and its codecs, and a processor's vector units may all move a bit. Rather than list what may
differ, every worker builds a few episodes and must get the same file before it may write one.
"""

import hashlib
from functools import cache
from typing import Final

from generator.digest import row_digests
from generator.episodes import build_range
from generator.errors import DataError
from generator.holdout import build_holdout
from generator.parquet import render
from generator.release import Release
from schema.arrow import EPISODES, HOLDOUT
from schema.version import DATASET_VERSION

ROWS: Final = 12
"""Episodes of the test: a tenth of a second."""


class MismatchError(DataError):
    """This process makes other bytes than the one that planned the build."""


@cache
def digest() -> str:
    """SHA-256, as hex, over the values and the files of a few rows that this process makes."""
    total = hashlib.sha256(DATASET_VERSION.encode())
    for table, schema in (
        (build_range(Release(), "train", 0, ROWS), EPISODES),
        (build_holdout(Release(ops=("rmsnorm",), gpus=("h100",))), HOLDOUT),
    ):
        total.update(row_digests(table))
        total.update(memoryview(render(table, schema)))
    return total.hexdigest()


def require(expected: str) -> None:
    """Raise MismatchError unless this process's digest is `expected`."""
    found = digest()
    if found != expected:
        what = "a worker does not make the bytes of this build"
        raise MismatchError(what, found[:16], f"the digest {expected[:16]}", "run one version of kernelswarm, numpy and pyarrow everywhere")
