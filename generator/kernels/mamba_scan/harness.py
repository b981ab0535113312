"""How mamba_scan's kernels are launched, and the sequences that expose their faults."""

from collections.abc import Mapping

import numpy as np

from generator.evidence.harness import Case, Launch, Plan
from generator.ops.mamba_scan import reference

STATES = 16
ARGS = ("u", "delta", "A", "Bm", "Cm", "z", "skip", "bias", "y", "L", "D")


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: L and D that no chunk, run or block divides. Adversarial: delta from deep in softplus' tail to where exp overflows."""
    return (
        _case("ragged", 2, 37, 72, -1.0 + 0.5 * rng.standard_normal((2, 37, 72)), rng),
        _case("adversarial", 2, 45, 40, np.linspace(-9.0, 95.0, 40) + rng.standard_normal((2, 45, 40)), rng),
    )


def _case(name: str, batch: int, length: int, width: int, delta: np.ndarray, rng: np.random.Generator) -> Case:
    u, z = (rng.standard_normal((batch, length, width)).astype(np.float16) for _ in range(2))
    # Large steps saturate the state at u * B * dt: u shrinks there to keep y within fp16.
    u = (u / (1.0 + np.maximum(delta, 0.0))).astype(np.float16)
    b, c = ((0.5 * rng.standard_normal((batch, length, STATES))).astype(np.float16) for _ in range(2))
    a = -np.exp(rng.uniform(np.log(0.05), np.log(8.0), (width, STATES))).astype(np.float32)
    skip = (1.0 + 0.5 * rng.standard_normal(width)).astype(np.float32)
    bias = (0.3 * rng.standard_normal(width)).astype(np.float32)
    half = delta.astype(np.float16)
    return Case(
        name=name,
        shape={"B": batch, "L": length, "D": width, "N": STATES},
        buffers={
            "u": u,
            "delta": half,
            "A": a,
            "Bm": b,
            "Cm": c,
            "z": z,
            "skip": skip,
            "bias": bias,
            "y": np.full_like(u, np.nan),
        },
        scalars={},
        expected={"y": reference(u, half, a, b, c, z, skip, bias)},
    )


def plan(variant: str, params: Mapping[str, int], case: Case) -> Plan:
    """One launch over (channels, sequences), or the three of `split_l` with its scratch."""
    batch, width, threads = case.shape["B"], case.shape["D"], params["threads"]
    if variant == "split_l":
        blocks, splits = -(-width // threads), params["splits"]
        return Plan(
            launches=(
                Launch(
                    kernel="scan_local",
                    grid=(blocks, splits - 1, batch),
                    block=threads,
                    args=("u", "delta", "A", "Bm", "bias", "state", "total", "L", "D"),
                ),
                Launch(kernel="scan_carry", grid=(blocks, STATES, batch), block=threads, args=("A", "state", "total", "D")),
                Launch(
                    kernel="scan_final",
                    grid=(blocks, splits, batch),
                    block=threads,
                    args=("u", "delta", "A", "Bm", "Cm", "z", "skip", "bias", "state", "y", "L", "D"),
                ),
            ),
            scratch={
                "state": np.full((batch, splits, STATES, width), np.nan, dtype=np.float32),
                "total": np.full((batch, splits, width), np.nan, dtype=np.float32),
            },
        )
    channels = threads * params["items"] // STATES if variant == "chunked" else threads
    return Plan(launches=(Launch(kernel="scan", grid=(-(-width // channels), batch, 1), block=threads, args=ARGS),))
