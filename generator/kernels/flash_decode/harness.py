"""How flash_decode's kernels are launched, and the sequences that expose their faults."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from generator.evidence.harness import Case, Launch, Plan, Tile
from generator.ops.flash_decode import reference

HEAD_DIM, HEADS = 64, 2


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: lengths that end inside a page and a tile. Adversarial: scores that grow along the sequence, and more splits than tokens."""
    return (
        _case("ragged", (77, 401), 16, 1.0, rng),
        _case("adversarial", (530, 3), 8, 30.0, rng),
    )


def _case(name: str, lengths: tuple[int, ...], page: int, slope: float, rng: np.random.Generator) -> Case:
    """Key `t` is scaled by `1 + slope * t / T`, so the running maximum keeps moving."""
    batch, longest = len(lengths), max(lengths)
    max_pages = -(-longest // page)
    pages = batch * max_pages + 1
    table = rng.permutation(pages)[: batch * max_pages].reshape(batch, max_pages).astype(np.int32)
    growth: npt.NDArray[np.float64] = np.ones((pages, page, 1, 1))
    growth[table] = 1 + slope * np.arange(max_pages * page).reshape(1, max_pages, page, 1, 1) / longest
    q = rng.standard_normal((batch, HEADS, HEAD_DIM)).astype(np.float16)
    k = (rng.standard_normal((pages, page, HEADS, HEAD_DIM)) * growth).astype(np.float16)
    v = rng.standard_normal((pages, page, HEADS, HEAD_DIM)).astype(np.float16)
    scale = HEAD_DIM**-0.5
    return Case(
        name=name,
        shape={"B": batch, "H": HEADS, "D": HEAD_DIM, "T": longest, "P": page},
        buffers={
            "q": q,
            "k": k,
            "v": v,
            "table": table,
            "lengths": np.array(lengths, dtype=np.int32),
            "out": np.full_like(q, np.nan),
        },
        scalars={"max_pages": max_pages, "scale": scale},
        expected={"out": reference(q, k, v, table, np.array(lengths), scale)},
    )


def plan(variant: str, params: Mapping[str, int], case: Case) -> Plan:
    """`single_pass` and `cluster` are one kernel; the others write a partial result per split and merge them with a second kernel."""
    batch, heads, dim = case.shape["B"], case.shape["H"], case.shape["D"]
    if variant == "single_pass":
        threads = params["threads"]
        smem = (2 * dim + 2 * threads) * 4
        args = ("q", "k", "v", "table", "lengths", "out", "H", "D", "P", "max_pages", "scale")
        return Plan(launches=(Launch(kernel="flash_decode", grid=(heads, batch, 1), block=threads, args=args, smem=smem),))
    cache: tuple[str | Tile, ...] = ("k", "v")
    sizes = ("H", "P", "max_pages", "scale")
    threads = params["warps"] * 32
    smem = 0 if variant == "split_kv" else params["stages"] * params["block_n"] * dim * 4
    if variant == "cluster":
        grid = (params["cluster"], heads, batch)
        one = Launch(kernel="flash_decode", grid=grid, block=threads, args=("q", *cache, "table", "lengths", "out", *sizes), smem=smem)
        return Plan(launches=(one,))
    splits = params["splits"]
    if variant == "tma":
        threads += 32
        box = (dim, min(params["block_n"], case.shape["P"]))
        cache = tuple(Tile(buffer=name, box=box, columns=heads * dim, swizzle=False) for name in ("k", "v"))
    split = Launch(
        kernel="flash_decode_split",
        grid=(splits, heads, batch),
        block=threads,
        args=("q", *cache, "table", "lengths", "part", "part_ml", *sizes),
        smem=smem,
    )
    combine = Launch(kernel="flash_decode_combine", grid=(batch * heads, 1, 1), block=dim, args=("part", "part_ml", "out"))
    return Plan(
        launches=(split, combine),
        scratch={
            "part": np.full((batch, heads, splits, dim), np.nan, dtype=np.float32),
            "part_ml": np.full((batch, heads, splits, 2), np.nan, dtype=np.float32),
        },
    )
