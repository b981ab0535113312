"""How rope's kernels are launched, and the positions that expose their faults."""

from collections.abc import Mapping

import numpy as np

from generator.evidence.harness import Case, Launch, Plan
from generator.ops.base import ceil_div
from generator.ops.rope import THETA, angles, reference

TABLE = 4096
"""Rows of the cosine and sine tables."""


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: 5 + 2 heads of 48 halves, positions out of order. Adversarial: large values, far positions, one of them twice."""
    far = np.array([4095, 2049, 0, 3001, 1, 4095, 2047])
    return (
        _case("ragged", rng, heads=5, kv_heads=2, dim=48, positions=rng.permutation(40)[:9], scale=1.0),
        _case("adversarial", rng, heads=12, kv_heads=3, dim=64, positions=far, scale=3.0),
    )


def _case(name: str, rng: np.random.Generator, *, heads: int, kv_heads: int, dim: int, positions: np.ndarray, scale: float) -> Case:
    tokens = len(positions)
    q, k = ((scale * rng.standard_normal((tokens, h, dim))).astype(np.float16) for h in (heads, kv_heads))
    positions = positions.astype(np.int32)
    table = angles(np.arange(TABLE), dim)
    want = reference(q, k, positions)
    return Case(
        name=name,
        shape={"M": tokens, "H": heads, "KV": kv_heads, "D": dim},
        buffers={
            "q": q,
            "k": k,
            "positions": positions,
            "cosine": np.cos(table).astype(np.float32),
            "sine": np.sin(table).astype(np.float32),
            "q_out": np.full_like(q, np.nan),
            "k_out": np.full_like(k, np.nan),
        },
        scalars={"theta": THETA},
        expected={"q_out": want[:, :heads], "k_out": want[:, heads:]},
    )


def plan(variant: str, params: Mapping[str, int], case: Case) -> Plan:
    """`per_head` is launched for q and for k; the others once, over the heads of both."""
    tokens, heads, kv_heads, dim = (case.shape[a] for a in ("M", "H", "KV", "D"))
    threads = params["threads"]
    if variant == "per_head":
        sides = (("q", "q_out", "H", heads), ("k", "k_out", "KV", kv_heads))
        return Plan(
            launches=tuple(
                Launch(
                    kernel="rope_per_head",
                    grid=(int(ceil_div(tokens * count * dim // 2, threads * params["items"])), 1, 1),
                    block=threads,
                    args=(x, "positions", y, "M", axis, "D", "theta"),
                )
                for x, y, axis, count in sides
            )
        )
    args = ("q", "k", "positions", "cosine", "sine", "q_out", "k_out", "M", "H", "KV", "D")
    if variant in ("fused_vec", "half2_pairs"):
        groups = int(ceil_div(heads + kv_heads, params["heads"]))
        blocks = ceil_div(tokens * groups * (dim // 2 // params["vec"]), threads)
        if variant == "half2_pairs":
            args = ("q", "k", "positions", "q_out", "k_out", "M", "H", "KV", "D", "theta")
        return Plan(launches=(Launch(kernel=f"rope_{variant}", grid=(int(blocks), 1, 1), block=threads, args=args),))
    tables = params["tokens"] * dim * 4
    blocks = ceil_div(tokens, params["tokens"])
    return Plan(launches=(Launch(kernel="rope_token_rows", grid=(int(blocks), 1, 1), block=threads, args=args, smem=tables),))
