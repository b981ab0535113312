"""Tuning moves of published ladders: the model must order them as hardware did, and by roughly as much.

Figures in comments are the published ones (see docs/costmodel.md for their sources). Where a ladder's kernels are not among the
project's variants their demand is counted here by hand.
"""

import dataclasses

import numpy as np
import pytest

from generator import costmodel
from generator.gpus import BY_NAME as GPU
from generator.ops import BY_NAME as OP
from generator.ops.base import Demand, Work
from generator.ops.gemm_fp16_demand import demand_mma

CUBE = {"M": 8192, "N": 8192, "K": 8192}
TILE = {"block_m": 128, "block_n": 128, "block_k": 32, "warps": 4, "stages": 3, "swizzle": 8}


def ms(op: str, gpu: str, shape: dict[str, int], variant: str, **params: int) -> float:
    """Time of one point (its start, with `params`), or of the variant's best point."""
    spec = OP[op]
    chosen = spec.variant(variant)
    columns = {k: np.array([v], dtype=np.int64) for k, v in (dict(chosen.start) | params).items()} if params else chosen.columns()
    return float(costmodel.price(GPU[gpu], chosen.demand(shape, columns), spec.work(shape)).ms.min())


def priced(gpu: str, demand: Demand) -> float:
    return float(costmodel.price(GPU[gpu], demand, Work(bytes=1, flops=1, math="fp32")).ms)


def gemm(gpu: str, **params: int) -> Demand:
    return demand_mma(CUBE, {k: np.array([v], dtype=np.int64) for k, v in (TILE | params).items()})


def one(gpu: str, demand: Demand) -> float:
    return float(costmodel.price(GPU[gpu], demand, OP["gemm_fp16"].work(CUBE)).ms[0])


def sgemm(rung: str) -> Demand:
    """FP32 SGEMM, 4096 cubed, as the worklog builds it: loads per multiply-add fall from 33 wavefronts to a quarter of a float4."""
    n, side, step = 4096, 32, 4096
    macs = n**3
    loads = macs // 32
    wide = {"blocks": (n // side) ** 2, "threads": 1024, "registers": 32}
    tiled = {"blocks": (n // 128) ** 2, "threads": 256, "registers": 120, "inflight_per_block": 8192, "reread_bytes": 2 * n**3 // side}
    common = {"dram_bytes": 3 * n * n * 4, "flops": 2 * macs, "footprint_bytes": 2**20, "leak": 0.35}
    reread = 2 * n**3 // side * 4
    match rung:
        case "naive":
            return Demand(**wide, **common, reread_bytes=4 * reread, inflight_per_block=4096, lsu_ops=33 * loads, chain_ns=80 * step)
        case "coalesced":
            return Demand(**wide, **common, reread_bytes=reread, inflight_per_block=4096, lsu_ops=2 * loads, chain_ns=80 * step)
        case "shared":
            return Demand(**wide, **common, reread_bytes=reread, inflight_per_block=8192, lsu_ops=2.1 * loads, chain_ns=50 * step)
        case "1d":
            some = {"blocks": (n // 64) ** 2, "threads": 512, "registers": 48, "inflight_per_block": 4096}
            return Demand(**some, **common, reread_bytes=reread // 2, lsu_ops=1.2 * loads, chain_ns=800 * step // 8)
        case "2d":
            return Demand(**tiled, **common, lsu_ops=0.3 * loads, chain_ns=900 * step // 8)
    return Demand(**tiled, **common, lsu_ops=0.08 * loads, chain_ns=800 * step // 8)


def test_sgemm_ladder_on_a6000():
    """309 naive, 1986 coalesced, 2980 shared, 8475 and 15972 with tiles of registers, 18237 GFLOPS vectorised."""
    published = {"naive": 309, "coalesced": 1986, "shared": 2980, "1d": 8475, "2d": 15972, "vectorised": 18237}
    model = {rung: 2 * 4096**3 / priced("rtx_a6000", sgemm(rung)) / 1e6 for rung in published}
    assert list(model.values()) == sorted(model.values())
    for rung, gflops in published.items():
        assert gflops / 2 < model[rung] < gflops * 2, (rung, model)


def test_cp_async_width():
    """4-byte against 16-byte copies on sm_120: 58 -> 163 TFLOPS."""
    wide = gemm("rtx_5090", stages=2)
    copies = (128 + 128) * 64 // 128 * 8192 // 32 * 64**2
    narrow = dataclasses.replace(
        wide,
        lsu_ops=wide.lsu_ops + 3 * 4 * copies,
        alu_ops=wide.alu_ops * 4,
        inflight_per_block=wide.inflight_per_block / 4,
    )
    assert 1.2 < one("rtx_5090", narrow) / one("rtx_5090", wide) < 4


def test_bank_conflicts():
    """Unswizzled shared memory, eight-way conflicts of ldmatrix: 47 -> 58 TFLOPS on sm_120, 65 -> 167 on A100."""
    clean = gemm("a100")
    assert 1.2 < one("a100", dataclasses.replace(clean, lsu_ops=clean.lsu_ops * 8)) / one("a100", clean) < 5


def test_stages_on_sm_120():
    """2, 3, 4 stages of 32 KB: 244, 238, 180 TFLOPS; the fourth leaves one block an SM."""
    two, three, four = (one("rtx_5090", gemm("rtx_5090", stages=k)) for k in (2, 3, 4))
    occupied = [
        int(costmodel.price(GPU["rtx_5090"], gemm("rtx_5090", stages=k), OP["gemm_fp16"].work(CUBE)).blocks_per_sm[0]) for k in (2, 3, 4)
    ]
    assert occupied[2] == 1 < occupied[1]
    assert four > 1.1 * three
    assert two < 1.35 * three


def test_warp_tile():
    """Four warps of 64 x 64 against eight of 64 x 32 and sixteen of 64 x 16: 175 -> 238 TFLOPS for the full tile."""
    times = [one("rtx_5090", gemm("rtx_5090", stages=2, warps=warps)) for warps in (4, 8, 16)]
    assert times == sorted(times)
    assert 1.1 < times[2] / times[0] < 2


@pytest.mark.parametrize("gpu", ["a100", "h100", "rtx_5090"])
def test_split_kv_by_batch_and_length(gpu: str):
    """41x over one pass where one sequence is all the work there is; nothing to gain from a full machine."""
    alone = {"B": 1, "H": 32, "D": 128, "T": 4096, "P": 16}
    gain = {}
    for batch, length in ((1, 4096), (1, 16384), (8, 4096), (64, 4096)):
        shape = alone | {"B": batch, "T": length}
        gain[batch, length] = ms("flash_decode", gpu, shape, "split_kv", splits=1) / ms("flash_decode", gpu, shape, "split_kv")
    assert gain[1, 16384] >= gain[1, 4096] > 4
    assert gain[1, 4096] > gain[8, 4096] > gain[64, 4096]
    assert gain[64, 4096] < 1.25
    assert 10 < ms("flash_decode", gpu, alone, "single_pass") / ms("flash_decode", gpu, alone, "cp_async") < 60


@pytest.mark.parametrize("gpu", ["a100", "h100", "rtx_5090"])
def test_split_k_pays_for_few_rows_only(gpu: str):
    """Marlin, cuBLAS: K is split where M is small and N leaves multiprocessors idle."""
    small, large = {"M": 16, "N": 4096, "K": 14336}, {"M": 4096, "N": 4096, "K": 4096}
    assert ms("gemm_fp16", gpu, small, "split_k") < ms("gemm_fp16", gpu, small, "mma_cp_async")
    assert ms("gemm_fp16", gpu, large, "split_k") > ms("gemm_fp16", gpu, large, "mma_cp_async")


def test_wgmma_against_mma_on_h100():
    """WMMA 61, mma.sync at most 63-65 % of peak, wgmma with CUTLASS 641, fast.cu 808 TFLOPS at 8192 cubed."""
    wgmma, mma = (2 * 8192**3 / ms("gemm_fp16", "h100", CUBE, name) / 1e9 for name in ("wgmma_tma", "mma_cp_async"))
    assert 600 < wgmma < 860
    assert 1.4 < wgmma / mma < 2.6


@pytest.mark.parametrize("gpu", ["a100", "h200", "a10"])
def test_int4_by_lop3(gpu: str):
    """Nibbles turned to halves by lop3 with 16-byte loads: from a few percent to 0.51-0.87 of DRAM (TensorRT-LLM on A100 and H200)."""
    shape = {"M": 1, "N": 8192, "K": 8192, "G": 128}
    naive, tuned = (ms("int4_gemv", gpu, shape, name) for name in ("naive_unpack", "lop3"))
    assert 2 < naive / tuned < 12


def test_multi_block_sampling():
    """One block 737 us, two-phase over many blocks 83 us for one row of 150,000 on 170 multiprocessors."""
    shape = {"B": 1, "V": 150_000}
    one_block, many = (ms("nucleus_sample", "rtx_5090", shape, name) for name in ("radix_pivot", "two_phase"))
    assert one_block / many > 2
    assert 5 < ms("nucleus_sample", "rtx_5090", shape, "bisection") / many < 40


def test_warps_four_to_eight():
    """num_warps 4 -> 8 of a block that owns a row: 306 -> 166 us, 1.84x."""
    shape = {"B": 16, "V": 151_936}
    four, eight = (ms("nucleus_sample", "rtx_5090", shape, "radix_pivot", threads=threads) for threads in (128, 256))
    assert 1.5 < four / eight < 2.1


def test_full_sort_selection_bitonic():
    """201,088 logits, k = 50: passes over the row cost what their number says (1074, 517, 124 us on H200)."""
    shape = {"B": 1, "V": 201_088, "K": 50}
    times = [ms("topk_sample", "h200", shape, variant.name) for variant in OP["topk_sample"].variants]
    assert times == sorted(times, reverse=True)
    assert 5 < times[0] / times[-1] < 60


@pytest.mark.parametrize("gpu", ["h100", "a100", "rtx_5090"])
def test_fused_against_unfused_row_ops(gpu: str):
    """Unfused silu then multiply moves 5 passes for 3, in fp32 scratch 7; qk-norm + rope + append in one kernel is 1.6-2.1x three."""
    shape = {"M": 4096, "N": 14336}
    assert 5 / 3 < ms("swiglu_act", gpu, shape, "two_kernels") / ms("swiglu_act", gpu, shape, OP["swiglu_act"].variants[1].name) < 7
    width, rows = 12288, 512
    row = {"blocks": rows, "threads": 256, "registers": 40, "inflight_per_block": 8192, "leak": 0.35, "chain_ns": 1500}
    fused = Demand(**row, dram_bytes=2 * 2 * rows * width)
    apart = dataclasses.replace(
        fused,
        reread_bytes=2 * 2 * 2 * rows * width,
        footprint_bytes=2 * rows * width,
        launches=3,
        tail_ns=2 * 2 * GPU[gpu].dram_latency_ns + 3000,
    )
    assert 1.3 < priced(gpu, apart) / priced(gpu, fused) < 2.6


def test_ladders_are_monotone_in_every_shape():
    """Within gemm_fp16 on every GPU the engineer's variant beats the newcomer's."""
    for gpu in GPU:
        for shape in OP["gemm_fp16"].shapes:
            assert ms("gemm_fp16", gpu, shape, "mma_cp_async") < ms("gemm_fp16", gpu, shape, "smem_tiles")


def test_rmsnorm_on_5090_follows_the_fitted_line():
    """2.2 us + bytes / (0.86 x bandwidth) reproduces quack's twelve rows; the best variant lies within 15 % of it."""
    for n in (4096, 8192, 16384):
        shape = {"M": 16384 // (n // 4096), "N": n}
        line = 2.2e-3 + OP["rmsnorm"].work(shape).bytes / (0.86 * 1792e9) * 1e3
        best = min(ms("rmsnorm", "rtx_5090", shape, variant.name) for variant in OP["rmsnorm"].variants)
        assert best == pytest.approx(line, rel=0.15)
