"""How swa_decode's kernels are launched, and the windows that expose their faults."""

from collections.abc import Mapping

import numpy as np

from generator.evidence.harness import Case, Launch, Plan
from generator.ops.swa_decode import reference


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: windows that start and end inside a page, a group of five heads. Adversarial: what lies before the window scores highest, a
    sequence ends exactly at the window, another is shorter than any split."""
    return (
        _case("ragged", lengths=(205, 83), dim=64, heads=10, kv_heads=2, page=16, window=77, before=1.0, rng=rng),
        _case("adversarial", lengths=(150, 100, 3), dim=128, heads=2, kv_heads=1, page=8, window=100, before=20.0, rng=rng),
    )


def _case(
    name: str,
    *,
    lengths: tuple[int, ...],
    dim: int,
    heads: int,
    kv_heads: int,
    page: int,
    window: int,
    before: float,
    rng: np.random.Generator,
) -> Case:
    """Keys before the window are scaled by `before`."""
    batch, longest = len(lengths), max(lengths)
    max_pages = -(-longest // page)
    pages = batch * max_pages + 1
    table = rng.permutation(pages)[: batch * max_pages].reshape(batch, max_pages).astype(np.int32)
    q = rng.standard_normal((batch, heads, dim)).astype(np.float16)
    keys = rng.standard_normal((pages, page, kv_heads, dim))
    token = np.arange(max_pages * page).reshape(1, max_pages, page, 1, 1)
    first = np.array(lengths).reshape(batch, 1, 1, 1, 1) - window
    keys[table] *= np.where(token < first, before, 1.0)
    k, v = keys.astype(np.float16), rng.standard_normal(keys.shape).astype(np.float16)
    scale = dim**-0.5
    return Case(
        name=name,
        shape={"B": batch, "H": heads, "KV": kv_heads, "D": dim, "T": longest, "W": window, "P": page},
        buffers={
            "q": q,
            "k": k,
            "v": v,
            "table": table,
            "lengths": np.array(lengths, dtype=np.int32),
            "out": np.full_like(q, np.nan),
        },
        scalars={"max_pages": max_pages, "scale": scale},
        expected={"out": reference(q, k, v, table, np.array(lengths), window, scale)},
    )


def plan(variant: str, params: Mapping[str, int], case: Case) -> Plan:
    """`split_window` writes a partial result per slice and merges them with a second kernel; the others are one kernel."""
    batch, heads, kv_heads, dim = (case.shape[a] for a in ("B", "H", "KV", "D"))
    group = heads // kv_heads
    inputs, sizes = ("q", "k", "v", "table", "lengths"), ("H", "KV", "D", "P", "max_pages", "W", "scale")
    if variant == "mask_only":
        halves = params["block_n"] * (dim + 8) + group * dim
        smem = halves * 2 + group * (dim + params["block_n"] + 3) * 4
        one = Launch(kernel="swa_decode", grid=(kv_heads, batch, 1), block=params["threads"], args=(*inputs, "out", *sizes), smem=smem)
        return Plan(launches=(one,))
    blocks, threads = kv_heads * -(-group // params["heads"]), params["warps"] * 32
    if variant != "split_window":
        smem = params["stages"] * case.shape["P"] * dim * 4 if variant == "ring_pages" else 0
        one = Launch(kernel="swa_decode", grid=(blocks, batch, 1), block=threads, args=(*inputs, "out", *sizes), smem=smem)
        return Plan(launches=(one,))
    splits = params["splits"]
    split = Launch(kernel="swa_decode_split", grid=(blocks, batch, splits), block=threads, args=(*inputs, "part", "part_ml", *sizes))
    combine = Launch(kernel="swa_decode_combine", grid=(batch * heads, 1, 1), block=dim, args=("part", "part_ml", "out", "D"))
    return Plan(
        launches=(split, combine),
        scratch={
            "part": np.full((batch, heads, splits, dim), np.nan, dtype=np.float32),
            "part_ml": np.full((batch, heads, splits, 2), np.nan, dtype=np.float32),
        },
    )
