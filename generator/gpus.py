"""The six boards, one row each, with a source for every number.

Rates are dense (no structured sparsity), at the rated boost clock. What a board sustains follows from `tensor_mhz`, the clock that
reproduces its best measured GEMM; what it could ever reach, and so the floor, follows from `max_mhz`. Adding a GPU is a row here and a
name in `schema.vocab`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
EQUIVALENT_CLOCK: Final = "derived: best measured dense fp16 or bf16 GEMM over operations per clock"


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
    tensor_mhz: int
    """Clock at full tensor issue that gives the best measured GEMM; power sets it."""
    dram_gbps: int
    dram_fraction: float
    """Best measured read bandwidth over the datasheet's."""
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
    fp32_tflops: float
    fp16_tflops: float
    """Tensor cores, fp16 in, fp32 accumulate."""
    int8_tops: float
    fp8_tflops: float | None
    """Tensor cores, e4m3 in, fp32 accumulate, the fastest form the board has; None where it has none."""
    int_lanes: int
    """32-bit integer lanes per SM, which also run dp4a."""
    sources: Mapping[str, str]

    @property
    def clock_hz(self) -> float:
        """Boost clock in Hz."""
        return self.boost_mhz * 1e6

    @property
    def dram_best(self) -> float:
        """Best bandwidth ever measured, in bytes per second."""
        return self.dram_gbps * 1e9 * self.dram_fraction


_COMMON = {
    "smem_sm_bytes": ARCH_TRAITS,
    "smem_block_bytes": ARCH_TRAITS,
    "max_threads_sm": ARCH_TRAITS,
    "max_blocks_sm": ARCH_TRAITS,
    "tensor_mhz": EQUIVALENT_CLOCK,
    "l2_gbps": f"{BENCHES}/gpu-l2-cache (H200, A10 and RTX 5090 estimated from the same class)",
    "dram_latency_ns": f"{BENCHES}/gpu-latency (H200, A10, RTX A6000 and RTX 5090 estimated from the same class)",
    "launch_us": f"{BENCHES}/gpu-small-kernels",
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

H100 = Gpu(
    name="h100",
    board="NVIDIA H100 SXM5 80 GB",
    arch="sm_90a",
    features=frozenset({"wgmma", "tma", "fp8", "cp_async"}),
    sm_count=132,
    boost_mhz=1830,
    max_mhz=1980,
    tensor_mhz=1469,
    dram_gbps=3350,
    dram_fraction=0.967,
    dram_latency_ns=367,
    l2_bytes=52_428_800,
    l2_gbps=7000,
    smem_sm_bytes=233_472,
    smem_block_bytes=232_448,
    max_threads_sm=2048,
    max_blocks_sm=32,
    launch_us=1.27,
    fp32_tflops=66.9,
    fp16_tflops=989.4,
    int8_tops=1978.9,
    fp8_tflops=1978.9,
    int_lanes=64,
    sources=_SXM
    | {
        "dram_fraction": "https://github.com/pranjalssh/fast.cu/blob/38eb642e0c081231d6f695978be63604bd7c689b/README.md",
        "launch_us": f"{AICONFIGURATOR} (least graph period of an element-wise kernel)",
    },
)

H200 = Gpu(
    name="h200",
    board="NVIDIA H200 SXM 141 GB",
    arch="sm_90a",
    features=frozenset({"wgmma", "tma", "fp8", "cp_async"}),
    sm_count=132,
    boost_mhz=1830,
    max_mhz=1980,
    tensor_mhz=1462,
    dram_gbps=4800,
    dram_fraction=0.946,
    dram_latency_ns=380,
    l2_bytes=52_428_800,
    l2_gbps=8000,
    smem_sm_bytes=233_472,
    smem_block_bytes=232_448,
    max_threads_sm=2048,
    max_blocks_sm=32,
    launch_us=1.14,
    fp32_tflops=66.9,
    fp16_tflops=989.4,
    int8_tops=1978.9,
    fp8_tflops=1978.9,
    int_lanes=64,
    sources=_SXM
    | {
        "dram_fraction": f"{AICONFIGURATOR}/aic-core/src/aiconfigurator_core/systems/data/h200_sxm/attention",
        "launch_us": f"{AICONFIGURATOR} (least graph period of an element-wise kernel)",
    },
)

A100 = Gpu(
    name="a100",
    board="NVIDIA A100 SXM4 80 GB",
    arch="sm_80",
    features=frozenset({"cp_async"}),
    sm_count=108,
    boost_mhz=1410,
    max_mhz=1410,
    tensor_mhz=1226,
    dram_gbps=2039,
    dram_fraction=0.90,
    dram_latency_ns=403,
    l2_bytes=41_943_040,
    l2_gbps=5300,
    smem_sm_bytes=167_936,
    smem_block_bytes=166_912,
    max_threads_sm=2048,
    max_blocks_sm=32,
    launch_us=1.37,
    fp32_tflops=19.5,
    fp16_tflops=312.0,
    int8_tops=624.0,
    fp8_tflops=None,
    int_lanes=64,
    sources=_SXM
    | {
        "dram_gbps": f"{AICONFIGURATOR}/aic-core/src/aiconfigurator_core/systems/a100_sxm.yaml",
        "dram_fraction": "https://github.com/microsoft/vidur/tree/7d47513363ec447a741ac5e47241580b47724fbf/data/profiling/compute/a100",
    },
)

A10 = Gpu(
    name="a10",
    board="NVIDIA A10 PCIe 24 GB",
    arch="sm_86",
    features=frozenset({"cp_async"}),
    sm_count=72,
    boost_mhz=1695,
    max_mhz=1695,
    tensor_mhz=760,
    dram_gbps=600,
    dram_fraction=0.82,
    dram_latency_ns=430,
    l2_bytes=6_291_456,
    l2_gbps=2200,
    smem_sm_bytes=102_400,
    smem_block_bytes=101_376,
    max_threads_sm=1536,
    max_blocks_sm=16,
    launch_us=1.10,
    fp32_tflops=31.2,
    fp16_tflops=125.0,
    int8_tops=250.0,
    fp8_tflops=None,
    int_lanes=64,
    sources=_PCIE
    | {
        "dram_fraction": "https://github.com/ScalingIntelligence/KernelBench/blob/509ed996193e3a1bf6b152622c39a3e8e4219ead/results/timing"
        "/A10G_modal/baseline_time_torch.json (0.815 of the datasheet, ECC on)",
    },
)

RTX_A6000 = Gpu(
    name="rtx_a6000",
    board="NVIDIA RTX A6000 48 GB",
    arch="sm_86",
    features=frozenset({"cp_async"}),
    sm_count=84,
    boost_mhz=1800,
    max_mhz=1800,
    tensor_mhz=1433,
    dram_gbps=768,
    dram_fraction=0.973,
    dram_latency_ns=400,
    l2_bytes=6_291_456,
    l2_gbps=2400,
    smem_sm_bytes=102_400,
    smem_block_bytes=101_376,
    max_threads_sm=1536,
    max_blocks_sm=16,
    launch_us=1.10,
    fp32_tflops=38.7,
    fp16_tflops=154.8,
    int8_tops=309.7,
    fp8_tflops=None,
    int_lanes=64,
    sources=_PCIE
    | {
        "dram_fraction": "https://github.com/casys-kaist/LLMServingSim/tree/5daddb21a545658d5150b535712d0494584b5278/profiler/v0/perf_models/A6000",
    },
)

RTX_5090 = Gpu(
    name="rtx_5090",
    board="NVIDIA GeForce RTX 5090 32 GB",
    arch="sm_120a",
    features=frozenset({"tma", "fp8", "fp4", "cp_async"}),
    sm_count=170,
    boost_mhz=2407,
    max_mhz=2850,
    tensor_mhz=2783,
    dram_gbps=1792,
    dram_fraction=0.916,
    dram_latency_ns=500,
    l2_bytes=100_663_296,
    l2_gbps=6000,
    smem_sm_bytes=102_400,
    smem_block_bytes=101_376,
    max_threads_sm=1536,
    max_blocks_sm=24,
    launch_us=2.05,
    fp32_tflops=104.9,
    fp16_tflops=209.5,
    int8_tops=838.0,
    fp8_tflops=838.0,
    int_lanes=128,
    sources=_COMMON
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
)

GPUS: Final = (H100, H200, A100, A10, RTX_A6000, RTX_5090)
"""All boards; the order feeds sampling."""

BY_NAME: Final[Mapping[str, Gpu]] = {gpu.name: gpu for gpu in GPUS}
