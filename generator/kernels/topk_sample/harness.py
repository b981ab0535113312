"""How topk_sample's kernels are launched, and the rows that expose their faults."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from generator.evidence.harness import Buffers, Case, Launch, Plan
from generator.ops.topk_sample import reference

INV_TEMPERATURE = 1.25
MERGERS = 1024
"""Threads of `split_select`'s second kernel, as in its source."""
KEEP = 64
"""Logits of a list of `block_heaps`, as in its source."""


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: a row no tile divides, all logits negative. Adversarial: plateaus wider than k, one of both zeros, near-flat rows, end draws."""
    ragged = rng.standard_normal((3, 3004)) * 3 - 40
    ties = np.round(rng.standard_normal((6, 9004)) * 4) / 4
    ties[1] = -2.5
    ties[2, ::7] = 6.0
    ties[5] = np.where(np.arange(9004) % 2048 == 5, 9.5, 9.25)
    ties[3] = rng.standard_normal(9004) * 0.01 + 1
    ties[4] = np.where(np.arange(9004) < 4502, 0.0, -0.0)
    return (
        _case("ragged", ragged, np.array([0.05, 0.5, 0.97]), 37),
        _case("adversarial", ties, np.array([0.31, 0.83, 0.96, 0.0, 0.9999, 0.42]), 3),
    )


def _case(name: str, values: npt.NDArray[np.float64], uniform: npt.NDArray[np.float64], k: int) -> Case:
    logits, draws = values.astype(np.float32), uniform.astype(np.float32)

    def error(buffers: Buffers) -> float:
        return max(_miss(int(token), row, float(u), k) for token, row, u in zip(buffers["token"], logits, draws, strict=True))

    return Case(
        name=name,
        shape={"B": logits.shape[0], "V": logits.shape[1], "K": k},
        buffers={"logits": logits, "uniform": draws, "token": np.full(logits.shape[0], -1, np.int32)},
        scalars={"inv_temperature": INV_TEMPERATURE},
        expected={"token": reference(logits, draws, k, INV_TEMPERATURE)},
        error=error,
    )


def _miss(token: int, row: npt.NDArray[np.float32], u: float, k: int) -> float:
    """Distance of `u` from the token's interval of the cumulative distribution; inf for a token that is not kept."""
    values = row.astype(np.float64)
    kept = values >= np.sort(values)[-k]
    if not (0 <= token < values.size and kept[token]):
        return float("inf")
    weight = np.where(kept, np.exp((values - values.max()) * INV_TEMPERATURE), 0.0)
    upper = np.cumsum(weight) / weight.sum()
    return float(max(upper[token] - weight[token] / weight.sum() - u, u - upper[token], 0.0))


def plan(variant: str, params: Mapping[str, int], case: Case) -> Plan:
    """One block per row, `splits` of them for `block_heaps`; `split_select` first lists candidates with one block per chunk."""
    rows, vocab = case.shape["B"], case.shape["V"]
    threads = params["threads"]
    if variant == "block_heaps":
        return Plan(
            launches=(
                Launch(
                    kernel="topk_sample",
                    grid=(params["splits"], rows, 1),
                    block=threads,
                    args=("logits", "uniform", "lists", "tickets", "token", "V", "K", "inv_temperature"),
                ),
            ),
            scratch={
                "lists": np.full((rows, params["splits"] * threads // 32, KEEP), np.nan, np.float32),
                "tickets": np.zeros(rows, np.uint32),
            },
        )
    if variant != "split_select":
        args = ("logits", "uniform", "token", "V", "K", "inv_temperature")
        return Plan(launches=(Launch(kernel="topk_sample", grid=(rows, 1, 1), block=threads, args=args),))
    chunks = -(-vocab // (threads * params["items"]))
    return Plan(
        launches=(
            Launch(kernel="topk_chunk", grid=(chunks, rows, 1), block=threads, args=("logits", "lists", "counts", "V", "K")),
            Launch(
                kernel="topk_sample",
                grid=(rows, 1, 1),
                block=MERGERS,
                args=("logits", "uniform", "lists", "counts", "token", "V", "K", chunks, "inv_temperature"),
            ),
        ),
        scratch={
            "lists": np.full((rows, chunks, threads * params["items"]), np.nan, np.float32),
            "counts": np.full((rows, chunks), -1, np.int32),
        },
    )
