"""How triton_rmsnorm's kernels are compiled ahead of time, and the rows that expose their faults."""

from collections.abc import Mapping

import numpy as np

from generator.evidence.harness import Case, Entry
from generator.ops.triton_rmsnorm import constants, reference

EPS = 1e-5


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: M and N that no tile divides. Adversarial: rows near zero (eps rules) and rows whose squares overflow fp16."""
    return (
        _case("ragged", rng.standard_normal((11, 1008)), rng),
        _case("adversarial", rng.standard_normal((6, 2064)) * np.array([[1e-3], [300.0], [1.0], [0.0], [40.0], [1e-2]]), rng),
    )


def _case(name: str, values: np.ndarray, rng: np.random.Generator) -> Case:
    x = values.astype(np.float16)
    w = rng.normal(1.0, 0.1, values.shape[1:]).astype(np.float16)
    return Case(
        name=name,
        shape={"M": x.shape[0], "N": x.shape[1]},
        buffers={"x": x, "w": w, "y": np.full_like(x, np.nan)},
        scalars={"eps": EPS},
        expected={"y": reference(x, w, EPS)},
    )


def entries(variant: str, params: Mapping[str, int], shape: Mapping[str, int]) -> tuple[Entry, ...]:
    """The one kernel of a candidate; all but `two_pass` are compiled for the power of two that holds a row.

    The grid alone depends on `persistent`.
    """
    fixed = {} if variant == "two_pass" else constants(shape)
    fixed |= {name.upper(): value for name, value in params.items() if name != "persistent"}
    size = {"N": "i32"} if variant == "two_pass" else {"M": "i32", "N": "i32"}
    return (
        Entry(
            kernel="rmsnorm",
            signature={"x": "*fp16", "w": "*fp16", "y": "*fp16"} | size | {"eps": "fp32"} | dict.fromkeys(fixed, "constexpr"),
            constants=fixed,
            warps=params["warps"],
            stages=params.get("stages", 3),
        ),
    )
