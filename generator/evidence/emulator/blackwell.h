// PTX of sm_120a: e2m1, and mma.sync with block scales. Named as in ptx.h.
#pragma once
namespace emu {
struct E2M1 { // 0 0.5 1 1.5 2 3 4 6 and their negatives
  static constexpr int mantissa = 1, bias = 1;
  static constexpr uint8_t greatest = 0x07, overflow = 0x07;
};
static inline uint8_t e2m1_encode(double x) { // NaN gives 6, as satfinite has it
  const uint8_t code = fp8_encode<E2M1>(x);
  return uint8_t((code & 7) | (code >> 4 & 8));
}
struct InE2m1 {
  static constexpr int bits = 4;
  using Sum = float;
  static float get(unsigned v) { return fp8_decode<E2M1>(uint8_t((v & 7) | (v & 8) << 4)); }
};
static inline float ue8m0_decode(unsigned byte) { return byte == 255 ? NAN : ldexpf(1.0f, int(byte) - 127); }

// mma.sync m16n8kK whose products are scaled per row of A, per column of B and per K / VEC neighbours along k. Bytes `byte`.. of the scale
// registers hold the VEC scales. Those of row r are in lane 4 (r % 8) + r / 8 + 2 thread_a, those of column c in lane 4 c + thread_b.
// PTX ISA, "Block Scaling for mma.sync"; lanes as in CUTLASS's SFALayout and SFBLayout (cute/atom/mma_traits_sm120.hpp).
template <class In, int K, int VEC>
static inline void mma_scaled(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], unsigned sa, int byte_a, int thread_a,
                              unsigned sb, int byte_b, int thread_b) {
  if (byte_a % VEC || byte_b % VEC || byte_a > 3 || byte_b > 3) fail(TRAP, "mma.sync: byte-id %d or %d", byte_a, byte_b);
  if (thread_a > 1 || thread_b > 3) fail(TRAP, "mma.sync: thread-id %d or %d", thread_a, thread_b);
  struct Part { float* d; const unsigned *a, *b; unsigned sa, sb; int thread_a, thread_b; };
  Part part{d, a, b, sa >> (8 * byte_a), sb >> (8 * byte_b), thread_a, thread_b};
  warp_meet(0xffffffffu, part, "mma.sync", [](Part** s) {
    float A[16][K], B[8][K];
    fragments<In, K>(s, A, B);
    for (int k = 0; k < K; ++k) {
      const int shift = k / (K / VEC) * 8;
      for (int r = 0; r < 16; ++r) A[r][k] *= ue8m0_decode(s[r % 8 * 4 + r / 8 + 2 * s[0]->thread_a]->sa >> shift & 255);
      for (int c = 0; c < 8; ++c) B[c][k] *= ue8m0_decode(s[c * 4 + s[0]->thread_b]->sb >> shift & 255);
    }
    for (int l = 0; l < 32; ++l)
      for (int r = 0; r < 4; ++r)
        for (int k = 0; k < K; ++k) s[l]->d[r] += A[l / 4 + r / 2 * 8][k] * B[l % 4 * 2 + r % 2][k];
  });
}
} // namespace emu
template <class D> static inline void ptx_cvt_rn_satfinite_e2m1x2_f32(D& d, float hi, float lo) {
  d = D(emu::e2m1_encode(lo) | emu::e2m1_encode(hi) << 4);
}
template <class D> static inline void ptx_cvt_rn_satfinite_e2m1x2_f16x2(D& d, unsigned h) {
  d = D(emu::e2m1_encode(emu_half2(h).x.d()) | emu::e2m1_encode(emu_half2(h).y.d()) << 4);
}
#define EMU_MMA_SCALED(name, In, K, VEC)                                                                                        \
  static inline void ptx_mma_sync_aligned_kind_##name(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1,     \
      unsigned a2, unsigned a3, unsigned b0, unsigned b1, float c0, float c1, float c2, float c3, unsigned sa, int byte_a,      \
      int thread_a, unsigned sb, int byte_b, int thread_b) {                                                                    \
    float acc[4] = {c0, c1, c2, c3};                                                                                            \
    emu::mma_scaled<emu::In, K, VEC>(acc, {a0, a1, a2, a3}, {b0, b1}, sa, byte_a, thread_a, sb, byte_b, thread_b);              \
    d0 = acc[0], d1 = acc[1], d2 = acc[2], d3 = acc[3];                                                                         \
  }
EMU_MMA_SCALED(mxf8f6f4_block_scale_scale_vec_1X_m16n8k32_row_col_f32_e4m3_e4m3_f32_ue8m0, InE4m3, 32, 1)
EMU_MMA_SCALED(mxf4_block_scale_scale_vec_2X_m16n8k64_row_col_f32_e2m1_e2m1_f32_ue8m0, InE2m1, 64, 2)
