"""How nucleus_sample's kernels are launched, and the rows that expose their faults."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from generator.evidence.harness import Buffers, Case, Launch, Plan
from generator.ops.nucleus_sample import pivots, reference

P = 0.9
INV_TEMPERATURE = 1.25
SLACK = 1e-5
"""The kernels' sums are fp32: a set whose mass is this close to `P` may be the right one."""


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: a row no tile divides, all logits negative. Adversarial: a flat row, a tail far below one peak, steps down along the row,
    and ties at the pivot: zeros, of which the last are negative."""
    ragged = rng.standard_normal((3, 3008)) * 3 - 40
    hard, at = np.empty((4, 9008)), np.arange(9008)
    hard[0] = np.where(at % 5 == 1, np.where(at < 8500, 0.0, -0.0), -60.0)
    hard[1] = rng.standard_normal(9008) * 0.01 + 1
    hard[2] = np.where(at == 4100, 13.0, rng.standard_normal(9008) * 0.1 - 0.2)
    hard[3] = np.round(rng.standard_normal(9008) * 4) / 4 - at // 2048
    return (
        _case("ragged", ragged, np.array([0.05, 0.5, 0.9999])),
        _case("adversarial", hard, np.array([0.66, 0.97, 0.0, 0.83])),
    )


def _case(name: str, values: npt.NDArray[np.float64], uniform: npt.NDArray[np.float64]) -> Case:
    logits, draws = values.astype(np.float32), uniform.astype(np.float32)

    def error(buffers: Buffers) -> float:
        return max(_miss(int(token), row, float(u)) for token, row, u in zip(buffers["token"], logits, draws, strict=True))

    return Case(
        name=name,
        shape={"B": logits.shape[0], "V": logits.shape[1]},
        buffers={"logits": logits, "uniform": draws, "token": np.full(logits.shape[0], -1, np.int32)},
        scalars={"p": P, "inv_temperature": INV_TEMPERATURE},
        expected={"token": reference(logits, draws, P, INV_TEMPERATURE)},
        error=error,
    )


def _miss(token: int, row: npt.NDArray[np.float32], u: float) -> float:
    """Distance of `u` from the token's interval of the cumulative distribution of the nearest set; inf for a token in none."""
    if not 0 <= token < row.size:
        return float("inf")
    values = row.astype(np.float64)
    weight = np.exp((values - values.max()) * INV_TEMPERATURE)
    least = float("inf")
    for p in (P - SLACK, P, P + SLACK):
        kept = np.where(weight >= pivots(weight[None], p)[0, 0], weight, 0.0)
        upper = float(kept[: token + 1].sum() / kept.sum())
        if kept[token] > 0:
            least = min(least, max(upper - float(kept[token] / kept.sum()) - u, u - upper, 0.0))
    return least


def plan(variant: str, params: Mapping[str, int], case: Case) -> Plan:
    """One block per row; `two_phase` has one per chunk, first to sum cells, then to list candidates and draw."""
    rows, vocab, threads = case.shape["B"], case.shape["V"], params["threads"]
    if variant != "two_phase":
        extra = {}
        if variant == "sort_cumsum":
            extra = {"keys": np.zeros((rows, 2, vocab), np.uint32)}
        elif variant == "radix_pivot":
            extra = {"lists": np.full((rows, vocab), np.nan, np.float32)}
        args = ("logits", "uniform", *extra, "token", "V", "p", "inv_temperature")
        return Plan(launches=(Launch(kernel="nucleus_sample", grid=(rows, 1, 1), block=threads, args=args),), scratch=extra)
    size = threads * params["items"]
    chunks = -(-vocab // size)
    first = ("logits", "tops", "totals", "cells", "tickets", "pivots", "needs", "listed", "V", "p", "inv_temperature")
    second = ("logits", "uniform", "pivots", "needs", "masses", "lists", "listed", "tickets", "token", "V", "inv_temperature")
    return Plan(
        launches=(
            Launch(kernel="nucleus_cells", grid=(chunks, rows, 1), block=threads, args=first),
            Launch(kernel="nucleus_sample", grid=(chunks, rows, 1), block=threads, args=second),
        ),
        scratch={
            "tops": np.full((rows, chunks), -1, np.int32),
            "totals": np.full((rows, chunks), np.nan, np.float32),
            "cells": np.full((rows, chunks, threads), 0xFFFFFFFF, np.uint32),
            "tickets": np.zeros(rows, np.uint32),
            "pivots": np.full(rows, np.nan, np.float32),
            "needs": np.full(rows, np.nan, np.float32),
            "listed": np.full(rows, -1, np.int32),
            "masses": np.full((rows, chunks), np.nan, np.float32),
            "lists": np.full((rows, vocab, 2), np.nan, np.float32),
        },
    )
