"""Triton without a GPU: ahead-of-time compiles for an arch, and its interpreter on the CPU.

Both run in worker processes (`triton_worker.py`) of a Python that has triton and torch: this one, or the one that `TRITON_PYTHON` names.
The interpreter checks every address against the tensors of the launch, fills fresh tensors with NaN and masked-off elements without
`other` with NaN; programs run one after another, so races between them are not seen.
"""

import atexit
import contextlib
import os
import pickle
import re
import struct
import subprocess
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from generator.evidence import judge
from generator.evidence.harness import Buffers, Case, Entry
from generator.evidence.nvcc import Compiled, Kernel, ToolchainError

VERSION: Final = "3.9.0"
PYTHON_VARIABLE: Final = "TRITON_PYTHON"
Mode = Literal["compile", "interpret"]


def compile(source: str, entries: tuple[Entry, ...], arch: str, file: str = "kernel.py") -> Compiled:
    """Compile the kernels of a source for `arch` (`sm_90a`): registers from Triton's own ptxas, all shared memory, spills."""
    cc = int(re.sub(r"\D", "", arch))
    request = {"source": source, "file": file, "cc": cc, "entries": [_plain(e) for e in entries]}
    answer = _worker("compile").ask(request)
    if "diagnostic" in answer:
        return Compiled(diagnostic=answer["diagnostic"])
    kernels = {name: Kernel(registers=r, smem=m, spills=s) for name, (r, m, s) in answer["kernels"].items()}
    return Compiled(kernels=kernels)


def run(source: str, case: Case, file: str = "kernel.py") -> Buffers:
    """All buffers after the source's `launch(...)`, interpreted. Raises judge.FaultError."""
    request = {"source": source, "file": file, "buffers": dict(case.buffers), "scalars": dict(case.scalars), "shape": dict(case.shape)}
    try:
        answer = _worker("interpret").ask(request)
    except EOFError as problem:
        raise judge.FaultError("trap", "crashed") from problem
    if "fault" in answer:
        raise judge.FaultError(answer["fault"], answer["message"])
    buffers: Buffers = answer["buffers"]
    return buffers


def judged(source: str, case: Case, tolerance: float, file: str = "kernel.py") -> judge.Verdict:
    """Verdict of the interpreter on one case."""
    try:
        return judge.summary({case.name: judge.error_of(case, run(source, case, file))}, tolerance)
    except judge.FaultError as fault:
        return judge.Verdict(kind=fault.kind, error=None, case=case.name, message=str(fault))


@cache
def available() -> str | None:
    """Why nothing can be compiled or interpreted here, or None."""
    command = [python(), "-c", "import torch, triton; print(triton.__version__)"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    except OSError as problem:
        return f"{python()}: {problem}"
    if done.returncode:
        advice = f"pip install triton=={VERSION} torch, or name a Python that has them in {PYTHON_VARIABLE}"
        return f"{python()} cannot import torch and triton; {advice}"
    found = done.stdout.strip()
    return None if found == VERSION else f"triton {VERSION} is needed, {python()} has {found}"


def python() -> str:
    """The Python that runs the workers."""
    return os.environ.get(PYTHON_VARIABLE, sys.executable)


class _Worker:
    """One worker process; it is started again after a crash."""

    def __init__(self, mode: Mode) -> None:
        if problem := available():
            raise ToolchainError(problem)
        self._mode = mode
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The worker's answer. Raises EOFError if it died."""
        if self._process is None:
            script = Path(__file__).with_name("triton_worker.py")
            self._process = subprocess.Popen([python(), "-P", str(script), self._mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        data = pickle.dumps(request)
        try:
            self._process.stdin.write(struct.pack("<Q", len(data)) + data)
            self._process.stdin.flush()
            head = self._process.stdout.read(8)
        except BrokenPipeError:
            head = b""
        if len(head) < 8:
            self.close()
            raise EOFError(f"the triton worker died ({self._mode})")
        answer: dict[str, Any] = pickle.loads(self._process.stdout.read(struct.unpack("<Q", head)[0]))
        return answer

    def close(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    if pipe is not None:
                        pipe.close()
            self._process.wait()
            self._process = None


@cache
def _worker(mode: Mode) -> _Worker:
    worker = _Worker(mode)
    atexit.register(worker.close)
    return worker


def _plain(entry: Entry) -> dict[str, Any]:
    return asdict(entry) | {"signature": dict(entry.signature), "constants": dict(entry.constants)}
