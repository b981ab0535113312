"""Predicted over measured, for single published timings of all ops: the table of docs/costmodel.md.

    python benchmarks/anchors.py MEASURED.csv

Each row is priced as the best candidate of the project's own variants on the row's shape and board (GQA decode by `triton_flash_decode`, a
linear layer in int8 weights by nothing). Rows are grouped by op and implementation; a group off by more than 30 % has its reason.
"""

import argparse
import csv
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from libraries import RTX_PRO_6000

from generator import costmodel, facts
from generator.gpus import BY_NAME as GPU
from generator.gpus import Gpu
from generator.ops import BY_NAME as OP
from generator.ops.base import Shape

OFF: Final = 0.30

BOARDS: Final[Mapping[str, Gpu]] = {
    **GPU,
    "rtx_pro_6000 (sm_120 proxy)": RTX_PRO_6000,
    "h800 (=h100 SXM compute+HBM)": GPU["h100"],
    "a100 (40GB SXM4)": replace(GPU["a100"], dram_gbps=1555),
}
UNPRICED: Final = {
    "rtx_pro_6000 Max-Q (sm_120 proxy)": "300 W board",
    "h100 NVL (proxy)": "another memory",
    "a10g (A10 memory, not A10)": "80 SMs, another power limit",
}

AXES: Final[Mapping[str, Mapping[str, str]]] = {
    "flash_decode": {"B": "B", "H": "H", "KV": "KVH", "D": "D", "T": "T"},
    "triton_flash_decode": {"B": "B", "H": "H", "KV": "KVH", "D": "D", "T": "T"},
    "swa_decode": {"B": "B", "H": "H", "KV": "KVH", "D": "D", "T": "T", "W": "W"},
    "gemm_fp16": {"M": "M", "N": "N", "K": "K"},
    "fp8_gemm": {"M": "M", "N": "N", "K": "K"},
    "int8_gemm": {"M": "M", "N": "N", "K": "K"},
    "int4_gemv": {"M": "M", "N": "N", "K": "K", "G": "g"},
    "rmsnorm": {"M": "M", "N": "N"},
    "triton_rmsnorm": {"M": "M", "N": "N"},
    "rope": {"M": "T", "H": "Hq", "KV": "Hkv", "D": "D"},
    "swiglu_act": {"M": "M", "N": "F"},
    "kv_append": {"M": "T", "KV": "KVH", "D": "D"},
    "topk_sample": {"B": "B", "V": "V", "K": "k"},
    "nucleus_sample": {"B": "B", "V": "V"},
    "moe_scatter": {"M": "T", "K": "topk", "E": "E", "N": "H"},
}
"""Names of a row's sizes by axis of the op; a page is 16 tokens."""

REASONS: Final = (
    ("", "eager", "several unfused fp32 passes, a rung of the ladder"),
    ("", "HF eager", "several unfused fp32 passes, a rung of the ladder"),
    ("", "vLLM-2023", "scalar kernel of 2023, 1 us resolution of the profiler: the natural baseline"),
    ("flash_decode", "SDPA math", "unfused, a rung of the ladder"),
    ("flash_decode", "layer", "a whole layer, projections included"),
    ("flash_decode", "FlashMLA", "latent attention, other bytes"),
    ("flash_decode", "FA-2", "prefill kernel, one block a head"),
    ("flash_decode", "", "call and append of the library (5-17 us) on one side, a KV cache of 33 MB still warm in L2 on the other"),
    ("swa_decode", "hot L2", "timed with a hot L2"),
    ("swa_decode", "", "128 tokens: call, append and window handling of the library, 8 us and more, exceed the kernel; see the weak spots"),
    ("gemm_fp16", "naive", "a rung of the ladder"),
    ("gemm_fp16", "mma.sync v1", "a rung of the ladder"),
    ("gemm_fp16", "smem tiled", "a rung of the ladder"),
    ("gemm_fp16", "WMMA", "a rung of the ladder"),
    ("gemm_fp16", "untuned", "a rung of the ladder"),
    (
        "gemm_fp16",
        "torch (cuBLAS)",
        "N or K of 64-512: call overhead of torch is in the row; beyond, the project's mma variant is 1.3x behind cuBLAS on A100",
    ),
    ("gemm_fp16", "vllm", "the project's mma variant is 1.3x behind cuBLAS on A100 (tables use zero-filled data, which boosts the clock)"),
    ("gemm_fp16", "torch.matmul", "one wave of small tiles: cuBLAS has tiles the variants do not offer"),
    ("fp8_gemm", "MAMF", "per-tensor scale: no promotion every 128, which the op asks for"),
    ("fp8_gemm", "vllm", "per-tensor or per-token scales: no promotion every 128, which the op asks for"),
    ("fp8_gemm", "TileLang", "short K: the variants do not overlap stores with the next tile"),
    ("fp8_gemm", "DeepGEMM", "short K: the variants do not overlap stores with the next tile, and promote on the consumer warps"),
    ("int4_gemv", "autogptq", "a rung of the ladder"),
    ("int4_gemv", "gptqforllama", "a rung of the ladder"),
    ("int4_gemv", "", "8 MB: call and reduction of the library exceed the read; 268 MB: the lop3 variant's ALU work bounds it on H200"),
    ("int8_gemm", "cuBLAS", "card limited to 400 W"),
    ("int8_gemm", "", "on H200 the library still runs its Ampere kernel, without wgmma; on A100 16 rows are its call overhead"),
    ("rmsnorm", "quant", "two results, or two kernels"),
    ("rmsnorm", "512-thread", "one hot block size at 6 us: L2 warm"),
    ("rope", "FlagGems", "up to 256 tokens, warm in L2"),
    ("rope", "", "timed with a hot L2, in place"),
    ("topk_sample", "", "one-block kernels of onnxruntime, rungs of the ladder"),
    ("nucleus_sample", "", "one-block kernels or sorts and their launches, rungs of the ladder"),
    (
        "moe_scatter",
        "",
        "index kernels of several launches are in the row; bytes of the source are assumed, printed times have 10 us steps",
    ),
    ("triton_flash_decode", "", "a whole layer, projections included"),
    ("triton_rmsnorm", "", "4 MB: Triton's launch and the profiler's step"),
)
"""Op, part of the implementation's name, why it is probably off (read off notes and shapes, not tested); the first that fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows of one op and implementation."""

    op: str
    implementation: str
    ratios: list[float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    given = parser.parse_args()
    with given.measured.open(newline="") as file:
        rows = list(csv.DictReader(file))
    groups: dict[tuple[str, str], Group] = {}
    left: dict[str, int] = {}
    for row in rows:
        found = ratio(row)
        if isinstance(found, str):
            left[found] = left.get(found, 0) + 1
            continue
        key = (row["op"], row["implementation"].split(" @")[0])
        groups.setdefault(key, Group(op=key[0], implementation=key[1], ratios=[])).ratios.append(found)
    print(table(list(groups.values())))
    print(f"\nNot priced, of {len(rows)} rows: " + "; ".join(f"{count} {reason}" for reason, count in left.items()) + ".")
    return 0


def ratio(row: Mapping[str, str]) -> float | str:
    """Predicted over measured, or why the row is not priced."""
    sizes = json.loads(row["shape"])
    op = row["op"]
    if op not in AXES:
        return "of ops that are not the project's (references, Mamba-2)"
    if row["gpu"] in UNPRICED:
        return "on boards that are not the project's"
    if not row["derived_ms"]:
        return "without a time of their own"
    if row["dtype"] in {"mxfp4", "w8a16", "w8g32/bf16", "bf16/kv-fp8", "int32 index only"}:
        return "in a dtype that is not the op's"
    if row["dtype"] == "fp32" and OP[op].dtype != "fp32":
        return "in a dtype that is not the op's"
    if op == "flash_decode" and sizes.get("KVH") != sizes.get("H"):
        op = "triton_flash_decode"
    names = AXES[op]
    wanted = {axis: sizes.get(name) for axis, name in names.items()}
    if not all(isinstance(value, int) for value in wanted.values()):
        return "whose shape is not told in full"
    shape: dict[str, int] = {axis: wanted.get(axis, 16) if axis != "P" else 16 for axis in OP[op].axes}
    if op == "int4_gemv" and shape["G"] not in (32, 64, 128):
        return "whose shape is not told in full"
    return best_ms(op, BOARDS[row["gpu"]], shape) / float(row["derived_ms"])


def best_ms(op: str, gpu: Gpu, shape: Shape) -> float:
    """The best candidate of all variants the board can run."""
    spec = OP[op]
    usable = [variant for variant in spec.variants if variant.usable(gpu.features)]
    demands = (facts.demand(spec, variant, shape, gpu.arch, variant.points) for variant in usable)
    return min(float(costmodel.price(gpu, demand, spec.work(shape)).ms.min()) for demand in demands)


def table(groups: list[Group]) -> str:
    """One line per op, then one per group that is off."""
    lines = ["| op | rows priced | median predicted / measured | within 30 % |", "|---|---|---|---|"]
    for op in dict.fromkeys(group.op for group in groups):
        ratios = np.array([value for group in groups if group.op == op for value in group.ratios])
        within = int((np.abs(ratios - 1.0) <= OFF).sum())
        lines.append(f"| {op} | {len(ratios)} | {np.median(ratios):.2f} | {within} |")
    lines += ["", "| op | implementation | rows off by more than 30 % | predicted / measured | likely reason |", "|---|---|---|---|---|"]
    for group in groups:
        off = [value for value in group.ratios if abs(value - 1.0) > OFF]
        if off:
            span = f"{min(off):.2f}" if len(off) == 1 else f"{min(off):.2f}-{max(off):.2f}"
            lines.append(f"| {group.op} | {group.implementation} | {len(off)} of {len(group.ratios)} | {span} | {reason(group)} |")
    return "\n".join(lines)


def reason(group: Group) -> str:
    """Why a group is off."""
    return next((why for op, part, why in REASONS if op in ("", group.op) and part in group.implementation and (op or part)), "not known")


if __name__ == "__main__":
    sys.exit(main())
