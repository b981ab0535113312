"""The kernel sources, one file per variant: `<op>/<variant>.cu` for CUDA, `<op>/<variant>.py` for Triton.

The only module that reads them. They are data to the rest of the project: never imported, never run. Each compiles as it lies.
"""

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

SUFFIX = {"cuda": ".cu", "triton": ".py"}


def folder(op: str) -> Traversable:
    """The folder of one op's sources."""
    return resources.files(__name__).joinpath(op)


@cache
def template(op: str, variant: str, impl: str) -> str:
    """Text of the source file of one variant. Raises FileNotFoundError if there is none."""
    return folder(op).joinpath(variant + SUFFIX[impl]).read_text(encoding="utf-8")
