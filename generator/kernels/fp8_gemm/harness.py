"""How fp8_gemm's kernels are launched, and the bytes and scales that expose their faults."""

from collections.abc import Mapping

import numpy as np

from generator.evidence.harness import Case, Launch, Plan, Tile
from generator.ops.fp8_gemm import reference

SCALE_BLOCK = 128
WGMMA_K = 128
"""Bytes of k per TMA stage: one swizzle row."""
MX_BLOCK = 32
"""Values that share a scale in MXFP4."""
TILE_THREADS = 256


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: M and N fill no tile, the second scale block of B is a sliver. Adversarial: subnormals, extremes, scales that jump."""
    return (
        _case("ragged", rng, m=70, n=138, k=1024, spread=1.5),
        _case("adversarial", rng, m=9, n=132, k=256, spread=4.0),
    )


def _case(name: str, rng: np.random.Generator, *, m: int, n: int, k: int, spread: float) -> Case:
    a, b = _bytes(rng, (m, k), extremes=spread > 2), _bytes(rng, (n, k), extremes=spread > 2)
    sa = (0.002 * spread ** rng.integers(-1, 2, (m, k // SCALE_BLOCK))).astype(np.float32)
    sb = (0.002 * spread ** rng.integers(-1, 2, (-(-n // SCALE_BLOCK), k // SCALE_BLOCK))).astype(np.float32)
    return Case(
        name=name,
        shape={"M": m, "N": n, "K": k},
        buffers={"A": a, "sa": sa, "B": b, "sb": sb, "C": np.full((m, n), np.nan, np.float16)},
        scalars={},
        expected={"C": reference(a, sa, b, sb)},
    )


def _bytes(rng: np.random.Generator, shape: tuple[int, int], *, extremes: bool) -> np.ndarray:
    """Random e4m3 values, no NaN: any finite bits, or half of them the greatest (448) and the least subnormals."""
    values = rng.integers(0, 127, shape) | rng.integers(0, 2, shape) << 7
    if extremes:
        values = np.where(rng.random(shape) < 0.5, rng.choice(np.array([0x7E, 0xFE, 0x01, 0x87, 0x00]), shape), values)
    return values.astype(np.uint8)


def plan(variant: str, params: Mapping[str, int], case: Case) -> Plan:
    """One block per tile of C, columns along x; `dequant_mma` may split K along z and add up the partials."""
    m, n = case.shape["M"], case.shape["N"]
    block_n, args = params["block_n"], ("A", "sa", "B", "sb", "C", "M", "N", "K")
    if variant == "wgmma_e4m3":
        block_m = 64 * params["consumers"]
        launch = Launch(
            kernel="fp8_gemm",
            grid=(-(-n // block_n), -(-m // block_m), 1),
            block=128 * (params["consumers"] + 1),
            args=(Tile(buffer="A", box=(WGMMA_K, block_m)), "sa", Tile(buffer="B", box=(WGMMA_K, block_n)), "sb", "C", "M", "N", "K"),
            smem=params["stages"] * (block_m + block_n) * WGMMA_K + 1024,
        )
        return Plan(launches=(launch,))

    tiles = (-(-n // block_n), -(-m // params["block_m"]))
    if variant == "dequant_tiles":
        return Plan(launches=(Launch(kernel="fp8_gemm", grid=(*tiles, 1), block=TILE_THREADS, args=args),))
    rows, block = params["block_m"] + block_n, 32 * params["warps"]
    stage = rows * params.get("block_k", SCALE_BLOCK)
    if variant != "dequant_mma":
        rounded = rows * (SCALE_BLOCK // 2 + SCALE_BLOCK // MX_BLOCK) if variant == "fp4_shortcut" else 0
        smem = params["stages"] * stage + rounded
        return Plan(launches=(Launch(kernel="fp8_gemm", grid=(*tiles, 1), block=block, args=args, smem=smem),))
    splits = params["splits"]
    product = Launch(
        kernel="fp8_gemm",
        grid=(*tiles, splits),
        block=block,
        args=("A", "sa", "B", "sb", "C", "partial", "M", "N", "K"),
        smem=(params["stages"] + 2) * stage,
    )
    reduce = Launch(kernel="reduce", grid=(-(-m * n // TILE_THREADS), 1, 1), block=TILE_THREADS, args=("partial", "C", "M", "N"))
    return Plan(
        launches=(product, reduce) if splits > 1 else (product,),
        scratch={"partial": np.full((splits, m, n), np.nan, np.float32)},
    )
