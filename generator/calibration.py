"""Constants fitted to published measurements; written by `benchmarks/calibrate.py`, not by hand.

- measured_gemm.csv.gz (sha256 f6cd5488cc7e7071...): 10212 rows, 7608 fitted on
- measured_decode.csv.gz (sha256 a90bf38be4da8eee...): 22805 rows, 6104 fitted on

Least mean relative error on the fit rows of the subset `core`; one shape in four is kept out. Measurements: best clean library per shape of
https://github.com/ai-dynamo/aiconfigurator/tree/095f58a51c4ca8e61b66ec108d86f223f8d559ce (Apache-2.0).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PROVENANCE: Final = (
    "https://github.com/ai-dynamo/aiconfigurator/tree/095f58a51c4ca8e61b66ec108d86f223f8d559ce (fitted by benchmarks/calibrate.py)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What is fitted of a board; the fields of `generator.gpus.Gpu` of the same names say what they mean."""

    dram_sustained_fraction: float
    power_droop: float


BOARDS: Final[Mapping[str, Board]] = {
    "a100": Board(dram_sustained_fraction=0.8336, power_droop=0.001003),
    "h100": Board(dram_sustained_fraction=0.9103, power_droop=0.1717),
    "h200": Board(dram_sustained_fraction=0.9069, power_droop=0.1635),
    "rtx_pro_6000": Board(dram_sustained_fraction=0.8808, power_droop=0.02058),
}
"""Of each board, shared by all its kernels."""

LIBRARIES: Final[Mapping[str, Mapping[str, Mapping[str, float]]]] = {
    "a100": {
        "gemm bfloat16": {
            "overhead_us": 2.175,
            "split_us": 1.638,
            "leak": 0.1478,
            "step_ns": 99.26,
            "store_ps": 0.5646,
        },
        "decode": {
            "overhead_us": 17.13,
            "part_ns": 334.1,
            "warm": 0.2978,
            "inflight_kb": 14.82,
            "generic": 0.4351,
            "block_us": 0.4188,
            "group_us": 0.02554,
            "head_ps": 5.756,
            "leak": 0.2512,
        },
    },
    "h100": {
        "gemm bfloat16": {
            "overhead_us": 0.5347,
            "split_us": 1.711,
            "leak": 0.06898,
            "step_ns": 117.3,
            "store_ps": 0.4781,
        },
        "gemm fp8": {
            "overhead_us": 2.789,
            "leak": 0.2196,
            "step_ns": 48.75,
            "store_ps": 0.02167,
            "quantise": 1.408,
        },
        "decode": {
            "overhead_us": 7.359,
            "part_ns": 215.5,
            "warm": 0.6217,
            "inflight_kb": 34.24,
            "generic": 0.4945,
            "block_us": 0.02914,
            "group_us": 0.4564,
            "head_ps": 5.445,
            "leak": 0.01964,
            "window_us": 1.218,
            "window_ps": 1.913,
        },
    },
    "h200": {
        "gemm bfloat16": {
            "overhead_us": 0.6468,
            "split_us": 1.993,
            "leak": 0.1009,
            "step_ns": 102.1,
            "store_ps": 0.4129,
        },
        "gemm fp8": {
            "overhead_us": 2.984,
            "leak": 0.2009,
            "step_ns": 28.92,
            "store_ps": 0.02946,
            "quantise": 1.542,
        },
        "decode": {
            "overhead_us": 6.528,
            "part_ns": 168.5,
            "warm": 0.5382,
            "inflight_kb": 47.37,
            "generic": 0.4126,
            "block_us": 0.09041,
            "group_us": 0.5578,
            "head_ps": 8.094,
            "leak": 0.01168,
            "window_us": 0.8211,
            "window_ps": 1.22,
        },
    },
    "rtx_pro_6000": {
        "gemm bfloat16": {
            "overhead_us": 0.1,
            "split_us": 0.1005,
            "leak": 0.1051,
            "step_ns": 1.095,
            "store_ps": 0.4,
        },
        "gemm fp8": {
            "overhead_us": 1.264,
            "leak": 0.1072,
            "step_ns": 163.3,
            "store_ps": 0.3129,
            "quantise": 0.8498,
        },
        "decode": {
            "overhead_us": 6.518,
            "part_ns": 111.4,
            "warm": 0.8551,
            "inflight_kb": 10.91,
            "generic": 0.9962,
            "block_us": 0.1497,
            "group_us": 0.2579,
            "head_ps": 2.487,
            "leak": 0.1667,
            "window_us": 0.01001,
            "window_ps": 1.907,
        },
    },
}
"""Of the libraries measured on a board, by op and dtype; `benchmarks/libraries.py` uses them, campaigns do not.

overhead_us: a call beyond launch and fill. split_us: merging split K. part_ns: each part of a split sequence, at head size 128. leak:
share of the lesser resources not hidden. step_ns: one 128-byte step of a block along K. store_ps: stores of the last wave, per element of
C. quantise: bytes of the activation quantisation over the least (3 M K). warm: share of L2 that keeps K and V between replays.
inflight_kb: bytes a block keeps in flight. generic: the same share where only a generic kernel exists. block_us, group_us: ends of a
block, and more for several query heads (at head size 128). head_ps: per element of the output. window_us, window_ps: a window at all, and
per token of the sequences.
"""

ROOFLINES: Final[Mapping[tuple[str, str, str, str], Mapping[str, float]]] = {
    ("a100_sxm", "gemm", "bfloat16", "core"): {"t0_us": 5.567, "e": 0.8114, "eta": 0.7859},
    ("h100_sxm", "gemm", "bfloat16", "core"): {"t0_us": 3.599, "e": 0.8389, "eta": 0.9042},
    ("h100_sxm", "gemm", "fp8", "core"): {"t0_us": 5.38, "e": 0.6084, "eta": 0.8524},
    ("h200_sxm", "gemm", "bfloat16", "core"): {"t0_us": 3.73, "e": 0.8386, "eta": 0.8892},
    ("h200_sxm", "gemm", "fp8", "core"): {"t0_us": 5.427, "e": 0.6921, "eta": 0.8355},
    ("rtx_pro_6000_server", "gemm", "bfloat16", "core"): {"t0_us": 14.36, "e": 0.8169, "eta": 0.8693},
    ("rtx_pro_6000_server", "gemm", "bfloat16", "edge"): {"t0_us": 1.305, "e": 0.5681, "eta": 0.8238},
    ("rtx_pro_6000_server", "gemm", "fp8", "core"): {"t0_us": 13.67, "e": 0.7005, "eta": 0.8321},
    ("rtx_pro_6000_server", "gemm", "fp8", "edge"): {"t0_us": 4.125, "e": 0.4835, "eta": 0.82},
    ("a100_sxm", "decode", "bfloat16", "core"): {"t0_us": 19.77, "eta": 0.708},
    ("a100_sxm", "decode", "bfloat16", "edge"): {"t0_us": 16.53, "eta": 0.5969},
    ("h100_sxm", "decode", "bfloat16", "core"): {"t0_us": 10.0, "eta": 0.8983},
    ("h100_sxm", "decode", "bfloat16", "edge"): {"t0_us": 11.29, "eta": 0.8334},
    ("h200_sxm", "decode", "bfloat16", "core"): {"t0_us": 9.584, "eta": 0.8777},
    ("h200_sxm", "decode", "bfloat16", "edge"): {"t0_us": 10.41, "eta": 0.7628},
    ("rtx_pro_6000_server", "decode", "bfloat16", "edge"): {"t0_us": 8.797, "eta": 1.336},
}
"""By system, op, dtype, subset: microseconds at no work, shares of the datasheet's compute and bandwidth."""
