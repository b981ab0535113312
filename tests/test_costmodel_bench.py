"""The calibration and its report: reading measurements, the library model, its floors, and the command line."""

import gzip
import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from generator import calibration, costmodel
from generator.gpus import BY_NAME

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
measured, libraries, rooflines, search, calibrate, bench = (
    importlib.import_module(name) for name in ("measured", "libraries", "rooflines", "search", "calibrate", "bench_costmodel")
)

GEMM = """system,dtype,m,n,k,measured_ms,libraries
h100_sxm,bfloat16,4096,4096,4096,0.2,6
rtx_pro_6000_server,bfloat16,1,1024,1024,0.006,3
a100_sxm,bfloat16,64,8192,8192,0.09,4
h100_sxm,fp8,1,16384,16384,0.1,2
rtx_pro_6000_server,fp8,1024,1024,1024,0.02,2
"""
DECODE = """system,batch_size,heads,kv_heads,head_dim,T,window_size,measured_ms,tokens_read,libraries
h100_sxm,8,32,32,128,4096,0,0.1819,4096,7
h200_sxm,8,32,32,128,4096,0,0.1315,4096,7
h200_sxm,32,8,8,128,8192,0,0.2480,8192,7
h100_sxm,128,32,32,64,2048,0,0.7001,2048,7
a100_sxm,8,32,8,128,4096,0,0.1076,4096,3
h100_sxm,8,64,8,64,4096,128,0.018,128,1
h100_sxm,8,64,1,64,4096,0,0.02,4096,1
rtx_pro_6000_server,8,32,8,128,4096,0,0.1,4096,1
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    gemm, decode = tmp_path / "gemm.csv", tmp_path / "decode.csv"
    gemm.write_text(GEMM)
    decode.write_text(DECODE)
    return gemm, decode


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "bench_costmodel.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )


def test_subsets(files: tuple[Path, Path]):
    gemm, decode = measured.read(files[0], "gemm"), measured.read(files[1], "decode")
    core = {(c.system, c.dtype): c.core.tolist() for c in gemm.columns}
    assert core["rtx_pro_6000_server", "bfloat16"] == [False]  # 2 MB of weights, one row
    assert core["rtx_pro_6000_server", "fp8"] == [True]  # 1024 rows
    assert core["h100_sxm", "fp8"] == [True]
    h100 = next(c for c in decode.columns if c.system == "h100_sxm")
    assert h100.core.tolist() == [True, True, False, False]  # a window, 64 heads to one
    assert not next(c for c in decode.columns if c.system.startswith("rtx")).core.any()


def test_the_split_hashes_the_shape_alone(files: tuple[Path, Path]):
    table = measured.read(files[1], "decode")
    sides = {c.system: c.test[0] for c in table.columns if c.axes["kv_heads"][0] == 32}
    assert len(set(map(bool, sides.values()))) == 1
    held = sum(measured._held_out("gemm", (m, n, k)) for m in range(1, 17) for n in range(1, 17) for k in range(1, 9))
    assert 0.2 < held / 2048 < 0.3


def test_published_decode_times(files: tuple[Path, Path]):
    for column in measured.read(files[1], "decode").columns:
        if column.system in ("h100_sxm", "h200_sxm"):
            core = column.rows(column.core)
            assert np.abs(libraries.predict(core) / core.seconds - 1).max() < 0.1


def test_predictions_are_at_or_above_an_independent_floor(files: tuple[Path, Path]):
    for path, kind in zip(files, ("gemm", "decode"), strict=True):
        for column in measured.read(path, kind).columns:
            gpu = libraries.SYSTEMS[column.system]
            nbytes, flops = libraries.work(column)
            rate = (gpu.fp8_tflops if column.dtype == "fp8" else gpu.fp16_tflops) * 1e12 * gpu.max_mhz / gpu.boost_mhz
            assert (libraries.predict(column) >= np.maximum(nbytes / gpu.dram_best, flops / rate) * (1 - 1e-12)).all()


def test_work_by_hand(files: tuple[Path, Path]):
    column = next(c for c in measured.read(files[0], "gemm").columns if c.dtype == "fp8" and c.system == "h100_sxm")
    nbytes, flops = libraries.work(column)
    assert nbytes[0] == 16384 + 16384**2 + 2 * 16384
    assert flops[0] == 2 * 16384**2


def test_boards_of_the_report_are_those_of_campaigns():
    assert libraries.SYSTEMS["h100_sxm"] is BY_NAME["h100"]
    assert set(calibration.BOARDS) == {gpu.name for gpu in libraries.SYSTEMS.values()} == set(calibration.LIBRARIES)
    for name, board in calibration.BOARDS.items():
        gpu = next(g for g in libraries.SYSTEMS.values() if g.name == name)
        assert 0.6 < board.dram_sustained_fraction <= gpu.dram_fraction
        assert gpu.power_droop == board.power_droop


def test_constants_lie_within_their_bounds():
    for system in calibration.LIBRARIES.values():
        for constants in system.values():
            assert set(constants) <= set(calibrate.BOUNDS)
            assert all(calibrate.BOUNDS[name][0] <= value <= calibrate.BOUNDS[name][1] for name, value in constants.items())


def test_search_finds_a_minimum():
    bounds = {"a": (0.1, 100.0), "b": (0.1, 100.0), "c": (2.0, 4.0)}
    found, error = search.minimise(lambda c: (c["a"] - 3) ** 2 + (c["b"] - 7) ** 2 + c["c"], {"a": 1.0, "b": 1.0, "c": 3.0}, bounds, 400)
    assert found["a"] == pytest.approx(3, rel=1e-2)
    assert found["b"] == pytest.approx(7, rel=1e-2)
    assert found["c"] == pytest.approx(2)  # the bound
    assert error == pytest.approx(2, rel=1e-3)
    assert calibrate.at_bounds({"leak": calibrate.BOUNDS["leak"][0], "split_us": 1.0}) != []


def test_spearman_by_hand():
    assert bench.spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 40.0])) == 1
    assert bench.spearman(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])) == -1
    assert bench.spearman(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(0.9487, abs=1e-4)


def test_report(files: tuple[Path, Path]):
    done = run("--gemm", str(files[0]), "--decode", str(files[1]), "--json")
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout)
    assert all(tuple(line) == bench.KEYS for line in lines)
    assert sum(line["n"] for line in lines) == 13
    assert all(line["floor_violations"] == 0 for line in lines)
    assert {line["op"] for line in lines} == {"gemm", "decode"}
    shown = run("--gemm", str(files[0]))
    assert shown.stdout.splitlines()[0].split() == list(bench.KEYS)


def test_rooflines_of_given_files(files: tuple[Path, Path]):
    done = run("--decode", str(files[1]), "--fit", str(files[0]), str(files[1]), "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 5


def test_predictions_keep_every_row_in_order(files: tuple[Path, Path], tmp_path: Path):
    out = tmp_path / "out.csv"
    assert run("--decode", str(files[1]), "--predictions", str(out)).returncode == 0
    rows = [line.split(",") for line in out.read_text().splitlines()]
    given = [line.split(",") for line in DECODE.splitlines()]
    assert rows[0] == [*given[0], "predicted_ms", "floor_ms", "subset"]
    assert [row[:-3] for row in rows] == given
    assert all(float(row[-3]) >= float(row[-2]) > 0 for row in rows[1:])
    assert [row[-1] for row in rows[1:]] == ["core"] * 5 + ["edge"] * 3


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--gemm", "missing.csv"),
        ("--gemm", "DECODE"),
        ("--decode", "BAD"),
        ("--gemm", "GEMM", "--decode", "DECODE", "--predictions", "out.csv"),
    ],
)
def test_bad_input_is_one_line(files: tuple[Path, Path], tmp_path: Path, arguments: tuple[str, ...]):
    bad = tmp_path / "bad.csv"
    bad.write_text(DECODE.replace("h200_sxm", "h300_sxm"))
    names = {"GEMM": str(files[0]), "DECODE": str(files[1]), "BAD": str(bad), "out.csv": str(tmp_path / "out.csv")}
    done = run(*(names.get(word, word) for word in arguments))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (GEMM, "", "no column 'system'"),
        (GEMM, GEMM.splitlines()[0] + "\n", "no rows below the header"),
        (",n,k,", ",n,q,", "no column 'k'"),
        ("a100_sxm,bfloat16,64", "a100_sxm,bfloat16,", "bad.csv:4: m '' is no number"),
        ("a100_sxm,bfloat16,64", "a100_sxm,bfloat16,1.5", "bad.csv:4: m 1.5; it must be a whole number"),
        ("a100_sxm,bfloat16,64", "a100_sxm,bfloat16,1e30", "bad.csv:4: m 1e+30; it must be a whole number"),
        ("a100_sxm,bfloat16", "a100_sxm,fp4", "bad.csv:4: dtype 'fp4'"),
        ("0.09,4", "nan,4", "bad.csv:4: measured_ms 'nan'"),
        ("0.09,4", "0.09", "bad.csv:4: 6 fields"),
    ],
)
def test_odd_rows_are_one_line_and_write_nothing(tmp_path: Path, old: str, new: str, told: str):
    bad, out = tmp_path / "bad.csv", tmp_path / "out.csv"
    bad.write_text(GEMM.replace(old, new))
    done = run("--gemm", str(bad), "--predictions", str(out))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert told in done.stderr
    assert not out.exists()


def test_heads_in_whole_groups(tmp_path: Path):
    bad = tmp_path / "bad.csv"
    bad.write_text(DECODE.replace("a100_sxm,8,32,8", "a100_sxm,8,32,7"))
    with pytest.raises(measured.BadInputError, match=r"bad\.csv:6: heads 32 are no multiple of kv_heads 7"):
        measured.read(bad, "decode")


def test_a_broken_archive_or_missing_fit_is_one_line(files: tuple[Path, Path], tmp_path: Path):
    cut, out = tmp_path / "cut.csv.gz", tmp_path / "out.csv"
    cut.write_bytes(gzip.compress(GEMM.encode())[:60])
    for arguments in (("--gemm", str(cut)), ("--gemm", str(files[0]), "--fit", str(tmp_path / "none.csv"))):
        done = run(*arguments, "--predictions", str(out))
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert not out.exists()


def test_a_mark_at_the_start_of_the_file_is_read_over(tmp_path: Path):
    marked = tmp_path / "gemm.csv"
    marked.write_text(GEMM, encoding="utf-8-sig")
    assert len(measured.read(marked, "gemm").texts) == 5


def one_row(system: str, **axes: int) -> str:
    """A decode file of one shape."""
    row = {"batch_size": 2, "heads": 8, "kv_heads": 8, "head_dim": 128, "T": 1024, "window_size": 0} | axes
    row |= {"tokens_read": row["T"]}
    return f"system,{','.join(row)},measured_ms\n{system},{','.join(map(str, row.values()))},1\n"


@pytest.mark.parametrize(
    ("system", "axes", "found"),
    [
        ("a100_sxm", {}, {"masked"}),
        ("a100_sxm", {"heads": 32}, set()),
        ("a100_sxm", {"T": 65536}, {"masked", "alone"}),
        ("a100_sxm", {"heads": 16, "kv_heads": 16}, {"few"}),
        ("h100_sxm", {"heads": 16, "kv_heads": 16}, {"few"}),
        ("h200_sxm", {"heads": 16, "kv_heads": 16}, set()),
        ("h200_sxm", {"heads": 12, "kv_heads": 12}, {"few"}),
        ("h200_sxm", {"heads": 12, "kv_heads": 12, "T": 65536}, {"few", "alone"}),
        ("h100_sxm", {"heads": 16, "kv_heads": 16, "head_dim": 64}, {"few", "alone"}),
        ("h100_sxm", {"head_dim": 64, "T": 512}, {"short"}),
        ("rtx_pro_6000_server", {"heads": 16, "kv_heads": 16}, set()),
    ],
)
def test_coverage_of_the_libraries(tmp_path: Path, system: str, axes: dict[str, int], found: set[str]):
    path = tmp_path / "one.csv"
    path.write_text(one_row(system, **axes))
    (column,) = measured.read(path, "decode").columns
    told = libraries.coverage(libraries.SYSTEMS[system], column)
    assert {name for name in ("masked", "few", "alone", "short") if getattr(told, name).all()} == found


def test_masked_mha_walks_its_tokens(tmp_path: Path):
    path = tmp_path / "one.csv"
    path.write_text(one_row("a100_sxm", T=131072) + "a100_sxm,2,8,8,128,65536,0,65536,1\n")
    long, half = libraries.predict(measured.read(path, "decode").columns[0])
    assert long / half == pytest.approx(2, rel=0.05)  # one block a head, however few: no part of the GPU helps


def test_quarters_are_disjoint():
    shapes = [(m, n, 64) for m in range(1, 9) for n in range(1, 9)]
    held = [sum(measured._held_out("gemm", shape, quarter) for quarter in range(4)) for shape in shapes]
    assert held == [1] * len(shapes)


def test_floor_seconds_takes_arrays():
    gpu = BY_NAME["h100"]
    floors = costmodel.floor_seconds(gpu, np.array([1.0, 1e9]), np.array([1.0, 1.0]), "fp16")
    assert floors[0] == pytest.approx(gpu.launch_us * 1e-6)
    assert floors[1] == pytest.approx(1e9 / gpu.dram_best)
