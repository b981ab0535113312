"""The pinned nvcc: compiles a source for one arch and reads what ptxas says of its kernels.

Registers differ between compiler versions and even between nvcc and NVRTC of one version, so facts come from `nvcc -cubin` of exactly
`VERSION`: on PATH, or from the PyPI wheels in `WHEELS`.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

VERSION: Final = "13.0.88"
WHEELS: Final = (
    *(f"nvidia-cuda-nvcc=={VERSION}", f"nvidia-nvvm=={VERSION}", f"nvidia-cuda-crt=={VERSION}"),
    *("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cccl==13.0.85"),
)

_ENTRY: Final = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '\w+'.*?(?P<spills>\d+) bytes spill stores.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_INCLUDE: Final = re.compile(r"^#include .*$", re.MULTILINE)
_SPACE: Final = "source_"
_TEMPORARY: Final = re.compile(r"\S*/tmpxft_[0-9a-f]+_[0-9a-f]+-\d+_")


class ToolchainError(RuntimeError):
    """The pinned nvcc is not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What ptxas reports of one kernel: registers per thread, static shared memory and spill stores in bytes."""

    registers: int
    smem: int
    spills: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The outcome of one compile."""

    kernels: dict[str, Kernel] = field(default_factory=dict)
    """By name; empty if it failed."""
    diagnostic: str = ""
    """First error line of nvcc or ptxas, paths normalised; empty if it compiled."""
    warnings: tuple[str, ...] = ()


def compile(source: str, arch: str, file: str = "kernel.cu") -> Compiled:
    """Compile `source`, called `file` in messages, for `arch` (`sm_90a`). Raises ToolchainError if nvcc is not the pinned one."""
    nvcc = find()
    with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
        Path(folder, file).write_text(source, encoding="utf-8")
        command = (nvcc, "-std=c++17", f"-arch={arch}", "-cubin", "-Xptxas", "-v", "-o", "out.cubin", file)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}, check=False)
    return read(done.stdout + done.stderr, ok=done.returncode == 0)


def compile_together(sources: Sequence[str], arch: str) -> list[Compiled] | None:
    """Several sources compiled for `arch` in one go, each in a namespace of its own; half the time of one by one.

    None if nvcc refuses one or warns: only a source by itself can tell of which. Kernels are compiled one after another, so their
    registers are those of a source by itself; the tests hold them to that.
    """
    includes = dict.fromkeys(line for source in sources for line in _INCLUDE.findall(source))
    apart = [_INCLUDE.sub("", source).replace('extern "C" __global__', "__global__") for source in sources]
    spaces = [f"namespace {_SPACE}{n} {{\n{text}\n}}" for n, text in enumerate(apart)]
    whole = compile("\n".join((*includes, *spaces)), arch)
    if whole.diagnostic or whole.warnings:
        return None
    found = [Compiled() for _ in sources]
    for mangled, kernel in whole.kernels.items():
        space, name = _unmangled(mangled)
        found[int(space.removeprefix(_SPACE))].kernels[name] = kernel
    return found


def _unmangled(name: str) -> tuple[str, str]:
    """Namespace and function of `_ZN<length><namespace><length><function>...`."""
    parts, at = [], len("_ZN")
    for _ in range(2):
        digits = re.compile(r"\d+").match(name, at)
        if digits is None:
            raise ValueError(f"not the name of a function in a namespace: {name}")
        at = digits.end() + int(digits[0])
        parts.append(name[digits.end() : at])
    return parts[0], parts[1]


def read(log: str, *, ok: bool) -> Compiled:
    """What a log of `nvcc -Xptxas -v` says."""
    lines = [_TEMPORARY.sub("", line).strip() for line in log.splitlines()]
    if not ok:
        errors = [line for line in lines if re.search(r"\berror\b", line)]
        return Compiled(diagnostic=(errors or lines or ["nvcc failed without a message"])[0])
    kernels = {
        m["name"]: Kernel(
            registers=int(m["registers"]), smem=int((re.findall(r"(\d+) bytes smem", m["rest"]) or ["0"])[0]), spills=int(m["spills"])
        )
        for m in _ENTRY.finditer(log)
    }
    return Compiled(kernels=kernels, warnings=tuple(line for line in lines if re.search(r"warning|Potential Performance Loss", line)))


@cache
def find() -> str:
    """Path of the pinned nvcc. Raises ToolchainError naming the versions that were found."""
    seen = []
    for path in (shutil.which("nvcc"), _in_wheels()):
        if path is None:
            continue
        found = _version(path)
        if found == VERSION:
            return path
        seen.append(f"{found} at {path}")
    have = f"found {', '.join(seen)}" if seen else "found none on PATH or among the installed wheels"
    raise ToolchainError(f"nvcc {VERSION} is needed, {have}; pip install {' '.join(WHEELS)}")


def available() -> str | None:
    """Why nothing can be compiled here, or None."""
    try:
        find()
    except ToolchainError as problem:
        return str(problem)
    return None


def _in_wheels() -> str | None:
    try:
        files = metadata.files("nvidia-cuda-nvcc") or []
    except metadata.PackageNotFoundError:
        return None
    return next((str(f.locate()) for f in files if f.name == "nvcc"), None)


def _version(path: str) -> str:
    done = subprocess.run((path, "--version"), capture_output=True, text=True, check=False)
    match = re.search(r"\bV(\d+\.\d+\.\d+)", done.stdout)
    return match[1] if match else "unknown"
