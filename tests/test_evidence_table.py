"""Verdicts, logs of compilers, and the table they end in: nothing here needs a compiler."""

import copy
import math
from pathlib import Path

import numpy as np
import pytest

from generator import facts
from generator.errors import DataError
from generator.evidence import catalogue, judge, nvcc, table
from generator.evidence.harness import Case
from generator.facts import Check, PointRecord, SourceRecord, Table
from generator.ops import OPS

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    48 bytes stack frame, 64 bytes spill stores, 72 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 4160 bytes smem
"""


def one_case(**changes: object) -> Case:
    fields = {
        "name": "ragged",
        "shape": {"N": 3},
        "buffers": {"x": np.ones(3, np.float16), "y": np.full(3, np.nan, np.float16)},
        "scalars": {},
        "expected": {"y": np.array([1.0, 2.0, -3.0])},
    }
    return Case(**(fields | changes))


def full_table() -> Table:
    made = Table(op="rmsnorm", toolchain={"nvcc": "13.0.88", "gxx": "12.2.0"})
    made.points["vec threads=64"] = PointRecord(check=Check("ok", 0.000318), launch=((("rmsnorm", 64, 0),),))
    made.points["vec threads=64 bug=tail"] = PointRecord(check=Check("bounds", None, "ragged", "out-of-bounds global read"))
    made.points["scalar threads=64"] = PointRecord(check=Check("ok", 0.0003), launch=((("rmsnorm", 64, 0),),))
    made.sources["ff"] = SourceRecord(of="scalar threads=64", archs={"sm_90a": {"rmsnorm": (30, 32, 0)}, "sm_80": {"rmsnorm": (28, 32, 4)}})
    made.sources["00"] = SourceRecord(of="vec threads=3", archs={"sm_80": 'vec.cu(3): error: static assertion failed with "x"'})
    return made


# ---- verdicts ------------------------------------------------------------------------------------
def test_error_is_relative_to_one_plus_the_reference():
    assert judge.relative_error(np.array([1.5, 2.0, -3.0]), np.array([1.0, 2.0, -3.0])) == 0.25  # 0.5 / (1 + 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_an_infinite_error(bad: float):
    assert judge.relative_error(np.array([bad, 2.0]), np.array([1.0, 2.0])) == math.inf


def test_an_output_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"output has shape \(2,\), its reference \(3,\)"):
        judge.relative_error(np.zeros(2), np.zeros(3))


def test_writing_an_input_is_an_infinite_error():
    case = one_case()
    right = case.expected["y"].astype(np.float16)
    assert judge.error_of(case, {"x": case.buffers["x"], "y": right}) == 0.0
    assert judge.error_of(case, {"x": case.buffers["x"] * 2, "y": right}) == math.inf


def test_a_case_may_bring_its_own_error():
    assert judge.error_of(one_case(error=lambda _: 7.0), {}) == 7.0


def test_the_first_case_past_the_tolerance_decides():
    assert judge.summary({"a": 0.1, "b": 0.3, "c": 0.9}, 0.2) == judge.Verdict(kind="numeric", error=0.3, case="b")
    assert judge.summary({"a": 0.1, "b": 0.15}, 0.2) == judge.Verdict(kind="ok", error=0.15)
    assert judge.summary({"a": math.inf}, 0.2) == judge.Verdict(kind="numeric", error=None, case="a")
    assert judge.summary({"a": math.nan}, 0.2).kind == "numeric"


# ---- logs ----------------------------------------------------------------------------------------
def test_ptxas_facts_are_read_per_kernel():
    found = nvcc.read(PTXAS, ok=True)
    assert found.kernels["first"] == nvcc.Kernel(registers=255, smem=4160, spills=64)
    assert found.kernels["second"] == nvcc.Kernel(registers=24, smem=0, spills=0)
    assert found.diagnostic == ""


def test_the_first_error_line_is_kept_without_random_paths():
    log = (
        "ptxas /tmp/tmpxft_00002e4b_00000000-6_vec.ptx, line 104; error   : Instruction 'wgmma.fence' not supported on .target 'sm_80'\n"
        "ptxas fatal   : Ptx assembly aborted due to errors\n"
    )
    found = nvcc.read(log, ok=False)
    assert found.diagnostic == "ptxas vec.ptx, line 104; error   : Instruction 'wgmma.fence' not supported on .target 'sm_80'"
    assert found.kernels == {}


def test_warnings_are_reported():
    found = nvcc.read(PTXAS + 'vec.cu(3): warning #177-D: variable "x" was declared but never referenced\n', ok=True)
    assert found.warnings == ('vec.cu(3): warning #177-D: variable "x" was declared but never referenced',)


# ---- tables --------------------------------------------------------------------------------------
def test_a_table_survives_its_file(tmp_path: Path):
    made = full_table()
    path = tmp_path / "evidence.json"
    table.write(path, made)
    assert table.read(path) == made
    assert table.dumps(table.read(path)) == path.read_text(encoding="utf-8")


def test_a_record_is_a_line_and_lines_are_sorted():
    lines = table.dumps(full_table()).splitlines()
    assert [line.split('"')[1] for line in lines if '"check"' in line] == ["scalar threads=64", "vec threads=64", "vec threads=64 bug=tail"]
    assert [line.split('"')[1] for line in lines if '"of"' in line] == ["ff", "00"]  # by what they are of, not by digest


def test_a_missing_table_tells_the_command():
    with pytest.raises(DataError, match="python -m generator evidence build --op rmsnorm"):
        table.read(Path("/nowhere/rmsnorm/evidence.json"))


def test_every_difference_is_one_line():
    old, new = full_table(), copy.deepcopy(full_table())
    assert table.differences(old, new) == []
    new.toolchain["nvcc"] = "13.1.0"
    new.points["vec threads=64"] = PointRecord(check=Check("numeric", 0.5, "ragged"), launch=old.points["vec threads=64"].launch)
    new.sources["ff"].archs["sm_80"] = {"rmsnorm": (29, 32, 4)}
    del new.sources["00"]
    told = table.differences(old, new)
    assert len(told) == 4
    assert told[2].endswith("found nothing")
    assert "(28, 32, 4)" in told[3]


def test_versions_of_tools_that_decide_no_fact_and_last_digits_are_no_difference():
    old, new = full_table(), full_table()
    new.toolchain["gxx"] = "13.1.0"
    new.points["vec threads=64"] = PointRecord(check=Check("ok", 0.000319), launch=old.points["vec threads=64"].launch)
    assert table.differences(old, new) == []


# ---- what is compiled and run --------------------------------------------------------------------
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_point_of_every_shape_is_in_the_catalogue_once(op):
    texts = catalogue.honest_and_illegal(op)
    assert len({source.digest for source in texts}) == len(texts)
    held = {source.digest for source in texts}
    for variant in op.variants:
        for shape in catalogue.all_shapes(op):
            for params in (*variant.points, *(illegal.params for illegal in variant.illegal)):
                assert facts.digest(catalogue.render(op, variant, params, shape)) in held


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_bug_is_compiled_for_every_arch_that_its_variant_claims(op):
    texts = catalogue.buggy(op)
    for variant in op.variants:
        for bug in variant.bugs:
            assert {arch for s in texts if s.bug == bug.name and s.params == variant.start for arch in s.archs} == set(
                catalogue.claimed(variant)
            )
