"""Prices arrays of candidates on one GPU: a bounded-resource model in NumPy, and the physical floor no time may undercut.

A kernel takes the time of its busiest resource (DRAM, L2, arithmetic, special functions, load/store, latency), plus the part of the
others it fails to hide, plus launches, pipeline fill and the turns of its blocks. Occupancy and waves set how many blocks share a
multiprocessor, and so how many bytes are in flight. Every term is a function of its own, in seconds. Only `+ - * / sqrt` and
comparisons are used: the same bits on every CPU.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from generator.gpus import Gpu
from generator.ops.base import Demand, Math, Quantity, Unit, Work, ceil_div

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

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
SMEM_ALLOCATE: Final = 128
"""Shared memory is handed out in units of 128 bytes (CUDA occupancy rules)."""
SECTOR_PORT: Final = 64
"""Bytes per clock one SM can take from L2 (measured on A100 and H100: gpu-benches/gpu-l2-cache)."""
SFU_LANES: Final = 16
LOADED_LATENCY: Final = 1.3
"""Latency under load over idle latency."""
MMA_ON_HOPPER: Final = 0.63
"""Share of the wgmma rate that mma.sync reaches on sm_90a: 61-65 % in published ladders."""
FEED_WARPS: Final = 8
FEED_WAIT: Final = 2.0
"""`w` warps of an SM keep mma.sync busy `w / (w + 2)` of the time between their ldmatrix; the rated share is that of 8 warps and more.
From the ladder 244 / 238 / 180 TFLOPS of 2 / 3 / 4 stages on sm_120 (blackwell-tensorcore-kernels, results/mma_stage_sweep.csv)."""
FILL_LATENCIES: Final = 2.0
"""Dependent DRAM round trips before the first useful flop: pointers or table, then tile."""
PLAIN_FP8: Final = 0.5
"""Rate of mma.sync on e4m3 with fp32 sums over the best fp8 rate. On GeForce Blackwell its block-scaled form is the fast one, and e2m1 is
twice as fast again: 370, 737 and 1474 TFLOPS in mmapeak (https://main-horse.github.io/posts/5090-mm-perf). On sm_90a ptxas makes it
conversions and fp16."""
SPILL_PER_REGISTER: Final = 0.02
"""Slowdown per register kept in local memory, of a thread."""

BOUNDS: Final = ("DRAM", "L2", "arithmetic", "special functions", "load/store", "latency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Times of candidates, each array `[candidates]`; infinite where the kernel cannot be launched."""

    ms: Floats
    blocks_per_sm: Ints
    bound: Ints
    """Index into `BOUNDS`: the resource that sets the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the time of each candidate is made of, in seconds, each array broadcasts to `[candidates]`."""

    launch: Floats
    fill: Floats
    resources: tuple[Floats, ...]
    """One time per entry of `BOUNDS`."""
    longest: Floats
    leaked: Floats
    """The part of the lesser resources that the greatest does not hide; what DRAM sends passes L2 on the way, and counts once."""
    turns: Floats
    """Blocks that begin and end: draining and refilling between waves, and what each block does alone."""
    spill: Floats
    """Factor on the resources, 1 without spills."""
    total: Floats
    waves: Ints
    blocks_per_sm: Ints


def significant(x: Floats | float) -> Floats:
    """`x` rounded to `SIGNIFICANT_DIGITS` digits; zeros and infinities stay. Exact: the scale is a power of ten."""
    x = np.asarray(x, dtype=np.float64)
    safe = np.where((x == 0) | ~np.isfinite(x), 1.0, np.abs(x))
    shift = SIGNIFICANT_DIGITS - 1 + 12 - (np.searchsorted(_DECADES, safe, side="right") - 1)
    up, down = _POWERS[np.maximum(shift, 0)], _POWERS[np.maximum(-shift, 0)]
    rounded = np.rint(x * up / down) * down / up
    return np.where((x == 0) | ~np.isfinite(x), x, rounded)


_POWERS = np.array([float(f"1e{k}") for k in range(23)])
_DECADES = np.array([float(f"1e{k}") for k in range(-12, 13)])


def peak(gpu: Gpu, math: Math) -> float:
    """Operations per second that no kernel can exceed: dense rate at the highest clock, on the fastest pipe that does this arithmetic."""
    rates = {
        "fp32": gpu.fp32_tflops,
        "fp16": gpu.fp16_tflops,
        "int8": gpu.int8_tops,
        "fp8": gpu.fp8_tflops or gpu.fp16_tflops,
    }
    return rates[math] * 1e12 * gpu.max_mhz / gpu.boost_mhz


def floor_seconds(gpu: Gpu, nbytes: Quantity, flops: Quantity, math: Math) -> Floats:
    """The physical lower bound: compulsory bytes at the best measured bandwidth, useful flops at the peak, one launch."""
    seconds: Floats = np.maximum(np.asarray(nbytes) / gpu.dram_best, np.asarray(flops) / peak(gpu, math))
    return np.maximum(seconds, gpu.launch_us * 1e-6)


def floor_ms(gpu: Gpu, work: Work) -> float:
    """`floor_seconds` of one task in ms, rounded."""
    return float(significant(floor_seconds(gpu, work.bytes, work.flops, work.math) * 1e3))


def floor_bound(gpu: Gpu, work: Work) -> str:
    """What sets the floor of a task."""
    seconds = {
        "compulsory DRAM bytes": work.bytes / gpu.dram_best,
        "useful flops": work.flops / peak(gpu, work.math),
        "one launch": gpu.launch_us * 1e-6,
    }
    return max(seconds, key=lambda name: seconds[name])


def rate(gpu: Gpu, unit: Unit) -> float:
    """Operations per second of one pipe: CUDA cores at the rated boost, tensor cores at the highest clock (power takes its share later)."""
    tensor = gpu.max_mhz / gpu.boost_mhz
    mma = MMA_ON_HOPPER if "wgmma" in gpu.features else 1.0
    table = {
        "fp32": gpu.fp32_tflops * 1e12,
        "dp4a": gpu.sm_count * gpu.int_lanes * 8 * gpu.clock_hz,
        "mma_fp16": gpu.fp16_tflops * 1e12 * tensor * mma,
        "mma_int8": gpu.int8_tops * 1e12 * tensor * mma,
        "mma_fp8": (gpu.fp8_tflops or 0.0) * 1e12 * tensor * mma * PLAIN_FP8,
        "mma_mxfp8": (gpu.fp8_tflops or 0.0) * 1e12 * tensor,
        "mma_mxfp4": (gpu.fp8_tflops or 0.0) * 2e12 * tensor,
        "wgmma_fp16": gpu.fp16_tflops * 1e12 * tensor,
        "wgmma_int8": gpu.int8_tops * 1e12 * tensor,
        "wgmma_fp8": (gpu.fp8_tflops or 0.0) * 1e12 * tensor,
    }
    return table[unit]


def occupancy(gpu: Gpu, threads: Quantity, registers: Quantity, smem: Quantity) -> Ints:
    """Blocks that fit on one SM at once; 0 where one block does not fit (a launch failure).

    The rules are those of the toolkit's `cuda_occupancy.h`: registers by warp in units of 256, warps in each of the four sub-partitions,
    shared memory in units of 128 bytes with 1 KB reserved per block.
    """
    warps = ceil_div(threads, 32)
    per_warp = ceil_div(np.minimum(registers, MAX_REGISTERS) * 32, WARPS_ALLOCATE) * WARPS_ALLOCATE
    by_registers = REGISTERS_SM // 4 // per_warp * 4 // warps
    by_threads = gpu.max_threads_sm // (warps * 32)
    held = ceil_div(np.asarray(smem, dtype=np.int64) + RESERVED_SMEM, SMEM_ALLOCATE) * SMEM_ALLOCATE
    blocks = np.minimum(np.minimum(by_registers, by_threads), np.minimum(gpu.smem_sm_bytes // held, gpu.max_blocks_sm))
    fits = (np.asarray(smem) <= gpu.smem_block_bytes) & (np.asarray(threads) <= MAX_THREADS)
    return np.where(fits, blocks, 0)


def price(gpu: Gpu, demand: Demand, work: Work) -> Price:
    """Noiseless times in ms, rounded to seven digits, never below the floor of `work` nor of the candidate's own launches."""
    parts = terms(gpu, demand)
    least = np.maximum(significant(parts.launch * 1e3), floor_ms(gpu, work))
    ms = np.maximum(significant(parts.total * 1e3), least)
    return Price(
        ms=np.where(parts.blocks_per_sm > 0, ms, np.inf),
        blocks_per_sm=np.broadcast_to(parts.blocks_per_sm, ms.shape),
        bound=np.broadcast_to(binding(parts), ms.shape),
    )


def terms(gpu: Gpu, demand: Demand) -> Terms:
    """All terms of the model, unrounded and without the floor's gate."""
    fit = occupancy(gpu, demand.threads, demand.registers, demand.smem_per_block)
    blocks = np.asarray(demand.blocks, dtype=np.int64)
    on_busiest = ceil_div(blocks, gpu.sm_count)
    resident = np.maximum(np.minimum(on_busiest, fit), 1)
    waves = ceil_div(on_busiest, resident)
    share = on_busiest / blocks
    resources = (
        dram_seconds(gpu, demand, resident, share),
        l2_seconds(gpu, demand.dram_bytes, demand.reread_bytes, share),
        arithmetic_seconds(gpu, demand, resident, share),
        sfu_seconds(gpu, demand, share),
        lsu_seconds(gpu, demand, share),
        latency_seconds(demand, waves),
    )
    longest = np.maximum(resources[0], resources[1])
    both: Floats = resources[0] + l2_seconds(gpu, 0, demand.reread_bytes, share)
    for one in resources[2:]:
        longest = np.maximum(longest, one)
        both = both + one
    leaked: Floats = np.asarray(demand.leak, dtype=np.float64) * np.maximum(both - longest, 0.0)
    spill = 1.0 + SPILL_PER_REGISTER * np.asarray(demand.spilled)
    launch, fill, turns = launch_seconds(gpu, demand), fill_seconds(gpu, demand), turn_seconds(gpu, demand, waves)
    return Terms(
        launch=launch,
        fill=fill,
        resources=resources,
        longest=longest,
        leaked=leaked,
        turns=turns,
        spill=spill,
        total=launch + fill + spill * (longest + leaked) + turns,
        waves=waves,
        blocks_per_sm=fit,
    )


def binding(parts: Terms) -> Ints:
    """Index into `BOUNDS` of each candidate's longest resource, the first of equals."""
    bound = np.zeros(parts.total.shape, dtype=np.int64)
    for i in reversed(range(len(BOUNDS))):
        bound = np.where(parts.resources[i] == parts.longest, i, bound)
    return bound


def launch_seconds(gpu: Gpu, demand: Demand) -> Floats:
    """Kernels launched one after another, each a step of a CUDA graph."""
    return np.asarray(demand.launches) * (gpu.launch_us * 1e-6)


def fill_seconds(gpu: Gpu, demand: Demand) -> Floats:
    """Dependent DRAM round trips before the first flop, and the short kernels after the main one."""
    return (FILL_LATENCIES * gpu.dram_latency_ns + np.asarray(demand.tail_ns)) * 1e-9


def turn_seconds(gpu: Gpu, demand: Demand, waves: Ints) -> Floats:
    """Draining and refilling the machine between waves, and what each block does alone at its ends."""
    return (waves - 1) * (gpu.wave_us * 1e-6) + waves * (np.asarray(demand.turn_ns) * 1e-9)


def dram_seconds(gpu: Gpu, demand: Demand, resident: Ints, share: Floats) -> Floats:
    """DRAM time: bandwidth saturates with the bytes in flight (Little's law), and one SM cannot take more than its port."""
    total = demand.dram_bytes + (1.0 - l2_hit(gpu, demand.footprint_bytes)) * demand.reread_bytes
    busy = np.minimum(np.asarray(demand.blocks), gpu.sm_count * resident)
    latency = LOADED_LATENCY * gpu.dram_latency_ns * 1e-9
    x = busy * demand.inflight_per_block / (gpu.dram_sustained * latency)
    saturation = x / np.sqrt(np.sqrt(1.0 + (x * x) * (x * x)))
    port = np.minimum(SECTOR_PORT * gpu.clock_hz, resident * demand.inflight_per_block / latency)
    seconds: Floats = np.maximum(total / (gpu.dram_sustained * saturation), total * share / port)
    return seconds


def l2_hit(gpu: Gpu, footprint: Quantity) -> Floats:
    """Share of re-reads that L2 serves: all while the footprint is under 0.7 of it, none beyond 1.2."""
    room: Floats = (1.2 * gpu.l2_bytes - np.asarray(footprint, dtype=np.float64)) / (0.5 * gpu.l2_bytes)
    return np.minimum(np.maximum(room, 0.0), 1.0)


def l2_seconds(gpu: Gpu, first: Quantity, again: Quantity, share: Floats) -> Floats:
    """L2 time of bytes read first and again, evenly spread; one SM again takes at most its port."""
    total = np.asarray(first + again, dtype=np.float64)
    return total * np.maximum(1.0 / (gpu.l2_gbps * 1e9), share / (SECTOR_PORT * gpu.clock_hz))


def arithmetic_seconds(gpu: Gpu, demand: Demand, resident: Ints, share: Floats) -> Floats:
    """Time of the busiest SM on its arithmetic pipe, tensor cores fed by warps and slowed by power, plus scalar work on the CUDA cores."""
    main = demand.flops * share / (rate(gpu, demand.unit) / gpu.sm_count * np.asarray(demand.efficiency))
    if demand.unit.startswith("mma"):
        main = main / fed(resident * ceil_div(demand.threads, 32))
    if demand.unit not in ("fp32", "dp4a"):
        main = drooped(gpu, main)
    return main + demand.alu_ops * share / (rate(gpu, "fp32") / 2 / gpu.sm_count)


def fed(warps: Ints) -> Floats:
    """Share of the mma.sync rate that so many resident warps keep up: 0.83 with four, 1 from eight on."""
    full = FEED_WARPS / (FEED_WARPS + FEED_WAIT)
    return np.minimum(warps / (warps + FEED_WAIT) / full, 1.0)


def drooped(gpu: Gpu, seconds: Floats) -> Floats:
    """Tensor time under the power limit: short bursts run at the highest clock, long ones `1 + power_droop` times slower."""
    return seconds * (1.0 + gpu.power_droop * seconds / (seconds + gpu.droop_us * 1e-6))


def sfu_seconds(gpu: Gpu, demand: Demand, share: Floats) -> Floats:
    """Special functions of the busiest SM, 16 a clock."""
    return demand.sfu_ops * share * (1.0 / (SFU_LANES * gpu.clock_hz))


def lsu_seconds(gpu: Gpu, demand: Demand, share: Floats) -> Floats:
    """Warp-wide load, store, shuffle and shared-memory instructions of the busiest SM, one a clock."""
    return demand.lsu_ops * share * (1.0 / gpu.clock_hz)


def latency_seconds(demand: Demand, waves: Ints) -> Floats:
    """Dependent latency of one block, once per wave."""
    return waves * (np.asarray(demand.chain_ns) * 1e-9)


def refusal(gpu: Gpu, threads: int, smem: int) -> str:
    """Why a block of this size cannot be launched: the limit it exceeds."""
    if threads > MAX_THREADS:
        return f"{threads} threads per block, limit {MAX_THREADS}"
    if smem > gpu.smem_block_bytes:
        return f"{smem} B shared memory per block, limit {gpu.smem_block_bytes} B on {gpu.arch}"
    return f"{threads} threads per block exceed the {REGISTERS_SM} registers of one SM"
