"""Every op of the registry: its cases tell right from wrong, and its inputs all matter.

That honest points match and bugs are caught, `python -m generator evidence verify` shows at every point.
"""

import dataclasses
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from generator.evidence import build, catalogue, emulate, judge, triton_tools
from generator.evidence.harness import Buffers, Case
from generator.ops import OPS
from generator.ops.base import Bug, Op, Variant

each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    return tmp_path_factory.mktemp("kernels")


def need_tools(op: Op) -> None:
    missing = build.missing_tools(op)
    if missing:
        pytest.skip("; ".join(missing))


def verdict(op: Op, variant: Variant, bug: Bug, folder: Path) -> judge.Verdict:
    """On a slip in the start point of a CUDA variant, on all cases; the first that fails decides."""
    plan = partial(catalogue.harness(op.name).plan, variant.name, variant.start)
    for case in catalogue.cases(op.name):
        found = emulate.judged(catalogue.render(op, variant, variant.start, case.shape, bug), plan, case, op.tolerance, folder)
        if found.kind != judge.OK:
            break
    return found


def outputs(case: Case) -> dict[str, np.ndarray]:
    """Buffers that a kernel of this op writes: where nothing is expected of one, those that hold no input."""
    if case.expected:
        return {name: case.buffers[name] for name in case.expected}
    return {name: array for name, array in case.buffers.items() if array.dtype.kind == "f" and np.isnan(array).all()}


def passes(op: Op, case: Case, buffers: Buffers) -> bool:
    return judge.error_of(case, buffers) <= op.tolerance


# ---- no compiler needed --------------------------------------------------------------------------
@each_op
def test_cases_are_ragged_and_adversarial_and_always_the_same(op: Op):
    cases, again = catalogue.cases(op.name), catalogue.harness(op.name).cases(np.random.default_rng(catalogue.SEED))
    assert len(cases) >= 2
    assert len({case.name for case in cases}) == len(cases)
    for case, other in zip(cases, again, strict=True):
        assert set(case.shape) == set(op.axes)
        assert case.error is not None or case.expected
        for name, array in case.buffers.items():
            assert array.tobytes() == other.buffers[name].tobytes(), name
        for name, want in case.expected.items():
            assert want.shape == case.buffers[name].shape, name
            assert np.isfinite(want).all(), name


@each_op
def test_a_kernel_that_does_nothing_fails(op: Op):
    assert not all(passes(op, case, case.buffers) for case in catalogue.cases(op.name))


@each_op
def test_a_kernel_that_writes_zeros_fails(op: Op):
    for case in catalogue.cases(op.name):
        zeros = {name: np.zeros_like(array) for name, array in outputs(case).items()}
        if not passes(op, case, {**case.buffers, **zeros}):
            return
    pytest.fail("zeros pass every case")


@each_op
def test_a_kernel_that_copies_an_input_fails(op: Op):
    cases = catalogue.cases(op.name)
    for source in cases[0].buffers.keys() - outputs(cases[0]).keys():
        copied = []
        for case in cases:
            flat = np.nan_to_num(case.buffers[source].astype(np.float64)).ravel()
            with np.errstate(over="ignore", invalid="ignore"):
                same = {name: np.resize(flat, array.shape).astype(array.dtype) for name, array in outputs(case).items()}
            copied.append(passes(op, case, {**case.buffers, **same}))
        assert not all(copied), f"a copy of {source} passes every case"


# ---- compilers needed ----------------------------------------------------------------------------
def changed(array: np.ndarray) -> np.ndarray:
    """Other values of the same kind and range: indices and lengths stay legal."""
    flipped = array[::-1] if array.ndim == 1 else array.reshape(-1)[::-1].reshape(array.shape)
    if array.dtype.kind == "f":
        return (flipped * array.dtype.type(0.75)).astype(array.dtype)
    if not np.array_equal(flipped, array):
        return np.ascontiguousarray(flipped)
    return np.maximum(array, 1) - 1 if array.dtype.kind == "u" else np.where(array > 0, array - 1, array).astype(array.dtype)


def result(op: Op, variant, case: Case, folder) -> list[bytes]:
    """Bytes of the outputs of a variant's start point."""
    text = catalogue.render(op, variant, variant.start, case.shape)
    if op.impl == "triton":
        memory = triton_tools.run(text, case)
    else:
        plan = catalogue.harness(op.name).plan(variant.name, variant.start, case)
        memory = emulate.run(emulate.build(text, folder), plan, case)
    return [memory[name].tobytes() for name in outputs(case)]


def matters(op: Op, name: str, folder) -> bool:
    """Whether other values of a buffer or scalar change the output of some variant: not all read a precomputed table."""
    for variant in op.variants:
        for case in catalogue.cases(op.name):
            if name in case.buffers:
                other = dataclasses.replace(case, buffers={**case.buffers, name: changed(case.buffers[name])})
            else:
                other = dataclasses.replace(case, scalars={**case.scalars, name: case.scalars[name] * 1.5 + 1e-3})
            if result(op, variant, other, folder) != result(op, variant, case, folder):
                return True
    return False


@pytest.mark.evidence
@each_op
def test_the_output_depends_on_every_input(op: Op, folder):
    need_tools(op)
    case = catalogue.cases(op.name)[0]
    inputs = [name for name in case.buffers if name not in outputs(case)]
    idle = [name for name in (*inputs, *(n for n, v in case.scalars.items() if isinstance(v, float))) if not matters(op, name, folder)]
    assert idle == []


FULL, HALF = "__shfl_xor_sync(0xffffffffu, v, offset)", "__shfl_xor_sync(0x0000ffffu, v, offset)"
RMSNORM = [  # variant, slip, old, new, classes that may report it
    ("vec", "no barrier", "partial[warp] = v;\n  __syncthreads();", "partial[warp] = v;", {"race"}),
    ("vec", "reads past the last warp", "lane < WARPS ? partial[lane] : 0.0f", "partial[lane]", {"race", "numeric", "bounds"}),
    ("vec", "shuffle starts at 8", "int offset = 16; offset > 0", "int offset = 8; offset > 0", {"numeric"}),
    ("vec", "shuffle with half a mask", FULL, HALF, {"trap"}),
    ("vec", "sum not initialised", "float sum = 0.0f;", "float sum;", {"numeric"}),
    ("vec", "mean of the padded row", "block_sum(sum) / ", "block_sum(sum) / 2.0f / ", {"numeric"}),
    ("vec", "all blocks write the first row", "reinterpret_cast<Packet*>(y + row)", "reinterpret_cast<Packet*>(y)", {"numeric"}),
    ("vec", "misaligned packets", "(x + row)", "(x + row + 1)", {"misaligned", "bounds"}),
    ("scalar", "eps forgotten", "/ cols + eps)", "/ cols)", {"numeric"}),
    ("scalar", "row offset doubled", "(size_t)blockIdx.x * cols", "(size_t)blockIdx.x * cols * 2", {"bounds", "numeric"}),
    ("scalar", "root not inverted", "rsqrtf(", "sqrtf(", {"numeric"}),
]


@pytest.mark.evidence
@pytest.mark.parametrize(("name", "slip", "old", "new", "classes"), RMSNORM, ids=[f"{row[0]}-{row[1]}" for row in RMSNORM])
def test_slips_in_rmsnorm_are_caught(folder, name: str, slip: str, old: str, new: str, classes: set[str]):
    op = next(op for op in OPS if op.name == "rmsnorm")
    need_tools(op)
    found = verdict(op, op.variant(name), Bug(name="slip", old=old, new=new, slip=slip, symptom=""), folder)
    assert found.kind in classes, found
    assert found.error is None or math.isfinite(found.error)
