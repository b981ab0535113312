"""fp8_gemm: a product of e4m3 matrices with fine-grained block scales, as in DeepSeek-V3.

Tensor cores decide. The ladder is about not paying for the decoding: to fp32 on CUDA cores, to fp16 for tensor cores that lack fp8, or
not at all, where what remains is the promotion of the sums to fp32 every 128 of K. Boards with fp4 have a yet faster form of mma, which
tempts to round what the op does not round.
"""

import numpy as np
import numpy.typing as npt

from generator.ops.base import Bug, Flaw, Illegal, Op, Params, Shape, Variant, grid, shapes
from generator.ops.fp8_gemm_demand import (
    demand_dequant_mma,
    demand_dequant_tiles,
    demand_fp4_shortcut,
    demand_mma_e4m3,
    demand_mxfp8,
    demand_wgmma_e4m3,
    work,
)

AXES = ("M", "N", "K")


def constants(s: Shape) -> dict[str, int]:
    return {}


def decode(bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """e4m3 to float64: bias 7, subnormals in steps of 2^-9, no infinity; 0x7f and 0xff are NaN."""
    exponent, mantissa = (bits >> 3 & 15).astype(np.float64), (bits & 7).astype(np.float64)
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    return np.where(bits & 127 == 127, np.nan, np.where(bits & 128, -size, size))


def reference(
    a: npt.NDArray[np.uint8], sa: npt.NDArray[np.float32], b: npt.NDArray[np.uint8], sb: npt.NDArray[np.float32]
) -> npt.NDArray[np.float64]:
    """`(a * sa) @ (b * sb).T`, float64 `[M, N]`.

    a is e4m3 `[M, K]`, sa `[M, K / 128]` scales 128 neighbours of a row; b is `[N, K]`, sb `[ceil(N / 128), K / 128]` scales squares.
    """
    left = decode(a) * np.repeat(sa.astype(np.float64), 128, axis=1)
    right = decode(b) * np.repeat(np.repeat(sb.astype(np.float64), 128, axis=0)[: len(b)], 128, axis=1)
    out: npt.NDArray[np.float64] = left @ right.T
    return out


def _points(*rows: tuple[int, int, int, int, int, int]) -> tuple[Params, ...]:
    """Points of `dequant_mma`: block_m, block_n, block_k, stages, warps, splits."""
    return tuple(dict(zip(("block_m", "block_n", "block_k", "stages", "warps", "splits"), row, strict=True)) for row in rows)


DEQUANT_TILES = Variant(
    name="dequant_tiles",
    idea="decode to fp32 in shared memory, CUDA cores",
    points=grid(
        lambda p: p["block_m"] <= 2 * p["block_n"] and p["block_n"] <= 2 * p["block_m"],
        block_m=(32, 64, 128),
        block_n=(32, 64, 128),
        block_k=(16, 32),
    ),
    start={"block_m": 64, "block_n": 64, "block_k": 32},
    demand=demand_dequant_tiles,
    illegal=(
        Illegal(params={"block_m": 40, "block_n": 64, "block_k": 16}, rule="BLOCK_M and BLOCK_N must be multiples of 16"),
        Illegal(params={"block_m": 256, "block_n": 128, "block_k": 16}, rule="more than 64 outputs per thread spill"),
        Illegal(params={"block_m": 64, "block_n": 64, "block_k": 48}, rule="BLOCK_K must divide 128: a tile has one scale per row"),
        Illegal(params={"block_m": 128, "block_n": 128, "block_k": 64}, rule="tiles exceed 48 KB of static shared memory"),
    ),
    bugs=(
        Bug(
            name="exponent_bias",
            old="* 0x1p120f",
            new="* 0x1p119f",
            slip="bias difference is taken as 119; 127 - 7 is 120",
            symptom="all outputs are a quarter of the reference",
        ),
        Bug(
            name="scale_of_a",
            old="load_tile<1>(tile_a, A, sa,",
            new="load_tile<SCALE_BLOCK>(tile_a, A, sa,",
            slip="sa is indexed per 128 rows like sb; it has one scale per row and 128 of K",
            symptom="all rows but every 128th differ",
        ),
        Bug(
            name="missing_barrier",
            old="        for (int j = 0; j < TN; ++j) acc[i][j] += a[i] * b[j];\n    }\n    __syncthreads();",
            new="        for (int j = 0; j < TN; ++j) acc[i][j] += a[i] * b[j];\n    }",
            slip="no barrier between the last use of a tile and the next load",
            symptom="race between threads still multiplying and threads loading",
        ),
    ),
)

DEQUANT_MMA = Variant(
    name="dequant_mma",
    idea="decode to fp16 by bit moves, mma.sync, cp.async",
    parent="dequant_tiles",
    points=_points(
        (32, 64, 64, 2, 4, 1),
        (32, 64, 64, 3, 4, 1),
        (32, 64, 64, 3, 4, 4),
        (64, 64, 32, 4, 4, 1),
        (64, 64, 64, 2, 4, 1),
        (64, 64, 64, 3, 4, 1),
        (64, 64, 64, 3, 4, 4),
        (64, 128, 64, 2, 8, 1),
        (64, 128, 64, 3, 8, 1),
        (64, 128, 64, 3, 8, 2),
        (64, 128, 64, 3, 8, 4),
        (128, 128, 32, 4, 8, 1),
        (128, 128, 64, 2, 8, 1),
        (128, 128, 64, 3, 8, 1),
        (128, 128, 64, 3, 8, 3),
        (128, 128, 64, 3, 8, 4),
    ),
    start={"block_m": 64, "block_n": 64, "block_k": 64, "stages": 2, "warps": 4, "splits": 1},
    demand=demand_dequant_mma,
    illegal=(
        Illegal(
            params={"block_m": 48, "block_n": 64, "block_k": 64, "stages": 2, "warps": 4, "splits": 1},
            rule="a warp tile must be a multiple of 16 x 16",
        ),
        Illegal(
            params={"block_m": 128, "block_n": 128, "block_k": 64, "stages": 2, "warps": 4, "splits": 1},
            rule="more than 64 accumulators, which are kept twice, spill",
        ),
        Illegal(
            params={"block_m": 64, "block_n": 64, "block_k": 256, "stages": 2, "warps": 4, "splits": 1},
            rule="BLOCK_K must be 32, 64 or 128: it divides a scale block",
        ),
        Illegal(
            params={"block_m": 32, "block_n": 256, "block_k": 64, "stages": 2, "warps": 8, "splits": 1},
            rule="BLOCK_N must divide 128: a block has one scale of B at a time",
        ),
        Illegal(
            params={"block_m": 64, "block_n": 64, "block_k": 64, "stages": 1, "warps": 4, "splits": 1},
            rule="STAGES must be at least 2: one in flight, one in use",
        ),
        Illegal(
            params={"block_m": 64, "block_n": 64, "block_k": 64, "stages": 2, "warps": 4, "splits": 32},
            rule="SPLITS must be 1 to 16",
        ),
    ),
    bugs=(
        Bug(
            name="sign_left_in",
            old="(word >> 1 & 0x3f803f80u)",
            new="(word >> 1 & 0x7f807f80u)",
            slip="mask keeps bit 14, where the shifted sign lands",
            symptom="negative values blow up by 2^16 or turn NaN",
        ),
        Bug(
            name="accumulator_kept",
            old="acc[i][j][e] = 0.0f;",
            new="",
            slip="the partial sums are not cleared after promotion and count again under later scales",
            symptom="outputs grow with K",
        ),
        Bug(
            name="missing_barrier",
            old="= decode8(bytes.z, bytes.w);\n    }\n    __syncthreads();",
            new="= decode8(bytes.z, bytes.w);\n    }",
            slip="no barrier between decoding the tile and ldmatrix by other warps",
            symptom="race on the fp16 tile",
        ),
    ),
)

MMA_E4M3 = Variant(
    name="mma_e4m3",
    idea="mma.sync on e4m3 bytes, promotion every 128",
    parent="dequant_mma",
    needs=frozenset({"fp8"}),
    points=grid(
        lambda p: (
            (p["block_m"], p["block_n"], p["warps"]) in ((32, 64, 4), (64, 64, 4), (64, 128, 8), (128, 128, 8))
            and (p["block_k"], p["stages"]) in ((64, 3), (64, 4), (128, 2), (128, 3))
        ),
        block_m=(32, 64, 128),
        block_n=(64, 128),
        block_k=(64, 128),
        stages=(2, 3, 4),
        warps=(4, 8),
    ),
    start={"block_m": 64, "block_n": 64, "block_k": 64, "stages": 3, "warps": 4},
    demand=demand_mma_e4m3,
    illegal=(
        Illegal(
            params={"block_m": 48, "block_n": 64, "block_k": 64, "stages": 3, "warps": 4}, rule="a warp tile must be a multiple of 16 x 16"
        ),
        Illegal(
            params={"block_m": 128, "block_n": 128, "block_k": 64, "stages": 3, "warps": 4},
            rule="more than 64 accumulators, which are kept twice, spill",
        ),
        Illegal(
            params={"block_m": 64, "block_n": 64, "block_k": 32, "stages": 3, "warps": 4},
            rule="BLOCK_K must be 64 or 128: it divides a scale block",
        ),
        Illegal(
            params={"block_m": 64, "block_n": 64, "block_k": 64, "stages": 1, "warps": 4},
            rule="STAGES must be at least 2: one in flight, one in use",
        ),
    ),
    bugs=(
        Bug(
            name="wait_too_late",
            old="cp_async_wait<STAGES - 2>();",
            new="cp_async_wait<STAGES - 1>();",
            slip="wait_group allows one group too many, the tile in use may still be in flight",
            symptom="garbage from tiles that have not landed",
        ),
        Bug(
            name="row_of_scale",
            old="scale[i][e / 2];",
            new="scale[i][e % 2];",
            slip="accumulators 0 and 1 belong to the upper row, 2 and 3 to the lower; the scale alternates instead",
            symptom="half of all outputs use the scale of a row eight away",
        ),
    ),
)

_TILES = tuple(
    {"block_m": bm, "block_n": bn, "stages": stages, "warps": warps}
    for bm, bn, stages, warps in (
        *((32, 64, 3, 4), (32, 64, 4, 4)),
        *((64, 64, 2, 4), (64, 64, 3, 4), (64, 64, 4, 4)),
        *((64, 128, 2, 4), (64, 128, 3, 4)),
        *((64, 128, 2, 8), (64, 128, 3, 8), (64, 128, 4, 8)),
        *((128, 128, 2, 8), (128, 128, 3, 8)),
    )
)
"""Points of the kernels whose tiles are one scale block deep."""

MXFP8 = Variant(
    name="mxfp8",
    idea="block-scaled mma at full rate, promotion every 128",
    parent="mma_e4m3",
    needs=frozenset({"fp4"}),
    points=_TILES,
    start={"block_m": 64, "block_n": 64, "stages": 3, "warps": 4},
    demand=demand_mxfp8,
    illegal=(
        Illegal(params={"block_m": 48, "block_n": 64, "stages": 3, "warps": 4}, rule="a warp tile must be a multiple of 16 x 16"),
        Illegal(params={"block_m": 128, "block_n": 128, "stages": 2, "warps": 4}, rule="more than 64 sums, or 64 columns of B, spill"),
        Illegal(
            params={"block_m": 32, "block_n": 96, "stages": 3, "warps": 4},
            rule="BLOCK_N must divide 128: a block has one scale of B at a time",
        ),
        Illegal(
            params={"block_m": 64, "block_n": 64, "stages": 1, "warps": 4}, rule="STAGES must be at least 2: one in flight, one in use"
        ),
    ),
    bugs=(
        Bug(
            name="scale_bias",
            old="UE8M0_ONE = 127;",
            new="UE8M0_ONE = 128;",
            slip="ue8m0 has bias 127; 128 stands for 2, and it is applied to A and to B",
            symptom="all outputs are four times the reference",
        ),
        Bug(
            name="chunk_of_k",
            old="swizzle(warp_m + i * 16 + lane % 16, kk * 2 + lane / 16)",
            new="swizzle(warp_m + i * 16 + lane % 16, kk + lane / 16 * 4)",
            slip="lanes 16 to 31 address k + 64; the upper half of a fragment of 32 bytes begins at k + 16",
            symptom="outputs mix products of different k",
        ),
        Bug(
            name="missing_barrier",
            old="cp_async_wait<STAGES - 2>();\n    __syncthreads();",
            new="cp_async_wait<STAGES - 2>();",
            slip="cp.async.wait_group covers a thread's own copies; there is no barrier before other warps read the tile",
            symptom="race between copies into a tile and ldmatrix from it",
        ),
    ),
)

FP4_SHORTCUT = Variant(
    name="fp4_shortcut",
    idea="operands rounded to MXFP4, fp4 mma",
    parent="mxfp8",
    needs=frozenset({"fp4"}),
    points=(
        {"block_m": 32, "block_n": 64, "stages": 2, "warps": 4},
        *(p for p in _TILES if p["stages"] < 4 and (p["block_m"] < 128 or p["stages"] == 2)),
    ),
    start={"block_m": 64, "block_n": 64, "stages": 2, "warps": 4},
    demand=demand_fp4_shortcut,
    illegal=(
        Illegal(params={"block_m": 48, "block_n": 64, "stages": 2, "warps": 4}, rule="a warp tile must be a multiple of 16 x 16"),
        Illegal(
            params={"block_m": 128, "block_n": 128, "stages": 2, "warps": 4},
            rule="more than 64 accumulators, which are kept twice, spill",
        ),
        Illegal(
            params={"block_m": 64, "block_n": 64, "stages": 1, "warps": 4}, rule="STAGES must be at least 2: one in flight, one in use"
        ),
    ),
    flaw=Flaw(
        slip="A and B are rounded to e2m1; the op multiplies e4m3 as they are, no value may lose mantissa bits",
        symptom="outputs off by several percent everywhere, more where products cancel",
    ),
)

WGMMA_E4M3 = Variant(
    name="wgmma_e4m3",
    idea="TMA and wgmma e4m3, promotion every 128",
    parent="mma_e4m3",
    needs=frozenset({"wgmma", "tma", "fp8"}),
    points=grid(consumers=(1, 2), block_n=(64, 128), stages=(3, 4, 6)),
    start={"consumers": 1, "block_n": 64, "stages": 4},
    demand=demand_wgmma_e4m3,
    illegal=(
        Illegal(
            params={"consumers": 3, "block_n": 64, "stages": 4},
            rule="CONSUMERS must be 1 or 2: more would need fewer than 232 registers each",
        ),
        Illegal(params={"consumers": 1, "block_n": 96, "stages": 4}, rule="BLOCK_N must be 64 or 128: one wgmma, one scale of B"),
        Illegal(params={"consumers": 1, "block_n": 64, "stages": 1}, rule="STAGES must be at least 2: one in flight, one in use"),
        Illegal(params={"consumers": 2, "block_n": 128, "stages": 8}, rule="stages exceed 227 KB of shared memory"),
    ),
    bugs=(
        Bug(
            name="no_promotion",
            old="wgmma(acc, smem_desc(a + kk * 32), smem_desc(b + kk * 32), kk > 0);",
            new="wgmma(acc, smem_desc(a + kk * 32), smem_desc(b + kk * 32), step + kk > 0);",
            slip="wgmma keeps accumulating across scale blocks, earlier blocks are added again under later scales",
            symptom="outputs grow with K",
        ),
        Bug(
            name="scale_rows_swapped",
            old="(i % 4 < 2 ? upper : lower)",
            new="(i % 2 < 1 ? upper : lower)",
            slip="rows alternate every two accumulators, not every one",
            symptom="odd columns of the upper rows use the scale of row + 8",
        ),
        Bug(
            name="phase_not_flipped",
            old="mbar_wait(&full[s], step / STAGES & 1);",
            new="mbar_wait(&full[s], 0);",
            slip="consumers wait for phase 0 in every round and run ahead of TMA from the second on",
            symptom="stale tiles once K is longer than the ring",
        ),
    ),
)

OP = Op(
    name="fp8_gemm",
    impl="cuda",
    dtype="fp8",
    axes=AXES,
    summary="C[m, n] = sum over k of A[m, k] sa[m, k / 128] B[n, k] sb[n / 128, k / 128]; A e4m3 [M, K], sa fp32 [M, K / 128], "
    "B e4m3 [N, K], sb fp32 [ceil(N / 128), K / 128], C fp16 [M, N], all row-major; sums in fp32, promoted at least every 128 of K.",
    shapes=shapes(AXES, (4096, 7168, 16384), (64, 24576, 1536), (128, 4096, 7168)),
    heldout={"M": 4096, "N": 2112, "K": 7168},
    work=work,
    constants=constants,
    reference=reference,
    tolerance=1e-2,
    variants=(DEQUANT_TILES, DEQUANT_MMA, MMA_E4M3, MXFP8, FP4_SHORTCUT, WGMMA_E4M3),
)
