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
    "a100": Board(dram_sustained_fraction=0.8313, power_droop=0.001018),
    "h100": Board(dram_sustained_fraction=0.9154, power_droop=0.1669),
    "h200": Board(dram_sustained_fraction=0.912, power_droop=0.1579),
    "rtx_pro_6000": Board(dram_sustained_fraction=0.8631, power_droop=0.05501),
}
"""Of each board, shared by all its kernels."""

LIBRARIES: Final[Mapping[str, Mapping[str, Mapping[str, float]]]] = {
    "a100": {
        "gemm bfloat16": {
            "overhead_us": 1.733,
            "split_us": 1.541,
            "leak": 0.1375,
            "step_ns": 207.8,
            "store_ps": 0.5754,
        },
        "decode": {
            "overhead_us": 14.16,
            "part_ns": 392.8,
            "warm": 0.3145,
            "inflight_kb": 12.17,
            "generic": 0.5323,
            "short_us": 10.51,
            "lone_us": 9.913,
            "copy_us": 4.306,
        },
    },
    "h100": {
        "gemm bfloat16": {
            "overhead_us": 0.5484,
            "split_us": 1.705,
            "leak": 0.075,
            "step_ns": 116.2,
            "store_ps": 0.4514,
        },
        "gemm fp8": {
            "overhead_us": 2.815,
            "leak": 0.2207,
            "step_ns": 48.67,
            "store_ps": 0.02098,
            "quantise": 1.413,
        },
        "decode": {
            "overhead_us": 8.043,
            "part_ns": 195.3,
            "warm": 0.6474,
            "inflight_kb": 35.46,
            "seq_ns": 26.64,
            "group_us": 1.185,
            "generic": 0.6654,
            "short_us": 6.643,
            "lone_us": 1.932,
            "window_us": 0.9808,
            "window_ps": 1.672,
        },
    },
    "h200": {
        "gemm bfloat16": {
            "overhead_us": 0.6662,
            "split_us": 1.991,
            "leak": 0.1045,
            "step_ns": 101.3,
            "store_ps": 0.4019,
        },
        "gemm fp8": {
            "overhead_us": 2.981,
            "leak": 0.2051,
            "step_ns": 31.29,
            "store_ps": 0.02864,
            "quantise": 1.526,
        },
        "decode": {
            "overhead_us": 7.382,
            "part_ns": 142.7,
            "warm": 0.5581,
            "inflight_kb": 49.18,
            "seq_ns": 26.79,
            "group_us": 1.912,
            "generic": 0.5546,
            "short_us": 6.208,
            "lone_us": 3.478,
            "window_us": 0.6809,
            "window_ps": 1.168,
        },
    },
    "rtx_pro_6000": {
        "gemm bfloat16": {
            "overhead_us": 0.1013,
            "split_us": 1.6,
            "leak": 0.06369,
            "step_ns": 237.2,
            "store_ps": 0.6241,
            "warm": 0.1347,
        },
        "gemm fp8": {
            "overhead_us": 2.666,
            "leak": 0.09571,
            "step_ns": 147.9,
            "store_ps": 0.1978,
            "quantise": 0.8294,
            "warm": 0.1422,
        },
        "decode": {
            "overhead_us": 7.028,
            "part_ns": 110.5,
            "warm": 0.8398,
            "inflight_kb": 60.63,
            "seq_ns": 2.402,
            "group_us": 0.677,
            "window_us": 0.01,
            "window_ps": 1.905,
        },
    },
}
"""Of the libraries measured on a board, by op and dtype; `benchmarks/libraries.py` uses them, campaigns do not.

overhead_us: a call beyond launch and fill. split_us: merging split K. part_ns: each part of a split sequence, at head size 128. leak:
share of the lesser resources not hidden. step_ns: one 128-byte step of a block along K. store_ps: stores of the last wave, per element of
C. quantise: bytes of the activation quantisation over the least (3 M K). warm: share of L2 that keeps weights, or K and V, between replays.
inflight_kb: bytes a block keeps in flight, at head size 128. generic: the same share where only an untuned kernel exists. seq_ns: each
sequence of a call. group_us: each wave but the first, several query heads to a KV head, at head size 128. short_us: a call of the kernel
for short sequences, or of masked MHA. lone_us: splitting in an untuned kernel. copy_us: a copy of the cache's layout, several sequences
and KV heads. window_us, window_ps: a window at all, and per token of the sequences.
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
