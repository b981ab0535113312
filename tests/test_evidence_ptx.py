"""Inline PTX to C++, and what is refused before anything is built."""

import pytest

from generator.evidence import ptx


def body(text: str) -> str:
    """Translation of one statement inside a function."""
    return ptx.translate(f"__device__ void f(int a, int* p) {{ {text} }}")


def test_each_instruction_becomes_a_call_with_operands_in_ptx_order():
    out = body('asm volatile("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(x[i + 1]), "r"(f(a, b)));')
    assert "ptx_lop3_b32((d), (a), (x[i + 1]), (f(a, b)), 0xea);" in out


def test_braces_brackets_and_string_pieces_are_joined():
    out = body('asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "\n"{%0, %1}, {%2};\\n" : "+f"(c[0]), "+f"(c[1]) : "r"(a));')
    assert "ptx_mma_sync_aligned_m16n8k8_row_col_f32_f16_f16_f32((c[0]), (c[1]), (a));" in out


def test_predicates_become_variables_and_guards_ifs():
    out = body('asm volatile("{ .reg .pred p, q; setp.ne.b32 p, %1, 0; @!p mov.u32 %0, 7; }" : "+r"(d) : "r"(a));')
    assert "int p = 0; int q = 0;" in out
    assert "ptx_setp_ne_b32(p, (a), 0);" in out
    assert "if (!p) ptx_mov_u32((d), 7);" in out


def test_float_literals_sinks_and_special_registers():
    out = body('asm("fma.rn.f32 %0, %1, 0f3F800000, %%laneid; mbarrier.arrive.shared::cta.b64 _, [%2];" : "=f"(d) : "f"(a), "r"(b));')
    assert "emu::bits<float>(0x3F800000u)" in out
    assert "emu_laneid" in out
    assert "ptx_mbarrier_arrive_shared_b64(emu_sink, (b));" in out


def test_cache_hints_are_dropped():
    out = body('asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(a), "l"(p));')
    assert "ptx_cp_async_cg_shared_global((a), (p), 16);" in out


def test_dynamic_shared_memory_becomes_a_pointer():
    out = ptx.translate('extern "C" __global__ void k(float* o) { extern __shared__ __align__(16) unsigned char raw[]; }')
    assert "unsigned char* const raw = reinterpret_cast<unsigned char*>(emu::dyn_smem);" in out


def test_kernels_are_found_whatever_stands_before_their_name():
    source = """
    extern "C" __global__ void __launch_bounds__(THREADS * (A + 1), 2)
    first(int a) {}
    // __global__ void commented(int a) {}
    __global__ __launch_bounds__(256) void second(int a) {}
    extern "C" __global__ void third(int a) {}
    """
    assert ptx.kernels(source) == ("first", "second", "third")


def test_cluster_sizes_go_to_the_launch():
    source = """
    constexpr int SPLIT = 4;
    extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(256)
    first(int a) { asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(a)); }
    __global__ void second(int a) {}
    """
    out = ptx.translate(source)
    assert "emu::run(cfg, dim3{SPLIT, 1, 1}, n, first, args)" in out
    assert "emu::run(cfg, dim3{}, n, second, args)" in out
    assert "ptx_mov_u32((a), emu_cluster_ctarank);" in out


def test_line_numbers_survive():
    source = 'void f() {\n  asm volatile(\n"bar.sync 1, 64;"\n:::\n"memory");\n  here();\n}\n'
    assert ptx.translate(source).split("\n").index("  here();") == source.split("\n").index("  here();") + 1  # one line for the namespace


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("#include <cooperative_groups.h>", "#include <cooperative_groups.h>: a kernel may include cuda.h"),
        ("#include <cstdio>", "line 1: #include <cstdio>"),
        ("\nvoid f() { nvcuda::wmma::load(); }", "line 2: 'wmma': nvcuda::wmma is not emulated: use mma.sync"),
        ('void f() { printf("x"); }', "printf is not emulated"),
        ("float f() { return -INFINITY; }", "INFINITY needs a host header"),
        ("int f() { return __activemask(); }", "name the lanes in the mask"),
        ("__cluster_dims__(2, 1, 1) __global__ void f();", "__cluster_dims__ must stand between __global__ and the kernel's name"),
        (
            'void f() { asm("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(a)); }',
            "of clusters, only barrier.cluster, mapa",
        ),
        (
            'void f() { asm("cp.async.bulk.tensor.2d.shared::cluster.global.multicast::cluster [%0];"); }',
            "of clusters, only barrier.cluster",
        ),
        ("int f() { return *__cluster_map_shared_rank(p, 1); }", "'__cluster_map_shared_rank': of clusters, only barrier.cluster"),
        ("long f() { return clock64(); }", "a kernel must not depend on them"),
        ("void f() { __nanosleep(20); }", "spinning is not emulated"),
        ("void f() { atomicAdd_block(p, 1); }", "scoped atomics are not emulated"),
        ('void f() { asm volatile("LOOP: bra LOOP;"); }', "branches and labels in PTX are not emulated"),
        ('void f() { asm volatile("{ bra DONE; }"); }', "branches and labels in PTX are not emulated"),
        ("void f() { asm volatile(MACRO : : ); }", "asm text must be string literals only, without macros"),
    ],
)
def test_forbidden_constructs_are_refused_by_name(source: str, said: str):
    with pytest.raises(ptx.UnsupportedError, match=r"line \d") as refused:
        ptx.translate(source)
    assert said in str(refused.value)


def test_a_comment_may_mention_what_is_forbidden():
    ptx.translate("// no printf(, no INFINITY\n/* wmma::\n */ void f() {}")
