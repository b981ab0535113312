// PTX up to sm_89, one function a mnemonic: ptx.py turns `ldmatrix.sync.aligned.m8n8.x4.shared.b16 ...` into a call of
// ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16 with the operands in PTX order. Destinations are references, memory operands
// shared offsets (unsigned) or global pointers. Cache hints (.L2::128B and kin) and ::cta are dropped by ptx.py.
#pragma once
static int emu_sink __attribute__((unused)); // the operand `_`
#define emu_laneid emu::self->lane
#define emu_warpid emu::self->rank / 32

// ---- predicates, moves, bits -------------------------------------------------------------------
#define EMU_SETP(type, T)                                                                              \
  static inline void ptx_setp_eq_##type(int& p, T a, T b) { p = a == b; }                              \
  static inline void ptx_setp_ne_##type(int& p, T a, T b) { p = a != b; }                              \
  static inline void ptx_setp_lt_##type(int& p, T a, T b) { p = a < b; }                               \
  static inline void ptx_setp_le_##type(int& p, T a, T b) { p = a <= b; }                              \
  static inline void ptx_setp_gt_##type(int& p, T a, T b) { p = a > b; }                               \
  static inline void ptx_setp_ge_##type(int& p, T a, T b) { p = a >= b; }
EMU_SETP(b32, int) EMU_SETP(s32, int) EMU_SETP(u32, unsigned) EMU_SETP(f32, float)
template <class D, class A, class B> static inline void ptx_selp_b32(D& d, A a, B b, int p) { d = p ? D(a) : D(b); }
#define ptx_selp_u32 ptx_selp_b32
#define ptx_selp_s32 ptx_selp_b32
#define ptx_selp_f32 ptx_selp_b32
template <class D, class S> static inline void ptx_mov_u32(D& d, S s) { d = D(s); }
template <class D, class S> static inline void ptx_mov_s32(D& d, S s) { d = D(s); }
template <class D, class S> static inline void ptx_mov_b32(D& d, S s) { d = emu::bits<D>(s); }
template <class H> static inline void ptx_mov_b32(unsigned& d, H lo, H hi) { // d = {lo, hi}
  d = unsigned(emu::bits<uint16_t>(lo)) | unsigned(emu::bits<uint16_t>(hi)) << 16;
}
template <class H> static inline void ptx_mov_b32(H& lo, H& hi, unsigned s) { // {lo, hi} = s
  lo = emu::bits<H>(uint16_t(s)), hi = emu::bits<H>(uint16_t(s >> 16));
}
template <class D> static inline void ptx_mov_b32(D& d, uint8_t b0, uint8_t b1, uint8_t b2, uint8_t b3) { // d = {b0, b1, b2, b3}
  d = D(b0 | unsigned(b1) << 8 | unsigned(b2) << 16 | unsigned(b3) << 24);
}
template <class D, class R> static inline void ptx_mov_b64(D& d, R lo, R hi) {
  d = emu::bits<D>(uint64_t(emu::bits<uint32_t>(lo)) | uint64_t(emu::bits<uint32_t>(hi)) << 32);
}
static inline unsigned emu_lop3(unsigned a, unsigned b, unsigned c, unsigned table) {
  unsigned d = 0;
  for (unsigned i = 0; i < 8; ++i) // i = abc: 0xf0, 0xcc and 0xaa are the tables of a, b and c themselves
    if (table >> i & 1) d |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return d;
}
template <class D> static inline void ptx_lop3_b32(D& d, unsigned a, unsigned b, unsigned c, unsigned table) { d = D(emu_lop3(a, b, c, table)); }
template <class D> static inline void ptx_prmt_b32(D& d, unsigned a, unsigned b, unsigned selector) { d = D(__byte_perm(a, b, selector)); }
template <class D> static inline void ptx_dp4a_s32_s32(D& d, unsigned a, unsigned b, int c) { d = D(emu::dot4<signed char, signed char>(a, b, c)); }
template <class D> static inline void ptx_dp4a_u32_u32(D& d, unsigned a, unsigned b, int c) { d = D(emu::dot4<unsigned char, unsigned char>(a, b, c)); }
template <class D> static inline void ptx_dp4a_u32_s32(D& d, unsigned a, unsigned b, int c) { d = D(emu::dot4<unsigned char, signed char>(a, b, c)); }
template <class D> static inline void ptx_dp4a_s32_u32(D& d, unsigned a, unsigned b, int c) { d = D(emu::dot4<signed char, unsigned char>(a, b, c)); }

// ---- conversion and approximate functions ------------------------------------------------------
static inline __half2 emu_half2(unsigned r) { return {__half::of(uint16_t(r)), __half::of(uint16_t(r >> 16))}; }
static inline unsigned emu_pack(__half2 h) { return h.x.raw | unsigned(h.y.raw) << 16; }
template <class D> static inline void ptx_cvt_rn_f16x2_f32(D& d, float hi, float lo) { d = D(emu_pack({__half(lo), __half(hi)})); }
template <class D> static inline void ptx_cvt_rn_bf16x2_f32(D& d, float hi, float lo) {
  d = D(__nv_bfloat16(lo).raw | unsigned(__nv_bfloat16(hi).raw) << 16);
}
template <class D> static inline void ptx_cvt_rn_satfinite_e4m3x2_f32(D& d, float hi, float lo) {
  d = D(emu::fp8_encode<emu::E4M3>(lo) | emu::fp8_encode<emu::E4M3>(hi) << 8);
}
template <class D> static inline void ptx_cvt_rn_satfinite_e4m3x2_f16x2(D& d, unsigned h) {
  d = D(emu::fp8_encode<emu::E4M3>(emu_half2(h).x.d()) | emu::fp8_encode<emu::E4M3>(emu_half2(h).y.d()) << 8);
}
template <class D> static inline void ptx_cvt_rn_f16x2_e4m3x2(D& d, unsigned short b) {
  d = D(emu_pack({__half(emu::fp8_decode<emu::E4M3>(uint8_t(b))), __half(emu::fp8_decode<emu::E4M3>(uint8_t(b >> 8)))}));
}
template <class D> static inline void ptx_cvt_rn_f16x2_e5m2x2(D& d, unsigned short b) {
  d = D(emu_pack({__half(emu::fp8_decode<emu::E5M2>(uint8_t(b))), __half(emu::fp8_decode<emu::E5M2>(uint8_t(b >> 8)))}));
}
template <class D, class H> static inline void ptx_cvt_f32_f16(D& d, H h) { d = float(__half::of(emu::bits<uint16_t>(h))); }
template <class D> static inline void ptx_cvt_rn_f16_f32(D& d, float f) { d = emu::bits<D>(__half(f).raw); }
template <class D> static inline void ptx_cvt_rni_s32_f32(D& d, float f) { d = D(__float2int_rn(f)); }
template <class D> static inline void ptx_cvt_rni_sat_s8_f32(D& d, float f) { d = D(int(fmin(fmax(nearbyint(f), -128), 127))); }
template <class D> static inline void ptx_cvt_rna_tf32_f32(D& d, float f) { // nearest, ties away from zero, 10 mantissa bits
  d = emu::bits<D>((emu::bits<uint32_t>(f) + 0x1000u) & ~0x1fffu);
}
static inline void ptx_ex2_approx_f32(float& d, float a) { d = exp2f(a); }
static inline void ptx_ex2_approx_ftz_f32(float& d, float a) { d = exp2f(a); }
static inline void ptx_lg2_approx_f32(float& d, float a) { d = log2f(a); }
static inline void ptx_lg2_approx_ftz_f32(float& d, float a) { d = log2f(a); }
static inline void ptx_rcp_approx_f32(float& d, float a) { d = 1.0f / a; }
static inline void ptx_rcp_approx_ftz_f32(float& d, float a) { d = 1.0f / a; }
static inline void ptx_rsqrt_approx_f32(float& d, float a) { d = rsqrtf(a); }
static inline void ptx_rsqrt_approx_ftz_f32(float& d, float a) { d = rsqrtf(a); }
static inline void ptx_tanh_approx_f32(float& d, float a) { d = tanhf(a); }
template <class D> static inline void ptx_add_f16x2(D& d, unsigned a, unsigned b) { d = D(emu_pack(emu_half2(a) + emu_half2(b))); }
template <class D> static inline void ptx_sub_f16x2(D& d, unsigned a, unsigned b) { d = D(emu_pack(emu_half2(a) - emu_half2(b))); }
template <class D> static inline void ptx_mul_f16x2(D& d, unsigned a, unsigned b) { d = D(emu_pack(emu_half2(a) * emu_half2(b))); }
template <class D> static inline void ptx_fma_rn_f16x2(D& d, unsigned a, unsigned b, unsigned c) {
  d = D(emu_pack(__hfma2(emu_half2(a), emu_half2(b), emu_half2(c))));
}

// ---- memory ------------------------------------------------------------------------------------
namespace emu {
template <class P> static inline void* address(P p, unsigned bytes, bool shared) {
  if constexpr (std::is_pointer<P>::value) return const_cast<void*>(static_cast<const void*>(p));
  else return shared ? shared_ptr(unsigned(p), bytes) : reinterpret_cast<void*>(uintptr_t(p));
}
template <class P, class... D> EMU_QUIET static inline void load(bool shared, P p, D&... d) {
  constexpr unsigned each = sizeof(std::tuple_element_t<0, std::tuple<D...>>), bytes = each * sizeof...(D);
  const char* at = static_cast<const char*>(address(p, bytes, shared));
  aligned(at, bytes), touch(at, bytes, READ), profile(at, bytes, __builtin_return_address(0));
  unsigned i = 0;
  ((memcpy(&d, at + each * i++, each)), ...);
}
template <class P, class... D> EMU_QUIET static inline void store(bool shared, P p, D... d) {
  constexpr unsigned each = sizeof(std::tuple_element_t<0, std::tuple<D...>>), bytes = each * sizeof...(D);
  char* at = static_cast<char*>(address(p, bytes, shared));
  aligned(at, bytes), touch(at, bytes, WRITE), profile(at, bytes, __builtin_return_address(0));
  unsigned i = 0;
  ((memcpy(at + each * i++, &d, each)), ...);
}
} // namespace emu
#define EMU_LOAD(suffix, T)                                                                            \
  static inline void ptx_ld_global_##suffix(T& a, const void* p) { emu::load(false, p, a); }           \
  static inline void ptx_ld_global_nc_##suffix(T& a, const void* p) { emu::load(false, p, a); }        \
  static inline void ptx_ld_global_cs_##suffix(T& a, const void* p) { emu::load(false, p, a); }        \
  static inline void ptx_ld_shared_##suffix(T& a, unsigned p) { emu::load(true, p, a); }               \
  static inline void ptx_st_global_##suffix(void* p, T a) { emu::store(false, p, a); }                 \
  static inline void ptx_st_global_cs_##suffix(void* p, T a) { emu::store(false, p, a); }              \
  static inline void ptx_st_shared_##suffix(unsigned p, T a) { emu::store(true, p, a); }
#define EMU_LOAD2(suffix, T)                                                                                  \
  static inline void ptx_ld_global_v2_##suffix(T& a, T& b, const void* p) { emu::load(false, p, a, b); }      \
  static inline void ptx_ld_global_nc_v2_##suffix(T& a, T& b, const void* p) { emu::load(false, p, a, b); }   \
  static inline void ptx_ld_shared_v2_##suffix(T& a, T& b, unsigned p) { emu::load(true, p, a, b); }          \
  static inline void ptx_st_global_v2_##suffix(void* p, T a, T b) { emu::store(false, p, a, b); }             \
  static inline void ptx_st_shared_v2_##suffix(unsigned p, T a, T b) { emu::store(true, p, a, b); }
#define EMU_LOAD4(suffix, T)                                                                                                       \
  static inline void ptx_ld_global_v4_##suffix(T& a, T& b, T& c, T& d, const void* p) { emu::load(false, p, a, b, c, d); }         \
  static inline void ptx_ld_global_nc_v4_##suffix(T& a, T& b, T& c, T& d, const void* p) { emu::load(false, p, a, b, c, d); }      \
  static inline void ptx_ld_global_cs_v4_##suffix(T& a, T& b, T& c, T& d, const void* p) { emu::load(false, p, a, b, c, d); }      \
  static inline void ptx_ld_shared_v4_##suffix(T& a, T& b, T& c, T& d, unsigned p) { emu::load(true, p, a, b, c, d); }             \
  static inline void ptx_st_global_v4_##suffix(void* p, T a, T b, T c, T d) { emu::store(false, p, a, b, c, d); }                  \
  static inline void ptx_st_global_cs_v4_##suffix(void* p, T a, T b, T c, T d) { emu::store(false, p, a, b, c, d); }               \
  static inline void ptx_st_shared_v4_##suffix(unsigned p, T a, T b, T c, T d) { emu::store(true, p, a, b, c, d); }
#define EMU_LOADS(suffix, T) EMU_LOAD(suffix, T) EMU_LOAD2(suffix, T) EMU_LOAD4(suffix, T)
EMU_LOADS(u32, unsigned) EMU_LOADS(b32, unsigned) EMU_LOADS(s32, int) EMU_LOADS(f32, float)
EMU_LOAD(u16, unsigned short) EMU_LOAD(b16, unsigned short) EMU_LOAD(u64, unsigned long long) EMU_LOAD(b64, unsigned long long)
static inline void ptx_red_global_add_f32(float* p, float v) { atomicAdd(p, v); }
static inline void ptx_prefetch_global_L2(const void*) {}

// `cg` takes 16 bytes only; the bytes past `live` become zero.
template <class B> static inline void ptx_cp_async_ca_shared_global(unsigned dst, const void* src, B bytes, int live = -1) {
  if (bytes != 4 && bytes != 8 && bytes != 16) emu::fail(emu::TRAP, "cp.async of %d bytes", int(bytes));
  emu::async_copy(emu::shared_ptr(dst, bytes), src, bytes, live < 0 ? bytes : live);
}
template <class B> static inline void ptx_cp_async_cg_shared_global(unsigned dst, const void* src, B bytes, int live = -1) {
  if (bytes != 16) emu::fail(emu::TRAP, "cp.async.cg of %d bytes", int(bytes));
  ptx_cp_async_ca_shared_global(dst, src, bytes, live);
}
static inline void ptx_cp_async_commit_group() { emu::async_commit(); }
static inline void ptx_cp_async_wait_group(int n) { emu::async_wait(n); }
static inline void ptx_cp_async_wait_all() { emu::async_commit(), emu::async_wait(0); }
static inline void ptx_bar_sync(int id, int count = 0) { emu::block_barrier(id, count); }
static inline void ptx_barrier_sync(int id, int count = 0) { emu::block_barrier(id, count); }
static inline void ptx_barrier_sync_aligned(int id, int count = 0) { emu::block_barrier(id, count); }
static inline void ptx_bar_arrive(int id, int count) { emu::named_arrive(id, count); }

// ---- matrices ----------------------------------------------------------------------------------
namespace emu {
template <bool TRANS, int N> static inline void ldmatrix(unsigned* const (&r)[N], unsigned addr) {
  struct P { unsigned addr; unsigned* const* r; } p{addr, r};
  warp_meet(0xffffffffu, p, "ldmatrix", [](P** s) EMU_QUIET {
    uintptr_t rows[32];
    for (int l = 0; l < 8 * N; ++l) rows[l] = s[l]->addr;
    if (profiling()) count_shared(rows, 8 * N, 16);
    for (int m = 0; m < N; ++m)
      for (int lane = 0; lane < 32; ++lane) {
        uint16_t pair[2];
        for (int e = 0; e < 2; ++e) {
          const int row = TRANS ? lane % 4 * 2 + e : lane / 4, col = TRANS ? lane / 4 : lane % 4 * 2 + e;
          if (s[m * 8 + row]->addr % 16) fail(MISALIGNED, "ldmatrix: row address is not 16-byte aligned");
          const uint16_t* src = static_cast<uint16_t*>(shared_ptr(s[m * 8 + row]->addr, 16)) + col;
          touch(src, 2, READ);
          pair[e] = *src;
        }
        *s[lane]->r[m] = pair[0] | unsigned(pair[1]) << 16;
      }
  });
}

// One element of an operand, by the type in the mnemonic.
struct InF16 { static constexpr int bits = 16; using Sum = float; static float get(unsigned v) { return Fp16::decode(uint16_t(v)); } };
struct InBf16 { static constexpr int bits = 16; using Sum = float; static float get(unsigned v) { return Bf16::decode(uint16_t(v)); } };
struct InTf32 { static constexpr int bits = 32; using Sum = float; static float get(unsigned v) { return emu::bits<float>(v & ~0x1fffu); } };
struct InE4m3 { static constexpr int bits = 8; using Sum = float; static float get(unsigned v) { return fp8_decode<E4M3>(uint8_t(v)); } };
struct InE5m2 { static constexpr int bits = 8; using Sum = float; static float get(unsigned v) { return fp8_decode<E5M2>(uint8_t(v)); } };
struct InS8 { static constexpr int bits = 8; using Sum = int; static int get(unsigned v) { return int8_t(v); } };
struct InU8 { static constexpr int bits = 8; using Sum = int; static int get(unsigned v) { return uint8_t(v); } };

// mma.sync m16n8kK: register i of A holds 32 / bits neighbours along k, and so does register i of B; lane l owns rows l / 4 and
// l / 4 + 8 of A, column l / 4 of B, and of the result columns 2 (l % 4) and the next.
// PTX ISA, "Matrix Fragments for mma.m16n8k16" and kin: https://docs.nvidia.com/cuda/parallel-thread-execution/
template <class In, int K, class Part> static inline void fragments(Part** s, typename In::Sum (&A)[16][K], typename In::Sum (&B)[8][K]) {
  constexpr int P = 32 / In::bits, NA = K * In::bits / 64, NB = NA / 2;
  for (int l = 0; l < 32; ++l)
    for (int e = 0; e < P; ++e) {
      for (int r = 0; r < NA; ++r) A[l / 4 + r % 2 * 8][l % 4 * P + e + r / 2 * 4 * P] = In::get(s[l]->a[r] >> (e * (In::bits % 32)));
      for (int r = 0; r < NB; ++r) B[l / 4][l % 4 * P + e + r * 4 * P] = In::get(s[l]->b[r] >> (e * (In::bits % 32)));
    }
}
template <class In, int K, class Acc, int NA = K * In::bits / 64, int NB = NA / 2>
static inline void mma(Acc (&d)[4], const unsigned (&a)[NA], const unsigned (&b)[NB]) {
  struct Part { Acc* d; const unsigned *a, *b; } part{d, a, b};
  warp_meet(0xffffffffu, part, "mma.sync", [](Part** s) {
    typename In::Sum A[16][K], B[8][K];
    fragments<In, K>(s, A, B);
    for (int l = 0; l < 32; ++l)
      for (int r = 0; r < 4; ++r) {
        const auto *x = A[l / 4 + r / 2 * 8], *y = B[l % 4 * 2 + r % 2];
        typename In::Sum sum = typename In::Sum(s[l]->d[r]);
        for (int k = 0; k < K; ++k) sum += x[k] * y[k];
        s[l]->d[r] = Acc(sum);
      }
  });
}
} // namespace emu
static inline void ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned addr) {
  emu::ldmatrix<false, 4>({&a, &b, &c, &d}, addr);
}
static inline void ptx_ldmatrix_sync_aligned_m8n8_x2_shared_b16(unsigned& a, unsigned& b, unsigned addr) { emu::ldmatrix<false, 2>({&a, &b}, addr); }
static inline void ptx_ldmatrix_sync_aligned_m8n8_x1_shared_b16(unsigned& a, unsigned addr) { emu::ldmatrix<false, 1>({&a}, addr); }
static inline void ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned addr) {
  emu::ldmatrix<true, 4>({&a, &b, &c, &d}, addr);
}
static inline void ptx_ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16(unsigned& a, unsigned& b, unsigned addr) { emu::ldmatrix<true, 2>({&a, &b}, addr); }

// The accumulators of a call may be the very variables of its destinations, so they are read before any is written.
#define EMU_MMA4(name, In, K, Acc, C)                                                                                          \
  template <class D> static inline void ptx_mma_sync_aligned_##name(D& d0, D& d1, D& d2, D& d3, unsigned a0, unsigned a1,       \
      unsigned a2, unsigned a3, unsigned b0, unsigned b1, C c0, C c1, C c2, C c3) {                                             \
    Acc acc[4] = {Acc(c0), Acc(c1), Acc(c2), Acc(c3)};                                                                          \
    emu::mma<emu::In, K>(acc, {a0, a1, a2, a3}, {b0, b1});                                                                      \
    d0 = D(acc[0]), d1 = D(acc[1]), d2 = D(acc[2]), d3 = D(acc[3]);                                                             \
  }
#define EMU_MMA2(name, In, K, Acc, C)                                                                                          \
  template <class D> static inline void ptx_mma_sync_aligned_##name(D& d0, D& d1, D& d2, D& d3, unsigned a0, unsigned a1,       \
      unsigned b0, C c0, C c1, C c2, C c3) {                                                                                    \
    Acc acc[4] = {Acc(c0), Acc(c1), Acc(c2), Acc(c3)};                                                                          \
    emu::mma<emu::In, K>(acc, {a0, a1}, {b0});                                                                                  \
    d0 = D(acc[0]), d1 = D(acc[1]), d2 = D(acc[2]), d3 = D(acc[3]);                                                             \
  }
EMU_MMA4(m16n8k16_row_col_f32_f16_f16_f32, InF16, 16, float, float)
EMU_MMA2(m16n8k8_row_col_f32_f16_f16_f32, InF16, 8, float, float)
EMU_MMA4(m16n8k16_row_col_f32_bf16_bf16_f32, InBf16, 16, float, float)
EMU_MMA4(m16n8k8_row_col_f32_tf32_tf32_f32, InTf32, 8, float, float)
EMU_MMA4(m16n8k32_row_col_s32_s8_s8_s32, InS8, 32, int, int)
EMU_MMA4(m16n8k32_row_col_s32_u8_u8_s32, InU8, 32, int, int)
EMU_MMA2(m16n8k16_row_col_s32_s8_s8_s32, InS8, 16, int, int)
EMU_MMA4(m16n8k32_row_col_f32_e4m3_e4m3_f32, InE4m3, 32, float, float)
EMU_MMA4(m16n8k32_row_col_f32_e5m2_e5m2_f32, InE5m2, 32, float, float)
// fp16 accumulators: two to a register, rounded once an instruction.
static inline void ptx_mma_sync_aligned_m16n8k16_row_col_f16_f16_f16_f16(unsigned& d0, unsigned& d1, unsigned a0, unsigned a1, unsigned a2,
    unsigned a3, unsigned b0, unsigned b1, unsigned c0, unsigned c1) {
  float acc[4] = {float(emu_half2(c0).x), float(emu_half2(c0).y), float(emu_half2(c1).x), float(emu_half2(c1).y)};
  emu::mma<emu::InF16, 16>(acc, {a0, a1, a2, a3}, {b0, b1});
  d0 = emu_pack({__half(acc[0]), __half(acc[1])}), d1 = emu_pack({__half(acc[2]), __half(acc[3])});
}
