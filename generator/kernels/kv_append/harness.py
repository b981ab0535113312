"""How kv_append's kernels are launched, and the slots that expose their faults."""

from collections.abc import Mapping

import numpy as np

from generator.evidence.harness import Case, Launch, Plan
from generator.ops.base import ceil_div
from generator.ops.kv_append import reference

PACKET = 8
"""Halves of a 16-byte access."""


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: three heads of 40 halves, 13 tokens. Adversarial: long rows, pages filled back to front, padding first, last and between."""
    scattered = rng.permutation(5 * 16)[:13]
    backwards = np.arange(4 * 8)[::-1][:19].copy()
    backwards[[0, 7, 8, 18]] = -1
    return (
        _case("ragged", rng, kv_heads=3, dim=40, page=16, pages=5, slots=scattered),
        _case("adversarial", rng, kv_heads=10, dim=128, page=8, pages=4, slots=backwards),
    )


def _case(name: str, rng: np.random.Generator, *, kv_heads: int, dim: int, page: int, pages: int, slots: np.ndarray) -> Case:
    tokens = len(slots)
    k, v = (rng.standard_normal((tokens, kv_heads, dim)).astype(np.float16) for _ in range(2))
    k_cache, v_cache = (rng.standard_normal((pages, page, kv_heads, dim)).astype(np.float16) for _ in range(2))
    slots = slots.astype(np.int64)
    want_k, want_v = reference(k, v, slots, k_cache, v_cache)
    return Case(
        name=name,
        shape={"M": tokens, "KV": kv_heads, "D": dim, "P": page},
        buffers={"k": k, "v": v, "slots": slots, "k_cache": k_cache, "v_cache": v_cache},
        scalars={},
        expected={"k_cache": want_k, "v_cache": want_v},
    )


def plan(variant: str, params: Mapping[str, int], case: Case) -> Plan:
    """One launch; only `scalar` looks at the page size."""
    tokens, kv_heads, dim = case.shape["M"], case.shape["KV"], case.shape["D"]
    args = ("k", "v", "slots", "k_cache", "v_cache", "M", "KV", "D")
    match variant:
        case "scalar":
            blocks, args = ceil_div(tokens * kv_heads, params["threads"]), (*args, "P")
        case "vec16":
            blocks = ceil_div(tokens * kv_heads * dim // PACKET, params["threads"] * params["unroll"])
        case "table_prefetch":
            blocks = ceil_div(tokens, params["threads"] // 32 * params["tokens"])
        case _:
            blocks = ceil_div(tokens, params["tokens"])
    return Plan(launches=(Launch(kernel="kv_append", grid=(int(blocks), 1, 1), block=params["threads"], args=args),))
