"""What can be tested of the GPU script without a GPU: signatures against launches, full-size inputs against small ones, what it says."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from generator import kernels
from generator.evidence import catalogue
from generator.evidence.harness import Tile
from generator.ops import OPS
from generator.ops.base import Op

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
run_on_gpu, workloads = (importlib.import_module(name) for name in ("run_on_gpu", "workloads"))
CUDA = [op for op in OPS if op.impl == "cuda"]
by_op = pytest.mark.parametrize("op", CUDA, ids=lambda op: op.name)


@by_op
def test_every_launch_has_the_arguments_of_its_kernel(op: Op):
    for variant in op.variants:
        source = kernels.template(op.name, variant.name, op.impl)
        for case in catalogue.cases(op.name):
            plan = catalogue.harness(op.name).plan(variant.name, variant.start, case)
            for launch in plan.launches:
                kinds = run_on_gpu.parameters(source, launch.kernel)
                assert len(kinds) == len(launch.args), (variant.name, launch.kernel)
                for kind, argument in zip(kinds, launch.args, strict=True):
                    assert (kind == "TensorMap") == isinstance(argument, Tile)
                    assert (kind == "*") == (argument in {**case.buffers, **plan.scratch}), (variant.name, argument)


@by_op
def test_a_workload_has_the_buffers_of_a_case(op: Op):
    small = {axis: min(size, 256) for axis, size in op.shapes[0].items()}
    full, case = workloads.workload(op.name, small), catalogue.cases(op.name)[0]
    assert set(full.buffers) == set(case.buffers)
    assert set(case.scalars) <= set(full.scalars)
    for name, array in full.buffers.items():
        assert array.dtype == case.buffers[name].dtype, name
        assert array.ndim == case.buffers[name].ndim, name


def test_an_unknown_parameter_is_refused():
    with pytest.raises(ValueError, match="no known type"):
        run_on_gpu.parameters('extern "C" __global__ void k(double x) {}', "k")


def test_without_a_gpu_it_says_what_it_would_do():
    command = [sys.executable, "benchmarks/run_on_gpu.py", "--dry-run", "--op", "rmsnorm"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT), "PATH": ""})
    assert done.stdout.startswith("nothing ran: ")
    assert "h100 (sm_90a): compile and run" in done.stdout
