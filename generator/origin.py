"""Whether the packages `schema` and `generator` that Python finds are this project's own.

Their names are common. If another distribution's package is imported in their place, everything fails in odd ways far from the cause, so
the entry points ask here first. Imports nothing of either package.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

_HOME: Final = Path(__file__).resolve().parents[1]


def stranger(package: str = "schema", home: Path = _HOME) -> str | None:
    """One line on what stands in the place of `package`, or None if it is the one that lies beside this package."""
    spec = find_spec(package)
    found = spec.origin if spec is not None else None
    own = home / package / "__init__.py"
    if found is not None and Path(found).resolve() == own:
        return None
    fix = "run from a checkout, or install kernelswarm editable in an environment of its own"
    return f"the package {package!r} is not kernelswarm's, got {found or 'nothing'!r}, allowed: {str(own)!r}, {fix}"
