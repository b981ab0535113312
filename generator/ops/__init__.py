"""The registry of ops. Adding one: a file here, a folder in `generator/kernels`, a name in `OPS`; the order feeds sampling."""

from collections.abc import Mapping
from typing import Final

from generator.ops import (
    flash_decode,
    fp8_gemm,
    fused_qkv_rope,
    gemm_fp16,
    int4_gemv,
    int8_gemm,
    kv_append,
    mamba_scan,
    moe_scatter,
    nucleus_sample,
    rmsnorm,
    rope,
    swa_decode,
    swiglu_act,
    topk_sample,
    triton_flash_decode,
    triton_rmsnorm,
)
from generator.ops.base import Op

OPS: Final = (
    flash_decode.OP,
    swa_decode.OP,
    gemm_fp16.OP,
    int8_gemm.OP,
    fp8_gemm.OP,
    int4_gemv.OP,
    rmsnorm.OP,
    rope.OP,
    swiglu_act.OP,
    topk_sample.OP,
    nucleus_sample.OP,
    mamba_scan.OP,
    moe_scatter.OP,
    kv_append.OP,
    fused_qkv_rope.OP,
    triton_flash_decode.OP,
    triton_rmsnorm.OP,
)
"""All ops."""

BY_NAME: Final[Mapping[str, Op]] = {op.name: op for op in OPS}
