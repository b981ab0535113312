"""Triton without a GPU: what the compiler and the interpreter say of a small kernel and of its slips."""

import numpy as np
import pytest

from generator.evidence import triton_tools
from generator.evidence.harness import Case, Entry

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.skipif(triton_tools.available() is not None, reason=str(triton_tools.available())),
]

SCALE = '''"""op/scale: y = 2 x."""

import torch
import triton
import triton.language as tl

BLOCK = 64


@triton.jit
def scale(x, y, N, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK >= 32, "BLOCK must fill a warp")
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < N)
    tl.store(y + at, v * 2, mask=at < N)


def launch(x, y):
    N = x.numel()
    scale[(triton.cdiv(N, BLOCK),)](x, y, N, BLOCK=BLOCK)
'''


def case() -> Case:
    x = np.arange(1, 101, dtype=np.float32)
    return Case(name="ragged", shape={"N": 100}, buffers={"x": x, "y": np.full_like(x, np.nan)}, scalars={}, expected={"y": 2.0 * x})


def entry(block: int = 64) -> tuple[Entry, ...]:
    kinds = {"x": "*fp32", "y": "*fp32", "N": "i32", "BLOCK": "constexpr"}
    return (Entry(kernel="scale", signature=kinds, constants={"BLOCK": block}, warps=1),)


def test_an_honest_kernel_matches():
    found = triton_tools.judged(SCALE, case(), 1e-6)
    assert (found.kind, found.error) == ("ok", 0.0)


@pytest.mark.parametrize(
    ("old", "new", "kind", "said"),
    [
        ("v * 2", "v * 3", "numeric", ""),
        ("tl.load(x + at, mask=at < N)", "tl.load(x + at)", "bounds", "out-of-bounds global read of 4 bytes by 28 of 64 elements"),
        ("v * 2, mask=at < N", "v * 2", "bounds", "out-of-bounds global write"),
        ("mask=at < N)\n    tl.store", "mask=at < N - 1)\n    tl.store", "numeric", ""),  # the last element is undefined, so NaN
        ("tl.cdiv", "tl.cdiv", "ok", ""),
        ("triton.cdiv(N, BLOCK)", "N // BLOCK", "numeric", ""),
        ("v * 2", "v * factor", "trap", "name 'factor' is not defined"),
    ],
)
def test_slips_are_caught(old: str, new: str, kind: str, said: str):
    found = triton_tools.judged(SCALE.replace(old, new), case(), 1e-6)
    assert found.kind == kind, found
    assert said in found.message


def test_a_neighbour_in_memory_is_out_of_bounds():
    neighbours = "    both = np.concatenate([x, y])\n    x, y = torch.from_numpy(both[:N]), torch.from_numpy(both[N:])\n    scale["
    source = SCALE.replace("import torch", "import numpy as np\nimport torch").replace("    scale[", neighbours)
    read_past = source.replace("tl.load(x + at, mask=at < N)", "tl.load(x + at)")
    found = triton_tools.judged(read_past, case(), 1e-6)
    assert (found.kind, found.message) == ("bounds", "out-of-bounds global read of 4 bytes by 28 of 64 elements")


def test_views_of_one_tensor_stay_together():
    views = "    both = torch.cat([x, y])\n    first, second = both[:N], both[N:]\n    scale["
    source = SCALE.replace("    scale[", views).replace("](x, y, N,", "](first, second, N,") + "    y.copy_(second)\n"
    assert triton_tools.judged(source, case(), 1e-6).kind == "ok"


def test_a_worker_survives_a_fault():
    assert triton_tools.judged("import nowhere", case(), 1e-6).message == "No module named 'nowhere'"
    assert triton_tools.judged("import os; os._exit(3)", case(), 1e-6).message == "crashed"
    assert triton_tools.judged(SCALE, case(), 1e-6).kind == "ok"


def test_registers_and_shared_memory_are_told_per_arch():
    for arch in ("sm_80", "sm_90a", "sm_120a"):
        found = triton_tools.compile(SCALE, entry(), arch)
        assert found.diagnostic == ""
        assert 0 < found.kernels["scale"].registers < 64
        assert (found.kernels["scale"].smem, found.kernels["scale"].spills) == (0, 0)


def test_a_diagnostic_names_file_line_and_reason():
    found = triton_tools.compile(SCALE, entry(16), "sm_80", "scale.py")
    assert found.diagnostic == "scale.py:12: CompileTimeAssertionFailure: BLOCK must fill a warp"
    found = triton_tools.compile(SCALE, entry(48), "sm_80", "scale.py")
    assert "arange's range must be a power of 2" in found.diagnostic
