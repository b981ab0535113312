"""Candidates drawn from built episodes, compiled by a plain nvcc as a stranger would call it."""

import difflib
import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from generator.evidence import nvcc
from generator.kernels import template
from generator.ops import BY_NAME
from generator.sources import parse, render

pytestmark = pytest.mark.evidence
MANY = 200
UNLIKE = {"compile_error", "unsupported_arch"}


def drawn(train: pa.Table) -> list[tuple[str, str, str, str]]:
    """Arch, source, status and text of the result, of `MANY` distinct CUDA candidates, each status well represented."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for row in train.slice(0, 600).to_pylist():
        if row["impl"] != "cuda":
            continue
        for m in row["messages"]:
            if m["kind"] == "result":
                found.setdefault(m["status"], {})[row["arch"], row["messages"][m["reply_to"]]["content"]] = m["content"]
    dice = random.Random(20261130)
    each = MANY // len(found)
    picked = {status: dice.sample(sorted(some.items()), min(each, len(some))) for status, some in found.items()}
    return [(arch, source, status, text) for status, some in picked.items() for (arch, source), text in some]


def compile_plainly(nvcc_path: str, arch: str, source: str, folder: Path) -> str:
    """What nvcc says, empty if it makes a cubin."""
    folder.mkdir()
    (folder / "k.cu").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [nvcc_path, "-std=c++17", f"-arch={arch}", "-cubin", "k.cu"], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr if done.returncode else ""


def test_statuses_agree_with_a_strangers_compiler(train: pa.Table, tmp_path: Path):
    if (problem := nvcc.available()) is not None:
        pytest.skip(problem)
    path = shutil.which("nvcc") or nvcc.find()
    candidates = drawn(train)
    assert len(candidates) > 0.8 * MANY
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda n: compile_plainly(path, *candidates[n][:2], tmp_path / str(n)), range(len(candidates))))
    for (arch, source, status, text), log in zip(candidates, said, strict=True):
        of = parse(source)
        refused = status in UNLIKE and not text.startswith("launch failure:")
        assert bool(log) == refused, (arch, of.op, of.variant, dict(of.params), status, log)


def test_a_wrong_results_source_differs_from_the_honest_one_by_its_bugs_line(train: pa.Table):
    wrong = [
        (row["op"], row["messages"][m["reply_to"]]["content"])
        for row in train.slice(0, 600).to_pylist()
        for m in row["messages"]
        if m["status"] == "wrong_result"
    ]
    assert len(wrong) > 500
    for op_name, source in set(wrong):
        op, of = BY_NAME[op_name], parse(source)
        if op.variant(of.variant).flaw is not None:
            continue
        assert of.bug is not None
        honest = render(template(op.name, of.variant, op.impl), of.constants, of.params)
        moves = [line for line in difflib.ndiff(honest.splitlines(), source.splitlines()) if line[0] in "+-"]
        assert 1 <= len(moves) <= 2
