"""How triton_flash_decode's kernels are compiled ahead of time, and the sequences that expose their faults."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from generator.evidence.harness import Case, Entry
from generator.ops.flash_decode import reference
from generator.ops.triton_flash_decode import constants

HEAD_DIM, KV_HEADS = 64, 2


def cases(rng: np.random.Generator) -> tuple[Case, ...]:
    """Ragged: lengths that end inside a page and a step, seven heads a group. Adversarial: scores that grow along the sequence, and more
    splits than tokens."""
    return (
        _case("ragged", lengths=(77, 270), group=7, page=16, slope=1.0, rng=rng),
        _case("adversarial", lengths=(201, 3), group=4, page=8, slope=30.0, rng=rng),
    )


def _case(name: str, *, lengths: tuple[int, ...], group: int, page: int, slope: float, rng: np.random.Generator) -> Case:
    """Key `t` is scaled by `1 + slope * t / T`, so the running maximum keeps moving."""
    batch, longest, heads = len(lengths), max(lengths), group * KV_HEADS
    max_pages = -(-longest // page)
    pages = batch * max_pages + 1
    table = rng.permutation(pages)[: batch * max_pages].reshape(batch, max_pages).astype(np.int32)
    growth: npt.NDArray[np.float64] = np.ones((pages, page, 1, 1))
    growth[table] = 1 + slope * np.arange(max_pages * page).reshape(1, max_pages, page, 1, 1) / longest
    q = rng.standard_normal((batch, heads, HEAD_DIM)).astype(np.float16)
    k = (rng.standard_normal((pages, page, KV_HEADS, HEAD_DIM)) * growth).astype(np.float16)
    v = rng.standard_normal((pages, page, KV_HEADS, HEAD_DIM)).astype(np.float16)
    scale = HEAD_DIM**-0.5
    return Case(
        name=name,
        shape={"B": batch, "H": heads, "KV": KV_HEADS, "D": HEAD_DIM, "T": longest, "P": page},
        buffers={
            "q": q,
            "k": k,
            "v": v,
            "table": table,
            "lengths": np.array(lengths, dtype=np.int32),
            "out": np.full_like(q, np.nan),
        },
        scalars={"scale": scale},
        expected={"out": reference(q, k, v, table, np.array(lengths), scale)},
    )


def entries(variant: str, params: Mapping[str, int], shape: Mapping[str, int]) -> tuple[Entry, ...]:
    """The kernel that walks the cache and, for `split`, the one that reduces the slices."""
    inputs = {"q": "*fp16", "k": "*fp16", "v": "*fp16", "table": "*i32", "lengths": "*i32"}
    parts = dict.fromkeys(("part", "part_max", "part_sum"), "*fp32")
    sizes = dict.fromkeys(("heads", "kv_heads", "page", "max_pages"), "i32") | {"scale": "fp32"}
    fixed = constants(shape) | {name.upper(): value for name, value in params.items()}
    output = parts if variant == "split" else {"out": "*fp16"}
    main = Entry(
        kernel="flash_decode_split" if variant == "split" else "flash_decode",
        signature=inputs | output | sizes | dict.fromkeys(fixed, "constexpr"),
        constants=fixed,
        warps=params["warps"],
        stages=params.get("stages", 3),
    )
    if variant != "split":
        return (main,)
    kept = {name: fixed[name] for name in ("HEAD_DIM", "SPLITS")}
    signature = parts | {"out": "*fp16"} | dict.fromkeys(kept, "constexpr")
    return main, Entry(kernel="flash_decode_reduce", signature=signature, constants=kept, warps=params["warps"])
