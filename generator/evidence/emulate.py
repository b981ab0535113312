"""Builds a CUDA source with g++ and runs it on NumPy arrays, under a memory and race checker.

`build` makes a shared library once per source and keeps it in a cache folder; `run` executes the launches of one case in one thread
order inside the calling process, `judged` does so for all cases and orders in a forked child, so that a kernel that crashes or never ends
costs only its own verdict.
"""

import contextlib
import ctypes
import faulthandler
import hashlib
import math
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from generator.evidence import judge, ptx
from generator.evidence.harness import Case, Launch, Plan, Tile

Array = npt.NDArray[np.generic]

ORDERS: Final = (0, 1, 2)
"""Thread orders of a block: forward, backward, shuffled."""
GUARD: Final = 1 << 20
"""Bytes around each buffer that belong to none."""
CPU_SECONDS: Final = 60
"""CPU time after which a run counts as never ending."""
_FAULTS: Final = ("", *judge.FAULTS)  # by number in emulator/runtime.h
_FLAGS: Final = (
    *(
        "-std=c++17",
        "-O1",
        "-g0",
        "-fPIC",
        "-fvisibility=hidden",
        "-fno-strict-aliasing",
        "-ffp-contract=off",
        "-fno-threadsafe-statics",
        "-U_FORTIFY_SOURCE",
    ),
    *("-ftrivial-auto-var-init=pattern", "-Wno-unknown-pragmas", "-Wno-attributes", "-Wno-psabi"),
)
_CHECKED: Final = ("-fsanitize=thread", "-fno-tree-sra")  # whole vector accesses, each announced to the runtime


class BuildError(RuntimeError):
    """g++ refused a source; the message names what the emulator lacks, where that is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A built source."""

    path: Path
    kernels: tuple[str, ...]
    race_check: bool
    """False where the source synchronises by means that the race check does not model (mbarrier, named barriers)."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Memory accesses of one launch, by warps."""

    kernel: str
    requests: int
    """Warp-wide accesses of global memory."""
    sectors: int
    """32-byte sectors that they touch."""
    bytes: int
    """Bytes that their threads asked for."""
    wavefronts: int
    """Passes that accesses of shared memory would take without bank conflicts."""
    conflicted: int
    """Passes that they take."""


def build(source: str, folder: Path) -> Library:
    """Library of a source, built in `folder` unless it is there. Raises ptx.UnsupportedError or BuildError."""
    code = ptx.translate(source)
    runtime = _runtime(folder)
    path = folder / f"{hashlib.sha256(f'{runtime.name}{code}'.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            work = Path(scratch)
            (work / "kernel.cpp").write_text(code, encoding="utf-8")
            headers = ("-include", str(runtime.with_suffix("") / "emu.h"), "-I", str(_sources() / "include"))
            _gxx(*_FLAGS, *_CHECKED, *headers, "-c", str(work / "kernel.cpp"), "-o", str(work / "kernel.o"))
            _gxx("-shared", "-Wl,-Bsymbolic", "-o", str(work / "kernel.so"), str(work / "kernel.o"), str(runtime))
            (work / "kernel.so").replace(path)
    race_check = not re.search(r"\bptx_(mbarrier|bar|barrier(?!_cluster))_", code)
    return Library(path=path, kernels=ptx.kernels(source), race_check=race_check)


def run(library: Library, plan: Plan, case: Case, order: int = 0) -> dict[str, Array]:
    """All buffers after the launches of `plan`, inputs included. Raises judge.FaultError, or KeyError for an argument nothing defines."""
    memory = {name: _aligned_copy(array) for name, array in (*case.buffers.items(), *plan.scratch.items())}
    for launch in plan.launches:
        _launch(library, launch, [_resolve(a, memory, case) for a in launch.args], memory, order)
    return memory


def profiled(library: Library, plan: Plan, case: Case) -> tuple[Profile, ...]:
    """What each launch of `plan` asks of memory, from what g++ made of the source: for patterns, not for instruction counts."""
    memory = {name: _aligned_copy(array) for name, array in (*case.buffers.items(), *plan.scratch.items())}
    found = []
    for launch in plan.launches:
        stats = _launch(library, launch, [_resolve(a, memory, case) for a in launch.args], memory, 0, profile=True)
        found.append(Profile(launch.kernel, *(int(n) for n in stats)))
    return tuple(found)


def judged(source: str, plan: Callable[[Case], Plan], case: Case, tolerance: float, folder: Path) -> judge.Verdict:
    """Verdict on one case in all thread orders; the first order that fails decides."""
    library = build(source, folder)
    the_plan = plan(case)

    def work() -> judge.Verdict:
        worst = 0.0
        for order in ORDERS:
            try:
                worst = max(worst, judge.error_of(case, run(library, the_plan, case, order)))
            except judge.FaultError as fault:
                return judge.Verdict(kind=fault.kind, error=None, case=case.name, message=str(fault))
            if not worst <= tolerance:
                break
        return judge.summary({case.name: worst}, tolerance)

    return _isolated(work, case.name)


@cache
def version() -> str:
    """The version of g++. Raises RuntimeError if there is none."""
    return _gxx("-dumpfullversion").strip()


def available() -> str | None:
    """Why nothing can be emulated here, or None."""
    return None if shutil.which("g++") else "g++ is not on PATH"


@cache
def digest() -> str:
    """First 12 hex digits of the sha256 of the emulator's sources."""
    files = sorted(p for p in _sources().rglob("*") if p.suffix in (".h", ".cpp"))
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()[:12]


@cache
def _sources() -> Path:
    return Path(str(resources.files("generator.evidence") / "emulator"))


def _runtime(folder: Path) -> Path:
    """The runtime's object file; beside it, in a folder of its name, the precompiled emu.h."""
    key = hashlib.sha256(f"{digest()}{version()}{_FLAGS}{_CHECKED}".encode()).hexdigest()[:12]
    path = folder / f"runtime-{key}.o"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            headers = Path(scratch) / "headers"
            shutil.copytree(_sources(), headers)
            _gxx(*_FLAGS, *_CHECKED, "-x", "c++-header", str(headers / "emu.h"))
            _gxx(*_FLAGS, "-O2", "-c", str(headers / "runtime.cpp"), "-o", str(Path(scratch) / "runtime.o"))
            with contextlib.suppress(OSError):  # another process was first
                headers.replace(path.with_suffix(""))
            (Path(scratch) / "runtime.o").replace(path)
    return path


def _gxx(*arguments: str) -> str:
    if shutil.which("g++") is None:
        raise RuntimeError("g++ is not on PATH: the emulator needs it (Debian: apt-get install g++)")
    done = subprocess.run(("g++", *arguments), capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}, check=False)
    if done.returncode:
        raise BuildError(_explain(done.stderr))
    return done.stdout


def _explain(log: str) -> str:
    """What the emulator lacks, if that is why g++ failed; its first error otherwise."""
    for name in re.findall(r"'(\w+)'(?: was not declared| has not been declared|: No such)", log):
        if name.startswith("ptx_"):
            return f"PTX instruction {name[4:].replace('_', '.')} is not emulated: add {name} to emulator/ptx.h, hopper.h or blackwell.h"
        if name.startswith("__"):
            return f"intrinsic {name} is not emulated: add it to emulator/arithmetic.h, warp.h or floats.h"
    return next((line for line in log.splitlines() if "error:" in line), log[:2000])


# ---- arguments and launches ----------------------------------------------------------------------
class _Argument(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_uint), ("size", ctypes.c_uint), ("integer", ctypes.c_longlong), ("real", ctypes.c_double)]
    _fields_ += [("pointer", ctypes.c_void_p)]


class _Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("smem", ctypes.c_uint), ("order", ctypes.c_uint)]
    _fields_ += [("ranges", ctypes.POINTER(ctypes.c_void_p)), ("n_ranges", ctypes.c_uint), ("race_check", ctypes.c_uint)]
    _fields_ += [("profile", ctypes.c_uint), ("fault", ctypes.c_uint), ("stats", ctypes.c_double * 5), ("error", ctypes.c_char * 256)]


class _TensorMap(ctypes.Structure):
    """As emulator/hopper.h reads it; 128 bytes like CUtensorMap."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("base", "width", "height", "row_bytes")]
    _fields_ += [(name, ctypes.c_uint32) for name in ("box_x", "box_y", "elem_bytes", "swizzle")]
    _fields_ += [("pad", ctypes.c_uint64 * 10)]


def _resolve(name: str | int | float | Tile, memory: Mapping[str, Array], case: Case) -> object:
    """Value of one launch argument."""
    if isinstance(name, Tile):
        array = memory[name.buffer]
        rows = array.reshape(-1, name.columns or array.shape[-1])
        height, width = rows.shape
        return _TensorMap(rows.ctypes.data, width, height, rows.strides[0], *name.box, rows.itemsize, int(name.swizzle))
    if not isinstance(name, str):
        return name
    for known in (memory, case.scalars, case.shape):
        if name in known:
            return known[name]
    raise KeyError(f"case {case.name}: launch argument {name!r} is no buffer, scratch buffer, scalar or axis")


def _launch(
    library: Library, launch: Launch, values: list[object], memory: Mapping[str, Array], order: int, *, profile: bool = False
) -> list[float]:
    if launch.kernel not in library.kernels:
        raise KeyError(f"no kernel {launch.kernel!r} in the source; it has {', '.join(library.kernels)}")
    config = _Config(smem=launch.smem, order=order, race_check=int(library.race_check), profile=int(profile))
    config.grid[:] = launch.grid
    config.block[:] = (launch.block, 1, 1)
    bounds = [edge for a in memory.values() for edge in (a.ctypes.data, a.ctypes.data + a.nbytes)]
    config.ranges, config.n_ranges = (ctypes.c_void_p * len(bounds))(*bounds), len(memory)
    arguments = (_Argument * len(values))(*(_argument(v) for v in values))
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(a) for a in arguments))
    code = getattr(ctypes.CDLL(str(library.path)), f"emu_run_{launch.kernel}")(ctypes.byref(config), len(values), pointers)
    if code < 0:
        raise TypeError(f"{launch.kernel}: {config.error.decode()}")
    if code:
        raise judge.FaultError(_FAULTS[config.fault], config.error.decode())
    return list(config.stats)


def _argument(value: object) -> _Argument:
    if isinstance(value, np.ndarray):
        return _Argument(kind=0, size=value.itemsize, pointer=value.ctypes.data)
    if isinstance(value, int | np.integer):
        return _Argument(kind=1, integer=int(value), real=float(value))
    if isinstance(value, float | np.floating):
        return _Argument(kind=2, real=float(value))
    assert isinstance(value, _TensorMap)
    return _Argument(kind=3, size=ctypes.sizeof(value), pointer=ctypes.addressof(value))


def _aligned_copy(array: Array) -> Array:
    """A contiguous copy that starts at a multiple of 256 bytes, as cudaMalloc gives it, far from every other buffer.

    An access that strays by less than `GUARD` bytes is out of bounds on every run, wherever the heap puts things.
    """
    raw = np.empty(array.nbytes + 256 + 2 * GUARD, dtype=np.uint8)
    start = GUARD + -(raw.ctypes.data + GUARD) % 256
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _isolated(work: Callable[[], judge.Verdict], case: str) -> judge.Verdict:
    """Result of `work` in a forked child with a CPU limit; a child that dies is a fault of the kernel."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child calls NumPy and the library only, whatever threads there are here
        child = os.fork()
    if child == 0:
        os.close(reader)
        _child(work, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return judge.Verdict(kind="deadlock", error=None, case=case, message=f"did not finish within {CPU_SECONDS} s of CPU time")
        return judge.Verdict(kind="trap", error=None, case=case, message=f"crashed: {signal.Signals(number).name}")
    result = pickle.loads(data)
    if isinstance(result, BaseException):
        raise result
    assert isinstance(result, judge.Verdict)
    return result


def _child(work: Callable[[], judge.Verdict], writer: int) -> None:
    result: object
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        result = work()
    except Exception as problem:  # noqa: BLE001 - handed to the parent, which raises it
        result = problem
    with os.fdopen(writer, "wb") as pipe:
        pickle.dump(result, pipe)
    os._exit(0)


def finite(error: float | None) -> float | None:
    """An error as the tables hold it: three significant digits, None if there is none."""
    return None if error is None or not math.isfinite(error) else float(f"{error:.3g}")
