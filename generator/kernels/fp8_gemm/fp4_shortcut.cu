// fp8_gemm/fp4_shortcut: C[M, N] = (A * sa) @ (B * sb)^T with A and B rounded to e2m1, fp32 sums, fp16 out.
//
// mma on e2m1 has twice the rate of the block-scaled mma on e4m3. A STAGES-deep cp.async ring brings raw bytes in; a step
// rounds one tile for the whole block to MXFP4: 32 neighbours along k share the power of two that puts the greatest of them
// between 4 and 8, and keep one bit of mantissa of three. These ue8m0 scales go to mma m16n8k64, two per instruction; the
// op's own are applied to the sums of 128 of K in fp32. Warps are 2 along M, WARPS / 2 along N.
// Gains over mxfp8: twice the tensor rate, half the ldmatrix traffic; what it multiplies is no longer A and B.
//
// A is e4m3 [M, K], sa fp32 [M, K / 128]; B is e4m3 [N, K], sb fp32 [ceil(N / 128), K / 128].
//
// Launch: grid = (ceil(N / BLOCK_N), ceil(M / BLOCK_M)), block = 32 * WARPS,
//         dynamic shared memory = (BLOCK_M + BLOCK_N) * (128 * STAGES + 68) bytes.
// Needs:  sm_120a (fp4 mma), K % 128 == 0, N % 2 == 0.
#include <cuda_fp16.h>
#include <cuda_fp8.h>

// ---- tuning parameters ------------------------------------------------------
constexpr int BLOCK_M = 64; // rows of C per block
constexpr int BLOCK_N = 64; // columns of C per block
constexpr int STAGES = 2;   // raw tiles in flight or in use
constexpr int WARPS = 4;    // warps per block, 2 along M
// -----------------------------------------------------------------------------

constexpr int BLOCK_K = 128, MX = 32; // depth of a tile, one scale block; values that share a ue8m0 scale
constexpr int THREADS = 32 * WARPS, ROWS = BLOCK_M + BLOCK_N; // rows of a tile, A's first
constexpr int WM = BLOCK_M / 2, WN = BLOCK_N / (WARPS / 2);   // warp tile
constexpr int MT = WM / 16, NT = WN / 8;                      // mma tiles per warp

static_assert(WM % 16 == 0 && WN % 16 == 0, "a warp tile must be a multiple of 16 x 16");
static_assert(MT * NT * 4 <= 64, "more than 64 accumulators, which are kept twice, spill");
static_assert(BLOCK_K % BLOCK_N == 0, "BLOCK_N must divide 128: a block has one scale of B at a time");
static_assert(STAGES >= 2, "STAGES must be at least 2: one in flight, one in use");

// Offset in bytes of (row, MX block); eight consecutive rows hit eight different 16-byte bank groups.
__device__ __forceinline__ int swizzle(int row, int block) { return row * (BLOCK_K / 2) + (block ^ row / 2 % 4) * 16; }

__device__ __forceinline__ unsigned smem_addr(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void cp_async16(void* dst, const void* src, bool live) {
  const int bytes = live ? 16 : 0; // 0: the chunk is filled with zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_addr(dst)), "l"(src), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(smem_addr(p)) : "memory");
}
// Bytes 0 and 1 of sa and sb scale k 0..31 and 32..63.
__device__ __forceinline__ void mma_16864(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, unsigned sa, unsigned sb) {
  asm volatile("mma.sync.aligned.kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {0, 0}, {%11}, {0, 0};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(sa), "r"(sb));
}

__device__ __forceinline__ unsigned encode8(const __half2* h) {
  const unsigned* bits = reinterpret_cast<const unsigned*>(h);
  unsigned e2m1;
  asm("{ .reg .b8 a, b, c, d; cvt.rn.satfinite.e2m1x2.f16x2 a, %1; cvt.rn.satfinite.e2m1x2.f16x2 b, %2; "
      "cvt.rn.satfinite.e2m1x2.f16x2 c, %3; cvt.rn.satfinite.e2m1x2.f16x2 d, %4; mov.b32 %0, {a, b, c, d}; }"
      : "=r"(e2m1) : "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3]));
  return e2m1;
}
// Rounds one MX block of e4m3 to e2m1 and returns its ue8m0 scale: the exponent of the greatest, less that of 4.
__device__ __forceinline__ unsigned char to_mxfp4(uint4* dst, const unsigned short* src) {
  __half2 h[MX / 2], top = __float2half2_rn(0x1p-9f); // the least e4m3
#pragma unroll
  for (int i = 0; i < MX / 2; ++i) {
    h[i] = __nv_cvt_fp8x2_to_halfraw2(src[i], __NV_E4M3);
    top = __hmax2(top, __habs2(h[i]));
  }
  const int scale = (__float_as_int(fmaxf(__low2float(top), __high2float(top))) >> 23) - 2;
  const __half2 inverse = __float2half2_rn(__int_as_float((254 - scale) << 23));
#pragma unroll
  for (int i = 0; i < MX / 2; ++i) h[i] = __hmul2(h[i], inverse);
  *dst = make_uint4(encode8(h), encode8(h + 4), encode8(h + 8), encode8(h + 12));
  return scale;
}

extern "C" __global__ void __launch_bounds__(THREADS)
fp8_gemm(const unsigned char* __restrict__ A, const float* __restrict__ sa, const unsigned char* __restrict__ B,
         const float* __restrict__ sb, __half* __restrict__ C, int M, int N, int K) {
  extern __shared__ __align__(128) unsigned char smem[];    // e2m1 tile [ROWS][BLOCK_K / 2], swizzled
  unsigned char* raw = smem + ROWS * BLOCK_K / 2;           // [STAGES][ROWS][BLOCK_K]
  unsigned char* mx = raw + STAGES * ROWS * BLOCK_K;        // ue8m0 [ROWS][BLOCK_K / MX]
  const unsigned* mx_row = reinterpret_cast<unsigned*>(mx); // four scales of a row
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % 2 * WM, warp_n = warp / 2 * WN;
  const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N, steps = K / BLOCK_K;
  float total[MT][NT][4] = {};

  auto fetch = [&](int step) { // one group per step, empty past the last
    if (step < steps)
      for (int i = threadIdx.x; i < ROWS * BLOCK_K / 16; i += THREADS) {
        const int r = i / (BLOCK_K / 16), row = r < BLOCK_M ? m0 + r : n0 + r - BLOCK_M;
        const bool live = row < (r < BLOCK_M ? M : N);
        const size_t at = live ? (size_t)row * K + step * BLOCK_K + i % (BLOCK_K / 16) * 16 : 0;
        cp_async16(raw + step % STAGES * ROWS * BLOCK_K + i * 16, (r < BLOCK_M ? A : B) + at, live);
      }
    cp_async_commit();
  };
  for (int s = 0; s < STAGES - 1; ++s) fetch(s);

  for (int step = 0; step < steps; ++step) {
    float scale[MT][2];
#pragma unroll
    for (int i = 0; i < MT * 2; ++i) {
      const int m = min(m0 + warp_m + i * 8 + lane / 4, M - 1);
      scale[i / 2][i % 2] = sa[(size_t)m * steps + step] * sb[n0 / BLOCK_K * steps + step];
    }
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    fetch(step + STAGES - 1);
    for (int i = threadIdx.x; i < ROWS * BLOCK_K / MX; i += THREADS)
      mx[i] = to_mxfp4(reinterpret_cast<uint4*>(smem + swizzle(i / 4, i % 4)),
                       reinterpret_cast<const unsigned short*>(raw + step % STAGES * ROWS * BLOCK_K + i * MX));
    __syncthreads();

    float acc[MT][NT][4] = {};
#pragma unroll
    for (int kk = 0; kk < BLOCK_K / 64; ++kk) {
      unsigned a[MT][4], b[NT / 2][4];
#pragma unroll
      for (int i = 0; i < MT; ++i) ldmatrix_x4(a[i], smem + swizzle(warp_m + i * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
      for (int j = 0; j < NT / 2; ++j)
        ldmatrix_x4(b[j], smem + swizzle(BLOCK_M + warp_n + j * 16 + lane / 16 * 8 + lane % 8, kk * 2 + lane / 8 % 2));
#pragma unroll
      for (int t = 0; t < MT * NT; ++t) {
        const int i = t / NT, j = t % NT; // lanes 0 and 1 of a quad scale two rows of A, lane 0 a column of B
        const unsigned of_a = mx_row[warp_m + i * 16 + lane % 2 * 8 + lane / 4], of_b = mx_row[BLOCK_M + warp_n + j * 8 + lane / 4];
        mma_16864(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], of_a >> kk * 16, of_b >> kk * 16);
      }
    }
#pragma unroll
    for (int t = 0; t < MT * NT * 4; ++t) {
      const int i = t / 4 / NT, j = t / 4 % NT, e = t % 4;
      total[i][j][e] += acc[i][j][e] * scale[i][e / 2];
    }
  }

#pragma unroll
  for (int t = 0; t < MT * NT * 2; ++t) {
    const int i = t / 2 / NT, j = t / 2 % NT, h = t % 2;
    const int m = m0 + warp_m + i * 16 + h * 8 + lane / 4, n = n0 + warp_n + j * 8 + lane % 4 * 2;
    if (m < M && n < N)
      *reinterpret_cast<__half2*>(C + (size_t)m * N + n) = __floats2half2_rn(total[i][j][h * 2], total[i][j][h * 2 + 1]);
  }
}
