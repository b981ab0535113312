"""Building and verifying tables, on an op cut down to a few points; and what nvcc says."""

import dataclasses
import random
from concurrent.futures import Executor, Future
from pathlib import Path

import pytest

from generator import facts
from generator.evidence import build, catalogue, nvcc, table, work
from generator.facts import Table
from generator.ops import OPS
from generator.ops.base import Bug, Illegal, Op

RMSNORM = next(op for op in OPS if op.name == "rmsnorm")
MISSING = "; ".join(build.missing_tools(RMSNORM))


def needs_tools(test):
    """Marks a test that needs nvcc and g++."""
    return pytest.mark.evidence(pytest.mark.skipif(bool(MISSING), reason=MISSING)(test))


class Here(Executor):
    """Runs a job at once, in this process."""

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as problem:  # noqa: BLE001 - as an executor does
            future.set_exception(problem)
        return future


def small(**changes: object) -> Op:
    """rmsnorm with its first variant at two points, one bug and one illegal point."""
    variant = RMSNORM.baseline
    points = (variant.start, *(p for p in variant.points if p != variant.start))[:2]
    cut = {"points": points, "bugs": variant.bugs[:1], "illegal": variant.illegal[:1]} | changes
    return dataclasses.replace(RMSNORM, variants=(dataclasses.replace(variant, **cut),))


def collect(op: Op, folder: Path) -> tuple[Table, list[str]]:
    made, problems = build.collect(op, Here(), folder, report=lambda _: None)
    return made, [p for p in problems if "fewer than" not in p]


@needs_tools
def test_a_table_holds_every_point_and_source(tmp_path: Path):
    made, problems = collect(small(), tmp_path)
    assert problems == []
    assert sorted(record.check.kind == "ok" for record in made.points.values()) == [False, False, True, True]
    honest = [record for record in made.sources.values() if len(record.archs) == 4]
    assert honest
    for record in honest:
        for kernels in record.archs.values():
            registers, smem, spills = kernels["rmsnorm"]
            assert 10 < registers < 256
            assert smem > 0
            assert spills == 0


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_the_counts_of_a_table_add_up(op: Op):
    counted = build.counts(op, table.read(build.table_path(op.name)))
    shown = sum(len(facts.caught(op, variant, params)) for variant in op.variants for params in variant.points)
    assert counted["points"] == counted["matching"] + counted["flawed"]
    assert counted["bug points"] == shown + counted["silent"]
    assert counted["runs"] == counted["points"] + counted["bug points"]
    assert counted["bugs"] == counted["caught"]


@needs_tools
def test_claims_that_do_not_hold_are_problems(tmp_path: Path):
    variant = RMSNORM.baseline
    harmless = Bug(name="harmless", old="float sum = 0.0f", new="float sum = 0.0f + 0.0f", slip="", symptom="")
    wrong = Bug(name="wrong", old="float sum = 0.0f", new="float sum = 0.0f; int unused", slip="", symptom="")
    legal = Illegal(params={**variant.start, "threads": 1024}, rule="THREADS must be odd")
    _, problems = collect(small(bugs=(harmless,), illegal=(legal,)), tmp_path)
    assert any("harmless: the bug does not show at the start point" in p for p in problems)
    assert any("does not break 'THREADS must be odd': it compiles" in p for p in problems)
    _, problems = collect(small(bugs=(wrong,)), tmp_path)
    assert any("warns: scalar.cu" in p for p in problems)


@needs_tools
def test_a_second_build_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, _ = collect(small(), tmp_path)
    monkeypatch.setattr(nvcc, "compile", lambda *_: pytest.fail("compiled again"))
    again, _ = collect(small(), tmp_path)
    assert table.differences(first, again) == []


@needs_tools
def test_verify_tells_a_table_from_a_changed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(build, "_pool", lambda _: Here())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said: list[str] = []
    shortcomings = build.build([small()], tmp_path, report=said.append)
    assert build.verify([small()], tmp_path, report=said.append) == shortcomings
    assert said[-1].startswith("0 differences")
    path = build.table_path("rmsnorm", tmp_path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('["ok", 0.', '["ok", 1.', 1), encoding="utf-8")
    assert build.verify([small()], tmp_path, report=said.append) == shortcomings + 1
    assert said[-1].startswith("1 differences")


@needs_tools
def test_sources_compiled_together_are_as_each_by_itself():
    texts = [catalogue.render(RMSNORM, v, v.start, RMSNORM.shapes[0]) for v in RMSNORM.variants if not v.needs]
    assert nvcc.compile_together(texts, "sm_86") == [nvcc.compile(text, "sm_86") for text in texts]
    assert nvcc.compile_together([*texts, "int f() { return x; }"], "sm_86") is None
    assert nvcc.compile_together([*texts, 'extern "C" __global__ void k() { int unused; }'], "sm_86") is None  # a warning


@needs_tools
@pytest.mark.parametrize("op", [op for op in OPS if op.impl == "cuda"], ids=lambda op: op.name)
def test_a_source_by_itself_compiles_to_what_the_table_says(op: Op):
    """The tables are made of sources compiled together; five of each op, drawn once and for all, are compiled alone."""
    sources = [(source, arch) for source in catalogue.honest_and_illegal(op) for arch in source.archs]
    for source, arch in random.Random(op.name).sample(sources, 5):
        record = facts.table(op.name).sources[source.digest].archs[arch]
        assert work.facts(nvcc.compile(source.text, arch, source.file)) == record, (source.of, arch)


@needs_tools
def test_a_static_assertion_is_the_diagnostic():
    found = nvcc.compile('static_assert(sizeof(int) == 5, "ints are four bytes");\n', "sm_80", "k.cu")
    assert found.diagnostic == 'k.cu(1): error: static assertion failed with "ints are four bytes"'


@needs_tools
def test_an_arch_without_the_instruction_is_named_by_ptxas():
    source = 'extern "C" __global__ void k() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }\n'
    assert nvcc.compile(source, "sm_90a", "k.cu").diagnostic == ""
    found = nvcc.compile(source, "sm_80", "k.cu").diagnostic
    assert found.startswith("ptxas k.ptx, line ")
    assert found.endswith("error   : Instruction 'wgmma.fence' not supported on .target 'sm_80'")


@needs_tools
def test_static_shared_memory_over_the_limit():
    source = 'extern "C" __global__ void k(float* o) { __shared__ float s[16384]; s[0] = o[0]; __syncthreads(); o[1] = s[o[2] > 0]; }'
    assert "uses too much shared data (0x10000 bytes, 0xc000 max)" in nvcc.compile(source, "sm_80").diagnostic


def test_the_pinned_version_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old = tmp_path / "nvcc"
    old.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.131'\n", encoding="utf-8")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nvcc, "_in_wheels", lambda: None)
    nvcc.find.cache_clear()
    try:
        with pytest.raises(
            nvcc.ToolchainError, match=r"nvcc 13\.0\.88 is needed, found 12\.4\.131 at .*; pip install nvidia-cuda-nvcc==13\.0\.88"
        ):
            nvcc.find()
    finally:
        nvcc.find.cache_clear()


def test_a_plan_on_a_real_shape_allocates_nothing():
    view = work._view((10**6, 10**6), 0.0, "float32")
    assert view.shape == (10**6, 10**6)
    assert view.base is not None
