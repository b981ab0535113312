"""What tuned libraries (cuBLAS, CUTLASS, FlashAttention, XQA, FlashInfer) would run on a shape, priced by the project's own cost model.

The boards whose library times are published, a space of kernels such libraries choose from, and the few constants that belong to the
libraries rather than to the boards: overhead of a call, of a split, of a block. A prediction is the best candidate of that space, gated by
the physical floor.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from measured import DTYPES, Column, Floats, Ints, Mask

from generator import costmodel
from generator.calibration import BOARDS, LIBRARIES, PROVENANCE, Board
from generator.gpus import A100, H100, H200, RTX_5090, Gpu
from generator.ops.base import Demand, Unit, ceil_div

Constants = Mapping[str, float]

_LAUNCH_NEWS: Final = "https://www.topcpu.net/es/news/nvidia-launches-96gb-rtx-5090-model-with-a-whopping-price-tag-of-10000"

RTX_PRO_6000: Final = dataclasses.replace(
    RTX_5090,
    name="rtx_pro_6000",
    board="NVIDIA RTX PRO 6000 Blackwell Server 96 GB",
    sm_count=188,
    boost_mhz=2597,
    max_mhz=2597,
    launch_us=1.2,
    l2_bytes=134_217_728,
    fp32_tflops=125.0,
    fp16_tflops=500.0,
    int8_tops=1000.0,
    fp8_tflops=1000.0,
    **dataclasses.asdict(BOARDS["rtx_pro_6000"]),
    sources=dict(RTX_5090.sources)
    | dict.fromkeys(("sm_count", "dram_gbps", "l2_bytes", "fp32_tflops"), _LAUNCH_NEWS)
    | dict.fromkeys(("boost_mhz", "max_mhz"), "derived: the clock that gives 125 TFLOPS of fp32 on 188 SMs")
    | dict.fromkeys(("fp16_tflops", "int8_tops", "fp8_tflops"), "derived: SMs x 1024 (2048 for 8 bits) x boost clock; GB202 at full rate")
    | dict.fromkeys(("power_droop", "dram_sustained_fraction"), PROVENANCE)
    | {"launch_us": "estimated: as the data-centre boards; its shortest GEMM takes 2.8 us"},
    kinds=dict(RTX_5090.kinds)
    | {"max_mhz": "estimated", "launch_us": "estimated", "dram_fraction": "estimated"}
    | {"power_droop": "fitted", "dram_sustained_fraction": "fitted"},
)
"""The die of the RTX 5090 with all tensor pipes open: a proxy for its DRAM, not for its tensor cores."""

SYSTEMS: Final[Mapping[str, Gpu]] = {"a100_sxm": A100, "h100_sxm": H100, "h200_sxm": H200, "rtx_pro_6000_server": RTX_PRO_6000}

CHUNK: Final = 128
"""Rows priced at once: their candidates stay in cache."""


def gpu_of(system: str, board: Board | None = None) -> Gpu:
    """The board of a system, with other fitted constants if given."""
    gpu = SYSTEMS[system]
    return gpu if board is None else dataclasses.replace(gpu, **dataclasses.asdict(board))


def constants_of(column: Column) -> Constants:
    """The library constants of a column; a dtype without measurements takes those of its width, or of bfloat16."""
    known = LIBRARIES[SYSTEMS[column.system].name]
    if column.kind == "decode":
        return known["decode"]
    for dtype in (column.dtype, "fp8" if DTYPES[column.dtype] == 1 else "bfloat16", "bfloat16"):
        if f"gemm {dtype}" in known:
            return known[f"gemm {dtype}"]
    raise KeyError(column.system)


def predict(column: Column, gpu: Gpu | None = None, constants: Constants | None = None) -> Floats:
    """Seconds of the best candidate of every row, at or above the row's floor."""
    board = gpu or SYSTEMS[column.system]
    values = constants or constants_of(column)
    demand: Callable[[Gpu, Column, Constants], tuple[Demand, Mask]] = gemm if column.kind == "gemm" else decode
    out = np.empty(len(column.seconds))
    for start in range(0, len(out), CHUNK):
        at = np.zeros(len(out), dtype=np.bool_)
        at[start : start + CHUNK] = True
        asked, usable = demand(board, column.rows(at), values)
        out[at] = np.where(usable, costmodel.terms(board, asked).total, np.inf).min(axis=1)
    return np.maximum(out, floor(column, board))


def floor(column: Column, gpu: Gpu | None = None) -> Floats:
    """Seconds no kernel can undercut with a cold L2."""
    board = gpu or SYSTEMS[column.system]
    nbytes, flops = work(column)
    if column.kind == "decode" or DTYPES[column.dtype] == 2:
        return costmodel.floor_seconds(board, nbytes, flops, "fp16")
    return costmodel.floor_seconds(board, nbytes, flops, "fp8" if column.dtype == "fp8" else "int8")


def work(column: Column) -> tuple[Floats, Floats]:
    """Compulsory bytes and useful flops of every row, as the ops count them."""
    a = {name: values.astype(np.float64) for name, values in column.axes.items()}
    if column.kind == "gemm":
        m, n, k = a["m"], a["n"], a["k"]
        return DTYPES[column.dtype] * (m * k + n * k) + 2 * m * n, 2 * m * n * k
    queries, kept = a["batch_size"] * a["heads"] * a["head_dim"], a["batch_size"] * a["kv_heads"] * a["head_dim"]
    return 4 * kept * a["tokens_read"] + 4 * queries, 4 * queries * a["tokens_read"]


def _tiles() -> tuple[Ints, Ints, Ints]:
    """Tile rows, tile columns and splits of K of the GEMM candidates, each `[candidates]`."""
    kept = [
        (bm, bn, splits)
        for bm in (16, 32, 64, 128, 256)
        for bn in (32, 64, 96, 128, 192, 256)
        for splits in (1, 2, 3, 4, 6, 8, 12, 16)
        if 1024 <= bm * bn <= 32768 and (splits == 1 or bm <= 128)
    ]
    bm, bn, splits = np.array(kept, dtype=np.int64).T
    return bm, bn, splits


TILES: Final = _tiles()
_FEW = (TILES[2] == 1) & (TILES[0] != 32) & (TILES[1] % 64 == 0) & (TILES[1] != 192) & ((TILES[0] > 16) | (TILES[1] == 64))
WHOLE: Final = tuple(column[_FEW] for column in TILES)
"""The candidates that do not split K."""
SPLITS: Final = np.array([1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64], dtype=np.int64)
"""Parts of a sequence among which the decode candidates choose."""


def gemm(gpu: Gpu, column: Column, c: Constants) -> tuple[Demand, Mask]:
    """Demand of every tile and split `[rows, candidates]`: a multistage pipeline, 128 bytes of K a step.

    Libraries split K in bf16 alone: the fp8 tables show small N and long K paying one block's whole loop.
    """
    bm, bn, splits = TILES if "split_us" in c else WHOLE
    m, n, k = (column.axes[name][:, None] for name in ("m", "n", "k"))
    size = DTYPES[column.dtype]
    step = (bm + bn) * 128
    stages = np.clip((gpu.smem_block_bytes - 1024) // step, 2, 8)
    threads = np.where(bm * bn > 8192, 256, 128)
    tiles_m, tiles_n = ceil_div(m, bm), ceil_div(n, bn)
    steps = ceil_div(ceil_div(k * size, 128), splits)
    blocks = tiles_m * tiles_n * splits
    pair = 2 if "wgmma" in gpu.features else 1
    first = size * (m * k + n * k) + 2 * m * n
    asked = size * k * (ceil_div(tiles_n, pair) * m + ceil_div(tiles_m, pair) * n) + 2 * m * n
    parts = np.where(splits > 1, 8 * m * n * splits, 0)
    quantise = c.get("quantise", 0.0) * 3 * m * k / gpu.dram_sustained
    tail = c["overhead_us"] * 1e3 + np.where(splits > 1, c.get("split_us", 0.0) * 1e3, 0.0) + (quantise + parts / (gpu.l2_gbps * 1e9)) * 1e9
    demand = Demand(
        blocks=blocks,
        threads=threads,
        registers=48 + bm * bn // threads,
        smem_per_block=np.minimum(stages * step, gpu.smem_block_bytes),
        dram_bytes=first,
        reread_bytes=np.maximum(asked - first, 0),
        inflight_per_block=(stages - 1) * (np.minimum(bm, m) + bn) * 128,
        flops=blocks * (bm * bn * (256 // size)) * steps,
        unit=_unit(gpu, column.dtype),
        leak=c["leak"],
        chain_ns=np.asarray(steps * c["step_ns"], dtype=np.float64),
        tail_ns=tail + c["store_ps"] * 1e-3 * (m * n),
    )
    return demand, np.ones((1, len(bm)), dtype=np.bool_)


def _unit(gpu: Gpu, dtype: str) -> Unit:
    if DTYPES[dtype] == 2:
        return "wgmma_fp16" if "wgmma" in gpu.features else "mma_fp16"
    if dtype == "fp8" and gpu.fp8_tflops:
        return "wgmma_fp8"
    return "wgmma_int8" if "wgmma" in gpu.features else "mma_int8"


def decode(gpu: Gpu, column: Column, c: Constants) -> tuple[Demand, Mask]:
    """Demand of every split `[rows, candidates]`: one block per KV head, sequence and part; K and V partly warm in L2.

    The tables replay a graph on one cache, so what fits in L2 is still there. A library splits while its blocks fill few waves; shapes
    it has no tuned kernel for run on a generic one, which splits within one wave and keeps fewer bytes in flight. From 96 query heads on,
    groups of more than 16 are cut, and each part reads K and V anew (not in the A100 tables).
    """
    b, h, kv, d, read = (column.axes[name][:, None] for name in ("batch_size", "heads", "kv_heads", "head_dim", "tokens_read"))
    covered = tuned(gpu, column)[:, None]
    group = ceil_div(h, kv)
    cuts = np.where((h >= 96) & (group > 16) & (gpu.arch != "sm_80"), ceil_div(group, 16), 1)
    room = np.maximum(gpu.sm_count // (b * kv * cuts), 1)
    usable = (np.where(covered, 2, 1) * room >= SPLITS) & ((SPLITS == 1) | (read >= 64 * SPLITS))
    tokens = ceil_div(ceil_div(read, 64), SPLITS) * 64
    blocks = b * kv * cuts * SPLITS
    total = work(column)[0][:, None]
    warm = np.clip(1.5 - total / (c["warm"] * gpu.l2_bytes), 0.0, 1.0)
    merge = c["part_ns"] * SPLITS * d / 128 + 8 * b * h * SPLITS * (d + 2) / gpu.l2_gbps
    demand = Demand(
        blocks=blocks,
        threads=128,
        registers=168,
        smem_per_block=gpu.smem_sm_bytes // 2,
        dram_bytes=(1.0 - warm) * total,
        reread_bytes=(warm + cuts - 1) * total,
        footprint_bytes=np.where(cuts > 1, total, 0.0),
        inflight_per_block=c["inflight_kb"] * 1024 * np.where(covered, 1.0, c["generic"]),
        flops=blocks * tokens * d * ceil_div(group, 16 * cuts) * 64,
        unit="mma_fp16",
        efficiency=0.5,
        sfu_ops=blocks * tokens * ceil_div(group, 16 * cuts) * 16,
        leak=c["leak"],
        turn_ns=(c["block_us"] + c["group_us"] * (group > 1) * 128 / d) * 1e3,
        tail_ns=c["overhead_us"] * 1e3 + np.where(SPLITS > 1, merge, 0.0) + c["head_ps"] * 1e-3 * (b * h * d) + windowed(column, c),
    )
    return demand, usable


def windowed(column: Column, c: Constants) -> Floats:
    """Nanoseconds a sliding window adds: libraries still walk the page table of the whole sequence."""
    a = column.axes
    walked = c.get("window_us", 0.0) * 1e3 + c.get("window_ps", 0.0) * 1e-3 * (a["batch_size"] * a["T"])
    return np.where(a["window_size"] > 0, walked, 0.0)[:, None]


def tuned(gpu: Gpu, column: Column) -> Mask:
    """Shapes the fast kernels of the measured libraries cover: KV heads a power of two.

    The A100 tables show less: at most 8 KV heads, under 96 query heads, no MHA beyond 8192 tokens; up to 256 tokens all shapes. It is
    coverage of the tables (one or two libraries where others have three), not of the board.
    """
    h, kv, read = (column.axes[name] for name in ("heads", "kv_heads", "tokens_read"))
    power: Mask = (kv & (kv - 1)) == 0
    if gpu.arch != "sm_80":
        return power
    few: Mask = (power & (kv <= 8) & (h < 96) & ((h > kv) | (read <= 8192))) | (read <= 256)
    return few
