"""How gemm_fp16's kernels are launched, and the matrices that expose their faults."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from generator.evidence.harness import Case, Launch, Plan, Tile
from generator.ops.gemm_fp16 import reference

LEAST = 4
"""Slices that `stream_k` finds worth a block."""


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: no size is a multiple of a tile. Adversarial: whole numbers, sums pass fp16's 65504 and cancel in the second half of K.

    Shallow: so few slices that `stream_k` has more tiles than blocks.
    """
    signs = np.where(np.arange(616) < 308, 1.0, -1.0)
    return (
        _case("ragged", rng.standard_normal((150, 408)), rng.standard_normal((138, 408))),
        _case("adversarial", rng.integers(18, 23, (70, 616)).astype(np.float64), signs * rng.integers(18, 23, (40, 616))),
        _case("shallow", rng.standard_normal((70, 40)), rng.standard_normal((460, 40))),
    )


def _case(name: str, a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> Case:
    a16, b16 = a.astype(np.float16), b.astype(np.float16)
    m, n = len(a), len(b)
    return Case(
        name=name,
        shape={"M": m, "N": n, "K": a.shape[1]},
        buffers={"a": a16, "b": b16, "c": np.full((m, n), np.nan, np.float16)},
        scalars={},
        expected={"c": reference(a16, b16)},
    )


def plan(variant: str, params: Mapping[str, int], case: Case) -> Plan:
    """One block per tile of C: a 2-D grid in `smem_tiles`, one walked in bands elsewhere."""
    block_m = 64 * params["consumers"] if variant == "wgmma_tma" else params["block_m"]
    block_n = params["block_n"]
    tiles_m, tiles_n = -(-case.shape["M"] // block_m), -(-case.shape["N"] // block_n)
    sizes = ("M", "N", "K")
    if variant == "smem_tiles":
        threads = block_n * block_m // params["rows"]
        return Plan(launches=(Launch(kernel="gemm_fp16", grid=(tiles_n, tiles_m, 1), block=threads, args=("a", "b", "c", *sizes)),))
    if variant == "wgmma_tma":
        launch = Launch(
            kernel="gemm_fp16",
            grid=(tiles_m * tiles_n, 1, 1),
            block=128 * (params["consumers"] + 1),
            args=(Tile(buffer="a", box=(64, block_m)), Tile(buffer="b", box=(64, block_n)), "c", *sizes),
            smem=params["stages"] * (block_m + block_n) * 128 + 1024,
        )
        return Plan(launches=(launch,))
    if variant == "split_k":
        return _split_plan(params, case, tiles_m * tiles_n)
    if variant == "stream_k":
        return _stream_plan(params, case, tiles_m * tiles_n)
    launch = Launch(
        kernel="gemm_fp16",
        grid=(tiles_m * tiles_n, 1, 1),
        block=32 * params["warps"],
        args=("a", "b", "c", *sizes),
        smem=params["stages"] * (block_m + block_n) * params["block_k"] * 2,
    )
    return Plan(launches=(launch,))


def _split_plan(params: Mapping[str, int], case: Case, tiles: int) -> Plan:
    """One block per tile and part of K, then a thread per pair of columns to add the parts."""
    m, n, splits = case.shape["M"], case.shape["N"], params["splits"]
    return Plan(
        launches=(
            Launch(
                kernel="gemm_fp16_split",
                grid=(tiles, splits, 1),
                block=128,
                args=("a", "b", "partial", "M", "N", "K"),
                smem=params["stages"] * (params["block_m"] + params["block_n"]) * 128,
            ),
            Launch(kernel="gemm_fp16_reduce", grid=(-(-m * n // 512), 1, 1), block=256, args=("partial", "c", "M", "N")),
        ),
        scratch={"partial": np.full((splits, m, n), np.nan, np.float32)},
    )


def _stream_plan(params: Mapping[str, int], case: Case, tiles: int) -> Plan:
    """A fixed grid; scratch for the blocks that these few slices keep busy."""
    tile, slices = params["block_m"] * params["block_n"], tiles * -(-case.shape["K"] // params["block_k"])
    busy = min(params["persistent"], -(-slices // LEAST))
    launch = Launch(
        kernel="gemm_fp16",
        grid=(params["persistent"], 1, 1),
        block=tile // 128,
        args=("a", "b", "c", "partial", "ticket", "M", "N", "K"),
        smem=params["stages"] * (params["block_m"] + params["block_n"]) * params["block_k"] * 2,
    )
    scratch = {"partial": np.full((2 * busy, tile), np.nan, np.float32), "ticket": np.zeros(2 * busy, np.uint32)}
    return Plan(launches=(launch,), scratch=scratch)
