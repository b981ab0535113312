"""What tuned libraries (cuBLAS, CUTLASS, FlashAttention, XQA, FlashInfer) would run on a shape, priced by the project's own cost model.

The boards whose library times are published, a space of kernels such libraries choose from, which kernels they have for which shapes, and
the few constants that belong to the libraries rather than to the boards: overhead of a call, of a split, of a sequence. A prediction is
the best candidate of that space, gated by the physical floor.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    kept = np.clip(1.5 - size * n * k / (c["warm"] * gpu.l2_bytes), 0.0, 1.0) * (size * n * k) if "warm" in c else 0.0
    parts = np.where(splits > 1, 8 * m * n * splits, 0)
    quantise = c.get("quantise", 0.0) * 3 * m * k / gpu.dram_sustained
    tail = c["overhead_us"] * 1e3 + np.where(splits > 1, c.get("split_us", 0.0) * 1e3, 0.0) + (quantise + parts / (gpu.l2_gbps * 1e9)) * 1e9
    demand = Demand(
        blocks=blocks,
        threads=threads,
        registers=48 + bm * bn // threads,
        smem_per_block=np.minimum(stages * step, gpu.smem_block_bytes),
        dram_bytes=first - kept,
        reread_bytes=np.maximum(asked - first, 0) + kept,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Which kernels the measured libraries have for the rows of a column; every mask `[rows, 1]`.

    Rules about the tables, not about boards: read off how many libraries have a shape, which follows from heads, KV heads and tokens alone.
    """

    masked: Mask
    """MHA on A100 up to 8 KV heads, whose times are those of masked MHA: little overhead, a block to a head, walking the tokens."""
    few: Mask
    """One or two libraries: more than 8 KV heads (on H200 no power of two, or head size 64), from 96 query heads on, and the largest calls
    on A100."""
    alone: Mask
    """One library, which is not tuned for the shape."""
    short: Mask
    """Head size 64 on Hopper, up to 512 tokens and 64 heads, MHA or a power of two of heads: a kernel with less overhead, unsplit."""


MASKED_WAVE: Final = 0.45
"""Masked MHA splits a sequence while its blocks fill less than this of the multiprocessors: 4, 8, 16, 32 blocks on A100 into about 10, 6, 2
and 1 parts (estimated from its times at 16k and 32k tokens)."""
FAR: Final = 2**19
"""(Heads + 2 KV heads) x tokens of a sequence beyond which the tables have one library less (read off the tables)."""
LARGE: Final = 2**23
"""Query heads x tokens of all sequences beyond which the A100 tables have one library less (from 256 sequences on, already there)."""
MUST_SPLIT: Final = 2**16
"""Tokens x head size from which the library left for uncovered shapes splits, even where one part were faster (read off the tables)."""


def coverage(gpu: Gpu, column: Column) -> Coverage:
    """The rules for one board."""
    names = ("batch_size", "heads", "kv_heads", "head_dim", "tokens_read", "window_size")
    b, h, kv, d, read, window = (column.axes[name][:, None] for name in names)
    wide, far, mha = (kv > 8) | (h >= 96), (h + 2 * kv) * read > FAR, h == kv
    none = np.zeros_like(wide)
    if gpu.arch == "sm_80":
        masked, size = mha & (kv <= 8), b * h * read
        large = (size > LARGE) | ((size == LARGE) & (b >= 256))
        return Coverage(masked=masked, few=wide | (large & ~masked), alone=masked & far, short=none)
    if gpu.arch != "sm_90a":
        return Coverage(masked=none, few=none, alone=none, short=none)
    few = wide & ((d == 64) | (kv & (kv - 1) != 0) | (gpu.name == "h100"))
    short = (d == 64) & (read <= 512) & (window == 0) & (h <= 64) & (mha | (h & (h - 1) == 0))
    return Coverage(masked=none, few=few, alone=few & ((d == 64) | far), short=short)


def decode(gpu: Gpu, column: Column, c: Constants) -> tuple[Demand, Mask]:
    """Demand of every split `[rows, candidates]`: one block per KV head, sequence and part; K and V partly warm in L2.

    The tables replay a graph on one cache, so what fits in L2 is still there. From 96 query heads on, groups of more than 16 are cut, and
    each part reads K and V anew (not in the A100 tables). Blocks keep a tile of K and V in flight, one of them an SM on A100, two beyond.
    """
    b, h, kv, d, read = (column.axes[name][:, None] for name in ("batch_size", "heads", "kv_heads", "head_dim", "tokens_read"))
    cover, group, ampere = coverage(gpu, column), ceil_div(h, kv), gpu.arch == "sm_80"
    cuts = np.where((h >= 96) & (group > 16) & (not ampere), ceil_div(group, 16), 1)
    units = b * kv * cuts
    tokens = ceil_div(ceil_div(read, 64), SPLITS) * 64
    blocks = units * SPLITS
    total = work(column)[0][:, None]
    warm = np.clip(1.5 - total / (c["warm"] * gpu.l2_bytes), 0.0, 1.0) * np.where(cover.alone & (SPLITS > 1), 0.0, 1.0)
    generic = cover.few if ampere else cover.alone
    turn = np.where(group > 1, c.get("group_us", 0.0) * 1e3 * 128 / d, 0.0)
    demand = Demand(
        blocks=blocks,
        threads=128,
        registers=168,
        smem_per_block=gpu.smem_block_bytes if ampere else gpu.smem_sm_bytes // 2 - costmodel.RESERVED_SMEM,
        dram_bytes=(1.0 - warm) * total,
        reread_bytes=(warm + cuts - 1) * total,
        footprint_bytes=np.where(cuts > 1, total, 0.0),
        inflight_per_block=c["inflight_kb"] * 1024 * d / 128 * np.where(generic, c.get("generic", 1.0), 1.0),
        flops=blocks * tokens * d * ceil_div(group, 16 * cuts) * 64,
        unit="mma_fp16",
        efficiency=0.5,
        sfu_ops=blocks * tokens * ceil_div(group, 16 * cuts) * 16,
        leak=LEAK["sm_90a" if "wgmma" in gpu.features else "sm_80"],
        turn_ns=turn,
        tail_ns=_call(column, cover, c) + _merge(gpu, column, cover, c) + windowed(column, c) - turn,
    )
    return demand, _usable(gpu, column, cover, units)


LEAK: Final = {"sm_80": 0.15, "sm_90a": 0.05}
"""As everywhere in the project: multistage and warp-specialised pipelines (`Demand.leak`)."""


def _usable(gpu: Gpu, column: Column, cover: Coverage, units: Ints) -> Mask:
    """The splits a library would choose among: while its blocks fill few waves, and parts keep 64 tokens."""
    read, d = column.axes["tokens_read"][:, None], column.axes["head_dim"][:, None]
    waves = np.where(cover.few, 1.0, 4.0 if gpu.arch == "sm_80" else 2.0)
    waves = np.where(cover.alone & cover.masked, 0.0, np.where(cover.masked, MASKED_WAVE, waves))
    room = np.maximum(waves * gpu.sm_count // units, 1)
    must = cover.few & (read * d >= MUST_SPLIT) & (2 * units <= gpu.sm_count) & (gpu.arch != "sm_80")
    usable: Mask = (room >= SPLITS) & np.where(SPLITS == 1, ~must, read >= 64 * SPLITS)
    return usable


def _call(column: Column, cover: Coverage, c: Constants) -> Floats:
    """Nanoseconds of a call beyond launch and fill: its own, of every sequence, and of a copy that one sequence or KV head does without."""
    b, kv = column.axes["batch_size"][:, None], column.axes["kv_heads"][:, None]
    light = cover.masked | (cover.short & (SPLITS == 1))
    own = np.where(light, c.get("short_us", 0.0), c["overhead_us"] + c.get("copy_us", 0.0) * ((b > 1) & (kv > 1)))
    return own * 1e3 + c.get("seq_ns", 0.0) * b


def _merge(gpu: Gpu, column: Column, cover: Coverage, c: Constants) -> Floats:
    """Nanoseconds that splitting a sequence adds: its parts, their partial results through L2, and what untuned kernels pay besides."""
    b, h, d = (column.axes[name][:, None] for name in ("batch_size", "heads", "head_dim"))
    parts = c["part_ns"] * SPLITS * d / 128 + 8 * b * h * SPLITS * (d + 2) / gpu.l2_gbps
    untuned = cover.masked if gpu.arch == "sm_80" else cover.few
    return np.where(SPLITS > 1, parts + np.where(untuned, c.get("lone_us", 0.0) * 1e3, 0.0), 0.0)


def windowed(column: Column, c: Constants) -> Floats:
    """Nanoseconds a sliding window adds: libraries still walk the page table of the whole sequence."""
    a = column.axes
    walked = c.get("window_us", 0.0) * 1e3 + c.get("window_ps", 0.0) * 1e-3 * (a["batch_size"] * a["T"])
    return np.where(a["window_size"] > 0, walked, 0.0)[:, None]
