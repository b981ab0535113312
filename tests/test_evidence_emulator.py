"""What the emulator computes, instruction by instruction, against NumPy or plain Python; and what it reports of faulty kernels.

Layouts of fragments are written here from the PTX ISA's formulas for row and column, not from the emulator's.
"""

import struct
from pathlib import Path

import numpy as np
import pytest

from generator.evidence import emulate, judge, ptx
from generator.evidence.harness import Case, Launch, Plan, Tile

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.skipif(emulate.available() is not None, reason=str(emulate.available())),
]
RNG = np.random.default_rng(7)
HEADERS = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuda_fp8.h>\n"
ONE = 'extern "C" __global__ void k(float* o) '


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulator")


def run(folder: Path, source: str, buffers: dict, *args: object, grid=(1, 1, 1), block: int = 32, smem: int = 0, order: int = 0) -> dict:
    """Buffers after one launch of kernel `k`; its arguments are the buffers, then `args`."""
    case = Case(name="test", shape={}, buffers=buffers, scalars={}, expected={})
    plan = Plan(launches=(Launch(kernel="k", grid=grid, block=block, args=(*buffers, *args), smem=smem),))
    return emulate.run(emulate.build(HEADERS + source, folder), plan, case, order)


def elementwise(folder: Path, expressions: str, buffers: dict, **options: int) -> dict:
    """A kernel of one thread per element `i` whose parameters are the buffers, named as they are."""
    kinds = {
        "f4": "float",
        "i4": "int",
        "u4": "unsigned",
        "f2": "__half",
        "u2": "unsigned short",
        "u1": "unsigned char",
        "u8": "unsigned long long",
    }
    kinds |= {"i8": "long long", "i1": "signed char"}
    parameters = ", ".join(f"{kinds[array.dtype.str[1:]]}* {name}" for name, array in buffers.items())
    size = len(next(iter(buffers.values())))
    source = (
        f'extern "C" __global__ void k({parameters}) {{ const int i = blockIdx.x * 32 + threadIdx.x; if (i < {size}) {{ {expressions} }} }}'
    )
    return run(folder, source, buffers, grid=(-(-size // 32), 1, 1), **options)


# ---- integers ------------------------------------------------------------------------------------
def test_lop3_follows_its_table(folder: Path):
    a, b, c = (RNG.integers(0, 2**32, 64, dtype=np.uint32) for _ in range(3))
    tables = (0xF0, 0xCC, 0xAA, 0xEA, 0x96, 0xE8, 0x6A, 0x00, 0xFF)
    asm = "".join(
        f'asm("lop3.b32 %0, %1, %2, %3, {t};" : "=r"(d[i * 9 + {n}]) : "r"(a[i]), "r"(b[i]), "r"(c[i]));' for n, t in enumerate(tables)
    )
    got = elementwise(folder, asm, {"a": a, "b": b, "c": c, "d": np.zeros(64 * 9, np.uint32)})["d"].reshape(64, 9)
    want = {
        0xF0: a,
        0xCC: b,
        0xAA: c,
        0xEA: (a & b) | c,
        0x96: a ^ b ^ c,
        0xE8: (a & b) | (a & c) | (b & c),
        0x6A: (a & b) ^ c,
        0: 0 * a,
        0xFF: ~(0 * a),
    }
    for n, t in enumerate(tables):
        np.testing.assert_array_equal(got[:, n], want[t], err_msg=hex(t))


def test_byte_permutation(folder: Path):
    a, b = (RNG.integers(0, 2**32, 32, dtype=np.uint32) for _ in range(2))
    s = RNG.integers(0, 2**16, 32, dtype=np.uint32)
    asm = 'd[i] = __byte_perm(a[i], b[i], s[i] & 0x7777); asm("prmt.b32 %0, %1, %2, %3;" : "=r"(e[i]) : "r"(a[i]), "r"(b[i]), "r"(s[i]));'
    got = elementwise(folder, asm, {"a": a, "b": b, "s": s, "d": np.zeros(32, np.uint32), "e": np.zeros(32, np.uint32)})

    def permute(x: int, y: int, selector: int) -> int:
        pool = struct.pack("<II", x, y)
        picked = [pool[selector >> 4 * n & 7] for n in range(4)]
        signs = [selector >> 4 * n & 8 for n in range(4)]
        return int.from_bytes(bytes(255 * (p >> 7) if s else p for p, s in zip(picked, signs, strict=True)), "little")

    assert got["d"].tolist() == [permute(int(x), int(y), int(z) & 0x7777) for x, y, z in zip(a, b, s, strict=True)]
    assert got["e"].tolist() == [permute(int(x), int(y), int(z)) for x, y, z in zip(a, b, s, strict=True)]


def test_dot_products_of_bytes(folder: Path):
    a, b = (RNG.integers(-128, 128, (40, 4)).astype(np.int8) for _ in range(2))
    buffers = {"a": a.view(np.int32).ravel(), "b": b.view(np.int32).ravel()} | {name: np.zeros(40, np.int32) for name in "def"}
    code = """
    d[i] = __dp4a(a[i], b[i], 5);
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(e[i]) : "r"(a[i]), "r"(b[i]), "r"(-9));
    f[i] = int(__dp4a(unsigned(a[i]), unsigned(b[i]), 1u));
    """
    got = elementwise(folder, code, buffers)
    np.testing.assert_array_equal(got["d"], (a.astype(int) * b).sum(1) + 5)
    np.testing.assert_array_equal(got["e"], (a.astype(int) * b).sum(1) - 9)
    np.testing.assert_array_equal(got["f"], (a.view(np.uint8).astype(int) * b.view(np.uint8)).sum(1) + 1)


def test_bit_intrinsics(folder: Path):
    u = np.array([0, 1, 2, 0x80000000, 0xFFFFFFFF, 0x00F0F000, 12345], np.uint32)
    names = ("popc", "clz", "ffs", "brev", "umulhi", "funnel_l", "funnel_r")
    code = """
    popc[i] = __popc(u[i]); clz[i] = __clz(u[i]); ffs[i] = __ffs(u[i]); brev[i] = __brev(u[i]);
    umulhi[i] = __umulhi(u[i], 0xdeadbeefu); funnel_l[i] = __funnelshift_l(u[i], 7u, 12); funnel_r[i] = __funnelshift_r(u[i], 7u, 12);
    """
    got = elementwise(folder, code, {"u": u} | {name: np.zeros(len(u), np.uint32) for name in names})
    for i, x in enumerate(map(int, u)):
        wide = 7 << 32 | x
        want = (
            x.bit_count(),
            32 - x.bit_length(),
            (x & -x).bit_length(),
            int(f"{x:032b}"[::-1], 2),
            x * 0xDEADBEEF >> 32,
            wide << 12 >> 32 & 0xFFFFFFFF,
            wide >> 12 & 0xFFFFFFFF,
        )
        assert tuple(int(got[name][i]) for name in names) == want


# ---- conversions ---------------------------------------------------------------------------------
def test_float_to_integer_rounds_as_named_and_saturates(folder: Path):
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.7, 3e9, -3e9, np.nan, 1e20, 7.0], np.float32)
    names = ("rn", "rz", "rd", "ru")
    code = "".join(f"{n}[i] = __float2int_{n}(x[i]); u{n}[i] = __float2uint_{n}(x[i]);" for n in names)
    buffers = {"x": x} | {n: np.zeros(len(x), np.int32) for n in names} | {f"u{n}": np.zeros(len(x), np.uint32) for n in names}
    got = elementwise(folder, code, buffers)
    with np.errstate(invalid="ignore"):
        for name, rounding in zip(names, (np.rint, np.trunc, np.floor, np.ceil), strict=True):
            whole = np.nan_to_num(rounding(x.astype(np.float64)), nan=0.0)
            np.testing.assert_array_equal(got[name], np.clip(whole, -(2**31), 2**31 - 1).astype(np.int32), err_msg=name)
            np.testing.assert_array_equal(got[f"u{name}"], np.clip(whole, 0, 2**32 - 1).astype(np.uint32), err_msg=name)


def test_half_arithmetic_rounds_once(folder: Path):
    a, b, c = (RNG.standard_normal(500).astype(np.float16) for _ in range(3))
    code = "d[i] = a[i] + b[i]; e[i] = a[i] * b[i]; f[i] = __hfma(a[i], b[i], c[i]); g[i] = __float2half(1e5f * __half2float(a[i]));"
    got = elementwise(folder, code, {"a": a, "b": b, "c": c} | {n: np.zeros(500, np.float16) for n in "defg"})
    wide = [v.astype(np.float64) for v in (a, b, c)]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got["d"], (wide[0] + wide[1]).astype(np.float16))
        np.testing.assert_array_equal(got["e"], (wide[0] * wide[1]).astype(np.float16))
        np.testing.assert_array_equal(got["f"], (wide[0] * wide[1] + wide[2]).astype(np.float16))
        np.testing.assert_array_equal(got["g"], (np.float32(1e5) * a.astype(np.float32)).astype(np.float16))


def test_packed_halves(folder: Path):
    x = RNG.standard_normal(64).astype(np.float32)
    code = """
    unsigned r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(x[i]), "f"(2.0f * x[i]));
    d[i] = r; const __half2 h = __floats2half2_rn(x[i], 3.0f); e[i] = __low2float(__hmul2(h, h)); f[i] = __half22float2(h).y;
    """
    got = elementwise(folder, code, {"x": x, "d": np.zeros(64, np.uint32), "e": np.zeros(64, np.float32), "f": np.zeros(64, np.float32)})
    pairs = got["d"].view(np.float16).reshape(-1, 2)  # the first operand is the upper half
    np.testing.assert_array_equal(pairs, np.stack([2 * x, x], 1).astype(np.float16))
    half = x.astype(np.float16).astype(np.float64)
    np.testing.assert_array_equal(got["e"], (half * half).astype(np.float16).astype(np.float32))
    assert (got["f"] == 3).all()


def test_bfloat16_rounds_to_nearest_even(folder: Path):
    bits = np.concatenate([RNG.integers(0, 2**32, 400, dtype=np.uint32), [0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x80000000]]).astype(
        np.uint32
    )
    x = bits.view(np.float32)
    x = np.where(np.isfinite(x), x, np.float32(1)).astype(np.float32)
    code = "d[i] = __bfloat16_as_ushort(__float2bfloat16(x[i])); e[i] = __bfloat162float(__ushort_as_bfloat16(d[i]));"
    got = elementwise(folder, code, {"x": x, "d": np.zeros(len(x), np.uint16), "e": np.zeros(len(x), np.float32)})
    u = x.view(np.uint32).astype(np.uint64)
    want = ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(got["d"], want)
    np.testing.assert_array_equal(got["e"].view(np.uint32), want.astype(np.uint32) << 16)


def fp8_values(mantissa: int, bias: int) -> np.ndarray:
    """Value of each of the 256 codes, by the definition of the format; what is not finite is NaN."""
    out = np.full(256, np.nan)
    for code in range(256):
        exponent, fraction = (code & 127) >> mantissa, code & ((1 << mantissa) - 1)
        special = code & 127 == 127 if mantissa == 3 else exponent == 31
        if not special:
            value = (1 + fraction / 2**mantissa) * 2.0 ** (exponent - bias) if exponent else fraction / 2**mantissa * 2.0 ** (1 - bias)
            out[code] = -value if code & 128 else value
    return out


@pytest.mark.parametrize(("name", "mantissa", "bias"), [("E4M3", 3, 7), ("E5M2", 2, 15)])
def test_fp8_codes_and_nearest_even(folder: Path, name: str, mantissa: int, bias: int):
    values = fp8_values(mantissa, bias)
    finite = np.sort(values[np.isfinite(values)])
    middles = (finite[1:] + finite[:-1]) / 2  # ties
    x = np.concatenate([finite, middles, np.nextafter(middles, 1e9), 1e4 * RNG.standard_normal(50), [1e6, -1e6]]).astype(np.float32)
    code = f"d[i] = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_{name});"
    d = elementwise(folder, code, {"x": x, "d": np.zeros(len(x), np.uint8)})["d"]
    for value, got in zip(x.astype(np.float64), d, strict=True):
        distance = np.abs(values - value)
        distance[~np.isfinite(values)] = np.inf
        nearest = np.flatnonzero(distance == distance.min())
        even = [c for c in nearest if c % 2 == 0] if len({abs(values[c]) for c in nearest}) > 1 else nearest
        assert got in even, (value, got, nearest)
    codes = np.arange(256, dtype=np.uint8)
    code = f"const __half h = __nv_cvt_fp8_to_halfraw(c[i], __NV_{name}); d[i] = __half2float(h);"
    decoded = elementwise(folder, code, {"c": codes, "d": np.zeros(256, np.float32)})["d"]
    np.testing.assert_array_equal(decoded[np.isfinite(values)], values[np.isfinite(values)])


def test_packed_fp8_conversions(folder: Path):
    x = RNG.standard_normal(64).astype(np.float32) * 20
    code = """
    unsigned short p; asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(p) : "f"(x[i]), "f"(-x[i]));
    unsigned h; asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"(p));
    d[i] = h; e[i] = float(__nv_fp8_e4m3(x[i]));
    """
    got = elementwise(folder, code, {"x": x, "d": np.zeros(64, np.uint32), "e": np.zeros(64, np.float32)})
    pairs = got["d"].view(np.float16).reshape(-1, 2).astype(np.float32)
    np.testing.assert_array_equal(pairs[:, 1], got["e"])  # the first operand is the upper byte
    np.testing.assert_array_equal(pairs[:, 0], -got["e"])
    assert np.abs(got["e"] - x).max() <= 0.0625 * np.abs(x).max()


# ---- warps and blocks ----------------------------------------------------------------------------
@pytest.mark.parametrize("order", emulate.ORDERS)
def test_shuffles_stay_in_their_segments(folder: Path, order: int):
    code = """
    const int v = i * 10;
    a[i] = __shfl_sync(0xffffffffu, v, 3, 8); b[i] = __shfl_xor_sync(0xffffffffu, v, 5);
    c[i] = __shfl_down_sync(0xffffffffu, v, 3, 16); d[i] = __shfl_up_sync(0xffffffffu, v, 3, 16);
    """
    got = elementwise(folder, code, {n: np.zeros(32, np.int32) for n in "abcd"}, order=order)
    lane = np.arange(32)
    np.testing.assert_array_equal(got["a"], (lane // 8 * 8 + 3) * 10)
    np.testing.assert_array_equal(got["b"], (lane ^ 5) * 10)
    np.testing.assert_array_equal(got["c"], np.where(lane % 16 + 3 < 16, lane + 3, lane) * 10)
    np.testing.assert_array_equal(got["d"], np.where(lane % 16 >= 3, lane - 3, lane) * 10)


def test_votes_and_warp_reductions(folder: Path):
    code = """
    const unsigned m = 0xffffffffu;
    a[i] = __ballot_sync(m, i % 3 == 0); b[i] = __reduce_add_sync(m, i); c[i] = __match_any_sync(m, i % 5);
    d[i] = __any_sync(m, i == 7) + 2 * __all_sync(m, i < 32) + 4 * __all_sync(m, i < 31) + 8 * __reduce_max_sync(m, unsigned(i));
    """
    got = elementwise(folder, code, {n: np.zeros(32, np.uint32) for n in "abcd"})
    assert (got["a"] == sum(1 << i for i in range(0, 32, 3))).all()
    assert (got["b"] == 496).all()
    assert got["c"].tolist() == [sum(1 << j for j in range(32) if j % 5 == i % 5) for i in range(32)]
    assert (got["d"] == 1 + 2 + 8 * 31).all()


def test_votes_of_a_block(folder: Path):
    code = """extern "C" __global__ void k(int* o) {
      const int t = threadIdx.x;
      const int n = __syncthreads_count(t % 2), all = __syncthreads_and(t < 96), any = __syncthreads_or(t == 95);
      o[t] = n + 1000 * all + 10000 * any; }"""
    assert (run(folder, code, {"o": np.zeros(96, np.int32)}, block=96)["o"] == 48 + 1000 + 10000).all()


def test_named_barriers_count_their_own_threads(folder: Path):
    code = """extern "C" __global__ void k(int* o) {
      __shared__ int s[64]; const int t = threadIdx.x;
      if (t >= 64) { asm volatile("bar.arrive 2, 96;" ::: "memory"); return; }
      s[t] = t; asm volatile("bar.sync %0, 64;" ::"r"(1) : "memory");
      asm volatile("bar.sync 2, 96;" ::: "memory"); o[t] = s[63 - t]; }"""
    np.testing.assert_array_equal(run(folder, code, {"o": np.zeros(64, np.int32)}, block=96)["o"], np.arange(64)[::-1])


def test_atomics(folder: Path):
    code = """extern "C" __global__ void k(int* a, float* f, unsigned* w) {
      atomicAdd(a, 2); atomicMax(a + 1, int(threadIdx.x)); atomicMin(a + 2, -int(threadIdx.x)); atomicAdd(f, 0.5f);
      atomicCAS(a + 3, int(threadIdx.x), int(threadIdx.x) + 1); atomicXor(w, 1u << threadIdx.x % 32); atomicInc(w + 1, 9u); }"""
    got = run(
        folder, code, {"a": np.zeros(4, np.int32), "f": np.zeros(1, np.float32), "w": np.zeros(2, np.uint32)}, grid=(2, 1, 1), block=64
    )
    assert got["a"].tolist() == [256, 63, -63, 64]
    assert got["f"][0] == 64
    assert got["w"].tolist() == [0, 128 % 10]


# ---- memory --------------------------------------------------------------------------------------
def test_vector_loads_and_stores(folder: Path):
    code = """extern "C" __global__ void k(unsigned* x, unsigned* y) {
      __shared__ __align__(16) unsigned s[128]; const int t = threadIdx.x; unsigned a, b, c, d;
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(x + 4 * t));
      const unsigned at = (unsigned)__cvta_generic_to_shared(s + 4 * t);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(d), "r"(c), "r"(b), "r"(a));
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(at));
      asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(y + 4 * t), "r"(a), "r"(b), "r"(s[4 * t + 2]),
        "r"(s[4 * t + 3])); }"""
    x = RNG.integers(0, 2**32, 128, dtype=np.uint32)
    np.testing.assert_array_equal(run(folder, code, {"x": x, "y": 0 * x})["y"], x.reshape(-1, 4)[:, ::-1].ravel())


COPY = """extern "C" __global__ void k(float* x, float* y) {
  __shared__ __align__(16) float s[256]; const int t = threadIdx.x;
  const unsigned at = (unsigned)__cvta_generic_to_shared(s + 4 * t);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(x + 4 * t), "r"(t % 3 == 0 ? 8 : 16));
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at + 512), "l"(x));
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group WAIT;" ::: "memory");
  for (int i = 0; i < 4; ++i) y[4 * t + i] = s[4 * t + i];
  y[128 + t] = s[128 + 4 * t]; }"""


def test_cp_async_lands_at_its_wait_and_fills_with_zeros(folder: Path):
    x = np.arange(1, 129, dtype=np.float32)
    want = x.copy().reshape(-1, 4)
    want[::3, 2:] = 0
    got = run(folder, COPY.replace("WAIT", "0"), {"x": x, "y": np.zeros(160, np.float32)})["y"]
    np.testing.assert_array_equal(got[:128], want.ravel())
    assert (got[128:] == 1).all()
    late = run(folder, COPY.replace("WAIT", "1"), {"x": x, "y": np.zeros(160, np.float32)})["y"]
    np.testing.assert_array_equal(late[:128], want.ravel())  # the older group has landed
    assert np.isnan(late[128:]).all()  # the younger has not


@pytest.mark.parametrize(("count", "trans"), [(4, False), (2, False), (1, False), (4, True), (2, True)])
def test_ldmatrix_gives_each_lane_its_pair(folder: Path, count: int, trans: bool):
    registers = ", ".join(f"%{i}" for i in range(count))
    outs = ", ".join(f'"=r"(r[{i}])' for i in range(count))
    name = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' * trans}.shared.b16"
    code = f"""extern "C" __global__ void k(unsigned short* x, unsigned* y) {{
      __shared__ __align__(16) unsigned short s[256]; const int t = threadIdx.x;
      for (int i = t; i < 256; i += 32) s[i] = x[i];
      __syncthreads();
      unsigned r[4]; const unsigned at = (unsigned)__cvta_generic_to_shared(s + t * 8);
      asm volatile("{name} {{{registers}}}, [%{count}];" : {outs} : "r"(at));
      for (int i = 0; i < {count}; ++i) y[t * {count} + i] = r[i]; }}"""
    x = RNG.integers(0, 2**16, 256, dtype=np.uint16)
    got = run(folder, code, {"x": x, "y": np.zeros(32 * count, np.uint32)})["y"].view(np.uint16).reshape(32, count, 2)
    matrices = x.reshape(4, 8, 8)
    for lane in range(32):
        for m in range(count):
            matrix = matrices[m].T if trans else matrices[m]
            np.testing.assert_array_equal(got[lane, m], matrix[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2])


# ---- matrices ------------------------------------------------------------------------------------
def fragment(matrix: np.ndarray, row: object, column: object, elements: int) -> np.ndarray:
    """Registers `[32, n]` of a fragment of bytes: `row` and `column` place an element of a lane."""
    out = np.empty((32, elements), matrix.dtype)
    for lane in range(32):
        for i in range(elements):
            out[lane, i] = matrix[row(lane // 4, i), column(lane // 4, lane % 4, i)]
    return out.view(np.uint32)


def fragment_rows(run: int):
    """Row of element `i` of A: runs of `run` elements, in the upper and the lower half in turn."""
    return lambda group, i: group if i // run % 2 == 0 else group + 8


# PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and "... for mma.m16n8k32"; B is given transposed.
SIXTEEN = {
    "a": (fragment_rows(2), lambda _, t, i: t * 2 + (i & 1) + (8 if i >= 4 else 0), 8),
    "b": (lambda g, _: g, lambda _, t, i: t * 2 + (i & 1) + (8 if i >= 2 else 0), 4),
}
EIGHT = {
    "a": (fragment_rows(4), lambda _, t, i: t * 4 + (i & 3) + (16 if i >= 8 else 0), 16),
    "b": (lambda g, _: g, lambda _, t, i: t * 4 + (i & 3) + (16 if i >= 4 else 0), 8),
}
MMA = {
    "m16n8k16.row.col.f32.f16.f16.f32": (SIXTEEN, 16, "f16"),
    "m16n8k16.row.col.f32.bf16.bf16.f32": (SIXTEEN, 16, "bf16"),
    "m16n8k32.row.col.s32.s8.s8.s32": (EIGHT, 32, "s8"),
    "m16n8k32.row.col.s32.u8.u8.s32": (EIGHT, 32, "u8"),
    "m16n8k32.row.col.f32.e4m3.e4m3.f32": (EIGHT, 32, "e4m3"),
    "m16n8k32.row.col.f32.e5m2.e5m2.f32": (EIGHT, 32, "e5m2"),
}


def operand(kind: str, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Random storage of a type, and its values."""
    if kind in ("s8", "u8"):
        raw = RNG.integers(-128, 128, shape).astype(np.int8) if kind == "s8" else RNG.integers(0, 256, shape).astype(np.uint8)
        return raw, raw.astype(np.float64)
    if kind == "f16":
        raw = RNG.standard_normal(shape).astype(np.float16)
        return raw, raw.astype(np.float64)
    if kind == "bf16":
        raw = (RNG.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return raw, (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    values = fp8_values(3, 7) if kind == "e4m3" else fp8_values(2, 15)
    codes = np.flatnonzero(np.isfinite(values) & (np.abs(values) < 8))
    raw = RNG.choice(codes, shape).astype(np.uint8)
    return raw, values[raw]


@pytest.mark.parametrize("name", MMA)
def test_mma_multiplies_fragments(folder: Path, name: str):
    layout, depth, kind = MMA[name]
    (a, a_values), (b, b_values) = operand(kind, (16, depth)), operand(kind, (depth, 8))
    integer = kind in ("s8", "u8")
    c = RNG.integers(-9, 9, (32, 4)).astype(np.int32 if integer else np.float32)
    t, letter = ("int", "r") if integer else ("float", "f")
    outs = ", ".join(f'"+{letter}"(c[{i}])' for i in range(4))
    code = f"""extern "C" __global__ void k(unsigned* a, unsigned* b, {t}* d) {{
      const int l = threadIdx.x; {t} c[4]; unsigned *x = a + 4 * l, *y = b + 2 * l;
      for (int i = 0; i < 4; ++i) c[i] = d[4 * l + i];
      asm volatile("mma.sync.aligned.{name} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
        : {outs} : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
      for (int i = 0; i < 4; ++i) d[4 * l + i] = c[i]; }}"""
    buffers = {"a": fragment(a, *layout["a"]).ravel(), "b": fragment(b.T, *layout["b"]).ravel(), "d": c.ravel()}
    got = run(folder, code, buffers)["d"].reshape(32, 4)
    product = a_values @ b_values
    for lane in range(32):
        for i in range(4):
            want = product[lane // 4 + (8 if i >= 2 else 0), lane % 4 * 2 + (i & 1)] + c[lane, i]
            assert abs(got[lane, i] - want) <= 1e-4 * (1 + abs(want)), (lane, i)


def test_half_accumulators_round_every_instruction(folder: Path):
    a, b = np.full((16, 16), 1.0, np.float16), np.full((16, 8), 1.0, np.float16)
    code = """extern "C" __global__ void k(unsigned* a, unsigned* b, unsigned* d) {
      const int l = threadIdx.x; unsigned *x = a + 4 * l, *y = b + 2 * l, c[2] = {0x68006800u, 0x68006800u};
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
        : "+r"(c[0]), "+r"(c[1]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
      d[2 * l] = c[0]; d[2 * l + 1] = c[1]; }"""
    a[:, 0] = 0.5
    buffers = {"a": fragment(a, *SIXTEEN["a"]).ravel(), "b": fragment(b.T, *SIXTEEN["b"]).ravel(), "d": np.zeros(64, np.uint32)}
    assert (run(folder, code, buffers)["d"].view(np.float16) == np.float16(2048 + 15.5)).all()  # 2064: the spacing there is 2


# ---- GeForce Blackwell ---------------------------------------------------------------------------
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""Value of each code; bit 3 is the sign."""
# PTX ISA, "Matrix Fragments for mma.m16n8k64": eight elements to a register.
FOUR = {
    "a": (fragment_rows(8), lambda _, t, i: t * 8 + (i & 7) + (32 if i >= 16 else 0), 32),
    "b": (lambda g, _: g, lambda _, t, i: t * 8 + (i & 7) + (32 if i >= 8 else 0), 16),
}


def nibbles(codes: np.ndarray) -> np.ndarray:
    """Registers of a fragment whose elements are codes of four bits, the first lowest."""
    pairs = codes.view(np.uint8).reshape(32, -1, 2)
    return (pairs[..., 0] | pairs[..., 1] << 4).view(np.uint32)


def test_e2m1_rounds_to_nearest_even_and_saturates(folder: Path):
    ties = {0.25: 0, 0.75: 2, 1.25: 2, 1.75: 4, 2.5: 4, 3.5: 6, 5.0: 6}  # the even code of two that are as near
    near = {0.26: 1, 0.74: 1, 0.76: 2, 2.49: 4, 2.51: 5, 4.99: 6, 5.01: 7, 7.0: 7, 448.0: 7, np.inf: 7, np.nan: 7}
    want = dict(zip(E2M1[:8], range(8), strict=True)) | ties | near
    x = np.array(list(want), np.float32)
    code = """
    unsigned r; asm("{ .reg .b8 a, b; cvt.rn.satfinite.e2m1x2.f32 a, %1, %2; cvt.rn.satfinite.e2m1x2.f32 b, %2, %1; "
                    "mov.b32 %0, {a, b, b, a}; }" : "=r"(r) : "f"(x[i]), "f"(-x[i]));
    d[i] = r;
    """
    got = elementwise(folder, code, {"x": x, "d": np.zeros(len(x), np.uint32)})["d"]
    for value, low, word in zip(x, want.values(), got, strict=True):
        minus = low if np.isnan(value) else low | 8
        first, second = low << 4 | minus, minus << 4 | low  # the first operand is the upper nibble
        assert word == first | second << 8 | second << 16 | first << 24, value


@pytest.mark.parametrize("selectors", [(0, 0, 0, 0), (2, 1, 0, 3), (0, 1, 2, 2)])
@pytest.mark.parametrize("kind", ["mxf8f6f4", "mxf4"])
def test_block_scales_are_read_where_the_selectors_point(folder: Path, kind: str, selectors: tuple[int, int, int, int]):
    byte_a, thread_a, byte_b, thread_b = selectors
    if kind == "mxf4":
        depth, parts, name = 64, 2, "mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0"
        a, b = (RNG.integers(0, 16, shape).astype(np.uint8) for shape in ((16, 64), (64, 8)))
        a_values, b_values = E2M1[a], E2M1[b]
        x, y = nibbles(fragment(a, *FOUR["a"])), nibbles(fragment(b.T, *FOUR["b"]))
    else:
        depth, parts, name = 32, 1, "mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0"
        (a, a_values), (b, b_values) = operand("e4m3", (16, 32)), operand("e4m3", (32, 8))
        x, y = fragment(a, *EIGHT["a"]), fragment(b.T, *EIGHT["b"])
    scales = RNG.integers(120, 135, (2, 32, 4)).astype(np.uint8)  # every byte of every lane differs: only the selected ones may count
    c = RNG.integers(-9, 9, (32, 4)).astype(np.float32)
    code = f"""extern "C" __global__ void k(unsigned* a, unsigned* b, unsigned* s, float* d) {{
      const int l = threadIdx.x; float c[4]; unsigned *x = a + 4 * l, *y = b + 2 * l;
      for (int i = 0; i < 4; ++i) c[i] = d[4 * l + i];
      asm volatile("mma.sync.aligned.kind::{name} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}}, "
        "{{%10}}, {{{byte_a}, {thread_a}}}, {{%11}}, {{{byte_b}, {thread_b}}};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "r"(s[l]), "r"(s[32 + l]));
      for (int i = 0; i < 4; ++i) d[4 * l + i] = c[i]; }}"""
    got = run(folder, code, {"a": x.ravel(), "b": y.ravel(), "s": scales.view(np.uint32).ravel(), "d": c.ravel()})["d"].reshape(32, 4)

    def scale(which: int, lane: int, byte: int, k: int) -> float:
        return 2.0 ** (int(scales[which, lane, byte + k * parts // depth]) - 127)

    for lane in range(32):
        for i in range(4):
            row, column = lane // 4 + (8 if i >= 2 else 0), lane % 4 * 2 + (i & 1)
            # PTX ISA, "Block Scaling": of each quad a pair of lanes holds the scales of rows r and r + 8, one lane that of a column
            of_a, of_b = row % 8 * 4 + thread_a * 2 + row // 8, column * 4 + thread_b
            products = [
                a_values[row, k] * scale(0, of_a, byte_a, k) * b_values[k, column] * scale(1, of_b, byte_b, k) for k in range(depth)
            ]
            want = sum(products) + c[lane, i]
            assert abs(got[lane, i] - want) <= 1e-5 * (1 + sum(map(abs, products))), (lane, i)


def test_selectors_out_of_range_are_refused(folder: Path):
    code = """{ float c[4] = {}; unsigned z = 0; asm volatile("mma.sync.aligned.kind::mxf4.block_scale.scale_vec::2X.m16n8k64."
      "row.col.f32.e2m1.e2m1.f32.ue8m0 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%4, %4}, {%0, %1, %2, %3}, {%4}, {1, 0}, {%4}, {0, 0};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(z)); }"""  # two scales start at byte 0 or 2
    with pytest.raises(judge.FaultError, match="byte-id 1 or 0"):
        run(folder, ONE + code, {"o": np.zeros(1, np.float32)})


# ---- Hopper --------------------------------------------------------------------------------------
HOPPER = """
struct __align__(64) TensorMap { unsigned long long opaque[16]; };
using u64 = unsigned long long;
__device__ unsigned addr(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void wait(u64* bar, int parity) {
  int done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(addr(bar)), "r"(parity) : "memory");
}
__device__ void expect(u64* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(addr(bar)), "r"(bytes) : "memory");
}
__device__ void init(u64* bar) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(addr(bar)), "r"(1) : "memory"); }
__device__ void load(void* dst, const TensorMap* map, u64* bar, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
               ::"r"(addr(dst)), "l"(map), "r"(addr(bar)), "r"(x), "r"(y) : "memory");
}
"""


def wgmma(name: str, accumulator: str, registers: int, tail: str) -> str:
    """The C++ of one wgmma on descriptors da and db into c[], accumulating onto what is there."""
    letter = "f" if accumulator == "float" else "r"
    outs = ", ".join(f'"+{letter}"(c[{i}])' for i in range(registers))
    places = ", ".join(f"%{i}" for i in range(registers))
    n = registers
    return f"""asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{n + 2}, 0; "
        "wgmma.mma_async.sync.aligned.{name} {{{places}}}, %{n}, %{n + 1}, p{tail}; }}"
        : {outs} : "l"(da), "l"(db), "r"(1));
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");"""


@pytest.mark.parametrize(
    ("kind", "name", "accumulator", "tail"),
    [
        ("f16", "m64n64k16.f32.f16.f16", "float", ", 1, 1, 0, 0"),
        ("bf16", "m64n64k16.f32.bf16.bf16", "float", ", 1, 1, 0, 0"),
        ("e4m3", "m64n64k32.f32.e4m3.e4m3", "float", ", 1, 1"),
        ("s8", "m64n64k32.s32.s8.s8", "int", ""),
    ],
)
def test_wgmma_on_tiles_that_tma_swizzled(folder: Path, kind: str, name: str, accumulator: str, tail: str):
    wide = 2 if kind in ("f16", "bf16") else 1
    columns = 128 // wide  # one swizzle row
    (a, a_values), (b, b_values) = operand(kind, (64, columns)), operand(kind, (64, columns))
    code = f"""{HOPPER}
    extern "C" __global__ void k(const __grid_constant__ TensorMap ma, const __grid_constant__ TensorMap mb, {accumulator}* d) {{
      extern __shared__ __align__(1024) unsigned char s[]; __shared__ __align__(8) u64 bar;
      if (threadIdx.x == 0) {{ init(&bar); expect(&bar, 16384); load(s, &ma, &bar, 0, 0); load(s + 8192, &mb, &bar, 0, 0); }}
      __syncthreads();
      wait(&bar, 0);
      {accumulator} c[32] = {{}};
      for (int step = 0; step < 4; ++step) {{
        const u64 da = (u64)(addr(s) >> 4) + 2 * step | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62, db = da + (8192 >> 4);
        {wgmma(name, accumulator, 32, tail)}
      }}
      const int t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4, col = t % 4 * 2;
      for (int i = 0; i < 32; ++i) d[(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + col + i % 2] = c[i];
    }}"""
    d = np.full((64, 64), 7, np.int32 if kind == "s8" else np.float32)
    case = Case(name="test", shape={}, buffers={"a": a, "b": b, "d": d}, scalars={}, expected={})
    tiles = (Tile(buffer="a", box=(columns, 64)), Tile(buffer="b", box=(columns, 64)), "d")
    plan = Plan(launches=(Launch(kernel="k", grid=(1, 1, 1), block=128, args=tiles, smem=16384),))
    got = emulate.run(emulate.build(HEADERS + code, folder), plan, case)["d"]
    np.testing.assert_allclose(got, a_values @ b_values.T, rtol=1e-4, atol=1e-3)


def test_wgmma_without_swizzle_reads_core_matrices(folder: Path):
    a, b = (RNG.standard_normal((rows, 16)).astype(np.float16) for rows in (64, 8))

    def cores(m: np.ndarray) -> np.ndarray:  # 8 x 16-byte core matrices: all of one half of K, then the other
        return np.concatenate([m[:, :8].ravel(), m[:, 8:].ravel()])

    code = f"""{HOPPER}
    extern "C" __global__ void k(unsigned short* a, unsigned short* b, float* d) {{
      __shared__ __align__(128) unsigned short s[64 * 16 + 8 * 16]; const int t = threadIdx.x;
      for (int i = t; i < 1152; i += 128) s[i] = i < 1024 ? a[i] : b[i - 1024];
      __syncthreads();
      float c[4] = {{}};
      const u64 da = (u64)(addr(s) >> 4) | (u64)(1024 >> 4) << 16 | (u64)(128 >> 4) << 32;
      const u64 db = (u64)(addr(s + 1024) >> 4) | (u64)(128 >> 4) << 16 | (u64)(128 >> 4) << 32;
      {wgmma("m64n8k16.f32.f16.f16", "float", 4, ", 1, 1, 0, 0")}
      for (int i = 0; i < 4; ++i) d[(t / 32 * 16 + t % 32 / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = c[i];
    }}"""
    got = run(folder, code, {"a": cores(a).view(np.uint16), "b": cores(b).view(np.uint16), "d": np.zeros(512, np.float32)}, block=128)["d"]
    np.testing.assert_allclose(got.reshape(64, 8), a.astype(np.float64) @ b.T.astype(np.float64), rtol=1e-3, atol=1e-3)


def test_tma_fills_with_zeros_outside_and_bulk_copies_land(folder: Path):
    x = RNG.standard_normal((5, 40)).astype(np.float16)
    code = f"""{HOPPER}
    extern "C" __global__ void k(const __grid_constant__ TensorMap m, __half* x, __half* y, __half* z) {{
      __shared__ __align__(1024) __half s[8 * 64]; __shared__ __align__(16) __half flat[40]; __shared__ __align__(8) u64 bar;
      const int t = threadIdx.x;
      if (t == 0) {{
        init(&bar); expect(&bar, 1024 + 80); load(s, &m, &bar, 8, 2);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"(addr(flat)), "l"(x), "r"(80), "r"(addr(&bar)) : "memory");
      }}
      __syncthreads(); wait(&bar, 0);
      for (int i = t; i < 512; i += 32) y[i] = s[(i * 2 ^ (i * 2 >> 7 & 7) << 4) / 2];
      for (int i = t; i < 40; i += 32) z[i] = flat[i];
    }}"""
    case = Case(
        name="test", shape={}, buffers={"x": x, "y": np.zeros((8, 64), np.float16), "z": np.zeros(40, np.float16)}, scalars={}, expected={}
    )
    plan = Plan(launches=(Launch(kernel="k", grid=(1, 1, 1), block=32, args=(Tile(buffer="x", box=(64, 8)), "x", "y", "z")),))
    got = emulate.run(emulate.build(HEADERS + code, folder), plan, case)
    want = np.zeros((8, 64), np.float16)
    want[:3, :32] = x[2:, 8:]
    np.testing.assert_array_equal(got["y"], want)
    np.testing.assert_array_equal(got["z"], x[0])


def test_tma_fetches_a_box_of_a_map_with_other_columns_as_it_is(folder: Path):
    x = RNG.standard_normal((6, 2, 32)).astype(np.float16)  # as rows of 64: box 32 x 4 is one half of four rows
    code = f"""{HOPPER}
    extern "C" __global__ void k(const __grid_constant__ TensorMap m, __half* y) {{
      __shared__ __align__(128) __half s[4 * 32]; __shared__ __align__(8) u64 bar;
      const int t = threadIdx.x;
      if (t == 0) {{ init(&bar); expect(&bar, 256); load(s, &m, &bar, 32, 1); }}
      __syncthreads(); wait(&bar, 0);
      for (int i = t; i < 128; i += 32) y[i] = s[i];
    }}"""
    case = Case(name="test", shape={}, buffers={"x": x, "y": np.zeros((4, 32), np.float16)}, scalars={}, expected={})
    tile = Tile(buffer="x", box=(32, 4), columns=64, swizzle=False)
    plan = Plan(launches=(Launch(kernel="k", grid=(1, 1, 1), block=32, args=(tile, "y")),))
    got = emulate.run(emulate.build(HEADERS + code, folder), plan, case)
    np.testing.assert_array_equal(got["y"], x[1:5, 1])


# ---- clusters ------------------------------------------------------------------------------------
CLUSTER = """
__device__ unsigned rank() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ unsigned size() { unsigned n; asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n)); return n; }
__device__ void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ void sync() { arrive(); wait(); }
__device__ unsigned map(const void* p, unsigned of) {
  unsigned a; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"((unsigned)__cvta_generic_to_shared(p)), "r"(of)); return a;
}
__device__ float get(const float* p, unsigned of) {
  float v; asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(map(p, of)) : "memory"); return v;
}
__device__ void put(float* p, unsigned of, float v) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(map(p, of)), "f"(v) : "memory");
}
extern "C" __global__ void __cluster_dims__(DIMS) k(float* o) """
PAIR = CLUSTER.replace("DIMS", "2, 1, 1")


@pytest.mark.parametrize("order", emulate.ORDERS)
def test_blocks_of_a_cluster_see_each_others_shared_memory(folder: Path, order: int):
    code = """{
      __shared__ float mine[64]; extern __shared__ float big[];
      const int t = threadIdx.x, at = (blockIdx.y * gridDim.x + blockIdx.x) * 64 + t;
      mine[t] = 100 * rank() + t; big[t] = 1000 * blockIdx.x + 10000 * blockIdx.y;
      sync();
      o[at] = get(mine + 63 - t, (rank() + 1) % size()) + get(big + t, (rank() + 2) % size());
      sync(); }"""
    source = CLUSTER.replace("DIMS", "SIDE, SIDE, 1").replace("extern", "constexpr int SIDE = 2;\nextern", 1)
    got = run(folder, source + code, {"o": np.zeros(4 * 2 * 64, np.float32)}, grid=(4, 2, 1), block=64, smem=256, order=order)["o"]
    for (y, x, t), value in np.ndenumerate(got.reshape(2, 4, 64)):
        rank = y * 2 + x % 2
        next_row = (rank + 2) % 4 // 2
        assert value == 100 * ((rank + 1) % 4) + 63 - t + 1000 * x + 10000 * next_row, (y, x, t)


def test_vectors_to_and_from_another_block(folder: Path):
    code = """{
      __shared__ __align__(16) float s[128]; const int t = threadIdx.x; float a, b, c, d; const unsigned there = map(s + 4 * t, rank() ^ 1);
      sync();
      asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(t + 0.0f), "f"(t + 0.25f), "f"(t + 0.5f),
        "f"(100.0f * rank()) : "memory");
      sync();
      asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(c), "=f"(d) : "r"(there + 8) : "memory");
      asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"((unsigned)__cvta_generic_to_shared(s + 4 * t)));
      o[blockIdx.x * 128 + 4 * t] = a; o[blockIdx.x * 128 + 4 * t + 1] = b; o[blockIdx.x * 128 + 4 * t + 2] = c;
      o[blockIdx.x * 128 + 4 * t + 3] = d + s[4 * t + 3];
      sync(); }"""
    got = run(folder, PAIR + code, {"o": np.zeros(256, np.float32)}, grid=(2, 1, 1))["o"].reshape(2, 32, 4)
    np.testing.assert_array_equal(got[..., :3], np.broadcast_to(np.arange(32)[:, None] + np.arange(3) / 4, (2, 32, 3)))
    assert (got[..., 3] == 100).all()


def test_barriers_votes_and_poison_are_each_blocks_own(folder: Path):
    code = """{
      __shared__ float s[32], unset[32]; const int t = threadIdx.x;
      if (rank() == 0) for (int i = 0; i < 3; ++i) { s[t] = i; __syncthreads(); s[t ^ 1] += 1; __syncthreads(); }
      const int n = __syncthreads_count(rank() == 1);
      arrive(); o[blockIdx.x * 32 + t] = n + blockIdx.x * 1000; wait();
      if (t == 0) o[128 + blockIdx.x] = get(unset, rank() ^ 1);
      sync(); }"""
    got = run(folder, PAIR + code, {"o": np.zeros(132, np.float32)}, grid=(4, 1, 1))["o"]
    assert np.isnan(got[128:]).all()
    assert got[:128].tolist() == np.repeat([0, 1032, 2000, 3032], 32).tolist()


CLUSTER_FAULTS = {
    "no barrier before another block's memory is read": (
        "race",
        "{ __shared__ float s; s = 1; __syncwarp(); o[rank()] = get(&s, rank() ^ 1); sync(); }",
    ),
    "no barrier before another block's memory is written": (
        "race",
        "{ __shared__ float s; put(&s, rank() ^ 1, 1); sync(); o[rank()] = s; }",
    ),
    "memory written again while another block may read it": (
        "race",
        "{ __shared__ float s; const int t = threadIdx.x; if (t == 0) s = 1; sync(); o[rank()] = get(&s, rank() ^ 1); __syncthreads();"
        " if (t == 0) s = 2; sync(); }",
    ),
    "access between arrive and wait": (
        "race",
        "{ __shared__ float s; const int t = threadIdx.x; arrive(); if (t == 0) s = 1; wait(); o[rank()] = get(&s, rank() ^ 1); sync(); }",
    ),
    "two blocks write one word": ("race", "{ __shared__ float s; sync(); if (threadIdx.x == 0) put(&s, 0, 1); sync(); o[rank()] = s; }"),
    "barrier of the block for one of the cluster": (
        "race",
        "{ __shared__ float s; sync(); if (threadIdx.x == 0) s = 1; __syncthreads(); o[rank()] = get(&s, rank() ^ 1); sync(); }",
    ),
    "block exits while another may read its memory": (
        "bounds",
        "{ __shared__ float s; if (threadIdx.x == 0) s = 1; sync(); o[rank()] = get(&s, rank() ^ 1); }",
    ),
    "barrier before exit on one side only": (
        "bounds",
        "{ __shared__ float s; if (threadIdx.x == 0) s = 1; sync(); if (rank() == 0) { o[0] = get(&s, 1); sync(); } }",
    ),
    "past the shared memory of a launch": (
        "bounds",
        "{ extern __shared__ float s[]; sync(); o[rank()] = get(s + 32, rank() ^ 1); sync(); }",
    ),
    "past all shared memory": ("bounds", "{ __shared__ float s; sync(); o[rank()] = get(&s + 100000, rank() ^ 1); sync(); }"),
    "block that the cluster lacks": ("bounds", "{ __shared__ float s; sync(); o[rank()] = get(&s, rank() + 1); sync(); }"),
    "barrier of the cluster that waits for one of the block": (
        "deadlock",
        "{ if (threadIdx.x == 0 && rank() == 0) sync(); __syncthreads(); if (rank() == 1) sync(); o[rank()] = 1; }",
    ),
    "second arrive without a wait": ("trap", "{ arrive(); arrive(); wait(); o[0] = 1; }"),
    "wait without an arrive": ("trap", "{ wait(); o[0] = 1; }"),
    "misaligned vector in another block": (
        "misaligned",
        '{ __shared__ float s[8]; sync(); float a, b; asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b)'
        ' : "r"(map(s + 1, 0))); o[rank()] = a + b; sync(); }',
    ),
}
CLUSTER_SOUND = {
    "sum over a cluster": "{ __shared__ float s; if (threadIdx.x == 0) s = rank() + 1; sync(); float sum = 0;"
    " for (unsigned b = 0; b < size(); ++b) sum += get(&s, b); sync(); o[rank()] = sum; }",
    "sums pushed to a slot each": "{ __shared__ float s[2]; sync(); if (threadIdx.x < 2) put(s + rank(), threadIdx.x, rank() + 1); sync();"
    " o[rank()] = s[0] + s[1]; }",
    "work between arrive and wait": "{ __shared__ float s, other; if (threadIdx.x == 0) s = rank() + 1; arrive();"
    " if (threadIdx.x == 0) other = 1; wait(); const float sum = get(&s, 0) + get(&s, 1); sync(); o[rank()] = sum; }",
    "memory used again after a barrier": "{ __shared__ float s; float sum = 0; for (int i = 0; i < 3; ++i) { if (threadIdx.x == 0) s = i;"
    " sync(); sum += get(&s, rank() ^ 1); sync(); } o[rank()] = sum; }",
    "threads that left no longer count": "{ __shared__ float s; if (threadIdx.x == 0) s = 1.5f; if (threadIdx.x >= 32) {"
    " arrive(); return; }"
    " sync(); const float sum = get(&s, 0) + get(&s, 1); sync(); o[rank()] = sum; }",
    "a reader that leaves first": "{ __shared__ float s; if (threadIdx.x == 0) s = 3; sync(); if (rank() == 1) o[0] = o[1] = get(&s, 0);"
    " arrive(); if (rank() == 0) wait(); }",
}


@pytest.mark.parametrize("order", emulate.ORDERS)
@pytest.mark.parametrize("what", CLUSTER_FAULTS)
def test_faults_between_blocks_are_found_in_every_order(folder: Path, what: str, order: int):
    kind, code = CLUSTER_FAULTS[what]
    with pytest.raises(judge.FaultError) as found:
        run(folder, PAIR + code, {"o": np.zeros(256, np.float32)}, grid=(2, 1, 1), block=64, smem=128, order=order)
    assert found.value.kind == kind, found.value


@pytest.mark.parametrize("order", emulate.ORDERS)
@pytest.mark.parametrize("what", CLUSTER_SOUND)
def test_sound_clusters_are_not_flagged(folder: Path, what: str, order: int):
    assert emulate.build(HEADERS + PAIR + CLUSTER_SOUND[what], folder).race_check
    got = run(folder, PAIR + CLUSTER_SOUND[what], {"o": np.zeros(4, np.float32)}, grid=(4, 1, 1), block=64, order=order)["o"]
    assert got.tolist() == [3, 3, 0, 0]


def test_a_grid_is_a_whole_number_of_clusters(folder: Path):
    with pytest.raises(judge.FaultError, match="the grid is no multiple of the cluster"):
        run(folder, PAIR + "{}", {"o": np.zeros(4, np.float32)}, grid=(3, 1, 1))
    with pytest.raises(judge.FaultError, match="invalid launch configuration"):
        run(folder, CLUSTER.replace("DIMS", "16, 1, 1") + "{}", {"o": np.zeros(4, np.float32)}, grid=(16, 1, 1))


def test_what_clusters_of_several_blocks_lack_is_named(folder: Path):
    code = (
        '{ __shared__ __align__(8) unsigned long long b; asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(map(&b, rank()))); }'
    )
    with pytest.raises(judge.FaultError, match="mbarrier in a cluster of several blocks is not emulated"):
        run(folder, PAIR + code, {"o": np.zeros(4, np.float32)}, grid=(2, 1, 1))


# ---- faults --------------------------------------------------------------------------------------
FAULTS = {
    "exchange in a warp without __syncwarp": ("race", "{ __shared__ float s[64]; int i = threadIdx.x; s[i] = i; o[i] = s[i ^ 1]; }"),
    "exchange between warps with __syncwarp only": (
        "race",
        "{ __shared__ float s[64]; int i = threadIdx.x; s[i] = i; __syncwarp(); o[i] = s[i ^ 32]; }",
    ),
    "atomics, then a read without barrier": (
        "race",
        "{ __shared__ int c; if (threadIdx.x == 0) c = 0; __syncthreads(); atomicAdd(&c, 2); o[threadIdx.x] = c; }",
    ),
    "read past a buffer": ("bounds", "{ o[threadIdx.x] = o[threadIdx.x + 193]; }"),
    "write before a buffer": ("bounds", "{ (o - 1)[threadIdx.x] = 1; }"),
    "shared memory past the launch": ("bounds", "{ extern __shared__ float s[]; s[threadIdx.x] = 1; o[threadIdx.x] = s[threadIdx.x]; }"),
    "full-mask shuffle after half a warp left": (
        "deadlock",
        "{ int i = threadIdx.x; if (i % 32 >= 16) return; o[i] = __shfl_xor_sync(0xffffffffu, (float)i, 1); }",
    ),
    "barrier that a warp never reaches": (
        "deadlock",
        '{ if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory"); o[threadIdx.x] = 1; }',
    ),
    "misaligned vector": (
        "misaligned",
        "{ float4 v = *reinterpret_cast<float4*>(o + 1 + threadIdx.x); *reinterpret_cast<float4*>(o + 4 * threadIdx.x) = v; }",
    ),
    "lane outside its own mask": ("trap", "{ int i = threadIdx.x; o[i] = __shfl_xor_sync(0x0000ffffu, (float)i, 1); }"),
    "shuffle from a lane outside the mask": (
        "trap",
        "{ int i = threadIdx.x; if (i % 32 < 16) o[i] = __shfl_xor_sync(0x0000ffffu, (float)i, 16); }",
    ),
}
SOUND = {
    "exchange in a warp with __syncwarp": "{ __shared__ float s[64]; int i = threadIdx.x; s[i] = i; __syncwarp(); o[i] = s[i ^ 1]; }",
    "barrier after early exit": "{ __shared__ float s[64]; int i = threadIdx.x; if (i >= 40) return; s[i] = i; __syncthreads();"
    " o[i] = s[39 - i]; }",
    "halves of a warp apart": "{ int i = threadIdx.x; float v = i % 32 < 16 ? __shfl_xor_sync(0x0000ffffu, (float)i, 1)"
    " : __shfl_xor_sync(0xffff0000u, (float)i, 2); o[i] = v; }",
    "atomics, then a barrier": "{ __shared__ int c; if (threadIdx.x == 0) c = 0; __syncthreads(); atomicAdd(&c, 2); __syncthreads();"
    " o[threadIdx.x] = c; }",
    "barriers at two places": "{ __shared__ float s[64]; int i = threadIdx.x; s[i] = i; if (i % 2) __syncthreads();"
    " else { __syncwarp(0x55555555u); __syncthreads(); } o[i] = s[63 - i]; }",
}


@pytest.mark.parametrize("order", emulate.ORDERS)
@pytest.mark.parametrize("what", FAULTS)
def test_faults_are_found_in_every_order(folder: Path, what: str, order: int):
    kind, code = FAULTS[what]
    with pytest.raises(judge.FaultError) as found:
        run(folder, ONE + code, {"o": np.zeros(256, np.float32)}, block=64, smem=128, order=order)
    assert found.value.kind == kind
    assert str(found.value).startswith("block (0,0,0) thread ")


@pytest.mark.parametrize("order", emulate.ORDERS)
@pytest.mark.parametrize("what", SOUND)
def test_sound_kernels_are_not_flagged(folder: Path, what: str, order: int):
    run(folder, ONE + SOUND[what], {"o": np.zeros(256, np.float32)}, block=64, order=order)


def test_uninitialised_memory_is_poison(folder: Path):
    code = "{ __shared__ float s[32]; float local[2]; o[threadIdx.x] = s[threadIdx.x]; o[32 + threadIdx.x] = local[threadIdx.x & 1]; }"
    got = run(folder, ONE + code, {"o": np.zeros(64, np.float32)})["o"]
    assert np.isnan(got[:32]).all()
    assert (np.abs(got[32:]) > 1e30).all()


def judged(folder: Path, code: str) -> judge.Verdict:
    case = Case(name="only", shape={}, buffers={"o": np.zeros(64, np.float32)}, scalars={}, expected={"o": np.ones(64)})
    plan = Plan(launches=(Launch(kernel="k", grid=(1, 1, 1), block=64, args=("o",)),))
    return emulate.judged(ONE + code, lambda _: plan, case, 0.01, folder)


def test_a_verdict_covers_all_orders(folder: Path):
    assert judged(folder, "{ o[threadIdx.x] = 1.0f; }") == judge.Verdict(kind="ok", error=0.0)
    assert judged(folder, "{ o[threadIdx.x] = 1.5f; }") == judge.Verdict(kind="numeric", error=0.25, case="only")
    assert judged(folder, "{ __shared__ volatile int s; s = threadIdx.x; o[threadIdx.x] = s >= 0; }").kind == "race"


@pytest.mark.parametrize("stray", [-1, 64, -5000, 5000, 200_000])
def test_an_access_astray_hits_no_other_buffer_wherever_the_heap_puts_it(folder: Path, stray: int):
    buffers = {name: np.zeros(64, np.float32) for name in "abcdefgh"}
    source = 'extern "C" __global__ void k(' + ", ".join(f"float* {name}" for name in buffers) + ") { d[" + str(stray) + "] = 1.0f; }"
    with pytest.raises(judge.FaultError, match="thread 0: out-of-bounds global write of 4 bytes"):
        run(folder, source, buffers)


def test_a_kernel_that_never_ends_costs_only_its_own_verdict(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(emulate, "CPU_SECONDS", 1)
    found = judged(folder, "{ volatile float x = 0; while (x < 1) o[0] = x; }")
    assert (found.kind, found.message) == ("deadlock", "did not finish within 1 s of CPU time")


def test_a_kernel_that_crashes_costs_only_its_own_verdict(folder: Path):
    found = judged(folder, "{ o[threadIdx.x] = threadIdx.x / int(blockDim.y - 1); }")
    assert (found.kind, found.message) == ("trap", "crashed: SIGFPE")


@pytest.mark.parametrize(("stride", "sectors", "passes"), [(1, 4, 1), (2, 8, 2), (32, 32, 32)])
def test_a_profile_counts_sectors_and_bank_conflicts(folder: Path, stride: int, sectors: int, passes: int):
    code = f"{{ __shared__ float s[1024]; const int i = threadIdx.x * {stride}; s[i] = o[i]; o[i] = s[i] + 1; }}"
    case = Case(name="test", shape={}, buffers={"o": np.zeros(1024, np.float32)}, scalars={}, expected={})
    plan = Plan(launches=(Launch(kernel="k", grid=(1, 1, 1), block=32, args=("o",)),))
    (found,) = emulate.profiled(emulate.build(ONE + code, folder), plan, case)
    assert (found.requests, found.sectors, found.bytes) == (2, 2 * sectors, 2 * 128)
    assert found.conflicted == passes * found.wavefronts


# ---- messages ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            '{ asm volatile("frobnicate.f32 %0, %1;" : "=f"(o[0]) : "f"(o[1])); }',
            "PTX instruction frobnicate.f32 is not emulated: add ptx_frobnicate_f32",
        ),
        ("{ o[0] = __frobnicate(o[1]); }", "intrinsic __frobnicate is not emulated"),
        ("{ o[0] = oops; }", "'oops' was not declared"),
    ],
)
def test_what_is_missing_is_named(folder: Path, code: str, said: str):
    with pytest.raises(emulate.BuildError) as refused:
        emulate.build(ONE + code, folder)
    assert said in str(refused.value)


def test_forbidden_constructs_are_refused_before_building(folder: Path):
    with pytest.raises(ptx.UnsupportedError, match=r"line 1: .*cooperative groups are not emulated"):
        emulate.build("using namespace cooperative_groups;", folder)


def test_launches_must_fit_their_kernel(folder: Path):
    buffers = {"o": np.zeros(4, np.float32)}
    with pytest.raises(TypeError, match="passes 2 arguments, the kernel takes 1"):
        run(folder, ONE + "{}", buffers, 3)
    with pytest.raises(TypeError, match="argument 1 of the launch is of another kind"):
        run(folder, 'extern "C" __global__ void k(float* o, int n) {}', buffers, 0.5)
    with pytest.raises(KeyError, match="'nowhere' is no buffer, scratch buffer, scalar or axis"):
        run(folder, ONE + "{}", buffers, "nowhere")
    with pytest.raises(judge.FaultError, match="invalid launch configuration"):
        run(folder, ONE + "{}", buffers, block=2048)


def test_dynamic_shared_memory_and_grids_have_their_size(folder: Path):
    code = """extern "C" __global__ void k(int* o) {
      extern __shared__ int s[]; s[threadIdx.x] = threadIdx.x; __syncthreads();
      const int block = blockIdx.y * gridDim.x + blockIdx.x, tens = 100 * blockIdx.x + 1000 * blockIdx.y;
      o[block * blockDim.x + threadIdx.x] = s[blockDim.x - 1 - threadIdx.x] + tens; }"""
    got = run(folder, code, {"o": np.zeros(2 * 3 * 40, np.int32)}, grid=(3, 2, 1), block=40, smem=160)["o"].reshape(2, 3, 40)
    np.testing.assert_array_equal(got, np.arange(40)[::-1] + 100 * np.arange(3)[:, None] + 1000 * np.arange(2)[:, None, None])
