"""On a machine with a GPU: runs every source that is legal there once against its reference, and times the best point of each op.

    python benchmarks/run_on_gpu.py [--op OP] [--out docs/on_gpu.md] [--dry-run]

Cubins come from the pinned nvcc, launches and inputs from the ops' harnesses, the verdict from `generator.evidence.judge`, as in the
evidence; only the machine differs. Times are the median of 100 launches of all kernels of a candidate on the op's first shape, L2 flushed
before each. Each op runs in a process of its own, so that a fault costs one op. CUDA ops only: Triton would need a torch with CUDA. Without
a GPU, or with --dry-run, it says what it would do.
"""

import argparse
import ctypes
import datetime
import multiprocessing
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cuda_driver
import numpy as np
from cuda_driver import Array, Cuda, CudaError
from workloads import workload

from generator.evidence import catalogue, judge, nvcc
from generator.evidence.harness import Case, Plan, Tile
from generator.gpus import GPUS, Gpu
from generator.ops import BY_NAME, OPS
from generator.ops.base import Op, Params, Variant
from generator.phrases import ms
from generator.task import Task, landscape, params_text, shape_text

FLUSH_BYTES: Final = 256 << 20
"""More than any L2."""
RUNS: Final = 100
SCALARS: Final = {"float": ctypes.c_float, "int": ctypes.c_int, "unsigned": ctypes.c_uint, "long long": ctypes.c_longlong}
"""Parameter types of kernels that are neither pointers nor tensor maps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One op on this GPU."""

    op: str
    points: int
    right: int
    problems: tuple[str, ...]
    best: str = ""
    shape: str = ""
    measured_ms: float = float("nan")
    modelled_ms: float = float("nan")


def parameters(source: str, kernel: str) -> list[str]:
    """Types of a kernel's parameters: `*` for a pointer, `TensorMap`, or a key of `SCALARS`. Raises ValueError for others."""
    found = re.search(rf"\b{kernel}\s*\(([^)]*)\)", re.sub(r"//[^\n]*", "", source))
    if found is None:
        raise ValueError(f"no kernel {kernel} in the source")
    kinds = []
    for text in found[1].split(","):
        words = re.sub(r"\b(const|__restrict__|__grid_constant__)\b", " ", text).split()
        kind = "*" if "*" in text else " ".join(words[:-1])
        if kind not in {"*", "TensorMap", *SCALARS}:
            raise ValueError(f"{kernel}: parameter {text.strip()!r} is of no known type")
        kinds.append(kind)
    return kinds


def run(cuda: Cuda, source: str, cubin: bytes, plan: Plan, case: Case, *, timed: bool = False) -> tuple[dict[str, Array], float]:
    """All buffers after the launches of a plan, and the median time in ms (nan unless timed)."""
    memory = {name: np.ascontiguousarray(array) for name, array in (*case.buffers.items(), *plan.scratch.items())}
    addresses = {name: cuda.upload(array) for name, array in memory.items()}
    module, launches = cuda.load(cubin), []
    for launch in plan.launches:
        kinds = parameters(source, launch.kernel)
        values = [_argument(cuda, kind, a, addresses, memory, case) for kind, a in zip(kinds, launch.args, strict=True)]
        launches.append((cuda.function(module, launch.kernel, launch.smem), launch.grid, launch.block, launch.smem, values))

    def work() -> None:
        for function, grid, block, smem, values in launches:
            cuda.launch(function, grid, block, smem, values)

    work()
    cuda.synchronize()
    after = {name: cuda.download(addresses[name], array) for name, array in memory.items()}
    median = _median(cuda, work) if timed else float("nan")
    for address in addresses.values():
        cuda.free(address)
    return after, median


def _argument(cuda: Cuda, kind: str, value: object, addresses: Mapping[str, int], memory: Mapping[str, Array], case: Case) -> Any:
    if isinstance(value, Tile):
        array = memory[value.buffer]
        rows = array.reshape(-1, value.columns or array.shape[-1])
        return cuda.tensor_map(addresses[value.buffer], rows, value.box, swizzle=value.swizzle)
    if kind == "*":
        return ctypes.c_uint64(addresses[str(value)])
    number: Any = {**case.scalars, **case.shape}.get(value, value) if isinstance(value, str) else value
    return SCALARS[kind](number)


def _median(cuda: Cuda, work: Any) -> float:
    flush = cuda.upload(np.zeros(FLUSH_BYTES, np.uint8))
    times = []
    for _ in range(RUNS):
        cuda.fill(flush, FLUSH_BYTES)
        times.append(cuda.milliseconds(work))
    cuda.free(flush)
    return statistics.median(times)


def cubin_of(source: str, arch: str) -> bytes:
    """What the pinned nvcc makes of a source."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "k.cu").write_text(source, encoding="utf-8")
        subprocess.run([nvcc.find(), "-std=c++17", f"-arch={arch}", "-cubin", "-o", "k.cubin", "k.cu"], cwd=folder, check=True)
        return Path(folder, "k.cubin").read_bytes()


def legal(op: Op, gpu: Gpu) -> list[tuple[Variant, Params]]:
    """The points of an op that a board can run; shortcuts are left out, their results are wrong by design."""
    land = landscape(Task(op=op, gpu=gpu, shape=op.shapes[0]))
    points = [land.baseline, *(p for some in land.legal.values() for p in some)]
    return [(p.variant, p.params) for p in sorted(points, key=lambda p: p.key)]


def on_gpu(op_name: str, gpu_name: str) -> Result:
    """Every legal point of an op on all its cases, and the best one timed; in a process of its own."""
    op, gpu = BY_NAME[op_name], next(g for g in GPUS if g.name == gpu_name)
    cuda, harness = Cuda(), catalogue.harness(op.name)
    problems, right, points = [], 0, legal(op, gpu)
    try:
        for variant, params in points:
            worst = 0.0
            for case in catalogue.cases(op.name):
                source = catalogue.render(op, variant, params, case.shape)
                after, _ = run(cuda, source, cubin_of(source, gpu.arch), harness.plan(variant.name, params, case), case)
                worst = max(worst, judge.error_of(case, after))
            right += worst <= op.tolerance
            if not worst <= op.tolerance:
                problems.append(f"{variant.name} {params_text(params)}: error {worst:.3g}, tolerance {op.tolerance:g}")
        return _timed(cuda, op, gpu, Result(op=op.name, points=len(points), right=right, problems=tuple(problems)))
    except (CudaError, subprocess.CalledProcessError) as problem:
        return Result(op=op.name, points=len(points), right=right, problems=(*problems, str(problem)))


def _timed(cuda: Cuda, op: Op, gpu: Gpu, so_far: Result) -> Result:
    best = landscape(Task(op=op, gpu=gpu, shape=op.shapes[0])).best
    case = workload(op.name, op.shapes[0])
    source = catalogue.render(op, best.variant, best.params, case.shape)
    plan = catalogue.harness(op.name).plan(best.variant.name, best.params, case)
    _, median = run(cuda, source, cubin_of(source, gpu.arch), plan, case, timed=True)
    return Result(
        op=op.name,
        points=so_far.points,
        right=so_far.right,
        problems=so_far.problems,
        best=f"{best.variant.name} {best.label}",
        shape=shape_text(op.shapes[0]),
        measured_ms=median,
        modelled_ms=best.ms,
    )


def table(board: str, driver: str, results: Sequence[Result]) -> str:
    """The page: card, driver, date, and a row per op."""
    head = f"# On a GPU\n\n{board}, CUDA driver {driver}, {datetime.date.today():%Y-%m-%d}, `python benchmarks/run_on_gpu.py`.\n"
    rows = ["| op | points right | best point | shape | measured ms | modelled ms | measured / modelled |", "|---|---|---|---|---|---|---|"]
    for r in results:
        times = f"{ms(r.measured_ms)} | {ms(r.modelled_ms)} | {r.measured_ms / r.modelled_ms:.2f}" if r.best else "- | - | -"
        rows.append(f"| {r.op} | {r.right} of {r.points} | {r.best or '-'} | {r.shape or '-'} | {times} |")
    problems = [f"- {r.op}: {problem}" for r in results for problem in r.problems]
    return "\n".join([head, *rows, "", *problems])


def intentions(ops: Sequence[Op]) -> str:
    """What a run would do, board by board."""
    lines = ["what a run would do, by board:"]
    for gpu in GPUS:
        points = sum(len(legal(op, gpu)) for op in ops)
        cases = sum(len(legal(op, gpu)) * len(catalogue.cases(op.name)) for op in ops)
        lines.append(f"  {gpu.name} ({gpu.arch}): compile and run {points} points on {cases} cases, time {len(ops)} best points")
    return "\n".join(lines)


def main() -> int:
    """Run, or say what a run would do."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cuda_ops = [op.name for op in OPS if op.impl == "cuda"]
    parser.add_argument("--op", action="append", choices=cuda_ops, help="only this op; may be repeated")
    parser.add_argument("--out", type=Path, help="write the table here")
    parser.add_argument("--dry-run", action="store_true", help="say what a run would do")
    options = parser.parse_args()
    ops = [BY_NAME[name] for name in options.op or cuda_ops]
    problem = cuda_driver.available() or nvcc.available()
    if options.dry_run or problem:
        print(f"nothing ran: {problem or 'a dry run'}\n{intentions(ops)}")
        return 0
    here = Cuda()
    gpu = next((g for g in GPUS if g.name in here.name.lower().replace(" ", "_").replace("nvidia_geforce_", "")), None)
    gpu = gpu or next((g for g in GPUS if re.search(rf"\b{g.name}\b", here.name.lower())), None)
    if gpu is None:
        print(f"nothing ran: {here.name} (compute capability {here.capability}) is none of {', '.join(g.name for g in GPUS)}")
        return 0
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        results = [pool.apply(on_gpu, (op.name, gpu.name)) for op in ops]
    text = table(here.name, here.driver, results)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    return int(any(r.problems for r in results))


if __name__ == "__main__":
    sys.exit(main())
