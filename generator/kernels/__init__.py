"""The kernel sources, one file per variant (`<op>/<variant>.cu` for CUDA, `<op>/<variant>.py` for Triton), and the evidence beside them.

The only module that reads them. Sources are data to the rest of the project: never imported, never run. Each compiles as it lies.
"""

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from generator.errors import DataError

SUFFIX = {"cuda": ".cu", "triton": ".py"}
EVIDENCE = "evidence.json"


def folder(op: str) -> Traversable:
    """The folder of one op's sources."""
    return resources.files(__name__).joinpath(op)


@cache
def template(op: str, variant: str, impl: str) -> str:
    """Text of the source file of one variant. Raises FileNotFoundError if there is none."""
    return folder(op).joinpath(variant + SUFFIX[impl]).read_text(encoding="utf-8")


def evidence(op: str) -> str:
    """Text of the evidence table of an op. Raises DataError, with the command that makes it, if there is none."""
    path = folder(op).joinpath(EVIDENCE)
    if not path.is_file():
        raise missing(op, path)
    return path.read_text(encoding="utf-8")


def missing(op: str, path: object) -> DataError:
    """The error of an op without evidence."""
    fix = f"run python -m generator evidence build --op {op}"
    return DataError("an op has no evidence", str(path), "a table beside its kernels", fix)
