"""The six boards, one row each, with a source for every number.

Rates are dense (no structured sparsity), at the rated boost clock. What a board could ever reach, and so the floor, follows from
`max_mhz` and `dram_fraction`; what it sustains from the constants fitted to published measurements (`generator.calibration`). `kinds`
tells of each number whether it is a datasheet's, measured, fitted or estimated. Adding a GPU is a row here and a name in `schema.vocab`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, Literal

from generator.calibration import BOARDS, PROVENANCE

ARCH_TRAITS: Final = (
    "https://github.com/NVIDIA/cccl/blob/571f2fc3bc53cd710e306ad43d58995c1fe4219f/libcudacxx/include/cuda/__device/arch_traits.h"
)
ACCELERATORS: Final = "https://github.com/stas00/ml-engineering/blob/744d01e18b79512572f64a6bbd8b5f4a725203a7/compute/accelerator/README.md"
AICONFIGURATOR: Final = "https://github.com/ai-dynamo/aiconfigurator/tree/095f58a51c4ca8e61b66ec108d86f223f8d559ce"
BENCHES: Final = "https://github.com/te42kyfo/gpu-benches/tree/1c36d509ee717dca9215c27135fa1e611bb03ed1"
BOARD_PAGES: Final = "https://sysrqmts.com/ (pages NVIDIA A10 PCIe, NVIDIA RTX A6000)"
QUACK: Final = "https://github.com/Dao-AILab/quack/blob/c8ec3170057987da0ec99883736f381ea1937cf3"
LEARN_CUDA: Final = "https://github.com/gau-nernst/learn-cuda/blob/1454f8b71499a68eacdbf44c08e36a7003d8ab99"
DERIVED: Final = "derived: SMs x operations per clock and SM x boost clock"
POWER: Final = "derived: highest clock over the clock at which full tensor issue gives the best measured dense fp16 or bf16 GEMM, less 1"

Kind = Literal["datasheet", "measured", "fitted", "estimated"]
"""Where a number comes from: a vendor's page (or arithmetic on it), a published measurement, our fit to many, or a board of its class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One board. Clocks in MHz, bandwidths in GB/s, rates in TFLOPS or TOPS, latencies in ns."""

    name: str
    board: str
    arch: str
    features: frozenset[str]
    sm_count: int
    boost_mhz: int
    max_mhz: int
    """Highest clock seen: with it no kernel can beat `peak`."""
    power_droop: float
    """How much slower, as a share, tensor cores run under the power limit than at the highest clock, once a launch is long."""
    droop_us: float
    """Tensor time of a launch at which half of `power_droop` is reached."""
    dram_gbps: int
    dram_fraction: float
    """Best measured read bandwidth over the datasheet's: the floor's."""
    dram_sustained_fraction: float
    """Read bandwidth that tuned libraries sustain over the datasheet's: the model's, at most `dram_fraction`."""
    dram_latency_ns: int
    l2_bytes: int
    l2_gbps: int
    smem_sm_bytes: int
    smem_block_bytes: int
    """Greatest shared memory of one block, after opting in."""
    max_threads_sm: int
    max_blocks_sm: int
    launch_us: float
    """Time from one kernel to the next inside a CUDA graph."""
    wave_us: float
    """Time to drain the machine of one wave of blocks and refill it."""
    fp32_tflops: float
    fp16_tflops: float
    """Tensor cores, fp16 in, fp32 accumulate."""
    int8_tops: float
    fp8_tflops: float | None
    """Tensor cores, e4m3 in, fp32 accumulate, the fastest form the board has; None where it has none."""
    int_lanes: int
    """32-bit integer lanes per SM, which also run dp4a."""
    sources: Mapping[str, str]
    kinds: Mapping[str, Kind]

    @property
    def clock_hz(self) -> float:
        """Boost clock in Hz."""
        return self.boost_mhz * 1e6

    @property
    def dram_best(self) -> float:
        """Best bandwidth ever measured, in bytes per second."""
        return self.dram_gbps * 1e9 * self.dram_fraction

    @property
    def dram_sustained(self) -> float:
        """Bandwidth that tuned kernels sustain, in bytes per second."""
        return self.dram_gbps * 1e9 * self.dram_sustained_fraction


_COMMON = {
    "smem_sm_bytes": ARCH_TRAITS,
    "smem_block_bytes": ARCH_TRAITS,
    "max_threads_sm": ARCH_TRAITS,
    "max_blocks_sm": ARCH_TRAITS,
    "l2_gbps": f"{BENCHES}/gpu-l2-cache (H200, A10 and RTX 5090 estimated from the same class)",
    "dram_latency_ns": f"{BENCHES}/gpu-latency (H200, A10, RTX A6000 and RTX 5090 estimated from the same class)",
    "launch_us": f"{BENCHES}/gpu-small-kernels",
    "droop_us": "estimated: GEMMs of one clock period of the power control; the fit hardly moves with it",
    "wave_us": "estimated: a launch, two barriers and a DRAM round trip; the fit hardly moves with it",
    "int_lanes": "https://docs.nvidia.com/cuda/cuda-c-programming-guide/ (arithmetic instruction throughput)",
}
_SXM = _COMMON | dict.fromkeys(
    ("sm_count", "boost_mhz", "max_mhz", "dram_gbps", "l2_bytes", "fp32_tflops", "fp16_tflops", "int8_tops", "fp8_tflops"), ACCELERATORS
)
_PCIE = (
    _COMMON
    | dict.fromkeys(("sm_count", "boost_mhz", "max_mhz", "dram_gbps", "l2_bytes"), BOARD_PAGES)
    | dict.fromkeys(("fp32_tflops", "fp16_tflops", "int8_tops"), DERIVED)
)
_FITTED = dict.fromkeys(("power_droop", "dram_sustained_fraction"), PROVENANCE)
_GUESSED = {
    "power_droop": POWER,
    "dram_sustained_fraction": "estimated: best measured bandwidth less the share the fitted boards lose to it",
}


def _kinds(*, measured: str = "", fitted: str = "", estimated: str = "") -> dict[str, Kind]:
    """The kind of every number of a board: a datasheet's unless named here (or measured on all boards)."""
    kinds: dict[str, Kind] = {
        field.name: "datasheet" for field in fields(Gpu) if field.name not in {"name", "board", "arch", "features", "sources", "kinds"}
    }
    kinds |= dict.fromkeys(("max_mhz", "dram_fraction", "dram_latency_ns", "l2_gbps", "launch_us", *measured.split()), "measured")
    kinds |= dict.fromkeys(fitted.split(), "fitted")
    return kinds | dict.fromkeys(("droop_us", "wave_us", *estimated.split()), "estimated")


_LEARNED = "power_droop dram_sustained_fraction"

H100 = Gpu(
    name="h100",
    board="NVIDIA H100 SXM5 80 GB",
    arch="sm_90a",
    features=frozenset({"wgmma", "tma", "cluster", "fp8", "cp_async"}),
    sm_count=132,
    boost_mhz=1830,
    max_mhz=1980,
    power_droop=BOARDS["h100"].power_droop,
    droop_us=300,
    dram_gbps=3350,
    dram_fraction=0.967,
    dram_sustained_fraction=BOARDS["h100"].dram_sustained_fraction,
    dram_latency_ns=367,
    l2_bytes=52_428_800,
    l2_gbps=7000,
    smem_sm_bytes=233_472,
    smem_block_bytes=232_448,
    max_threads_sm=2048,
    max_blocks_sm=32,
    launch_us=1.27,
    wave_us=0.4,
    fp32_tflops=66.9,
    fp16_tflops=989.4,
    int8_tops=1978.9,
    fp8_tflops=1978.9,
    int_lanes=64,
    sources=_SXM
    | _FITTED
    | {
        "dram_fraction": "https://github.com/pranjalssh/fast.cu/blob/38eb642e0c081231d6f695978be63604bd7c689b/README.md",
        "launch_us": f"{AICONFIGURATOR} (least graph period of an element-wise kernel)",
    },
    kinds=_kinds(fitted=_LEARNED),
)

H200 = Gpu(
    name="h200",
    board="NVIDIA H200 SXM 141 GB",
    arch="sm_90a",
    features=frozenset({"wgmma", "tma", "cluster", "fp8", "cp_async"}),
    sm_count=132,
    boost_mhz=1830,
    max_mhz=1980,
    power_droop=BOARDS["h200"].power_droop,
    droop_us=300,
    dram_gbps=4800,
    dram_fraction=0.946,
    dram_sustained_fraction=BOARDS["h200"].dram_sustained_fraction,
    dram_latency_ns=380,
    l2_bytes=52_428_800,
    l2_gbps=8000,
    smem_sm_bytes=233_472,
    smem_block_bytes=232_448,
    max_threads_sm=2048,
    max_blocks_sm=32,
    launch_us=1.14,
    wave_us=0.4,
    fp32_tflops=66.9,
    fp16_tflops=989.4,
    int8_tops=1978.9,
    fp8_tflops=1978.9,
    int_lanes=64,
    sources=_SXM
    | _FITTED
    | {
        "dram_fraction": f"{AICONFIGURATOR}/aic-core/src/aiconfigurator_core/systems/data/h200_sxm/attention",
        "launch_us": f"{AICONFIGURATOR} (least graph period of an element-wise kernel)",
    },
    kinds=_kinds(fitted=_LEARNED, estimated="dram_latency_ns l2_gbps"),
)

A100 = Gpu(
    name="a100",
    board="NVIDIA A100 SXM4 80 GB",
    arch="sm_80",
    features=frozenset({"cp_async"}),
    sm_count=108,
    boost_mhz=1410,
    max_mhz=1410,
    power_droop=BOARDS["a100"].power_droop,
    droop_us=300,
    dram_gbps=2039,
    dram_fraction=0.90,
    dram_sustained_fraction=BOARDS["a100"].dram_sustained_fraction,
    dram_latency_ns=403,
    l2_bytes=41_943_040,
    l2_gbps=5300,
    smem_sm_bytes=167_936,
    smem_block_bytes=166_912,
    max_threads_sm=2048,
    max_blocks_sm=32,
    launch_us=1.37,
    wave_us=0.4,
    fp32_tflops=19.5,
    fp16_tflops=312.0,
    int8_tops=624.0,
    fp8_tflops=None,
    int_lanes=64,
    sources=_SXM
    | _FITTED
    | {
        "dram_gbps": f"{AICONFIGURATOR}/aic-core/src/aiconfigurator_core/systems/a100_sxm.yaml",
        "dram_fraction": "https://github.com/microsoft/vidur/tree/7d47513363ec447a741ac5e47241580b47724fbf/data/profiling/compute/a100",
    },
    kinds=_kinds(fitted=_LEARNED),
)

A10 = Gpu(
    name="a10",
    board="NVIDIA A10 PCIe 24 GB",
    arch="sm_86",
    features=frozenset({"cp_async"}),
    sm_count=72,
    boost_mhz=1695,
    max_mhz=1695,
    power_droop=1.23,
    droop_us=300,
    dram_gbps=600,
    dram_fraction=0.82,
    dram_sustained_fraction=0.8,
    dram_latency_ns=430,
    l2_bytes=6_291_456,
    l2_gbps=2200,
    smem_sm_bytes=102_400,
    smem_block_bytes=101_376,
    max_threads_sm=1536,
    max_blocks_sm=16,
    launch_us=1.10,
    wave_us=0.4,
    fp32_tflops=31.2,
    fp16_tflops=125.0,
    int8_tops=250.0,
    fp8_tflops=None,
    int_lanes=64,
    sources=_PCIE
    | _GUESSED
    | {
        "dram_sustained_fraction": "estimated: between the measured copy (0.78) and read (0.815), ECC on",
        "dram_fraction": "https://github.com/ScalingIntelligence/KernelBench/blob/509ed996193e3a1bf6b152622c39a3e8e4219ead/results/timing"
        "/A10G_modal/baseline_time_torch.json (0.815 of the datasheet, ECC on)",
    },
    kinds=_kinds(estimated=f"{_LEARNED} dram_latency_ns l2_gbps launch_us"),
)

RTX_A6000 = Gpu(
    name="rtx_a6000",
    board="NVIDIA RTX A6000 48 GB",
    arch="sm_86",
    features=frozenset({"cp_async"}),
    sm_count=84,
    boost_mhz=1800,
    max_mhz=1800,
    power_droop=0.256,
    droop_us=300,
    dram_gbps=768,
    dram_fraction=0.973,
    dram_sustained_fraction=0.92,
    dram_latency_ns=400,
    l2_bytes=6_291_456,
    l2_gbps=2400,
    smem_sm_bytes=102_400,
    smem_block_bytes=101_376,
    max_threads_sm=1536,
    max_blocks_sm=16,
    launch_us=1.10,
    wave_us=0.4,
    fp32_tflops=38.7,
    fp16_tflops=154.8,
    int8_tops=309.7,
    fp8_tflops=None,
    int_lanes=64,
    sources=_PCIE
    | _GUESSED
    | {
        "dram_fraction": "https://github.com/casys-kaist/LLMServingSim/tree/5daddb21a545658d5150b535712d0494584b5278/profiler/v0/perf_models/A6000",
    },
    kinds=_kinds(estimated=f"{_LEARNED} dram_latency_ns l2_gbps launch_us"),
)

RTX_5090 = Gpu(
    name="rtx_5090",
    board="NVIDIA GeForce RTX 5090 32 GB",
    arch="sm_120a",
    features=frozenset({"tma", "cluster", "fp8", "fp4", "cp_async"}),
    sm_count=170,
    boost_mhz=2407,
    max_mhz=2850,
    power_droop=0.024,
    droop_us=300,
    dram_gbps=1792,
    dram_fraction=0.916,
    dram_sustained_fraction=0.87,
    dram_latency_ns=500,
    l2_bytes=100_663_296,
    l2_gbps=6000,
    smem_sm_bytes=102_400,
    smem_block_bytes=101_376,
    max_threads_sm=1536,
    max_blocks_sm=24,
    launch_us=2.05,
    wave_us=0.4,
    fp32_tflops=104.9,
    fp16_tflops=209.5,
    int8_tops=838.0,
    fp8_tflops=838.0,
    int_lanes=128,
    sources=_COMMON
    | _GUESSED
    | dict.fromkeys(("boost_mhz", "max_mhz"), f"{LEARN_CUDA}/02b_matmul_sm80/README.md")
    | dict.fromkeys(
        ("fp32_tflops", "fp16_tflops", "int8_tops", "fp8_tflops"), f"{LEARN_CUDA}/02c_matmul_sm120/README.md (fp8: block-scaled form)"
    )
    | {
        "sm_count": f"{QUACK}/AI/sm120_hardware.md",
        "dram_gbps": "https://github.com/ProjectPhysX/FluidX3D/blob/8986874e626e0aebd317ab16c420b39e30dfa273/README.md",
        "dram_fraction": f"{QUACK}/benchmarks/sm120_cluster_benchmark.md",
        "l2_bytes": "https://pocketmags.com/linux-format-magazine/may-2025/articles/nvidia-geforce-rtx-5090",
        "launch_us": "https://github.com/Neroued/ninfer/blob/5ea3242a206cdb0c4c1beaeb9d8a3048e6248423/docs/maintainer"
        "/qwen3.6-35b-a3b-dflash-op-checklist.md",
    },
    kinds=_kinds(estimated=f"{_LEARNED} dram_latency_ns l2_gbps"),
)

GPUS: Final = (H100, H200, A100, A10, RTX_A6000, RTX_5090)
"""All boards; the order feeds sampling."""

BY_NAME: Final[Mapping[str, Gpu]] = {gpu.name: gpu for gpu in GPUS}
