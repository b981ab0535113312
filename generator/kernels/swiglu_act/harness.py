"""How swiglu_act's Triton kernels are compiled ahead of time, and the activations that expose their faults."""

from collections.abc import Mapping

import numpy as np

from generator.evidence.harness import Case, Entry
from generator.ops.swiglu_act import reference


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: M and N that no block divides. Adversarial: gates whose exponential leaves fp16, products near its limit."""
    wide = rng.standard_normal((9, 2 * 272)) * 4.0
    wide[:, :272] = rng.uniform(-16.0, 16.0, (9, 272))
    wide[:, 272:] *= np.where(wide[:, :272] < -10.0, 4000.0, 100.0)
    return (_case("ragged", rng.standard_normal((7, 2 * 1120))), _case("adversarial", wide))


def _case(name: str, values: np.ndarray) -> Case:
    x = values.astype(np.float16)
    rows, columns = x.shape[0], x.shape[1] // 2
    return Case(
        name=name,
        shape={"M": rows, "N": columns},
        buffers={"x": x, "y": np.full((rows, columns), np.nan, dtype=np.float16)},
        scalars={},
        expected={"y": reference(x)},
    )


def entries(variant: str, params: Mapping[str, int], _: Mapping[str, int]) -> tuple[Entry, ...]:
    """The kernels of one candidate; none depends on the shape."""
    tuning = {name.upper(): value for name, value in params.items()}
    fixed = dict.fromkeys(tuning, "constexpr")
    if variant == "two_kernels":
        flat = {"total": "i32", "N": "i32"}
        return (
            Entry(
                kernel="silu",
                signature={"x": "*fp16", "scratch": "*fp32"} | flat | fixed,
                constants=tuning,
                warps=params["warps"],
            ),
            Entry(
                kernel="multiply",
                signature={"x": "*fp16", "scratch": "*fp32", "y": "*fp16"} | flat | {"BLOCK_N": "constexpr"},
                constants={"BLOCK_N": params["block_n"]},
                warps=params["warps"],
            ),
        )
    size = {"N": "i32"} if variant == "fused" else {"M": "i32", "N": "i32"}
    return (
        Entry(
            kernel="swiglu",
            signature={"x": "*fp16", "y": "*fp16"} | size | fixed,
            constants=tuning,
            warps=params["warps"],
            stages=params.get("stages", 3),
        ),
    )
