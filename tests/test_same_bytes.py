"""The same bytes anywhere: whatever the processor, hash seed, Python or NumPy, and nothing in the code that could move them."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from generator import selftest
from generator.build import Request, build
from generator.digest import table_digest
from generator.episodes import build_range
from generator.release import Release

ROOT = Path(__file__).parents[1]

PROBE = """
import json
try:
    from numpy._core._multiarray_umath import __cpu_features__ as features
except ImportError:  # NumPy 1
    from numpy.core._multiarray_umath import __cpu_features__ as features
from generator import selftest
from generator.digest import table_digest
from generator.episodes import build_range
from generator.holdout import build_holdout
from generator.release import Release
print(json.dumps({
    "train": table_digest(build_range(Release(), "train", 0, 136)),
    "validation": table_digest(build_range(Release(), "validation", 0, 17)),
    "other seed": table_digest(build_range(Release(seed=2**63 - 1), "train", 0, 17)),
    "holdout": table_digest(build_holdout(Release())),
    "selftest": selftest.digest(),
    "on": [name for name, on in features.items() if on],
}))
"""


def probe(python=sys.executable, **environment):
    command = [str(python), "-W", "ignore", "-c", PROBE]
    found = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def rows(found):
    return {name: found[name] for name in ("train", "validation", "other seed", "holdout")}


@pytest.fixture(scope="module")
def here():
    return probe(PYTHONHASHSEED="0")


def test_rows_do_not_depend_on_the_process(here, train):
    assert here["train"] == table_digest(train.slice(0, 136))
    assert here["selftest"] == selftest.digest()


@pytest.mark.parametrize("seed", ["1", "4294967295"])
def test_hash_seeds_do_not_move_a_bit(here, seed):
    found = probe(PYTHONHASHSEED=seed)
    assert (rows(found), found["selftest"]) == (rows(here), here["selftest"])


def levels():
    """Vector units that NumPy dispatches to here: all of them off, and all but the lowest."""
    from numpy._core._multiarray_umath import __cpu_dispatch__ as dispatched
    from numpy._core._multiarray_umath import __cpu_features__ as features

    usable = [name for name in dispatched if features[name]]
    return [names for names in (usable, usable[1:]) if names]


@pytest.mark.parametrize("names", levels(), ids=" ".join)
def test_vector_units_do_not_move_a_bit(here, names):
    found = probe(NPY_DISABLE_CPU_FEATURES=" ".join(names))
    assert not set(names) & set(found["on"])
    assert (rows(found), found["selftest"]) == (rows(here), here["selftest"])


def test_blas_kernels_do_not_move_a_bit(here):
    found = probe(OPENBLAS_CORETYPE="Haswell", OPENBLAS_NUM_THREADS="2")
    assert (rows(found), found["selftest"]) == (rows(here), here["selftest"])


def test_workers_and_shard_sizes_do_not_move_the_rows(tmp_path):
    release = Release(episodes=40, validation=6)
    made = [build(Request(out=tmp_path / f"{w}-{s}", release=release, workers=w, shard_size=s)) for w, s in ((1, 400), (2, 7), (1, 7))]
    assert len({outcome.manifest["digest"] for outcome in made}) == 1
    assert tree(tmp_path / "2-7") == tree(tmp_path / "1-7")


def tree(out):
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize("seed", [0, 1, 2**62])
def test_adjacent_seeds_share_no_episode(seed):
    def transcripts(seed):
        table = build_range(Release(seed=seed), "train", 0, 68)
        return [json.dumps([row["messages"], row["agents"]]) for row in table.select(["messages", "agents"]).to_pylist()]

    first, second = transcripts(seed), transcripts(seed + 1)
    assert not set(first) & set(second)


SUSPECT = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "power", "float_power", "sin", "cos", "tan", "tanh", "sinh", "cosh"),
    *(
        "arctan",
        "hypot",
        "cbrt",
        "erf",
        "gamma",
        "dot",
        "matmul",
        "inner",
        "vdot",
        "einsum",
        "tensordot",
        "sum",
        "mean",
        "prod",
        "std",
        "var",
    ),
    *("cumsum", "cumprod", "average", "trace", "norm", "fsum", "nansum", "reduce", "accumulate"),
}
ALLOWED = {
    **dict.fromkeys(["reference", "decode", "routing", "pivots", "angles"], "an oracle: nothing of it is stored"),
    "_starts": "whole numbers",
    "tally": "whole numbers",
    "View": "whole numbers",
    "check_episodes": "a rule: nothing of it is stored",
    "_rewards": "a rule: nothing of it is stored",
}
CORE = [
    *("rng", "costmodel", "task", "team", "stage", "environment", "sources", "log", "phrases", "release", "episodes", "holdout"),
    *("digest", "stats", "parquet", "manifest", "selftest"),
]


def suspects(tree):
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in SUSPECT and module != "self":
                yield f"{module}.{name}"
            case ast.Attribute(attr=name, value=ast.Call() | ast.BinOp() | ast.Subscript()) if name in SUSPECT:
                yield name
            case ast.BinOp(op=ast.MatMult()):
                yield "@"
            case ast.BinOp(op=ast.Pow(), left=left, right=right):
                if not (isinstance(left, ast.Constant) and isinstance(ast.literal_eval(right), int)):
                    yield ast.unparse(node)


FILES = [
    *(ROOT / "generator" / f"{name}.py" for name in CORE),
    *sorted((ROOT / "generator/ops").glob("*.py")),
    *sorted((ROOT / "generator/scenarios").glob("*.py")),
    *sorted((ROOT / "schema").glob("*.py")),
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_stored_passes_through_what_differs_between_machines(path):
    """Powers, logarithms and the like differ in the last bit between C libraries and vector units, sums of floats in their order."""
    for part in ast.parse(path.read_text(encoding="utf-8")).body:
        if getattr(part, "name", None) not in ALLOWED:
            assert not [word for word in suspects(part) if word not in ("stage.log", "environment.log2")]


OTHERS = [
    ("3.11", "1.26.4", "21.0.0"),
    ("3.12", np.__version__, pa.__version__),
    ("3.13", np.__version__, pa.__version__),
    ("3.12", "2.1.3", pa.__version__),
]


def interpreter(version):
    """A Python of this version: on the path, or of pyenv."""
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))]
    found = [shutil.which(f"python{version}"), *(path for root in roots for path in sorted(root.glob(f"versions/{version}.*/bin/python")))]
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for path in filter(None, found):
        told = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        if told.stdout.strip() == version:
            return path
    return None


@pytest.mark.slow
@pytest.mark.parametrize(("python", "numpy", "pyarrow"), OTHERS)
def test_other_pythons_and_numpys_make_the_same_bytes(here, tmp_path, python, numpy, pyarrow):
    path = interpreter(python)
    if path is None:
        pytest.skip(f"no Python {python} here")
    subprocess.run([path, "-m", "venv", tmp_path / "venv"], check=True, capture_output=True)
    python = tmp_path / "venv/bin/python"
    install = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", f"numpy=={numpy}", f"pyarrow=={pyarrow}"]
    installed = subprocess.run(install, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"NumPy {numpy} cannot be installed: {installed.stderr.strip().splitlines()[-1]}")
    found = probe(python)
    assert rows(found) == rows(here)
    assert (found["selftest"] == here["selftest"]) == (pyarrow == pa.__version__)
