"""How fused_qkv_rope's kernels are launched, and the head layouts that expose their faults."""

from collections.abc import Mapping

import numpy as np

from generator.evidence.harness import Case, Launch, Plan, Tile
from generator.ops.fused_qkv_rope import reference

SIDE_THREADS = 256
WGMMA_K = 64
"""Halves of k per TMA stage: one swizzle row."""
TAIL = ("cosine", "sine", "q", "k", "v", "M", "H", "KV", "K")
"""What the one-kernel variants take after x and w."""


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: rows, depth and head count fill no tile. Adversarial: more than one k head, angles of far positions, one row alone."""
    return (
        _case("ragged", rng, m=37, k=328, h=3, kv=1, first=0),
        _case("adversarial", rng, m=3, k=72, h=2, kv=2, first=100_000),
    )


def _case(name: str, rng: np.random.Generator, *, m: int, k: int, h: int, kv: int, first: int, d: int = 128) -> Case:
    x = rng.standard_normal((m, k)).astype(np.float16)
    w = (rng.standard_normal(((h + 2 * kv) * d, k)) / np.sqrt(k)).astype(np.float16)
    angle = (first + np.arange(m))[:, None] * 10000.0 ** (-2.0 * np.arange(d // 2) / d)
    cosine, sine = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    expected = reference(x, w, cosine, sine, h, kv).reshape(m, h + 2 * kv, d)
    return Case(
        name=name,
        shape={"M": m, "K": k, "H": h, "KV": kv, "D": d},
        buffers={
            "x": x,
            "w": w,
            "cosine": cosine,
            "sine": sine,
            "q": np.full((m, h, d), np.nan, np.float16),
            "k": np.full((m, kv, d), np.nan, np.float16),
            "v": np.full((m, kv, d), np.nan, np.float16),
        },
        scalars={},
        expected={"q": expected[:, :h], "k": expected[:, h : h + kv], "v": expected[:, h + kv :]},
    )


def plan(variant: str, params: Mapping[str, int], case: Case) -> Plan:
    """Column tiles along x, row tiles along y; then the kernels over the scratch matrix, where there is one."""
    m, h, kv, d = (case.shape[axis] for axis in ("M", "H", "KV", "D"))
    n = (h + 2 * kv) * d
    if variant == "wgmma":
        block_m, block_n = 64 * params["consumers"], params["heads"] * d
        launch = Launch(
            kernel="qkv_rope",
            grid=(-(-n // block_n), -(-m // block_m), 1),
            block=128 * (params["consumers"] + 1),
            args=(Tile(buffer="x", box=(WGMMA_K, block_m)), Tile(buffer="w", box=(WGMMA_K, block_n)), *TAIL),
            smem=params["stages"] * (block_m + block_n) * WGMMA_K * 2 + 1024,
        )
        return Plan(launches=(launch,))

    rows = -(-m // params["block_m"])
    if variant == "epilogue":
        grid = (-(-(h + 2 * kv) // params["heads"]), rows, 1)
        smem = params["stages"] * (params["block_m"] + params["heads"] * d) * params["block_k"] * 2
        return Plan(launches=(Launch(kernel="qkv_rope", grid=grid, block=32 * params["warps"], args=("x", "w", *TAIL), smem=smem),))

    product = ("x", "w", "qkv", "M", n, "K")
    grid = (-(-n // params["block_n"]), rows, 1)
    scratch = {"qkv": np.full((m, n), np.nan, np.float16)}
    if variant == "gemm_rope":
        smem = params["stages"] * (params["block_m"] + params["block_n"]) * params["block_k"] * 2
        return Plan(
            launches=(
                Launch(kernel="qkv_gemm", grid=grid, block=32 * params["warps"], args=product, smem=smem),
                _side("rope_split", m * n // 16, ("qkv", "cosine", "sine", "q", "k", "v", "M", "H", "KV", "D")),
            ),
            scratch=scratch,
        )
    return Plan(
        launches=(
            Launch(kernel="qkv_gemm", grid=grid, block=SIDE_THREADS, args=product),
            _side("rope", m * (h + kv) * d // 2, ("qkv", "cosine", "sine", "M", "H", "KV", "D")),
            _side("split", m * n, ("qkv", "q", "k", "v", "M", "H", "KV", "D")),
        ),
        scratch=scratch,
    )


def _side(kernel: str, threads: int, args: tuple[str, ...]) -> Launch:
    """One of the element-wise kernels."""
    return Launch(kernel=kernel, grid=(-(-threads // SIDE_THREADS), 1, 1), block=SIDE_THREADS, args=args)
