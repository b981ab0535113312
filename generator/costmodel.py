"""Prices arrays of candidates on one GPU: a bounded-resource model in NumPy, and the physical floor no time may undercut.

A kernel takes the time of its busiest resource (DRAM, L2, arithmetic, special functions, load/store), plus the part of the others
it fails to hide, plus launches, pipeline fill and dependent chains. Occupancy and waves set how many blocks share a multiprocessor,
and so how many bytes are in flight. Only `+ - * / sqrt` and comparisons are used: the same bits on every CPU.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from generator.gpus import Gpu
from generator.ops.base import Demand, Math, Quantity, Unit, Work, ceil_div

Floats = npt.NDArray[np.float64]

SIGNIFICANT_DIGITS: Final = 7
"""Every real is rounded to this many digits before anything is decided on it or stored."""

REGISTERS_SM: Final = 65536
WARPS_ALLOCATE: Final = 256
"""Registers are handed out in units of 256 per warp (CUDA occupancy rules)."""
MAX_REGISTERS: Final = 255
MAX_THREADS: Final = 1024
"""Threads per block, on every arch."""
RESERVED_SMEM: Final = 1024
"""Shared memory the system takes for each resident block, in bytes."""
SECTOR_PORT: Final = 64
"""Bytes per clock one SM can take from L2 (measured on A100 and H100: gpu-benches/gpu-l2-cache)."""
SFU_LANES: Final = 16
LOADED_LATENCY: Final = 1.3
"""Latency under load over idle latency."""
MMA_ON_HOPPER: Final = 0.63
"""Share of the wgmma rate that mma.sync reaches on sm_90a: 61-65 % in published ladders."""
FILL_LATENCIES: Final = 2.0
"""Dependent DRAM round trips before the first useful flop: pointers or table, then tile."""
WAVE_US: Final = 0.4
"""Cost of draining and refilling the machine between waves."""
SPILL_PER_REGISTER: Final = 0.02
"""Slowdown per register over the limit of 255."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Times of candidates, each array `[candidates]`; infinite where the kernel cannot be launched."""

    ms: Floats
    blocks_per_sm: npt.NDArray[np.int64]
    bound: npt.NDArray[np.int64]
    """Index into `BOUNDS`: the resource that sets the time."""


BOUNDS: Final = ("DRAM", "L2", "arithmetic", "special functions", "load/store", "latency")


def significant(x: Floats | float) -> Floats:
    """`x` rounded to `SIGNIFICANT_DIGITS` digits; zeros and infinities stay. Exact: the scale is a power of ten."""
    x = np.asarray(x, dtype=np.float64)
    safe = np.where((x == 0) | ~np.isfinite(x), 1.0, np.abs(x))
    shift = SIGNIFICANT_DIGITS - 1 + _LOWEST - (np.searchsorted(_DECADES, safe, side="right") - 1)
    up, down = _POWERS[np.maximum(shift, 0)], _POWERS[np.maximum(-shift, 0)]
    rounded = np.rint(x * up / down) * down / up
    return np.where((x == 0) | ~np.isfinite(x), x, rounded)


_LOWEST: Final = 12
"""Numbers from 1e-12 to 1e13 are rounded; times in ms lie between 1e-4 and 1e5."""
_DECADES: Final = np.array([float(f"1e{k}") for k in range(-_LOWEST, _LOWEST + 1)])
_POWERS: Final = np.array([float(f"1e{k}") for k in range(23)])


def peak(gpu: Gpu, math: Math) -> float:
    """Operations per second that no kernel can exceed: dense rate at the highest clock, on the fastest pipe that does this arithmetic."""
    rates = {
        "fp32": gpu.fp32_tflops,
        "fp16": gpu.fp16_tflops,
        "int8": gpu.int8_tops,
        "fp8": gpu.fp8_tflops or gpu.fp16_tflops,
    }
    return rates[math] * 1e12 * gpu.max_mhz / gpu.boost_mhz


def floor_ms(gpu: Gpu, work: Work) -> float:
    """The physical lower bound: compulsory bytes at the best measured bandwidth, useful flops at the peak, one launch."""
    seconds = max(work.bytes / gpu.dram_best, work.flops / peak(gpu, work.math), gpu.launch_us * 1e-6)
    return float(significant(seconds * 1e3))


def rate(gpu: Gpu, unit: Unit) -> float:
    """Operations per second a board sustains on one pipe."""
    tensor = gpu.tensor_mhz / gpu.boost_mhz
    mma = MMA_ON_HOPPER if "wgmma" in gpu.features else 1.0
    table = {
        "fp32": gpu.fp32_tflops * 1e12,
        "dp4a": gpu.sm_count * gpu.int_lanes * 8 * gpu.clock_hz,
        "mma_fp16": gpu.fp16_tflops * 1e12 * tensor * mma,
        "mma_int8": gpu.int8_tops * 1e12 * tensor * mma,
        "wgmma_fp16": gpu.fp16_tflops * 1e12 * tensor,
        "wgmma_int8": gpu.int8_tops * 1e12 * tensor,
        "wgmma_fp8": (gpu.fp8_tflops or 0.0) * 1e12 * tensor,
    }
    return table[unit]


def occupancy(gpu: Gpu, threads: Quantity, registers: Quantity, smem: Quantity) -> npt.NDArray[np.int64]:
    """Blocks that fit on one SM at once; 0 where one block does not fit (a launch failure)."""
    warps = ceil_div(threads, 32)
    per_warp = ceil_div(np.minimum(registers, MAX_REGISTERS) * 32, WARPS_ALLOCATE) * WARPS_ALLOCATE
    by_registers = REGISTERS_SM // (per_warp * warps)
    by_threads = gpu.max_threads_sm // (warps * 32)
    by_smem = gpu.smem_sm_bytes // (np.asarray(smem, dtype=np.int64) + RESERVED_SMEM)
    blocks = np.minimum(np.minimum(by_registers, by_threads), np.minimum(by_smem, gpu.max_blocks_sm))
    fits = (np.asarray(smem) <= gpu.smem_block_bytes) & (np.asarray(threads) <= MAX_THREADS)
    return np.where(fits, blocks, 0)


def price(gpu: Gpu, demand: Demand, work: Work) -> Price:
    """Noiseless times in ms, rounded to seven digits, never below the floor of `work` nor of the candidate's own launches."""
    fit = occupancy(gpu, demand.threads, demand.registers, demand.smem_per_block)
    blocks = np.asarray(demand.blocks, dtype=np.int64)
    on_busiest = ceil_div(blocks, gpu.sm_count)
    resident = np.maximum(np.minimum(on_busiest, fit), 1)
    waves = ceil_div(on_busiest, resident)
    share = on_busiest / blocks
    resources = np.stack(
        np.broadcast_arrays(
            dram_seconds(gpu, demand, resident, share),
            l2_seconds(gpu, demand, share),
            arithmetic_seconds(gpu, demand, share),
            demand.sfu_ops * share / (SFU_LANES * gpu.clock_hz),
            demand.lsu_ops * share / gpu.clock_hz,
            waves * np.asarray(demand.chain_ns) * 1e-9,
        )
    )
    spill = 1.0 + SPILL_PER_REGISTER * np.maximum(np.asarray(demand.registers) - MAX_REGISTERS, 0)
    longest = resources.max(axis=0)
    others = sum(resources[i] for i in range(len(resources))) - longest
    fill = (FILL_LATENCIES * gpu.dram_latency_ns + np.asarray(demand.tail_ns)) * 1e-9
    launches = np.asarray(demand.launches) * gpu.launch_us * 1e-6
    seconds = launches + fill + spill * (longest + demand.leak * others) + (waves - 1) * WAVE_US * 1e-6
    least = np.maximum(launches * 1e3, floor_ms(gpu, work))
    ms = np.maximum(significant(seconds * 1e3), significant(least))
    return Price(
        ms=np.where(fit > 0, ms, np.inf),
        blocks_per_sm=np.broadcast_to(fit, ms.shape),
        bound=np.broadcast_to(resources.argmax(axis=0), ms.shape),
    )


def dram_seconds(gpu: Gpu, demand: Demand, resident: npt.NDArray[np.int64], share: Floats) -> Floats:
    """DRAM time: bandwidth saturates with the bytes in flight, and one SM cannot take more than its port."""
    miss = 1.0 - l2_hit(gpu, demand.footprint_bytes)
    total = demand.dram_bytes + miss * demand.reread_bytes
    busy = np.minimum(np.asarray(demand.blocks), gpu.sm_count * resident)
    latency = LOADED_LATENCY * gpu.dram_latency_ns * 1e-9
    x = busy * demand.inflight_per_block / (gpu.dram_best * latency)
    saturation = x / np.sqrt(np.sqrt(1.0 + (x * x) * (x * x)))
    port = np.minimum(SECTOR_PORT * gpu.clock_hz, resident * demand.inflight_per_block / latency)
    seconds: Floats = np.maximum(total / (gpu.dram_best * saturation), total * share / port)
    return seconds


def l2_hit(gpu: Gpu, footprint: Quantity) -> Floats:
    """Share of re-reads that L2 serves: all while the footprint is under 0.7 of it, none beyond 1.2."""
    room: Floats = (1.2 * gpu.l2_bytes - np.asarray(footprint, dtype=np.float64)) / (0.5 * gpu.l2_bytes)
    return np.minimum(np.maximum(room, 0.0), 1.0)


def l2_seconds(gpu: Gpu, demand: Demand, share: Floats) -> Floats:
    """L2 time of all traffic, evenly spread; one SM again takes at most its port."""
    total = np.asarray(demand.dram_bytes + demand.reread_bytes, dtype=np.float64)
    return np.maximum(total / (gpu.l2_gbps * 1e9), total * share / (SECTOR_PORT * gpu.clock_hz))


def arithmetic_seconds(gpu: Gpu, demand: Demand, share: Floats) -> Floats:
    """Time of the busiest SM on its arithmetic pipe, plus scalar work on the CUDA cores."""
    main = demand.flops * share / (rate(gpu, demand.unit) / gpu.sm_count * np.asarray(demand.efficiency))
    return main + demand.alu_ops * share / (rate(gpu, "fp32") / 2 / gpu.sm_count)


def refusal(gpu: Gpu, threads: int, smem: int) -> str:
    """Why a block of this size cannot be launched: the limit it exceeds."""
    if threads > MAX_THREADS:
        return f"{threads} threads per block, limit {MAX_THREADS}"
    if smem > gpu.smem_block_bytes:
        return f"{smem} B shared memory per block, limit {gpu.smem_block_bytes} B on {gpu.arch}"
    return f"{threads} threads per block exceed the {REGISTERS_SM} registers of one SM"
