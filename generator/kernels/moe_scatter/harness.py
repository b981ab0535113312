"""How moe_scatter's kernels are launched, and the expert choices that expose their faults."""

from collections.abc import Mapping

import numpy as np

from generator.evidence.harness import Case, Launch, Plan
from generator.ops.base import ceil_div
from generator.ops.moe_scatter import reference, routing


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: 45 tokens, 5 experts, 3 each. Adversarial: 70 experts, most of them empty, half of the pairs on the last one."""
    crowded = rng.integers(0, 9, (261, 2)) * 8
    crowded[::2, 1] = 69
    return (
        _case("ragged", rng, topk_ids=rng.integers(0, 5, (45, 3)), experts=5, cols=200),
        _case("adversarial", rng, topk_ids=crowded, experts=70, cols=72),
    )


def _case(name: str, rng: np.random.Generator, *, topk_ids: np.ndarray, experts: int, cols: int) -> Case:
    tokens, chosen = topk_ids.shape
    x = rng.standard_normal((tokens, cols)).astype(np.float16)
    ids = topk_ids.astype(np.int32)
    offsets, row_map = routing(ids, experts)
    return Case(
        name=name,
        shape={"M": tokens, "K": chosen, "E": experts, "N": cols},
        buffers={
            "x": x,
            "topk_ids": ids,
            "y": np.full((tokens * chosen, cols), np.nan, np.float16),
            "offsets": np.full(experts + 1, -9, np.int32),
            "row_map": np.full(tokens * chosen, -9, np.int32),
        },
        scalars={"pairs": tokens * chosen},
        expected={"y": reference(x, ids, experts), "offsets": offsets.astype(np.float64), "row_map": row_map.astype(np.float64)},
    )


def plan(variant: str, params: Mapping[str, int], case: Case) -> Plan:
    """Ranking first, then the rows; `multi_block` keeps its counts in scratch, `vec_gather` the token of each row."""
    pairs, tokens, experts = int(case.scalars["pairs"]), case.shape["M"], case.shape["E"]
    match variant:
        case "atomics":
            threads = params["threads"]
            return Plan(
                launches=(
                    Launch(kernel="count_experts", grid=(1, 1, 1), block=threads, args=("topk_ids", "offsets", "pairs", "E")),
                    Launch(
                        kernel="rank_and_copy",
                        grid=(pairs, 1, 1),
                        block=threads,
                        args=("x", "topk_ids", "offsets", "y", "row_map", "K", "N"),
                    ),
                )
            )
        case "count_prefix":
            warps = params["warps"]
            return Plan(
                launches=(
                    Launch(
                        kernel="rank_pairs",
                        grid=(1, 1, 1),
                        block=warps * 32,
                        args=("topk_ids", "offsets", "row_map", "pairs", "E"),
                        smem=(warps * experts + experts + 1) * 4,
                    ),
                    Launch(
                        kernel="copy_rows",
                        grid=(int(ceil_div(pairs, params["rows"])), 1, 1),
                        block=params["threads"],
                        args=("x", "row_map", "y", "pairs", "K", "N"),
                    ),
                )
            )
        case "vec_gather":
            warps = params["warps"]
            return Plan(
                launches=(
                    Launch(
                        kernel="rank_pairs",
                        grid=(1, 1, 1),
                        block=warps * 32,
                        args=("topk_ids", "offsets", "row_map", "source", "pairs", "E", "K"),
                        smem=(warps * experts + experts + 1) * 4 + pairs * 2,
                    ),
                    Launch(
                        kernel="gather_rows",
                        grid=(int(ceil_div(pairs, params["rows"])), 1, 1),
                        block=params["threads"],
                        args=("x", "source", "y", "pairs", "N"),
                    ),
                ),
                scratch={"source": np.full(pairs, -9, np.int32)},
            )
    chunk = params["chunk"]
    blocks = int(ceil_div(pairs, chunk))
    return Plan(
        launches=(
            Launch(kernel="count_chunks", grid=(blocks, 1, 1), block=chunk, args=("topk_ids", "counts", "pairs", "E"), smem=experts * 4),
            Launch(
                kernel="place_pairs",
                grid=(blocks, 1, 1),
                block=chunk,
                args=("topk_ids", "counts", "offsets", "row_map", "pairs", "E"),
                smem=(chunk // 32 * experts + 2 * experts + 1) * 4,
            ),
            Launch(kernel="copy_tokens", grid=(tokens, 1, 1), block=params["threads"], args=("x", "row_map", "y", "K", "N")),
        ),
        scratch={"counts": np.full((blocks, experts), -9, np.int32)},
    )
