"""The closed vocabularies of the tables: every name a column may hold, and the reward rules.

Nothing here depends on the generator. Adding a word is a schema change; see `schema/version.py`.
"""

from typing import Final, NamedTuple

SCENARIOS: Final = ("dispatch", "parallel_sweep", "pipeline", "campaign")

SPECIALISTS: Final = {"dispatch": (2, 8), "parallel_sweep": (4, 20), "pipeline": (3, 6), "campaign": (5, 20)}
"""Least and greatest number of specialists of each scenario, the lead not counted."""

ROLES: Final = ("lead", "worker", "reviewer", "verifier", "tuner")
"""Roles an agent may have; messages are also sent by `ENV`."""

LEAD: Final = "lead"
ENV: Final = "env"

STATUSES: Final = (
    "baseline",
    "kept",
    "no_improvement",
    "compile_error",
    "wrong_result",
    "unsupported_arch",
)

RAN: Final = ("baseline", "kept", "no_improvement")
"""Statuses of a candidate that ran to the end: exactly these results carry a `time_ms`."""

FIXED_REWARDS: Final = {
    "baseline": 0.0,
    "no_improvement": -0.05,
    "compile_error": -0.1,
    "wrong_result": -0.3,
    "unsupported_arch": -0.05,
}
"""Reward of a result by status; a `kept` result earns `min(1, log2(prev_best / time_ms))` instead."""

IMPLS: Final = ("cuda", "triton")

DTYPES: Final = ("fp16", "fp32", "int8", "fp8", "int4")

GPUS: Final = ("h100", "h200", "a100", "a10", "rtx_a6000", "rtx_5090")

ARCHS: Final = ("sm_90a", "sm_80", "sm_86", "sm_120a")

FEATURES: Final = ("wgmma", "tma", "cluster", "fp8", "fp4", "cp_async")

OPS: Final = (
    "flash_decode",
    "swa_decode",
    "gemm_fp16",
    "int8_gemm",
    "fp8_gemm",
    "int4_gemv",
    "rmsnorm",
    "rope",
    "swiglu_act",
    "topk_sample",
    "nucleus_sample",
    "mamba_scan",
    "moe_scatter",
    "kv_append",
    "fused_qkv_rope",
    "triton_flash_decode",
    "triton_rmsnorm",
)

AXES: Final = ("B", "H", "KV", "D", "T", "P", "W", "M", "N", "K", "G", "V", "E", "L")
"""Fields of the `shape` struct, in order."""

TUNABLES: Final = (
    "block_m",
    "block_n",
    "block_k",
    "block_h",
    "threads",
    "warps",
    "stages",
    "splits",
    "vec",
    "unroll",
    "rows",
    "items",
    "chunk",
    "cluster",
    "consumers",
    "radix",
    "copies",
    "tokens",
    "heads",
    "min_blocks",
    "persistent",
    "swizzle",
)
"""Fields of the `params` struct, in order."""

WORDS: Final = {"scenario": SCENARIOS, "op": OPS, "impl": IMPLS, "gpu": GPUS, "arch": ARCHS, "dtype": DTYPES}
"""Columns of an episode that hold one word of a closed vocabulary."""

HOLDOUT_KINDS: Final = ("unseen_triple", "unseen_shape")


class Payload(NamedTuple):
    """Who may send a kind of message, and which payload fields it carries; all others are null."""

    senders: tuple[str, ...]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    meaning: str = ""


PAYLOADS: Final = {
    "plan": Payload((LEAD,), meaning="campaign split strategy; always the first message"),
    "dispatch": Payload((LEAD,), ("to", "subtask"), meaning="subtask assignment"),
    "candidate": Payload((LEAD, "worker", "tuner"), ("variant", "params"), meaning="full kernel source; message 1 is the lead's baseline"),
    "result": Payload((ENV,), ("to", "reply_to", "status"), ("time_ms", "max_rel_err"), "compile / verify / bench outcome and its reward"),
    "status": Payload((LEAD, "worker", "reviewer", "verifier", "tuner"), meaning="terse progress report"),
    "review": Payload(("reviewer",), ("reply_to", "passed"), meaning="verdict on a candidate before it runs; a failed one stops it"),
    "verify": Payload(("verifier",), ("reply_to", "passed"), ("time_ms", "max_rel_err"), "correctness check, or a re-bench with `time_ms`"),
    "leaderboard": Payload((ENV,), meaning="agents ranked by best kept time, in a fixed parseable form"),
    "merge": Payload((LEAD,), ("to", "variant", "params", "time_ms"), meaning="winner picked, shared best updated"),
    "redirect": Payload((LEAD,), ("to", "subtask"), meaning="agent sent to the winner's variant or region"),
    "handoff": Payload(("worker", "reviewer", "verifier", "tuner"), ("to", "reply_to"), meaning="an artifact passed to another agent"),
    "verdict": Payload((LEAD,), ("time_ms", "variant", "params"), meaning="final outcome and terminal reward; always the last message"),
}
"""One row per message kind; the card, the rules and the transcript all read it."""

KINDS: Final = tuple(PAYLOADS)

PAYLOAD_FIELDS: Final = ("to", "subtask", "reply_to", "variant", "params", "status", "time_ms", "passed", "max_rel_err")
"""Nullable fields of a message, in column order."""
