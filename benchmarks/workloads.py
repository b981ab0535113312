"""Inputs of full size for the CUDA ops, to time kernels with: buffers and scalars as the ops' harnesses name them, and no answer.

Values are random and harmless; what decides a time (lengths, page tables, slots, experts) is as in serving: full lengths, pages in random
order, experts evenly loaded.
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from generator.evidence.harness import Case
from generator.ops.base import Shape

Rng = np.random.Generator
Inputs = tuple[dict[str, npt.NDArray[np.generic]], dict[str, int | float]]
POSITIONS: Final = 4096
"""Rows of the cos / sin tables of rope."""


def workload(op: str, shape: Shape) -> Case:
    """A case of the given shape with nothing expected of it."""
    buffers, scalars = WORKLOADS[op](shape, np.random.default_rng(0))
    return Case(name="full", shape=shape, buffers=buffers, scalars=scalars, expected={})


def _halves(rng: Rng, *sizes: int) -> npt.NDArray[np.float16]:
    return rng.standard_normal(sizes, dtype=np.float32).astype(np.float16)


def _floats(rng: Rng, *sizes: int) -> npt.NDArray[np.float32]:
    return rng.random(sizes, dtype=np.float32)


def _empty(*sizes: int) -> npt.NDArray[np.float16]:
    return np.full(sizes, np.nan, np.float16)


def _paged(s: Shape, rng: Rng, kv_heads: int) -> Inputs:
    max_pages = -(-s["T"] // s["P"])
    table = rng.permutation(s["B"] * max_pages).reshape(s["B"], max_pages).astype(np.int32)
    cache = (s["B"] * max_pages, s["P"], kv_heads, s["D"])
    buffers: dict[str, npt.NDArray[np.generic]] = {
        "q": _halves(rng, s["B"], s["H"], s["D"]),
        "k": _halves(rng, *cache),
        "v": _halves(rng, *cache),
        "table": table,
        "lengths": np.full(s["B"], s["T"], np.int32),
        "out": _empty(s["B"], s["H"], s["D"]),
    }
    return buffers, {"max_pages": max_pages, "scale": float(s["D"]) ** -0.5}


def _flash_decode(s: Shape, rng: Rng) -> Inputs:
    return _paged(s, rng, s["H"])


def _swa_decode(s: Shape, rng: Rng) -> Inputs:
    return _paged(s, rng, s["KV"])


def _gemm_fp16(s: Shape, rng: Rng) -> Inputs:
    return {"a": _halves(rng, s["M"], s["K"]), "b": _halves(rng, s["N"], s["K"]), "c": _empty(s["M"], s["N"])}, {}


def _int8_gemm(s: Shape, rng: Rng) -> Inputs:
    a, b = (rng.integers(-128, 128, (rows, s["K"]), dtype=np.int8) for rows in (s["M"], s["N"]))
    scales = {"row_scale": _floats(rng, s["M"]), "col_scale": _floats(rng, s["N"])}
    return {"a": a, "b": b, **scales, "c": _empty(s["M"], s["N"])}, {}


def _fp8_gemm(s: Shape, rng: Rng) -> Inputs:
    a, b = (rng.integers(0, 127, (rows, s["K"]), dtype=np.uint8) for rows in (s["M"], s["N"]))
    blocks = -(-s["K"] // 128)
    return {
        "A": a,
        "sa": _floats(rng, s["M"], blocks),
        "B": b,
        "sb": _floats(rng, -(-s["N"] // 128), blocks),
        "C": _empty(s["M"], s["N"]),
    }, {}


def _int4_gemv(s: Shape, rng: Rng) -> Inputs:
    words = rng.integers(0, 2**32, (s["N"], s["K"] // 8), dtype=np.uint32)
    scale = (0.01 * _floats(rng, s["N"], s["K"] // s["G"])).astype(np.float16)
    return {"w": words, "scale": scale, "x": _halves(rng, s["M"], s["K"]), "y": _empty(s["M"], s["N"])}, {}


def _rmsnorm(s: Shape, rng: Rng) -> Inputs:
    return {"x": _halves(rng, s["M"], s["N"]), "w": _halves(rng, s["N"]), "y": _empty(s["M"], s["N"])}, {"eps": 1e-5}


def _rope(s: Shape, rng: Rng) -> Inputs:
    q, k = (s["M"], s["H"], s["D"]), (s["M"], s["KV"], s["D"])
    tables = {name: _floats(rng, POSITIONS, s["D"] // 2) for name in ("cosine", "sine")}
    positions = (np.arange(s["M"]) % POSITIONS).astype(np.int32)
    outputs = {"q_out": _empty(*q), "k_out": _empty(*k)}
    return {"q": _halves(rng, *q), "k": _halves(rng, *k), "positions": positions, **tables, **outputs}, {"theta": 10000.0}


def _sampling(s: Shape, rng: Rng) -> Inputs:
    logits = rng.standard_normal((s["B"], s["V"]), dtype=np.float32) * 3
    return {"logits": logits, "uniform": _floats(rng, s["B"]), "token": np.full(s["B"], -1, np.int32)}, {"p": 0.9, "inv_temperature": 1.0}


def _mamba_scan(s: Shape, rng: Rng) -> Inputs:
    rows = (s["B"], s["L"], s["D"])
    buffers: dict[str, npt.NDArray[np.generic]] = {name: _halves(rng, *rows) for name in ("u", "delta", "z")}
    buffers |= {name: _halves(rng, s["B"], s["L"], s["N"]) for name in ("Bm", "Cm")}
    return buffers | {
        "A": -_floats(rng, s["D"], s["N"]),
        "skip": _floats(rng, s["D"]),
        "bias": _floats(rng, s["D"]),
        "y": _empty(*rows),
    }, {}


def _moe_scatter(s: Shape, rng: Rng) -> Inputs:
    ids = np.argsort(rng.random((s["M"], s["E"])), axis=1)[:, : s["K"]].astype(np.int32)
    pairs = s["M"] * s["K"]
    outputs: dict[str, npt.NDArray[np.generic]] = {
        "y": _empty(pairs, s["N"]),
        "offsets": np.full(s["E"] + 1, -9, np.int32),
        "row_map": np.full(pairs, -9, np.int32),
    }
    return {"x": _halves(rng, s["M"], s["N"]), "topk_ids": ids, **outputs}, {"pairs": pairs}


def _kv_append(s: Shape, rng: Rng) -> Inputs:
    rows, pages = (s["M"], s["KV"], s["D"]), 2 * -(-s["M"] // s["P"])
    caches = {name: np.zeros((pages, s["P"], s["KV"], s["D"]), np.float16) for name in ("k_cache", "v_cache")}
    slots = rng.permutation(pages * s["P"])[: s["M"]].astype(np.int64)
    return {"k": _halves(rng, *rows), "v": _halves(rng, *rows), "slots": slots, **caches}, {}


def _fused_qkv_rope(s: Shape, rng: Rng) -> Inputs:
    m, k, h, kv, d = (s[axis] for axis in ("M", "K", "H", "KV", "D"))
    tables = {name: _floats(rng, m, d // 2) for name in ("cosine", "sine")}
    outputs = {"q": _empty(m, h, d), "k": _empty(m, kv, d), "v": _empty(m, kv, d)}
    return {"x": _halves(rng, m, k), "w": _halves(rng, (h + 2 * kv) * d, k), **tables, **outputs}, {}


WORKLOADS: Final[Mapping[str, Callable[[Shape, Rng], Inputs]]] = {
    "flash_decode": _flash_decode,
    "swa_decode": _swa_decode,
    "gemm_fp16": _gemm_fp16,
    "int8_gemm": _int8_gemm,
    "fp8_gemm": _fp8_gemm,
    "int4_gemv": _int4_gemv,
    "rmsnorm": _rmsnorm,
    "rope": _rope,
    "topk_sample": _sampling,
    "nucleus_sample": _sampling,
    "mamba_scan": _mamba_scan,
    "moe_scatter": _moe_scatter,
    "kv_append": _kv_append,
    "fused_qkv_rope": _fused_qkv_rope,
}
